"""The end of a testbed: nothing is left when a context, a host or a program ends, however it ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import pytest
from testbed_calls import DEADLINE_S, PACKAGE, divide, eventually, wait_for_ever

from viakit.testbed import Testbed, TestbedError

# --- The end --------------------------------------------------------------------------------------------------------


def pids_in_networks(inodes: set[int]) -> list[int]:
    """The processes that live in network namespaces with these numbers."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{entry}/ns/net").st_ino in inodes:
                    found.append(int(entry))
    return found


@pytest.fixture
def networks() -> Iterator[Callable[..., set[int]]]:
    """A function that returns the numbers of the network namespaces of processes.

    The namespaces are kept until the end of the test. The kernel gives the number of one that is gone to the next
    one, which may be that of another test.
    """
    with contextlib.ExitStack() as stack:

        def of(*pids: int) -> set[int]:
            files = [stack.enter_context(open(f"/proc/{pid}/ns/net")) for pid in pids]
            return {os.fstat(file.fileno()).st_ino for file in files}

        yield of


def pids_of(testbed: Testbed) -> list[int]:
    return [host.pid for host in testbed.hosts]


@pytest.mark.parametrize("hosts", [2, 3])
def test_nothing_is_left_after_the_context(hosts):
    testbed = needs.hosts(hosts)
    with testbed:
        ...
    with pytest.raises(TestbedError, match="not open"):
        testbed.describe()


def test_close_ends_what_runs_and_what_hides(networks):
    with needs.hosts(2) as testbed:
        inodes = networks(*pids_of(testbed))
        host = testbed.hosts[0]
        call = host.submit(wait_for_ever)
        orphan = "import os, signal; os.fork() and os._exit(0); os.setsid(); signal.pause()"
        host.run([sys.executable, "-c", orphan], capture_output=False)
        process = testbed.hosts[1].popen(["cat"], stdin=subprocess.PIPE)
        assert len(pids_in_networks(inodes)) >= 4
    assert pids_in_networks(inodes) == []
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    process.stdin.close()
    with pytest.raises(TestbedError):
        call.result(DEADLINE_S)
    with pytest.raises(TestbedError, match="its testbed was closed"):
        host.call(divide, 1, 1)
    testbed.close()


