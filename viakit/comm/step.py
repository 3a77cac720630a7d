"""Collectives by messages: numbers, checks while a rank waits, and giving up.

Tags. Every message of a collective carries a tag made of the collective's number in its communicator, its kind and its
root.

Checks. A waiting rank polls 20 times a second for these conditions and raises an error if it finds one:

- a message or a note shows that another rank is in a different collective under the same number,
- after two seconds: a rank that it waits for waits for it in another communicator (crossed.py),
- a member has died or has given up.

Giving up. A rank gives up a collective after an error or an interrupt, or if it refuses its arguments. The rank then

- counts the collective,
- withdraws its receives, so that they match no message of a later collective,
- sends a notice to all other ranks. Ranks that wait in the collective give it up as well.

The notice (struct coll_word in csrc/coll/coll.h) contains the first rank that gave up and its reason. Its tag contains
the collective's number, so a rank in an earlier collective finds the notice later, here or in csrc/coll. Messages sent
to a rank that gave up are discarded. Ranks that continue agree on the number of the next collective.
"""

from __future__ import annotations

import contextlib
import operator
import struct
import time
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

from viakit import _core
from viakit.base.words import counted
from viakit.comm import crossed
from viakit.comm.errors import error
from viakit.comm.op import NAMED, Op
from viakit.comm.request import LET_FINISH_S, Request
from viakit.comm.seal import SealGroup
from viakit.comm.status import Status

KINDS = (
    "barrier bcast gather gatherv scatter scatterv allgather allgatherv alltoall alltoallv alltoallw reduce allreduce "
    "reduce_scatter_block reduce_scatter scan exscan bcast(object) gather(object) scatter(object) allgather(object) "
    "alltoall(object) reduce(object) allreduce(object) scan(object) exscan(object) neighbor"
).split()
_NUMBER_OF = {kind: number for number, kind in enumerate(KINDS)}
_PART, _SUBSET_PART = 1, 3  # contexts: collectives; operations that create a communicator of some ranks
_GROUP_PART = 4  # context of control messages, which csrc/coll reads, too
_FIRST_NOTE = 5  # checks before a waiting rank sends its first note: a quarter of a second
_FIRST_CROSSED = 40  # checks before a waiting rank compares its wait with those in other communicators: two seconds
_SUBSET_GIVE_UP_TAG = 6  # a member gave up a Create_group
_SUBSET_STRIDE, _TAG_MOST = 0x4F1BBCDD, 2**31 - 1  # the stride is odd, so every tag is used once before one recurs
_GAVE_UP = "of this communicator has given up this collective, by an error or an interrupt of its own"
_KEPT = 1024  # collectives after which notices of one that was given up are discarded; a power of two
_NUMBER = 0xFFFF  # bits of a collective's number that are in its tag


