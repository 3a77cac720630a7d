"""Requests under MPI's names: one pending operation, sets of them, and persistent operations.

A Request usually wraps a request of the engine. Three other kinds have the same interface: an operation of several
messages (schedule.py), a persistent request (Prequest), and a receive from PROC_NULL (message.py). Each provides
`test_once`, `wait_for`, `peek`, `progress`, `fill`, `withdraw` and `release`; all calls of MPI are built on these.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from viakit import _core
from viakit.comm.datatype import UNDEFINED
from viakit.comm.errors import error
from viakit.comm.handle import Numbered
from viakit.comm.status import Status, empty, put, status_at

LET_FINISH_S = 5.0  # limit for data already in flight into the buffer of a receive that is cancelled


_CALLS = (
    "Wait Test wait test Get_status get_status Cancel cancel Free test_once wait_for peek progress fill withdraw "
    "release"
).split()


class Request(_core.MsgRequest, Numbered):
    """Handle of a pending operation: ``MPI.Request``. Without an argument the constructor returns a null request.

    With a request as argument the constructor returns another handle of the same operation.
    """

    _family = "Request"
    result: Any = None
    _target: Any = None  # In a second handle: the first one, which has the operation.

    def __init__(self, request: Request | None = None) -> None:
        if request is not None and not isinstance(request, Request):
            raise TypeError(f"Request() takes no argument or a Request, got {type(request).__name__}")
        self.release()
        if request is not None and not request._is_null():
            self._target = request._target or request
            for name in _CALLS:  # the methods that MPI's calls use; a subclass of the program may have its own
                if getattr(type(self), name) is getattr(Request, name):
                    self.__dict__[name] = getattr(self._target, name)

    def __bool__(self) -> bool:
        return not self._is_null()

    def _is_null(self) -> bool:
        return self.ended if self._target is None else self._target._is_null()

    def _identity(self) -> Any:
        return None if self._is_null() else self if self._target is None else self._target._identity()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Request):
            return NotImplemented
        return self is other or self._identity() is other._identity()

    def __hash__(self) -> int:
        if self is REQUEST_NULL:
            raise TypeError("unhashable: a null Request")
        return id(self)

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._is_null():
            return "REQUEST_NULL" if self is REQUEST_NULL else (type(self), (REQUEST_NULL,))
        raise ValueError("a pending request cannot be pickled; wait for it first")

    def _wait_any(self, status: Status | None = None) -> bool:
        """Wait for a request of any kind, including those that the engine does not manage."""
        if self._target is not None:
            return bool(self._target.Wait(status))
        if self.ended:
            empty(status)
            return True
        self.wait_for()
        if status is not None:
            self.fill(status)
        return True

    def _test_any(self, status: Status | None = None) -> bool:
        """Test a request of any kind, including those that the engine does not manage."""
        if self._target is not None:
            return bool(self._target.Test(status))
        if self.ended:
            empty(status)
            return True
        if not self.test_once():
            return False
        if status is not None:
            self.fill(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Wait until the operation completes.

        Parameters
        ----------
        status : Status, optional
            Filled with the properties of the message.

        Returns
        -------
        object
            The object received; None for a send or a receive into a buffer.
        """
        self.Wait(status)
        return self._take_result()

    def _take_result(self) -> Any:
        """Return the object received, once; the request is null afterwards."""
        result = self.result
        if result is not None:
            self.result = None
        return result

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Test whether the operation is complete.

        Returns
        -------
        flag : bool
            Whether it is complete.
        msg : object
            The object received, if any.
        """
        done = self.Test(status)
        return (done, self._take_result() if done else None)

    def Get_status(self, status: Status | None = None) -> bool:
        """Test whether the operation is complete, without releasing the request."""
        if self.ended:
            empty(status)
            return True
        self.progress()
        return self.peek(status)

    get_status = Get_status

    def Cancel(self) -> None:
        """Request cancellation of the operation. The request must still be waited for.

        Raises
        ------
        Exception
            ERR_REQUEST for a null request.
        """
        self._require("cancel")
        self.withdraw()

    def _require(self, what: str) -> None:
        if self._is_null():
            raise error(
                "ERR_REQUEST", f"{what}: this request is null; a request becomes null when it has been waited for"
            )

    def cancel(self) -> None:
        """Request cancellation of the operation. The request must still be waited for."""
        self.Cancel()

    def Free(self) -> None:
        """Release the handle. The operation continues until it completes.

        Raises
        ------
        Exception
            ERR_REQUEST for a null request.
        """
        self._require("free")
        self.release()

    def free(self) -> None:
        """Release the handle if it is not null. The operation continues until it completes."""
        if not self._is_null():
            self.Free()

    # ------------------------------------------------------------ sets of requests

    @classmethod
    def Get_status_all(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Test whether all operations are complete, without releasing the requests."""
        done = all(request.Get_status() for request in requests)
        for i, request in enumerate(requests if done else ()):
            put(statuses, i, request.Get_status)
        return done

    @classmethod
    def Get_status_any(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Find a completed operation without releasing its request.

        Returns
        -------
        index : int
            Index of the request, or UNDEFINED if none is complete.
        flag : bool
            Whether one is complete; also True if no request is active.
        """
        active = [i for i, request in enumerate(requests) if not _over(request)]
        for i in active:
            if requests[i].Get_status(status):
                return (i, True)
        if not active:
            empty(status)
        return (UNDEFINED, not active)

    @classmethod
    def Get_status_some(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Return the indices of the completed operations without releasing their requests.

        None if no request is active.
        """
        active = [i for i, request in enumerate(requests) if not _over(request)]
        done = [i for i in active if requests[i].Get_status()]
        for place, i in enumerate(done):
            put(statuses, place, requests[i].Get_status)
        return done if active else None

    get_status_all, get_status_any, get_status_some = Get_status_all, Get_status_any, Get_status_some

    @classmethod
    def Waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> bool:
        """Wait until all operations complete.

        Parameters
        ----------
        requests : sequence of Request
            Null requests are complete.
        statuses : list of Status, optional
            Filled with the status of each request; a list that is too short is extended.

        Returns
        -------
        bool
            Always True.

        Raises
        ------
        Exception
            The first error of an operation, after all operations have ended.
        """
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
        """Test whether all operations are complete. If they are, the requests are released."""
        pending = [request for request in requests if not _over(request) and not request.peek()]
        for request in pending[:1] + [one for one in pending[1:] if type(one) is not Request]:
            request.progress()  # Progress of one engine request serves all engine requests.
        if any(not _over(request) and not request.peek() for request in pending):
            return False
        return cls.Waitall(requests, statuses)

    @classmethod
    def Waitany(cls, requests: Sequence[Request], status: Status | None = None) -> int:
        """Wait until one operation completes.

        Returns
        -------
        int
            Index of its request, or UNDEFINED if no request is active.
        """
        return _until(requests, lambda: cls.Testany(requests, status))[0]

    @classmethod
    def Testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool]:
        """Test whether one of the operations is complete.

        Returns
        -------
        index : int
            Index of the completed request, or UNDEFINED.
        flag : bool
            Whether one is complete; also True if no request is active.
        """
        active = False
        for i, request in enumerate(requests):
            if not _over(request):
                active = True
                if request.Test(status):
                    return (i, True)
        if not active:
            empty(status)
        return (UNDEFINED, not active)

    @classmethod
    def Testsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Return the indices of the completed operations; None if no request is active."""
        if all(_over(request) for request in requests):
            return None
        done: list[int] = []
        found = None if statuses is None else Status()
        for i, request in enumerate(requests):
            if not _over(request) and request.Test(found):
                if found is not None:
                    put(statuses, len(done), lambda status: status._copy(found))
                done.append(i)
        return done

    @classmethod
    def Waitsome(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[int] | None:
        """Wait until at least one operation completes.

        Returns
        -------
        list of int or None
            Indices of the completed requests; None if no request is active.
        """

        def look() -> tuple[list[int] | None, bool]:
            done = cls.Testsome(requests, statuses)
            return done, done is None or bool(done)

        return _until(requests, look)[0]

    @classmethod
    def waitall(cls, requests: Sequence[Request], statuses: list[Status] | None = None) -> list[Any]:
        """Wait until all operations complete, and return the list of the objects received."""
        cls.Waitall(requests, statuses)
        return [request.result for request in requests]

    @classmethod
    def testall(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[bool, list[Any] | None]:
        """Test whether all operations are complete.

        Returns
        -------
        flag : bool
            Whether all are complete.
        msgs : list or None
            The objects received, or None.
        """
        if not cls.Testall(requests, statuses):
            return (False, None)
        return (True, [request.result for request in requests])

    @classmethod
    def waitany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """Wait until one operation completes, and return its index and the object received."""
        index = cls.Waitany(requests, status)
        return (index, None if index == UNDEFINED else requests[index].result)

    @classmethod
    def testany(cls, requests: Sequence[Request], status: Status | None = None) -> tuple[int, bool, Any]:
        """Test whether one operation is complete, and return its index, a flag and the object received."""
        index, flag = cls.Testany(requests, status)
        return (index, flag, None if index == UNDEFINED else requests[index].result)

    @classmethod
    def waitsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Wait until at least one operation completes, and return the indices and the objects received."""
        done = cls.Waitsome(requests, statuses)
        return (done, None if done is None else [requests[i].result for i in done])

    @classmethod
    def testsome(
        cls, requests: Sequence[Request], statuses: list[Status] | None = None
    ) -> tuple[list[int] | None, list[Any] | None]:
        """Return the indices of the completed operations and the objects received."""
        done = cls.Testsome(requests, statuses)
        return (done, None if done is None else [requests[i].result for i in done])


