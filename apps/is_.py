"""IS: ranking integers, the NAS Parallel Benchmark, as the paper ran it.

N keys are made, each the sum of four random numbers, so that most are in the middle of the range. Their ranks are
found ten times over (and once before, to warm up), each time with two keys changed: the rank of a key is how many
keys are below it. No key moves. What is computed is the table of how many keys are at most k, for each possible k:
count, then sum up.

Two algorithms share the work among processes:

``chain``
    What the paper's text says (section C.3). Each counts its keys in a private table; the tables are added up from
    one process to the next, and the last sends the sum to all. What travels is tables, however many keys there are.
``redistribute``
    What the volume of the paper's Table II says that it ran: 2024 messages and 360 453 KB on 8 processes are, eleven
    times, 64 blocks that hold all the keys, and 120 numbers of 4 bytes. Each process owns a range of keys and is sent
    all keys in it, from itself too: how many (64 numbers), then the keys (64 blocks). What it owns is told to the
    others (56 numbers), who then know how many keys are below theirs.

    The ranges are such that each holds about as many keys, by the distribution that the keys are known to have: to
    count first, as the benchmark's own program for MPI does, would be more messages than Table II has.

Verified against published ranks of five test keys in each iteration, and by putting each key where its rank says,
which must sort them. Sources: NAS Parallel Benchmarks, RNR-94-007 and the program NPB 3 (constants, test ranks);
paper 002, table II.
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

from viakit import _kernels
from viakit.apps import harness
from viakit.apps.harness import Check, Phases, check, share
from viakit.apps.plain import Case

__all__ = ["APPLICATION", "CLASSES", "Outcome", "Problem", "beside", "main", "parallel", "problem", "serial", "verify"]

SEED = 314159265
MULTIPLIER = 5**13
ITERATIONS = 10  # of each class; also how far apart the two keys are that an iteration changes
BUCKETS_LOG = 10  # ranges of keys that are owned begin at multiples of 2^(max_log - BUCKETS_LOG)
ALGORITHMS = ("redistribute", "chain")
COUNT, KEYS = 1, 2  # tags of messages

Keys = npt.NDArray[np.int32]


# ------------------------------------------------------------------------------------------------ the problem


@dataclass(frozen=True)
class _Class:
    """Sizes, and what is published: ranks of the keys at five places, and how they change with iterations."""

    keys_log: int
    max_log: int
    places: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    signs: tuple[int, ...] = ()  # +1: the rank grows by 1 with each iteration; -1: it falls
    since: tuple[int, ...] = (0, 0, 0, 0, 0)  # the iteration that `ranks` holds for
    key_sum: int | None = None


# "paper" is as large as class A, with keys below 2^15 and not 2^19: its figures are our own.
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
    """2^keys_log keys in [0, 2^max_log), and how they are ranked by many processes.

    `klass` is a key of :data:`CLASSES`, or "" for sizes of one's own.
    """

    klass: str
    keys_log: int
    max_log: int
    algorithm: str = "redistribute"
    iterations: int = ITERATIONS

    @property
    def n_keys(self) -> int:
        """How many keys."""
        return 1 << self.keys_log

    @property
    def max_key(self) -> int:
        """All keys are below."""
        return 1 << self.max_log

    @property
    def shift(self) -> int:
        """A key's bucket is ``key >> shift``."""
        return max(self.max_log - BUCKETS_LOG, 0)

    def expected(self, iteration: int) -> tuple[int, ...]:
        """The ranks of the test keys in an iteration; empty if none are known."""
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
    """Return the problem of a class, or of sizes of one's own.

    Parameters
    ----------
    klass : str, optional
        "S", "W", "A", "B", "C" or "paper" (the default, unless sizes are given).
    keys_log, max_log : int, optional
        Instead: 2^keys_log keys below 2^max_log. Each 5 to 30.
    algorithm : str
        "redistribute" or "chain".
    iterations : int
        1 to 10; one more is done first, to warm up.

    Raises
    ------
    ValueError
        For a class that does not exist, or sizes that make no sense.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"no algorithm {algorithm!r}; there are {', '.join(ALGORITHMS)}")
    if not 1 <= iterations <= ITERATIONS:
        raise ValueError(f"iterations are 1 to {ITERATIONS}, not {iterations}")
    if (keys_log is None) != (max_log is None):
        raise ValueError("sizes of one's own are two: how many keys, and below what (--keys 20 --max-key 16)")
    if keys_log is not None and max_log is not None:
        if klass is not None:
            raise ValueError(f"either class {klass}, or sizes of one's own: not both")
        if not 5 <= keys_log <= 30:
            raise ValueError(
                f"2^{keys_log} keys; right would be 2^5 to 2^30 (ranks have 32 bits, and 20 keys are changed)"
            )
        if not 5 <= max_log <= 30:
            raise ValueError(f"keys below 2^{max_log}; right would be 2^5 to 2^30")
        return Problem("", keys_log, max_log, algorithm, iterations)
    names = {name.lower(): name for name in CLASSES}
    name = names.get("paper" if klass is None else klass.lower())
    if name is None:
        raise ValueError(f"no class {klass!r}; there are {', '.join(CLASSES)}")
    return Problem(name, CLASSES[name].keys_log, CLASSES[name].max_log, algorithm, iterations)


@dataclass
class Outcome:
    """What a run leaves to be verified, on rank 0.

    Attributes
    ----------
    key_sum : int
        Of all keys, before any was changed.
    test_ranks : list of list of int
        For each iteration from 1 on, how many keys are below each of the test keys.
    placed : int
        Keys that were put where their rank says; must be all.
    disorder : int
        Places where a smaller key follows, or that nothing was put to; must be none.
    """

    key_sum: int
    test_ranks: list[list[int]] = field(default_factory=list)
    placed: int = 0
    disorder: int = 0


# ---------------------------------------------------------------------------------------- pieces of the programs


def make_keys(what: Problem, first: int, end: int) -> Keys:
    """Return the keys with numbers in [first, end): anybody can begin anywhere, by jumping ahead in the generator."""
    keys = np.empty(end - first, np.int32)
    _kernels.is_keys(_kernels.random_skip(SEED, 4 * first), what.max_log, keys)
    return keys


def test_keys(what: Problem) -> Keys:
    """Return the keys at the places that are verified. None of them is ever changed."""
    places = CLASSES[what.klass].places if what.klass else ()
    return np.array([make_keys(what, place, place + 1)[0] for place in places], np.int32)


def change(keys: Keys, what: Problem, first: int, iteration: int) -> None:
    """Change two keys, as each iteration does; `keys` are those from number `first` on, and may have neither."""
    for number, value in ((iteration, iteration), (iteration + ITERATIONS, what.max_key - iteration)):
        if first <= number < first + len(keys):
            keys[number - first] = value


def rankings(what: Problem) -> Iterator[int]:
    """Yield the number of each ranking: once 1 to warm up, then 1 to, in general, 10."""
    yield 1
    yield from range(1, what.iterations + 1)


def owned(what: Problem, size: int) -> npt.NDArray[np.int64]:
    """Return the bucket at which each owner's range begins, and the end of the last: size + 1 numbers.

    A key is max/4 times the sum of four uniform numbers. Of these, a share F(x) is below x: the distribution of Irwin
    and Hall, F(x) = (x^4 - 4 (x-1)^4 + 6 (x-2)^4 - 4 (x-3)^4) / 24, with those terms left out whose bracket is
    negative.
    """
    n_buckets = what.max_key >> what.shift
    x = 4 * np.arange(n_buckets + 1) / n_buckets
    below = sum(sign * np.maximum(x - k, 0) ** 4 for k, sign in enumerate((1, -4, 6, -4))) / 24
    begins = np.searchsorted(below, np.arange(size + 1) / size)
    begins[0], begins[-1] = 0, n_buckets
    return begins.astype(np.int64)


def _workspace(n_counts: int) -> npt.NDArray[np.uint8]:
    """Return memory for is_count(), taken once."""
    return np.empty(1 << max(n_counts - 1, 0).bit_length(), np.uint8)


def _put(pieces: Sequence[Keys], cumulative: Keys, base: int, below: int) -> tuple[int, int]:
    """Put keys where their ranks say; return how many were put, and how many places are wrong.

    `pieces` hold all keys of [base, base + len(cumulative)) and may hold others; `below` keys are below `base`. It is
    done in ranges of keys, so that it takes a quarter of the memory that the keys have.
    """
    if len(cumulative) == 0:
        return 0, 0
    if cumulative[0] < below or (cumulative[1:] < cumulative[:-1]).any():
        return 0, 1  # these are no ranks
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
            disorder += int(np.count_nonzero(sorted_keys < 0))  # places that nothing was put to
            last = int(sorted_keys[-1])
        low, done = high, int(cumulative[high - 1])
        del sorted_keys  # before the next: there is never more than one
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
    """Rank the keys on all ranks of a communicator; the outcome of rank 0 is whole."""
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
    del keys  # there is never more than what is sent, and what came
    placed, disorder = _put_together(comm, what, dealer, ranking)
    # What each rank has found: ranks of test keys that it owns, keys that it put. Both algorithms give 0 for what is
    # another's.
    mine = np.concatenate([found.ravel(), [key_sum, placed, disorder]])
    everybody = np.zeros_like(mine)
    comm.Allreduce(mine, everybody)
    test_ranks = everybody[:-3].reshape(found.shape).tolist()
    return Outcome(int(everybody[-3]), test_ranks, int(everybody[-2]), int(everybody[-1]))


class _Chain:
    """Tables are added up from rank to rank; the last has the sum, and sends it to all."""

    def __init__(self, comm: Any, what: Problem, n: int) -> None:
        del n
        self._comm, self._rank, self._size = comm, comm.Get_rank(), comm.Get_size()
        self._cumulative = np.empty(what.max_key, np.int32)
        self._before = np.empty(what.max_key if self._rank else 0, np.int32)
        self._work = _workspace(what.max_key)

    def rank(self, keys: Keys) -> None:
        """Rank them, with those of all other processes."""
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
        """How many keys are below: rank 0 says so, though all know."""
        return int(self._cumulative[key - 1]) if self._rank == 0 and key > 0 else 0

    def end(self) -> None:
        """Give back what only ranking needed."""
        self._before, self._work = np.empty(0, np.int32), np.empty(0, np.uint8)

    def slice(self, low: int, high: int) -> tuple[Keys, int]:
        """How many keys are at most k, for k in [low, high); and how many are below `low`."""
        return self._cumulative[low:high], int(self._cumulative[low - 1]) if low else 0


class _Redistribute:
    """Each rank owns a range of keys, is sent all keys in it, and counts them."""

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
        """Rank them, with those of all other processes."""
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
        """Put keys beside those of the same owner, to be sent."""
        _kernels.is_partition(keys, self._shift, self._grouped, self._starts)

    def exchange(self, keep: bool = False) -> Iterator[Keys]:
        """Send the grouped keys to their owners, and yield what comes, block by block.

        Each is good until the next one, which then takes its memory, unless they are to be kept.
        """
        comm, rank, size = self._comm, self._rank, self._size
        begins = self._starts[self._begins]
        sent = np.diff(begins).astype(np.int32)
        came = np.empty(size, np.int32)
        # Not all to rank 0 first: each begins with itself, and goes round.
        there = [(rank + step) % size for step in range(size)]
        back = [(rank - step) % size for step in range(size)]
        waiting = [comm.Irecv(came[one : one + 1], one, COUNT) for one in back]
        sending = [comm.Isend(sent[one : one + 1], one, COUNT) for one in there]
        for request in waiting:
            request.Wait()
        sending += [comm.Isend(self._grouped[begins[one] : begins[one + 1]], one, KEYS) for one in there if sent[one]]
        # Two blocks: one is counted while the next arrives.
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
        """How many keys are below, if the key is one of this rank's; else 0."""
        if not self._low <= key < self._high:
            return 0
        return int(self._cumulative[key - self._low - 1]) if key > self._low else self._below

    def end(self) -> None:
        """Give back what only ranking needed."""
        self._work = np.empty(0, np.uint8)

    def collect(self) -> list[Keys]:
        """Send the grouped keys to their owners, and return what came; there are none to be sent any more."""
        came = list(self.exchange(keep=True))
        self._grouped = np.empty(0, np.int32)
        return came

    def slice(self, low: int, high: int) -> tuple[Keys, int]:
        """How many keys are at most k, for k in [low, high), which is this rank's range; how many are below."""
        assert (low, high) == (self._low, self._high)
        return self._cumulative, self._below


