"""The error of a measurement that cannot be started or did not finish."""

from __future__ import annotations

__all__ = ["MeasureError"]


class MeasureError(RuntimeError):
    """A measurement could not be started or was aborted; the message ends with a remedy.

    Attributes
    ----------
    reason : str
        One of these words:

        - ``"gone"``: a process or connection ended
        - ``"timeout"``
        - ``"mismatch"``: wrong data arrived
        - ``"missing"``: a library or program is not installed
        - ``"refused"``: no permission
        - ``"version"``: the versions of the two sides differ
        - ``"usage"``
        - ``"error"``: any other reason
    """

    def __init__(self, message: str, reason: str = "error") -> None:
        super().__init__(message)
        self.reason = reason