class _Kept:
    """Operation of a persistent request: how it begins, and its last start. All handles of it share this object."""

    def __init__(self, begin: Any = None) -> None:
        self.begin: Any = begin
        self.inner: Any = None


class Prequest(Request):
    """Persistent request: ``MPI.Prequest``. The same operation can be started again and again."""

    def __new__(cls, begin: Any = None) -> Any:
        """Return a null handle, another handle of a persistent request, or a new request."""
        return super().__new__(cls)

    def __init__(self, begin: Any = None) -> None:
        if isinstance(begin, Request) and begin._is_null():
            begin = None
        if begin is not None and not callable(begin) and not isinstance(begin, Prequest):
            raise TypeError(
                f"Prequest() takes no argument or a Prequest, got {type(begin).__name__}; use Send_init or Recv_init"
            )
        self._kept = begin._kept if isinstance(begin, Prequest) else _Kept(begin)

    _kept: _Kept

    def _is_null(self) -> bool:
        return self._kept.begin is None

    def _identity(self) -> Any:
        return None if self._is_null() else self._kept

    @property
    def ended(self) -> bool:
        """Whether the request is inactive."""
        return self._kept.inner is None or self._kept.inner.ended

    @property
    def world(self) -> Any:
        """World of the active operation, or None."""
        return getattr(self._kept.inner, "world", None)

    def Start(self) -> None:
        """Start the operation again.

        Raises
        ------
        Exception
            ERR_REQUEST if the request has been freed or is active.
        """
        if self._kept.begin is None:
            raise error("ERR_REQUEST", "this request has been freed")
        if not self.ended:
            raise error("ERR_REQUEST", "this request is active already: wait for it before starting it again")
        self._kept.inner = self._kept.begin()

    @classmethod
    def Startall(cls, requests: Sequence[Prequest]) -> None:
        """Start all of the persistent requests."""
        for request in requests:
            request.Start()

    def Pready(self, partition: int) -> None:
        """Send one partition of a message of `Psend_init`."""
        self.Pready_list([partition])

    def Pready_range(self, partition_low: int, partition_high: int) -> None:
        """Send the partitions from one to another, which is included."""
        self.Pready_list(range(partition_low, partition_high + 1))

    def Pready_list(self, partitions: Sequence[int]) -> None:
        """Send several partitions of a message of `Psend_init`.

        Raises
        ------
        Exception
            ERR_ARG if there is no such partition, or it has been sent already.
        """
        from viakit.comm.partitioned import ready  # it imports this module

        ready(self._kept.begin, partitions)

    def Parrived(self, partition: int) -> bool:
        """Return whether one partition of a message of `Precv_init` has arrived."""
        from viakit.comm.partitioned import arrived  # it imports this module

        return arrived(self._kept.begin, partition)

    def test_once(self) -> bool:
        """Make progress and return whether the operation is complete."""
        return self._kept.inner is None or self._kept.inner.test_once()

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait for the operation, at most `timeout_s` seconds (None: no limit), and return whether it is complete."""
        return self._kept.inner is None or self._kept.inner.wait_for(timeout_s)

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Return whether the operation is complete, without making progress."""
        return self._kept.inner is None or self._kept.inner.peek(status)

    def progress(self) -> None:
        """Make progress without waiting."""
        if self._kept.inner is not None:
            self._kept.inner.progress()

    def fill(self, status: _core.MsgStatus) -> None:
        """Write the properties of the received message to *status*."""
        if self._kept.inner is not None:
            self._kept.inner.fill(status)

    def withdraw(self) -> None:
        """Request cancellation of the active operation."""
        if self._kept.inner is not None:
            self._kept.inner.withdraw()

    def release(self) -> None:
        """Release the request for good. An active operation continues until it completes."""
        if self._kept.inner is not None:
            self._kept.inner.release()
        self._kept.begin = None


REQUEST_NULL = Request()


def _over(request: Request) -> bool:
    """Return whether a request is inactive, also if it is a second handle."""
    return request.ended and (request._target is None or request._target.ended)


class withdrawing:  # noqa: N801 - a context manager, which costs a third of a generator's
    """Cancel *receive* if the block fails or is interrupted.

    The program has no handle of this receive. If it stayed posted, it would match a message intended for a later
    receive.
    """

    __slots__ = ("_receive",)

    def __init__(self, receive: Request) -> None:
        self._receive = receive

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(Exception):  # The original error is reported, not one of the cancellation.
                self._receive.withdraw()
                self._receive.wait_for(LET_FINISH_S)


def _until(requests: Sequence[Request], look: Any) -> Any:
    """Call *look* until it succeeds, and let the engine wait for events in between."""
    pause = 0.0
    while True:
        found = look()
        if found[1]:
            return found
        for request in requests:
            world = getattr(request, "world", None)
            if world is not None and not _over(request):
                world.idle(pause)
                break
        else:
            time.sleep(0)
        pause = 0.001
