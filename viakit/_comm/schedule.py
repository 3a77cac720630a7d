"""Schedules: operations of several messages, one after the other.

A schedule is a generator that yields lists of requests to be waited for, and returns the operation's result. A
blocking call drives it to its end (`run`); a non-blocking one hands out a ScheduleRequest, which goes on whenever
anything is tested or waited for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from viakit import _core
from viakit._comm.errors import error
from viakit._comm.request import Request
from viakit._comm.status import Status
from viakit._limits import seconds

Schedule = Generator[Sequence[Request], None, Any]
if TYPE_CHECKING:
    from types import GeneratorType

    Running = GeneratorType[
        Sequence[Request], None, Any
    ]  # what a schedule is: Generator does not say that it has a frame

_LOOK_S = 0.05  # how often a schedule that waits looks for ranks that have died or do something else


class ScheduleRequest(Request):
    """A request that is a schedule: it goes on while this, or anything else, is tested or waited for."""

    def __new__(cls, *args: Any) -> ScheduleRequest:
        return super().__new__(cls)

    def __init__(self, comm: Any, schedule: Schedule, step: Any = None) -> None:
        self._schedule: Running | None = cast("Running", schedule)
        self._pending: list[Request] = []
        self._problem: BaseException | None = None
        self._complete = False
        self._taken = False
        self._first: Request | None = None  # the receive that begins it: while that has not ended, it can be cancelled
        self._of = step  # the collective that it is, if it is one
        self._looked = time.monotonic()
        self._source: Status = Status()
        self._on = comm
        self.world = comm.world
        self._step()
        if not self._complete:
            self.world.schedules[self] = comm
            self.world.n_active = len(self.world.schedules)

    @property
    def ended(self) -> bool:
        """Complete, and taken note of."""
        return self._taken

    def _enter(self) -> Running | None:
        """The schedule, which the caller gives back; None: it has ended, or another thread or a caller of ours has it.

        Who has it is the only one to touch the pending requests: the engine frees a request when its end is noticed,
        under the feet of anybody else who waits for it.
        """
        schedule, self._schedule = self._schedule, None  # nothing is called between the two: no other thread runs
        if self._complete:
            self._schedule = schedule
            return None
        return schedule

    def _step(self) -> None:
        """Go on as far as possible without waiting."""
        schedule = self._enter()
        if schedule is None:
            return
        try:
            while True:
                self._pending = [request for request in self._pending if not _ended(request)]
                if self._pending:
                    if self._of is not None and time.monotonic() - self._looked > _LOOK_S:
                        self._looked = time.monotonic()
                        self._of.check()
                    return
                if self._of is not None:
                    self._of.receives.clear()
                self._pending = list(next(schedule))
        except StopIteration as stop:
            self.result = stop.value
            self._finish()
        except Exception as problem:
            self._problem = problem
            self._finish()
        except BaseException as problem:
            if schedule.gi_frame is None:  # Ctrl-C came within it: it has ended without a result
                self._problem = error("ERR_OTHER", f"this operation was ended by {type(problem).__name__}")
                self._finish()
            raise
        finally:
            self._schedule = schedule

    def _finish(self) -> None:
        self._complete = True
        self._pending = []
        self.world.schedules.pop(self, None)
        self.world.n_active = len(self.world.schedules)
        if self._problem is not None and self._of is not None:
            self._of.give_up()
        self._on._let_go()

    def abandon(self) -> None:
        """End it without a result: who waited for it was interrupted, and nobody else has its handle."""
        while not self._complete:
            schedule = self._enter()
            if schedule is None:  # another thread has it, for a moment
                time.sleep(0.001)
                continue
            schedule.close()
            self._problem = error("ERR_OTHER", "this operation was abandoned")
            self._finish()
            self._schedule = schedule

    def progress(self) -> None:
        """Make progress."""
        self.world.progress()
        self._step()

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Whether it is complete."""
        if self._complete and status is not None:
            self.fill(status)
        return self._complete

    def test_once(self) -> bool:
        """Make progress; True if it is complete."""
        if not self._complete:
            self.world.progress()
            self.world.step()
            self._step()
        if not self._complete:
            return False
        self._take()
        return True

    def _take(self) -> None:
        self._taken = True
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait, at most `timeout_s` seconds (None: as long as it takes)."""
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while not self._complete:
            self.world.step()
            self._step()
            if self._complete:
                break
            # if nothing else wants to go on meanwhile, the engine may wait as it likes
            if len(self.world.schedules) > 1 or not self._wait_alone():
                self.world.idle(0.001)
            if time.monotonic() > deadline and not self._complete:
                return False
        self._take()
        return True

    def _wait_alone(self) -> bool:
        """Wait a while for the next message; False: there is none to wait for, or another thread does."""
        schedule = self._enter()
        if schedule is None:
            return False
        try:
            if not self._pending:
                return False
            self.world.n_active = 0
            self._pending[0].wait_for(_LOOK_S)
        except RuntimeError as problem:
            self._problem = problem
            self._finish()
        finally:
            self._schedule = schedule
            self.world.n_active = len(self.world.schedules)
        return True

    def fill(self, status: _core.MsgStatus) -> None:
        """What is known of the message that it received."""
        for name in ("source", "tag", "error", "nbytes", "was_cancelled"):
            setattr(status, name, getattr(self._source, name))

    def withdraw(self) -> None:
        """Cancel, if it receives and has not got beyond its first message."""
        if self._first is not None:
            self._first.withdraw()

    def release(self) -> None:
        """Forget it; it goes on while others wait."""
        self._taken = True


def _ended(request: Request) -> bool:
    return request.ended or request.test_once()


def run(comm: Any, schedule: Schedule, step: Any) -> Any:
    """Drive a collective's schedule to its end and return its result."""
    world = comm.world
    if world.n_active:
        whole = ScheduleRequest(comm, schedule, step)
        try:
            whole.wait_for()
        except BaseException:
            whole.abandon()
            raise
        return whole.result
    try:
        while True:
            step.receives.clear()
            for request in next(schedule):
                while not request.ended and not request.wait_for(_LOOK_S):
                    step.check()
    except StopIteration as stop:
        return stop.value
    except BaseException:
        step.give_up()
        raise
