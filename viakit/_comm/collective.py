"""Collective operations by messages, as schedules (see request.py).

The algorithms are the textbooks' (R. Thakur, R. Rabenseifner and W. Gropp, Int. J. High Perform. Comput. Appl. 19
(2005) 49, and the literature there): chosen by the number of ranks and bytes, and always the same for the same
numbers, so that all ranks choose alike and floating-point results can be repeated. All work on packed bytes;
operands are combined in the order of ranks.

Every message of a collective carries a tag made of the operation's number in its communicator, its kind and its
root. While a rank waits it looks, 20 times a second, whether a message of the same number but of another kind or
root has come, or whether a member has died: then it raises instead of waiting for ever.

A rank that ends a collective by an error or an interrupt gives it up: it withdraws its receives, so that they get
nothing of a later one, and tells all others, who give it up as well if they wait in it. What was sent to it all the
same is thrown away. Ranks that go on agree on the number of the next.
"""

from __future__ import annotations

import contextlib
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from viakit._comm import objects
from viakit._comm.errors import error
from viakit._comm.op import Op
from viakit._comm.request import LET_FINISH_S, Request
from viakit._comm.schedule import Schedule
from viakit._comm.spec import Simple
from viakit._comm.status import ANY_SOURCE, ANY_TAG, Status
from viakit._words import counted

KINDS = (
    "barrier bcast gather gatherv scatter scatterv allgather allgatherv alltoall alltoallv alltoallw reduce allreduce "
    "reduce_scatter_block reduce_scatter scan exscan bcast(object) gather(object) scatter(object) allgather(object) "
    "alltoall(object) reduce(object) allreduce(object) scan(object) exscan(object) neighbor"
).split()
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_PART, _FEW_PART = 1, 3  # the context of collectives, and of those that make a communicator of some ranks
_GROUP_PART, _NOTE_TAG = 4, 4  # where ranks that wait in a collective of csrc/coll say so (csrc/coll/wait.c) ...
_NOTE = struct.Struct("<QHHiQQ")  # ... and how: number, operation, algorithm, root, length, the communicator's birth
_GIVE_UP_TAG = 5  # in the same context: who gave up a collective of this file says so ...
_GIVE_UP = struct.Struct("<QqQ")  # ... and which: number, tag (-1: before there was one), the communicator's birth
_FEW_GIVE_UP_TAG = 6  # and of Create_group: ...
_FEW_GIVE_UP = struct.Struct("<IIQQ")  # ... members (their CRC-32), the program's tag, number, the communicator's birth
_FEW_STRIDE, _TAG_MOST = 0x4F1BBCDD, 2**31 - 1  # odd: all tags have had their turn before one comes again
_GAVE_UP = "of this communicator has given up this collective, by an error or an interrupt of its own"
_KEPT = 1024  # collectives for which it is remembered that one was given up
_NUMBER = 0xFFFF  # bits of a collective's number that are in its tag
_OPERATIONS = ("setting up", "barrier", "bcast", "reduce", "allreduce", "allgather", "alltoall")
_LONG_BCAST = 131072  # bytes from which a broadcast is a scatter and a ring
_SHORT_ALLGATHER = 65536  # bytes of the whole up to which an allgather goes by Bruck's algorithm
_SHORT_ALLTOALL = 256  # bytes for one rank up to which, and
_MANY_ALLTOALL = 8  # ranks from which, an alltoall goes by Bruck's algorithm
_SHORT_TREE = 8192  # bytes of one rank up to which gather and scatter go by a tree
_LONG_ALLREDUCE = 65536  # bytes from which an allreduce goes round a ring


