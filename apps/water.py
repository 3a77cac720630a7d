"""Water, of the SPLASH programs: molecular dynamics of water in the first few femtoseconds.

Molecules of three atoms move in a periodic box. Each step of 0.15 fs predicts the positions, computes the forces within
molecules and between each two of them, and corrects the prediction (Gear's method, order 6). Then it sums up the
energies, whose total ought to be constant.

The molecules form a circle. Each molecule computes the pairs with the half of the others that follows it.

**Parallel.** Each of P ranks has a stretch of the circle. A rank needs the positions of the molecules of the half of
the ranks after it (96 bytes each), and returns the forces on them (72 bytes each). A step sends positions, forces, and
positions again for the energies: 3 P^2/2 messages for even P. Twice per step 3 numbers are summed over all ranks by way
of rank 0: 4 (P - 1) messages of 24 bytes. These numbers agree with Table II of the paper (Lobosco and others): 620
messages on 8 ranks in 5 steps.

The messages are in :mod:`viakit.apps.water_exchange`. The sums over pairs are kernels (csrc/kernels/water_lanes.c), and
:mod:`viakit.apps.water_numpy` has all kernels in NumPy.

Source: Singh, Weber and Gupta, "SPLASH: Stanford Parallel Applications for Shared-Memory" (1992). The input data of the
program, the files ``LWI12`` and ``random.in``, are not part of viakit. With them (``--data``) the results are compared
with those of the program. Without them molecules start on a lattice with velocities of our own, and the energy has to
be conserved.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from viakit.apps import harness
from viakit.apps.harness import Check, Phases, check, share
from viakit.apps.kernels import kernels as _kernels
from viakit.apps.plain import Case
from viakit.apps.water_exchange import FORCES, POSITIONS, SUMS, Exchange, Piece, wait, window
from viakit.apps.water_numpy import M_H, M_O, MASSES, R_OH, THETA

__all__ = [
    "APPLICATION",
    "FORCES",
    "POSITIONS",
    "SUMS",
    "Exchange",
    "Outcome",
    "Piece",
    "Problem",
    "Step",
    "main",
    "parallel",
    "problem",
    "serial",
    "start",
    "verify",
    "wait",
    "window",
]

# Units: 1e-15 s, 1e-8 cm (an Angstrom), 1.66e-24 g. Energies are reported in units of k T per atom. In equilibrium each
# direction of motion has half a unit, so the kinetic energy at 298 K is 1.5.
UNIT_TIME, UNIT_LENGTH, UNIT_MASS = 1e-15, 1e-8, 1.6605655e-24
BOLTZMANN, TEMPERATURE, DENSITY = 1.380662e-16, 298.0, 0.9980  # erg/K, K, g/cm^3
H = 0.15  # length of a step

DATA = "VIAKIT_SPLASH"  # environment variable: folder of SPLASH's input data
LATTICE, FILE = "lattice", "file"  # initial positions of the molecules
IN_PAPER = 288  # molecules that the paper took from LWI12
IN_LWI12 = 343  # molecules in that file
IN_RANDOM = 5299  # numbers in random.in; the program uses 0 for all further ones
MOST = 10_000_000
STRETCH = 1 << 23  # pairs between two checks for Ctrl-C: some tenths of a second; the paper's sizes have fewer

# Limit of the change of the total energy from the second step on. Bonds oscillate fast, and the steps follow them with
# this accuracy. (In the first step the method has no higher derivatives yet.) With a short cutoff the energy is not
# conserved, because a pair that crosses the cutoff loses or gains repulsion.
CONSERVED, SHORT = 2e-3, 7.5


@dataclass(frozen=True)
class Problem:
    """A number of molecules and steps, and the initial state.

    Attributes
    ----------
    molecules, steps : int
    cutoff : float or None
        Limit of the cutoff in Angstrom (SPLASH-2 and later: 11). None: half the edge of the box (SPLASH-1).
    positions : str
        ``"lattice"`` or ``"file"``: LWI12.
    data : str or None
        Folder with SPLASH's input data. None: velocities of our own.
    seed : int
        Seed of the velocities without `data`.
    """

    molecules: int = 288
    steps: int = 5
    cutoff: float | None = None
    positions: str = LATTICE
    data: str | None = None
    seed: int = 1

    @property
    def box(self) -> float:
        """Edge of the box in Angstrom."""
        mass = self.molecules * (M_O + 2 * M_H) * UNIT_MASS
        return float((mass / DENSITY) ** (1 / 3) / UNIT_LENGTH)

    @property
    def reach(self) -> float:
        """Largest distance in Angstrom at which two sites interact."""
        half = self.box / 2
        return half if self.cutoff is None else min(half, self.cutoff)

    @property
    def per_energy(self) -> float:
        """Factor from the energies of the kernels to units of k T per atom."""
        thermal = BOLTZMANN * TEMPERATURE * 3 * self.molecules
        return UNIT_MASS * (UNIT_LENGTH / UNIT_TIME) ** 2 / thermal


class Step(NamedTuple):
    """Output of the program after a step, in units of k T per atom; the program's own names in brackets."""

    kinetic: float  # TEN
    intra: float  # within molecules (POTA)
    inter: float  # between molecules (POTR)
    field: float  # of the reaction field (POTRF)
    total: float  # the sum of these (XTT)
    temperature: float  # in kelvin, mean of all steps (AVGT)
    virial: float  # mean of all steps (XVIR)


