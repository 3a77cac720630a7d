"""Collectives that one rank refuses, or that do not match: on all channels the other ranks notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import needs
import pytest

JOB = Path(__file__).with_name("refusals_job.py")
CHANNELS = {
    "via": ["--protocol", "via"],
    "via, hosts": ["--protocol", "via", "--hosts", "testbed:2"],
    "bip": ["--protocol", "bip"],
    "tcp": ["--protocol", "tcp"],
}


@pytest.mark.parametrize("kind", ["refused", "mismatched"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("channel", CHANNELS)
def test_no_rank_waits_for_ever(channel, ranks, kind):
    if "hosts" in channel:
        needs.hosts().close()
    command = [
        sys.executable,
        "-m",
        "viakit",
        "run",
        "-n",
        str(ranks),
        *CHANNELS[channel],
        "--timeout",
        "300",
        str(JOB),
    ]
    done = subprocess.run([*command, kind], capture_output=True, text=True, timeout=330)
    assert "WRONG" not in done.stdout, (done.stdout, done.stderr)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "END" in done.stdout, (done.stdout, done.stderr)
