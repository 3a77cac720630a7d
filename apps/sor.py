"""SOR: the temperature of a plate with fixed edges, by Gauss-Seidel relaxation in red-black order.

Each square of a grid is repeatedly replaced by the mean of its four neighbours. With the colours of a chess board, the
squares of one colour depend only on those of the other. An iteration consists of two half-sweeps: all black squares,
then all red ones.

**Parallel.** Ranks have bands of rows. A half-sweep needs the rows around the band from the previous half-sweep. After
each half-sweep neighbours therefore exchange their first and last rows: 4 (P - 1) messages per iteration of
4 + 4 (N + 1) bytes, where a row has N + 1 squares of each colour. This is the paper's program. Its messages agree with
Table II to the byte, and its results are identical in all bits on any number of ranks. As in the paper, the measured
part begins after the first iteration, and the rows of the last half-sweep are not sent.

Two variants differ only in the order of work:

``paper``
    a half-sweep, then its rows; each half-sweep moves the whole band through the memory bus.
``overlap`` (the default)
    the rows for the neighbours are computed and sent first. While they are in flight the rest is computed, with as many
    half-sweeps in one passage over the band as its cache can hold (csrc/kernels/sor.c)::

        half-sweep          0   1   2   3            of four in one passage, on a band with a rank above:
        row 1               1   2   3   4      |     first, in this order, the part above the stairs: after each of
        row 2               1   2   3 /              1, 2, 3, 4 row 1 is sent to the rank above, and its last row
        row 3               1   2 /                  is received;
        row 4               1 /   5   5        |     then, in one passage and without a message, the part below
        row 5, ...          5   5   5   5

Source: red-black SOR of the TreadMarks distribution, as described by Lobosco and others, section III.C.1.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import numpy.typing as npt

from viakit.apps import arrays, harness
from viakit.apps.harness import Check, check, share
from viakit.apps.kernels import half_sweep
from viakit.apps.kernels import kernels as _kernels
from viakit.apps.phases import Phases
from viakit.apps.plain import Case

if TYPE_CHECKING:
    from collections.abc import Iterator

    from viakit.apps.plain import Case

__all__ = ["APPLICATION", "Outcome", "Problem", "beside", "main", "parallel", "problem", "serial", "verify"]

Rows = npt.NDArray[np.float32]

INITS = ("zero", "nonzero")
VARIANTS = ("overlap", "paper")
CACHE_BYTES = 416 * 1024  # part of a core's second-level cache for the rows of one passage
LARGEST = 10**8  # squares in a row or a column
COMPARED_UPDATES = 10**9  # up to this number, a result without a recorded reference is computed again

# Recorded results: (rows, columns, iterations, init): hash, sum of red, sum of black.
KNOWN = {
    (4096, 4096, 50, "zero"): ("d5768aec158f93b0", 50411.67052328321, 50181.560168981545),
    (4096, 4096, 50, "nonzero"): ("ff0bb2754b97c824", 9.6061746957618617e20, 9.605660152098099e20),
    (64, 64, 10, "zero"): ("285c98a1826e9c0e", 374.27789029883934, 367.01597165482235),
    (64, 64, 10, "nonzero"): ("08d1fcd3ff049395", 1.3015052939005152e17, 1.2948809246394947e17),
}


@dataclass(frozen=True)
class Problem:
    """Size of the grid, its initial values, and number of iterations.

    Attributes
    ----------
    rows, columns : int
        Squares of the grid, including the fixed ones at its edges; columns are even, half of each row is red.
    iterations : int
        Number of iterations; each is a black and a red half-sweep. The first is not measured.
    init : str
        "zero": edges 1, all else 0. "nonzero": powers of e.
    variant : str
        "overlap" or "paper".
    """

    rows: int = 4096
    columns: int = 4096
    iterations: int = 50
    init: str = "zero"
    variant: str = "overlap"

    @property
    def inner(self) -> int:
        """Number of rows that are computed."""
        return self.rows - 2

    @property
    def width(self) -> int:
        """Number of squares of one colour in a row."""
        return self.columns // 2


@dataclass(frozen=True)
class Outcome:
    """Result: the hash of all bits (FNV-1a of red and black squares in turn), and the sum of each colour."""

    hash: str
    red: float
    black: float


def problem(size: str | int = "4096", iterations: int = 50, init: str = "zero", variant: str = "overlap") -> Problem:
    """Return the problem for the options.

    Parameters
    ----------
    size : str or int
        Squares on a side, or "ROWSxCOLUMNS".
    iterations : int
        1 or more.
    init : str
        One of :data:`INITS`.
    variant : str
        One of :data:`VARIANTS`.

    Raises
    ------
    ValueError
        If an option is invalid.
    """
    words = str(size).lower().split("x")
    try:
        numbers = [int(word) for word in words]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2):
        raise ValueError(f"size {size!r} is not a number of squares on a side, nor ROWSxCOLUMNS: 4096, 1000x2000")
    rows, columns = numbers[0], numbers[-1]
    if not (3 <= rows <= LARGEST and 4 <= columns <= LARGEST):
        raise ValueError(f"a grid has 3 rows and 4 columns at least, and 10^8 at most, got {rows} x {columns}")
    if columns % 2:
        raise ValueError(f"half the squares of a row are red, so columns must be even, got {columns}")
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}; expected 1 or more")
    for name, value, known in (("init", init, INITS), ("variant", variant, VARIANTS)):
        if value not in known:
            raise ValueError(f"{name} is {value!r}; there are: {', '.join(known)}")
    return Problem(rows, columns, iterations, init, variant)


# ---------------------------------------------------------------------------------------------------- the grid


def squares(problem: Problem, first: int, last: int) -> tuple[Rows, Rows]:
    """Return the red and the black squares of rows [first, last) at the start: two arrays (last - first, columns / 2).

    Odd rows are R0 B0 R1 B1 ..., even rows B0 R0 B1 R1 ...
    """
    n = problem.width - 1
    red, black = (arrays.zeros((last - first, n + 1), np.float32) for _ in range(2))
    even, odd = slice(first % 2, None, 2), slice(1 - first % 2, None, 2)
    if problem.init == "zero":
        for edge in {0, problem.rows - 1}.intersection(range(first, last)):
            red[edge - first] = black[edge - first] = 1
        outer = np.float32(1)
        red[odd, 0] = black[odd, n] = black[even, 0] = red[even, n] = outer
        return red, black
    # The exponents rise or fall from square to square between 2 and 35. Double precision, then rounded.
    outer = np.float32(2.7182818283)
    up = np.arange(n) % 34 + 2
    down = 37 - up

    def powers(exponents: npt.NDArray[Any], plus: float) -> Rows:
        table = np.array([math.exp(plus + one) for one in range(36)]).astype(np.float32)
        return table[exponents]

    black[even, :n], red[even, 1:] = powers(up, 0.376), powers(down, 0.745)
    red[odd, :n], black[odd, 1:] = powers(up, 0.0), powers(down, 0.0)
    red[even, 0] = black[even, n] = black[odd, 0] = red[odd, n] = outer
    return red, black


class Band:
    """The rows [first, last) of the grid, with the row above and the row below; in the arrays they are [1, m + 1)."""

    def __init__(self, problem: Problem, first: int, last: int) -> None:
        self.problem, self.first, self.m = problem, first, last - first
        self.red, self.black = squares(problem, first - 1, last + 1)

    def colour(self, stage: int) -> Rows:
        """Return the squares that half-sweep *stage* computes; half-sweep 0 computes black squares."""
        return self.red if stage % 2 else self.black

    def sweep(self, stage: int, n_stages: int = 1, first: int = 1, last: int | None = None, **steps: int) -> None:
        """Compute half-sweeps over rows [first, last) of the arrays, which move by *steps* (_kernels.sor_sweep)."""
        end = self.m + 1 if last is None else last
        _kernels.sor_sweep(self.red, self.black, n_stages, stage % 2 == 0, first, end, origin=self.first - 1, **steps)

    @property
    def depth(self) -> int:
        """Number of half-sweeps in one passage: as many as the cache holds rows for."""
        return max(2, CACHE_BYTES // (2 * self.problem.width * 4))

    def owned(self) -> slice:
        """Rows that this band contributes to the result: its own, and the fixed ones at the grid's edges."""
        begins, ends = self.first == 1, self.first + self.m == self.problem.rows - 1
        return slice(0 if begins else 1, self.m + (2 if ends else 1))

    def sums(self) -> npt.NDArray[np.float64]:
        """Return the sum of each row: shape (2, rows), red and black."""
        rows = self.owned()
        return np.stack([one[rows].sum(axis=1, dtype=np.float64) for one in (self.red, self.black)])

    def hash(self, value: int | None) -> int:
        """Continue the hash *value* of the rows above this band."""
        rows = self.owned()
        return int(_kernels.sor_fnv(self.red[rows], self.black[rows], value))


