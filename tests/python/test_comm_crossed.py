"""Ranks that wait for each other in collectives of different communicators: an error if and only if it is for ever."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

JOB = Path(__file__).with_name("crossed_job.py")
JOBS = [
    ("late", 24, "via"),
    ("stuck", 20, "via"),
    ("stuck", 2, "via"),
    ("stuck", 3, "via"),
    ("stuck", 3, "tcp"),
    ("legal", 3, "via"),
    ("legal", 3, "tcp"),
]


@pytest.fixture(scope="module")
def started():
    """All jobs, at the same time, because their ranks do little but wait."""
    jobs = {}
    for kind, ranks, protocol in JOBS:
        command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--protocol", protocol, "--timeout", "200"]
        jobs[kind, ranks, protocol] = subprocess.Popen(
            [*command, str(JOB), kind], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    yield jobs
    for job in jobs.values():
        job.terminate()
        job.communicate()


@pytest.mark.parametrize("job", JOBS, ids=lambda job: " ".join(map(str, job)))
def test_an_error_if_and_only_if_no_rank_can_go_on(started, job):
    output, _ = started[job].communicate(timeout=230)
    assert "WRONG" not in output
    assert "END" in output
    assert started[job].returncode == 0
