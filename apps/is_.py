"""IS: ranking of integers. The NAS benchmark, as the paper (Lobosco and others) ran it.

The program makes N keys. Each is the sum of four random numbers, so most keys are in the middle of the range. The rank
of a key is the number of smaller keys. The keys are ranked ten times, and once before to warm up. Before each ranking
two keys are changed. No key moves: the result is the table of the number of keys up to k, for each possible k. The
program counts the keys of each value and sums the counts up.

**Parallel.** Two algorithms distribute the work:

``chain``
    The algorithm of the paper's text (section C.3). Each process counts its keys in a table of its own. The tables are
    added up from one process to the next, and the last process sends the sum to all. The volume is that of the tables,
    whatever the number of keys.
``redistribute``
    The algorithm that the volume of the paper's Table II implies: 2024 messages and 360 453 KB on 8 processes. In each
    of eleven rankings these are 64 blocks with all keys, and 120 numbers of 4 bytes. Each process owns a range of keys
    and receives all keys in it, from itself as well: first their number (64 numbers), then the keys (64 blocks). Then
    each process sends its total to the others (56 numbers), so that all know the number of keys below their ranges.

    The ranges have about equal numbers of keys, because the distribution of the keys is known. The benchmark's own
    program for MPI counts first, which takes more messages than Table II has.

Verification compares the ranks of five test keys in each iteration with published ones. Then it puts each key at its
rank, which must sort the keys. :mod:`viakit.apps.is_numpy` has the kernels in NumPy.

Sources: NAS Parallel Benchmarks, RNR-94-007, and the program NPB 3 (constants, test ranks); Lobosco and others,
Table II.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from viakit.apps import harness
from viakit.apps.harness import Check, Phases, check, share
from viakit.apps.is_numpy import MULTIPLIER, SEED, Keys, make_keys_numpy, partition_numpy, rank_numpy
from viakit.apps.kernels import kernels as _kernels
from viakit.apps.plain import Case

__all__ = [
    "APPLICATION",
    "CLASSES",
    "MULTIPLIER",
    "SEED",
    "Keys",
    "Outcome",
    "Problem",
    "beside",
    "main",
    "make_keys_numpy",
    "parallel",
    "partition_numpy",
    "problem",
    "rank_numpy",
    "serial",
    "verify",
]

ITERATIONS = 10  # iterations of each class, and the distance between the two keys that an iteration changes
BUCKETS_LOG = 10  # owned ranges of keys begin at multiples of 2^(max_log - BUCKETS_LOG)
ALGORITHMS = ("redistribute", "chain")
COUNT, KEYS = 1, 2  # tags of messages


# ------------------------------------------------------------------------------------------------ the problem


@dataclass(frozen=True)
class _Class:
    """Sizes of a class, and the published ranks of its test keys with their change from iteration to iteration."""

    keys_log: int
    max_log: int
    places: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    signs: tuple[int, ...] = ()  # +1: the rank grows by 1 with each iteration; -1: it decreases
    since: tuple[int, ...] = (0, 0, 0, 0, 0)  # the iteration to which `ranks` belong
    key_sum: int | None = None


# "paper" has the size of class A with keys below 2^15 instead of 2^19. Its figures are our own.
CLASSES: dict[str, _Class] = {
    "S": _Class(
        16, 11, (48427, 17148, 23627, 62548, 4431), (0, 18, 346, 64917, 65463), (1, 1, 1, -1, -1)
    ),
    "W": _Class(
        20, 16, (357773, 934767, 875723, 898999, 404505), (1249, 11698, 1039987, 1043896, 1048018),
        (1, 1, -1, -1, -1), (2, 2, 0, 0, 0),
    ),
    "A": _Class(
        23, 19, (2112377, 662041, 5336171, 3642833, 4250760), (104, 17523, 123928, 8288932, 8388264),
        (1, 1, 1, -1, -1), (1, 1, 1, 1, 1), 2199179599308,
    ),
    "B": _Class(
        25, 21, (41869, 812306, 5102857, 18232239, 26860214), (33422937, 10244, 59149, 33135281, 99),
        (-1, 1, 1, -1, 1),
    ),
    "C": _Class(
        27, 23, (44172927, 72999161, 74326391, 129606274, 21736814), (61147, 882988, 266290, 133997595, 133525895),
        (1, 1, 1, -1, -1),
    ),
    "paper": _Class(
        23, 15, (2112377, 662041, 5336171, 3642833, 4250760), (104, 17507, 123928, 8288897, 8388262),
        (1, 1, 1, -1, -1), (1, 1, 1, 1, 1), 137444792812,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """2^keys_log keys in [0, 2^max_log), and the algorithm that ranks them in parallel.

    `klass` is a key of :data:`CLASSES`, or "" for other sizes.
    """

    klass: str
    keys_log: int
    max_log: int
    algorithm: str = "redistribute"
    iterations: int = ITERATIONS

    @property
    def n_keys(self) -> int:
        """Number of keys."""
        return 1 << self.keys_log

    @property
    def max_key(self) -> int:
        """Upper limit of the keys, exclusive."""
        return 1 << self.max_log

    @property
    def shift(self) -> int:
        """Shift from a key to its bucket, ``key >> shift``."""
        return max(self.max_log - BUCKETS_LOG, 0)

    def expected(self, iteration: int) -> tuple[int, ...]:
        """Return the published ranks of the test keys in an iteration; empty if none are published."""
        known = CLASSES.get(self.klass)
        if known is None:
            return ()
        parts = zip(known.ranks, known.signs, known.since, strict=True)
        return tuple(rank + sign * (iteration - since) for rank, sign, since in parts)


def problem(
    klass: str | None = None,
    keys_log: int | None = None,
    max_log: int | None = None,
    algorithm: str = "redistribute",
    iterations: int = ITERATIONS,
) -> Problem:
    """Return the problem of a class, or of other sizes.

    Parameters
    ----------
    klass : str, optional
        "S", "W", "A", "B", "C" or "paper" (the default, unless sizes are given).
    keys_log, max_log : int, optional
        Sizes instead of a class: 2^keys_log keys below 2^max_log. Each 5 to 30.
    algorithm : str
        "redistribute" or "chain".
    iterations : int
        1 to 10. One more, for warm-up, precedes them.

    Raises
    ------
    ValueError
        If the class does not exist, or the sizes are invalid.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    if not 1 <= iterations <= ITERATIONS:
        raise ValueError(f"iterations are 1 to {ITERATIONS}, not {iterations}")
    if (keys_log is None) != (max_log is None):
        raise ValueError("give both sizes: the number of keys and their limit (--keys 20 --max-key 16)")
    if keys_log is not None and max_log is not None:
        if klass is not None:
            raise ValueError(f"give class {klass} or sizes, not both")
        if not 5 <= keys_log <= 30:
            raise ValueError(f"2^{keys_log} keys; expected 2^5 to 2^30 (ranks have 32 bits, and 20 keys are changed)")
        if not 5 <= max_log <= 30:
            raise ValueError(f"keys below 2^{max_log}; expected 2^5 to 2^30")
        return Problem("", keys_log, max_log, algorithm, iterations)
    names = {name.lower(): name for name in CLASSES}
    name = names.get("paper" if klass is None else klass.lower())
    if name is None:
        raise ValueError(f"no class {klass!r}; there are {', '.join(CLASSES)}")
    return Problem(name, CLASSES[name].keys_log, CLASSES[name].max_log, algorithm, iterations)