@dataclass
class Outcome:
    """Results of each step, and the number of pairs wholly within the cutoff in the last step."""

    steps: list[Step] = field(default_factory=list)
    pairs: int = 0
    _squares: float = 0.0
    _virial: float = 0.0

    def add(self, problem: Problem, sums: Sequence[float]) -> None:
        """Add a step: virial, kinetic, pairs, intra, inter, field, in the sums of the kernels."""
        virial, squares, pairs, *potential = map(float, sums)
        intra, inter, outer = (one * problem.per_energy for one in potential)
        per_square = problem.per_energy * 0.5 / H**2
        self.pairs = int(pairs)
        self._squares += squares
        self._virial -= virial
        done = len(self.steps) + 1
        energies = squares * per_square, intra, inter, outer
        temperature = self._squares * per_square * TEMPERATURE * 2 / 3 / done
        self.steps.append(Step(*energies, sum(energies), temperature, self._virial * problem.per_energy * 0.5 / done))


def problem(
    molecules: int = 288,
    steps: int = 5,
    cutoff: float | None = None,
    positions: str = "auto",
    data: str | os.PathLike[str] | None = None,
    seed: int = 1,
) -> Problem:
    """Return the problem for the options. Raises ValueError if one is invalid.

    Parameters
    ----------
    molecules, steps : int
    cutoff : float, optional
        Limit of the cutoff in Angstrom. Default: none.
    positions : str
        ``"lattice"``, ``"file"`` (LWI12), or ``"auto"``: the file for the paper's 288 molecules if `data` is given.
    data : path, optional
        Folder with SPLASH's ``random.in`` and ``LWI12``. Default: the environment variable ``VIAKIT_SPLASH``.
    seed : int
        Seed of our own velocities, from 0.
    """
    if not 1 <= molecules <= MOST:
        raise ValueError(f"molecules is {molecules}; expected 1 to {MOST}")
    if steps < 1:
        raise ValueError(f"steps is {steps}; expected 1 or more")
    if cutoff is not None and not 0 < cutoff < math.inf:
        raise ValueError(f"the cutoff is a distance above 0, in Angstrom, not {cutoff}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"the seed is in [0, 2^32), not {seed}")
    if positions not in ("auto", LATTICE, FILE):
        raise ValueError(f"molecules start at positions auto, lattice or file, not {positions}")
    data = data or os.environ.get(DATA) or None
    if positions == "auto":
        positions = FILE if data and molecules == IN_PAPER else LATTICE
    if positions == FILE and not data:
        raise ValueError(f"positions from a file need SPLASH's LWI12: give its folder by --data or {DATA}")
    if positions == FILE and molecules > IN_LWI12:
        raise ValueError(f"LWI12 holds {IN_LWI12} molecules, not {molecules}; take positions from the lattice")
    made = Problem(molecules, steps, cutoff, positions, None if data is None else str(data), seed)
    if data:
        start(made)  # raises an error for invalid files
    return made


def _is_cube(n: int) -> bool:
    return round(n ** (1 / 3)) ** 3 == n


# ------------------------------------------------------------------------------------------------- the start


def _numbers(folder: str, name: str, least: int) -> np.ndarray:
    """Read all numbers of a file, and check that there are at least *least*."""
    path = Path(folder) / name
    try:
        words = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not a text file"
        raise ValueError(f"{path}: {reason}; a copy of SPLASH's Water has this file") from error
    try:
        numbers = np.array(words, dtype=float)
    except ValueError as error:
        raise ValueError(f"{path}: not all of it is numbers: {error}") from error
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}: not all of its numbers are finite")
    if len(numbers) < least:
        raise ValueError(f"{path}: {len(numbers)} numbers, where {least} are needed")
    return numbers


