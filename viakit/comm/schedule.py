"""Schedules: operations of several messages, one after the other.

A schedule is a generator. It yields lists of requests that must complete before it continues, and returns the
operation's result. A blocking call drives the schedule to its end (`run`). A non-blocking call returns a
ScheduleRequest, which makes progress whenever a request of the world is tested or waited for.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, cast

from viakit import _core
from viakit.base.limits import seconds
from viakit.comm.errors import error
from viakit.comm.request import Request
from viakit.comm.status import Status

Schedule = Generator[Sequence[Request], None, Any]
if TYPE_CHECKING:
    from types import GeneratorType

    Running = GeneratorType[Sequence[Request], None, Any]  # the type of a schedule; Generator does not declare gi_frame

_LOOK_S = 0.05  # interval at which a waiting schedule checks for dead ranks and mismatched collectives


class ScheduleRequest(Request):
    """Request of a schedule. It makes progress whenever this or another request is tested or waited for."""

    def __new__(cls, *args: Any) -> ScheduleRequest:
        """Make a request without arguments of its base class."""
        return super().__new__(cls)

    def __init__(self, comm: Any, schedule: Schedule, step: Any = None) -> None:
        self._schedule: Running | None = cast("Running", schedule)
        self._pending: list[Request] = []
        self._problem: BaseException | None = None
        self._complete = False
        self._taken = False
        self._first: Request | None = None  # first receive; the schedule can be cancelled until it completes
        self._of = step  # the collective of this schedule, or None
        self._looked = time.monotonic()
        self._source: Status = Status()
        self._on = comm
        self.world = comm.world
        try:
            self._step()
        except BaseException:  # After an interrupt no caller gets this request.
            self.abandon()
            raise
        if not self._complete:
            self.world.schedules[self] = comm
            self._set_pending(True)
            self.world.count_active()

    @property
    def ended(self) -> bool:
        """Whether the schedule is complete and the program has been notified."""
        return self._taken

    def _enter(self) -> Running | None:
        """Take the schedule; the caller puts it back. Return None if it is complete or in use.

        Another thread or a caller of this function may be using it. Only the user may touch the pending requests: the
        engine frees a request when its completion is noticed, even if another call still waits for it.
        """
        schedule, self._schedule = self._schedule, None  # no call between the two, so no other thread runs in between
        if self._complete:
            self._schedule = schedule
            return None
        return schedule

    def _step(self) -> None:
        """Continue as far as possible without waiting."""
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
            if schedule.gi_frame is None:  # Ctrl-C was raised within the schedule, which ended without a result
                self._problem = error("ERR_OTHER", f"this operation was ended by {type(problem).__name__}")
                self._finish()
            raise
        finally:
            self._schedule = schedule

    def _set_pending(self, pending: bool) -> None:
        if self._of is not None:
            self._of.set_pending(pending)

    def _finish(self) -> None:
        self._complete = True
        self._set_pending(False)
        self._pending = []
        self.world.schedules.pop(self, None)
        self.world.count_active()
        if self._problem is not None and self._of is not None:
            self._of.give_up(self._problem)
        self._on._let_go()

    def abandon(self) -> None:
        """End the schedule without a result, after an interrupt of the only call that waited for it."""
        while not self._complete and not self.world.forked:
            schedule = self._enter()
            if schedule is None:  # in use by another thread for a moment
                time.sleep(0.001)
                continue
            schedule.close()
            self._problem = error("ERR_OTHER", "this operation was abandoned")
            self._finish()
            self._schedule = schedule

    def progress(self) -> None:
        """Make progress without waiting: of this operation, and of the other ones of this process."""
        self.world.progress()
        self.world.step()
        self._step()

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Return whether the schedule is complete, without making progress."""
        if self._complete and status is not None:
            self.fill(status)
        return self._complete

    def test_once(self) -> bool:
        """Make progress and return whether the schedule is complete."""
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
        """Wait at most `timeout_s` seconds (None: no limit); return whether the schedule is complete."""
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while not self._complete:
            self.world.step()
            self._step()
            if self._complete:
                break
            # Without other schedules to drive, the engine waits for a message of this one.
            if self.world.n_active > 1 or not self._wait_alone():
                self.world.idle(0.001)
            if time.monotonic() > deadline and not self._complete:
                return False
        self._take()
        return True

    def _wait_alone(self) -> bool:
        """Wait up to 50 ms for the next message. Return False if none is pending or the schedule is in use."""
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
            self.world.count_active()
        return True

    def fill(self, status: _core.MsgStatus) -> None:
        """Write the properties of the received message to *status*."""
        for name in ("source", "tag", "error", "nbytes", "was_cancelled"):
            setattr(status, name, getattr(self._source, name))

    def withdraw(self) -> None:
        """Cancel the schedule if its first message is a receive that has not completed."""
        if self._first is not None:
            self._first.withdraw()

    def release(self) -> None:
        """Release the handle. The schedule continues while other calls wait."""
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
    step.blocking = True
    try:
        while True:
            step.receives.clear()
            for request in next(schedule):
                while not request.ended and not request.wait_for(_LOOK_S):
                    step.check()
    except StopIteration as stop:
        return stop.value
    except BaseException as problem:
        step.give_up(problem)
        raise
