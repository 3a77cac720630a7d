"""Programs of several ranks that use viakit's communicators, for their tests; conftest.py's `program` writes them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
DEADLINE_S = 90.0
PROTOCOLS = ("via", "bip", "tcp")

HEAD = """\
import contextlib
import time
import numpy as np
from viakit.mpi import MPI
comm = MPI.COMM_WORLD
rank, size = comm.rank, comm.size
def until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)

@contextlib.contextmanager
def raises(kind, code=None, words=""):
    try:
        yield
    except kind as problem:
        assert code is None or problem.Get_error_class() == code, problem
        assert words in str(problem), problem
    else:
        raise AssertionError(f"no {kind}, {words!r}")
"""


def write(folder: Path, text: str) -> str:
    """Write a program; return its path. It has NumPy, `MPI`, `comm`, `rank` and `size` already, and

    ``until(condition)``, which waits; ``with raises(kind, code, words)`` for what has to raise, with MPI's error class
    `code`, if one is given, and with these words.
    """
    path = folder / "prog.py"
    path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
    return str(path)


def job(
    ranks: int, *words: str, protocol: str = "via", timeout_s: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks."""
    command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--protocol", protocol, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
