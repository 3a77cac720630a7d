"""viakit between two machines with kernels of their own, on an emulated cable: sweeps, jobs, an application, netem."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from vm_machine import HOSTS, LIMIT_S, PROGRAM, VIAKIT, guest

pytestmark = pytest.mark.timeout(600)
PROTOCOLS = ["via-eth", "via-udp", "tcp", "msg-via"]


def viakit(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([VIAKIT, *words], capture_output=True, text=True, timeout=LIMIT_S)


def test_each_machine_has_its_own_kernel(vm, boot):
    boots = [guest(machine, "uname -r; cat /proc/sys/kernel/random/boot_id").split() for machine in vm]
    assert [release for release, _ in boots] == [boot.release] * 2
    assert boots[0][1] != boots[1][1]


def test_sweep_between_machines(vm, tmp_path):
    """Messages of four protocols are validated, and the result has both machines' environments."""
    file = tmp_path / "sweep.json"
    words = ["--hosts", HOSTS, "--network", "eth:virtio", "--sizes", "64,4K,64K", "--seconds", "3", "--validate"]
    done = viakit("sweep", *PROTOCOLS, *words, "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {one["protocol"] for one in document["series"]} == set(PROTOCOLS)
    assert all(len(one["points"]) == 3 for one in document["series"])
    assert document["validated"]
    assert "(virtio)" in document["environment"]["network"]
    environments = [one["environment"] for one in document["environment"]["hosts"]]
    assert [one["host"] for one in environments] == ["alpha", "beta"]


@pytest.mark.parametrize("network", ["eth:virtio", "udp:10.9.2.0/24"])
def test_ranks_on_both_machines(vm, shared, network):
    (shared / "prog.py").write_text(PROGRAM)
    done = viakit("run", "-n", "4", "--hosts", HOSTS, "--network", network, shared / "prog.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6", "alpha", "alpha", "beta", "beta"]


def test_an_application_on_both_machines(vm):
    done = viakit("app", "ep", "-n", "2", "--class", "S", "--hosts", HOSTS)
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_bad_wire(vm, tmp_path):
    """The kernel's own netem loses, delays and reorders packets, and every message arrives.

    The queue with netem is passed by UDP. The link eth bypasses the kernel's queues.
    """
    file = tmp_path / "bad.json"
    for machine in vm:
        guest(machine, "tc qdisc add dev e1000 root netem delay 2ms 1ms loss 10% reorder 20%")
    try:
        words = ["--hosts", HOSTS, "--network", "udp:10.9.2.0/24", "--sizes", "64,20K", "--seconds", "2", "--validate"]
        done = viakit("sweep", "via-udp", *words, "--json", file)
        assert done.returncode == 0, done.stderr
        assert json.loads(file.read_text())["validated"]
        lost = [int(word) for machine in vm for word in _dropped(guest(machine, "tc -s qdisc show dev e1000"))]
        assert sum(lost) > 0
    finally:
        for machine in vm:
            guest(machine, "tc qdisc del dev e1000 root")


def _dropped(text: str) -> list[str]:
    words = text.replace(",", " ").split()
    return [words[i + 1] for i, word in enumerate(words) if word == "(dropped"]
