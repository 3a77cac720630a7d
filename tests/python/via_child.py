"""Programs in interpreters of their own, for tests of how viakit behaves as an interpreter begins, forks and ends."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def in_child(program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program in a fresh interpreter, which must not say a word unless the program does."""
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
