"""Hosts without root: their network, processes on them, and that nothing of them is ever left."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import operator
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import pytest

from viakit import testbed as testbed_module
from viakit.testbed import HostTimeoutError, RemoteError, Testbed, TestbedError, parse_rate

PACKAGE = Path(testbed_module.__file__).parent
DEADLINE_S = 20.0


@pytest.fixture(scope="module")
def pair() -> Iterator[Testbed]:
    with needs.hosts(2, mtu=1400) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def trio() -> Iterator[Testbed]:
    with needs.hosts(3, mtu=9000, rate="1gbit") as testbed:
        yield testbed


def eventually(condition: Callable[[], bool]) -> bool:
    """Look again and again until the condition holds or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.01)
    return True


# --- Functions that run on hosts ------------------------------------------------------------------------------------


def interface_mtu(name: str) -> int:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return struct.unpack_from("=i", fcntl.ioctl(s, 0x8921, name.encode().ljust(32, b"\0")), 16)[0]  # SIOCGIFMTU


def echo_once(kind: int, port: int) -> str:
    """Answer one message (UDP) or one connection (TCP) and return the address of whoever asked."""
    with socket.socket(socket.AF_INET, kind) as s:
        s.settimeout(DEADLINE_S)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", port))
        if kind == socket.SOCK_DGRAM:
            message, peer = s.recvfrom(2000)
            s.sendto(message, peer)
        else:
            s.listen()
            connection, peer = s.accept()
            with connection:
                connection.sendall(connection.recv(2000))
        return peer[0]


def ask_echo(kind: int, address: str, port: int) -> bytes:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        with socket.socket(socket.AF_INET, kind) as s:
            s.settimeout(0.2 if kind == socket.SOCK_DGRAM else DEADLINE_S)
            try:
                s.connect((address, port))
                s.send(b"who is there?")
                return s.recv(2000)
            except (ConnectionRefusedError, TimeoutError):
                if time.monotonic() > deadline:
                    raise


def receive_frame(interface: str) -> bytes:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)) as s:
        s.bind((interface, 0x88B5))
        s.settimeout(DEADLINE_S)
        return s.recv(2000)


def send_frames(interface: str, frame: bytes) -> None:
    """Send a frame every few milliseconds for as long as the process lives."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as s:
        s.bind((interface, 0x88B5))
        while True:
            s.send(frame)
            select.select([], [], [], 0.005)


def greet(name: str) -> str:
    print(f"grüße, {name}")
    print("trouble", file=sys.stderr)
    return name.upper()


class OddError(Exception):
    """An exception that can be pickled and not read back."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def raise_odd() -> None:
    raise OddError(1, 2)


def divide(a: int, b: int) -> float:
    return a / b


def wait_for_ever(message: str = "") -> None:
    print(message, flush=True)
    while True:
        signal.pause()


def die(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    os.kill(os.getpid(), signal.SIGSEGV)


def who_am_i() -> tuple[str, int, int, int]:
    return socket.gethostname(), os.getpid(), os.getuid(), os.stat("/proc/self/ns/net").st_ino


# --- The network ----------------------------------------------------------------------------------------------------


def test_hosts_have_names_addresses_and_networks_of_their_own(pair):
    a, b = pair.hosts
    assert (a.name, a.address, a.interface, a.mac) == ("h0", "10.77.0.1", "eth0", "02:56:49:41:00:01")
    assert (b.name, b.address, b.interface, b.mac) == ("h1", "10.77.0.2", "eth0", "02:56:49:41:00:02")
    seen = [host.call(who_am_i) for host in pair.hosts]
    assert [name for name, *_ in seen] == ["h0", "h1"]
    assert len({net for *_, net in seen} | {os.stat("/proc/self/ns/net").st_ino}) == 3
    for host, (*_, net) in zip(pair.hosts, seen, strict=True):
        assert os.stat(f"/proc/{host.pid}/ns/net").st_ino == net


def test_the_mtu_is_set_and_read_back(pair):
    network = pair.describe()
    assert network["joined_by"] == "veth"
    for host, found in zip(pair.hosts, network["hosts"], strict=True):
        assert host.call(interface_mtu, "eth0") == 1400
        link = {link["name"]: link for link in found["links"]}["eth0"]
        assert (link["mtu"], link["mac"], link["up"]) == (1400, host.mac, True)


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM], ids=["udp", "tcp"])
@pytest.mark.parametrize("which", ["pair", "trio"])
def test_every_host_reaches_the_next(which, kind, request):
    hosts = request.getfixturevalue(which).hosts
    for a, b in zip(hosts, hosts[1:] + hosts[:1], strict=True):
        server = b.submit(echo_once, kind, 7000)
        assert a.call(ask_echo, kind, b.address, 7000) == b"who is there?"
        assert server.result(DEADLINE_S) == a.address


