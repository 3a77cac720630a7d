"""``mpi:openmpi:fresh`` and ``mpi:mpich:fresh``: the ranks of an MPI library, in new processes for each burst."""

from __future__ import annotations

import os
import signal

import leftovers
import needs
import numpy as np
import pytest
import waiting

from viakit.base.marks import marked
from viakit.launch import mpi_library as mpi
from viakit.measure import plan, result, sweep, table
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair

LIMIT_S = 120.0
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(autouse=True)
def _no_file_of_mpi_left():
    with leftovers.mpi_files() as left:
        yield
        waiting.until(lambda: not left(), "no file of an MPI library is left", LIMIT_S)


def exists(pid: int) -> bool:
    """Return whether a process is there, also as a zombie."""
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_each_burst_has_processes_of_its_own(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    with Pair(f"mpi:{flavour}:fresh", timeout_s=LIMIT_S) as pair:
        library, pids, folders = pair.info["libmpi"], [pair.pids], [pair._mpi.scratch]
        for nbytes in (64, 100_000, 64):
            assert np.size(pair.run(nbytes, count=20, validate=True).one_way_s) == 20
            pids.append(pair.pids)
            folders.append(pair._mpi.scratch)
        assert pair.info["libmpi"] == library
        assert pids[0] == pids[1]  # The first processes have not sent a message before.
        assert len({pid for both in pids for pid in both}) == 6
        assert not any(map(exists, {*pids[0], *pids[2]}))
        assert [os.path.exists(folder) for folder in folders[1:]] == [False, False, True]
    waiting.until(lambda: not any(map(exists, pids[3])), "the last processes have gone", LIMIT_S)
    assert not any(marked("VIAKIT_RANKS", folder) for folder in folders)


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_between_hosts_each_burst_has_processes_of_its_own(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    with needs.hosts() as bed, Pair(f"mpi:{flavour}:fresh", testbed=bed, buffers="same", timeout_s=LIMIT_S) as pair:
        for nbytes in (64, 100_000):
            assert np.size(pair.run(nbytes, count=20).one_way_s) == 20
        assert "TCP" in pair.info["transport"] or "btl self,tcp" in pair.info["transport"]
        assert pair.info["hosts"] == "testbed"


def test_the_start_of_processes_is_not_the_time_of_their_messages():
    """The bursts of a point do not become shorter because processes start before each of them."""
    needs.mpi_library("mpi:mpich")
    config = sweep.Config(["mpi:mpich:fresh"], [64], seconds=4.0, buffers="same", hosts="local")
    document = sweep.run(config).document
    result.validate(document)
    (point,) = document["series"][0]["points"]
    assert len(point["bursts_s"]) > 1
    bursts_s = point["samples"] / len(point["bursts_s"]) * 2 * point["one_way_s"]["median"]
    assert bursts_s > sweep.SHORTEST_BURST_S


def test_a_rank_that_ends_between_bursts_is_replaced():
    needs.mpi_library("mpi:openmpi")
    with Pair("mpi:openmpi:fresh", timeout_s=LIMIT_S) as pair:
        pair.run(64, count=20)
        before = pair.pids
        os.kill(before[1], signal.SIGKILL)
        assert np.size(pair.run(64, count=20).one_way_s) == 20
        assert not {*before} & {*pair.pids}


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_processes_that_cannot_start_again_close_the_pair(flavour, monkeypatch):
    needs.mpi_library(f"mpi:{flavour}")
    with Pair(f"mpi:{flavour}:fresh", timeout_s=LIMIT_S) as pair:
        pair.run(64, count=20)
        monkeypatch.setattr(mpi, "_candidates", lambda: iter(()))
        with pytest.raises(MeasureError, match=f"mpi:{flavour}: no .*pip install"):
            pair.run(64, count=20)
        with pytest.raises(MeasureError, match="Remedy: open a new one"):
            pair.run(64)
    assert not any(map(exists, pair.pids))


def test_the_verdict_on_netpipe_is_on_new_processes():
    series = [
        {"protocol": name, "buffers": "same", "points": [{"nbytes": 64, "one_way_s": {"median": time}}]}
        for name, time in (("mpi:mpich", 2.0), ("mpi:mpich:fresh", 1.0), ("netpipe:mpich", 1.01))
    ]
    common = {"mode": "pingpong", "wait": "poll", "level": "c", "hosts": "local", "mtu": None}
    assert table.agreement({"series": [one | common for one in series]}) == [
        "netpipe:mpich and mpi:mpich:fresh agree within 10 % at 1 of 1 size."
    ]


def test_blocking_waits_are_refused():
    with pytest.raises(plan.UsageError, match="--wait block, only with poll"):
        plan.plan(plan.Config(["mpi:mpich:fresh"], [8], wait="block"))
