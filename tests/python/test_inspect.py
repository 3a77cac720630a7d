"""Snapshots and inspection of other processes: they show the actual state, and refusals give the reason."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import needs
import pytest
from waiting import LIMIT_S, until

from viakit import inspect, via
from viakit.errors import RejectedError

VIAKIT = str(Path(sys.executable).parent / "viakit")

# A program that opens a NIC, prints a line, and waits for the end of its standard input.
PROGRAM = """
import sys
from viakit import via
with via.Nic(sys.argv[1]) as nic, nic.create_vi() as vi, nic.create_region(4096, rdma_write=True) as region:
    vi.post_recv(via.Descriptor.recv(region[:100]))
    print("ready", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def program(device="shm:inspected", popen=subprocess.Popen, code=PROGRAM, **more):
    """Run PROGRAM as another process; yields it when it is ready."""
    process = popen(
        [sys.executable, "-c", code, device], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/", **more
    )
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.stdin.close()
        process.wait(LIMIT_S)
        process.stdout.close()


def run(*arguments, **more):
    return subprocess.run(
        [VIAKIT, "inspect", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd="/",
        env={**os.environ, "COLUMNS": "200"},
        **more,
    )


# ---------------------------------------------------------------- snapshots


def test_a_snapshot_tells_what_is():
    with via.Nic("loop:snapshot") as nic, via.Nic("loop:snapshot") as other:
        cq = nic.create_cq(9)
        vi = nic.create_vi(via.Reliability.RELIABLE_RECEPTION, recv_cq=cq, rdma_write=True)
        peer = other.create_vi(via.Reliability.RELIABLE_RECEPTION)
        region = nic.create_region(8192, rdma_write=True)
        remote = other.create_region(8192)
        vi.post_recv(via.Descriptor.recv(region[:1000]))
        vi.post_recv(via.Descriptor.recv([region[:1000], region[1000:1500]]))
        accepting = threading.Thread(target=lambda: other.connect_wait("door", timeout_s=LIMIT_S).accept(peer))
        accepting.start()
        vi.connect(other.address / "door", timeout_s=LIMIT_S, retry=True)
        accepting.join()
        peer.send(remote[:600], timeout_s=LIMIT_S)
        until(lambda: nic.snapshot()["vis"][0]["recv"]["done"])  # by the NIC's own thread

        shot = nic.snapshot()
        assert shot["schema"] == "viakit.snapshot/1"
        assert (shot["device"], shot["link"], shot["pid"]) == ("loop:snapshot", "loop", os.getpid())
        assert shot["address"] == ":".join(f"{byte:02x}" for byte in nic.address.host)
        (one,) = shot["vis"]
        assert (one["state"], one["level"]) == ("connected", "reliable reception")
        assert (one["rdma_write"], one["rdma_read"]) == (True, False)
        assert one["peer"]["address"] == shot["address"]
        assert one["peer"]["port"] == other.snapshot()["port"]
        assert one["send"] == {"posted": 0, "done": 0, "room": 1024, "cq": None, "descriptors": []}
        assert (one["recv"]["posted"], one["recv"]["done"]) == (1, 1)
        assert one["recv"]["cq"] == shot["cqs"][0]["handle"]
        assert [each["state"] for each in one["recv"]["descriptors"]] == ["done", "posted"]
        assert [each["segments"] for each in one["recv"]["descriptors"]] == [1, 2]
        assert [each["length"] for each in one["recv"]["descriptors"]] == [1000, 1500]
        assert one["counters"]["messages_received"] == 1
        assert "messages_sent" not in one["counters"]  # a VI's zeros are left out
        assert shot["cqs"][0]["capacity"] == 9
        found = {int(each["handle"], 16): each for each in shot["regions"]}[region.handle]
        assert (int(found["address"], 16), found["length"]) == (region.address, 8192)
        assert (found["rdma_write"], found["rdma_read"]) == (True, False)
        assert shot["counters"]["bytes_received"] == 600
        assert set(shot["counters"]) == set(nic.counters)
        assert cq.wait(timeout_s=LIMIT_S).descriptor.length == 600
        assert nic.snapshot()["vis"][0]["recv"]["done"] == 0


def test_a_snapshot_changes_nothing():
    with via.Nic("loop:unchanged") as nic, nic.create_vi():
        before = nic.snapshot()
        for _ in range(50):
            nic.snapshot()
        after = nic.snapshot()
        assert after["vis"] == before["vis"]
        # Only counters of the NIC's own thread may change. It polls the NIC now and then, and may meet this thread.
        own = {"lock_waits", "polls", "system_calls", "thread_takeovers", "wakeups"}
        assert {key for key, value in after["counters"].items() if value != before["counters"][key]} <= own


def test_connections_in_the_making():
    with via.Nic("loop:making") as nic, via.Nic("loop:making") as client, client.create_vi() as vi:
        refused = []

        def query():
            try:
                vi.connect(nic.address / "door", timeout_s=LIMIT_S, retry=True)
            except RejectedError as error:
                refused.append(error)

        def wait():
            with contextlib.suppress(ValueError):  # the NIC is closed meanwhile
                nic.connect_wait(b'\0\xff"x', timeout_s=LIMIT_S)

        threads = [threading.Thread(target=query), threading.Thread(target=wait)]
        for thread in threads:
            thread.start()
        request = nic.connect_wait("door", timeout_s=LIMIT_S)
        until(lambda: "waiting" in states(nic) and states(client) == {"being answered"})
        assert states(nic) == {"waiting", "to be answered"}
        shown = {one["discriminator"] for each in (nic, client) for one in each.snapshot()["connections"]}
        assert '\0\xff"x' in shown
        assert "door" in shown
        request.reject()
        threads[0].join()
        assert len(refused) == 1
        nic.close()
        threads[1].join()


def states(nic):
    return {one["state"] for one in nic.snapshot()["connections"]}


def test_a_thousand_vis_fit():
    with via.Nic("loop:many") as nic:
        vis = [nic.create_vi() for _ in range(1000)]
        assert sorted(vi["number"] for vi in nic.snapshot()["vis"]) == list(range(len(vis)))


def test_a_snapshot_of_a_closed_nic_is_refused():
    nic = via.Nic("loop")
    nic.close()
    with pytest.raises(ValueError, match="closed"):
        nic.snapshot()


# ---------------------------------------------------------------- other processes


def test_another_process():
    with program() as other:
        answer = inspect.inspect(other.pid)
        assert answer["pid"] == other.pid
        (nic,) = answer["nics"]
        assert (nic["device"], len(nic["vis"])) == ("shm:inspected", 1)
        assert other.pid in inspect.processes()
        shown = run(other.pid)
        assert shown.returncode == 0, shown.stderr
        assert f"process {other.pid}, NIC shm:inspected" in shown.stdout
        assert "receive 100 B posted" in shown.stdout
        assert "registered memory" in shown.stdout
        shown = run(other.pid, "--json")
        assert shown.returncode == 0, shown.stderr
        as_json = json.loads(shown.stdout)
        assert as_json["nics"][0]["vis"] == nic["vis"]
        assert str(other.pid) in run().stdout
        listed = json.loads(run("--json").stdout)
        assert "inspected" in {one["pid"]: one["command"] for one in listed}[other.pid]


def test_watching_ends_with_the_process():
    with program() as other:
        command = [VIAKIT, "inspect", "--watch", "--interval", "0.01", str(other.pid)]
        environment = {**os.environ, "COLUMNS": "200"}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd="/", env=environment) as watching:
            seen = 0
            for line in watching.stdout:
                seen += "NIC shm:inspected" in line
                if seen == 2:
                    other.stdin.close()
        assert watching.returncode == 0
        assert seen >= 2


def test_on_a_host_of_a_testbed():
    with needs.hosts() as testbed:
        a, b = testbed.hosts
        with program("eth:eth0", popen=a.popen) as other:
            with open(f"/proc/{other.pid}/comm"):
                pass  # the process is seen from here under this number
            (nic,) = inspect.inspect(other.pid)["nics"]
            assert (nic["link"], nic["interface"], nic["address"]) == ("eth", "eth0", a.mac)
        assert b.run([VIAKIT, "inspect", str(os.getpid())]).returncode == 1


# ---------------------------------------------------------------- who cannot be looked into


def free_pid():
    """Return a process number that no process has now."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_no_such_process():
    pid = free_pid()
    with pytest.raises(inspect.InspectError, match=f"there is no process {pid}"):
        inspect.inspect(pid)
    result = run(pid)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"viakit: there is no process {pid}\n"


def test_a_process_without_viakit():
    with subprocess.Popen(["sleep", "60"]) as other:
        try:
            with pytest.raises(inspect.InspectError, match="does not use viakit"):
                inspect.inspect(other.pid)
        finally:
            other.kill()


def test_a_process_that_was_told_not_to_answer():
    environment = {**os.environ, "VIAKIT_INSPECT": "0"}
    with program(env=environment) as other, pytest.raises(inspect.InspectError, match="VIAKIT_INSPECT=0"):
        inspect.inspect(other.pid)


def test_a_process_that_has_ended_unnoticed():
    other = subprocess.Popen([sys.executable, "-c", ""])
    try:
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(inspect.InspectError, match="has ended"):
            inspect.inspect(other.pid)
    finally:
        other.wait()


def test_a_process_that_is_stopped(monkeypatch):
    monkeypatch.setattr(inspect, "REPLY_TIMEOUT_S", 0.2)
    with program() as other:
        os.kill(other.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, other.pid, os.WSTOPPED | os.WNOWAIT)
        with pytest.raises(inspect.InspectError, match="it is stopped"):
            inspect.inspect(other.pid)


def test_one_who_answers_in_the_name_of_another():
    with program(env={**os.environ, "VIAKIT_INSPECT": "0"}) as other, socket.socket(socket.AF_UNIX) as squatter:
        squatter.bind(f"\0viakit/inspect/{other.pid}")
        squatter.listen()
        with pytest.raises(inspect.InspectError, match=f"process {os.getpid()} .* has bound the socket name of"):
            inspect.inspect(other.pid)


def test_a_reply_without_end_is_refused(monkeypatch):
    monkeypatch.setattr(inspect, "MOST_REPLY", 100)
    with program() as other, pytest.raises(inspect.InspectError, match="must have at most 100 bytes"):
        inspect.inspect(other.pid)


def test_a_listener_without_a_process_id_is_refused(monkeypatch):
    """The kernel reports process 0 for a listener in a PID namespace that is not visible here."""

    class Elsewhere(socket.socket):
        def getsockopt(self, *arguments):
            found = super().getsockopt(*arguments)
            return bytes(4) + found[4:] if arguments[1] == socket.SO_PEERCRED else found

    with program() as other:
        monkeypatch.setattr(inspect.socket, "socket", Elsewhere)
        with pytest.raises(inspect.InspectError, match=r"process 0 .* has bound the socket name"):
            inspect.inspect(other.pid)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_may_not_look(tmp_path):
    with program() as other:
        code = (
            "import socket, sys; s = socket.socket(socket.AF_UNIX); s.settimeout(20); "
            "s.connect('\\0viakit/inspect/' + sys.argv[1]); print(s.makefile().read())"
        )
        # the system's Python: that of the tests may lie where another user cannot go
        asked = subprocess.run(
            ["/usr/bin/python3", "-c", code, str(other.pid)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            cwd="/",
            user=65534,
            group=65534,
            extra_groups=[],
            env={},
        )
        assert json.loads(asked.stdout) == {"schema": "viakit.process/1", "error": "another user"}, asked.stderr


def test_the_command_wants_sense():
    assert run(os.getpid(), "--watch", "--interval", "0").returncode == 2
    assert run("not-a-number").returncode == 2
    refused = run("--watch")
    assert refused.returncode == 2
    assert "needs the PID" in refused.stderr


# ---------------------------------------------------------------- the page about all this

PAGE = Path(__file__).resolve().parents[2] / "docs" / "inspect.md"


def test_the_page_names_every_field():
    text = PAGE.read_text()
    with via.Nic("loop:fields") as nic, nic.create_vi() as vi, nic.create_region(64) as region:
        cq = nic.create_cq(1)
        vi.post_recv(via.Descriptor.recv(region[:8]))
        shot = nic.snapshot()
        (one,) = shot["vis"]
        names = {*shot, *one, *one["transmitter"], *one["receiver"], *one["recv"], *one["recv"]["descriptors"][0]}
        for each in (*shot["regions"], *shot["ptags"], *shot["cqs"]):
            names.update(each)
        cq.close()
    missing = {name for name in names if f"`{name}`" not in text}
    assert missing - {"schema", "descriptor"} == set()