@dataclass
class Outcome:
    """Results that are verified, on rank 0.

    Attributes
    ----------
    key_sum : int
        Sum of all keys before any is changed.
    test_ranks : list of list of int
        For each iteration from 1 on, the number of keys below each test key.
    placed : int
        Number of keys that were put at their ranks; must be all.
    disorder : int
        Number of places with a key smaller than the one before, or without a key; must be 0.
    """

    key_sum: int
    test_ranks: list[list[int]] = field(default_factory=list)
    placed: int = 0
    disorder: int = 0


# ---------------------------------------------------------------------------------------- parts of the programs


def make_keys(what: Problem, first: int, end: int) -> Keys:
    """Return the keys with numbers in [first, end). The generator can jump to any key."""
    keys = np.empty(end - first, np.int32)
    _kernels.is_keys(_kernels.random_skip(SEED, 4 * first), what.max_log, keys)
    return keys


def test_keys(what: Problem) -> Keys:
    """Return the keys at the places that are verified. No iteration changes them."""
    places = CLASSES[what.klass].places if what.klass else ()
    return np.array([make_keys(what, place, place + 1)[0] for place in places], np.int32)


def change(keys: Keys, what: Problem, first: int, iteration: int) -> None:
    """Make the two changes of an iteration. `keys` begin with number `first` and may contain neither of the two."""
    for number, value in ((iteration, iteration), (iteration + ITERATIONS, what.max_key - iteration)):
        if first <= number < first + len(keys):
            keys[number - first] = value