class Step:
    """One collective operation of one communicator. Its messages have a tag of their own."""

    def __init__(self, comm: Any, kind: str, root: int = 0) -> None:
        if comm._freed:
            raise error("ERR_COMM", f"{kind}: this communicator has been freed")
        comm.world.require()
        comm.refuse_revoked(kind)
        comm._n_collectives = number = comm._n_collectives + 1
        try:
            root = operator.index(root)
            if not 0 <= root < comm.size:
                raise error("ERR_ROOT", f"root {root}: this communicator has ranks 0 to {comm.size - 1}")
        except BaseException as problem:
            give_up(comm, number, problem)
            raise
        self._place(comm, kind, root, number)
        if comm._given_up or not number % _KEPT:
            sweep(comm, number)

    @classmethod
    def resume(cls, comm: Any, kind: int, root: int, number: int, messages: Iterable[Request]) -> Step:
        """Return the step of a collective on a short path (_core/rooted.pxi), whose messages are under way."""
        step = cls.__new__(cls)
        step._place(comm, KINDS[kind], root, number)
        step.receives = [message for message in messages if message.collective is not None]
        step.blocking = True
        return step

    def _place(self, comm: Any, kind: str, root: int, number: int) -> None:
        self.comm, self.kind, self.root, self.number = comm, kind, root, number
        self.rank, self.size = comm.rank, comm.size
        self.tag = (number & _NUMBER) << 14 | _NUMBER_OF[kind] << 8 | root & 0xFF
        self.receives: list[Request] = []  # of the current round
        self._checks, self._note_at = 0, _FIRST_NOTE
        self.blocking = False  # whether this rank does nothing else until the collective has ended
        self._ahead: list[Request] = []  # receives from ranks that were in a later collective at the last check

    def seal_group(self) -> SealGroup:
        """Return the ranks that take part, as the tags of objects name them."""
        return self.comm.seal_group()

    def send(self, data: Any, dest: int) -> Request:
        """Start to send bytes to rank *dest*."""
        return self.comm.start_send(data, dest, self.tag, 0, _PART)

    def recv(self, data: Any, source: int) -> Request:
        """Start to receive exactly `len(data)` bytes from rank *source*."""
        request = self.comm.start_recv(data, source, self.tag, _PART)
        request.awaited, request.exact, request.collective = source, len(data), self.kind
        self.receives.append(request)
        return request

    def give_up(self, problem: BaseException | None = None) -> None:
        """Withdraw the receives and notify the other ranks, after an error or an interrupt."""
        give_up(self.comm, self.number, problem, self.tag)
        self._withdraw()

    def _withdraw(self) -> None:
        deadline = time.monotonic() + LET_FINISH_S
        receives, self.receives = self.receives, []
        for receive in receives:
            with contextlib.suppress(RuntimeError):  # the program gets the error that caused the withdrawal
                if not receive.ended:
                    receive.withdraw()
                    receive.wait_for(max(deadline - time.monotonic(), 0.0))

    def check(self) -> None:
        """Raise an error if this collective may never end.

        The reasons: a dead rank, a notice, a mismatched collective, or that the communicator is revoked. The last comes
        first, because ranks that give up after a revocation send notices.
        """
        try:
            self._find_trouble()
        finally:
            self.comm.refuse_revoked(self.kind)

    def _find_trouble(self) -> None:
        comm = self.comm
        self._check_alive(range(self.size))
        self._read_notices()
        self._read_notes()
        self._send_notes()
        status = Status()
        if comm.probe_other_tag(_PART, _NUMBER << 14, self.tag, status):
            raise self._mismatch(status.source, status.tag)
        rank = comm.find_completed(self.number)
        if rank >= 0:
            raise _aborted(self.kind, rank, rank, str(COMPLETED))
        self._find_crossed()

    def _find_crossed(self) -> None:
        """Raise an error if an awaited rank waits for this one in another communicator. A barrier awaits all ranks."""
        if not self.blocking or self._checks < _FIRST_CROSSED:
            return
        awaited = {r.awaited for r in self.receives if not r.ended and not r.peek()}
        text = self.kind if self.kind == "barrier" else _described(self.tag)
        everyone = None if self.kind == "barrier" else awaited
        problem = find_crossed(self.comm.world, self.comm.number, self.number, text, everyone)
        if problem is not None:
            raise problem

    def set_pending(self, pending: bool) -> None:
        """Count this collective among those under way, or not any more. Notes contain the oldest one."""
        self.comm.set_pending(self.number, pending)

    def combines(self, op: Op) -> None:
        """Put the number of the operation into the messages' tag, in place of the root. This kind has no root."""
        self.tag |= OP_NUMBERS.get(op.name, 0)

    def _mismatch(self, source: int, tag: int) -> Exception:
        mine, theirs = _described(self.tag), _described(tag)
        return mismatched(f"this rank is in {mine}, rank {source} is in {theirs}")

    def _read_notices(self) -> None:
        """Raise an error if a rank has given up this collective."""
        while notice := self.comm.take_notice(_give_up_tag(self.number)):
            source, code, number, origin, tag, reason = notice
            if number != self.number:
                continue
            if tag not in (self.tag, -1):
                raise self._mismatch(source, tag)
            if code == _core.ERR_COLLECTIVE:
                raise mismatched(f"rank {origin} reports{': ' if reason else ' that'}{_text(reason)}")
            raise _aborted(self.kind, source, origin, _text(reason))

    def _check_alive(self, members: Sequence[int]) -> None:
        ranks = self.comm.world_ranks()
        dead = set(self.comm.world.failures()).intersection(ranks[i] for i in members)
        if dead:
            names = ", ".join(str(ranks.index(rank)) for rank in sorted(dead))
            raise error("ERR_PROC_FAILED", f"{self.kind}: rank {names} of this communicator has died")

    def _read_notes(self) -> None:
        """Receive the notes of waiting ranks. Raise an error if one of them is in another collective."""
        ahead = list[Request]()
        while note := self.comm.take_note():
            source, number, operation, root, oldest = note
            if number == self.number and operation:
                self.comm._mismatched(source)
                raise mismatched(
                    f"this rank is in {_described(self.tag)}, rank {source} is in {operation} with root {root}"
                )
            if number == self.number and root != self.tag:
                raise self._mismatch(source, root)
            if number < self.number:  # the sender waits in a collective that this rank has finished
                self._send_note(source)
            elif number > self.number and not 0 < oldest <= self.number:
                # The sender has finished this collective, so all its messages for it arrived before the note. A sender
                # with earlier collectives pending (Iallreduce, then Barrier before Wait) may still have this one to do.
                ahead += [r for r in self.receives if not r.ended and r.awaited == source]
        for receive in self._ahead:
            if not receive.ended and not receive.peek():
                raise mismatched(
                    f"this rank waits in {_described(self.tag)} for rank {receive.awaited}, which is in a later one"
                )
        self._ahead = ahead

    def _send_note(self, dest: int) -> None:
        """Send rank *dest* a note of this collective."""
        note = self.comm.note(self.number, self.tag)
        self.comm.start_send(note, dest, _core.NOTE_TAG, 0, _GROUP_PART).release()

    def _send_notes(self) -> None:
        """Send notes to the ranks that this one waits for: the first soon, each next after twice the time."""
        self._checks += 1
        if self._checks >= self._note_at:
            self._note_at *= 2
            for source in {r.awaited for r in self.receives if not r.ended}:
                self._send_note(source)


