"""Wait for conditions in tests: check again until a deadline, and never sleep instead of checking."""

from __future__ import annotations

import time
from collections.abc import Callable

LIMIT_S = 60.0  # a test that waits longer is stuck; on a busy machine a process needs many seconds to start


def until(condition: Callable[[], object], what: str = "what was waited for", limit_s: float = LIMIT_S) -> None:
    """Wait until *condition* returns true; after *limit_s* seconds fail, and name *what* did not become true."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.001)  # between two checks of the condition, not instead of one
