"""Waiting for conditions in tests: look again and again until a deadline, never sleep instead of looking."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 20.0  # what takes longer is stuck


def until(condition: Callable[[], object], what: str = "what was waited for", limit_s: float = LIMIT_S) -> None:
    """Wait until it is true; fail, naming *what* did not come true, after *limit_s* seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.001)  # between two looks at a condition, not instead of one