def _put_together(comm: Any, what: Problem, dealer: _Redistribute, ranking: _Chain | _Redistribute) -> tuple[int, int]:
    """Put all keys where their ranks say, each rank those of its range: how many were put here, and the disorder."""
    rank, size = comm.Get_rank(), comm.Get_size()
    begins = owned(what, size) << what.shift
    low, high = (int(one) for one in begins[rank : rank + 2])
    mine = dealer.collect()
    cumulative, below = ranking.slice(low, high)
    placed, disorder = _put(mine, cumulative, low, below)
    # Ranges are in order, so that what is in order within each is in order altogether; if ranges fit together:
    edges = np.empty(2 * size, np.int64)
    comm.Allgather(np.array([below, int(cumulative[-1]) if len(cumulative) else below], np.int64), edges)
    if rank == 0:
        disorder += (
            int(np.count_nonzero(edges[2::2] != edges[1:-1:2])) + int(edges[0] != 0) + int(edges[-1] != what.n_keys)
        )
    return placed, disorder


# ------------------------------------------------------------------------------------------------ verification


def verify(what: Problem, outcome: Outcome) -> list[Check]:
    """Hold an outcome against the published ranks of test keys, and see that ranks sort the keys."""
    checks = []
    for iteration in range(1, what.iterations + 1):
        for number, expected in enumerate(what.expected(iteration)):
            got = outcome.test_ranks[iteration - 1][number]
            checks.append(check(f"rank of test key {number + 1}, iteration {iteration}", got, expected))
    known = CLASSES.get(what.klass)
    if known is not None and known.key_sum is not None:
        checks.append(check("sum of keys", outcome.key_sum, known.key_sum))
    checks.append(check("keys put where their rank says", outcome.placed, what.n_keys))
    checks.append(check("keys out of order", outcome.disorder, 0))
    return checks


