"""Faults of two machines: one that is out of reach, a wire that is cut, and a machine that is killed.

The two machines serve all files of this folder, so a third one is killed.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from vm_machine import HOSTS, LIMIT_S, PROGRAM, VIAKIT, guest

pytestmark = pytest.mark.timeout(600)
RECEIVES = """
import viakit
comm = viakit.world()
comm.barrier()
if comm.rank == 0:
    print("met", flush=True)
comm.recv(source=(comm.rank + 1) % comm.size)
"""


class Job:
    """`viakit run` with ranks that wait, with ssh connections of its own."""

    def __init__(self, shared: Path, *words: str, hosts: str = HOSTS, program: str = PROGRAM) -> None:
        self.program = shared / "waits.py"
        self.program.write_text(program)
        self.process = subprocess.Popen(
            [VIAKIT, "run", "--hosts", hosts, *words, self.program, "wait"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "VIAKIT_SSH": f"ssh -F {shared}/alone"},
        )
        # The ranks run once rank 0 has written its line. Those of others may come before it.
        self.first = next((line for line in self.process.stdout if not line.startswith("waits")), "")

    def end(self) -> str:
        """Return the messages of the job, which has to end by itself."""
        try:
            _, errors = self.process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        assert self.process.returncode != 0
        return errors


def gone(machine, word: str) -> None:
    """Wait until no process of a machine has *word* in its command line."""
    deadline = time.monotonic() + LIMIT_S
    while guest(machine, f"pgrep -f {word} || true").split():
        assert time.monotonic() < deadline, guest(machine, f"ps ax | grep {word}")
        time.sleep(0.2)


def test_a_job_whose_machine_is_out_of_reach(vm, shared):
    """The cable of ssh is pulled: the error names the host, and no process is left on either machine."""
    job = Job(shared)
    assert job.first.split() == ["1", "alpha", "beta"], job.end()
    with vm[1].unplugged("mgmt"):
        errors = job.end()
    assert "host beta" in errors
    assert "silent" in errors
    for machine in vm:
        gone(machine, "[w]aits.py")


@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_a_job_whose_data_wire_is_cut(vm, shared, protocol):
    """The error names the hosts of all ranks, and no process is left on either machine."""
    job = Job(shared, "--network", "eth:virtio", "--protocol", protocol, program=RECEIVES)
    assert job.first.split() == ["met"], job.end()
    with vm[1].unplugged("virtio"):
        errors = job.end()
    assert "alpha has rank 0, beta has rank 1" in errors
    assert " on alpha" in errors.splitlines()[-1] or " on beta" in errors.splitlines()[-1]
    for machine in vm:
        gone(machine, "[w]aits.py")


def sweep(shared: Path, file: Path, *words: str, hosts: str = HOSTS) -> subprocess.Popen:
    """Start a sweep over the cards virtio, with ssh connections of its own."""
    return subprocess.Popen(
        [VIAKIT, "sweep", *words, "--hosts", hosts, "--network", "eth:virtio", "--live", "--json", file],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VIAKIT_SSH": f"ssh -F {shared}/alone"},
    )


@pytest.mark.parametrize("protocol", ["via-eth", "tcp"])
def test_a_wire_that_is_cut(vm, shared, tmp_path, protocol):
    """ssh goes on over its own wire. The error names both machines, the sizes before are kept, nothing is left."""
    file = tmp_path / "kept.json"
    # The first size has a small share of the time; the second one is not done when the cable is pulled.
    process = sweep(shared, file, protocol, "--sizes", "64,1K", "--seconds", "600")
    try:
        assert process.stdout.readline(), process.communicate()  # the first figure
        with vm[1].unplugged("virtio"):
            _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    assert "alpha" in errors
    assert "beta" in errors
    document = json.loads(file.read_text())
    assert not document["complete"]
    assert document["series"][0]["points"]
    for machine in vm:
        gone(machine, "viakit.measure.[w]orker")


def test_a_machine_that_is_killed(three, shared, tmp_path):
    """A sweep keeps its measurements, the error names the host, and no process is left on the other machine."""
    words = ("via-eth", "tcp", "--sizes", "64", "--seconds", "200")
    process = sweep(shared, tmp_path / "kept.json", *words, hosts="ssh:alpha,gamma")
    try:
        assert process.stdout.readline(), process.communicate()  # the first figure
        three[2].kill()
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    assert "gamma" in errors
    kept = json.loads((tmp_path / "kept.json").read_text())
    assert any(series["points"] for series in kept["series"])  # either may have had the first turn
    gone(three[0], "viakit.measure.[w]orker")
