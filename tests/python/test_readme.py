"""The programs in the README run as they stand there."""

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
    assert re.search(r"[0-9.]+ us", result.stdout), result.stdout


def guide_programs() -> list[str]:
    guide = README.parent / "docs" / "python.md"
    return re.findall(r"```python\n(.*?)```", guide.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(len(guide_programs())))
def test_programs_of_the_guide_run(tmp_path, number):
    program = tmp_path / "guide.py"
    program.write_text(guide_programs()[number], encoding="utf-8")
    command = [sys.executable, "-W", "error", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