def test_raw_frames_cross_the_wire_and_nobody_needs_arp(pair):
    a, b = pair.hosts
    destination, source = (bytes.fromhex(host.mac.replace(":", "")) for host in (b, a))
    frame = destination + source + b"\x88\xb5" + b"frame".ljust(60, b".")
    receiver = b.submit(receive_frame, "eth0")
    sender = a.submit(send_frames, "eth0", frame)
    assert receiver.result(DEADLINE_S) == frame
    sender.cancel()
    arp = a.run(["cat", "/proc/net/arp"]).stdout
    assert b.mac in arp
    assert "0x6" in arp  # permanent


def test_a_rate_limit_stands_in_the_switch_and_reads_back(trio):
    network = trio.describe()
    assert (network["joined_by"], network["mtu"], network["rate_bps"]) == ("switch", 9000, 1_000_000_000)
    limits = {q["interface"]: q for q in network["switch"]["qdiscs"] if q["kind"] == "tbf"}
    assert {name: q["rate_bps"] for name, q in limits.items()} == dict.fromkeys(["port0", "port1", "port2"], 10**9)
    assert [host.call(interface_mtu, "eth0") for host in trio.hosts] == [9000] * 3
    before = limits["port2"]["packets"]
    server = trio.hosts[2].submit(echo_once, socket.SOCK_DGRAM, 7001)
    trio.hosts[0].call(ask_echo, socket.SOCK_DGRAM, "10.77.0.3", 7001)
    server.result(DEADLINE_S)
    after = {q["interface"]: q for q in trio.describe()["switch"]["qdiscs"]}["port2"]["packets"]
    assert after > before


def test_rates_beyond_32_bits_of_bytes():
    with needs.hosts(2, rate=40e9) as testbed:
        limits = [q for q in testbed.describe()["switch"]["qdiscs"] if q["kind"] == "tbf"]
        assert [q["rate_bps"] for q in limits] == [40_000_000_000] * 2


def test_a_single_host_has_its_loopback():
    with needs.hosts(1, mtu=1300) as testbed:
        (host,) = testbed.hosts
        assert testbed.describe()["joined_by"] == "loopback"
        assert host.interface == "lo"
        assert host.call(interface_mtu, "lo") == 1300
        server = host.submit(echo_once, socket.SOCK_STREAM, 7002)
        assert host.call(ask_echo, socket.SOCK_STREAM, host.address, 7002) == b"who is there?"
        server.result(DEADLINE_S)


@pytest.mark.parametrize("mtu", [68, 65535])
def test_the_extremes_of_the_mtu(mtu):
    with needs.hosts(2, mtu=mtu) as testbed:
        assert testbed.hosts[0].call(interface_mtu, "eth0") == mtu


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"hosts": 0}, "hosts is 0; right would be a whole number from 1 to 64"),
        ({"hosts": 65}, "hosts is 65"),
        ({"hosts": 2.0}, "hosts is 2.0"),
        ({"hosts": True}, "hosts is True"),
        ({"mtu": 67}, "mtu is 67; right would be a whole number from 68 to 65535"),
        ({"mtu": 65536}, "mtu is 65536"),
        ({"rate": 0}, "rate is 0; right would be"),
        ({"rate": -1e9}, "rate is -1000000000.0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"rate": "fast"}, "rate is 'fast'"),
        ({"rate": "1gbps"}, "rate is '1gbps'"),
        ({"rate": 1e9, "hosts": 1}, "single host"),
        ({"rate": 1e9, "burst": 100}, "burst is 100"),
        ({"burst": 4000}, "without a rate"),
    ],
)
def test_bad_arguments_say_what_would_be_right(options, words):
    with pytest.raises(ValueError) as caught:
        Testbed(**options)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("given", "bits"),
    [(1e9, 10**9), ("1gbit", 10**9), ("100 Mbit/s", 10**8), ("2.5G", 2_500_000_000), ("1e6", 10**6), ("64k", 64_000)],
)
def test_rates_in_words(given, bits):
    assert parse_rate(given) == bits


