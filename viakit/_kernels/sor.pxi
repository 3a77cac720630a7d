# SOR: red-black successive over-relaxation.

cdef extern from "kernels.h" nogil:
    struct kernels_sor_sweep_s "kernels_sor_sweep":
        long n_stages
        int black_first
        long first
        long last
        int first_step
        int last_step
        long origin

    void kernels_sor_sweep(float *red, float *black, size_t n, const kernels_sor_sweep_s *sweep)
    uint64_t KERNELS_FNV_START
    uint64_t kernels_sor_fnv(uint64_t hash, const float *red, const float *black, size_t n_pairs)


def sor_sweep(
    red, black, long n_stages, bint black_first, long first, long last, *, long origin=0, int first_step=0,
    int last_step=0,
) -> None:
    """Do half-sweeps over rows of a band, in one passage.

    Parameters
    ----------
    red, black : numpy.ndarray, float32, shape (rows, n + 1)
        The band, with a row above and one below that are only read. Changed in place.
    n_stages : int
        How many half-sweeps, of one colour and the other in turn.
    black_first : bool
        Whether the first is of black squares.
    first, last : int
        The rows of the first half-sweep, [first, last).
    origin : int
        The number that row 0 of the arrays has in the whole grid.
    first_step, last_step : int
        By how much `first` and `last` move from one half-sweep to the next: -1, 0 or 1.

    Raises
    ------
    ValueError
        For arrays of other shapes, and where a half-sweep would leave the rows that have rows around them.
    """
    _check(red, "red", "float32", (None, None), written=True)
    _check(black, "black", "float32", red.shape, written=True)
    cdef long rows = red.shape[0]
    cdef size_t width = red.shape[1]
    _apart(red, "red", black, "black")
    if rows < 2 or width < 2:
        raise ValueError(f"a band has 2 rows and 2 columns of each colour at least, not shape {red.shape}")
    if n_stages < 0:
        raise ValueError(f"{n_stages} half-sweeps cannot be done")
    if abs(first_step) > 1 or abs(last_step) > 1:
        raise ValueError(f"the ends of a half-sweep move by -1, 0 or 1, not {first_step} and {last_step}")
    cdef long lowest = first + min(0, first_step * (n_stages - 1))
    cdef long highest = last + max(0, last_step * (n_stages - 1))
    if n_stages and (lowest < 1 or highest > rows - 1):
        raise ValueError(f"rows [{lowest}, {highest}) are not within [1, {rows - 1}), where rows have rows around them")
    cdef kernels_sor_sweep_s sweep
    sweep.n_stages, sweep.black_first = n_stages, black_first
    sweep.first, sweep.last, sweep.origin = first, last, origin
    sweep.first_step, sweep.last_step = first_step, last_step
    cdef float *red_p = <float *>_address(red)
    cdef float *black_p = <float *>_address(black)
    with nogil:
        kernels_sor_sweep(red_p, black_p, width - 1, &sweep)


def sor_fnv(red, black, value=None) -> int:
    """Return the 64-bit FNV-1a hash of the squares, red and black in turn, going on from the hash *value* if given."""
    _check(red, "red", "float32", (None, None))
    _check(black, "black", "float32", red.shape)
    cdef uint64_t hash = KERNELS_FNV_START if value is None else value
    cdef const float *red_p = <const float *>_address(red)
    cdef const float *black_p = <const float *>_address(black)
    cdef size_t n = red.size
    with nogil:
        hash = kernels_sor_fnv(hash, red_p, black_p, n)
    return hash
