"""Measured thresholds: how they follow from times, and that worlds use them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest

from viakit import _core
from viakit.cli import calibrating
from viakit.measure import calibrate, turns
from viakit.measure import calibrate_messages as messages
from viakit.measure.calibrate_messages import LONG, SIZES, Thresholds, calibrate_messages, choose

DEADLINE_S = 60.0
PROGRAM = """
import sys
import viakit
comm = viakit.world()
got = comm.world.policy()
print(*(f"{name}={got[name]}" for name in sys.argv[1].split(",")))
comm.Barrier()
"""


def times(crossing: int, best: str = "rput") -> dict[tuple[str, int], float]:
    """Times by which sending at once pays up to `crossing` bytes, and `best` is the best way above."""
    found = {("eager", n): 1e-6 + 2e-9 * n for n in SIZES}
    for way in ("rput", "rget", "r3"):
        slower = 1.0 if way == best else 1.2
        found |= {(way, n): slower * (1e-6 + 1e-9 * crossing * 1.01 + 1e-9 * n) for n in SIZES + LONG}
    return found


@pytest.mark.parametrize("crossing", [1024, 8192, 32768])
@pytest.mark.parametrize("best", ["rput", "rget"])
def test_what_follows_from_times(crossing, best):
    gaps = {16: 3e-6, 32: 1.02e-6, 64: 1e-6, 128: 1.1e-6}
    assert choose(times(crossing, best), gaps) == {"eager_limit": str(crossing), "rendezvous": best, "credits": "32"}


def test_a_tie_goes_to_the_simpler_way():
    found = times(4096)
    found |= {("rget", n): 0.99 * found["rput", n] for n in SIZES + LONG}
    assert choose(found, {})["rendezvous"] == "rput"


def opened(folder: Path | str, fields: str, *options: str, ranks: int = 2, **environment: str) -> dict[str, str]:
    """Open a world with the calibrations in a folder, and return fields of its policy."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "viakit",
            "run",
            "-n",
            str(ranks),
            *options,
            "--",
            sys.executable,
            "-c",
            PROGRAM,
            fields,
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "VIAKIT_MSG_CALIBRATION": str(folder), **environment},
    )
    assert done.returncode == 0, done.stderr
    lines = set(done.stdout.splitlines())
    assert len(lines) == 1, lines  # all ranks alike
    return dict(pair.split("=") for pair in lines.pop().split())


FIELDS = "eager_limit_local,rendezvous_local,credits"
BUILT_IN = {"eager_limit_local": "8192", "rendezvous_local": "1", "credits": "64"}


def test_a_world_is_opened_with_what_was_measured(tmp_path):
    found = Thresholds("shm", times(2048, "rget"), {16: 1e-6, 32: 1e-6})
    path = found.save(str(tmp_path / "msg-shm.txt"))
    assert "eager_limit 2048" in Path(path).read_text(encoding="utf-8")
    measured = {"eager_limit_local": "2048", "rendezvous_local": "1", "credits": "16"}
    assert opened(tmp_path, FIELDS) == measured
    # the environment counts more, and what the call says most
    assert opened(tmp_path, FIELDS, VIAKIT_MSG="credits=40") == {**measured, "credits": "40"}
    said = opened(tmp_path, FIELDS, "--policy", "via,eager_limit_local=4K,rendezvous=r3", VIAKIT_MSG="credits=40")
    assert said == {"eager_limit_local": "4096", "rendezvous_local": "2", "credits": "16"}
    # and where there is no file there are values all the same
    assert opened("", FIELDS) == BUILT_IN


@pytest.mark.parametrize("text", ["", "eager_limit many\n", "eager_limit -5\ncredits 0\n\0\xff", "x" * 100000])
def test_a_file_that_makes_no_sense_is_passed_over(tmp_path, text):
    (tmp_path / "msg-shm.txt").write_text(text, encoding="latin-1")
    assert opened(tmp_path, FIELDS) == BUILT_IN


def test_where_the_file_is(monkeypatch, tmp_path):
    monkeypatch.delenv("VIAKIT_MSG_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _core.message_calibration_path("eth") == f"{tmp_path}/viakit/msg-eth.txt"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _core.message_calibration_path("shm") == f"{tmp_path}/.cache/viakit/msg-shm.txt"
    monkeypatch.delenv("HOME")
    with pytest.raises(FileNotFoundError, match="XDG_CACHE_HOME"):
        _core.message_calibration_path("shm")


def test_a_short_calibration(tmp_path):
    """From the measurement to the file that a world reads."""
    said: list[str] = []
    found = calibrate_messages("shm", seconds=0.5, say=said.append)
    assert len(said) == 4 + 2, "each method once, and two numbers of credits"
    assert int(found.choice["eager_limit"]) in (512, *SIZES)
    found.save(str(tmp_path / "msg-shm.txt"))
    got = opened(tmp_path, FIELDS)
    assert got["eager_limit_local"] == found.choice["eager_limit"]
    assert got["credits"] == found.choice["credits"]


class TimedPair:
    """A pair in virtual time: START_S to start, 10 ms to connect again, 2 µs and 0.2 ns per byte for a message."""

    START_S = 0.4
    now_s = 1000.0
    starts: ClassVar[list[str]] = []

    def __init__(self, protocol, **options):
        self.starts.append(protocol)
        self.pass_time(self.START_S)

    @classmethod
    def pass_time(cls, seconds):
        cls.now_s += seconds

    def reopen(self, options):
        self.pass_time(0.01)

    def run(self, nbytes, mode="pingpong", count=1000, repeats=1):
        one_way_s = 2e-6 + 2e-10 * nbytes
        self.pass_time((2 if mode == "pingpong" else repeats) * count * one_way_s)
        return SimpleNamespace(one_way_s=np.full(3, one_way_s))

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.pass_time(0.01)


@pytest.mark.parametrize("seconds", [0.75, 1.5, 3.0])
@pytest.mark.parametrize("what", ["bip", "messages"])
def test_the_time_of_a_calibration_includes_the_start_of_processes(monkeypatch, what, seconds):
    monkeypatch.setattr(TimedPair, "starts", [])
    for module in (calibrate, messages):
        monkeypatch.setattr(module, "Pair", TimedPair)
    monkeypatch.setattr(turns.time, "monotonic", lambda: TimedPair.now_s)
    begun = TimedPair.now_s
    (calibrate.calibrate if what == "bip" else calibrate_messages)("shm", seconds=seconds)
    assert TimedPair.starts == ["bip-shm" if what == "bip" else "msg-via"], "processes serve one setting only"
    passed = TimedPair.now_s - begun  # in virtual time, so it is exact
    assert 0.6 * seconds < passed < 1.4 * seconds


def test_links_share_the_time_of_the_command_if_it_is_long_enough_for_them():
    assert [calibrating._n_fitting(list(messages.LINKS), seconds) for seconds in (0, 1, 3, 5, 60)] == [0, 0, 1, 2, 4]
    assert calibrating._n_fitting([], 60) == 0