def rankings(what: Problem) -> Iterator[int]:
    """Yield the iteration number of each ranking: 1 for warm-up, then 1 to the number of iterations."""
    yield 1
    yield from range(1, what.iterations + 1)


def owned(what: Problem, size: int) -> npt.NDArray[np.int64]:
    """Return the bucket at which each owner's range begins, and the end of the last range: size + 1 numbers.

    A key is max/4 times the sum of four uniform numbers. A fraction F(x) of such sums is below x. This is the
    distribution of Irwin and Hall: F(x) = (x^4 - 4 (x-1)^4 + 6 (x-2)^4 - 4 (x-3)^4) / 24, without the terms whose
    bracket is negative.
    """
    n_buckets = what.max_key >> what.shift
    x = 4 * np.arange(n_buckets + 1) / n_buckets
    below = sum(sign * np.maximum(x - k, 0) ** 4 for k, sign in enumerate((1, -4, 6, -4))) / 24
    begins = np.searchsorted(below, np.arange(size + 1) / size)
    begins[0], begins[-1] = 0, n_buckets
    return begins.astype(np.int64)


def _workspace(n_counts: int) -> npt.NDArray[np.uint8]:
    """Return memory for is_count(), which all rankings reuse."""
    return np.empty(1 << max(n_counts - 1, 0).bit_length(), np.uint8)


