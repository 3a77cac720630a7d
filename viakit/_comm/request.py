"""Requests and statuses under MPI's names, and schedules: operations of several messages, one after the other.

A schedule is a generator that yields lists of requests to be waited for, and returns the operation's result. A
blocking call drives it to its end; a non-blocking one hands out a ScheduleRequest, which goes on whenever anything
is tested or waited for.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from viakit import _core
from viakit._comm.datatype import UNDEFINED, Datatype
from viakit._comm.errors import error

ANY_SOURCE, ANY_TAG, PROC_NULL = -2, -1, -3
_LOOK_S = 0.05  # how often a schedule that waits looks for ranks that have died or do something else
LET_FINISH_S = 5.0  # for data that is on its way into the buffer of a receive that is given up

Schedule = Generator[Sequence["Request"], None, Any]


class Status(_core.MsgStatus):
    """``MPI.Status``: source, tag, error and length of a message; made of another, it begins as its copy."""

    def __init__(self, status: Status | None = None) -> None:
        if status is not None:
            if not isinstance(status, Status):
                raise TypeError(f"a Status is made of nothing or of a Status, not of {type(status).__name__}")
            self._copy(status)

    def _copy(self, other: Status) -> None:
        self.source, self.tag, self.error = other.source, other.tag, other.error
        self.nbytes, self.was_cancelled = other.nbytes, other.was_cancelled

    def __reduce__(self) -> tuple[Any, ...]:
        return (_status_of, (self.source, self.tag, self.error, self.nbytes, self.was_cancelled))

    def __repr__(self) -> str:
        return f"<viakit MPI.Status source={self.source} tag={self.tag} bytes={self.nbytes}>"

    def Get_source(self) -> int:
        """The sender's rank."""
        return self.source

    def Set_source(self, source: int) -> None:
        """Set the sender's rank."""
        self.source = source

    def Get_tag(self) -> int:
        """The tag."""
        return self.tag

    def Set_tag(self, tag: int) -> None:
        """Set the tag."""
        self.tag = tag

    def Get_error(self) -> int:
        """The error class."""
        return self.error

    def Set_error(self, error: int) -> None:
        """Set the error class."""
        self.error = error

    def Get_count(self, datatype: Datatype | None = None) -> int:
        """How many elements of `datatype` (None: bytes) arrived, or UNDEFINED if it is no whole number of them."""
        size = 1 if datatype is None else datatype.size
        if size == 0:
            return 0 if self.nbytes == 0 else UNDEFINED
        return self.nbytes // size if self.nbytes % size == 0 else UNDEFINED

    def Get_elements(self, datatype: Datatype) -> int:
        """How many basic elements arrived."""
        if datatype.dtype is None or datatype.dtype.names is not None:
            return self.Get_count(datatype)
        return self.nbytes // datatype.dtype.itemsize

    def Set_elements(self, datatype: Datatype, count: int) -> None:
        """Set the length to `count` elements."""
        self.nbytes = datatype.size * count

    @property
    def count(self) -> int:
        """Bytes that arrived."""
        return self.nbytes

    @count.setter
    def count(self, count: int) -> None:
        self.nbytes = count

    def Is_cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self.was_cancelled

    def Set_cancelled(self, flag: bool) -> None:
        """Set whether it was cancelled."""
        self.was_cancelled = flag

    @property
    def cancelled(self) -> bool:
        """Whether the operation was cancelled."""
        return self.was_cancelled

    @cancelled.setter
    def cancelled(self, flag: bool) -> None:
        self.was_cancelled = flag


def _status_of(source: int, tag: int, error: int, nbytes: int, cancelled: bool) -> Status:
    status = Status()
    status.source, status.tag, status.error = source, tag, error
    status.nbytes, status.was_cancelled = nbytes, cancelled
    return status


