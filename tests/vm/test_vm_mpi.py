"""MPI libraries between two machines with kernels of their own, beside VIA and TCP on the same cable."""

from __future__ import annotations

import json

import needs
import pytest
from test_vm_programs import viakit
from vm_machine import HOSTS

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("flavour", ["mpich", "openmpi"])
def test_an_mpi_between_machines(vm, tmp_path, flavour):
    """Messages are validated, and the result has both machines' environments."""
    needs.mpi_library(f"mpi:{flavour}")
    protocols = ["via-eth", "via-udp", "tcp", f"mpi:{flavour}"]
    file = tmp_path / "sweep.json"
    # Open MPI takes interfaces whose names begin with "vir" for bridges of virtual machines, and ignores them.
    words = ["--hosts", HOSTS, "--network", "eth:e1000", "--sizes", "64,20K", "--seconds", "3", "--validate"]
    done = viakit("sweep", *protocols, *words, "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document["validated"]
    assert [one["protocol"] for one in document["series"]] == protocols
    assert {one["hosts"] for one in document["series"]} == {"ssh"}
    assert {len(one["points"]) for one in document["series"]} == {2}
    environments = [one["environment"] for one in document["environment"]["hosts"]]
    assert [one["host"] for one in environments] == ["alpha", "beta"]