def _put(pieces: Sequence[Keys], cumulative: Keys, base: int, below: int) -> tuple[int, int]:
    """Put keys at their ranks; return the number of keys put, and the number of wrong places.

    `pieces` contain all keys of [base, base + len(cumulative)) and may contain others; `below` keys are below `base`.
    The work is done in ranges of keys, so that it needs a quarter of the memory of the keys.
    """
    if len(cumulative) == 0:
        return 0, 0
    if cumulative[0] < below or (cumulative[1:] < cumulative[:-1]).any():
        return 0, 1  # not valid ranks
    total = int(cumulative[-1]) - below
    room = max(total // 4, 1024)
    placed = disorder = 0
    last, low, done = -1, 0, below
    while low < len(cumulative):
        high = max(int(np.searchsorted(cumulative, done + room, "right")), low + 1)
        sorted_keys = np.full(int(cumulative[high - 1]) - done, -1, np.int32)
        ranks = cumulative[low:high].copy()
        placed += sum(_kernels.is_place(piece, ranks, done, sorted_keys, base + low) for piece in pieces)
        if len(sorted_keys):
            disorder += int(np.count_nonzero(sorted_keys[1:] < sorted_keys[:-1])) + int(sorted_keys[0] < last)
            disorder += int(np.count_nonzero(sorted_keys < 0))  # places without a key
            last = int(sorted_keys[-1])
        low, done = high, int(cumulative[high - 1])
        del sorted_keys  # before the next one is allocated
    return placed, disorder


# --------------------------------------------------------------------------------------------- one process


def serial(what: Problem, phases: Phases | None = None) -> Outcome:
    """Rank the keys of a problem, eleven times."""
    phases = phases or Phases()
    keys = make_keys(what, 0, what.n_keys)
    tests = test_keys(what)
    outcome = Outcome(int(keys.sum(dtype=np.int64)))
    cumulative, work = np.empty(what.max_key, np.int32), _workspace(what.max_key)
    phases.begin()
    for step, iteration in enumerate(rankings(what)):
        change(keys, what, 0, iteration)
        cumulative[:] = 0
        _kernels.is_count(keys, cumulative, work=work)
        _kernels.is_prefix(cumulative)
        outcome.test_ranks[iteration - 1 :] = [cumulative[tests - 1].tolist()]
        phases.progress(step + 1, what.iterations + 1)
    phases.end()
    del work
    outcome.placed, outcome.disorder = _put([keys], cumulative, 0, 0)
    return outcome


# -------------------------------------------------------------------------------------------- many processes


def parallel(comm: Any, what: Problem, phases: Phases | None = None) -> Outcome:
    """Rank the keys on all ranks of a communicator. Only the outcome of rank 0 is complete."""
    phases = phases or Phases()
    rank, size = comm.Get_rank(), comm.Get_size()
    first, end = share(what.n_keys, rank, size)
    keys = make_keys(what, first, end)
    ranking = (_Chain if what.algorithm == "chain" else _Redistribute)(comm, what, len(keys))
    tests = test_keys(what)
    key_sum = int(keys.sum(dtype=np.int64))
    found = np.zeros((what.iterations, len(tests)), np.int64)
    comm.Barrier()
    phases.begin()
    for step, iteration in enumerate(rankings(what)):
        change(keys, what, first, iteration)
        ranking.rank(keys)
        found[iteration - 1] = [ranking.below(int(key)) for key in tests]
        phases.progress(step + 1, what.iterations + 1)
    phases.end()
    ranking.end()
    dealer = ranking if isinstance(ranking, _Redistribute) else _Redistribute(comm, what, len(keys))
    dealer.group(keys)
    del keys  # frees memory: at most the sent keys and the received ones exist at a time
    placed, disorder = _place_all(comm, what, dealer, ranking)
    # Results of each rank: ranks of the test keys that it owns, and the keys that it put. Both algorithms return 0 for
    # test keys of other ranks.
    mine = np.concatenate([found.ravel(), [key_sum, placed, disorder]])
    total = np.zeros_like(mine)
    comm.Allreduce(mine, total)
    test_ranks = total[:-3].reshape(found.shape).tolist()
    return Outcome(int(total[-3]), test_ranks, int(total[-2]), int(total[-1]))


class _Chain:
    """Ranking by a chain: the tables are added up from rank to rank, and the last rank sends the sum to all."""

    def __init__(self, comm: Any, what: Problem, n: int) -> None:
        del n
        self._comm, self._rank, self._size = comm, comm.Get_rank(), comm.Get_size()
        self._cumulative = np.empty(what.max_key, np.int32)
        self._before = np.empty(what.max_key if self._rank else 0, np.int32)
        self._work = _workspace(what.max_key)

    def rank(self, keys: Keys) -> None:
        """Rank the keys of all processes. Collective."""
        comm, rank, counts = self._comm, self._rank, self._cumulative
        counts[:] = 0
        _kernels.is_count(keys, counts, work=self._work)
        if rank > 0:
            comm.Recv(self._before, rank - 1, COUNT)
            counts += self._before
        if rank < self._size - 1:
            comm.Send(counts, rank + 1, COUNT)
        else:
            _kernels.is_prefix(counts)
        comm.Bcast(counts, root=self._size - 1)

    def below(self, key: int) -> int:
        """Return the number of keys below. All ranks have it, but only rank 0 returns it, so that the sum is right."""
        return int(self._cumulative[key - 1]) if self._rank == 0 and key > 0 else 0

    def end(self) -> None:
        """Release the memory that only the ranking needs."""
        self._before, self._work = np.empty(0, np.int32), np.empty(0, np.uint8)

    def slice(self, low: int, high: int) -> tuple[Keys, int]:
        """Return the number of keys up to k, for k in [low, high), and the number of keys below `low`."""
        return self._cumulative[low:high], int(self._cumulative[low - 1]) if low else 0


class _Redistribute:
    """Ranking by redistribution: each rank owns a range of keys, receives all keys in it, and counts them."""

    def __init__(self, comm: Any, what: Problem, n: int) -> None:
        self._comm, self._rank, self._size = comm, comm.Get_rank(), comm.Get_size()
        self._shift = what.shift
        self._begins = owned(what, self._size)
        self._low, self._high = (int(one) << what.shift for one in self._begins[self._rank : self._rank + 2])
        self._grouped = np.empty(n, np.int32)
        self._starts = np.empty((what.max_key >> what.shift) + 1, np.int32)
        self._cumulative = np.empty(self._high - self._low, np.int32)
        self._work = _workspace(self._high - self._low)
        self._below = 0

    def rank(self, keys: Keys) -> None:
        """Rank the keys of all processes. Collective."""
        counts = self._cumulative
        counts[:] = 0
        total = 0
        self.group(keys)
        for block in self.exchange():
            _kernels.is_count(block, counts, self._low, self._work)
            total += len(block)
        totals = np.empty(self._size, np.int32)
        self._comm.Allgather(np.array([total], np.int32), totals)
        self._below = int(totals[: self._rank].sum())
        _kernels.is_prefix(counts, self._below)

    def group(self, keys: Keys) -> None:
        """Group keys by owner, to be sent."""
        _kernels.is_partition(keys, self._shift, self._grouped, self._starts)

    def exchange(self, keep: bool = False) -> Iterator[Keys]:
        """Send the grouped keys to their owners, and yield the received keys, block by block.

        A block is valid until the next one, which reuses its memory. With `keep` each block has its own memory.
        """
        comm, rank, size = self._comm, self._rank, self._size
        begins = self._starts[self._begins]
        sent = np.diff(begins).astype(np.int32)
        came = np.empty(size, np.int32)
        # Each rank begins with itself and continues in a circle, so that not all send to rank 0 first.
        there = [(rank + step) % size for step in range(size)]
        back = [(rank - step) % size for step in range(size)]
        waiting = [comm.Irecv(came[one : one + 1], one, COUNT) for one in back]
        sending = [comm.Isend(sent[one : one + 1], one, COUNT) for one in there]
        for request in waiting:
            request.Wait()
        sending += [comm.Isend(self._grouped[begins[one] : begins[one + 1]], one, KEYS) for one in there if sent[one]]
        # Two blocks: one is counted while the next is received.
        sources = [one for one in back if came[one]]
        room = int(came.max())
        blocks = [np.empty(room, np.int32) for _ in range(0 if keep else min(2, len(sources)))]

        def receive(turn: int) -> tuple[Any, Keys]:
            n = int(came[sources[turn]])
            block = np.empty(n, np.int32) if keep else blocks[turn % 2][:n]
            return comm.Irecv(block, sources[turn], KEYS), block

        following = receive(0) if sources else None
        for turn in range(len(sources)):
            assert following is not None
            request, block = following
            request.Wait()
            following = receive(turn + 1) if turn + 1 < len(sources) else None
            yield block
        for request in sending:
            request.Wait()

    def below(self, key: int) -> int:
        """Return the number of keys below, if the key is in this rank's range; else 0."""
        if not self._low <= key < self._high:
            return 0
        return int(self._cumulative[key - self._low - 1]) if key > self._low else self._below

    def end(self) -> None:
        """Release the memory that only the ranking needs."""
        self._work = np.empty(0, np.uint8)

    def collect(self) -> list[Keys]:
        """Send the grouped keys to their owners, and return the received blocks. The grouped keys are then released."""
        came = list(self.exchange(keep=True))
        self._grouped = np.empty(0, np.int32)
        return came

    def slice(self, low: int, high: int) -> tuple[Keys, int]:
        """Return the number of keys up to k, for k in this rank's range [low, high), and the number of keys below."""
        assert (low, high) == (self._low, self._high)
        return self._cumulative, self._below


def _place_all(comm: Any, what: Problem, dealer: _Redistribute, ranking: _Chain | _Redistribute) -> tuple[int, int]:
    """Put all keys at their ranks, each rank those of its range. Return the number put here, and the disorder."""
    rank, size = comm.Get_rank(), comm.Get_size()
    begins = owned(what, size) << what.shift
    low, high = (int(one) for one in begins[rank : rank + 2])
    mine = dealer.collect()
    cumulative, below = ranking.slice(low, high)
    placed, disorder = _put(mine, cumulative, low, below)
    # The ranges are ascending. So all keys are in order if each range is and the ranges fit together:
    edges = np.empty(2 * size, np.int64)
    comm.Allgather(np.array([below, int(cumulative[-1]) if len(cumulative) else below], np.int64), edges)
    if rank == 0:
        disorder += (
            int(np.count_nonzero(edges[2::2] != edges[1:-1:2])) + int(edges[0] != 0) + int(edges[-1] != what.n_keys)
        )
    return placed, disorder


# ------------------------------------------------------------------------------------------------ verification


def verify(what: Problem, outcome: Outcome) -> list[Check]:
    """Compare the ranks of test keys with the published ones, and check that the ranks sort the keys."""
    checks = []
    for iteration in range(1, what.iterations + 1):
        for number, expected in enumerate(what.expected(iteration)):
            got = outcome.test_ranks[iteration - 1][number]
            checks.append(check(f"rank of test key {number + 1}, iteration {iteration}", got, expected))
    known = CLASSES.get(what.klass)
    if known is not None and known.key_sum is not None:
        checks.append(check("sum of keys", outcome.key_sum, known.key_sum))
    checks.append(check("keys put at their ranks", outcome.placed, what.n_keys))
    checks.append(check("keys out of order", outcome.disorder, 0))
    return checks


def memory(what: Problem, ranks: int) -> int:
    """Return the approximate number of bytes of all ranks together."""
    keys, table = 4 * what.n_keys, 5 * what.max_key
    if ranks == 1:
        return keys + keys // 4 + table + (keys if what.algorithm == "redistribute" else 0)
    if what.algorithm == "chain":  # the verification redistributes the keys afterwards
        return 2 * keys + ranks * (table + 4 * what.max_key) + table
    return 2 * keys + 2 * keys // ranks + table + what.max_key


# ------------------------------------------------------------------------------------------- plain C loops


def beside(quick: bool = False) -> Iterator[Case]:
    """Yield the whole program, keys and eleven rankings, together with the plain loops of plain/is.c."""
    for klass in ("S",) if quick else ("W", "A", "paper", "B"):
        what = problem(klass)
        keys, cumulative = np.zeros(what.n_keys, np.int32), np.zeros(what.max_key, np.int32)
        work = _workspace(what.max_key)
        other_keys, other = np.zeros_like(keys), np.zeros_like(cumulative)

        def kernel(what=what, keys=keys, cumulative=cumulative, work=work) -> Keys:  # noqa: ANN001
            _kernels.is_keys(SEED, what.max_log, keys)
            for iteration in rankings(what):
                change(keys, what, 0, iteration)
                cumulative[:] = 0
                _kernels.is_count(keys, cumulative, work=work)
                _kernels.is_prefix(cumulative)
            return cumulative

        def plain(library: Any, what=what, keys=other_keys, cumulative=other) -> Keys:  # noqa: ANN001
            library.is_plain(
                what.keys_log, what.max_log, ITERATIONS,
                ctypes.c_void_p(keys.ctypes.data), ctypes.c_void_p(cumulative.ctypes.data),
            )  # fmt: skip
            return cumulative

        yield Case(f"IS {klass}: keys made, ranked 11 times", kernel, plain, np.array_equal)


APPLICATION = harness.Application(
    "is",
    "Ranking integers (NPB IS)",
    problem,
    serial,
    parallel,
    verify,
    options=(
        click.Option(["--class", "klass"], metavar="NAME", help=f"{', '.join(CLASSES)}.  [default: paper]"),
        click.Option(
            ["--keys", "keys_log"], type=int, metavar="LOG2", help="Sizes instead of a class: 2^LOG2 keys ..."
        ),
        click.Option(["--max-key", "max_log"], type=int, metavar="LOG2", help="... below 2^LOG2."),
        click.Option(["--iterations"], type=int, default=ITERATIONS, show_default=True, help="1 to 10."),
        click.Option(["--algorithm"], type=click.Choice(ALGORITHMS), default="redistribute", show_default=True),
    ),
    memory=memory,
    describe=lambda what: (
        f"{'class ' + what.klass + ': ' if what.klass else ''}2^{what.keys_log} keys below 2^{what.max_log}, "
        f"ranked {what.iterations + 1} time{'s' * (what.iterations + 1 != 1)}"
    ),
    summary=lambda what, outcome: {"keys": what.n_keys, "algorithm": what.algorithm, "sum of keys": outcome.key_sum},
    operations=lambda what: float(what.n_keys * (what.iterations + 1)),  # keys ranked, those of the warm-up included
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run IS from the command line, and return the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
