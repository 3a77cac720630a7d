"""Generalised requests: operations of the program, which it completes itself, as requests of MPI."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from viakit import _core
from viakit.base.limits import seconds
from viakit.comm.errors import Exception as MpiException
from viakit.comm.errors import error
from viakit.comm.request import Request
from viakit.comm.status import Status, empty

__all__ = ["Grequest"]

_SLICE_S = 0.05  # between two checks for signals while a call waits
_PAUSE_S = 0.001  # the same while schedules of this process need progress


class _Operation:
    """Operation of the program. All handles of it share this object."""

    def __init__(self, query: Any, free: Any, cancel: Any, args: tuple[Any, ...], kargs: dict[str, Any]) -> None:
        self.query, self.free, self.cancel, self.args, self.kargs = query, free, cancel, args, kargs
        self.done = threading.Event()
        self.result: Any = None
        self.released = False

    def call(self, function: Any, *first: Any) -> None:
        """Call a function of the program. Raises MPI.Exception, and prints a traceback, if it fails."""
        if function is None:
            return
        try:
            function(*first, *self.args, **self.kargs)
        except Exception as problem:
            traceback.print_exc(file=sys.stderr)
            if isinstance(problem, MpiException):
                raise error_of(problem.error_code, problem) from problem
            raise error(
                "ERR_OTHER", f"a function of a Grequest raised {type(problem).__name__}: {problem}"
            ) from problem


def error_of(code: int, problem: BaseException) -> MpiException:
    """Return the exception of a function of the program that raised one of MPI's."""
    return MpiException(code, f"a function of a Grequest raised it: {problem}")


class Grequest(Request):
    """Generalised request: ``MPI.Grequest``. `Start` makes one, and `Complete` completes it."""

    def __new__(cls, request: Any = None) -> Any:
        """Return a null handle, or another handle of a generalised request."""
        return super().__new__(cls)

    def __init__(self, request: Any = None) -> None:
        if (
            request is not None
            and not isinstance(request, Grequest)
            and not (isinstance(request, Request) and request._is_null())
        ):
            raise TypeError(
                f"Grequest() takes no argument or a Grequest, got {type(request).__name__}; use MPI.Grequest.Start"
            )
        self._operation: _Operation | None = request._operation if isinstance(request, Grequest) else None

    @classmethod
    def Start(
        cls,
        query_fn: Callable[..., None] | None = None,
        free_fn: Callable[..., None] | None = None,
        cancel_fn: Callable[..., None] | None = None,
        args: tuple[Any, ...] | None = None,
        kargs: Mapping[str, Any] | None = None,
    ) -> Grequest:
        """Start an operation of the program and return its request.

        Parameters
        ----------
        query_fn : callable, optional
            Called as ``query_fn(status, *args, **kargs)`` when a call waits for or tests the completed request.
        free_fn : callable, optional
            Called as ``free_fn(*args, **kargs)`` when the request is released.
        cancel_fn : callable, optional
            Called as ``cancel_fn(completed, *args, **kargs)`` by `Cancel`.
        args, kargs : tuple, dict, optional
            Further arguments of the functions.
        """
        made: Grequest = cls()
        made._operation = _Operation(query_fn, free_fn, cancel_fn, tuple(args or ()), dict(kargs or {}))
        return made

    def _require_started(self) -> _Operation:
        if self._operation is None or self._operation.released:
            raise error("ERR_REQUEST", "this generalised request is null; MPI.Grequest.Start makes one")
        return self._operation

    def Complete(self) -> None:
        """Complete the operation. Any thread of the process may call it."""
        self._require_started().done.set()

    def complete(self, obj: Any = None) -> None:
        """Complete the operation with a result, which `wait` and `test` return."""
        self._require_started().result = obj
        self.Complete()

    def _is_null(self) -> bool:
        return self._operation is None or self._operation.released

    def _identity(self) -> Any:
        return None if self._is_null() else self._operation

    @property
    def ended(self) -> bool:
        """Whether the request has been released."""
        return self._is_null()

    def test_once(self) -> bool:
        """Return whether the operation is complete."""
        return self._operation is None or self._operation.done.is_set()

    def wait_for(self, timeout_s: float | None = None) -> bool:
        """Wait at most `timeout_s` seconds (None: no limit); return whether the operation is complete."""
        from viakit import comm  # start-up time

        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        while not self.test_once():
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            busy = comm.step_all()
            assert self._operation is not None
            self._operation.done.wait(min(left, _PAUSE_S if busy else _SLICE_S))
        return True

    def peek(self, status: _core.MsgStatus | None = None) -> bool:
        """Return whether the operation is complete."""
        if self.test_once() and status is not None:
            self.fill(status)
        return self.test_once()

    def progress(self) -> None:
        """Let other operations of this process make progress."""
        from viakit import comm  # start-up time

        comm.step_all()

    def fill(self, status: _core.MsgStatus) -> None:
        """Let the program's function fill *status*."""
        empty(status)
        if self._operation is not None:
            self._operation.call(self._operation.query, status)

    def _end(self, status: _core.MsgStatus | None) -> Any:
        """Query and release the completed operation, and return its result."""
        operation = self._operation
        if operation is None or operation.released:
            empty(status)
            return None
        self.fill(Status() if status is None else status)
        result = operation.result
        self.release()
        return result

    def Wait(self, status: _core.MsgStatus | None = None) -> bool:
        """Wait until the program has completed the operation."""
        self.wait_for()
        self._end(status)
        return True

    def Test(self, status: _core.MsgStatus | None = None) -> bool:
        """Test whether the program has completed the operation."""
        if not self.test_once():
            return False
        self._end(status)
        return True

    def wait(self, status: Status | None = None) -> Any:
        """Wait until the program has completed the operation, and return the result given to `complete`."""
        self.wait_for()
        return self._end(status)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Test whether the program has completed the operation; return a flag and the result."""
        if not self.test_once():
            return (False, None)
        return (True, self._end(status))

    def Cancel(self) -> None:
        """Call the program's function for cancellation."""
        operation = self._require_started()
        operation.call(operation.cancel, operation.done.is_set())

    def cancel(self) -> None:
        """Call the program's function for cancellation."""
        self.Cancel()

    def withdraw(self) -> None:
        """Call the program's function for cancellation."""
        if not self._is_null():
            self.Cancel()

    def release(self) -> None:
        """Release the request, and call the program's function for it."""
        operation = self._operation
        if operation is not None and not operation.released:
            operation.released = True
            operation.call(operation.free)
