"""Determination of the rank that failed first: the notes of terminating ranks, and how the launcher evaluates them.

When a rank terminates, ranks that wait for it in a collective fail as well. The launcher may see these ranks end
first, because the first rank still closes its world, or did not get a core. Each rank of ``viakit run`` therefore
sends a note to the launcher before any peer can notice its end (:meth:`viakit.launch.rendezvous.Client.note`). The
note has the time and one of these reasons:

=======  ===========================================================================================================
LEAVES   The program has ended; its exit status is not known yet. It ran to its end, or called sys.exit.
FAILED   The program has ended by an exception of its own, or by Abort.
CAUSED   The program has ended by an exception that reports the loss of another rank, anywhere in the chain of causes.
         Abort in the handler of such an exception counts, too.
=======  ===========================================================================================================

A killed rank sends no note, and neither does a program in C.
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

__all__ = ["CAUSED", "FAILED", "LEAVES", "Ended", "Note", "Notifier", "first_of", "in_doubt"]

LEAVES, FAILED, CAUSED = range(3)


class Note(NamedTuple):
    """Note of a terminating rank: LEAVES, FAILED or CAUSED, and the time on CLOCK_MONOTONIC in ns."""

    why: int
    when_ns: int


class Ended(NamedTuple):
    """Rank that ended with a status other than 0: its number, its status as in ``subprocess``, and its note."""

    rank: int
    status: int
    note: Note


def _order(ended: Ended) -> tuple[int, int]:
    """Return the sort key of a failure.

    A signal from outside the job comes first; a failure caused by a lost rank comes last.
    """
    return (0 if ended.status < 0 else 2 if ended.note.why == CAUSED else 1), ended.note.when_ns


def first_of(failures: Sequence[Ended]) -> Ended:
    """Return the failure that most likely caused the others."""
    return min(failures, key=_order)


def in_doubt(failures: Sequence[Ended], running: Sequence[Note | None]) -> bool:
    """Return whether a rank that still runs may have failed first; `running` holds the notes of these ranks, if any."""
    first = first_of(failures)
    if first.status < 0:
        return False
    if first.note.why == CAUSED and any(note is None or note.why != CAUSED for note in running):
        return True
    return any(note is not None and note.why != CAUSED and note.when_ns < first.note.when_ns for note in running)


# ---- in the rank


class _Sender(Protocol):
    def note(self, why: int, when_ns: int) -> None: ...


class Notifier:
    """Notifies the launcher, once, that this process ends and why: at an uncaught exception, or at exit.

    Parameters
    ----------
    sender : viakit.launch.rendezvous.Client
        Connection to the launcher.
    """

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender
        self._process = os.getpid()
        self._sent = False
        self._hook = sys.excepthook
        sys.excepthook = self._uncaught
        atexit.register(self.notify)

    def notify(self) -> None:
        """Report the end of the program. Call it before the peers can notice the end."""
        problem = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
        self._send(LEAVES if problem is None else _why(problem))

    def notify_abort(self) -> None:
        """Report that this process aborts: a failure of its own, unless an exception about a lost rank is handled."""
        self._send(_why(sys.exc_info()[1]))

    def _uncaught(self, kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        """Send the note before the traceback is written.

        The launcher suppresses the traceback of this rank if that of another rank is to be shown.
        """
        if not hasattr(sys, "ps1"):
            self._send(_why(value))
        self._hook(kind, value, trace)

    def _send(self, why: int) -> None:
        if not self._sent and os.getpid() == self._process:
            self._sent = True
            self._sender.note(why, time.monotonic_ns())


def _why(problem: BaseException | None) -> int:
    """Return CAUSED if the chain of exceptions reports a lost rank, otherwise FAILED."""
    from viakit.launch.rendezvous import RendezvousError  # it imports this module

    seen: set[int] = set()
    link: BaseException | None = problem
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        if isinstance(link, (ConnectionError, RendezvousError)) or getattr(link, "is_of_lost_rank", False):
            return CAUSED
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return FAILED


class _Dismissed(BaseException):
    """The launcher requests that a rank stops waiting for its peers at exit."""


@contextlib.contextmanager
def dismissible(give_up: Callable[[], object]) -> Iterator[None]:
    """At exit: make SIGTERM end the wait in this block, by `give_up`, and not the process.

    The program has ended and has chosen its exit status, which the launcher needs. A SIGTERM handler of the program
    itself is left in place.
    """

    def dismiss(number: int, frame: FrameType | None) -> None:
        del frame
        signal.signal(number, signal.SIG_IGN)
        raise _Dismissed

    of_viakit = False
    try:
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            with contextlib.suppress(ValueError):  # not the main thread
                signal.signal(signal.SIGTERM, dismiss)
                of_viakit = True
        yield
        if of_viakit:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except _Dismissed:
        give_up()
