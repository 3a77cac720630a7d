"""FT: a partial differential equation solved by three-dimensional Fourier transforms. The NAS benchmark.

An array of random complex numbers is transformed. Its state after time t is the inverse transform of the coefficients,
each times exp(-4 alpha pi^2 k^2 t) with k the length of its wave vector. The result is a checksum of this state for
each t.

The array has n1 x n2 x n3 elements in row-major order, so the last index is the fastest. The rows are transformed
first, then the columns, then the lines along the first dimension.

**Parallel.** Processes have slabs along the first dimension, as in the paper (Lobosco and others, section C.3,
3D-FFT), so the first two steps need no communication. For the third step the array is transposed: each process gets a
slab along the last dimension, and sends one block to each other process. The inverse transform has the same steps in
reverse order::

    rows of n3   ->  transpose planes  ->  rows of n2  ->  blocks to their owners  ->  transpose  ->  rows of n1
    [n1/P][n2][n3]   [n1/P][n3][n2]                        [n1][n3/P][n2]                             [n3/P][n2][n1]

A library transforms the rows: NumPy, or SciPy if that is faster. Kernels in C transpose, and multiply the factors in at
the same time. The pieces are small enough to remain in a cache from one step to the next. The values need no array of
their own: they are made plane by plane and transformed at once. On the way back each plane contributes its elements to
the checksum.

On 8 processes, 64 x 64 x 64 elements and 10 iterations take 11 transforms of 56 blocks of 64 KB, as in the paper's
Table II. The table has 70 further messages of at most 4 bytes: one from each process to the first per iteration. Here
these messages report the end of the iteration.

The checksums are compared with the published ones, to 1e-12. Sources: NAS Parallel Benchmarks, RNR-94-007, and the
program NPB 3; Lobosco and others.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from viakit.apps import arrays, harness
from viakit.apps.harness import Check, Phases, check, share
from viakit.apps.kernels import kernels as _kernels
from viakit.apps.plain import Case

__all__ = ["APPLICATION", "CLASSES", "Outcome", "Problem", "beside", "main", "parallel", "problem", "serial", "verify"]

SEED = 314159265
MULTIPLIER = 5**13
ALPHA = 1e-6
POINTS = 1024  # elements in a checksum
TOLERANCE = 1e-12
PIECE = 1 << 16  # complex numbers that are processed at a time: 1 MiB

Complex = npt.NDArray[np.complex128]

# n1 x n2 x n3 (in NPB: nz x ny x nx), iterations, and the published checksums. "paper" is class S with four more
# iterations, whose checksums are our own.
_S = """554.6087004964 484.5363331978  554.6385409189 486.5304269511  554.6148406171 488.3910722336
        554.5423607415 490.1273169046  554.4255039624 491.7475857993  554.2683411902 493.2597244941"""
CLASSES: dict[str, tuple[tuple[int, int, int], int, str]] = {
    "S": ((64, 64, 64), 6, _S),
    "W": (
        (32, 128, 128),
        6,
        """567.3612178944 529.3246849175  563.1436885271 528.2149986629  559.4024089970 527.0996558037
           556.0698047020 526.0027904925  553.0898991250 524.9400845633  550.4159734538 523.9212247086""",
    ),
    "A": (
        (128, 256, 256),
        6,
        """504.6735008193 511.4047905510  505.9412319734 509.8809666433  506.9376896287 509.8144042213
           507.7892868474 510.1336130759  508.5233095391 510.4914655194  509.1487099959 510.7917842803""",
    ),
    "B": (
        (256, 256, 512),
        20,
        """517.7643571579 507.7803458597  515.4521291263 508.8249431599  514.6409228649 509.6208912659
           514.2378756213 510.1023387619  513.9626667737 510.3976610617  513.7423460082 510.5948019802
           513.5547056878 510.7404165783  513.3910925466 510.8576573661  513.2470705390 510.9577278523
           513.1197729984 511.0460304483  513.0070319283 511.1252433800  512.9070537032 511.1968077718
           512.8182883502 511.2616233064  512.7393733383 511.3203605551  512.6691062020 511.3735928093
           512.6064276004 511.4218460548  512.5504076570 511.4656139760  512.5002331720 511.5053595966
           512.4551951846 511.5415130407  512.4146770029 511.5744692211""",
    ),
    "paper": (
        (64, 64, 64),
        10,
        _S
        + """ 554.0746362255 494.6710399040  553.8478685075 495.9883379524
              553.5912541168 497.2179585315  553.3077651739 498.3658079580""",
    ),
}


# ------------------------------------------------------------------------------------------------ the problem


@dataclass(frozen=True)
class Problem:
    """n1 x n2 x n3 elements and a number of iterations; `klass` is a key of :data:`CLASSES`, or "" for other sizes."""

    klass: str
    shape: tuple[int, int, int]
    iterations: int

    @property
    def n(self) -> int:
        """Number of elements."""
        n1, n2, n3 = self.shape
        return n1 * n2 * n3


def problem(klass: str | None = None, size: str | int | None = None, iterations: int | None = None) -> Problem:
    """Return the problem of a class, or of another size.

    Parameters
    ----------
    klass : str, optional
        "S", "W", "A", "B" or "paper" (the default, unless a size is given).
    size : str or int, optional
        "64" for 64 x 64 x 64, or "128x256x256", slowest dimension first. Any numbers from 1 to 4096.
    iterations : int, optional
        Default: those of the class, or 6. A class limits the number to its own.

    Raises
    ------
    ValueError
        If the class does not exist, or the size is invalid.
    """
    if iterations is not None and iterations < 1:
        raise ValueError(f"iterations are 1 or more, not {iterations}")
    if size is not None:
        if klass is not None:
            raise ValueError(f"give class {klass} or a size, not both")
        words = str(size).lower().split("x")
        try:
            sizes = [int(word) for word in (words * 3 if len(words) == 1 else words)]
        except ValueError:
            sizes = []
        if len(sizes) != 3:
            raise ValueError(f"size {size!r}; expected one number, or N1xN2xN3")
        if not all(1 <= one <= 4096 for one in sizes):
            raise ValueError(f"size {size!r}: each dimension has 1 to 4096 elements")
        return Problem("", (sizes[0], sizes[1], sizes[2]), iterations or 6)
    names = {name.lower(): name for name in CLASSES}
    name = names.get("paper" if klass is None else klass.lower())
    if name is None:
        raise ValueError(f"no class {klass!r}; there are {', '.join(CLASSES)}")
    shape, most, _ = CLASSES[name]
    if iterations is not None and iterations > most:
        raise ValueError(f"class {name} has {most} iterations, not {iterations}; --size takes any number of them")
    return Problem(name, shape, iterations or most)


@dataclass
class Outcome:
    """Results that are verified: a checksum per iteration, complete on all ranks."""

    checksums: list[complex]


# ------------------------------------------------------------------------------------------ transforms of rows


Transform = Callable[[Complex, Complex], None]


def _numpy_forward(rows: Complex, out: Complex) -> None:
    np.fft.fft(rows, axis=1, out=out)


def _numpy_backward(rows: Complex, out: Complex) -> None:
    np.fft.ifft(rows, axis=1, norm="forward", out=out)


def _library() -> tuple[Transform, Transform, str]:
    """Return functions that transform rows forward and back, without scaling, and the name of their library.

    The functions write to another array or in place. NumPy since version 2 accepts an array for results. Before
    version 2 SciPy is used if it is installed, else NumPy with a copy.
    """
    if int(np.__version__.split(".")[0]) >= 2:
        return _numpy_forward, _numpy_backward, f"NumPy {np.__version__}"
    try:
        import scipy  # optional package
        from scipy import fft  # optional package
    except ImportError:

        def plain_forward(rows: Complex, out: Complex) -> None:
            out[:] = np.fft.fft(rows, axis=1)

        def plain_backward(rows: Complex, out: Complex) -> None:
            out[:] = np.fft.ifft(rows, axis=1, norm="forward")

        return plain_forward, plain_backward, f"NumPy {np.__version__}"

    def forward(rows: Complex, out: Complex) -> None:
        out[:] = fft.fft(rows, axis=1, workers=1)

    def backward(rows: Complex, out: Complex) -> None:
        out[:] = fft.ifft(rows, axis=1, norm="forward", workers=1)

    return forward, backward, f"SciPy {scipy.__version__}"


rows_forward, rows_backward, LIBRARY = _library()


def pieces(n: int, length: int) -> Iterator[tuple[int, int]]:
    """Divide n items of *length* complex numbers each into pieces that fit into the cache: [first, end) of each."""
    step = max(PIECE // max(length, 1), 1)
    for first in range(0, n, step):
        yield first, min(first + step, n)


def waves(n: int, first: int = 0, end: int | None = None) -> npt.NDArray[np.float64]:
    """Return the squares of the wave numbers of coefficients [first, end) of n. The upper half has negative ones."""
    k = np.arange(first, n if end is None else end)
    return np.where(2 * k < n, k, k - n).astype(np.float64) ** 2


# ------------------------------------------------------------------------------------------------ one rank's part


class _Part:
    """The share of one of `size` processes in the array, and the steps of a transform without communication.

    There are three arrays of this share:

    - `blocks`, divided by the owners of slabs along the last dimension: [n1/P][n3/P of r][n2] for each r,
    - `lines`, [n1][n3/P][n2], where the blocks of all ranks come together,
    - `waves`, [n3/P][n2][n1], the coefficients.

    In one process the block is the lines, so the two are one array. The values, [n1/P][n2][n3], exist a few planes at a
    time.
    """

    def __init__(self, what: Problem, rank: int = 0, size: int = 1) -> None:
        n1, n2, n3 = self.shape = what.shape
        self.rank, self.size = rank, size
        self.slabs1 = [share(n1, one, size) for one in range(size)]
        self.slabs3 = [share(n3, one, size) for one in range(size)]
        self.first1, self.end1 = self.slabs1[rank]
        self.first3, self.end3 = self.slabs3[rank]
        mine1, mine3 = self.end1 - self.first1, self.end3 - self.first3
        self.flat = arrays.empty(mine1 * n3 * n2, np.complex128)
        self.lines = (self.flat if size == 1 else arrays.empty(n1 * mine3 * n2, np.complex128)).reshape(n1, mine3 * n2)
        ends = np.cumsum([mine1 * (end - first) * n2 for first, end in self.slabs3])
        self.blocks = [
            self.flat[stop - mine1 * (end - first) * n2 : stop].reshape(mine1, end - first, n2)
            for stop, (first, end) in zip(ends, self.slabs3, strict=True)
        ]
        self.waves = arrays.empty((mine3 * n2, n1), np.complex128)
        room = max(PIECE, n2 * n3, n1)
        self._piece, self._planes = arrays.empty(room, np.complex128), arrays.empty(room, np.complex128)
        self._squares = (waves(n1), np.add.outer(waves(n3, self.first3, self.end3), waves(n2)).ravel())
        self._n = what.n

    def _pieces(self) -> Iterator[tuple[int, int, Complex]]:
        """Yield ranges [first, end) of this rank's planes that are processed together, with memory for their values."""
        _, n2, n3 = self.shape
        for first, end in pieces(self.end1 - self.first1, n2 * n3):
            yield first, end, self._planes[: (end - first) * n2 * n3].reshape(end - first, n2, n3)

    def start_to_blocks(self) -> None:
        """Make the initial values, transform their rows, then the columns, which become the rows of the blocks.

        Values are random numbers in storage order. The generator can jump to any of them.
        """
        _, n2, n3 = self.shape
        for first, end, planes in self._pieces():
            state = _kernels.random_skip(SEED, 2 * (self.first1 + first) * n2 * n3)
            _kernels.random_fill(state, planes.reshape(-1).view(np.float64))
            rows = planes.reshape(-1, n3)
            rows_forward(rows, rows)
            for (first3, end3), block in zip(self.slabs3, self.blocks, strict=True):
                if first3 < end3:
                    _kernels.ft_transpose(planes[:, :, first3:end3], block[first:end])
                    rows = block[first:end].reshape(-1, n2)
                    rows_forward(rows, rows)

    def lines_to_waves(self) -> None:
        """Transform along the first dimension."""
        for first, end in pieces(*self.waves.shape):
            piece = self.waves[first:end]
            _kernels.ft_transpose(self.lines[None, :, first:end], piece[None])
            rows_forward(piece, piece)

    def waves_to_lines(self, time: int) -> None:
        """Multiply the coefficients by the factors of *time*, and transform back along the first dimension."""
        n1 = self.shape[0]
        rate = -4 * ALPHA * np.pi**2 * time
        of_column, of_row = (np.exp(rate * squares) for squares in self._squares)
        for first, end in pieces(*self.waves.shape):
            piece = self._piece[: (end - first) * n1].reshape(-1, n1)
            _kernels.ft_scale(self.waves[first:end], piece, of_row[first:end], of_column)
            rows_backward(piece, piece)
            _kernels.ft_transpose(piece[None], self.lines[None, :, first:end])

    def blocks_to_checksum(self) -> complex:
        """Transform back the rows of the blocks, then their columns. Return this rank's part of the checksum."""
        n1, n2, n3 = self.shape
        j = np.arange(1, POINTS + 1)
        i1, i2, i3 = 5 * j % n1 - self.first1, 3 * j % n2, j % n3
        total = 0j
        for first, end, planes in self._pieces():
            for (first3, end3), block in zip(self.slabs3, self.blocks, strict=True):
                if first3 < end3:
                    rows = block[first:end].reshape(-1, n2)
                    piece = self._piece[: rows.size].reshape(rows.shape)
                    rows_backward(rows, piece)  # not in place: a modified block would be written back to memory
                    _kernels.ft_transpose(piece.reshape(-1, end3 - first3, n2), planes[:, :, first3:end3])
            rows = planes.reshape(-1, n3)
            rows_backward(rows, rows)
            here = (first <= i1) & (i1 < end)
            total += complex(planes[i1[here] - first, i2[here], i3[here]].sum())
        return total / self._n


