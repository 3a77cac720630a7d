"""How long something may take, as a program says it."""

from __future__ import annotations

import math

__all__ = ["seconds"]


def seconds(name: str, given: float | None) -> float:
    """Return a time limit in seconds; infinity where there is none.

    Parameters
    ----------
    name : str
        What the program calls it: "timeout_s".
    given : float or None
        0 or more. None, as infinity, is no limit.

    Raises
    ------
    ValueError
        If it is negative, or not a number.
    """
    limit = math.inf if given is None else float(given)
    if not limit >= 0:
        raise ValueError(f"{name} is a number of seconds, 0 or more, or None for no limit; not {given!r}")
    return limit
