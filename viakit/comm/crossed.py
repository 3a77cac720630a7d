"""Ranks that wait for each other in collectives of different communicators.

Rank 0 in a barrier of A and rank 1 in a barrier of B wait for ever if each needs the other. Within one communicator the
collectives' numbers show a mismatch (step.py, csrc/coll/wait.c). Between communicators they do not, because a correct
program may be in A on one rank and in B on another. An error therefore needs a proof. It is made of two messages, which
ranks send in COMM_WORLD after they have waited for two seconds::

    rank r, which waits in collective X of A             rank s, which waits in collective Y of B
        WAITS  "I wait in X of A for you"       ->
                                                         s has not begun X of A, and waits for r
        STUCK  "I wait in Y of B for you,       <-
                and have not begun X of A"
    r still waits in X of A for s, and has not begun Y of B: raise the error
        STUCK, with the roles exchanged         ->       s raises the error, too

This is a proof, because s cannot begin X before Y has ended, and Y cannot end before r begins it. In the same way r
cannot begin Y before X has ended, and X cannot end before s begins it. Both ranks check the conditions of each step:

- A rank has one thread, no schedule of a non-blocking operation and no signal handler of the program. So it begins
  nothing while it waits. Threads are those that Python knows.
- "Waits for" means that the other rank must act in this collective: every rank in a barrier, otherwise the sender of
  the message or the writer of the memory for which this rank waits.
- "Has not begun" compares the collective's number with the count of a communicator that this rank knows and has not
  freed. Communicators that share their number with another one, such as intercommunicators, are left out.
- A rank acts on a message only if it still waits for the same rank after several further polls. Everything that the
  sender did before has arrived by then, because messages between two ranks arrive in order.

In a barrier every other rank is awaited. In a communicator of many ranks a rank sends WAITS only to those at distances
1, 2, 4, ... on the circle of the communicator's ranks, because messages to all would connect all pairs of ranks. If the
members of B wait in X or in Y, two of them that are neighbours on this circle wait in different ones.

Not found are circles of three or more ranks in which no two wait for each other, and waits outside of collectives.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from viakit import virtual

CROSSED_TAG = 7  # of the messages, among the control messages of COMM_WORLD
_GROUP_PART = 4  # their context
_WAITS, _STUCK = 1, 2
_POLLS = 3  # calls, with polls between them, for which a message must have been there before it counts
_FEW = 16  # members of a communicator in which a barrier's messages go to all
_FIRST_S = 0.5  # before the second message about one wait; the time doubles from then on


class Place(NamedTuple):
    """A collective of a communicator: the communicator's number, turn and lowest world rank, the collective's number.

    The first three distinguish communicators that exist at the same time or one after the other.
    """

    number: int
    incarnation: int
    lead: int
    collective: int


class _Note:
    """The last message of one rank, and the number of calls that have found its claim possible."""

    def __init__(self, kind: int, theirs: Place, mine: Place | None, text: str) -> None:
        self.kind, self.theirs, self.mine, self.text = kind, theirs, mine, text
        self.polls, self.answered = 0, False


class Crossing:
    """Received messages about waits of other ranks, and the present wait of this one."""

    def __init__(self) -> None:
        self.here: Place | None = None
        self.notes: dict[int, _Note] = {}  # by world rank
        self.next_s, self.gap_s = 0.0, _FIRST_S

    def begin(self, here: Place) -> None:
        """Note that this rank waits in another collective than before."""
        self.here, self.next_s, self.gap_s = here, 0.0, _FIRST_S
        for note in self.notes.values():
            note.polls, note.answered = 0, False


def _only(world: Any, number: int) -> Any:
    """Return the intracommunicator with this number, or None if none or more than one has it."""
    found = [comm for comm in list(world.living.values()) if comm.number == number and not comm._freed]
    if not found or found[0].is_inter or not all(comm.shares(found[0]) for comm in found):
        return None
    return found[0]


def _place(comm: Any, collective: int) -> Place:
    return Place(comm.number, comm.incarnation, min(comm.world_ranks()), collective)


def _not_begun(world: Any, place: Place) -> bool:
    """Return whether this rank is a member of the communicator and certainly has not begun the collective."""
    comm = _only(world, place.number)
    return comm is not None and _place(comm, place.collective) == place and comm._n_collectives < place.collective


def _may_begin_others(world: Any) -> bool:
    """Return whether this process might begin a collective while its main thread waits in one."""
    if threading.active_count() > 1 or len(sys._current_frames()) > 1 or world.n_active or world.schedules:
        return True
    harmless = (None, signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)
    return any(signal.getsignal(number) not in harmless for number in signal.valid_signals())


def find(world: Any, number: int, collective: int, operation: str, awaited: Iterable[int] | None) -> str:
    """Return the reason why a wait in a collective never ends, if an awaited rank waits in another communicator, or "".

    A blocking wait that has lasted long calls this several times a second, each time after another poll of what it
    waits for.

    Parameters
    ----------
    world : World
    number, collective : int
        Number of the communicator, and of the collective in it.
    operation : str
        Name of the collective, for messages.
    awaited : iterable of int or None
        Ranks of the communicator that must act in this collective. None: all other ranks.
    """
    comm, home = _only(world, number), _only(world, 0)
    if comm is None or home is None or home.size != world.size or _may_begin_others(world) or virtual.is_on():
        return ""
    ranks = comm.world_ranks()
    if world.rank not in ranks:
        return ""
    waits_for = {ranks[rank] for rank in (range(len(ranks)) if awaited is None else awaited)} - {world.rank}
    near = waits_for & _near(ranks, world.rank) if awaited is None and len(ranks) > _FEW else waits_for
    here = _place(comm, collective)
    if world.crossing is None:
        world.crossing = Crossing()
    crossing: Crossing = world.crossing
    if crossing.here != here:
        crossing.begin(here)
    text = f"{operation} of {comm.name or 'a communicator without a name'}"
    with contextlib.suppress(RuntimeError):  # a rank that has failed: the caller's own check finds it
        _receive(home, crossing)
        proven = {rank: crossing.notes.pop(rank) for rank in _proven(world, home, crossing, here, waits_for, text)}
        for rank, note in proven.items():
            _send(home, rank, _STUCK, here, text, note.theirs)
        if proven:
            rank = min(proven)
            return (
                f"this rank waits in {text} for rank {rank} of the job, which waits in {proven[rank].text} for this "
                "rank; all ranks must call the collectives of both communicators in the same order"
            )
        _send_waits(home, crossing, here, near, text)
    return ""


def _near(ranks: Sequence[int], rank: int) -> set[int]:
    """Return the members of *ranks* at distances 1, 2, 4, ... from *rank*, in both directions on the circle."""
    place, n = ranks.index(rank), len(ranks)
    return {ranks[(place + step) % n] for k in range(n.bit_length()) for step in (1 << k, -1 << k)}


def _proven(world: Any, home: Any, crossing: Crossing, here: Place, waits_for: set[int], text: str) -> list[int]:
    """Return the ranks whose messages complete the proof. Reply to messages that may lead to one."""
    proven = []
    for rank in sorted(crossing.notes):
        note = crossing.notes[rank]
        if rank not in waits_for:
            note.polls, note.answered = 0, False
            continue
        if note.theirs[:3] == here[:3] or not _not_begun(world, note.theirs):
            del crossing.notes[rank]
            continue
        note.polls += 1
        if note.polls < _POLLS:
            continue
        if note.kind == _STUCK and note.mine == here:
            proven.append(rank)
        elif not note.answered:
            note.answered = True
            _send(home, rank, _STUCK, here, text, note.theirs)
    return proven


def _send_waits(home: Any, crossing: Crossing, here: Place, ranks: set[int], text: str) -> None:
    """Send this rank's wait to *ranks*: at once, and again after times that double."""
    now = time.monotonic()
    if now >= crossing.next_s:
        crossing.next_s, crossing.gap_s = now + crossing.gap_s, 2 * crossing.gap_s
        for rank in ranks:
            _send(home, rank, _WAITS, here, text, None)


