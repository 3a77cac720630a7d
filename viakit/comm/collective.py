"""Collective operations over messages, as schedules (see schedule.py).

The algorithms that csrc/coll has, too, are written there only (csrc/coll/data.c, with their sources). They come here as
plans: lists of exchanges, copies and combinations (csrc/coll/plan.c), which `_play` performs by messages. All others
are here. The choice depends on the number of ranks and bytes only. So all ranks choose alike, and floating-point
results are reproducible. All algorithms work on packed bytes and combine operands in rank order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from viakit import _core
from viakit.base.words import counted
from viakit.comm import objects
from viakit.comm.errors import error
from viakit.comm.op import Op
from viakit.comm.request import Request
from viakit.comm.schedule import Schedule
from viakit.comm.spec import Simple
from viakit.comm.step import Step

_SHORT_TREE = 8192  # bytes of one rank up to which gather and scatter use a tree
_IN_TRANSIT = 4 << 20  # bytes of a rank's messages that are under way at once in an alltoall
_EXCHANGE, _COMBINE, _COPY = 0, 1, 2  # kinds of steps
_NO_RANK = -3  # in a step without a message to or from a rank

Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]
PlanStep = tuple[int, int, int, int, int, int, int, int]  # struct coll_step in csrc/coll/coll.h
Rounds = tuple[list[PlanStep], ...]


def _empty(n: int) -> np.ndarray:
    return np.empty(n, np.uint8)


# ---------------------------------------------------------------- plans


class _Units:
    """Memory of a plan: bytes, cut into units of equal length."""

    def __init__(self, data: np.ndarray, unit: int = 1) -> None:
        self._data, self._unit = data, unit

    def get(self, at: int, n: int) -> Any:
        return self._data[at * self._unit : (at + n) * self._unit]

    def put(self, at: int, n: int, value: Any) -> None:
        self.get(at, n)[:] = value


class _Parts:
    """Memory of a plan: one buffer for each unit, of any length."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = list(parts)

    def get(self, at: int, n: int) -> Any:
        return self.parts[at]

    def put(self, at: int, n: int, value: Any) -> None:
        self.parts[at] = value


def _overlap(at: int, n: int, other: int, m: int) -> bool:
    return at < other + m and other < at + n


def _independent(step: PlanStep, earlier: PlanStep) -> bool:
    """Return whether an exchange may begin before an earlier one has ended."""
    _, _, _, out, out_n, into, in_n, _ = step
    _, _, _, out0, out0_n, into0, in0_n, _ = earlier
    return not (
        _overlap(out, out_n, into0, in0_n) or _overlap(into, in_n, out0, out0_n) or _overlap(into, in_n, into0, in0_n)
    )


@lru_cache(maxsize=256)
def rounds(operation: str, is_long: bool, n: int, me: int, root: int, length: int, at_once: int) -> Rounds:
    """Return a plan in rounds: one copy or combination, or up to *at_once* exchanges that do not need one another."""
    found: list[list[PlanStep]] = []
    for step in _core.collective_plan(operation, is_long, n, me, root, length):
        now = found[-1] if found else []
        ready = now and step[0] == now[0][0] == _EXCHANGE and len(now) < at_once
        if ready and all(_independent(step, earlier) for earlier in now):
            now.append(step)
        else:
            found.append([step])
    return tuple(found)


def _plan(s: Step, operation: str, length: int, is_long: bool = False, root: int = 0, at_once: int = 1 << 30) -> Rounds:
    """Return this rank's plan of an operation on *length* units, by the algorithm for short or long data."""
    return rounds(operation, is_long, s.size, s.rank, root, length, at_once)


def _is_long(s: Step, operation: str, nbytes: int) -> bool:
    return nbytes >= _core.collective_long_from(operation, s.size)


def _mirrored(rounds: Rounds) -> Rounds:
    """Return the plan of the opposite direction: what was sent is received, the last first."""
    return tuple(
        [(kind, source, to, into, in_n, out, out_n, 0) for kind, to, source, out, out_n, into, in_n, _ in reversed(now)]
        for now in reversed(rounds)
    )


