"""Time of a rank in each state.

A rank is always in one state of :data:`STATES`. :class:`Phases` accumulates the time in each state, and with tracing
records every interval. The communicator of :mod:`viakit.apps.counting` changes the state and counts messages. Time
outside its calls is computation. An application only marks its measured part::

    def parallel(comm, problem, phases=None):
        phases = phases or Phases()
        ...                    # set-up, and a first iteration that is not counted
        comm.Barrier()
        phases.begin()         # clocks and counters restart from zero
        ...
        phases.end()           # gathering data for the verification is not measured

Invariant: the times of the states add up to the wall time of the measured part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple

from viakit import _core
from viakit.apps.profile import Made

__all__ = ["STATES", "Interval", "Message", "Phases"]

STATES = ("compute", "send", "receive", "wait", "barrier", "collective")
COMPUTE, SEND, RECEIVE, WAIT, BARRIER, COLLECTIVE = range(len(STATES))

COMPUTING = "VIAKIT_COMPUTING"  # set by `viakit app --machine`
_thread_clock = time.thread_time_ns
clock_ns = _core.time_ns  # CLOCK_MONOTONIC: one for all processes of a machine, so traces of ranks fit together


class Interval(NamedTuple):
    """Time that a rank spent in one state, in nanoseconds of the machine's monotonic clock."""

    state: int  # index into STATES
    begin_ns: int
    end_ns: int


class Message(NamedTuple):
    """One end of a message: its send, or the end of its receive."""

    peer: int
    tag: int
    nbytes: int
    time_ns: int
    number: int = 0  # how many there were before with this peer and tag: both ends agree on it


class _Mark:
    """State for the duration of a ``with`` block."""

    __slots__ = ("_phases", "_state")

    def __init__(self, phases: Phases, state: int) -> None:
        self._phases, self._state = phases, state

    def __enter__(self) -> None:
        self._phases.enter(self._state)

    def __exit__(self, *_: object) -> None:
        self._phases.leave()


class Phases:
    """States of one rank, the time in each, and its messages. A change of state takes two clock readings.

    Parameters
    ----------
    trace : bool
        Record every interval and both ends of every message.
    profile : bool
        Record every call of the communicator and both ends of every message.
    on_progress : callable, optional
        Called by :meth:`progress` with the completed and the total amount.

    Attributes
    ----------
    messages, nbytes : int
        Messages and bytes that the program sent in the measured part, as counted by
        :class:`viakit.apps.counting.Counting`.
    wall_s, cpu_s : float
        Wall time and CPU time of the measured part, after :meth:`end`. CPU time is that of all threads of the process.
    work_s : float
        CPU time of the calling thread for computation: the work of a rank, however many ranks share its core.
    intervals, sent, received : list
        With `trace`: :class:`Interval` in order; :class:`Message` in the order of sends and of receives.
    made : viakit.apps.profile.Made or None
        With `profile`: the calls in order; `sent` and `received` are recorded, too.
    """

    def __init__(
        self, trace: bool = False, on_progress: Callable[[int, int], None] | None = None, *, profile: bool = False
    ) -> None:
        self.trace = trace or profile
        self._with_intervals, self._profile = trace, profile
        self._on_progress = on_progress
        # On a described machine: its time for the computation of one second of this processor.
        self._factor = float(os.environ.get(COMPUTING, "0")) if _core.time_is_virtual() else 0.0
        self._stack = [COMPUTE]
        self._marks = [_Mark(self, state) for state in range(len(STATES))]
        self._open = True
        self.begin()

    def begin(self) -> None:
        """Start the measured part from zero; another call restarts it."""
        self._ns = [0] * len(STATES)
        self.messages = self.nbytes = 0
        self.intervals: list[Interval] = []
        self.sent: list[Message] = []
        self.received: list[Message] = []
        self.made = Made() if self._profile else None
        self.wall_s = self.cpu_s = 0.0
        self._work_ns = 0
        self._open = True
        self._cpu_ns = time.process_time_ns()
        self._worked = _thread_clock()
        self._began = self._since = self._entered = clock_ns()

    def end(self) -> None:
        """End the measured part; another call has no effect."""
        if not self._open:
            return
        self._switch()
        self._open = False
        self.wall_s = (self._since - self._began) * 1e-9
        self.cpu_s = (time.process_time_ns() - self._cpu_ns) * 1e-9

    # Explicit marks, for what Counting cannot see. They may be nested: the innermost counts.

    def compute(self) -> _Mark:
        """Mark computation within another mark."""
        return self._marks[COMPUTE]

    def send(self) -> _Mark:
        """Mark sending."""
        return self._marks[SEND]

    def receive(self) -> _Mark:
        """Mark receiving."""
        return self._marks[RECEIVE]

    def wait(self) -> _Mark:
        """Mark waiting for operations that were started before."""
        return self._marks[WAIT]

    def barrier(self) -> _Mark:
        """Mark a barrier."""
        return self._marks[BARRIER]

    def collective(self) -> _Mark:
        """Mark another collective operation."""
        return self._marks[COLLECTIVE]

    def enter(self, state: int) -> None:
        """Enter a state (an index into :data:`STATES`) until :meth:`leave`."""
        self._switch()
        self._entered = self._since
        self._stack.append(state)

    def leave(self) -> None:
        """Return to the state before :meth:`enter`."""
        self._switch()
        self._stack.pop()

    def call_made(self, name: str, nbytes: int = 0) -> None:
        """Record a call that :meth:`leave` has just ended, and the bytes that it sent; only with `profile`."""
        if self.made is not None and self._open:
            self.made.add(name, max(self._entered, self._began), self._since, nbytes)

    def _switch(self) -> None:
        worked = _thread_clock()
        if self._factor and self._stack[-1] == COMPUTE:
            _core.virtual_compute((worked - self._worked) * 1e-9 * self._factor)
        now = clock_ns()
        if self._open:
            state = self._stack[-1]
            self._ns[state] += now - self._since
            if state == COMPUTE:
                self._work_ns += worked - self._worked
            if self._with_intervals and now > self._since:
                self.intervals.append(Interval(state, self._since, now))
        self._since, self._worked = now, worked

    @property
    def tracing(self) -> bool:
        """Whether messages are recorded: with `trace` or `profile`, in the measured part."""
        return self.trace and self._open

    def count(self, messages: int, nbytes: int) -> None:
        """Count messages that were sent, and their total bytes."""
        if self._open:
            self.messages += messages
            self.nbytes += nbytes

    def progress(self, done: int, total: int) -> None:
        """Report progress. The call is cheap, and has no effect without `on_progress`."""
        if self._on_progress is not None:
            self._on_progress(done, total)

    @property
    def began_ns(self) -> int:
        """Start of the measured part, in nanoseconds of the machine's monotonic clock."""
        return self._began

    @property
    def seconds(self) -> dict[str, float]:
        """Time in each state, by name."""
        return {name: ns * 1e-9 for name, ns in zip(STATES, self._ns, strict=True)}

    @property
    def work_s(self) -> float:
        """CPU time of this thread for computation."""
        return self._work_ns * 1e-9

    @property
    def communication_s(self) -> float:
        """Time in all states but computation."""
        return sum(self._ns[1:]) * 1e-9
