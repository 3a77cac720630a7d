"""Communicators with mpi4py's interface: programs of several ranks, over every channel."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"
DEADLINE_S = 90.0
PROTOCOLS = ("via", "tcp")


def job(ranks: int, *words: str, protocol: str = "via") -> subprocess.CompletedProcess[str]:
    """Run a program on so many ranks."""
    command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--protocol", protocol, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.fixture
def program(tmp_path):
    """Write a program and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "prog.py"
        head = (
            "import numpy as np\nfrom viakit.mpi import MPI\ncomm = MPI.COMM_WORLD\nrank, size = comm.rank, comm.size\n"
        )
        path.write_text(head + textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_basic_calls(protocol, ranks):
    done = job(ranks, str(PROGRAMS / "mpi_first.py"), protocol=protocol)
    assert done.returncode == 0, done.stderr
