"""Check of time limits that a program passes."""

from __future__ import annotations

import math

__all__ = ["seconds"]


def seconds(name: str, given: float | None) -> float:
    """Return a time limit in seconds; infinity for no limit.

    Parameters
    ----------
    name : str
        Name of the argument, for the error message: "timeout_s".
    given : float or None
        0 or more. None and infinity mean no limit.

    Raises
    ------
    ValueError
        If the limit is negative or not a number.
    """
    limit = math.inf if given is None else float(given)
    if not limit >= 0:
        raise ValueError(f"{name} must be a number of seconds, 0 or more, or None for no limit; got {given!r}")
    return limit