def test_processes_share_a_session_but_no_process_group():
    # Linux deals out cores by sessions first (autogroups): between two of them sched_yield() gives nothing away.
    def status(process):
        with open(f"/proc/{process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return {"group": int(fields[2]), "session": int(fields[3])}

    with needs.hosts(3) as testbed:
        processes = [host.popen(["cat"], stdin=subprocess.PIPE) for host in testbed.hosts]
        seen = [status(process) for process in processes]
        assert len({one["session"] for one in seen}) == 1
        assert seen[0]["session"] != os.getsid(0)  # Ctrl-C in our terminal is for us
        assert [one["group"] for one in seen] == [process.pid for process in processes]
        for process in processes:
            process.stdin.close()
            assert process.wait(DEADLINE_S) == 0


def test_an_exception_in_the_context_leaves_nothing(networks):
    testbed = needs.hosts(3)
    inodes = networks(*pids_of(testbed))
    with pytest.raises(KeyboardInterrupt), testbed:
        raise KeyboardInterrupt
    assert pids_in_networks(inodes) == []


def test_one_host_can_lose_its_power(networks):
    with needs.hosts(3) as testbed:
        a, b, _ = testbed.hosts
        inodes = networks(b.pid)
        process = b.popen(["cat"], stdin=subprocess.PIPE)
        b.kill()
        assert pids_in_networks(inodes) == []
        assert process.wait(DEADLINE_S) == -signal.SIGKILL
        process.stdin.close()
        with pytest.raises(TestbedError, match=r"host h1 is gone \(it was killed\)"):
            b.run(["true"])
        assert a.run(["true"]).returncode == 0
        b.kill()


def serve_for_ever(device: str) -> None:
    """Accept one connection, then keep it until the power fails."""
    from viakit import via

    with via.Nic(device) as nic, nic.create_vi() as vi:
        nic.connect_wait("power", timeout_s=DEADLINE_S).accept(vi)
        wait_for_ever()


def outlive(device: str, host: str, connected: str) -> tuple[str, list[str]]:
    """Connect, touch the file *connected*; once the connection is over return the VI's state and the error codes."""
    from viakit import via

    with via.Nic(device, keepalive_ms=100, rto_us=2000, max_retries=5) as nic, nic.create_vi() as vi:
        vi.connect(nic.resolve(host) / "power", timeout_s=DEADLINE_S, retry=True)
        Path(connected).touch()
        assert eventually(lambda: vi.state == via.ViState.ERROR and bool(nic.errors))
        said = vi.state.name, [error.code.name for error in nic.errors]
        vi.disconnect()
        assert vi.state == via.ViState.IDLE
        return said


@pytest.mark.parametrize("link", ["eth", "udp"])
def test_a_connection_to_a_host_that_lost_its_power_is_lost(link, tmp_path):
    with needs.hosts(2) as testbed:
        a, b = testbed.hosts
        connected = tmp_path / "connected"
        devices = [f"{link}:{'eth0' if link == 'eth' else host.address}" for host in (a, b)]
        server = b.submit(serve_for_ever, devices[1])
        client = a.submit(outlive, devices[0], b.name, str(connected))
        assert eventually(lambda: connected.exists() or client.done()), "never connected"
        b.kill()
        assert client.result(DEADLINE_S) == ("ERROR", ["CONN_LOST"])
        with pytest.raises(TestbedError):
            server.result(DEADLINE_S)


def test_an_unclosed_testbed_warns_and_ends(networks):
    testbed = needs.hosts(2)
    inodes = networks(*pids_of(testbed))
    with pytest.warns(ResourceWarning, match="unclosed <Testbed"):
        del testbed
    assert pids_in_networks(inodes) == []


def test_open_twice():
    with needs.hosts(1) as testbed, pytest.raises(TestbedError, match="open already"):
        testbed.open()


# A program that opens a testbed, starts processes on it, prints their numbers, and waits.
PROGRAM = """
import json, os, signal, sys
from viakit.testbed import Testbed

def wait_for_ever():
    while True:
        signal.pause()

def main():
    with Testbed(hosts=3) as testbed:
        testbed.hosts[0].submit(wait_for_ever)
        testbed.hosts[1].popen(["cat"], stdin=0)
        hosts = [host.pid for host in testbed.hosts]
        child = os.fork() if "fork" in sys.argv else -1
        if child == 0:
            wait_for_ever()
        print(json.dumps({"hosts": hosts, "child": child, "uid": os.getuid()}), flush=True)
        if "call" in sys.argv:
            testbed.hosts[2].call(wait_for_ever, timeout=None)
        wait_for_ever()

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def program(folder: Path, *arguments: str, python: str = sys.executable, user: int | None = None) -> Iterator:
    """Start PROGRAM. Yield its process and its output."""
    import json

    file = folder / "program.py"
    file.write_text(PROGRAM)
    command = [python, str(file), *arguments]
    env = {**os.environ, "PYTHONPATH": str(folder if user is not None else PACKAGE.parent)}
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env, user=user, group=user, cwd=folder,
        extra_groups=None if user is None else [],
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        if not line:
            _, complaint = process.communicate(timeout=DEADLINE_S)
            if "NamespaceError" in complaint:
                pytest.skip(f"this machine refuses hosts: {complaint.splitlines()[-1]}")
            raise AssertionError(complaint)
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_killing_the_program_ends_everything(tmp_path, networks, how):
    with program(tmp_path) as (process, told):
        inodes = networks(*told["hosts"])
        assert len(pids_in_networks(inodes)) >= 5
        process.send_signal(how)
        assert process.wait(DEADLINE_S) == -how
        assert eventually(lambda: pids_in_networks(inodes) == [])


def test_a_forked_child_does_not_keep_the_hosts_alive(tmp_path, networks):
    with program(tmp_path, "fork") as (process, told):
        try:
            inodes = networks(*told["hosts"])
            process.kill()
            process.wait(DEADLINE_S)
            assert eventually(lambda: pids_in_networks(inodes) == [])
            os.kill(told["child"], 0)  # it lives, and holds copies of all sockets
        finally:
            os.kill(told["child"], signal.SIGKILL)


def test_interrupting_a_call_ends_everything(tmp_path, networks):
    with program(tmp_path, "call") as (process, told):
        inodes = networks(*told["hosts"])
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE_S)
        assert "KeyboardInterrupt" in complaint
        assert "Error" not in complaint
        assert pids_in_networks(inodes) == []


@pytest.mark.skipif(os.getuid() != 0, reason="these tests run as an ordinary user already")
def test_an_ordinary_user_needs_no_root(networks):
    folder = Path(tempfile.mkdtemp(prefix="viakit-test-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        for room in ("base", "testbed"):
            shutil.copytree(PACKAGE / room, folder / "viakit" / room, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(PACKAGE / "__init__.py", folder / "viakit")
        for python in (sys.executable, "/usr/bin/python3"):  # the first may be hidden in root's home
            with contextlib.suppress(OSError):
                subprocess.run([python, "-c", ""], user=65534, group=65534, check=True, timeout=DEADLINE_S, cwd="/")
                break
        else:
            pytest.skip("no Python on this machine that user nobody may run")
        with program(folder, python=python, user=65534) as (process, told):
            assert told["uid"] == 65534
            inodes = networks(*told["hosts"])
            process.kill()
            process.wait(DEADLINE_S)
            assert eventually(lambda: pids_in_networks(inodes) == [])
    finally:
        shutil.rmtree(folder)


def test_functions_of_an_unguarded_script_are_caught(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        "import sys\nsys.modules['cloudpickle'] = None\nfrom viakit.testbed import Testbed\n"
        "def f():\n    return 1\n"
        "with Testbed(hosts=1) as tb:\n    print(tb.hosts[0].call(f))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    command = [sys.executable, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=env)
    if "NamespaceError" in done.stderr:
        pytest.skip("this machine refuses hosts")
    assert 'if __name__ == "__main__":' in done.stderr
    assert done.returncode == 1