def wrong_length(kind: str, source: int, got: int, wanted: int) -> Exception:
    """Return the error for a message of a collective that has another length than its receiver expects."""
    return error(
        "ERR_TRUNCATE",
        f"{kind}: rank {source} sent {counted(got, 'byte')} where {wanted} were expected: counts or datatypes differ",
    )


COMPLETED = RuntimeError(
    "it did this one through memory, before it learned that the communicator's memory is no longer used"
)


class _Origin:
    """Cause that an exception of a collective carries: the first rank that gave up (None: this rank) and its reason."""

    def __init__(self, rank: int | None, reason: str, code: int = _core.ERR_LEFT) -> None:
        self.rank, self.reason, self.code = rank, reason, code


def mismatched(text: str) -> Exception:
    """Return the error for ranks that are in different collectives."""
    problem = error("ERR_OTHER", f"mismatched collectives: {text}")
    problem.origin = _Origin(None, text, _core.ERR_COLLECTIVE)  # type: ignore[attr-defined]
    return problem


def find_crossed(
    world: Any, number: int, collective: int, operation: str, awaited: Iterable[int] | None
) -> Exception | None:
    """Return the error for ranks that wait for each other in different communicators (see crossed.py), or None."""
    reason = crossed.find(world, number, collective, operation, awaited)
    return mismatched(reason) if reason else None


def _aborted(kind: str, source: int, origin: int, reason: str) -> Exception:
    """Return the error of a rank that waits for one that gave up."""
    by = f" (rank {source} passes it on)" if source != origin else ""
    problem = error("ERR_PROC_ABORTED", f"{kind}: rank {origin} {_GAVE_UP}{': ' if reason else ''}{reason}{by}")
    problem.origin = _Origin(origin, reason)  # type: ignore[attr-defined]
    return problem


def aborted(kind: str, origin: int, reason: bytes) -> Exception:
    """Return the error of a rank that waits in csrc/coll for one that gave up."""
    return _aborted(kind, origin, origin, _text(reason))


def _text(reason: bytes) -> str:
    return reason.decode("utf-8", "replace")


def reason_of(comm: Any, problem: BaseException | None) -> tuple[int, bytes]:
    """Return the first rank that gave up and its reason, as a notice carries them."""
    origin = getattr(problem, "origin", None)
    if isinstance(origin, _Origin):
        return comm.rank if origin.rank is None else origin.rank, origin.reason.encode()[:95]
    if problem is None:
        return comm.rank, b""
    return comm.rank, f"{type(problem).__name__}: {problem}".encode("utf-8", "replace")[:95]


def _give_up_tag(number: int) -> int:
    return _core.GIVE_UP_TAG | number & _core.GIVE_UP_NUMBERS


_WITH_OP = ("allreduce", "reduce_scatter_block", "reduce_scatter", "scan", "exscan")
OP_NUMBERS = {op.name: number for number, op in enumerate(NAMED.values(), 1)}
_OP_NAMES = {number: name for name, number in OP_NUMBERS.items()}


def _described(tag: int) -> str:
    """Return the collective that a message tag describes, as text."""
    kind, root = KINDS[tag >> 8 & 0x3F], tag & 0xFF
    if kind in _WITH_OP:
        return f"{kind} of {_OP_NAMES.get(root, 'an operation of its own')}"
    return f"{kind} with root {root}"


def give_up(comm: Any, number: int, problem: BaseException | None = None, tag: int = -1) -> None:
    """Give up a collective: notify the other ranks, and note that its messages have to be discarded."""
    if number not in comm._given_up:
        comm._given_up.append(number)
        code = getattr(getattr(problem, "origin", None), "code", _core.ERR_LEFT)
        notify(comm, _give_up_tag(number), code, number, problem, tag)


def leave_group(comm: Any, number: int, problem: BaseException | None) -> None:
    """Notify the other ranks that this one does not use the group of csrc/coll from collective *number* on."""
    notify(comm, _core.ABORT_TAG, _core.ERR_LEFT, number, problem)


