"""Runs of applications on several ranks, for their tests: one job for many problems and numbers of ranks."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import needs
import pytest

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "app.py"
CLAIMS = Path(__file__).resolve().parents[3] / "shared" / "data" / "claims.csv"
DEADLINE_S = 100.0

# "mpi": viakit's communicator on top of mpi4py; "mpi4py": mpi4py's own COMM_WORLD.
CHANNELS = ("via", "bip", "tcp", "mpi", "mpi4py")


def run(
    module: str, problems: list[dict[str, Any]], numbers: list[int], channel: str, scratch: Path
) -> list[dict[str, Any]]:
    """Run each of the *problems* (options by name) on each of these *numbers* of ranks, in one job over *channel*.

    Returns what tests/programs/app.py prints, in order. *scratch* is a folder of the test's own, for Open MPI's files.
    """
    words = [str(PROGRAM), module, json.dumps(problems), json.dumps(numbers)]
    environment = {**os.environ, "VIAKIT_PROTOCOL": channel}
    if channel.startswith("mpi"):
        library = needs.mpi_library("mpi:mpich" if channel == "mpi" else "mpi:openmpi")
        command = library.command([sys.executable, *words], max(numbers))
        environment |= library.environment(str(scratch))
    else:
        command = [sys.executable, "-m", "viakit", "run", "-n", str(max(numbers)), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment, cwd=scratch)
    assert done.returncode == 0, f"{channel}: status {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == len(problems) * len(numbers), done.stdout
    return lines


def paper(system: str, quantity: str) -> float:
    """A figure of Table II: of "SOR-Zero", the "number of messages" or "total transfers" (KB), on 8 processors."""
    if not CLAIMS.is_file():
        pytest.skip(f"the papers' figures are not here: {CLAIMS.name}")
    with CLAIMS.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if (row["section_or_table"], row["system"], row["quantity"]) == ("Table II", system, quantity):
                return float(row["value"])
    raise AssertionError(f"no row of {system}, {quantity} in {CLAIMS}")
