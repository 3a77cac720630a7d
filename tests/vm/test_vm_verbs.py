"""The link verbs between two machines with RDMA in software: ranks, messages, an application, a long way, errors.

The conformance suite on this link is in test_vm_conformance.py.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_conformance import Pair
from vm_machine import HOSTS, LIMIT_S, PROGRAM, VIAKIT, guest

from viakit.remote import Remote, RemoteError

pytestmark = pytest.mark.timeout(600)


CONFORMANCE = Path(__file__).resolve().parents[2] / "build" / "ctest" / "tests" / "test_conformance"


def viakit(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run([VIAKIT, *words], capture_output=True, text=True, timeout=LIMIT_S)


def frames_of_card(machine) -> int:
    """Return how many packets the RDMA device has sent."""
    return int(guest(machine, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts"))


def opening(machine, device: str) -> str:
    """Return the message of the error with which a NIC of that device fails to open on a machine."""
    code = f"from viakit import via; via.Nic({device!r})"
    return guest(machine, f'{sys.executable} -c "{code}" 2>&1 | tail -1').strip()


def test_the_suite_in_c(rxe):
    """Two processes of one machine, each with queue pairs of its own. The machine's kernel has no module unix_diag."""
    if not CONFORMANCE.exists():
        pytest.skip(f"{CONFORMANCE} is not built: make ctest")
    done = guest(rxe[0], f"cd /tmp; VIAKIT_TEST_VERBS=rxe0 timeout {LIMIT_S - 10} {CONFORMANCE} verbs 2>&1 || true")
    assert "secret_replayed" in done, done
    assert re.search(r"^verbs: \d+ passed, 0 failed$", done, re.MULTILINE), done


@pytest.mark.parametrize("protocol", ["via", "bip"])
def test_four_ranks(rxe, shared, protocol):
    (shared / "prog.py").write_text(PROGRAM)
    before = [frames_of_card(machine) for machine in rxe]
    words = ["--protocol", protocol, "--hosts", HOSTS, "--network", "verbs:rxe0"]
    done = viakit("run", "-n", "4", *words, shared / "prog.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["6", "alpha", "alpha", "beta", "beta"]
    assert all(frames_of_card(machine) > n for machine, n in zip(rxe, before, strict=True))


def test_an_application(rxe):
    words = ["--hosts", HOSTS, "--network", "verbs:virtio", "-m", "viakit", "app", "ep", "--class", "S"]
    done = viakit("run", "-n", "2", *words)
    assert done.returncode == 0, done.stderr + done.stdout


def test_barriers(rxe, tmp_path):
    """All algorithms of the barrier, those by RDMA write too, between one rank on each machine."""
    file = tmp_path / "barriers.json"
    before = [frames_of_card(machine) for machine in rxe]
    words = ["--hosts", HOSTS, "--network", "verbs:rxe0", "--ranks", "2", "--no-mpi", "--seconds", "1"]
    done = viakit("barrier", *words, "--json", file)
    assert done.returncode == 0, done.stderr
    assert json.loads(file.read_text())["complete"]
    assert all(frames_of_card(machine) > n for machine, n in zip(rxe, before, strict=True))


def test_a_sweep(rxe, tmp_path):
    """VIA and messages are validated, also where the kernel loses and delays packets of the card."""
    file = tmp_path / "sweep.json"
    words = ["--hosts", HOSTS, "--network", "verbs:virtio", "--sizes", "64,20K", "--seconds", "2", "--validate"]
    before = [frames_of_card(machine) for machine in rxe]
    for machine in rxe:
        guest(machine, "tc qdisc add dev virtio root netem delay 2ms 1ms loss 5%")
    try:
        done = viakit("sweep", "via-verbs", "msg-via", *words, "--json", file)
    finally:
        for machine in rxe:
            guest(machine, "tc qdisc del dev virtio root")
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert document["validated"]
    devices = {one["protocol"]: one["info"].get("device") for one in document["series"]}
    assert devices.keys() == {"via-verbs", "msg-via"}
    assert devices["via-verbs"].startswith("verbs:")
    assert all(frames_of_card(machine) > n + 10 for machine, n in zip(rxe, before, strict=True))


def test_the_card_alone(rxe, tmp_path):
    """Sends and RDMA writes of the card by libibverbs alone are validated, polled and blocking, beside VIA on it."""
    file = tmp_path / "sweep.json"
    words = ["--hosts", HOSTS, "--network", "verbs:virtio", "--sizes", "0,64,20K", "--seconds", "2", "--validate"]
    for wait, protocols in (
        ("poll", ["verbs", "verbs-write", "via-verbs", "via-verbs-write"]),
        ("block", ["verbs", "verbs-write"]),
    ):
        done = viakit("sweep", *protocols, *words, "--wait", wait, "--json", file)
        assert done.returncode == 0, done.stderr
        document = json.loads(file.read_text())
        assert document["validated"]
        assert [one["protocol"] for one in document["series"]] == protocols
        assert {len(one["points"]) for one in document["series"]} == {3}


def test_connecting_over_a_long_way(rxe):
    """A frame that has arrived precedes a timer: replies are not missed where a round trip takes 10 ms and more."""
    for machine in rxe:
        guest(machine, "tc qdisc add dev virtio root netem delay 5ms")
    try:
        with Remote("ssh:alpha,beta", timeout_s=100) as remote:
            pair = Pair(
                "verbs:rxe0", lambda role, words, fds: remote.hosts["ab".index(role)].popen(words, pass_fds=fds)
            )
            try:
                for _ in range(3):
                    pair.run("connect", {})
            finally:
                pair.close()
    finally:
        for machine in rxe:
            guest(machine, "tc qdisc del dev virtio root")


def test_a_device_that_does_not_exist(rxe):
    assert "neither an RDMA device of this host nor an interface with one: it has rxe0 (virtio)" in opening(
        rxe[0], "verbs:nothing"
    )
    assert "rxe0 has no port 7" in opening(rxe[0], "verbs:rxe0:7")
    with pytest.raises(
        RemoteError, match=r"alpha has no RDMA device 'nothing' with an address; it has rxe0 \(virtio\)"
    ):
        Remote("ssh:alpha,beta", network="verbs:nothing", timeout_s=100).open()


def test_the_doctor_reports_the_device(rxe):
    findings = json.loads(guest(rxe[0], f"{VIAKIT} doctor --json || true"))["findings"]
    (found,) = (one for one in findings if one["name"] == "RDMA devices")
    assert found["ok"] is True
    assert found["value"] == "rxe0 (virtio)"


def test_a_port_without_a_link(rxe):
    guest(rxe[1], "ip link set virtio down")
    try:
        assert "port 1 of rxe0 " in opening(rxe[1], "verbs:rxe0")
    finally:
        guest(rxe[1], "ip link set virtio up")
