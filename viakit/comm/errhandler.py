"""Error handlers: what happens when a call on a communicator, window or session fails.

Every error raises an exception. The handler of the object is called first:

- ``ERRORS_RETURN``, the default, does nothing, so the program gets the exception.
- ``ERRORS_ARE_FATAL`` and ``ERRORS_ABORT`` end the job.
- A handler of ``Create_errhandler`` is called with the object and the error code. The exception follows.

The short path of a message does not look for a handler. An object whose handler is not the default gets guards: its
methods, each within one that catches MPI's exceptions.
"""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable
from typing import Any, ClassVar

from viakit.comm.errors import Exception, error
from viakit.comm.handle import Handle, forget

__all__ = ["ERRHANDLER_NULL", "ERRORS_ABORT", "ERRORS_ARE_FATAL", "ERRORS_RETURN", "Errhandler", "HasErrhandler"]

_MOST = 32  # handlers of the program for each kind of object, as in mpi4py
_UNGUARDED = set(
    """
    Get_errhandler Set_errhandler Call_errhandler Create_errhandler Abort Free Disconnect Finalize free world_ranks
    seal_group note notice start_send start_recv look take forget discard find_completed take_note take_notice
    probe_other_tag close_own set_pending
    """.split()
)


class _Handler:
    """A predefined error handler, or a function of the program."""

    def __init__(self, name: str, function: Callable[[Any, int], Any] | None = None, kind: str = "") -> None:
        self.name, self.function, self.kind = name, function, kind


class Errhandler(Handle):
    """Error handler: ``MPI.Errhandler``. Without an argument the constructor returns a null handle."""

    _family = "Errhandler"

    def __repr__(self) -> str:
        return f"<viakit MPI.Errhandler {'null' if self._ref is None else self._ref.name}>"

    def Free(self) -> None:
        """Free the handler. This handle becomes null; objects that use the handler keep it.

        Raises
        ------
        Exception
            ERR_ERRHANDLER for a null handle.
        """
        if self._ref is None:
            raise error("ERR_ERRHANDLER", "this error handler is null")
        if self._ref.function is not None:
            _in_use[self._ref.kind].discard(self._ref)
            forget(self._family, self._ref)
        self._ref = None

    def free(self) -> None:
        """Free the handler if the handle is neither null nor predefined."""
        if self._ref is not None and self not in _CONSTANTS:
            self.Free()


_in_use: dict[str, set[_Handler]] = {}

ERRHANDLER_NULL = Errhandler()
ERRORS_RETURN = Errhandler._of(_Handler("ERRORS_RETURN"))
ERRORS_ARE_FATAL = Errhandler._of(_Handler("ERRORS_ARE_FATAL"))
ERRORS_ABORT = Errhandler._of(_Handler("ERRORS_ABORT"))


class _ById(list[Errhandler]):
    def __contains__(self, one: object) -> bool:
        return any(one is constant for constant in self)


_CONSTANTS = _ById([ERRHANDLER_NULL, ERRORS_RETURN, ERRORS_ARE_FATAL, ERRORS_ABORT])


class HasErrhandler:
    """The part of a communicator, window, file or session that has an error handler."""

    _errhandler: Errhandler | None = None  # None: ERRORS_RETURN
    _kind_of_handlers: ClassVar[str] = ""
    _null_class: ClassVar[str] = "ERR_COMM"

    @classmethod
    def Create_errhandler(cls, errhandler_fn: Callable[[Any, int], Any]) -> Errhandler:
        """Create an error handler from a function.

        Parameters
        ----------
        errhandler_fn : callable
            Called as ``errhandler_fn(object, errorcode)`` when a call on the object fails.

        Raises
        ------
        RuntimeError
            If 32 handlers for this kind of object exist.
        """
        used = _in_use.setdefault(cls._kind_of_handlers, set())
        if len(used) >= _MOST:
            raise RuntimeError(f"{_MOST} error handlers exist already; free those that are not needed")
        handler = _Handler("of the program", errhandler_fn, cls._kind_of_handlers)
        used.add(handler)
        return Errhandler._of(handler)

    def _require_valid(self) -> None:
        if not self:
            raise error(self._null_class, f"this {type(self).__name__} is null or has been freed")

    def Get_errhandler(self) -> Errhandler:
        """Return the error handler."""
        self._require_valid()
        return Errhandler(self._errhandler or ERRORS_RETURN)

    def Set_errhandler(self, errhandler: Errhandler) -> None:
        """Set the error handler.

        Raises
        ------
        Exception
            ERR_ERRHANDLER if *errhandler* is null or a handler for another kind of object.
        """
        self._require_valid()
        if not errhandler:
            raise error("ERR_ERRHANDLER", "ERRHANDLER_NULL cannot be set; use MPI.ERRORS_RETURN for exceptions")
        kind = errhandler._ref.kind
        if kind and kind != self._kind_of_handlers:
            raise error("ERR_ERRHANDLER", f"this handler was created for a {kind}, not for a {self._kind_of_handlers}")
        default = errhandler._ref is ERRORS_RETURN._ref
        self._errhandler = None if default else Errhandler(errhandler)
        _guard(self, not default)

    def Call_errhandler(self, errorcode: int) -> None:
        """Call the error handler with an error code."""
        self._require_valid()
        _call(self, self._errhandler or ERRORS_RETURN, errorcode)


def _call(target: Any, handler: Errhandler, errorcode: int) -> None:
    ref = handler._ref
    if ref.function is not None:
        ref.function(target, errorcode)
    elif ref is not ERRORS_RETURN._ref and errorcode:
        from viakit.comm.error_codes import text_of  # start-up time

        print(f"viakit: {ref.name} of {target!r}: {text_of(errorcode)}", file=sys.stderr, flush=True)
        _abort(target, errorcode)


def _abort(target: Any, errorcode: int) -> None:
    from viakit import comm  # it imports this module

    (target if hasattr(target, "Abort") else comm.world()).Abort(errorcode or 1)


def _names_to_guard(kind: type) -> list[str]:
    found = []
    for name in dir(kind):
        member = getattr(kind, name)
        if not name.startswith("_") and name not in _UNGUARDED and callable(member) and not isinstance(member, type):
            bound = getattr(member, "__self__", None)
            if bound is None:  # not a class method
                found.append(name)
    return found


def _guard(target: Any, wanted: bool) -> None:
    """Put guards around the methods of one object, or remove them."""
    for name in _names_to_guard(type(target)):
        target.__dict__.pop(name, None)
        if wanted:
            target.__dict__[name] = functools.wraps(getattr(target, name))(
                functools.partial(_guarded, target, getattr(target, name))
            )


def _guarded(target: Any, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return method(*args, **kwargs)
    except Exception as problem:
        # A method may call another one: only the innermost guard calls the handler.
        if target._errhandler is not None and not getattr(problem, "handled", False):
            problem.handled = True  # type: ignore[attr-defined]
            try:
                _call(target, target._errhandler, problem.error_code)
            except BaseException:
                traceback.print_exc()
        raise