class Step:
    """One collective operation of one communicator: its messages, under a tag of its own."""

    def __init__(self, comm: Any, kind: str, root: int = 0) -> None:
        if comm._freed:
            raise error("ERR_COMM", f"{kind}: this communicator has been freed")
        if not 0 <= root < comm.size:
            raise error("ERR_ROOT", f"root {root}: this communicator has ranks 0 to {comm.size - 1}")
        comm._n_collectives = self.number = comm._n_collectives + 1
        self.comm, self.kind, self.root = comm, kind, root
        self.rank, self.size = comm.rank, comm.size
        self.tag = (self.number & _NUMBER) << 14 | _NUMBER_OF[kind] << 8 | root & 0xFF
        self.receives: list[Request] = []  # of the present round
        if comm._given_up:
            _sweep(comm, self.number)

    def send(self, data: Any, dest: int) -> Request:
        """Start to send bytes."""
        return self.comm.start_send(data, dest, self.tag, 0, _PART)

    def recv(self, data: Any, source: int) -> Request:
        """Start to receive exactly as many bytes as `data` has."""
        request = self.comm.start_recv(data, source, self.tag, _PART)
        self.receives.append(request)
        request.after = lambda done: self._exactly(done.nbytes, len(data), source)
        return request

    def give_up(self) -> None:
        """After an error or an interrupt: receives are withdrawn, and the others told."""
        give_up(self.comm, self.number, self.tag)
        self._withdraw()

    def _withdraw(self) -> None:
        deadline = time.monotonic() + LET_FINISH_S
        receives, self.receives = self.receives, []
        for receive in receives:
            with contextlib.suppress(RuntimeError):  # what the program is told is why it is given up
                if not receive.ended:
                    receive.withdraw()
                    receive.wait_for(max(deadline - time.monotonic(), 0.0))

    def _exactly(self, got: int, wanted: int, source: int) -> None:
        if got != wanted:
            raise error(
                "ERR_TRUNCATE",
                f"{self.kind}: rank {source} sent {counted(got, 'byte')} where {wanted} were expected: counts or "
                "datatypes differ",
            )

    def check(self) -> None:
        """Look for reasons why this might never end."""
        comm = self.comm
        self._check_alive(range(self.size))
        self._read_notes()
        self._read_given_up()
        for number in comm._given_up:  # so that what is left of them does not hide what has come for this one
            comm.discard(_PART, _NUMBER << 14, (number & _NUMBER) << 14)
        status = Status()
        if not comm.look(ANY_SOURCE, ANY_TAG, status, 0, _PART):
            return
        if status.tag >> 14 == self.tag >> 14 and status.tag != self.tag:
            raise self._mismatch(status.source, status.tag)

    def _mismatch(self, source: int, tag: int) -> Exception:
        kind, root = KINDS[tag >> 8 & 0x3F], tag & 0xFF
        return error(
            "ERR_OTHER",
            f"mismatched collectives: this rank is in {self.kind} with root {self.root}, "
            f"rank {source} is in {kind} with root {root}",
        )

    def _read_given_up(self) -> None:
        """Look whether a rank has given up this collective."""
        comm = self.comm
        _read_words(comm)
        for source, tag in comm._others_gave_up.get(self.number, ()):
            if tag not in (self.tag, -1):
                raise self._mismatch(source, tag)
            raise error(
                "ERR_PROC_ABORTED",
                f"{self.kind}: rank {source} {_GAVE_UP}",
            )

    def _check_alive(self, members: Sequence[int]) -> None:
        ranks = self.comm.world_ranks()
        dead = set(self.comm.world.failures()).intersection(ranks[i] for i in members)
        if dead:
            names = ", ".join(str(ranks.index(rank)) for rank in sorted(dead))
            raise error("ERR_PROC_FAILED", f"{self.kind}: rank {names} of this communicator has died")

    def _read_notes(self) -> None:
        """Look whether a rank waits for us in a collective that does not go by messages of this file."""
        status = Status()
        while self.comm.look(ANY_SOURCE, _NOTE_TAG, status, 0, _GROUP_PART):
            source, data = status.source, bytearray(_NOTE.size)
            self.comm.start_recv(data, source, _NOTE_TAG, _GROUP_PART).Wait()
            number, operation, _, root, _, birth = _NOTE.unpack(data)
            if number == self.number and birth == self.comm.birth:
                self.comm._mismatched(source)
                raise error(
                    "ERR_OTHER",
                    f"mismatched collectives: this rank is in {self.kind} with root {self.root}, "
                    f"rank {source} is in {_OPERATIONS[operation]} with root {root}",
                )