class Request(_core.MsgRequest):
    """``MPI.Request``: one operation under way; made by the program itself, a null request."""

    result: Any = None

    def __init__(self, request: Request | None = None) -> None:
        if request is not None and not (isinstance(request, Request) and request._is_null()):
            raise TypeError("a Request is made of nothing or of a null request: one under way has one handle")
        self.release()

    def __bool__(self) -> bool:
        return not self.ended

    def _is_null(self) -> bool:
        return self.ended

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self is other or (self._is_null() and other._is_null())

    def __hash__(self) -> int:
        return id(self)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._is_null():
            return (Request, ())
        raise ValueError("a request under way cannot be pickled")

    def _wait_any(self, status: Status | None = None) -> bool:
        """Wait for requests that the engine does not know."""
        if self.ended:
            _empty(status)
            return True
        self.wait_for()
        if status is not None:
            self.fill(status)
        return True

    def _test_any(self, status: Status | None = None) -> bool:
        """Whether such a request is complete."""
        if self.ended:
            _empty(status)
            return True
        if not self.test_once():
            return False
        if status is not None:
            self.fill(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Wait, and return the object that was received, or None."""
        self.Wait(status)
        return self.result

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is complete, and the object that was received."""
        done = self.Test(status)
        return (done, self.result if done else None)

    def Get_status(self, status: Status | None = None) -> bool:
        """Whether it is complete; the request stays."""
        if self.ended:
            _empty(status)
            return True
        self.progress()
        return self.peek(status)

    get_status = Get_status

    def Cancel(self) -> None:
        """Ask for the operation to be cancelled; it still has to be waited for."""
        self.withdraw()

    def cancel(self) -> None:
        """As Cancel."""
        self.Cancel()

    def Free(self) -> None:
        """Forget the operation; it goes on until it ends."""
        self.release()

    def free(self) -> None:
        """As Free."""
        self.Free()

    # ------------------------------------------------------------ of several

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are complete; they stay."""
        if _elsewhere(requests):
            return _elsewhere_call("Get_status_all", requests, statuses)
        done = all(request.Get_status() for request in requests)
        for i, request in enumerate(requests if done else ()):
            _put(statuses, i, request.Get_status)
        return done

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """The index of one that is complete, and whether there is one; it stays."""
        if _elsewhere(requests):
            return _elsewhere_call("Get_status_any", requests, status)
        active = [i for i, request in enumerate(requests) if not request.ended]
        for i in active:
            if requests[i].Get_status(status):
                return (i, True)
        if not active:
            _empty(status)
        return (UNDEFINED, not active)

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """The indices of those that are complete, None if none is active; they stay."""
        if _elsewhere(requests):
            return _elsewhere_call("Get_status_some", requests, statuses)
        active = [i for i, request in enumerate(requests) if not request.ended]
        done = [i for i in active if requests[i].Get_status()]
        for place, i in enumerate(done):
            _put(statuses, place, requests[i].Get_status)
        return done if active else None

    get_status_all, get_status_any, get_status_some = Get_status_all, Get_status_any, Get_status_some

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Wait for all of them; the first error is raised when all have ended."""
        if _elsewhere(requests):
            return _elsewhere_call("Waitall", requests, statuses)
        problem: BaseException | None = None
        for i, request in enumerate(requests):
            status = _status_at(statuses, i)
            try:
                request.Wait(status)
            except RuntimeError as caught:
                problem = problem or caught
        if problem is not None:
            raise problem
        return True

    @classmethod
    def Testall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Whether all are complete; if so they have ended."""
        if _elsewhere(requests):
            return _elsewhere_call("Testall", requests, statuses)
        pending = [request for request in requests if not request.ended and not request.peek()]
        for request in pending[:1] + [one for one in pending[1:] if type(one) is not Request]:
            request.progress()  # of the engine's own requests one for all
        if any(not request.ended and not request.peek() for request in pending):
            return False
        return cls.Waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait for one of them; its index, or UNDEFINED if none is active."""
        if _elsewhere(requests):
            return _elsewhere_call("Waitany", requests, status)
        return _until(requests, lambda: cls.Testany(requests, status))[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """The index of one that is complete, and whether there is one; (UNDEFINED, True) if none is active."""
        if _elsewhere(requests):
            return _elsewhere_call("Testany", requests, status)
        active = False
        for i, request in enumerate(requests):
            if not request.ended:
                active = True
                if request.Test(status):
                    return (i, True)
        if not active:
            _empty(status)
        return (UNDEFINED, not active)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """The indices of those that are complete; None if none is active."""
        if _elsewhere(requests):
            return _elsewhere_call("Testsome", requests, statuses)
        if all(request.ended for request in requests):
            return None
        done: list[int] = []
        found = None if statuses is None else Status()
        for i, request in enumerate(requests):
            if not request.ended and request.Test(found):
                _put(statuses, len(done), lambda status: status._copy(found))
                done.append(i)
        return done

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Wait for at least one; the indices of those that are complete, None if none is active."""
        if _elsewhere(requests):
            return _elsewhere_call("Waitsome", requests, statuses)

        def look() -> tuple[list[int] | None, bool]:
            done = cls.Testsome(requests, statuses)
            return done, done is None or bool(done)

        return _until(requests, look)[0]

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Wait for all of them; the objects that were received."""
        if _elsewhere(requests):
            return _elsewhere_call("waitall", requests, statuses)
        cls.Waitall(requests, statuses)
        return [request.result for request in requests]

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Whether all are complete, and the objects that were received."""
        if _elsewhere(requests):
            return _elsewhere_call("testall", requests, statuses)
        if not cls.Testall(requests, statuses):
            return (False, None)
        return (True, [request.result for request in requests])

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait for one of them; its index and its object."""
        if _elsewhere(requests):
            return _elsewhere_call("waitany", requests, status)
        index = cls.Waitany(requests, status)
        return (index, None if index == UNDEFINED else requests[index].result)

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Index, whether one is complete, and its object."""
        if _elsewhere(requests):
            return _elsewhere_call("testany", requests, status)
        index, flag = cls.Testany(requests, status)
        return (index, flag, None if index == UNDEFINED else requests[index].result)

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait for at least one; indices and objects."""
        if _elsewhere(requests):
            return _elsewhere_call("waitsome", requests, statuses)
        done = cls.Waitsome(requests, statuses)
        return (done, None if done is None else [requests[i].result for i in done])

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Indices and objects of those that are complete."""
        if _elsewhere(requests):
            return _elsewhere_call("testsome", requests, statuses)
        done = cls.Testsome(requests, statuses)
        return (done, None if done is None else [requests[i].result for i in done])


@contextlib.contextmanager
def withdrawing(receive: Request) -> Iterator[None]:
    """What may fail or be interrupted before a receive has ended whose handle the program does not get.

    Left posted, it would get a message meant for a later one.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(Exception):  # what the program is told is why it is given up
            receive.withdraw()
            receive.wait_for(LET_FINISH_S)
        raise


def _empty(status: Status | None) -> None:
    if status is not None:
        status.source, status.tag, status.error = ANY_SOURCE, ANY_TAG, 0
        status.nbytes, status.was_cancelled = 0, False


def _status_at(statuses: Sequence[Status] | None, index: int) -> Status | None:
    """The status at `index`: a list grows for it as mpi4py's does, of another sequence what is there is filled."""
    if isinstance(statuses, list):
        while len(statuses) <= index:
            statuses.append(Status())
    return statuses[index] if statuses is not None and index < len(statuses) else None


def _put(statuses: Sequence[Status] | None, index: int, fill: Callable[[Status], Any]) -> None:
    status = _status_at(statuses, index)
    if status is not None:
        fill(status)


def _elsewhere(requests: Sequence[Any]) -> bool:
    """Whether these are requests of mpi4py's, behind our words (channel "mpi")."""
    return len(requests) > 0 and getattr(requests[0], "over_mpi", False)


def _elsewhere_call(name: str, requests: Sequence[Any], statuses: Any) -> Any:
    from viakit._comm.over_mpi import of_requests

    return of_requests(name, requests, statuses)


def _until(requests: Sequence[Request], look: Any) -> Any:
    """Look again and again, between which the engine waits until something happens."""
    pause = 0.0
    while True:
        found = look()
        if found[1]:
            return found
        for request in requests:
            world = getattr(request, "world", None)
            if world is not None and not request.ended:
                world.idle(pause)
                break
        else:
            time.sleep(0)
        pause = 0.001


class ScheduleRequest(Request):
    """A request that is a schedule: it goes on while this, or anything else, is tested or waited for."""

    def __new__(cls, *args: Any) -> ScheduleRequest:
        return super().__new__(cls)

    def __init__(self, comm: Any, schedule: Schedule, step: Any = None) -> None:
        self._schedule: Schedule | None = schedule
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
    def ended(self) -> bool:  # type: ignore[override]
        """Complete, and taken note of."""
        return self._taken

    def _enter(self) -> Schedule | None:
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

    def peek(self, status: Status | None = None) -> bool:  # type: ignore[override]
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

    def wait_for(self, timeout_s: float = -1) -> bool:
        """Wait, at most `timeout_s` seconds (below 0: for ever)."""
        deadline = None if timeout_s < 0 else time.monotonic() + timeout_s
        while not self._complete:
            self.world.step()
            self._step()
            if self._complete:
                break
            # if nothing else wants to go on meanwhile, the engine may wait as it likes
            if len(self.world.schedules) > 1 or not self._wait_alone():
                self.world.idle(0.001)
            if deadline is not None and time.monotonic() > deadline and not self._complete:
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

    def fill(self, status: Status) -> None:  # type: ignore[override]
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
        request = ScheduleRequest(comm, schedule, step)
        try:
            request.wait_for()
        except BaseException:
            request.abandon()
            raise
        return request.result
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


class Prequest(Request):
    """``MPI.Prequest``: an operation that can be started again and again."""

    def __new__(cls, begin: Any = None) -> Any:
        return begin if isinstance(begin, Prequest) else super().__new__(cls)

    def __init__(self, begin: Any = None) -> None:
        if begin is self:
            return
        if begin is not None and not callable(begin):
            raise TypeError(f"a Prequest is made of nothing or of a Prequest, not of {type(begin).__name__}")
        self._begin: Any = begin
        self._inner: Request | None = None

    def _is_null(self) -> bool:
        return self._begin is None

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """True while it is not active."""
        return self._inner is None or self._inner.ended

    def __bool__(self) -> bool:
        return self._begin is not None

    @property
    def world(self) -> Any:
        """Where it is active."""
        return getattr(self._inner, "world", None)

    def Start(self) -> None:
        """Begin once more."""
        if self._begin is None:
            raise error("ERR_REQUEST", "this request has been freed")
        if not self.ended:
            raise error("ERR_REQUEST", "this request is active already: wait for it before starting it again")
        self._inner = self._begin()

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Begin all of them."""
        if _elsewhere(requests):
            _elsewhere_call("Startall", requests, None)
            return
        for request in requests:
            request.Start()

    def test_once(self) -> bool:
        """Make progress; True if it is complete."""
        return self._inner is None or self._inner.test_once()

    def wait_for(self, timeout_s: float = -1) -> bool:
        """Wait for it."""
        return self._inner is None or self._inner.wait_for(timeout_s)

    def peek(self, status: Status | None = None) -> bool:  # type: ignore[override]
        """Whether it is complete."""
        return self._inner is None or self._inner.peek(status)

    def progress(self) -> None:
        """Make progress."""
        if self._inner is not None:
            self._inner.progress()

    def fill(self, status: Status) -> None:  # type: ignore[override]
        """What is known of the message that it received."""
        if self._inner is not None:
            self._inner.fill(status)

    def withdraw(self) -> None:
        """Ask for it to be cancelled."""
        if self._inner is not None:
            self._inner.withdraw()

    def release(self) -> None:
        """Forget it for good."""
        if self._inner is not None:
            self._inner.release()
        self._begin = None


class Message(_core.MsgMessage):
    """``MPI.Message``: a message taken out of the queue, to be received by Recv or recv."""

    none = False  # of PROC_NULL: nothing is in it, and it is received at once

    def __new__(cls, message: Message | None = None) -> Any:
        if message is not None and not isinstance(message, Message):
            raise TypeError(f"a Message is made of nothing or of a Message, not of {type(message).__name__}")
        if message is not None and message._kind() == "a message":
            return message
        made = super().__new__(cls)
        made.none = message is not None and message.none
        return made

    def __init__(self, message: Message | None = None) -> None:
        pass

    def _kind(self) -> str:
        return "of nobody" if self.none else "a message" if super().__bool__() else "none"

    def __bool__(self) -> bool:
        return self._kind() != "none"

    def __reduce__(self) -> Any:
        if self is MESSAGE_NULL:
            return "MESSAGE_NULL"
        if self is MESSAGE_NO_PROC:
            return "MESSAGE_NO_PROC"
        if self._kind() == "a message":
            raise ValueError("a message that has not been received cannot be pickled")
        return (Message, (MESSAGE_NO_PROC if self.none else MESSAGE_NULL,))

    @classmethod
    def Probe(cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None) -> Message:
        """As Mprobe of the communicator."""
        return comm.Mprobe(source, tag, status)

    @classmethod
    def Iprobe(
        cls, comm: Any, source: int = ANY_SOURCE, tag: int = ANY_TAG, status: Status | None = None
    ) -> Message | None:
        """As Improbe of the communicator."""
        return comm.Improbe(source, tag, status)

    probe, iprobe = Probe, Iprobe

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Message):
            return NotImplemented
        return self is other or self._kind() == other._kind() != "a message"

    def __hash__(self) -> int:
        return id(self)

    def Irecv(self, buf: Any) -> Request:
        """Start to receive it into a buffer."""
        return _receive(self, buf)

    def Recv(self, buf: Any, status: Status | None = None) -> None:
        """Receive it into a buffer."""
        self.Irecv(buf).Wait(status)

    def recv(self, status: Status | None = None) -> Any:
        """Receive it as an object."""
        return self.irecv().wait(status)

    def irecv(self) -> Request:
        """Start to receive it as an object."""
        from viakit._comm import objects

        return _of_nobody(self) if self.none else objects.receive_message(self)


MESSAGE_NULL, MESSAGE_NO_PROC = Message(), Message()
MESSAGE_NO_PROC.none = True


class _NobodysRequest(Request):
    """A receive from PROC_NULL that a matching probe has found: complete from the beginning."""

    def __new__(cls) -> Any:
        return super().__new__(cls)

    def __init__(self) -> None:
        self._taken = False

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """Whether it has been waited for."""
        return self._taken

    def test_once(self) -> bool:
        """True: nothing has to happen."""
        self._taken = True
        return True

    def wait_for(self, timeout_s: float = -1) -> bool:
        """True."""
        return self.test_once()

    def peek(self, status: Status | None = None) -> bool:  # type: ignore[override]
        """True."""
        if status is not None:
            self.fill(status)
        return True

    def progress(self) -> None:
        """Nothing to do."""

    def fill(self, status: Status) -> None:  # type: ignore[override]
        """A message of nobody."""
        _empty(status)
        status.source = PROC_NULL

    def withdraw(self) -> None:
        """Too late."""

    def release(self) -> None:
        """Forget it."""
        self._taken = True


def _of_nobody(message: Message) -> Request:
    if message is not MESSAGE_NO_PROC:
        message.none = False
    return _NobodysRequest()


def _receive(message: Message, buf: Any) -> Request:
    from viakit._comm.spec import simple

    if message.none:
        return _of_nobody(message)
    place = simple(buf, True)
    if place.direct:
        return message.receive(place.pack())
    import numpy as np

    data = np.empty(place.nbytes, np.uint8)
    request = message.receive(data)
    request.after = lambda done: place.unpack(data[: done.nbytes])
    return request
