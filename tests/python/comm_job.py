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
"""


def write(folder: Path, text: str) -> str:
    """Write a program that has NumPy, `MPI`, `comm`, `rank`, `size` and `until`, which waits; return its path."""
    path = folder / "prog.py"
    path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
    return str(path)


def job(ranks: int, *words: str, protocol: str = "via") -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks."""
    command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--protocol", protocol, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