def give_up(comm: Any, number: int, tag: int = -1) -> None:
    """Tell the other ranks that this one does no more for a collective; of what they send, nothing stays."""
    _read_words(comm)
    comm._given_up.append(number)
    with contextlib.suppress(RuntimeError):
        word, dead = _GIVE_UP.pack(number, tag, comm.birth), set(comm.world.failures())
        for rank, where in enumerate(comm.world_ranks()):
            if rank != comm.rank and where not in dead:
                with contextlib.suppress(RuntimeError):
                    comm.start_send(word, rank, _GIVE_UP_TAG, 0, _GROUP_PART).release()


def _read_words(comm: Any) -> None:
    """Take note of what other ranks have given up."""
    status, told = Status(), comm._others_gave_up
    with contextlib.suppress(RuntimeError):
        while comm.look(ANY_SOURCE, _GIVE_UP_TAG, status, 0, _GROUP_PART):
            source, data = status.source, bytearray(_GIVE_UP.size)
            comm.start_recv(data, source, _GIVE_UP_TAG, _GROUP_PART).Wait()
            number, tag, birth = _GIVE_UP.unpack(data)
            if birth == comm.birth:
                told.setdefault(number, []).append((source, tag))
    for number in [number for number in told if number + _KEPT < comm._n_collectives]:
        del told[number]


def _sweep(comm: Any, number: int) -> None:
    """Throw away what is left of collectives that were given up, long before their numbers in tags come again."""
    for old in [old for old in comm._given_up if old + _KEPT < number]:
        comm.discard(_PART, _NUMBER << 14, (old & _NUMBER) << 14)
        comm._given_up.remove(old)