# --------------------------------------------------------------------------------------------- one process


def serial(what: Problem, phases: Phases | None = None) -> Outcome:
    """Solve a problem."""
    return _solve(what, _Part(what), phases or Phases())


def _solve(what: Problem, part: _Part, phases: Phases) -> Outcome:
    phases.begin()
    part.start_to_blocks()
    part.lines_to_waves()
    checksums = []
    for time in range(1, what.iterations + 1):
        part.waves_to_lines(time)
        checksums.append(part.blocks_to_checksum())
        phases.progress(time, what.iterations)
    phases.end()
    return Outcome(checksums)


# -------------------------------------------------------------------------------------------- many processes


def parallel(comm: Any, what: Problem, phases: Phases | None = None) -> Outcome:
    """Solve a problem on all ranks of a communicator. The outcome is complete on every rank."""
    phases = phases or Phases()
    size = comm.Get_size()
    part = _Part(what, comm.Get_rank(), size)
    transpose = _Transpose(comm, part)
    checksums = np.zeros(what.iterations, np.complex128)
    done, finished = np.zeros(1, np.int32), np.zeros(size, np.int32)
    comm.Barrier()
    phases.begin()
    part.start_to_blocks()
    transpose.blocks_to_lines()
    part.lines_to_waves()
    for time in range(1, what.iterations + 1):
        part.waves_to_lines(time)
        transpose.lines_to_blocks()
        checksums[time - 1] = part.blocks_to_checksum()
        done[0] = time
        comm.Gather(done, finished, root=0)  # all ranks have finished this iteration
        phases.progress(time, what.iterations)
    phases.end()
    total = np.zeros_like(checksums)
    comm.Allreduce(checksums.view(np.float64), total.view(np.float64))
    return Outcome([complex(one) for one in total])


