"""Words of messages that depend on a number."""

from __future__ import annotations

__all__ = ["counted"]


def counted(n: int, noun: str) -> str:
    """Return a number with its noun: ``1 byte``, ``2 bytes``."""
    return f"{n} {noun}{'s' * (n != 1)}"
