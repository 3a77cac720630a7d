"""Requests under MPI's names: one operation under way, several at once, and operations that are started again.

A Request is the engine's own. What goes on in another way has the same calls: an operation of several messages
(schedule.py), one that is started again and again (Prequest), a message of nobody (message.py). Each has `test_once`,
`wait_for`, `peek`, `progress`, `fill`, `withdraw` and `release`, on which all that MPI asks for is built here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from typing import Any

from viakit import _core
from viakit._comm.datatype import UNDEFINED
from viakit._comm.errors import error
from viakit._comm.status import Status, empty, put, status_at

LET_FINISH_S = 5.0  # for data that is on its way into the buffer of a receive that is given up


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
            empty(status)
            return True
        self.wait_for()
        if status is not None:
            self.fill(status)
        return True

    def _test_any(self, status: Status | None = None) -> bool:
        """Whether such a request is complete."""
        if self.ended:
            empty(status)
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
            empty(status)
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
            put(statuses, i, request.Get_status)
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
            empty(status)
        return (UNDEFINED, not active)

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """The indices of those that are complete, None if none is active; they stay."""
        if _elsewhere(requests):
            return _elsewhere_call("Get_status_some", requests, statuses)
        active = [i for i, request in enumerate(requests) if not request.ended]
        done = [i for i in active if requests[i].Get_status()]
        for place, i in enumerate(done):
            put(statuses, place, requests[i].Get_status)
        return done if active else None

    get_status_all, get_status_any, get_status_some = Get_status_all, Get_status_any, Get_status_some

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Wait for all of them; the first error is raised when all have ended."""
        if _elsewhere(requests):
            return _elsewhere_call("Waitall", requests, statuses)
        problem: BaseException | None = None
        for i, request in enumerate(requests):
            status = status_at(statuses, i)
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
            empty(status)
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
                if found is not None:
                    put(statuses, len(done), lambda status: status._copy(found))
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
    def ended(self) -> bool:
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

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait for it."""
        return self._inner is None or self._inner.wait_for(timeout_s)

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Whether it is complete."""
        return self._inner is None or self._inner.peek(status)

    def progress(self) -> None:
        """Make progress."""
        if self._inner is not None:
            self._inner.progress()

    def fill(self, status: _core.MsgStatus) -> None:
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