class _Transpose:
    """Transpose among all ranks: one block from each rank to each, in either direction."""

    def __init__(self, comm: Any, part: _Part) -> None:
        self._comm, self._alone = comm, part.size == 1
        _, n2, _ = part.shape
        mine3 = part.end3 - part.first3
        lines = [(end - first) * mine3 * n2 for first, end in part.slabs1]
        self._lines = self._spec(part.lines, lines)
        self._blocks = self._spec(part.flat, [block.size for block in part.blocks])

    @staticmethod
    def _spec(array: Complex, parts: list[int]) -> list[Any]:
        """Return the argument of Alltoallv: an array, and the doubles of each rank in it, one part after the other."""
        counts = [2 * n for n in parts]
        return [array.reshape(-1).view(np.float64), (counts, [sum(counts[:i]) for i in range(len(counts))])]

    def blocks_to_lines(self) -> None:
        if not self._alone:
            self._comm.Alltoallv(self._blocks, self._lines)

    def lines_to_blocks(self) -> None:
        if not self._alone:
            self._comm.Alltoallv(self._lines, self._blocks)


# ------------------------------------------------------------------------------------------------ verification


def published(what: Problem) -> list[complex]:
    """Return the published checksums of a problem, one per iteration; none for other sizes."""
    if not what.klass:
        return []
    numbers = [float(word) for word in CLASSES[what.klass][2].split()]
    return [complex(*numbers[i : i + 2]) for i in range(0, 2 * what.iterations, 2)]


