"""Hosts without root: their network, calls of functions on them, and commands."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import operator
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import needs
import pytest
from c_place import PROGRAMS, build  # noqa: F401 - a fixture
from testbed_calls import (
    DEADLINE_S,
    ask_echo,
    die,
    divide,
    echo_once,
    eventually,
    greet,
    interface_mtu,
    raise_odd,
    receive_frame,
    send_frames,
    wait_for_ever,
    who_am_i,
)

from viakit.testbed import HostTimeoutError, RemoteError, Testbed, TestbedError, parse_rate
from viakit.testbed import host as _testbed_host


@pytest.fixture(scope="module")
def pair() -> Iterator[Testbed]:
    with needs.hosts(2, mtu=1400) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def trio() -> Iterator[Testbed]:
    with needs.hosts(3, mtu=9000, rate="1gbit") as testbed:
        yield testbed


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


def addresses(name):
    return {str(entry[4][0]) for entry in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)}


def test_hosts_resolve_one_another_by_name(pair, build):  # noqa: F811
    """By the C library and all that uses it, on each host; what else /etc/hosts has is still there."""
    getent, program = needs.tool("getent"), str(build(PROGRAMS / "resolve.c", "-std=gnu89", "-Wall", "-Werror"))
    for host in pair.hosts:
        for other in pair.hosts:
            assert host.run([getent, "hosts", other.name], check=True).stdout.split() == [other.address, other.name]
            assert host.call(addresses, other.name) == {other.address}
            assert host.run([program, other.name], check=True).stdout.split() == [other.address] * 2
        assert host.call(Path("/etc/hosts").read_text).splitlines()[2:] == Path("/etc/hosts").read_text().splitlines()
        assert host.call(addresses, "localhost") & {"127.0.0.1", "::1"}


def test_names_of_hosts_are_known_there_only(tmp_path):
    before = Path("/etc/hosts").read_text(), Path("/proc/self/mountinfo").read_text()
    with Testbed(hosts=3) as testbed:
        assert testbed.hosts[2].call(addresses, "h1") == {testbed.hosts[1].address}
        assert (Path("/etc/hosts").read_text(), Path("/proc/self/mountinfo").read_text()) == before
        assert testbed.hosts[2].call(os.path.isdir, tmp_path)  # nothing is left mounted over the folder of all


def test_the_files_by_which_names_are_resolved():
    names = {"h0": "10.77.0.1", "h1": "10.77.0.2"}
    text = "127.0.0.1 localhost\n# h1 is not meant\n192.0.2.7\th1 seven  # old\n192.0.2.8 h0\n"
    assert _testbed_host.hosts_file(text, names).splitlines() == [
        "10.77.0.1\th0",
        "10.77.0.2\th1",
        "127.0.0.1 localhost",
        "# h1 is not meant",
        "192.0.2.7\tseven",
    ]
    switch = "passwd: files\nhosts:  mymachines resolve [!UNAVAIL=return] files dns # as Fedora has it\n"
    assert _testbed_host.files_first(switch) == (
        "passwd: files\nhosts: files mymachines resolve [!UNAVAIL=return] dns\n"
    )
    assert _testbed_host.files_first("") == "hosts: files dns\n"


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


def test_raw_frames_cross_the_wire_without_arp(pair):
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
        ({"hosts": 0}, "hosts is 0; expected a whole number from 1 to 64"),
        ({"hosts": 65}, "hosts is 65"),
        ({"hosts": 2.0}, "hosts is 2.0"),
        ({"hosts": True}, "hosts is True"),
        ({"mtu": 67}, "mtu is 67; expected a whole number from 68 to 65535"),
        ({"mtu": 65536}, "mtu is 65536"),
        ({"rate": 0}, "rate is 0; expected"),
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
    # On the host only its first process and this one are left.
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
    for timeout in (2, 20, 120):  # a busy machine may take longer to start Python
        with pytest.raises(subprocess.TimeoutExpired) as caught:
            pair.hosts[0].run([sys.executable, "-c", code], timeout=timeout)
        if caught.value.stdout:
            break
    assert caught.value.stdout == "so far\n"


def test_a_program_that_is_not_there(pair, tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        pair.hosts[0].run(["no-such-program"])
    assert caught.value.filename == "no-such-program"
    with pytest.raises(FileNotFoundError) as caught:
        pair.hosts[0].run(["true"], cwd=tmp_path / "nowhere")
    assert caught.value.filename == str(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="expected a list"):
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
            assert ours.recv(100) == b""  # no other process, in particular not the host, holds the other end
            assert process.wait(DEADLINE_S) == 0


def test_signals_and_output_joined(pair):
    code = "import signal; print('up', flush=True); signal.pause()"
    process = pair.hosts[0].popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout.readline() == b"up\n"
    process.terminate()
    assert process.wait(DEADLINE_S) == -signal.SIGTERM
    process.kill()  # harmless now
    process.stdout.close()
