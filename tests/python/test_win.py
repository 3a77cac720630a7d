"""One-sided communication and topologies between ranks, on all channels (win_job.py, topology_job.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import needs
import pytest

HERE = Path(__file__).parent
CHANNELS = {
    "via": ["--protocol", "via"],
    "via, hosts": ["--protocol", "via", "--hosts", "testbed:2"],
    "bip": ["--protocol", "bip"],
    "tcp": ["--protocol", "tcp"],
}


def run(job, case, ranks, channel):
    if "hosts" in channel:
        needs.hosts().close()
    command = [sys.executable, "-m", "viakit", "run", "-n", str(ranks), *CHANNELS[channel], "--timeout", "200"]
    done = subprocess.run([*command, str(HERE / job), case], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert f"END {case}" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.parametrize("case", ["values", "datatypes", "atomics", "computing", "memory"])
@pytest.mark.parametrize("channel", CHANNELS)
def test_windows(channel, case):
    run("win_job.py", case, 3, channel)


@pytest.mark.parametrize("case", ["values", "errors"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_windows_of_few_ranks(ranks, case):
    run("win_job.py", case, ranks, "via")


@pytest.mark.parametrize("channel", ["via", "via, hosts"])
def test_a_put_is_one_rdma_write_and_the_target_does_nothing(channel):
    run("win_job.py", "counters", 2, channel)


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize("case", ["errors", "death"])
def test_wrong_use_and_a_rank_that_dies(case, channel):
    run("win_job.py", case, 3, channel)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_topologies(ranks):
    run("topology_job.py", "all", ranks, "via")
