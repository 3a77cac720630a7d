# Water: molecular dynamics. Arrays are those of kernels.h: state (7, 9, n), sites and forces (rows, 12), all float64.

cdef extern from "kernels.h" nogil:
    struct kernels_water_pairs:
        size_t n
        size_t first
        size_t own
        size_t rows
        double box
        double cutoff

    struct kernels_water_sums:
        double virial
        double energy
        double field
        size_t whole

    size_t kernels_water_partners(size_t i, size_t n)
    void kernels_water_predict(double *state, size_t n)
    void kernels_water_correct(double *state, size_t n, const double *forces, double h)
    void kernels_water_place(const double *state, size_t n, double *sites)
    double kernels_water_intra(const double *sites, size_t n, double *forces, double *virial)
    void kernels_water_pair_forces(
        const kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
        kernels_water_sums *sums)
    void kernels_water_pair_energies(
        const kernels_water_pairs *pairs, const double *sites, double *scratch, kernels_water_sums *sums)
    size_t KERNELS_WATER_SCRATCH(size_t rows)
    void kernels_water_fold(double *forces, size_t n)
    void kernels_water_wrap(double *state, size_t n, double box)
    double kernels_water_kinetic(const double *state, size_t n)

cdef tuple _WATER_STATE = (7, 9, None)
cdef tuple _WATER_ROWS = (None, 12)


# Look at an array of 12 numbers per molecule that is to have n rows at least.
cdef _water_rows(object array, str name, Py_ssize_t n, bint written=False):
    _check(array, name, "float64", _WATER_ROWS, written)
    if array.shape[0] < n:
        raise ValueError(f"{name} is to have a row for each of {n} molecules, not {array.shape[0]}")


def water_partners(i, n) -> int:
    """Return how many of the molecules after *i* of *n* it is *i* that computes the pair with: half of the others."""
    if not 0 <= i < n:
        raise ValueError(f"of {n} molecules there is none with the number {i}")
    return kernels_water_partners(i, n)


def water_predict(state) -> None:
    """Move *state* on by one step: a Taylor series of each derivative, from all higher ones."""
    _check(state, "state", "float64", _WATER_STATE, written=True)
    cdef double *address = <double *>_address(state)
    cdef size_t n = state.shape[2]
    with nogil:
        kernels_water_predict(address, n)


def water_correct(state, forces, double h) -> None:
    """Bring accelerations to what *forces*, folded, make them in steps of *h*, and all other derivatives with them."""
    _check(state, "state", "float64", _WATER_STATE, written=True)
    cdef size_t n = state.shape[2]
    _water_rows(forces, "forces", n)
    cdef double *address = <double *>_address(state)
    cdef const double *pushes = <const double *>_address(forces)
    with nogil:
        kernels_water_correct(address, n, pushes, h)


def water_place(state, sites) -> None:
    """Put the positions of *state* into the first rows of *sites*, and M's, which follow from them."""
    _check(state, "state", "float64", _WATER_STATE)
    cdef size_t n = state.shape[2]
    _water_rows(sites, "sites", n, written=True)
    cdef const double *address = <const double *>_address(state)
    cdef double *places = <double *>_address(sites)
    with nogil:
        kernels_water_place(address, n, places)


def water_intra(sites, Py_ssize_t n, forces=None) -> tuple:
    """Return energy and virial of the bonds within the first *n* molecules; add their forces to *forces*, if given.

    Without *forces* the virial is 0.
    """
    if n < 0:
        raise ValueError(f"{n} molecules cannot be")
    _water_rows(sites, "sites", n)
    cdef double *pushes = NULL
    if forces is not None:
        _water_rows(forces, "forces", n, written=True)
        pushes = <double *>_address(forces)
    cdef const double *places = <const double *>_address(sites)
    cdef double energy, virial = 0.0
    with nogil:
        energy = kernels_water_intra(places, n, pushes, &virial)
    return energy, virial