# --- Calls ----------------------------------------------------------------------------------------------------------


def test_results_and_output_come_back(pair, capsys):
    assert pair.hosts[0].call(greet, "host") == "HOST"
    captured = capsys.readouterr()
    assert captured.out == "grüße, host\n"
    assert captured.err == "trouble\n"


def test_keyword_arguments_and_partials(pair):
    assert pair.hosts[1].call(divide, 1, b=4) == 0.25
    assert pair.hosts[1].call(functools.partial(divide, b=2), 1) == 0.5


def test_large_arguments_and_results(pair):
    data = bytes(range(256)) * 40_000  # 10 MB, far beyond every socket buffer
    assert pair.hosts[0].call(bytes.swapcase, data) == data.swapcase()


def test_an_exception_comes_back_with_the_traceback_of_the_host(pair):
    with pytest.raises(ZeroDivisionError) as caught:
        pair.hosts[0].call(divide, 1, 0)
    cause = caught.value.__cause__
    assert isinstance(cause, RemoteError)
    assert "On host h0" in str(cause)
    assert "return a / b" in str(cause)


def test_an_exception_that_cannot_travel_is_told_in_words(pair):
    with pytest.raises(TestbedError, match=r"OddError: odd"):
        pair.hosts[0].call(raise_odd)


@pytest.mark.parametrize(
    ("how", "words"), [("exit", "SystemExit: 3"), ("_exit", "exit status 4"), ("crash", "SIGSEGV")]
)
def test_a_process_that_dies_says_how(pair, how, words):
    with pytest.raises(TestbedError) as caught:
        pair.hosts[0].call(die, how)
    assert words in str(caught.value)


def test_a_call_that_takes_too_long_is_killed(pair):
    with pytest.raises(HostTimeoutError, match=r"wait_for_ever\(\) did not end within 0.2 s") as caught:
        pair.hosts[0].call(wait_for_ever, timeout=0.2)
    assert isinstance(caught.value, TimeoutError)
    # On the host nothing is left but its first process and the one that asks.
    listing = "import os; print(sum(name.isdigit() for name in os.listdir('/proc')))"
    if pair.hosts[0].run(["cat", "/proc/1/comm"]).stdout.startswith("python"):  # so its /proc is its own
        assert eventually(lambda: pair.hosts[0].run([sys.executable, "-c", listing]).stdout == "2\n")


