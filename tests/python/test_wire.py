"""The wire of the papers: no offloads, no TCP options, a bucket of one frame; and messages at an offset."""

import json
import socket
import struct

import click.testing
import needs
import pytest

from viakit.cli import cli
from viakit.measure import comparison, plan, plot, result, sweep
from viakit.testbed import Testbed
from viakit.testbed.wire import Wire


def test_the_variable_and_the_arguments():
    assert Wire.chosen({}) == Wire("on", "on", None)
    given = {"VIAKIT_WIRE": "offload=off,burst=4096"}
    assert Wire.chosen(given) == Wire("off", "on", 4096)
    assert Wire.chosen(given, offload="on", burst="min", tcp_options=None) == Wire("on", "on", "min")
    assert Wire.chosen(given, tcp_options="off").text() == "offload=off,tcp_options=off,burst=4096"
    assert Wire.chosen({"VIAKIT_WIRE": Wire("off", "off", "min").text()}) == Wire("off", "off", "min")
    assert Wire().text() == ""
    assert Wire(rate="100 Mbit/s", burst="min").text() == "burst=min,rate=100mbit"
    for rate in (8, 1e9, 12_345_678, 2.5e12):
        assert Wire.chosen({"VIAKIT_WIRE": Wire(rate=rate).text()}).rate_bps == rate


@pytest.mark.parametrize("text", ["offload=maybe", "feathers=1", "offload", "burst=least", "rate=fast", "burst=min"])
def test_a_wrong_wire_is_named(text, monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", text)
    with pytest.raises(ValueError, match="expected"):
        Testbed()


def test_a_rate_in_the_variable_limits_the_wire(monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "rate=100mbit,burst=min")
    with needs.hosts() as bed:
        limited = json.dumps(bed.describe()["switch"])
        assert "tbf" in limited
        assert bed.rate_bps == 100_000_000
        assert bed.burst == 1518
    assert Testbed(hosts=1).rate_bps is None
    assert Testbed(rate="1gbit").rate_bps == 10**9


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["sweep", "tcp", "--burst", "min", "--hosts", "testbed"], "add --rate"),
        (["sweep", "via-shm", "--offload", "off", "--hosts", "local"], "--offload sets the testbed's wire"),
        (["sweep", "tcp", "--tcp-options", "off", "--hosts", "local"], "--tcp-options sets the testbed's wire"),
        (["sweep", "via", "--machine", "veth", "--offload", "off"], "a network of its own; remove --offload"),
        (["sweep", "udp", "zmq", "--sockbuf", "auto"], "finds the best size for tcp"),
        (["barrier", "--hosts", "2", "--burst", "min"], "add --rate"),
        (["barrier", "--rate", "1gbit"], "--rate sets the testbed's wire"),
        (["barrier", "--offload", "off"], "--offload sets the testbed's wire"),
        (["barrier", "--hosts", "2", "--rate", "fast"], "rate is 'fast'"),
        (["app", "ep", "-n", "2", "--rate", "1gbit"], "--rate sets the testbed's wire"),
    ],
)
def test_an_option_of_the_wire_without_effect_is_refused(words, problem, monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "")
    done = click.testing.CliRunner().invoke(cli, words, prog_name="viakit", env={"COLUMNS": "200"})
    assert done.exit_code == 2, done.output
    assert problem in done.output


def test_the_rate_is_part_of_a_result(monkeypatch, tmp_path):
    """Results of wires with different rates are not compared, and every table has the rate."""
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    run = click.testing.CliRunner().invoke
    for name, more in (("a", ["--rate", "1e9"]), ("b", [])):
        words = ["sweep", "tcp", "--hosts", "testbed", "--sizes", "4K", "--perturb", "0", "--seconds", "0.5", *more]
        done = run(cli, [*words, "--json", str(tmp_path / name)], prog_name="viakit", env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert ("rate=1gbit" in done.output) == (name == "a")
    assert result.load(tmp_path / "a")["series"][0]["wire"] == "rate=1gbit"
    assert "wire" not in result.load(tmp_path / "b")["series"][0]
    words = ["barrier", "--hosts", "2", "--ranks", "2", "--algorithms", "message", "--no-mpi", "--seconds", "0.5"]
    done = run(cli, [*words, "--rate", "100mbit", "--json", str(tmp_path / "c")], prog_name="viakit")
    assert done.exit_code == 0, done.output
    assert result.load(tmp_path / "c")["environment"]["wire"] == "rate=100mbit"


def connection(listener_address):
    """Run on host 1: connect to host 0, and return the options of TCP that the connection has."""
    with socket.create_connection(listener_address, 10) as sock:
        return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)[5]


