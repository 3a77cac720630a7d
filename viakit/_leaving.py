"""Who failed first: what a rank of ``viakit run`` says before it goes, and what the launcher makes of it.

A rank that goes makes the others fail, which wait for it in a collective; and it may be seen to end after them, for it
closes its world, or the launcher gets no core meanwhile. So each rank says on its way out, before anybody can notice
(:meth:`viakit._rendezvous.Client.note`), when it was and why:

=======  ===========================================================================================================
LEAVES   its program is over, with which exit status nobody knows yet: it ran to its end, or called sys.exit
FAILED   by an exception of its own
CAUSED   by an exception that says that another rank has gone, be it the last of a chain of exceptions or not
=======  ===========================================================================================================

A rank that is killed says nothing; neither does a program in C.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType, TracebackType
from typing import NamedTuple, Protocol

__all__ = ["CAUSED", "FAILED", "LEAVES", "Ended", "Note", "Teller", "first_of", "in_doubt"]

LEAVES, FAILED, CAUSED = range(3)


class Note(NamedTuple):
    """What a rank says on its way out: one of LEAVES, FAILED and CAUSED, and the time, CLOCK_MONOTONIC in ns."""

    why: int
    when_ns: int


class Ended(NamedTuple):
    """A rank that has ended otherwise than with 0: its number, its status as of ``subprocess``, and its note."""

    rank: int
    status: int
    note: Note


def _order(ended: Ended) -> tuple[int, int]:
    """A signal that nobody of this job has sent has no cause among the ranks; who was made to fail comes last."""
    return (0 if ended.status < 0 else 2 if ended.note.why == CAUSED else 1), ended.note.when_ns


def first_of(failures: Sequence[Ended]) -> Ended:
    """The failure that the others follow from, as far as is known."""
    return min(failures, key=_order)


def in_doubt(failures: Sequence[Ended], running: Sequence[Note | None]) -> bool:
    """Whether one of the ranks that still run may have been first; `running` holds their notes, if any."""
    first = first_of(failures)
    if first.status < 0:
        return False
    if first.note.why == CAUSED and any(note is None or note.why != CAUSED for note in running):
        return True
    return any(note is not None and note.why != CAUSED and note.when_ns < first.note.when_ns for note in running)


# ---- in the rank


class _Sender(Protocol):
    def note(self, why: int, when_ns: int) -> None: ...


class Teller:
    """Tells the launcher, once, that this process goes, and why: at an exception that nobody catches, and at its end.

    Parameters
    ----------
    sender : viakit._rendezvous.Client
        The connection to the launcher.
    """

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._process = os.getpid()
        self._said = False
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self.tell)

    def tell(self) -> None:
        """Say that the program is over; at the latest now: before the others can notice."""
        problem = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._say(LEAVES if problem is None else _why(problem))

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Before the traceback is written: the launcher keeps it back where another rank's is the one to be shown."""
        if not hasattr(sys, "ps1"):
            self._say(_why(value))
        self._hook(kind, value, trace)

    def _say(self, why: int) -> None:
        if not self._said and os.getpid() == self._process:
            self._said = True
            self._sender.note(why, time.monotonic_ns())


def _why(problem: BaseException) -> int:
    """FAILED, or CAUSED: whether a lost rank is among the exceptions that led to this one."""
    from viakit._rendezvous import RendezvousError

    seen: set[int] = set()
    link: BaseException | None = problem
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, (ConnectionError, RendezvousError)) or getattr(link, "is_of_lost_rank", False):
            return CAUSED
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return FAILED


class _Dismissed(BaseException):
    """The launcher wants a rank that waits for the others at its end to go."""


@contextlib.contextmanager
def dismissible(give_up: Callable[[], object]) -> Iterator[None]:
    """At a program's end: SIGTERM ends only what is waited for in this block, by `give_up`, and not the process.

    The program is over, and its exit status the one that it has chosen: that is what the launcher asks for. A handler
    of the program's own stays.
    """

    def dismiss(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)
        raise _Dismissed

    ours = False
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, dismiss)
                ours = True
        yield
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Dismissed:
        give_up()
