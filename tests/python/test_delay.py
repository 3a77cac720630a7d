"""The delay of a testbed's wire: every frame is late by it, drops are reported, the relay ends with the testbed."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

import click.testing
import needs
import pytest
from test_wire import listen

from viakit import _core
from viakit.cli import cli
from viakit.measure import plan, result, sweep
from viakit.testbed import Testbed, TestbedError, delay
from viakit.testbed.wire import Wire, parse_delay

DELAY_S = 0.002


def gone(pid, seconds=30):
    """Wait until a process has ended; return whether it has."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    ("text", "seconds"), [("50us", 50e-6), ("1.5ms", 1.5e-3), ("1s", 1.0), (" .5ms ", 0.5e-3), ("0", 0.0), (0.25, 0.25)]
)
def test_a_delay_is_a_time(text, seconds):
    assert parse_delay(text) == pytest.approx(seconds, rel=1e-12)
    wire = Wire(delay=text)
    assert Wire.chosen({"VIAKIT_WIRE": wire.text()}).delay_s == pytest.approx(seconds, rel=1e-9)


@pytest.mark.parametrize("text", ["1", "1m", "-1ms", "2s", "ms", "", "1ms2", "nan", -0.1, float("nan"), True])
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match=r"expected a time from 0 to 1 s with its unit"):
        Testbed(delay=text)


def test_a_single_host_has_no_wire_to_delay(monkeypatch):
    with pytest.raises(ValueError, match="single host"):
        Testbed(hosts=1, delay="1ms")
    monkeypatch.setenv("VIAKIT_WIRE", "delay=1ms")
    assert Testbed(hosts=1).delay_s is None
    assert Testbed(hosts=2).delay_s == 0.001
    assert Testbed(hosts=2, delay="2ms").delay_s == 0.002


def test_both_directions_are_delayed_for_every_protocol(monkeypatch, tmp_path):
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    out = tmp_path / "a.json"
    words = [
        "sweep",
        "tcp",
        "udp",
        "via-eth",
        "msg-via",
        "--hosts",
        "testbed",
        "--sizes",
        "8,20000",
        "--seconds",
        "0.5",
    ]
    words += ["--delay", f"{DELAY_S * 1e3}ms", "--perturb", "0", "--validate", "--json", str(out)]
    done = click.testing.CliRunner().invoke(cli, words, prog_name="viakit")
    assert done.exit_code == 0, done.output
    assert "delay=2ms" in done.output
    document = json.loads(out.read_text())
    result.validate(document)
    assert document["complete"]
    assert document["validated"]
    assert {one["protocol"] for one in document["series"]} == {"tcp", "udp", "via-eth", "msg-via"}
    for one in document["series"]:
        assert one["wire"] == "delay=2ms"
        assert one["info"]["relay"]["delay_s"] == DELAY_S
        assert one["info"]["relay"]["frames"] > 0
        assert one["info"]["relay"]["dropped"] == 0
        for point in one["points"]:
            assert point["one_way_s"]["min"] >= DELAY_S, (one["protocol"], point["nbytes"])


#: Runs of which one must have no retransmission: a busy machine may stop a host, or the relay, for longer than a
#: time-out, and the frames that were then sent again were late indeed.
ATTEMPTS = 4


@pytest.mark.parametrize("protocol", ["via-eth", "via-udp"])
@pytest.mark.parametrize(("mode", "nbytes"), [("pingpong", 8), ("stream", 65536)])
def test_a_long_round_trip_is_no_loss(protocol, mode, nbytes, monkeypatch):
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    lost = []
    for _ in range(ATTEMPTS):
        config = plan.Config([protocol], [nbytes], hosts="testbed", seconds=0.5, delay="10ms", wait="block", mode=mode)
        document = sweep.run(config).document
        assert document["complete"]
        one = document["series"][0]
        assert one["info"]["relay"]["dropped"] == 0
        lost.append(sum(point["counters"]["frames_retransmitted"] for point in one["points"]))
        if lost[-1] == 0:
            return
    pytest.fail(f"frames retransmitted in each of {ATTEMPTS} runs, although none was lost: {lost}")


def test_both_sides_name_the_counts_alike():
    assert delay.COUNTS == _core.RELAY_COUNTS


def test_without_the_option_there_is_no_relay(monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "")
    with needs.hosts() as bed:
        state = bed.describe()
        assert (state["joined_by"], state["relay"]) == ("veth", None)
    document = sweep.run(plan.Config(["tcp"], [8], hosts="testbed", seconds=0.1)).document
    assert "relay" not in document["series"][0]["info"]


