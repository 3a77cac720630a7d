"""Faults of two machines: one that is out of reach, and one that is killed.

The last test leaves one machine, so this file is the last of the folder.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from vm_machine import HOSTS, LIMIT_S, PROGRAM, VIAKIT, guest

pytestmark = pytest.mark.timeout(600)


class Job:
    """`viakit run` with ranks that wait, with ssh connections of its own."""

    def __init__(self, shared: Path, *words: str) -> None:
        self.program = shared / "waits.py"
        self.program.write_text(PROGRAM)
        self.process = subprocess.Popen(
            [VIAKIT, "run", "-n", "2", "--hosts", HOSTS, *words, self.program, "wait"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "VIAKIT_SSH": f"ssh -F {shared}/alone"},
        )
        self.first = self.process.stdout.readline()  # the ranks run once there is a line

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
    vm[1].set_link("mgmt", up=False)
    try:
        errors = job.end()
    finally:
        vm[1].set_link("mgmt", up=True)
    assert "host beta" in errors
    assert "silent" in errors
    for machine in vm:
        gone(machine, "[w]aits.py")


def test_a_machine_that_is_killed(vm, shared, tmp_path):
    """A sweep keeps its measurements, the error names the host, and no process is left on the other machine."""
    file = tmp_path / "kept.json"
    words = ["--hosts", HOSTS, "--network", "eth:virtio", "--sizes", "64", "--seconds", "200", "--json", file]
    process = subprocess.Popen(
        [VIAKIT, "sweep", "via-eth", "tcp", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VIAKIT_SSH": f"ssh -F {shared}/alone"},
    )
    try:
        deadline = time.monotonic() + LIMIT_S
        while not guest(vm[0], "pgrep -f viakit.measure.[w]orker || true").split():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.2)
        vm[1].kill()
        _, errors = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode != 0
    assert "beta" in errors
    gone(vm[0], "viakit.measure.[w]orker")
