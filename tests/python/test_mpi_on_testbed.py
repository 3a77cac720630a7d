"""Messages of MPICH and Open MPI between two hosts of a testbed: over their TCP, on the wire of other protocols."""

from __future__ import annotations

import json
import subprocess

import leftovers
import needs
import pytest
from launch_job import VIAKIT

from viakit.launch import mpi_library as mpi
from viakit.measure.pair import Pair

LIMIT_S = 200.0
pytestmark = pytest.mark.timeout(300)


def sent_by(host) -> int:
    """Return the bytes that the interface of a host has sent."""
    lines = host.run(["cat", "/proc/net/dev"]).stdout.splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_every_byte_crosses_the_wire(flavour):
    needs.mpi_library(f"mpi:{flavour}")
    with leftovers.mpi_files() as left:
        with needs.hosts() as testbed, Pair(f"mpi:{flavour}", testbed=testbed, timeout_s=LIMIT_S) as pair:
            sent = [sent_by(host) for host in testbed.hosts]
            pair.run(100_000, count=20, warmup=0, validate=True)
            assert all(sent_by(host) - was >= 20 * 100_000 for host, was in zip(testbed.hosts, sent, strict=True))
            assert "TCP" in pair.info["transport"] or "btl self,tcp" in pair.info["transport"]
            assert pair.info["hosts"] == "testbed"
            assert left(), "no file of the job was found"
        assert not left()


def test_sweep_has_the_mpis_beside_other_protocols_on_request(tmp_path):
    names = ["via-eth", "tcp", "mpi:openmpi", "mpi:mpich"]
    for name in names[2:]:
        needs.mpi_library(name)
    needs.hosts().close()
    words = ["--sizes", "64", "--seconds", "1", "--validate", "--hosts", "testbed", "--json", str(tmp_path / "r"), "-q"]
    done = subprocess.run([*VIAKIT, "sweep", *names, *words], capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stderr
    series = json.loads((tmp_path / "r").read_text())["series"]
    assert [(one["protocol"], one["hosts"], one["mtu"]) for one in series] == [
        (name, "testbed", 1500) for name in names
    ]
