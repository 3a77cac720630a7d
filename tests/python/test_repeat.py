"""tools/repeat.py counts runs, and keeps what belongs to a failure."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "repeat.py"
spec = importlib.util.spec_from_file_location("repeat", TOOL)
repeat = importlib.util.module_from_spec(spec)
sys.modules["repeat"] = repeat  # for its dataclass
spec.loader.exec_module(repeat)


def runs(script: str, folder: Path, monkeypatch: pytest.MonkeyPatch, timeout_s: float = 60):
    """Return the runs of a shell script, from seed 100 on."""
    monkeypatch.setattr(repeat, "KEPT", folder)
    return repeat.Runs(repeat.Case(["sh", "-c", script], folder, timeout_s), 100, "some test", True)


def test_each_run_has_its_seed_and_only_failures_are_kept(tmp_path, monkeypatch):
    made = runs('echo seed $VIAKIT_TEST_SEED; [ $VIAKIT_SEED -ne 103 ] || exit 77; [ $VIAKIT_SEED -ne 105 ]',
                tmp_path, monkeypatch)  # fmt: skip
    made.go(8, 3, time.monotonic() + 60)
    assert (made.passed, made.failed, made.skipped) == (6, 1, 1)
    (kept,) = (tmp_path / "some_test").iterdir()
    assert kept.name == "105"
    assert (kept / "output.txt").read_text() == "seed 105\n"
    assert "VIAKIT_TEST_SEED=105" in (kept / "command.txt").read_text()


def test_a_run_that_hangs_is_ended_and_leaves_what_it_waits_for(tmp_path, monkeypatch):
    made = runs("sleep 1000 & wait", tmp_path, monkeypatch, timeout_s=2)
    made.go(1, 1, time.monotonic() + 60)
    assert made.failed == 1
    assert "sleep 1000" in (tmp_path / "some_test" / "100" / "stacks.txt").read_text()


def test_frames_of_a_run_that_fails_are_kept(tmp_path, monkeypatch):
    made = runs('echo x > "${VIAKIT_TAP%%,*}capture"; exit 1', tmp_path, monkeypatch)
    made.go(1, 1, time.monotonic() + 60)
    assert (tmp_path / "some_test" / "100" / "capture").exists()


def test_a_test_that_does_not_exist_is_an_error(monkeypatch):
    monkeypatch.setattr(repeat, "of_meson", lambda *words: None)
    assert repeat.main(["no such test"]) == 2


def test_cases_replace_those_that_meson_names(monkeypatch):
    listed = '[{"name": "life shm", "cmd": ["test_life", "shm", "stopped", "left"], "timeout": 60, "env": {}}]'
    answer = repeat.subprocess.CompletedProcess([], 0, stdout=listed, stderr="")
    monkeypatch.setattr(repeat.subprocess, "run", lambda *words, **options: answer)
    assert repeat.of_meson("life shm", ["closed"], Path("build")).command == ["test_life", "shm", "closed"]
    assert repeat.of_meson("life shm", [], Path("build")).command == ["test_life", "shm", "stopped", "left"]