# Fill in *pairs*, or raise ValueError.
cdef _water_pairs(kernels_water_pairs *pairs, object sites, first, own, n, double box, double cutoff):
    _check(sites, "sites", "float64", _WATER_ROWS)
    if not (0 <= first <= n and 0 <= own <= n - first):
        raise ValueError(f"{own} molecules from {first} on are not all among {n}")
    if not (0 < cutoff <= box / 2 and box < float("inf")):
        raise ValueError(f"the cutoff is to be above 0 and at most half the box, {box / 2} Angstrom, not {cutoff}")
    if sites.shape[0] >= 2**31:
        raise ValueError(f"{sites.shape[0]} molecules are more than the kernel can count")
    cdef Py_ssize_t needed = 0, i
    for i in range(max(own - 2, 0), own):  # either may be the one that reaches furthest
        needed = max(needed, i + 1 + <Py_ssize_t>kernels_water_partners(first + i, n))
    _water_rows(sites, "sites", needed)
    pairs.first, pairs.own, pairs.n, pairs.rows = first, own, n, sites.shape[0]
    pairs.box, pairs.cutoff = box, cutoff


def water_pair_forces(sites, first, own, n, double box, double cutoff, forces) -> tuple:
    """Add what molecules do to each other to *forces*; return the virial and how many pairs are within the cutoff.

    Parameters
    ----------
    sites : numpy.ndarray, float64, shape (rows, 12)
        Molecule *first* and those after it, the first of all following the last: as many as there are partners.
    first, own : int
        Pairs are those of the *own* molecules from *first* on, each with its :func:`water_partners`.
    n : int
        How many molecules there are.
    box, cutoff : float
        The edge of the box, and the distance beyond which sites do not feel each other; Angstrom.
    forces : numpy.ndarray, float64, shape (rows, 12)
        On the sites; M's are not handed on (:func:`water_fold`).

    Raises
    ------
    ValueError
        For arrays too short, and a cutoff above half the box.
    """
    cdef kernels_water_pairs pairs
    _water_pairs(&pairs, sites, first, own, n, box, cutoff)
    _check(forces, "forces", "float64", sites.shape, written=True)
    scratch = np.empty(KERNELS_WATER_SCRATCH(pairs.rows))
    cdef const double *places = <const double *>_address(sites)
    cdef double *work = <double *>_address(scratch)
    cdef double *pushes = <double *>_address(forces)
    cdef kernels_water_sums sums = kernels_water_sums(0.0, 0.0, 0.0, 0)
    with nogil:
        kernels_water_pair_forces(&pairs, places, work, pushes, &sums)
    return sums.virial, sums.whole


def water_pair_energies(sites, first, own, n, double box, double cutoff) -> tuple:
    """Return the energy of the pairs, that of the reaction field, and how many pairs are wholly within the cutoff.

    Parameters and errors are those of :func:`water_pair_forces`.
    """
    cdef kernels_water_pairs pairs
    _water_pairs(&pairs, sites, first, own, n, box, cutoff)
    scratch = np.empty(KERNELS_WATER_SCRATCH(pairs.rows))
    cdef const double *places = <const double *>_address(sites)
    cdef double *work = <double *>_address(scratch)
    cdef kernels_water_sums sums = kernels_water_sums(0.0, 0.0, 0.0, 0)
    with nogil:
        kernels_water_pair_energies(&pairs, places, work, &sums)
    return sums.energy, sums.field, sums.whole


def water_fold(forces) -> None:
    """Hand the forces on M to the atoms that it follows."""
    _water_rows(forces, "forces", 0, written=True)
    cdef double *pushes = <double *>_address(forces)
    cdef size_t n = forces.shape[0]
    with nogil:
        kernels_water_fold(pushes, n)


def water_wrap(state, double box) -> None:
    """Take molecules whose oxygen has left the box of edge *box* back into it, at the other side, whole."""
    _check(state, "state", "float64", _WATER_STATE, written=True)
    cdef double *address = <double *>_address(state)
    cdef size_t n = state.shape[2]
    with nogil:
        kernels_water_wrap(address, n, box)


def water_kinetic(state) -> float:
    """Return the sum of mass times velocity squared, velocity per step: twice the kinetic energy."""
    _check(state, "state", "float64", _WATER_STATE)
    cdef const double *address = <const double *>_address(state)
    cdef size_t n = state.shape[2]
    cdef double sum
    with nogil:
        sum = kernels_water_kinetic(address, n)
    return sum