@lru_cache(maxsize=256)
def tree(gathers: bool, n: int, me: int, root: int) -> Rounds:
    """Return the messages of a scatter by a binomial tree, or of the opposite gather. Units are parts of one rank."""
    down = rounds("scatter", False, n, me, root, n, 1 << 30)
    return _mirrored(down) if gathers else down


@lru_cache(maxsize=256)
def star(gathers: bool, n: int, me: int, root: int) -> Rounds:
    """Return the messages of a gather directly to the root, or of the opposite scatter.

    Units are the parts of all ranks on the root, and on other ranks their own part.
    """
    if me != root:
        plan: Rounds = ([(_EXCHANGE, root, _NO_RANK, 0, 1, 0, 0, 0)],)
    else:
        others = [(_EXCHANGE, _NO_RANK, i, 0, 0, i, 1, 0) for i in range(n) if i != root]
        plan = (others,) if others else ()
    return plan if gathers else _mirrored(plan)


def at_once(n: int, each: int) -> int:
    """Return how many partners of an alltoall exchange parts of *each* bytes at once.

    Few or short messages: all. Many long messages: fewer, to bound the memory in transit.
    """
    return max(1, min(n, _IN_TRANSIT // max(each, 1)))


@lru_cache(maxsize=256)
def pairwise(n: int, me: int, at_once: int) -> Rounds:
    """Return the messages of a pairwise alltoall. Units are n outgoing parts, then n incoming ones."""
    plan = rounds("alltoall", True, n, me, 0, 1, at_once)
    return tuple(steps for steps in plan if steps[0][0] == _EXCHANGE)  # without this rank's part for itself


@lru_cache(maxsize=256)
def meeting(n: int, me: int) -> Rounds:
    """Return the plan of a message between each pair of ranks."""
    messages = [(_EXCHANGE, i, i, 0, 1, 0, 1, 0) for i in range(n) if i != me]
    return (messages,) if messages else ()


@lru_cache(maxsize=256)
def everyone(n: int, me: int) -> Rounds:
    """Return the plan of a reduction in parts: receive this rank's part of all ranks, and combine in their order.

    Units are n outgoing parts, then n incoming ones, among them this rank's own. The result is the first incoming one.
    """
    messages = [(_EXCHANGE, i, i, i, 1, n + i, 1, 0) for i in range(n) if i != me]
    fold = [[(_COMBINE, _NO_RANK, _NO_RANK, n, 1, n + i, 1, n)] for i in range(1, n)]
    return (messages, *fold) if messages else ()


@lru_cache(maxsize=256)
def prefix(n: int, me: int) -> Rounds:
    """Return the plan of a prefix by recursive doubling: after round k a rank has combined the last 2^(k+1) ranks.

    Unit 0: the operand, later the inclusive prefix. 1: the exclusive prefix. The others: one for each message received.
    """
    found: list[list[PlanStep]] = []
    distance, got, has_before = 1, 2, False
    while distance < n:
        to, source = me + distance if me + distance < n else _NO_RANK, me - distance if me >= distance else _NO_RANK
        if to >= 0 or source >= 0:
            found.append([(_EXCHANGE, to, source, 0, 1, got, 1, 0)])
        if source >= 0:
            if has_before:
                found.append([(_COMBINE, _NO_RANK, _NO_RANK, got, 1, 1, 1, 1)])
            else:
                found.append([(_COPY, _NO_RANK, _NO_RANK, got, 1, 0, 0, 1)])
            found.append([(_COMBINE, _NO_RANK, _NO_RANK, got, 1, 0, 1, 0)])
            got, has_before = got + 1, True
        distance *= 2
    return tuple(found)


def _play(s: Step, rounds: Rounds, memory: _Units | _Parts, combine: Combine | None = None) -> Schedule:
    """Perform a plan."""
    get = memory.get
    for steps in rounds:
        kind, _, _, out, n, into, _, result = steps[0]
        if kind == _EXCHANGE:
            yield [s.recv(get(into, n), source) for _, _, source, _, _, into, n, _ in steps if source >= 0] + [
                s.send(get(out, n), to) for _, to, _, out, n, _, _, _ in steps if to >= 0
            ]
        elif kind == _COMBINE:
            assert combine is not None
            memory.put(result, n, combine(get(out, n), get(into, n)))
        else:
            memory.put(result, n, get(out, n))


# ---------------------------------------------------------------- barrier, broadcast


def barrier(s: Step) -> Schedule:
    """Dissemination barrier: an allgather of nothing by Bruck's algorithm."""
    yield from _play(s, _plan(s, "allgather", 1), _Units(_empty(0), 0))


def meet(s: Step) -> Schedule:
    """Barrier with a message between each pair of ranks. Earlier messages to this rank have arrived when it ends."""
    yield from _play(s, meeting(s.size, s.rank), _Units(_empty(0), 0))


def bcast(s: Step, place: Simple) -> Schedule:
    """Broadcast by a binomial tree. A long message is cut, scattered, and gathered by a ring."""
    direct = place.direct
    data = place.pack() if direct or s.rank == s.root else _empty(place.nbytes)
    yield from _bcast(s, data)
    if not direct and s.rank != s.root:
        place.unpack(data)


def _bcast(s: Step, data: np.ndarray) -> Schedule:
    yield from _play(s, _plan(s, "bcast", data.size, _is_long(s, "bcast", data.size), s.root), _Units(data))


# ---------------------------------------------------------------- gather, scatter


def gather(s: Step, mine: Simple | None, into: Sequence[Simple] | None, each: int = -1) -> Schedule:
    """Gather to the root: short equal parts of `each` bytes by a binomial tree, others directly.

    `mine` is None on the root if its part is in place.
    """
    if 0 <= each <= _SHORT_TREE and s.size > 3:
        yield from _gather_tree(s, mine, into, each)
        return
    plan = star(True, s.size, s.rank, s.root)
    if s.rank != s.root:
        assert mine is not None
        yield from _play(s, plan, _Parts([mine.pack()]))
        return
    assert into is not None
    data = [part.pack() if part.direct else _empty(part.nbytes) for part in into]
    yield from _play(s, plan, _Parts(data))
    for i, part in enumerate(into):
        if i == s.root:
            _copy(mine, part)
        elif not part.direct:
            part.unpack(data[i])


def _copy(mine: Simple | None, part: Simple) -> None:
    if mine is None:
        return
    if mine.nbytes > part.nbytes:
        raise error(
            "ERR_TRUNCATE",
            f"what is sent, {counted(mine.nbytes, 'byte')}, does not fit into this rank's part of "
            f"{counted(part.nbytes, 'byte')}",
        )
    part.unpack(mine.pack())


def _gather_tree(s: Step, mine: Simple | None, into: Sequence[Simple] | None, each: int) -> Schedule:
    have = _Units(_empty(each * s.size), each)  # parts numbered from the root on
    me = (s.rank - s.root) % s.size
    if mine is not None:
        have.put(me, 1, mine.pack())
    yield from _play(s, tree(True, s.size, s.rank, s.root), have)
    for i, part in enumerate(into or ()):
        if i != s.root or mine is not None:
            part.unpack(have.get((i - s.root) % s.size, 1))


def scatter(s: Step, out: Sequence[Simple] | None, mine: Simple | None, each: int = -1) -> Schedule:
    """Scatter from the root: short equal parts by a binomial tree, others directly. `mine` None: it is in place."""
    if 0 <= each <= _SHORT_TREE and s.size > 3:
        yield from _scatter_tree(s, out, mine, each)
        return
    plan = star(False, s.size, s.rank, s.root)
    if s.rank == s.root:
        assert out is not None
        yield from _play(s, plan, _Parts([part.pack() for part in out]))
        if mine is not None:
            _copy(out[s.root], mine)
        return
    assert mine is not None
    data = mine.pack() if mine.direct else _empty(mine.nbytes)
    yield from _play(s, plan, _Parts([data]))
    if not mine.direct:
        mine.unpack(data)


def _scatter_tree(s: Step, out: Sequence[Simple] | None, mine: Simple | None, each: int) -> Schedule:
    have = _Units(_empty(each * s.size), each)  # parts numbered from the root on
    for i, part in enumerate(out or ()):
        have.put((i - s.root) % s.size, 1, part.pack())
    yield from _play(s, tree(False, s.size, s.rank, s.root), have)
    if mine is not None:
        mine.unpack(have.get((s.rank - s.root) % s.size, 1))


# ---------------------------------------------------------------- allgather, alltoall


def allgather(s: Step, mine: Simple | None, into: Sequence[Simple]) -> Schedule:
    """Allgather: Bruck's algorithm for short equal parts, else a ring."""
    _copy(mine, into[s.rank])
    each = into[0].nbytes
    if all(part.nbytes == each for part in into) and not _is_long(s, "allgather", each):
        have = _Units(_empty(2 * s.size * each), each)
        have.put(s.rank, 1, into[s.rank].pack())
        yield from _play(s, _plan(s, "allgather", 1), have)
        for i, part in enumerate(into):
            if i != s.rank:
                part.unpack(have.get(i, 1))
        return
    data = [part.pack() if part.direct or i == s.rank else _empty(part.nbytes) for i, part in enumerate(into)]
    yield from _ring(s, data)
    for i, part in enumerate(into):
        if not part.direct and i != s.rank:
            part.unpack(data[i])


def _ring(s: Step, parts: Sequence[Any]) -> Schedule:
    """Allgather of parts of any length."""
    yield from _play(s, _plan(s, "allgather", 1, is_long=True), _Parts(parts))


def alltoall(s: Step, out: Sequence[Simple] | None, into: Sequence[Simple], equal: bool = False) -> Schedule:
    """Pairwise exchange; Bruck's algorithm for short equal parts and many ranks. `out` None: `into` is sent."""
    n, packed = s.size, [part.pack() for part in (into if out is None else out)]
    if out is None:
        packed = [data.copy() for data in packed]
    else:
        _copy(out[s.rank], into[s.rank])
    each = packed[0].size
    if equal and not _is_long(s, "alltoall", each):
        have = _Units(_empty((4 * n + 2) * each), each)  # outgoing and incoming parts, and at most 2 n + 2 of scratch
        have.put(0, n, np.concatenate(packed))
        yield from _play(s, _plan(s, "alltoall", 1), have)
        data = [have.get(n + i, 1) for i in range(n)]
    else:
        data = [part.pack() if part.direct else _empty(part.nbytes) for part in into]
        yield from _play(s, pairwise(n, s.rank, at_once(n, each)), _Parts(packed + data))
        equal = False
    for i, part in enumerate(into):
        if i != s.rank and (equal or not part.direct):
            part.unpack(data[i])


# ---------------------------------------------------------------- reductions


def _combine(op: Op, place: Simple) -> Combine:
    """Return a function that combines the bytes of lower ranks with those of higher ranks, in whole elements."""
    datatype = place.datatype
    op.check(datatype)
    size = max(datatype.size, 1)
    return lambda low, high: op.combine(low, high, datatype, low.size // size)


def reduce(s: Step, mine: Simple, into: Simple | None, op: Op) -> Schedule:
    """Reduce by a binomial tree. If the operation does not commute, the tree ends at rank 0 to keep the order."""
    combine, top = _combine(op, mine), s.root if op.Is_commutative() else 0
    memory = _Parts([mine.pack(), _empty(mine.nbytes)])
    yield from _play(s, _plan(s, "reduce", 1, root=top), memory, combine)
    have = memory.parts[0]
    if top != s.root:
        if s.rank == top:
            yield [s.send(have, s.root)]
        elif s.rank == s.root:
            have = _empty(mine.nbytes)
            yield [s.recv(have, top)]
    if s.rank == s.root:
        assert into is not None
        into.unpack(have)


def allreduce(s: Step, mine: Simple, into: Simple, op: Op) -> Schedule:
    """Allreduce: recursive doubling; for long commuting operands a ring that reduces and a ring that gathers."""
    combine, data, unit = _combine(op, mine), mine.pack(), mine.datatype.size
    is_long = _is_long(s, "allreduce", data.size) and op.Is_commutative() and mine.count >= s.size
    work = _empty(2 * data.size + unit)  # the operand, and scratch
    work[: data.size] = data
    yield from _play(s, _plan(s, "allreduce", mine.count, is_long), _Units(work, unit), combine)
    into.unpack(work[: data.size])


def uneven(counts: Sequence[int], total: int) -> Exception:
    """Return the error for counts of results that are not those of the operand."""
    return ValueError(f"the counts add up to {sum(counts)}, but what is sent has {counted(total, 'item')}")


def reduce_scatter(s: Step, mine: Sequence[Simple], into: Simple, op: Op) -> Schedule:
    """Receive this rank's part from all ranks, and combine them in the order of ranks."""
    combine, own = _combine(op, into), mine[s.rank].pack()
    got = [own if i == s.rank else _empty(own.size) for i in range(s.size)]
    memory = _Parts([part.pack() for part in mine] + got)
    yield from _play(s, everyone(s.size, s.rank), memory, combine)
    into.unpack(memory.parts[s.size])


def scan(s: Step, mine: Simple, into: Simple, op: Op, exclusive: bool) -> Schedule:
    """Prefix by recursive doubling."""
    combine, own = _combine(op, mine), mine.pack()
    memory = _Parts([own, None, *(_empty(own.size) for _ in range((s.size - 1).bit_length()))])
    yield from _play(s, prefix(s.size, s.rank), memory, combine)
    have = memory.parts[1 if exclusive else 0]
    if have is not None:
        into.unpack(have)


# ---------------------------------------------------------------- objects


def bcast_object(s: Step, obj: Any) -> Schedule:
    """Broadcast an object: its length, then its pickle."""
    data = bytearray(objects.dump_plain(s, obj)) if s.rank == s.root else bytearray(0)
    head = bytearray(struct.pack("<Q", len(data)))
    yield from _bcast(s, np.frombuffer(head, np.uint8))
    if s.rank != s.root:
        data = bytearray(struct.unpack("<Q", head)[0])
    if data:
        yield from _bcast(s, np.frombuffer(data, np.uint8))
    return obj if s.rank == s.root else objects.load_plain(s, data, s.root)


def gather_object(s: Step, obj: Any) -> Schedule:
    """Send the objects directly to the root. Return a list on the root, None on other ranks."""
    if s.rank != s.root:
        yield objects.start_plain(s, objects.dump_plain(s, obj), s.root)
        return None
    found = []
    for i in range(s.size):
        if i == s.rank:
            found.append(objects.load_plain(s, objects.dump_plain(s, obj), i))
        else:
            found.append(objects.load_plain(s, (yield from objects.receiving_plain(s, i)), i))
    return found


def scatter_object(s: Step, sendobj: Sequence[Any] | None) -> Schedule:
    """Send the items directly from the root."""
    if s.rank != s.root:
        return objects.load_plain(s, (yield from objects.receiving_plain(s, s.root)), s.root, s.rank)
    items = list(sendobj) if sendobj is not None else [None] * s.size
    if len(items) != s.size:
        raise ValueError(f"expecting {counted(s.size, 'item')}, got {len(items)}")
    sends: list[Request] = []
    for i, item in enumerate(items):
        if i != s.rank:
            sends += objects.start_plain(s, objects.dump_plain(s, item, i), i)
    yield sends
    return objects.load_plain(s, objects.dump_plain(s, items[s.rank], s.rank), s.rank, s.rank)


def allgather_object(s: Step, obj: Any) -> Schedule:
    """Allgather: the lengths by Bruck's algorithm, the pickles by a ring."""
    from viakit.comm.datatype import BYTE  # it imports this module

    data = objects.dump_plain(s, obj)
    lengths = np.zeros(s.size, np.int64)
    raw = lengths.view(np.uint8)
    lengths[s.rank] = len(data)
    yield from allgather(s, None, [Simple(raw, BYTE, 8, 8 * i) for i in range(s.size)])
    part: list[Any] = [data if i == s.rank else bytearray(int(lengths[i])) for i in range(s.size)]
    yield from _ring(s, part)
    return [objects.load_plain(s, one, i) for i, one in enumerate(part)]


def allgather_block(s: Step, block: bytes) -> Schedule:
    """Allgather of blocks of equal length by Bruck's algorithm. Return the list of them."""
    have = _Units(_empty(2 * s.size * len(block)), len(block))
    have.put(s.rank, 1, np.frombuffer(block, np.uint8))
    yield from _play(s, _plan(s, "allgather", 1), have)
    return [have.get(i, 1).tobytes() for i in range(s.size)]


def alltoall_object(s: Step, sendobj: Sequence[Any] | None) -> Schedule:
    """Exchange lengths and pickles pairwise."""
    items = [None] * s.size if sendobj is None else list(sendobj)
    if len(items) != s.size:
        raise ValueError(f"expecting {counted(s.size, 'item')}, got {len(items)}")
    data = [objects.dump_plain(s, item, i) for i, item in enumerate(items)]
    heads = [bytearray(8) for _ in items]
    others = [i for i in range(s.size) if i != s.rank]
    yield [s.recv(heads[i], i) for i in others] + [s.send(struct.pack("<Q", len(data[i])), i) for i in others]
    into: list[Any] = [bytearray(struct.unpack("<Q", head)[0]) for head in heads]
    yield [s.recv(into[i], i) for i in others] + [s.send(data[i], i) for i in others]
    into[s.rank] = data[s.rank]
    return [objects.load_plain(s, one, i, s.rank) for i, one in enumerate(into)]


def reduce_object(s: Step, obj: Any, op: Callable[[Any, Any], Any]) -> Schedule:
    """Reduce by a binomial tree to rank 0, in the order of ranks, and send the result to the root."""
    have, other = objects.load_plain(s, objects.dump_plain(s, obj), s.rank), None
    for ((kind, to, source, *_),) in _plan(s, "reduce", 1, at_once=1):
        if kind == _COMBINE:
            have = op(have, other)
        elif to >= 0:
            yield objects.start_plain(s, objects.dump_plain(s, have), to)
        else:
            other = objects.load_plain(s, (yield from objects.receiving_plain(s, source)), source)
    if s.root != 0 and s.rank == 0:
        yield objects.start_plain(s, objects.dump_plain(s, have), s.root)
    elif s.root != 0 and s.rank == s.root:
        have = objects.load_plain(s, (yield from objects.receiving_plain(s, 0)), 0)
    return have if s.rank == s.root else None


def allreduce_object(s: Step, obj: Any, op: Callable[[Any, Any], Any]) -> Schedule:
    """Reduce to rank 0 and broadcast the result."""
    have = yield from reduce_object(s, obj, op)
    return (yield from bcast_object(s, have))


def scan_object(s: Step, obj: Any, op: Callable[[Any, Any], Any], exclusive: bool) -> Schedule:
    """Combine along the chain of ranks: each rank sends its prefix to the next."""
    before = None
    if s.rank > 0:
        before = objects.load_plain(s, (yield from objects.receiving_plain(s, s.rank - 1)), s.rank - 1)
    own = objects.load_plain(s, objects.dump_plain(s, obj), s.rank)
    have = own if s.rank == 0 else op(before, own)
    if s.rank + 1 < s.size:
        yield objects.start_plain(s, objects.dump_plain(s, have), s.rank + 1)
    return before if exclusive else have