def exchange(own, far, nbytes):
    """Run on a host: send bytes to a port of another host, receive as many, and return them."""
    with socket.create_server((own, 4800)) as server:
        server.settimeout(30)
        deadline = time.monotonic() + 30
        while True:
            try:
                out = socket.create_connection((far, 4800), 30)
                break
            except ConnectionRefusedError:
                assert time.monotonic() < deadline
        with out, server.accept()[0] as back:
            back.settimeout(30)
            pattern = bytes(range(251)) * (nbytes // 251 + 1)
            sending = threading.Thread(target=out.sendall, args=(pattern[:nbytes],))
            sending.start()
            got = bytearray()
            while len(got) < nbytes:
                got += back.recv(1 << 16)
            sending.join(30)
            return bytes(got) == pattern[:nbytes]


@pytest.mark.parametrize(("number", "options"), [(2, {"offload": "off"}), (3, {}), (2, {"rate": "500mbit"})])
def test_a_stream_crosses_the_relay_whole(number, options):
    with needs.hosts(number, delay="1ms", **options) as bed:
        a, b = bed.hosts[0], bed.hosts[-1]
        with_b = b.submit(exchange, b.address, a.address, 2_000_000)
        assert a.call(exchange, a.address, b.address, 2_000_000)
        assert with_b.result(60)
        state = bed.describe()
        assert state["joined_by"] == "relay"
        assert state["relay"]["bytes"] > 4_000_000
        assert state["relay"]["running"]
        assert state["relay"]["dropped"] == 0
        assert bed.relay_trouble() is None
    assert gone(state["relay"]["pid"])


def flood(address, number):
    """Run on a host: send datagrams to a port of another host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _ in range(number):
            sock.sendto(b"x", (address, 4801))


def test_dropped_frames_are_reported():
    bed = needs.hosts(delay="1ms")
    try:
        pid = bed.describe()["relay"]["pid"]
        os.kill(pid, signal.SIGSTOP)
        bed.hosts[0].call(flood, bed.hosts[1].address, 20_000)  # more than a ring has slots
        os.kill(pid, signal.SIGCONT)
        deadline = time.monotonic() + 30
        while bed.relay_trouble() is None:
            assert time.monotonic() < deadline
    finally:
        with pytest.warns(RuntimeWarning, match=r"dropped 1[0-9]{4} of [0-9]{5} frames; choose a smaller delay"):
            bed.close()


def test_a_dead_relay_stops_the_hosts():
    bed = needs.hosts(delay="1ms")
    try:
        pid = bed.describe()["relay"]["pid"]
        call = bed.hosts[1].submit(listen, 4802)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TestbedError):
            call.result(30)
        for _ in range(2):
            assert not bed.describe()["relay"]["running"]
    finally:
        with pytest.warns(RuntimeWarning, match="relay .* has died, and the hosts were stopped; open a new Testbed"):
            bed.close()
    assert gone(pid)


def test_a_sweep_reports_a_dead_relay(monkeypatch):
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    beds = []

    def opened(**options):
        beds.append(Testbed(**options))
        return beds[-1]

    def end_relay(*_):
        relay = beds[0].describe()["relay"]
        if relay["running"]:
            os.kill(relay["pid"], signal.SIGKILL)

    config = plan.Config(["tcp"], [8, 64], hosts="testbed", seconds=2, delay="1ms")
    with pytest.warns(RuntimeWarning, match="has died"):
        outcome = sweep.run(config, on_point=end_relay, testbed_class=opened)
    result.validate(outcome.document)
    assert not outcome.document["complete"]
    assert any("relay" in one["message"] and "has died" in one["message"] for one in outcome.document["errors"])


def test_the_relay_ends_with_a_killed_program():
    needs.hosts().close()
    code = """
from viakit.testbed import Testbed
bed = Testbed(delay="1ms").open()
print(bed.describe()["relay"]["pid"], flush=True)
input()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        pid = int(program.stdout.readline())
        fd = os.pidfd_open(pid)
        program.kill()
    try:
        assert select.select([fd], [], [], 30)[0]
    finally:
        os.close(fd)


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "tcp", "--hosts", "local", "--sizes", "8"],
        ["sweep", "tcp", "--hosts", "ssh:nowhere", "--sizes", "8"],
        ["sweep", "via", "--machine", "barrier-cluster-1", "--sizes", "8"],
        ["run", "-n", "2", "true"],
        ["run", "--hosts", "ssh:nowhere", "true"],
        ["run", "-n", "2", "--machine", "barrier-cluster-1", "true"],
        ["app", "ep", "-n", "2"],
        ["speedup", "--quick"],
        ["barrier"],
        ["collectives", "--hosts", "local"],
    ],
)
def test_a_delay_needs_a_testbed(words, monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "")
    command, *rest = words
    done = click.testing.CliRunner().invoke(cli, [command, "--delay", "1ms", *rest], prog_name="viakit")
    assert done.exit_code == 2, done.output
    assert "--delay" in done.output
    assert "--hosts testbed" in done.output or "wire.delay_us" in done.output


def test_a_wrong_delay_is_named(monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "")
    done = click.testing.CliRunner().invoke(cli, ["barrier", "--delay", "1m"], prog_name="viakit")
    assert done.exit_code == 2
    assert "'1m'; expected a time from 0 to 1 s with its unit" in done.output


SECOND_RANK = """
import time
import viakit
world = viakit.world()
for _ in range(3):
    began = time.perf_counter()
    world.Barrier()
    print(time.perf_counter() - began)
"""


@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_ranks_of_a_job_are_delayed(protocol, monkeypatch, tmp_path, capfd):
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    program = tmp_path / "two.py"
    program.write_text(SECOND_RANK)
    words = ["run", "-n", "2", "--hosts", "testbed:2", "--protocol", protocol, "--delay", "5ms", str(program)]
    done = click.testing.CliRunner().invoke(cli, words, prog_name="viakit")
    out = capfd.readouterr().out + done.output
    assert done.exit_code == 0, out
    times = [float(line) for line in out.split()]
    assert len(times) == 6
    # The rank that enters a barrier first leaves it after a frame that the other sends when it enters.
    assert max(times) >= 0.005