def _lattice(problem: Problem) -> np.ndarray:
    """Return positions (9, n) on a cubic lattice with equal orientation. Some nodes are empty if n is not a cube."""
    n, box = problem.molecules, problem.box
    # The program divides the box by the cube root minus 1e-5, so that rounding never makes the root of a cube too low.
    exact = _is_cube(n)
    edge = round(n ** (1 / 3)) if exact else math.ceil(n ** (1 / 3))
    step = box / (n ** (1 / 3) - 1e-5 if exact else edge)
    nodes = np.arange(n) * edge**3 // n
    index = np.stack([nodes // edge**2, nodes // edge % edge, nodes % edge])
    oxygen = step / 2 + step * index
    along, across = R_OH * math.cos(THETA / 2), R_OH * math.sin(THETA / 2)
    bond1, bond2 = np.array([[along], [across], [0.0]]), np.array([[along], [-across], [0.0]])
    return np.concatenate([oxygen + bond1, oxygen, oxygen + bond2])


def _from_file(problem: Problem) -> np.ndarray:
    """Return positions (9, n) of the first molecules of LWI12. Its order is by direction, then molecule, then atom."""
    assert problem.data is not None
    numbers = _numbers(problem.data, "LWI12", 9 * IN_LWI12)[: 9 * IN_LWI12]
    there = numbers.reshape(3, IN_LWI12, 3)[:, : problem.molecules]
    there = there - there.min(axis=(1, 2), keepdims=True)
    return np.ascontiguousarray(there.transpose(2, 0, 1)).reshape(9, -1)


def _momenta(problem: Problem) -> np.ndarray:
    """Return numbers (9, n) proportional to the momenta: those of SPLASH, or normally distributed ones."""
    n = problem.molecules
    numbers = np.zeros(9 * n)
    if problem.data:
        read = _numbers(problem.data, "random.in", 1 + min(9 * n, IN_RANDOM - 1))[1:]
        m = min(len(read), 9 * n)
        numbers[:m] = read[:m]
    else:
        uniform = np.empty(18 * n)
        _kernels.random_fill(271828183 * (2 * problem.seed + 1) % 2**46, uniform)
        numbers[:] = np.sqrt(-2 * np.log(uniform[: 9 * n])) * np.cos(2 * math.pi * uniform[9 * n :])
    return np.ascontiguousarray(numbers.reshape(n, 9).T)


def start(problem: Problem) -> np.ndarray:
    """Return the state, shape (7, 9, molecules): positions, velocities, and zero for higher derivatives.

    The mean velocity is zero, and each direction has the energy of 298 K. Raises ValueError if files are missing or
    invalid.
    """
    n = problem.molecules
    state = np.zeros((7, 9, n))
    state[0] = _from_file(problem) if problem.positions == FILE else _lattice(problem)
    momenta = _momenta(problem).reshape(3, 3, n)  # by atom and direction
    momenta -= momenta.sum(axis=(0, 2), keepdims=True) / (3 * n)
    with np.errstate(over="ignore"):
        energy = (momenta**2 / MASSES.reshape(3, 3, 1)).sum(axis=(0, 2), keepdims=True)
    if not (np.isfinite(energy) & (energy > 0)).all():
        file = Path(problem.data or "", "random.in")
        raise ValueError(f"{file}: its numbers make no velocities: they are all alike, or far too large")
    wanted = BOLTZMANN * TEMPERATURE * 3 * n / UNIT_MASS * (UNIT_TIME * H / UNIT_LENGTH) ** 2
    state[1] = (momenta * np.sqrt(wanted / energy)).reshape(9, n) / MASSES[:, None]
    return state


def _accelerations(forces: np.ndarray) -> np.ndarray:
    """Return x'' h^2 / 2 (9, n) for the forces on atoms (n, 12)."""
    return forces[:, :9].T * (0.5 * H * H / MASSES)[:, None]


def pair_forces(
    problem: Problem, first: int, own: int, sites: np.ndarray, forces: np.ndarray, pairs: int = STRETCH
) -> tuple[float, int]:
    """Add the forces of all pairs of *own* molecules, in stretches of about *pairs* pairs between checks for Ctrl-C.

    Returns the result of ``_kernels.water_pair_forces``: the virial, and the number of pairs wholly within the cutoff.
    """
    n, box, cutoff = problem.molecules, problem.box, problem.reach
    virial, whole = 0.0, 0
    for begin, end in _stretches(n, own, pairs):
        one, many = _kernels.water_pair_forces(
            sites[begin:], first + begin, end - begin, n, box, cutoff, forces[begin:]
        )
        virial, whole = virial + one, whole + many
    return virial, whole


def pair_energies(
    problem: Problem, first: int, own: int, sites: np.ndarray, pairs: int = STRETCH
) -> tuple[float, float, int]:
    """Sum the energies of all pairs, in stretches as well. Returns the result of ``_kernels.water_pair_energies``."""
    n, box, cutoff = problem.molecules, problem.box, problem.reach
    inter, answer, whole = 0.0, 0.0, 0
    for begin, end in _stretches(n, own, pairs):
        a, b, many = _kernels.water_pair_energies(sites[begin:], first + begin, end - begin, n, box, cutoff)
        inter, answer, whole = inter + a, answer + b, whole + many
    return inter, answer, whole


def _stretches(n: int, own: int, pairs: int) -> Iterator[tuple[int, int]]:
    """Divide *own* molecules with n/2 partners each into stretches [begin, end) of about *pairs* pairs."""
    step = max(2 * pairs // n, 1)
    for begin in range(0, own, step):
        yield begin, min(begin + step, own)


# ------------------------------------------------------------------------------------ one process


def serial(problem: Problem, phases: Phases | None = None) -> Outcome:
    """Simulate in one process.

    The circle of molecules becomes an array: a copy of the first half follows the last molecule.
    """
    phases = phases or Phases()
    n, box = problem.molecules, problem.box
    again = n // 2
    state = start(problem)
    sites, forces = np.zeros((n + again, 12)), np.zeros((n + again, 12))

    def place() -> None:
        _kernels.water_place(state, sites)
        sites[n:] = sites[:again]

    def find_forces() -> tuple[float, int]:
        forces[:] = 0.0
        _, bonds = _kernels.water_intra(sites, n, forces)
        virial, pairs = pair_forces(problem, 0, n, sites, forces)
        forces[:again] += forces[n:]
        _kernels.water_fold(forces[:n])
        return bonds + virial, pairs

    place()
    find_forces()
    state[2] = _accelerations(forces[:n])
    phases.begin()
    outcome = Outcome()
    for step in range(problem.steps):
        _kernels.water_predict(state)
        place()
        virial, pairs = find_forces()
        _kernels.water_correct(state, forces, H)
        _kernels.water_wrap(state, box)
        kinetic = _kernels.water_kinetic(state)
        place()
        intra, _ = _kernels.water_intra(sites, n)
        inter, answer, _ = pair_energies(problem, 0, n, sites)
        outcome.add(problem, (virial, kinetic, pairs, intra, inter, answer))
        phases.progress(step + 1, problem.steps)
    phases.end()
    return outcome


# --------------------------------------------------------------------------------------- many processes


def parallel(comm: Any, problem: Problem, phases: Phases | None = None) -> Outcome:
    """Simulate on all ranks of a communicator. Each has an equal share of the molecules, or none."""
    phases = phases or Phases()
    n, box = problem.molecules, problem.box
    first, end = share(n, comm.Get_rank(), comm.Get_size())
    own = end - first
    state = np.ascontiguousarray(start(problem)[:, :, first:end])  # every rank computes the whole initial state
    exchange = Exchange(comm, n)
    sites, forces = exchange.sites, exchange.forces

    def find_forces() -> tuple[float, int]:
        forces[:] = 0.0
        _kernels.water_place(state, sites)
        requests = exchange.start_positions()
        _, bonds = _kernels.water_intra(sites, own, forces)  # needs no other rank's molecules
        wait(requests)
        virial, pairs = pair_forces(problem, first, own, sites, forces)
        exchange.add_forces()
        return bonds + virial, pairs

    find_forces()
    state[2] = _accelerations(forces[:own])
    comm.Barrier()
    phases.begin()
    outcome = Outcome()
    for step in range(problem.steps):
        _kernels.water_predict(state)
        virial, pairs = find_forces()
        _kernels.water_correct(state, forces, H)
        _kernels.water_wrap(state, box)
        motion = exchange.sum(virial, _kernels.water_kinetic(state), pairs)
        _kernels.water_place(state, sites)
        requests = exchange.start_positions()
        intra, _ = _kernels.water_intra(sites, own)
        wait(requests)
        inter, answer, _ = pair_energies(problem, first, own, sites)
        outcome.add(problem, [*motion, *exchange.sum(intra, inter, answer)])
        phases.progress(step + 1, problem.steps)
    phases.end()
    return outcome


# ---------------------------------------------------------------------------------------------- verification

# Output of published versions of the program, step by step: TEN, POTA, POTR, POTRF, XTT. The keys are the number of
# molecules and whether the cutoff is limited to 11 Angstrom; 216 and 1728 start on the lattice, 288 from LWI12.
REFERENCE: dict[tuple[int, bool], tuple[tuple[float, ...], ...]] = {
    (288, False): (
        (5.9532440810, 0.0052842450, 28.2880101162, 0.0608056126, 34.3073440548),
        (14.5268699880, 0.0299211646, 19.6967406245, 0.0620342867, 34.3155660637),
        (21.3463947916, 0.0922654304, 12.7408144646, 0.0639705642, 34.2434452508),
        (26.3790772364, 0.2191396664, 7.6663596734, 0.0666034755, 34.3311800518),
        (27.6403245175, 0.5386357113, -5.8192040793, 0.0691097952, 22.4288659447),
    ),
    (1728, False): (
        (1.5061876037, 0.0058229987, 7.5828502457, -0.3481749752, 8.7466858729),
        (1.5222715689, 0.0232250921, 7.5597999234, -0.3604018336, 8.7448947508),
        (1.5543034850, 0.0522331450, 7.5103047456, -0.3709622592, 8.7458791164),
        (1.5973140485, 0.0928980963, 7.4355537841, -0.3801432449, 8.7456226840),
        (1.6515544462, 0.1452400510, 7.3371852577, -0.3883201642, 8.7456595908),
    ),
    (216, False): (
        (1.5133305054, 0.0043384718, -0.5534316333, 8.2532731944, 9.2175105383),
        (1.5415226791, 0.0175060097, -0.5115865124, 8.1687490463, 9.2161912228),
        (1.5883155339, 0.0399389356, -0.4890712447, 8.0777317639, 9.2169149887),
        (1.6490552838, 0.0722451977, -0.4845598502, 7.9799862998, 9.2167269311),
        (1.7226671953, 0.1151632457, -0.4989268210, 7.8778510547, 9.2167546747),
    ),
    (1728, True): (
        (1.5062928644, 0.0058232330, 11.5541568194, -4.0612583443, 9.0050145725),
        (1.5227456127, 0.0232302450, 11.5184107312, -4.0611593079, 9.0032272809),
        (1.5553707944, 0.0522608649, 11.4564407547, -4.0598628796, 9.0042095343),
        (1.5991703896, 0.0929870329, 11.3690864985, -4.0572903175, 9.0039536035),
        (1.6543469525, 0.1454559970, 11.2575801736, -4.0533927473, 9.0039903757),
    ),
}
CAP = 11.0


def _reference(problem: Problem) -> tuple[tuple[float, ...], ...]:
    """Return the steps of the reference for a problem; empty if it has none."""
    whole = problem.reach == problem.box / 2
    if problem.data is None or not (whole or problem.reach == CAP):
        return ()
    if problem.positions != (LATTICE if _is_cube(problem.molecules) else FILE):
        return ()
    return REFERENCE.get((problem.molecules, not whole), ())


def verify(problem: Problem, outcome: Outcome) -> list[Check]:
    """Compare the energies with those of the program if they are known, and check that the total is conserved.

    The 288 molecules of LWI12 are some of the 343 in a box, pushed together. They repel each other so strongly that
    small differences grow and the energy is not conserved. Their tolerance is 1e-5, that of others 1e-9 and half the
    last of the reference's ten decimals.
    """
    checks = []
    cropped = problem.positions == FILE and problem.molecules != IN_LWI12
    known = _reference(problem)
    if known:
        last = min(len(known), len(outcome.steps))
        for name, got, expected in zip(Step._fields, outcome.steps[last - 1], known[last - 1], strict=False):
            tolerance = 1e-5 if cropped else 1e-9 + 0.5e-10 / abs(expected)
            checks.append(check(f"{name} energy after step {last}", got, expected, tolerance))
    totals = [step.total for step in outcome.steps]
    if not math.isfinite(sum(totals)):
        checks.append(check("total energy", sum(totals), "a finite number"))
    elif not cropped and problem.reach >= SHORT and len(totals) > 2:
        change = max(totals[1:]) - min(totals[1:])
        checks.append(check("largest change of the total energy", change, 0.0, CONSERVED))
    return checks


def describe(problem: Problem) -> str:
    """Return a description of the simulation in one line."""
    where = "LWI12" if problem.positions == FILE else "a lattice"
    moving = "SPLASH's velocities" if problem.data else f"velocities of seed {problem.seed}"
    return (
        f"{problem.molecules} molecules, {problem.steps} steps, cutoff {problem.reach:.3f} Angstrom, "
        f"from {where} with {moving}"
    )


def line(number: int, step: Step) -> str:
    """Return the program's output for a step: its number, TEN, POTA, POTR, POTRF, then XTT, AVGT, XVIR."""
    return " ".join(
        [str(number), *(f"{value:.5f}" for value in step[:4]), "/", *(f"{value:.5f}" for value in step[4:])]
    )


def summary(problem: Problem, outcome: Outcome) -> dict[str, Any]:
    """Return the output of the program after its last step."""
    last = outcome.steps[-1]
    return {**{f"{name} energy": value for name, value in zip(Step._fields[:5], last[:5], strict=True)},
            "mean temperature, K": last.temperature, "mean virial": last.virial,
            "pairs within the cutoff": outcome.pairs,
            "as the program prints it": line(len(outcome.steps), last)}  # fmt: skip


def memory(problem: Problem, ranks: int) -> int:
    """Return the approximate number of bytes of all ranks together.

    Each rank computes the whole initial state, and keeps its window of it and the results of each step.
    """
    return problem.molecules * (504 * 3 * ranks + 2 * 96 * (1 + ranks) + 504) + 300 * problem.steps * ranks


# ------------------------------------------------------------------------------------ plain C loops


def beside(quick: bool = False) -> Iterator[Any]:
    """Yield the sums over pairs, by the kernels and by the loops of plain/water.c (:mod:`viakit.apps.plain`)."""
    for molecules in (216,) if quick else (288, 1728):
        made = Problem(molecules)
        n, box, cutoff = molecules, made.box, made.reach
        sites = np.zeros((n + n // 2, 12))
        state = start(made)
        _kernels.water_predict(state)
        _kernels.water_place(state, sites)
        sites[n:] = sites[: n // 2]

        def kernel(sites: np.ndarray = sites, n: int = n, box: float = box, cutoff: float = cutoff) -> Any:
            forces = np.zeros_like(sites)
            virial, _ = _kernels.water_pair_forces(sites, 0, n, n, box, cutoff, forces)
            energy, answer, _ = _kernels.water_pair_energies(sites, 0, n, n, box, cutoff)
            return np.append(forces, [virial, energy, answer])

        def plain(
            library: ctypes.CDLL, sites: np.ndarray = sites, n: int = n, box: float = box, cutoff: float = cutoff
        ) -> Any:
            forces, answer = np.zeros_like(sites), ctypes.c_double()
            size, edge, reach = ctypes.c_long(n), ctypes.c_double(box), ctypes.c_double(cutoff)
            library.water_plain_forces.restype = library.water_plain_energies.restype = ctypes.c_double
            there, pushes = ctypes.c_void_p(sites.ctypes.data), ctypes.c_void_p(forces.ctypes.data)
            virial = library.water_plain_forces(there, size, edge, reach, pushes)
            energy = library.water_plain_energies(there, size, edge, reach, ctypes.byref(answer))
            return np.append(forces, [virial, energy, answer.value])

        def same(a: np.ndarray, b: np.ndarray) -> bool:
            return bool(np.allclose(a, b, rtol=1e-9, atol=1e-9))

        yield Case(f"Water, {molecules} molecules, forces, energies", kernel, plain, same)


APPLICATION = harness.Application(
    "water", "Water (SPLASH): molecular dynamics", problem, serial, parallel, verify,
    options=[
        click.Option(["--molecules"], type=int, default=288, show_default=True, help="Number of molecules."),
        click.Option(["--steps"], type=int, default=5, show_default=True, help="Steps of 0.15 fs."),
        click.Option(["--cutoff"], type=float, metavar="A", help="Cap of the cutoff, in Angstrom (SPLASH-2: 11); "
                     "without it, half the box."),
        click.Option(["--positions"], type=click.Choice(["auto", LATTICE, FILE]), default="auto", show_default=True,
                     help="Where molecules start; file: LWI12."),
        click.Option(["--data"], metavar="DIR", envvar=DATA, help="Folder with SPLASH's random.in and LWI12; "
                     "without it, a lattice and random velocities."),
        click.Option(["--seed"], type=int, default=1, show_default=True, help="Seed of the velocities without --data."),
    ],
    memory=memory, describe=describe, summary=summary,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run Water from the command line, and return the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
