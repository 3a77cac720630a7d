"""How a measurement ends: done, interrupted, or because something failed; what had been measured by then stays."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

from viakit.measure.endpoints import MeasureError

__all__ = ["Ending"]


class Ending:
    """Around a measurement: an interruption or a failure ends it, and is noted for the result.

    ::

        with Ending(lambda: finished) as ending:
            for one in everything:
                ending.doing("tcp", "barrier, message")
                finished.append(one.measure())
        document = {"complete": ending.complete, "errors": ending.errors, ...}

    Parameters
    ----------
    kept : callable
        Returns what has been measured. While that is nothing, a failure is raised as it is: there is no result that
        could tell of it.

    Attributes
    ----------
    complete : bool
        Whether all was measured.
    errors : list of dict
        What failed, as a ``viakit.result/1`` has it.
    """

    def __init__(self, kept: Callable[[], object]) -> None:
        self._kept = kept
        self._protocol: str | None = None
        self._nbytes: int | None = None
        self._what = ""
        self.complete = True
        self.errors: list[dict[str, Any]] = []

    def doing(self, protocol: str | None = None, what: str = "", nbytes: int | None = None) -> None:
        """Note what is measured from now on: it is what a failure is put down to."""
        self._protocol, self._what, self._nbytes = protocol, what, nbytes

    def __enter__(self) -> Ending:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            return False
        self.complete = False
        if isinstance(error, KeyboardInterrupt):
            return True
        from viakit.testbed import TestbedError

        if not isinstance(error, (MeasureError, TestbedError, OSError)) or not self._kept():
            return False
        message = f"{self._what}: {error}" if self._what else str(error)
        self.errors.append({"protocol": self._protocol, "nbytes": self._nbytes, "message": message})
        return True