class Fews:
    """What a communicator remembers of Create_group: of each set of members and tag, how many there were."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {}
        self.given_up: dict[tuple[int, int, int], int] = {}  # members, tag and number, and who said so
        self.left: list[int] = []  # tags of messages that may still come for those that this rank has given up

    def begin(self, key: tuple[int, int]) -> int:
        """The number of the next one: its members, who all call, count alike."""
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        for old in [old for old in self.given_up if old[:2] == key and old[2] < number]:
            del self.given_up[old]
        return number


class Few(Step):
    """The same among some ranks of a communicator of whom the others know nothing: under the program's tag.

    They have no number of the communicator's, so they count for themselves. What was sent for one that was given up
    must not reach a later one of the same tag: that of messages is made of the program's, the members, and the number.
    """

    def __init__(self, comm: Any, members: Sequence[int], tag: int) -> None:
        if comm._freed:
            raise error("ERR_COMM", "create_group: this communicator has been freed")
        if not 0 <= tag <= _TAG_MOST:
            raise error("ERR_TAG", f"create_group: tag {tag}; right would be 0 to {_TAG_MOST}")
        self.comm, self.kind, self.root, self.members = comm, "create_group", 0, members
        self._key = (zlib.crc32(struct.pack(f"<{len(members)}I", *members)), tag)
        self.number = comm._fews.begin(self._key)
        self.tag = (tag + self._key[0] + self.number * _FEW_STRIDE) & _TAG_MOST
        self.receives = []
        self.rank, self.size = members.index(comm.rank), len(members)
        self._over = False
        for old in comm._fews.left:
            comm.discard(_FEW_PART, _TAG_MOST, old)

    def send(self, data: Any, dest: int) -> Request:
        """Start to send bytes."""
        return self.comm.start_send(data, self.members[dest], self.tag, 0, _FEW_PART)

    def recv(self, data: Any, source: int) -> Request:
        """Start to receive exactly as many bytes as `data` has."""
        request = self.comm.start_recv(data, self.members[source], self.tag, _FEW_PART)
        self.receives.append(request)
        request.after = lambda done: self._exactly(done.nbytes, len(data), self.members[source])
        return request

    def give_up(self) -> None:
        """After an error or an interrupt: receives are withdrawn, and the other members told. Twice does no harm."""
        if self._over:
            return
        self._over = True
        comm, ranks = self.comm, self.comm.world_ranks()
        comm._fews.left = [*comm._fews.left[-_KEPT:], self.tag]
        with contextlib.suppress(RuntimeError):
            word, dead = _FEW_GIVE_UP.pack(*self._key, self.number, comm.birth), set(comm.world.failures())
            for rank in self.members:
                if rank != comm.rank and ranks[rank] not in dead:
                    with contextlib.suppress(RuntimeError):
                        comm.start_send(word, rank, _FEW_GIVE_UP_TAG, 0, _GROUP_PART).release()
        self._withdraw()

    def check(self) -> None:
        """Look for members that have died, or have given this one up."""
        self._check_alive(self.members)
        comm, status = self.comm, Status()
        with contextlib.suppress(RuntimeError):
            while comm.look(ANY_SOURCE, _FEW_GIVE_UP_TAG, status, 0, _GROUP_PART):
                source, data = status.source, bytearray(_FEW_GIVE_UP.size)
                comm.start_recv(data, source, _FEW_GIVE_UP_TAG, _GROUP_PART).Wait()
                members, tag, number, birth = _FEW_GIVE_UP.unpack(data)
                if birth == comm.birth and number >= comm._fews.numbers.get((members, tag), 0):
                    comm._fews.given_up[members, tag, number] = source
        who = comm._fews.given_up.get((*self._key, self.number))
        if who is not None:
            raise error("ERR_PROC_ABORTED", f"{self.kind}: rank {who} {_GAVE_UP}")


def _empty(n: int) -> np.ndarray:
    return np.empty(n, np.uint8)


# ---------------------------------------------------------------- barrier, broadcast


def barrier(s: Step) -> Schedule:
    """Dissemination: in round k every rank hears from the one 2^k before it."""
    distance = 1
    while distance < s.size:
        yield [
            s.recv(bytearray(0), (s.rank - distance) % s.size),
            s.send(b"", (s.rank + distance) % s.size),
        ]
        distance *= 2


def meet(s: Step) -> Schedule:
    """A barrier in which each hears from each: whatever they have sent to this rank before is here when it ends."""
    others = [rank for rank in range(s.size) if rank != s.rank]
    yield [s.recv(bytearray(0), rank) for rank in others] + [s.send(b"", rank) for rank in others]


def bcast(s: Step, place: Simple) -> Schedule:
    """A binomial tree; long messages are cut, scattered, and sent round a ring."""
    direct = place.direct
    data = place.pack() if direct or s.rank == s.root else _empty(place.nbytes)
    if data.size >= _LONG_BCAST and s.size > 2:
        yield from _bcast_long(s, data)
    else:
        yield from _bcast_tree(s, data)
    if not direct and s.rank != s.root:
        place.unpack(data)


def _bcast_tree(s: Step, data: Any) -> Schedule:
    me, mask = (s.rank - s.root) % s.size, 1
    while mask < s.size:
        if me & mask:
            yield [s.recv(data, (s.rank - mask) % s.size)]
            break
        mask *= 2
    mask //= 2
    sends = []
    while mask:
        if me + mask < s.size:
            sends.append(s.send(data, (s.rank + mask) % s.size))
        mask //= 2
    if sends:
        yield sends


def _cuts(n: int, parts: int, unit: int = 1) -> list[int]:
    """Where to cut n bytes into nearly equal parts of whole units."""
    units = n // unit
    return [units * i // parts * unit for i in range(parts)] + [n]


def _bcast_long(s: Step, data: np.ndarray) -> Schedule:
    cuts, me = _cuts(data.size, s.size), (s.rank - s.root) % s.size
    part = [data[cuts[i] : cuts[i + 1]] for i in range(s.size)]
    if me == 0:
        yield [s.send(part[i], (s.root + i) % s.size) for i in range(1, s.size)]
    else:
        yield [s.recv(part[me], s.root)]
    # The ring, but for what the root would only get back.
    for k in range(s.size - 1):
        requests = []
        if me != 0:
            requests.append(s.recv(part[(me - k - 1) % s.size], (s.rank - 1) % s.size))
        if me != s.size - 1:
            requests.append(s.send(part[(me - k) % s.size], (s.rank + 1) % s.size))
        yield requests


def _ring(s: Step, part: Sequence[Any], me: int) -> Schedule:
    """Allgather: each rank passes on what it got last. part[i] is known to the rank whose `me` is i."""
    right, left = (s.rank + 1) % s.size, (s.rank - 1) % s.size
    for k in range(s.size - 1):
        out, into = (me - k) % s.size, (me - k - 1) % s.size
        yield [s.recv(part[into], left), s.send(part[out], right)]


# ---------------------------------------------------------------- gather, scatter


def gather(s: Step, mine: Simple | None, into: Sequence[Simple] | None, each: int = -1) -> Schedule:
    """To the root: by a binomial tree if short and equal (`each` bytes), else directly. `mine` None: it is in place."""
    if 0 <= each <= _SHORT_TREE and s.size > 3:
        yield from _gather_tree(s, mine, into, each)
        return
    if s.rank != s.root:
        assert mine is not None
        yield [s.send(mine.pack(), s.root)]
        return
    assert into is not None
    data = [part.pack() if part.direct else _empty(part.nbytes) for part in into]
    yield [s.recv(data[i], i) for i in range(s.size) if i != s.root]
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
    me, mask = (s.rank - s.root) % s.size, 1
    own = mine.pack() if mine is not None else into[s.root].pack() if into is not None else _empty(0)
    have = _empty(each * s.size)
    have[:each] = own
    n = 1
    while mask < s.size:
        if me & mask:
            yield [s.send(have[: n * each], (s.rank - mask) % s.size)]
            return
        more = min(mask, s.size - me - mask)
        if more > 0:
            yield [s.recv(have[mask * each : (mask + more) * each], (s.rank + mask) % s.size)]
            n = mask + more
        mask *= 2
    if into is not None:
        for i in range(s.size):
            if i != s.root or mine is not None:
                at = (i - s.root) % s.size * each
                into[i].unpack(have[at : at + each])


def scatter(s: Step, out: Sequence[Simple] | None, mine: Simple | None, each: int = -1) -> Schedule:
    """From the root: by a binomial tree if short and equal, else directly. `mine` None: the root's stays in place."""
    if 0 <= each <= _SHORT_TREE and s.size > 3:
        yield from _scatter_tree(s, out, mine, each)
        return
    if s.rank == s.root:
        assert out is not None
        yield [s.send(out[i].pack(), i) for i in range(s.size) if i != s.root]
        if mine is not None:
            _copy(out[s.root], mine)
        return
    assert mine is not None
    data = mine.pack() if mine.direct else _empty(mine.nbytes)
    yield [s.recv(data, s.root)]
    if not mine.direct:
        mine.unpack(data)


