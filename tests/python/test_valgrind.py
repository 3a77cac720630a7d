"""The C tests under valgrind's memcheck: what it calls an error, or memory lost for good, is a finding.

It sees what the sanitizers do not: values that were never set, in branches and in system calls.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAMS = Path(__file__).resolve().parents[2] / "build" / "ctest" / "tests"
FINDING = 99  # a status that no test uses
LIMIT_S = 400
CASES = ["connect", "reconnect", "segments", "rdma_write", "rdma_read", "read_denied", "bad_descriptor"]


@pytest.mark.parametrize(
    "command", [["test_conformance", "loop", *CASES], ["test_api"], ["test_mem"]], ids=lambda c: c[0]
)
def test_memcheck(command: list[str]) -> None:
    if shutil.which("valgrind") is None:
        pytest.skip("missing package valgrind: sudo apt-get install valgrind")
    program = PROGRAMS / command[0]
    if not program.exists():
        pytest.skip(f"{program} is not built: make ctest")
    checks = ["--error-exitcode=" + str(FINDING), "--leak-check=full", "--errors-for-leak-kinds=definite"]
    result = subprocess.run(
        ["valgrind", "-q", *checks, str(program), *command[1:]], capture_output=True, text=True, timeout=LIMIT_S
    )
    if result.returncode == 77:
        pytest.skip(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