def _send(home: Any, rank: int, kind: int, here: Place, text: str, theirs: Place | None) -> None:
    """Send a message of this module. It is a notice (struct coll_word) whose fields hold the sender's place."""
    numbers = " ".join(f"{number:x}" for number in (here.incarnation, *(theirs or ())))
    reason = f"{numbers}:".encode() + text.encode("utf-8", "replace")
    word = home.notice(kind, here.collective, here.number, here.lead, reason[:95])
    home.start_send(word, rank, CROSSED_TAG, 0, _GROUP_PART).release()


def _receive(home: Any, crossing: Crossing) -> None:
    """Receive all messages of this module. The last one of a rank counts, unless one answers the present wait.

    The sender of an answer may have raised its error since then, and wait in another collective.
    """
    while notice := home.take_notice(CROSSED_TAG):
        source, kind, collective, number, lead, reason = notice
        head, _, text = reason.partition(b":")
        incarnation, *words = (int(word, 16) for word in head.split())
        theirs, mine = Place(number, incarnation, lead, collective), Place(*words) if kind == _STUCK else None
        before = crossing.notes.get(source)
        if before and before.theirs == theirs and (kind == _WAITS or before.mine == mine):
            continue  # nothing new about this wait
        if before and before.kind == _STUCK and before.mine == crossing.here:
            continue
        crossing.notes[source] = _Note(kind, theirs, mine, text.decode("utf-8", "replace"))