def passages(stages: range, depth: int) -> Iterator[range]:
    """Divide half-sweeps into passages of at most *depth*, of nearly equal length."""
    number = -(-len(stages) // depth)
    for one in range(number):
        first, last = share(len(stages), one, number)
        yield stages[first:last]


def outcome(hashed: int, sums: list[npt.NDArray[np.float64]]) -> Outcome:
    """Return the outcome of bands. The sums are exact before rounding, so they do not depend on the bands."""
    red, black = (math.fsum(one) for one in np.concatenate(sums, axis=1))
    return Outcome(f"{hashed:016x}", red, black)


# ------------------------------------------------------------------------------------------------- one process


def serial(problem: Problem, phases: Phases | None = None) -> Outcome:
    """Run the serial program."""
    phases = phases or Phases()
    band = Band(problem, 1, problem.rows - 1)
    stages = range(2, 2 * problem.iterations)
    band.sweep(0, 2)
    phases.begin()
    for some in passages(stages, band.depth):
        band.sweep(some.start, len(some))
        phases.progress(some.stop, stages.stop)
    phases.end()
    return outcome(band.hash(None), [band.sums()])


# ----------------------------------------------------------------------------------------------- many processes


class Ghosts:
    """Rows that a band exchanges with the ranks above and below it.

    A message contains the number of the half-sweep that has computed the row (4 bytes), and the row. A row of a wrong
    half-sweep is thus detected. Requests are created once and started for each message.
    """

    def __init__(self, comm: Any, band: Band, above: int | None, below: int | None) -> None:
        self.above, self.below = above, below
        m, length = band.m, band.problem.width + 1
        self._band = band
        self._sides = []  # per neighbour: row to send, row to receive, two buffers and their requests
        for rank, mine, ghost in ((above, 1, 0), (below, m, m + 1)):
            if rank is not None:
                out, into = np.zeros(length, np.float32), np.zeros(length, np.float32)
                send, receive = comm.Send_init(out, rank), comm.Recv_init(into, rank)
                self._sides.append((mine, ghost, out, into, send, receive))
        self._last = 2 * band.problem.iterations - 2  # the last half-sweep whose rows a neighbour needs
        for side in self._sides:
            side[5].Start()

    def start(self, stage: int) -> None:
        """Send the band's outer rows of the colour that half-sweep *stage* has computed."""
        rows = self._band.colour(stage)
        for mine, _, out, _, send, _ in self._sides:
            if stage > 0:
                send.Wait()
            out.view(np.int32)[0] = stage
            out[1:] = rows[mine]
            send.Start()

    def finish(self, stage: int) -> None:
        """Wait for the neighbours' rows of that half-sweep, and store them around the band."""
        rows = self._band.colour(stage)
        for _, ghost, _, into, _, receive in self._sides:
            receive.Wait()
            if into.view(np.int32)[0] != stage:
                raise RuntimeError(f"a row of half-sweep {into.view(np.int32)[0]} arrived, not of {stage}")
            rows[ghost] = into[1:]
            if stage < self._last:
                receive.Start()

    def close(self) -> None:
        """Wait until all rows are sent, and free the requests."""
        for *_, send, receive in self._sides:
            send.Wait()
            send.Free()
            receive.Free()


def _paper(band: Band, ghosts: Ghosts, stages: range, phases: Phases) -> None:
    """Compute half-sweeps one by one, and exchange the rows after each."""
    for stage in stages:
        ghosts.start(stage - 1)
        ghosts.finish(stage - 1)
        band.sweep(stage)
        phases.progress(stage, stages.stop)


def _overlap(band: Band, ghosts: Ghosts, stages: range, phases: Phases) -> None:
    """Compute several half-sweeps in one passage: first the rows for the neighbours, then the rest."""
    m = band.m
    above, below = int(ghosts.above is not None), int(ghosts.below is not None)
    if stages:
        ghosts.start(stages.start - 1)
    for some in passages(stages, min(band.depth, m // 2)):
        n = len(some)
        for stage in some:
            edge = some.stop - stage  # rows at each edge that this half-sweep computes now
            ghosts.finish(stage - 1)
            if above:
                band.sweep(stage, first=1, last=2)
            if below:
                band.sweep(stage, first=m, last=m + 1)
            if stage < stages.stop - 1:
                ghosts.start(stage)
            if above:
                band.sweep(stage, first=2, last=1 + edge)
            if below:
                band.sweep(stage, first=m + 1 - edge, last=m)
        band.sweep(some.start, n, 1 + n * above, m + 1 - n * below, first_step=-above, last_step=below)
        phases.progress(some.stop, stages.stop)


def parallel(comm: Any, problem: Problem, phases: Phases | None = None) -> Outcome | None:
    """Run the parallel program; return the outcome on rank 0, None on other ranks.

    If there are more ranks than rows, a rank without rows takes part in the barrier only.
    """
    phases = phases or Phases()
    rank, size = comm.Get_rank(), comm.Get_size()
    bands = [share(problem.inner, one, size) for one in range(size)]
    owners = [one for one, (first, last) in enumerate(bands) if first < last]
    band = None
    if rank in owners:
        first, last = bands[rank]
        band = Band(problem, first + 1, last + 1)
        place = owners.index(rank)
        above = owners[place - 1] if place > 0 else None
        below = owners[place + 1] if place + 1 < len(owners) else None
        ghosts = Ghosts(comm, band, above, below)
        band.sweep(0)
        ghosts.start(0)
        ghosts.finish(0)
        band.sweep(1)
    comm.Barrier()
    phases.begin()
    if band is not None:
        run = _overlap if problem.variant == "overlap" and band.m > 1 else _paper
        run(band, ghosts, range(2, 2 * problem.iterations), phases)
        ghosts.close()
    phases.end()
    return _gather(comm, band)


def _gather(comm: Any, band: Band | None) -> Outcome | None:
    """Return the outcome on rank 0. Hashes are passed from band to band, and from the last rank to the first."""
    rank, size = comm.Get_rank(), comm.Get_size()
    value: Any = comm.recv(source=rank - 1) if rank > 0 else None
    if band is not None:
        value = band.hash(value)
    if size > 1:
        comm.send(value, dest=(rank + 1) % size)
    every = comm.gather(band.sums() if band is not None else np.zeros((2, 0)), root=0)
    if rank > 0:
        return None
    return outcome(comm.recv(source=size - 1) if size > 1 else value, every)


# --------------------------------------------------------------------------------------------------- verification


@lru_cache(maxsize=4)
def _recompute(problem: Problem) -> Outcome:
    """Compute a problem again half-sweep by half-sweep, and in NumPy if it is small."""
    band = Band(problem, 1, problem.rows - 1)
    for stage in range(2 * problem.iterations):
        if problem.rows * problem.iterations < 10_000:
            half_sweep(band.colour(stage), band.colour(stage + 1), stage % 2 == 0, 1, band.m + 1)
        else:
            band.sweep(stage)
    return outcome(band.hash(None), [band.sums()])


def verify(problem: Problem, outcome: Outcome) -> list[Check]:
    """Compare an outcome with the recorded one, or with a second computation, half-sweep by half-sweep.

    The hash must be equal in all bits. Recorded sums are running sums, which round at each step; those of an outcome
    round once. Large problems without a recorded result have no reference.
    """
    known = KNOWN.get((problem.rows, problem.columns, problem.iterations, problem.init))
    if known is None and problem.rows * problem.columns * problem.iterations <= COMPARED_UPDATES:
        again = _recompute(problem)
        known = (again.hash, again.red, again.black)
    if known is None:
        return []
    return [
        check("hash of all squares", outcome.hash, known[0]),
        check("sum of red squares", outcome.red, known[1], 1e-10),
        check("sum of black squares", outcome.black, known[2], 1e-10),
    ]


def memory(problem: Problem, ranks: int) -> int:
    """Return the bytes of all ranks together: the squares, and two rows around each band."""
    bands = min(ranks, problem.inner)
    return (problem.inner + 2 * bands) * problem.width * 8 * 9 // 8


def beside(quick: bool) -> Iterator[Case]:
    """Yield the work of the kernel together with that of the plain C loop (viakit.apps.plain)."""
    for init in INITS:
        task = problem("256x512" if quick else "4096", 10 if quick else 50, init)
        start = squares(task, 0, task.rows)
        band = Band(task, 1, task.rows - 1)

        def again(band: Band = band, start: tuple[Rows, Rows] = start) -> None:
            band.red[:], band.black[:] = start

        def kernel(band: Band = band, stages: range = range(2 * task.iterations)) -> Rows:
            for some in passages(stages, band.depth):
                band.sweep(some.start, len(some))
            return band.black.copy()

        def plain(library: ctypes.CDLL, band: Band = band, task: Problem = task) -> Rows:
            pointers = [ctypes.c_void_p(one.ctypes.data) for one in (band.red, band.black)]
            numbers = [ctypes.c_long(one) for one in (band.m, task.width - 1, task.iterations)]
            library.sor_plain(*pointers, *numbers)
            return band.black.copy()

        yield Case(
            f"SOR, {init}, {task.rows} x {task.columns}, {task.iterations} it.", kernel, plain, np.array_equal, again
        )


APPLICATION = harness.Application(
    "sor",
    "SOR: red-black Gauss-Seidel on a grid",
    problem,
    serial,
    parallel,
    verify,
    options=[
        click.Option(["--size"], default="4096", show_default=True, help="Squares on a side, or ROWSxCOLUMNS."),
        click.Option(
            ["--iterations"], type=int, default=50, show_default=True, help="Number of iterations, each black and red."
        ),
        click.Option(
            ["--init"], type=click.Choice(INITS), default="zero", show_default=True, help="Initial values of the grid."
        ),
        click.Option(
            ["--variant"],
            type=click.Choice(VARIANTS),
            default="overlap",
            show_default=True,
            help="Several half-sweeps in one passage while rows travel, or one by one.",
        ),
    ],
    memory=memory,
    describe=lambda problem: (
        f"{problem.rows} x {problem.columns}, {problem.iterations} iterations, {problem.init}, {problem.variant}"
    ),
    summary=lambda problem, outcome: {"hash": outcome.hash, "red": outcome.red, "black": outcome.black},
)


def main(arguments: list[str] | None = None) -> int:
    """Run SOR from the command line, and return the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    raise SystemExit(main())