def _scatter_tree(s: Step, out: Sequence[Simple] | None, mine: Simple | None, each: int) -> Schedule:
    me, mask = (s.rank - s.root) % s.size, 1
    if s.rank == s.root:
        assert out is not None
        have = np.concatenate([out[(s.root + i) % s.size].pack() for i in range(s.size)])
        while mask < s.size:
            mask *= 2
    else:
        while not me & mask:
            mask *= 2
        have = _empty(min(mask, s.size - me) * each)
        yield [s.recv(have, (s.rank - mask) % s.size)]
    mask //= 2
    sends = []
    while mask:
        if me + mask < s.size:
            n = min(mask, s.size - me - mask)
            sends.append(s.send(have[mask * each : (mask + n) * each], (s.rank + mask) % s.size))
        mask //= 2
    if sends:
        yield sends
    if mine is not None:
        mine.unpack(have[:each])


# ---------------------------------------------------------------- allgather, alltoall


def allgather(s: Step, mine: Simple | None, into: Sequence[Simple]) -> Schedule:
    """Bruck's algorithm if short and equal, else a ring."""
    _copy(mine, into[s.rank])
    sizes = {part.nbytes for part in into}
    total = sum(part.nbytes for part in into)
    if len(sizes) == 1 and total <= _SHORT_ALLGATHER:
        each = into[0].nbytes
        have = _empty(total)
        have[:each] = into[s.rank].pack()
        n = 1
        while n < s.size:
            more = min(n, s.size - n)
            yield [
                s.recv(have[n * each : (n + more) * each], (s.rank + n) % s.size),
                s.send(have[: more * each], (s.rank - n) % s.size),
            ]
            n += more
        for i, part in enumerate(into):
            if i != s.rank:
                at = (i - s.rank) % s.size * each
                part.unpack(have[at : at + each])
        return
    data = [part.pack() if part.direct or i == s.rank else _empty(part.nbytes) for i, part in enumerate(into)]
    yield from _ring(s, data, s.rank)
    for i, part in enumerate(into):
        if not part.direct and i != s.rank:
            part.unpack(data[i])