def verify(what: Problem, outcome: Outcome) -> list[Check]:
    """Compare checksums with the published ones. The distance over the modulus is at most 1e-12."""
    return [
        check(f"checksum {number + 1}", got, expected, TOLERANCE)
        for number, (got, expected) in enumerate(zip(outcome.checksums, published(what), strict=False))
    ]


def memory(what: Problem, ranks: int) -> int:
    """Return the bytes of all ranks together: coefficients, lines, blocks, pieces and checksums."""
    room = max(PIECE, what.shape[1] * what.shape[2], what.shape[0])
    return (2 if ranks == 1 else 3) * 16 * what.n + ranks * (2 * 16 * room + 64 * what.iterations)


# ------------------------------------------------------------------------------------- reference in NumPy


def solve_numpy(what: Problem) -> list[complex]:
    """Return the checksums, as a reference: the equation in ten lines."""
    n1, n2, n3 = what.shape
    mask = np.uint64(2**46 - 1)
    powers = np.array([MULTIPLIER], np.uint64)
    while len(powers) < 2 * what.n:
        powers = np.concatenate([powers, powers * powers[-1] & mask])
    values = (powers[: 2 * what.n] * np.uint64(SEED) & mask) * 2.0**-46
    coefficients = np.fft.fftn(values.view(np.complex128).reshape(what.shape))
    squares = np.add.outer(np.add.outer(waves(n1), waves(n2)), waves(n3))
    j = np.arange(1, POINTS + 1)
    checksums = []
    for time in range(1, what.iterations + 1):
        field = np.fft.ifftn(
            coefficients * np.exp(-4 * ALPHA * np.pi**2 * squares * time)
        )  # NumPy divides by n, as the published checksums do
        checksums.append(complex(field[5 * j % n1, 3 * j % n2, j % n3].sum()))
    return checksums


