"""The programs in the README run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"


def pingpong() -> str:
    match = re.search(r"<!-- pingpong -->\s*```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match, "the README has no program behind <!-- pingpong -->"
    return match[1]


def test_pingpong_is_short():
    assert len([line for line in pingpong().splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize("again", range(3))
def test_pingpong_runs(tmp_path, again):
    program = tmp_path / "pingpong.py"
    program.write_text(pingpong(), encoding="utf-8")
    command = [sys.executable, "-W", "error::ResourceWarning", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert re.search(r"[0-9.]+ µs", result.stdout), result.stdout