def listen(port):
    """Run on host 0: accept one connection, and wait until the peer has closed it."""
    with socket.create_server(("10.77.0.1", port)) as server, server.accept()[0] as sock:
        return sock.recv(1)


@pytest.mark.parametrize(("hosts", "rate"), [(2, None), (3, None), (2, "100mbit")])
def test_a_wire_without_offloads_and_options(hosts, rate):
    with needs.hosts(hosts, rate=rate, offload="off", tcp_options="off", burst="min" if rate else None) as bed:
        state = bed.describe()
        assert not any(features for one in (*state["hosts"], state["switch"]) for features in one["offloads"].values())
        assert state["tcp_options"] == "off"
        if rate:
            assert state["burst"] == 1518
        serving = bed.hosts[0].submit(listen, 4711)
        for _ in range(100):
            try:
                options = bed.hosts[1].call(connection, ("10.77.0.1", 4711))
                break
            except ConnectionRefusedError:
                continue
        assert serving.result(20) == b""
        assert options & 0b101 == 0  # time stamps and window scaling; selective acknowledgements remain


def test_a_usual_wire_has_both():
    with needs.hosts() as bed:
        state = bed.describe()
        assert "tx-tcp-segmentation" in state["hosts"][0]["offloads"]["eth0"]
        assert state["tcp_options"] == "on"


def longest_frame(nbytes):
    """Run on host 0: return the length of the longest frame of a TCP stream that arrives."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800)) as raw:
        raw.bind(("eth0", 0x0800))
        raw.settimeout(10)
        with socket.create_server(("10.77.0.1", 4712)) as server, server.accept()[0] as sock:
            left = nbytes
            while left:
                left -= len(sock.recv(min(left, 65536)))
        longest = 0
        raw.settimeout(0)
        try:
            while True:
                longest = max(longest, len(raw.recv(1 << 17)))
        except BlockingIOError:
            return longest


def send(nbytes):
    """Run on host 1: send a stream."""
    with socket.socket() as sock:
        sock.settimeout(10)
        sock.connect(("10.77.0.1", 4712))
        sock.sendall(bytes(nbytes))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 10))


@pytest.mark.parametrize("offload", ["on", "off"])
def test_frames_are_cut_by_the_sender(offload):
    with needs.hosts(offload=offload) as bed:
        receiving = bed.hosts[0].submit(longest_frame, 1 << 18)
        for _ in range(100):
            try:
                bed.hosts[1].call(send, 1 << 18)
                break
            except ConnectionRefusedError:
                continue
        longest = receiving.result(20)
    assert (longest <= 1514) == (offload == "off"), longest


def test_sweeps_record_the_wire_and_the_offset(monkeypatch, tmp_path):
    needs.hosts().close()
    monkeypatch.setenv("VIAKIT_WIRE", "")
    out = tmp_path / "a.json"
    words = ["sweep", "tcp", "via-eth", "msg-via", "--hosts", "testbed", "--sizes", "64,64K", "--perturb", "0"]
    words += ["--offload", "off", "--tcp-options", "off", "--offset", "3", "--seconds", "1", "--json", str(out)]
    done = click.testing.CliRunner().invoke(cli, [*words, "--validate"], prog_name="viakit")
    assert done.exit_code == 0, done.output
    assert "offload=off,tcp_options=off" in done.output
    document = json.loads(out.read_text())
    result.validate(document)
    assert {(one["wire"], one["offset"]) for one in document["series"]} == {("offload=off,tcp_options=off", 3)}
    monkeypatch.setenv("VIAKIT_WIRE", "")
    usual = sweep.run(plan.Config(["tcp"], [64], hosts="testbed", seconds=0.2)).document
    assert "wire" not in usual["series"][0]
    assert len(comparison.compare(document, usual)) == 0
    assert "tcp (MTU 1500" not in str(plot.curves([document, usual]))
    labels = [one["label"] for one in plot.curves([document, usual])]
    assert any("offload=off" in label for label in labels)
    with pytest.raises(plan.UsageError, match="--offset is 4096"):
        plan.plan(plan.Config(["tcp"], [64], offset=4096))