def alltoall(s: Step, out: Sequence[Simple] | None, into: Sequence[Simple], equal: bool = False) -> Schedule:
    """Pairwise exchange; Bruck's algorithm if short, equal and among many. `out` None: what `into` holds is sent."""
    packed = [part.pack() for part in (into if out is None else out)]
    if out is None:
        packed = [data.copy() for data in packed]
    data = [part.pack() if part.direct else _empty(part.nbytes) for part in into]
    if out is not None:
        _copy(out[s.rank], into[s.rank])
    each = packed[0].size
    if equal and each <= _SHORT_ALLTOALL and s.size >= _MANY_ALLTOALL:
        yield from _alltoall_bruck(s, packed, data, each)
    else:
        # All partners at once where they are few; in rounds, a partner each, where that would be many long messages.
        at_once = max(1, min(s.size - 1, (4 << 20) // max(each, 1)))
        for first in range(1, s.size, at_once):
            distances = range(first, min(first + at_once, s.size))
            yield [s.recv(data[(s.rank - d) % s.size], (s.rank - d) % s.size) for d in distances] + [
                s.send(packed[(s.rank + d) % s.size], (s.rank + d) % s.size) for d in distances
            ]
    for i, part in enumerate(into):
        if i != s.rank and not part.direct:
            part.unpack(data[i])


def _alltoall_bruck(s: Step, packed: list[np.ndarray], data: list[np.ndarray], each: int) -> Schedule:
    """In round k, what has to go to a distance with bit k set moves on by 2^k."""
    have = np.stack([packed[(s.rank + d) % s.size] for d in range(s.size)])
    mask = 1
    while mask < s.size:
        moving = [d for d in range(s.size) if d & mask]
        got = np.empty((len(moving), each), np.uint8)
        yield [
            s.recv(got.reshape(-1), (s.rank - mask) % s.size),
            s.send(have[moving].reshape(-1), (s.rank + mask) % s.size),
        ]
        have[moving] = got
        mask *= 2
    for d in range(1, s.size):
        data[(s.rank - d) % s.size][:] = have[d]


# ---------------------------------------------------------------- reductions


Combine = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _combine(op: Op, place: Simple) -> Combine:
    """Combine bytes, the lower ranks' first; of any whole number of elements."""
    datatype = place.datatype
    op.check(datatype)
    size = max(datatype.size, 1)
    return lambda low, high: op.combine(low, high, datatype, low.size // size)


def _reduce_tree(s: Step, mine: np.ndarray, combine: Combine, top: int) -> Schedule:
    """A binomial tree towards rank `top`; in the order of ranks if top is 0."""
    me, mask, have = (s.rank - top) % s.size, 1, mine
    while mask < s.size:
        if me & mask:
            yield [s.send(have, (s.rank - mask) % s.size)]
            return None
        if me + mask < s.size:
            other = _empty(mine.size)
            yield [s.recv(other, (s.rank + mask) % s.size)]
            have = combine(have, other)
        mask *= 2
    return have


def reduce(s: Step, mine: Simple, into: Simple | None, op: Op) -> Schedule:
    """A binomial tree; to rank 0 first, which keeps the order, if the operation does not commute."""
    combine, top = _combine(op, mine), s.root if op.Is_commutative() else 0
    have = yield from _reduce_tree(s, mine.pack(), combine, top)
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
    """Recursive doubling; long and commuting: a ring that reduces and a ring that gathers."""
    combine, data = _combine(op, mine), mine.pack()
    if data.size >= _LONG_ALLREDUCE and s.size > 2 and op.Is_commutative() and mine.count >= s.size:
        result = yield from _allreduce_ring(s, data, combine, mine.datatype.size)
    else:
        result = yield from _allreduce_doubling(s, data, combine)
    into.unpack(result)


def _allreduce_doubling(s: Step, have: np.ndarray, combine: Combine) -> Schedule:
    power = 1 << (s.size.bit_length() - 1)
    rest = s.size - power
    # The first 2*rest ranks pair up, neighbours, so that the order stays; the even one of each pair then rests.
    if s.rank < 2 * rest:
        if s.rank % 2 == 0:
            yield [s.send(have, s.rank + 1)]
            have = _empty(have.size)
            yield [s.recv(have, s.rank + 1)]
            return have
        other = _empty(have.size)
        yield [s.recv(other, s.rank - 1)]
        have = combine(other, have)
    me = s.rank // 2 if s.rank < 2 * rest else s.rank - rest
    mask = 1
    while mask < power:
        partner = me ^ mask
        peer = partner * 2 + 1 if partner < rest else partner + rest
        other = _empty(have.size)
        yield [s.recv(other, peer), s.send(have, peer)]
        have = combine(have, other) if me < partner else combine(other, have)
        mask *= 2
    if s.rank < 2 * rest:
        yield [s.send(have, s.rank - 1)]
    return have


def _allreduce_ring(s: Step, data: np.ndarray, combine: Combine, unit: int) -> Schedule:
    cuts = _cuts(data.size, s.size, unit)
    whole = data.copy()
    part = [whole[cuts[i] : cuts[i + 1]] for i in range(s.size)]
    right, left = (s.rank + 1) % s.size, (s.rank - 1) % s.size
    for k in range(s.size - 1):
        out, into = (s.rank - k) % s.size, (s.rank - k - 1) % s.size
        other = _empty(part[into].size)
        yield [s.recv(other, left), s.send(part[out], right)]
        part[into][:] = combine(other, part[into])
    yield from _ring(s, part, s.rank + 1)
    return whole


def reduce_scatter(s: Step, mine: Sequence[Simple], into: Simple, op: Op) -> Schedule:
    """Each rank gets its part from all, and combines them in the order of ranks."""
    combine = _combine(op, into)
    own = mine[s.rank].pack()
    got = [own if i == s.rank else _empty(own.size) for i in range(s.size)]
    yield [s.recv(got[i], i) for i in range(s.size) if i != s.rank] + [
        s.send(mine[i].pack(), i) for i in range(s.size) if i != s.rank
    ]
    have = got[0]
    for other in got[1:]:
        have = combine(have, other)
    into.unpack(have)


def scan(s: Step, mine: Simple, into: Simple, op: Op, exclusive: bool) -> Schedule:
    """Recursive doubling of prefixes: after round k a rank knows the 2^(k+1) ranks up to itself."""
    combine, have = _combine(op, mine), mine.pack()
    before: np.ndarray | None = None
    distance = 1
    while distance < s.size:
        requests, other = [], None
        if s.rank + distance < s.size:
            requests.append(s.send(have, s.rank + distance))
        if s.rank >= distance:
            other = _empty(have.size)
            requests.append(s.recv(other, s.rank - distance))
        yield requests
        if other is not None:
            before = other if before is None else combine(other, before)
            have = combine(other, have)
        distance *= 2
    if not exclusive:
        into.unpack(have)
    elif before is not None:
        into.unpack(before)


# ---------------------------------------------------------------- of objects


def bcast_object(s: Step, obj: Any) -> Schedule:
    """The length, then the pickle."""
    data = bytearray(objects.dump_plain(obj)) if s.rank == s.root else bytearray(0)
    head = bytearray(struct.pack("<Q", len(data)))
    yield from _bcast_tree(s, head)
    if s.rank != s.root:
        data = bytearray(struct.unpack("<Q", head)[0])
    if data:
        whole = np.frombuffer(data, np.uint8)
        yield from _bcast_long(s, whole) if len(data) >= _LONG_BCAST and s.size > 2 else _bcast_tree(s, whole)
    return obj if s.rank == s.root else objects.load(data)


def gather_object(s: Step, obj: Any) -> Schedule:
    """Directly to the root; a list there, None elsewhere."""
    if s.rank != s.root:
        yield objects.start_plain(s, objects.dump_plain(obj), s.root)
        return None
    found = []
    for i in range(s.size):
        if i == s.rank:
            found.append(objects.load(objects.dump_plain(obj)))
        else:
            found.append(objects.load((yield from objects.receiving_plain(s, i))))
    return found


def scatter_object(s: Step, sendobj: Sequence[Any] | None) -> Schedule:
    """Directly from the root."""
    if s.rank != s.root:
        return objects.load((yield from objects.receiving_plain(s, s.root)))
    items = list(sendobj) if sendobj is not None else [None] * s.size
    if len(items) != s.size:
        raise ValueError(f"expecting {counted(s.size, 'item')}, got {len(items)}")
    sends: list[Request] = []
    for i, item in enumerate(items):
        if i != s.rank:
            sends += objects.start_plain(s, objects.dump_plain(item), i)
    yield sends
    return objects.load(objects.dump_plain(items[s.rank]))


def allgather_object(s: Step, obj: Any) -> Schedule:
    """The lengths by Bruck's algorithm, the pickles round a ring."""
    from viakit._comm.datatype import BYTE

    data = objects.dump_plain(obj)
    lengths = np.zeros(s.size, np.int64)
    raw = lengths.view(np.uint8)
    lengths[s.rank] = len(data)
    yield from allgather(s, None, [Simple(raw, BYTE, 8, 8 * i) for i in range(s.size)])
    part: list[Any] = [data if i == s.rank else bytearray(int(lengths[i])) for i in range(s.size)]
    yield from _ring(s, part, s.rank)
    return [objects.load(one) for one in part]


def alltoall_object(s: Step, sendobj: Sequence[Any]) -> Schedule:
    """Pairwise exchange of lengths and pickles."""
    items = list(sendobj)
    if len(items) != s.size:
        raise ValueError(f"expecting {counted(s.size, 'item')}, got {len(items)}")
    data = [objects.dump_plain(item) for item in items]
    heads = [bytearray(8) for _ in items]
    others = [i for i in range(s.size) if i != s.rank]
    yield [s.recv(heads[i], i) for i in others] + [s.send(struct.pack("<Q", len(data[i])), i) for i in others]
    into: list[Any] = [bytearray(struct.unpack("<Q", head)[0]) for head in heads]
    yield [s.recv(into[i], i) for i in others] + [s.send(data[i], i) for i in others]
    into[s.rank] = data[s.rank]
    return [objects.load(one) for one in into]


def reduce_object(s: Step, obj: Any, op: Callable[[Any, Any], Any]) -> Schedule:
    """A binomial tree to rank 0, in the order of ranks, and from there to the root."""
    have, mask = objects.load(objects.dump_plain(obj)), 1
    while mask < s.size:
        if s.rank & mask:
            yield objects.start_plain(s, objects.dump_plain(have), s.rank - mask)
            break
        if s.rank + mask < s.size:
            other = objects.load((yield from objects.receiving_plain(s, s.rank + mask)))
            have = op(have, other)
        mask *= 2
    if s.root != 0 and s.rank == 0:
        yield objects.start_plain(s, objects.dump_plain(have), s.root)
    elif s.root != 0 and s.rank == s.root:
        have = objects.load((yield from objects.receiving_plain(s, 0)))
    return have if s.rank == s.root else None


def allreduce_object(s: Step, obj: Any, op: Callable[[Any, Any], Any]) -> Schedule:
    """A reduction to rank 0 and a broadcast of the result."""
    have = yield from reduce_object(s, obj, op)
    return (yield from bcast_object(s, have))


def scan_object(s: Step, obj: Any, op: Callable[[Any, Any], Any], exclusive: bool) -> Schedule:
    """Along the chain of ranks."""
    before = None
    if s.rank > 0:
        before = objects.load((yield from objects.receiving_plain(s, s.rank - 1)))
    own = objects.load(objects.dump_plain(obj))
    have = own if s.rank == 0 else op(before, own)
    if s.rank + 1 < s.size:
        yield objects.start_plain(s, objects.dump_plain(have), s.rank + 1)
    return before if exclusive else have