def memory(what: Problem, ranks: int) -> int:
    """Bytes that all ranks together need, about."""
    keys, table = 4 * what.n_keys, 5 * what.max_key
    if ranks == 1:
        return keys + keys // 4 + table + (keys if what.algorithm == "redistribute" else 0)
    if what.algorithm == "chain":  # afterwards keys are dealt out, to be verified
        return 2 * keys + ranks * (table + 4 * what.max_key) + table
    return 2 * keys + 2 * keys // ranks + table + what.max_key


# ------------------------------------------------------------------------------------- the same in plain NumPy


def make_keys_numpy(what: Problem, first: int, end: int) -> Keys:
    """Return the keys with numbers in [first, end), to read: x_k = seed a^k mod 2^46, and four of these to a key."""
    mask = np.uint64(2**46 - 1)
    n = 4 * (end - first)
    powers = np.array([MULTIPLIER], np.uint64)
    while len(powers) < n:  # a^1 .. a^k are known: times a^k, they are a^(k+1) .. a^2k
        powers = np.concatenate([powers, powers * powers[-1] & mask])
    start = np.uint64(SEED * pow(MULTIPLIER, 4 * first, 2**46) % 2**46)
    numbers = (powers[:n] * start & mask) * 2.0**-46
    return (what.max_key // 4 * numbers.reshape(-1, 4).sum(axis=1)).astype(np.int32)


def rank_numpy(keys: Keys, what: Problem) -> Keys:
    """Return how many keys are at most k, for each k below the largest possible."""
    return np.cumsum(np.bincount(keys, minlength=what.max_key)).astype(np.int32)


def partition_numpy(keys: Keys, what: Problem) -> tuple[Keys, Keys]:
    """Return keys grouped by bucket, in their order, and where each bucket begins."""
    bucket = keys >> what.shift
    starts = np.concatenate([[0], np.cumsum(np.bincount(bucket, minlength=what.max_key >> what.shift))])
    return keys[np.argsort(bucket, kind="stable")], starts.astype(np.int32)


# ------------------------------------------------------------------------------------------- beside a plain loop


def beside(quick: bool = False) -> Iterator[Case]:
    """Yield the whole program, keys and eleven rankings, to measure beside the plain loops of plain/is.c."""
    for klass in ("S",) if quick else ("W", "A", "paper", "B"):
        what = problem(klass)
        keys, cumulative = np.zeros(what.n_keys, np.int32), np.zeros(what.max_key, np.int32)
        work = _workspace(what.max_key)
        other_keys, other = np.zeros_like(keys), np.zeros_like(cumulative)

        def ours(what=what, keys=keys, cumulative=cumulative, work=work) -> Keys:  # noqa: ANN001
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

        yield Case(f"IS {klass}: keys made, ranked 11 times", ours, plain, np.array_equal)


APPLICATION = harness.Application(
    "is",
    "Ranking integers (NPB IS)",
    problem,
    serial,
    parallel,
    verify,
    options=(
        click.Option(["--class", "klass"], metavar="NAME", help=f"{', '.join(CLASSES)}.  [default: paper]"),
        click.Option(["--keys", "keys_log"], type=int, metavar="LOG2", help="Sizes of one's own: 2^LOG2 keys ..."),
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
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run it from the command line; returns the exit status."""
    return harness.main(APPLICATION, arguments)


if __name__ == "__main__":
    sys.exit(main())
