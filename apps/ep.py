"""EP: Gaussian pairs, counted and summed. The NAS benchmark with almost no communication.

Random numbers r1, r2 in (0, 1) give u = 2 r1 - 1, v = 2 r2 - 1 and t = u^2 + v^2. If t <= 1, X = u f and Y = v f with
f = sqrt(-2 ln t / t) are independent Gaussian deviates (Marsaglia's polar method). Pairs are counted by the integer
part of the larger of abs(X) and abs(Y), and the deviates are summed.

**Parallel.** The random numbers are one sequence, x[k+1] = 5^13 x[k] mod 2^46, which permits jumps. Each rank has a
part of the pairs and starts at its place. At the end it sends its figures to rank 0, which adds them: P - 1 messages.
The option ``report`` selects their contents:

``sums``
    the ten counts, the number of accepted pairs, and two sums in both conventions: 120 bytes. The benchmark sums X and
    Y up to version 3.4.1, and their absolute values since.
``counts``
    the counts and their total as integers of 32 bits: 44 bytes, as in the paper's program (Table II).

Counts are exact. The last digits of sums depend on the order of additions; the benchmark requires 1e-8.

Source: D. Bailey et al., The NAS Parallel Benchmarks, RNR-94-007; constants of versions 3.3.1 and 3.4.2.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from viakit.apps import harness
from viakit.apps.harness import Check, check, share
from viakit.apps.kernels import ep_pairs
from viakit.apps.kernels import kernels as _kernels
from viakit.apps.phases import Phases
from viakit.apps.plain import Case

if TYPE_CHECKING:
    import ctypes

    from viakit.apps.plain import Case

__all__ = ["APPLICATION", "Outcome", "Problem", "beside", "main", "parallel", "problem", "serial", "verify"]

SEED = 271828183
MULTIPLIER = 5**13
MODULUS = 2**46
N_COUNTS = 10
STEP = 1 << 20  # pairs between checks of the clock and Ctrl-C, and updates of the progress bar: some milliseconds
MOST = 1 << 44  # pairs, which use the sequence of 2^44 numbers twice
COMPARED_STEP = 1 << 16
COMPARED_PAIRS = 1 << 22  # up to this number, a result without a reference is computed again in NumPy
REPORTS = ("sums", "counts")
TOLERANCE = 1e-8


@dataclass(frozen=True)
class _Known:
    """Reference for a class of 2^log2 pairs: sums before and since version 3.4.2; counts, if known."""

    log2: int
    x: float | None
    y: float | None
    abs_x: float
    abs_y: float
    accepted: int
    counts: tuple[int, ...] = ()


CLASSES = {
    "S": _Known(
        24,
        -3.247834652034740e3,
        -6.958407078382297e3,
        1.051299420395306e7,
        1.051517131857535e7,
        13176389,
        (6140517, 5865300, 1100361, 68546, 1648, 17, 0),
    ),
    "W": _Known(
        25,
        -2.863319731645753e3,
        -6.320053679109499e3,
        2.102505525182392e7,
        2.103162209578822e7,
        26354769,
        (12281576, 11729692, 2202726, 137368, 3371, 36, 0),
    ),
    "A": _Known(
        28,
        -4.295875165629892e3,
        -1.580732573678431e4,
        1.682235632304711e8,
        1.682195123368299e8,
        210832767,
        (98257395, 93827014, 17611549, 1110028, 26536, 245, 0),
    ),
    "B": _Known(
        30,
        4.033815542441498e4,
        -2.660669192809235e4,
        6.728927543423024e8,
        6.728951822504275e8,
        843345606,
        (393058470, 375280898, 70460742, 4438852, 105691, 948, 5),
    ),
    "C": _Known(
        32,
        4.764367927995374e4,
        -8.084072988043731e4,
        2.691444083862931e9,
        2.691519118724585e9,
        3373275903,
        (1572172634, 1501108549, 281805648, 17761221, 424017, 3821, 13),
    ),
    "D": _Known(
        36,
        1.982481200946593e5,
        -1.020596636361769e5,
        4.306350280812112e10,
        4.306347571859157e10,
        53972171957,
        (25154622775, 24017899906, 4508609839, 284201296, 6776403, 61541, 197),
    ),
    "E": _Known(40, -5.319717441530e5, -3.688834557731e5, 6.890169663167274e11, 6.890164670688535e11, 863554308186),
    "F": _Known(44, None, None, 1.102426773788175e13, 1.102426773787993e13, 13816870608324),
}


@dataclass(frozen=True)
class Problem:
    """Number of pairs, and contents of the ranks' reports.

    Attributes
    ----------
    pairs : int
        Pairs of random numbers.
    report : str
        "sums" or "counts".
    """

    pairs: int = 1 << 24
    report: str = "sums"

    @property
    def known(self) -> tuple[str, _Known] | None:
        """Class with this number of pairs, or None."""
        return next(((name, one) for name, one in CLASSES.items() if 1 << one.log2 == self.pairs), None)


@dataclass(frozen=True)
class Outcome:
    """Result of EP.

    Attributes
    ----------
    counts : tuple of int
        Accepted pairs by the integer part of the larger of abs(X) and abs(Y): 10 counts.
    x, y, abs_x, abs_y : float or None
        Sums of the deviates and of their absolute values; None if only counts are reported.
    """

    counts: tuple[int, ...]
    x: float | None
    y: float | None
    abs_x: float | None
    abs_y: float | None

    @property
    def accepted(self) -> int:
        """Total number of accepted pairs."""
        return sum(self.counts)


def problem(class_: str | None = None, pairs: int | None = None, report: str = "sums") -> Problem:
    """Return the problem for the options.

    Parameters
    ----------
    class_ : str, optional
        One of :data:`CLASSES`; the paper ran "A". Default: "S".
    pairs : int, optional
        Number of pairs instead of a class, from 1 to 2^44.
    report : str
        One of :data:`REPORTS`.

    Raises
    ------
    ValueError
        If an option is invalid.
    """
    if report not in REPORTS:
        raise ValueError(f"report is {report!r}; there are: {', '.join(REPORTS)}")
    if pairs is None:
        name = "S" if class_ is None else class_.upper()
        if name not in CLASSES:
            raise ValueError(f"there is no class {class_!r}; there are: {', '.join(CLASSES)}")
        pairs = 1 << CLASSES[name].log2
    elif class_ is not None:
        raise ValueError(f"give a class or a number of pairs, not both: {class_!r} and {pairs}")
    if not 1 <= pairs <= MOST:
        raise ValueError(f"pairs is {pairs}; expected 1 to 2^44")
    if report == "counts" and pairs >= 1 << 31:
        raise ValueError(f"integers of 32 bits cannot count {pairs} pairs: report sums, or choose a class up to B")
    return Problem(pairs, report)


# ------------------------------------------------------------------------------------------------- the computation


class Figures:
    """Counts and sums of a part of the pairs."""

    def __init__(self) -> None:
        self.counts = np.zeros(N_COUNTS, np.uint64)
        self.sums = np.zeros(4)

    def add(self, first: int, last: int, phases: Phases) -> None:
        """Add the pairs [first, last) of the sequence in steps."""
        for begin in range(first, last, STEP):
            state = _kernels.random_skip(SEED, 2 * begin)
            _kernels.ep_pairs(state, min(STEP, last - begin), self.counts, self.sums)
            phases.progress(begin - first, last - first)

    def outcome(self, problem: Problem) -> Outcome:
        """Return the outcome that *problem* requires."""
        sums = self.sums.tolist() if problem.report == "sums" else [None] * 4
        return Outcome(tuple(self.counts.tolist()), *sums)


def pairs_numpy(first: int, last: int) -> Figures:
    """Count and sum the pairs [first, last) of the sequence in NumPy, as a readable reference of the kernel."""
    figures = Figures()
    ep_pairs(SEED * pow(MULTIPLIER, 2 * first, MODULUS) % MODULUS, last - first, figures.counts, figures.sums)
    return figures


def serial(problem: Problem, phases: Phases | None = None) -> Outcome:
    """Run the serial program."""
    figures = Figures()
    figures.add(0, problem.pairs, phases or Phases())
    return figures.outcome(problem)


def _message(figures: Figures, problem: Problem) -> npt.NDArray[Any]:
    """Return a rank's report as an array of bytes; the module's docstring describes it."""
    total = [figures.counts.sum()]
    if problem.report == "counts":
        return np.concatenate([figures.counts, total]).astype(np.int32).view(np.uint8)
    counts = np.concatenate([figures.counts, total]).astype(np.int64)
    return np.concatenate([counts.view(np.uint8), figures.sums.view(np.uint8)])


def _add_message(figures: Figures, message: npt.NDArray[np.uint8], problem: Problem) -> None:
    """Add the report of another rank."""
    if problem.report == "counts":
        counts = message.view(np.int32)
    else:
        counts = message[: 8 * (N_COUNTS + 1)].view(np.int64)
        figures.sums += message[8 * (N_COUNTS + 1) :].view(np.float64)
    if counts[N_COUNTS] != counts[:N_COUNTS].sum():
        raise RuntimeError("counts and their total arrived that do not agree")
    figures.counts += counts[:N_COUNTS].astype(np.uint64)


def parallel(comm: Any, problem: Problem, phases: Phases | None = None) -> Outcome | None:
    """Run the parallel program; return the outcome on rank 0, None on other ranks. A rank may have no pairs."""
    phases = phases or Phases()
    rank, size = comm.Get_rank(), comm.Get_size()
    figures = Figures()
    comm.Barrier()
    phases.begin()
    figures.add(*share(problem.pairs, rank, size), phases)
    message = _message(figures, problem)
    if rank > 0:
        comm.Send(message, dest=0)
    else:
        for other in range(1, size):  # in the order of ranks, so that results are reproducible to the last digit
            comm.Recv(message, source=other)
            _add_message(figures, message, problem)
    phases.end()
    return figures.outcome(problem) if rank == 0 else None


# ---------------------------------------------------------------------------------------------------- verification


@lru_cache(maxsize=4)
def _recompute(pairs: int) -> _Known:
    """Compute a problem in NumPy in pieces, because temporary arrays take 100 bytes per pair."""
    figures = Figures()
    for first in range(0, pairs, COMPARED_STEP):
        piece = pairs_numpy(first, min(first + COMPARED_STEP, pairs))
        figures.counts += piece.counts
        figures.sums += piece.sums
    counts = tuple(figures.counts.tolist())
    x, y, abs_x, abs_y = figures.sums.tolist()
    return _Known(0, x, y, abs_x, abs_y, sum(counts), counts)


def verify(problem: Problem, outcome: Outcome) -> list[Check]:
    """Compare an outcome with the reference of its class, or, for a small problem, with NumPy.

    Counts must be equal, sums within 1e-8. Other large problems have no reference.
    """
    if problem.known is not None:
        right = problem.known[1]
    elif problem.pairs <= COMPARED_PAIRS:
        right = _recompute(problem.pairs)
    else:
        return []
    checks = [check("pairs accepted", outcome.accepted, right.accepted)]
    if right.counts:
        counts = right.counts + (0,) * (N_COUNTS - len(right.counts))
        checks += [
            check(f"pairs from {level} to {level + 1}", got, expected)
            for level, (got, expected) in enumerate(zip(outcome.counts, counts, strict=True))
        ]
    for name, got, expected in (
        ("sum of X", outcome.x, right.x),
        ("sum of Y", outcome.y, right.y),
        ("sum of |X|", outcome.abs_x, right.abs_x),
        ("sum of |Y|", outcome.abs_y, right.abs_y),
    ):
        if got is not None and expected is not None:
            checks.append(check(name, got, expected, TOLERANCE))
    return checks


def describe(problem: Problem) -> str:
    """Return a description of the problem in one line."""
    known = problem.known
    name = f"class {known[0]}, 2^{known[1].log2} pairs" if known else f"{problem.pairs} pairs"
    return f"{name}, {problem.report}"


def summary(problem: Problem, outcome: Outcome) -> dict[str, Any]:
    """Return the figures to print and store."""
    figures: dict[str, Any] = {"accepted": outcome.accepted, "counts": " ".join(str(one) for one in outcome.counts)}
    if problem.report == "sums":
        figures |= {"x": outcome.x, "y": outcome.y, "abs_x": outcome.abs_x, "abs_y": outcome.abs_y}
    return figures


def beside(quick: bool) -> Iterator[Case]:
    """Yield the work of the kernel together with that of the plain C loop (viakit.apps.plain)."""
    pairs = 1 << (18 if quick else 25)

    def kernel() -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        figures = Figures()
        figures.add(0, pairs, Phases())
        return figures.counts, figures.sums

    def plain(library: ctypes.CDLL) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        figures = Figures()
        pointers = [ctypes.c_void_p(one.ctypes.data) for one in (figures.counts, figures.sums)]
        library.ep_plain(ctypes.c_uint64(SEED), ctypes.c_uint64(pairs), *pointers)
        return figures.counts, figures.sums

    yield Case(
        f"EP, 2^{pairs.bit_length() - 1} pairs",
        kernel,
        plain,
        lambda one, other: np.array_equal(one[0], other[0]) and np.allclose(one[1], other[1], TOLERANCE),
    )


APPLICATION = harness.Application(
    "ep",
    "EP: Gaussian deviates, counted",
    problem,
    serial,
    parallel,
    verify,
    options=[
        click.Option(["--class", "class_"], help=f"Size: one of {', '.join(CLASSES)}; the paper ran A.  [default: S]"),
        click.Option(["--pairs"], type=int, help="Size: any number of pairs, instead of a class."),
        click.Option(
            ["--report"],
            type=click.Choice(REPORTS),
            default="sums",
            show_default=True,
            help="Contents of the ranks' reports: counts and sums, or counts only, as in the paper.",
        ),
    ],
    memory=lambda problem, ranks: 0,
    describe=describe,
    summary=summary,
    operations=lambda problem: 2.0 * problem.pairs,  # random numbers
)


def main(arguments: list[str] | None = None) -> int:
    """Run EP from the command line, and return the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