# ------------------------------------------------------------------------------------------- plain C loops


def beside(quick: bool = False) -> Iterator[Case]:
    """Yield whole runs, from initial values to the last checksum, together with the plain program plain/ft.c."""
    for klass in ("S",) if quick else ("S", "W", "A"):
        what = problem(klass)
        n1, n2, n3 = what.shape
        arrays = [np.zeros(what.n, np.complex128), np.zeros(what.n, np.complex128), np.zeros(what.n)]
        sums = np.zeros(what.iterations, np.complex128)
        part = _Part(what)

        def kernel(what: Problem = what, part: _Part = part) -> Any:
            return np.array(_solve(what, part, Phases()).checksums)

        def plain(library: Any, what: Problem = what, arrays: Any = arrays, sums: Any = sums) -> Any:
            n1, n2, n3 = (ctypes.c_long(n) for n in what.shape)
            where = [ctypes.c_void_p(one.ctypes.data) for one in (*arrays, sums)]
            if library.ft_plain(n3, n2, n1, what.iterations, *where):
                raise MemoryError("out of memory for the lines of the plain program")
            return sums

        def agree(one: Any, other: Any) -> bool:
            return bool(np.allclose(one, other, rtol=TOLERANCE, atol=0))

        yield Case(f"FT {klass}: {n1} x {n2} x {n3}, {what.iterations} iterations", kernel, plain, agree)


def operations(what: Problem) -> float:
    """Return the floating-point operations by the benchmark's formula (NPB 3, FT)."""
    log = math.log(what.n)
    return what.n * (14.8157 + 7.19641 * log + (5.23518 + 7.21113 * log) * what.iterations)


APPLICATION = harness.Application(
    "fft",
    "3-D FFT (NPB FT)",
    problem,
    serial,
    parallel,
    verify,
    options=(
        click.Option(["--class", "klass"], metavar="NAME", help=f"{', '.join(CLASSES)}.  [default: paper]"),
        click.Option(["--size"], metavar="N", help="Instead: N x N x N elements, or N1xN2xN3."),
        click.Option(["--iterations"], type=int, metavar="N", help="[default: the class's, or 6]"),
    ),
    memory=memory,
    describe=lambda what: (
        f"{'class ' + what.klass + ': ' if what.klass else ''}{' x '.join(map(str, what.shape))} elements, "
        f"{what.iterations} iterations"
    ),
    summary=lambda what, outcome: {"elements": what.n, "transforms": LIBRARY},
    operations=operations,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run FT from the command line, and return the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