def test_a_lambda_needs_cloudpickle(pair, monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(TypeError, match=r"pip install cloudpickle"):
        pair.hosts[0].call(lambda: 1)
    monkeypatch.undo()
    pytest.importorskip("cloudpickle", reason="cloudpickle is optional")
    assert pair.hosts[0].call(lambda: 41 + 1) == 42


def test_submitted_calls_are_futures(pair, capsys):
    calls = [host.submit(divide, 10, 4) for host in pair.hosts] + [pair.hosts[0].submit(divide, 1, 0)]
    assert {call.exception(DEADLINE_S).__class__ for call in calls} == {type(None), ZeroDivisionError}
    assert [call.result() for call in concurrent.futures.as_completed(calls[:2], DEADLINE_S)] == [2.5, 2.5]
    assert calls[0].done()
    assert not calls[0].cancel()


def test_result_times_out_and_cancel_kills(pair):
    call = pair.hosts[1].submit(wait_for_ever)
    with pytest.raises(HostTimeoutError):
        call.result(0.05)
    assert call.running()
    assert call.cancel()
    assert call.done()
    assert call.process.poll() == -signal.SIGKILL
    with pytest.raises(concurrent.futures.CancelledError):
        call.result()


def test_many_calls_at_once_from_many_threads(pair):
    results: list[float] = []

    def work() -> None:
        results.extend(host.call(operator.truediv, 1, 2) for host in pair.hosts for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    assert results == [0.5] * 40


def test_no_descriptor_leaks(pair):
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    pair.hosts[0].call(divide, 1, 1)
    before = count()
    for _ in range(5):
        pair.hosts[0].call(divide, 1, 1)
        pair.hosts[0].run(["true"])
        with contextlib.suppress(FileNotFoundError):
            pair.hosts[0].run(["no-such-program"])
        pair.hosts[0].submit(wait_for_ever).cancel()
    assert eventually(lambda: count() <= before)


# --- Commands -------------------------------------------------------------------------------------------------------


def test_run_gives_output_and_status(pair):
    done = pair.hosts[0].run(["sh", "-c", "cat; echo err >&2; exit 5"], input="in")
    assert (done.returncode, done.stdout, done.stderr) == (5, "in", "err\n")
    with pytest.raises(subprocess.CalledProcessError):
        pair.hosts[0].run(["false"], check=True)


def test_run_takes_directory_and_environment(pair, tmp_path):
    done = pair.hosts[0].run(["/bin/sh", "-c", 'echo "$PWD $X"'], cwd=tmp_path, env={"X": "y"})
    assert done.stdout == f"{tmp_path} y\n"


def test_run_that_takes_too_long_is_killed_and_keeps_its_output(pair):
    code = "import signal; print('so far', flush=True); signal.pause()"
    with pytest.raises(subprocess.TimeoutExpired) as caught:
        pair.hosts[0].run([sys.executable, "-c", code], timeout=2)
    assert caught.value.stdout == "so far\n"


def test_a_program_that_is_not_there(pair, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        pair.hosts[0].run(["no-such-program"])
    assert caught.value.filename == "no-such-program"
    with pytest.raises(FileNotFoundError) as caught:
        pair.hosts[0].run(["true"], cwd=tmp_path / "nowhere")
    assert caught.value.filename == str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="right would be a list"):
        pair.hosts[0].popen("ip addr")


def test_popen_talks_over_pipes(pair):
    pipe = subprocess.PIPE
    with pair.hosts[0].popen(["cat"], stdin=pipe, stdout=pipe) as process:
        process.stdin.write(b"one\n")
        assert process.stdout.readline() == b"one\n"
        assert process.poll() is None
        assert Path(f"/proc/{process.pid}/comm").read_text() == "cat\n"  # its number as seen from here
        process.stdin.close()
        assert process.wait(DEADLINE_S) == 0


def test_popen_passes_descriptors_under_their_numbers(pair):
    ours, theirs = socket.socketpair()
    code = "import socket, sys; s = socket.socket(fileno=int(sys.argv[1])); s.sendall(s.recv(100).upper())"
    with ours, theirs:
        ours.settimeout(DEADLINE_S)
        fd = theirs.fileno()
        with pair.hosts[1].popen([sys.executable, "-c", code, str(fd)], pass_fds=[fd]) as process:
            theirs.close()
            ours.sendall(b"via")
            assert ours.recv(100) == b"VIA"
            assert ours.recv(100) == b""  # nobody else, the host least of all, holds the other end
            assert process.wait(DEADLINE_S) == 0


def test_signals_and_output_joined(pair):
    code = "import signal; print('up', flush=True); signal.pause()"
    process = pair.hosts[0].popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    process.kill()  # harmless now
    process.stdout.close()


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


def networks_of(testbed: Testbed) -> set[int]:
    return {os.stat(f"/proc/{host.pid}/ns/net").st_ino for host in testbed.hosts}


@pytest.mark.parametrize("hosts", [2, 3])
def test_nothing_is_left_after_the_context(hosts):
    testbed = needs.hosts(hosts)
    with testbed:
        ...
    with pytest.raises(TestbedError, match="not open"):
        testbed.describe()


def test_close_ends_what_runs_and_what_hides(pair):
    with needs.hosts(2) as testbed:
        networks = networks_of(testbed)
        host = testbed.hosts[0]
        call = host.submit(wait_for_ever)
        orphan = "import os, signal; os.fork() and os._exit(0); os.setsid(); signal.pause()"
        host.run([sys.executable, "-c", orphan], capture_output=False)
        process = testbed.hosts[1].popen(["cat"], stdin=subprocess.PIPE)
        assert len(pids_in_networks(networks)) >= 4
    assert pids_in_networks(networks) == []
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


def test_an_exception_in_the_context_leaves_nothing():
    testbed = needs.hosts(3)
    networks = networks_of(testbed)
    with pytest.raises(KeyboardInterrupt), testbed:
        raise KeyboardInterrupt
    assert pids_in_networks(networks) == []


def test_one_host_can_lose_its_power():
    with needs.hosts(3) as testbed:
        a, b, _ = testbed.hosts
        networks = {os.stat(f"/proc/{b.pid}/ns/net").st_ino}
        process = b.popen(["cat"], stdin=subprocess.PIPE)
        b.kill()
        assert pids_in_networks(networks) == []
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


def test_a_testbed_that_nobody_closes_warns_and_goes():
    testbed = needs.hosts(2)
    networks = networks_of(testbed)
    with pytest.warns(ResourceWarning, match="unclosed <Testbed"):
        del testbed
    assert pids_in_networks(networks) == []


def test_open_twice():
    with needs.hosts(1) as testbed, pytest.raises(TestbedError, match="open already"):
        testbed.open()


# A program that opens a testbed, starts things on it, tells the numbers, and waits.
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
        inodes = [os.stat(f"/proc/{host.pid}/ns/net").st_ino for host in testbed.hosts]
        child = os.fork() if "fork" in sys.argv else -1
        if child == 0:
            wait_for_ever()
        print(json.dumps({"inodes": inodes, "child": child, "uid": os.getuid()}), flush=True)
        if "call" in sys.argv:
            testbed.hosts[2].call(wait_for_ever, timeout=None)
        wait_for_ever()

if __name__ == "__main__":
    main()
"""


@contextlib.contextmanager
def program(folder: Path, *arguments: str, python: str = sys.executable, user: int | None = None) -> Iterator:
    """Start PROGRAM; yield its process and what it tells."""
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
def test_killing_the_program_ends_everything(tmp_path, how):
    with program(tmp_path) as (process, told):
        inodes = set(told["inodes"])
        assert len(pids_in_networks(inodes)) >= 5
        process.send_signal(how)
        assert process.wait(DEADLINE_S) == -how
        assert eventually(lambda: pids_in_networks(inodes) == [])


def test_a_forked_child_does_not_keep_the_hosts_alive(tmp_path):
    with program(tmp_path, "fork") as (process, told):
        try:
            process.kill()
            process.wait(DEADLINE_S)
            assert eventually(lambda: pids_in_networks(set(told["inodes"])) == [])
            os.kill(told["child"], 0)  # it lives, and holds copies of all sockets
        finally:
            os.kill(told["child"], signal.SIGKILL)


def test_interrupting_a_call_ends_everything(tmp_path):
    with program(tmp_path, "call") as (process, told):
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate(timeout=DEADLINE_S)
        assert "KeyboardInterrupt" in complaint
        assert "Error" not in complaint
        assert pids_in_networks(set(told["inodes"])) == []


@pytest.mark.skipif(os.getuid() != 0, reason="these tests run as an ordinary user already")
def test_an_ordinary_user_needs_no_root():
    folder = Path(tempfile.mkdtemp(prefix="viakit-test-", dir="/tmp"))
    try:
        folder.chmod(0o755)
        (folder / "viakit").mkdir()
        wanted = [PACKAGE / name for name in ("__init__.py", "_words.py", "testbed.py")]
        for source in [*wanted, *PACKAGE.glob("_testbed_*.py")]:
            shutil.copy(source, folder / "viakit")
        for python in (sys.executable, "/usr/bin/python3"):  # the first may be hidden in root's home
            with contextlib.suppress(OSError):
                subprocess.run([python, "-c", ""], user=65534, group=65534, check=True, timeout=DEADLINE_S, cwd="/")
                break
        else:
            pytest.skip("no Python on this machine that user nobody may run")
        with program(folder, python=python, user=65534) as (process, told):
            assert told["uid"] == 65534
            process.kill()
            process.wait(DEADLINE_S)
            assert eventually(lambda: pids_in_networks(set(told["inodes"])) == [])
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