def notify(
    comm: Any,
    where: int,
    code: int,
    number: int,
    problem: BaseException | None,
    tag: int = -1,
    members: Iterable[int] | None = None,
) -> None:
    """Send a notice under the tag *where* to all other members (None: all ranks) that are alive."""
    origin, reason = reason_of(comm, problem)
    with contextlib.suppress(RuntimeError):
        word, dead = comm.notice(code, number, origin, tag, reason), set(comm.world.failures())
        places = comm.world_ranks()
        for rank in range(comm.size) if members is None else members:
            if rank != comm.rank and places[rank] not in dead:
                with contextlib.suppress(RuntimeError):
                    comm.start_send(word, rank, where, 0, _GROUP_PART).release()


def sweep(comm: Any, number: int) -> None:
    """Discard remains of collectives that were given up, long before their numbers in tags recur."""
    if not number % _KEPT and number >= 2 * _KEPT:
        block = _core.GIVE_UP_NUMBERS & -_KEPT
        comm.discard(_GROUP_PART, _core.GIVE_UP_TAG | block, _core.GIVE_UP_TAG | number - 2 * _KEPT & block)
    for old in [old for old in comm._given_up if old + _KEPT < number]:
        comm.discard(_PART, _NUMBER << 14, (old & _NUMBER) << 14)
        comm._given_up.remove(old)


class SubsetCounts:
    """Record of a communicator's Create_group calls."""

    def __init__(self) -> None:
        self.numbers: dict[tuple[int, int], int] = {}  # of calls with these members and this tag
        self.given_up: dict[int, tuple[int, int, bytes]] = {}  # by the messages' tag: rank, first rank, its reason
        self.left: list[int] = []  # tags of operations that this rank gave up; their messages may still arrive

    def begin(self, key: tuple[int, int]) -> int:
        """Return the number of the next operation. All members call this, so their counts agree."""
        number = self.numbers[key] = self.numbers.get(key, 0) + 1
        return number


class SubsetStep(Step):
    """One Create_group: an operation of some ranks of a communicator, under a tag that the program gives.

    The other ranks do not take part, so the members use a count of their own instead of the communicator's. A message
    of an operation that was given up must not reach a later one with the same tag. So the messages' tag is made of the
    program's tag, the members and the number.
    """

    def __init__(self, comm: Any, members: Sequence[int], tag: int) -> None:
        if comm._freed:
            raise error("ERR_COMM", "create_group: this communicator has been freed")
        comm.world.require()
        if not 0 <= tag <= _TAG_MOST:
            raise error("ERR_TAG", f"create_group: tag {tag}; expected 0 to {_TAG_MOST}")
        self.comm, self.kind, self.root, self.members = comm, "create_group", 0, members
        key = (zlib.crc32(struct.pack(f"<{len(members)}I", *members)), tag)
        self.number = comm._subset_counts.begin(key)
        self.tag = (tag + key[0] + self.number * _SUBSET_STRIDE) & _TAG_MOST
        self.receives = []
        self.rank, self.size = members.index(comm.rank), len(members)
        self._over = False
        for old in comm._subset_counts.left:
            comm.discard(_SUBSET_PART, _TAG_MOST, old)

    def seal_group(self) -> SealGroup:
        """Return the members, as the tags of objects name them."""
        ranks = self.comm.world_ranks()
        return SealGroup([ranks[member] for member in self.members])

    def send(self, data: Any, dest: int) -> Request:
        """Start to send bytes to member *dest*."""
        return self.comm.start_send(data, self.members[dest], self.tag, 0, _SUBSET_PART)

    def recv(self, data: Any, source: int) -> Request:
        """Start to receive exactly `len(data)` bytes from member *source*."""
        request = self.comm.start_recv(data, self.members[source], self.tag, _SUBSET_PART)
        request.awaited, request.exact, request.collective = self.members[source], len(data), self.kind
        self.receives.append(request)
        return request

    def set_pending(self, pending: bool) -> None:
        """Do nothing: the number is not one of the communicator's collectives."""

    def give_up(self, problem: BaseException | None = None) -> None:
        """Withdraw the receives and notify the other members. A second call does nothing."""
        if self._over:
            return
        self._over = True
        counts = self.comm._subset_counts
        counts.left = [*counts.left[-_KEPT:], self.tag]
        notify(self.comm, _SUBSET_GIVE_UP_TAG, _core.ERR_LEFT, self.number, problem, self.tag, self.members)
        self._withdraw()

    def check(self) -> None:
        """Raise an error if a member has died or has given up this operation."""
        self._check_alive(self.members)
        given_up = self.comm._subset_counts.given_up
        while notice := self.comm.take_notice(_SUBSET_GIVE_UP_TAG):
            source, _, _, origin, tag, reason = notice
            given_up[tag] = source, origin, reason
            if len(given_up) > _KEPT:
                del given_up[next(iter(given_up))]
        if self.tag in given_up:
            source, origin, reason = given_up[self.tag]
            raise _aborted(self.kind, source, origin, _text(reason))
