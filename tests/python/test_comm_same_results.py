"""One long program of several ranks: its results over every channel are those of mpi4py on Open MPI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from comm_job import DEADLINE_S, PROGRAMS, PROTOCOLS, job


def under_mpi(ranks: int, scratch: Path) -> str:
    """Return the output of the program under mpi4py and Open MPI."""
    library = needs.mpi_library("mpi:openmpi")
    command = library.command([sys.executable, str(PROGRAMS / "mpi_program.py")])
    command[2] = str(ranks)
    environment = {**os.environ, **library.environment(str(scratch)), "MPI_MODULE": "mpi4py"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_same_results_as_mpi4py(ranks, tmp_path):
    expected = under_mpi(ranks, tmp_path)
    assert expected.startswith("hash ")
    for protocol in PROTOCOLS:
        done = job(ranks, str(PROGRAMS / "mpi_program.py"), protocol=protocol)
        assert done.returncode == 0, done.stderr
        assert done.stdout == expected, protocol
    done = job(ranks, str(PROGRAMS / "mpi_program.py"), protocol="mpi:mpich")
    assert done.returncode == 0, done.stderr
    assert done.stdout == expected
