"""viakit on three machines at a switch: jobs, an application, barriers, a wire that is cut, a machine that is killed.

The last test kills the third machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator

import pytest
from test_vm_programs import viakit
from test_vm_trouble import RECEIVES, Job, gone
from vm_machine import ALL_HOSTS, LIMIT_S, guest

pytestmark = pytest.mark.timeout(600)
NETWORKS = ["eth:virtio", "udp:10.9.2.0/24"]
# Each rank exchanges a message of several frames with each other one.
PAIRS = """
import socket
import numpy as np
import viakit
comm = viakit.world()
for other in range(comm.size):
    if other != comm.rank:
        sent, got = np.full(20000, comm.rank, np.uint8), np.empty(20000, np.uint8)
        comm.Sendrecv(sent, other, 0, got, other, 0)
        assert (got == other).all()
names = comm.gather(socket.gethostname())
if comm.rank == 0:
    print(*names, flush=True)
"""


@pytest.mark.parametrize("network", NETWORKS)
def test_each_of_three_reaches_the_others(three, shared, network):
    (shared / "pairs.py").write_text(PAIRS)
    done = viakit("run", "-n", "3", "--hosts", ALL_HOSTS, "--network", network, shared / "pairs.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["alpha", "beta", "gamma"]


@pytest.mark.parametrize("network", NETWORKS)
def test_an_application_on_three(three, network):
    """Its result is verified."""
    words = ["--class", "S", "--hosts", ALL_HOSTS, "--network", network]
    done = viakit("app", "is", "-n", "3", *words)
    assert done.returncode == 0, done.stderr + done.stdout


def test_barriers_on_three(three, tmp_path):
    file = tmp_path / "barriers.json"
    words = ["--ranks", "3", "--hosts", ALL_HOSTS, "--network", "eth:virtio", "--no-mpi", "--seconds", "1"]
    done = viakit("barrier", *words, "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document["complete"]
    environments = [one["environment"] for one in document["environment"]["hosts"]]
    assert [one["host"] for one in environments] == ["alpha", "beta", "gamma"]


def test_a_wire_of_three_that_is_cut(three, shared):
    """The error names the hosts of all ranks, and no process is left."""
    job = Job(shared, "--network", "eth:virtio", hosts=ALL_HOSTS, program=RECEIVES)
    assert job.first.split() == ["met"], job.end()
    with three[2].unplugged("virtio"):
        errors = job.end()
    assert "alpha has rank 0, beta has rank 1, gamma has rank 2" in errors
    for machine in three:
        gone(machine, "[w]aits.py")


@contextlib.contextmanager
def watch(machine, word: str) -> Iterator[subprocess.Popen]:
    """Run a command on a machine that ends once no process there has *word* in its command line."""
    loop = f"echo watches; while pgrep -f {word} >/dev/null; do sleep 0.1; done"
    ssh = os.environ["VIAKIT_SSH"].split()
    with subprocess.Popen([*ssh, machine.name, loop], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as watcher:
        try:
            assert watcher.stdout.readline()
            yield watcher
        finally:
            watcher.kill()


def test_one_of_three_that_is_killed(three, shared):
    """The error names it, and the others' processes end within 2 s of the end of the command."""
    job = Job(shared, hosts=ALL_HOSTS)
    assert job.first.split() == ["3", "alpha", "beta", "gamma"], job.end()
    with contextlib.ExitStack() as stack:
        watchers = [stack.enter_context(watch(one, "'[w]aits.py|viakit.remote.[a]gent'")) for one in three[:2]]
        three[2].kill()
        errors = job.end()
        ended = time.monotonic()
        for watcher in watchers:
            watcher.wait(timeout=LIMIT_S)
        assert time.monotonic() - ended < 2.0, [guest(machine, "ps ax") for machine in three[:2]]
    assert "gamma" in errors
    assert "rank 2 was there" in errors
