"""Results of NetPIPE, of the OSU benchmarks and of iperf3, and NetPIPE as a protocol of a sweep."""

import contextlib
import json
import shutil
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import click.testing
import numpy as np
import pytest
from synthetic import SyntheticPair

from viakit.cli import cli
from viakit.measure import comparison, foreign, kinds, plan, result, sweep, table
from viakit.measure.endpoints import MeasureError
from viakit.measure.foreign import best_of_trials
from viakit.measure.pair import Pair
from viakit.measure.sides import FreshSocketSide
from viakit.testbed import Testbed

NETPIPE = "       1 0.256000   0.00002980\n      64 20.436572   0.00002389\n 4194304 9000.000000   0.00355556\n"
LATENCY = """
# OSU MPI Latency Test v7.4
# Datatype: MPI_CHAR.
# Size       Avg Latency(us)
0                       0.31
8                       0.34
65536                   9.50
"""
BANDWIDTH = "# OSU MPI Bandwidth Test v5.6.3\n# Size      Bandwidth (MB/s)\n1  3.00\n1024  2048.00\n"
BOTH = "# OSU MPI-CUDA Bi-Directional Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1000  4000.00\n"
IPERF = {
    "start": {"version": "iperf 3.12", "test_start": {"blksize": 131072, "num_streams": 1}},
    "intervals": [{"sum": {"bits_per_second": rate}} for rate in (1e9, 2e9, 4e9)],
    "end": {},
}


def test_the_numbers_of_each_format():
    one = foreign.parse(NETPIPE)
    assert (one.program, one.mode, one.wait) == ("netpipe", "pingpong", "block")
    # 64 bytes at 20.436572 * 2^20 bit/s; the file's own time has fewer digits.
    assert one.points[1] == (64, pytest.approx(64 * 8 / (20.436572 * 2**20)))
    assert one.points[1][1] == pytest.approx(2.389e-5, rel=1e-3)
    one = foreign.parse(LATENCY)
    assert (one.program, one.points[2]) == ("osu_latency", (65536, pytest.approx(9.5e-6)))
    assert one.info["library"] == "OSU micro-benchmarks v7.4"
    one = foreign.parse(BANDWIDTH)
    assert (one.program, one.mode, one.points[1]) == ("osu_bw", "stream", (1024, pytest.approx(0.5e-6)))
    one = foreign.parse(BOTH)
    assert (one.program, one.mode, one.points[0]) == ("osu_bibw", "bidir", (1000, pytest.approx(0.5e-6)))
    one = foreign.parse(json.dumps(IPERF))
    assert (one.program, one.mode) == ("iperf3", "stream")
    assert [time for _, time in one.points] == pytest.approx([131072 * 8 / rate for rate in (1e9, 2e9, 4e9)])


@pytest.mark.parametrize("text", ["", "{}", "hello", "1 2", '{"start": {}, "intervals": []}', "# OSU MPI Latency Test"])
def test_other_files_are_refused(text, tmp_path):
    file = tmp_path / "x"
    file.write_text(text)
    with pytest.raises(result.ResultError, match=r"expected NetPIPE's np\.out"):
        foreign.read([file])


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(result.ResultError, match="name a file that can be read"):
        foreign.read([tmp_path / "none"])
    for name, text in (("a", NETPIPE), ("b", LATENCY)):
        (tmp_path / name).write_text(text)
    with pytest.raises(result.ResultError, match="one name for several programs"):
        foreign.read([tmp_path / "a", tmp_path / "b"], protocol="both")
    assert [one["protocol"] for one in foreign.read([tmp_path / "a", tmp_path / "b"])["series"]] == [
        "netpipe",
        "osu_latency",
    ]


def test_imported_results_are_shown_drawn_and_compared(tmp_path):
    names = []
    for i in range(8):
        names.append(tmp_path / f"np{i}.out")
        names[-1].write_text(
            "".join(f"{n} {n * 8 / 2**20 / (1e-5 * (1 + i / 1000)):.9f} 0.00001\n" for n in (64, 4096))
        )
    out = tmp_path / "np.json"
    run = click.testing.CliRunner()
    words = ["import", *map(str, names), "--hosts", "testbed", "--mtu", "1500", "-o", str(out)]
    done = run.invoke(cli, words, prog_name="viakit")
    assert done.exit_code == 0, done.output
    assert "2 sizes of netpipe" in done.output
    document = result.load(out)
    assert document["series"][0]["points"][0]["one_way_s"]["ci_of"] == "bursts"
    assert document["series"][0]["points"][0]["bandwidth_Bps"] == pytest.approx(64 / 1.0035e-5, rel=1e-3)
    assert run.invoke(cli, words, prog_name="viakit").exit_code == 2  # it exists
    for command in (["show", out], ["plot", out, "-o", tmp_path / "np.png"], ["compare", out, out]):
        done = run.invoke(cli, list(map(str, command)), prog_name="viakit")
        assert done.exit_code == 0, done.output
    assert kinds.kind_of(document["series"][0]) == kinds.TRANSFERS
    slow = json.loads(out.read_text())
    for point in slow["series"][0]["points"]:
        point["bursts_s"] = [2 * time for time in point["bursts_s"]]
    assert {one.verdict for one in comparison.compare(document, slow)} == {"slower"}


def netpipe():
    """Skip a test without NetPIPE's program."""
    if shutil.which("NPtcp") is None:
        pytest.skip("missing package netpipe-tcp: sudo apt-get install netpipe-tcp")


def test_netpipe_is_a_protocol_of_a_sweep():
    netpipe()
    config = sweep.Config(["tcp", "netpipe:tcp"], [64, 65536], wait="block", seconds=1.0, hosts="local")
    document = sweep.run(config).document
    result.validate(document)
    ours, theirs = document["series"]
    assert (ours["buffers"], theirs["buffers"]) == ("touched", "same")
    assert theirs["info"]["library"].startswith("NetPIPE")
    for point in ours["points"]:  # as NetPIPE takes it
        assert len(point["bursts_best_s"]) == len(point["bursts_s"])
    assert "bursts_best_s" not in theirs["points"][0]
    for point in theirs["points"]:
        assert 1e-7 < point["one_way_s"]["median"] < 1
        assert set(point["counters"]) == {"messages"}
    with Pair("netpipe:tcp", wait="block", buffers="same", sockbuf=65536) as pair:
        assert np.size(pair.run(100, count=20, offset=3).one_way_s) == 1


def test_netpipe_between_hosts():
    netpipe()
    with Testbed() as bed, Pair("netpipe:tcp", testbed=bed, wait="block", buffers="cold") as pair:
        for nbytes in (1, 100_000):
            assert np.size(pair.run(nbytes, count=20).one_way_s) == 1
        assert pair.info["mtu"] == 1500


def test_a_fresh_connection_for_each_burst():
    common = {"protocol": "tcp:fresh", "level": "c", "wait": "block", "secret": "00" * 32, "address": "127.0.0.1"}
    sides = [FreshSocketSide({**common, "side": side, "interface": "lo", "sockbuf": 65536}) for side in range(2)]
    with ThreadPoolExecutor(2) as pool, contextlib.closing(sides[0]), contextlib.closing(sides[1]):
        offers = [side.open() for side in sides]
        list(pool.map(lambda side: side.connect(offers[1 - side.side], time.monotonic() + 20), sides))
        assert sides[0].describe()["congestion"]  # the kernel's congestion control
        ports = {sides[0].sock.getsockname()[1]}
        for nbytes in (1, 100_000, 1):
            plan = {"mode": "pingpong", "warmup": 1, "count": 20, "buffers": "same", "timeout_s": 20.0}
            list(pool.map(lambda one, n=nbytes, plan=plan: one.endpoint.prepare(n, side=one.side, **plan), sides))
            samples = list(pool.map(lambda side: side.endpoint.run(), sides))
            assert len(np.frombuffer(samples[0])) == 20
            assert sides[0].endpoint.counters()["bytes_sent"] == 21 * nbytes
            assert sides[0].sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 131072  # Linux doubles the size
            ports.add(sides[0].sock.getsockname()[1])
    assert len(ports) == 4  # the first connection, and one for each burst
    with Pair("tcp:fresh", wait="block") as pair:
        assert np.size(pair.run(100, count=20).one_way_s) == np.size(pair.run(100, count=20).one_way_s) == 20


def test_what_netpipe_cannot_do(monkeypatch):
    with pytest.raises(plan.UsageError, match="--wait poll, only with block"):
        plan.plan(plan.Config(["netpipe:tcp"], [8]))
    with pytest.raises(MeasureError, match="buffers 'touched'"):
        Pair("netpipe:tcp", wait="block")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MeasureError, match="sudo apt-get install netpipe-tcp"):
        Pair("netpipe:tcp", wait="block", buffers="same")


def test_the_verdict_on_netpipe_names_the_sizes_that_disagree():
    SyntheticPair.reset()
    document = sweep.run(plan.Config(["tcp", "udp"], [8, 64, 4096], seconds=0.3), pair_class=SyntheticPair).document
    assert table.agreement(document) == []
    mine, peer = document["series"]
    peer["protocol"] = "netpipe:tcp"
    for point, other, factor in zip(mine["points"], peer["points"], (1.05, 0.95, 1.5), strict=True):
        other["rounds"] = list(reversed(point["rounds"]))
        other["bursts_s"] = [factor * time for time in reversed(point["bursts_s"])]
    (text,) = table.agreement(document)
    assert text.startswith("netpipe:tcp and tcp agree within 10 % at 2 of 3 sizes. Not at: 4 KiB (1.50), ")
    mine["points"][2]["bursts_best_s"] = peer["points"][2]["bursts_s"][::-1]
    assert table.agreement(document) == ["netpipe:tcp and tcp agree within 10 % at 3 of 3 sizes."]
    assert best_of_trials([9.0] * 6 + [3.0, 5.0] + [9.0] * 6) == 4.0
    mine["protocol"] = "tcp:fresh"
    assert table.agreement(document) == ["netpipe:tcp and tcp:fresh agree within 10 % at 3 of 3 sizes."]
    mine["protocol"] = "tcp"
    peer["points"].pop()
    assert table.agreement(document) == ["netpipe:tcp and tcp agree within 10 % at 2 of 2 sizes."]


def test_the_verdict_on_netpipe_compares_bursts_of_the_same_turn():
    """A machine that becomes three times as slow in the middle slows both; medians over all bursts may hide that."""
    SyntheticPair.reset()
    document = sweep.run(plan.Config(["tcp", "udp"], [64], seconds=0.3), pair_class=SyntheticPair).document
    mine, peer = document["series"]
    peer["protocol"] = "netpipe:tcp"
    ours, theirs = mine["points"][0], peer["points"][0]
    ours["rounds"], theirs["rounds"] = [0, 1, 2, 3, 4], [1, 2, 3, 4, 5]
    ours["bursts_s"] = [1.0, 1.0, 1.0, 3.0, 3.0]
    theirs["bursts_s"] = [1.02, 1.03, 3.03, 3.06, 3.0]
    assert np.median(theirs["bursts_s"]) == 3 * np.median(ours["bursts_s"])
    assert table.agreement(document) == ["netpipe:tcp and tcp agree within 10 % at 1 of 1 size."]
    theirs["bursts_s"] = [1.2, 1.2, 3.6, 3.6, 3.0]
    (text,) = table.agreement(document)
    assert "Not at: 64 B (1.20)" in text
    del ours["rounds"]  # of another program
    theirs["one_way_s"]["median"] = 1.05
    assert table.agreement(document) == ["netpipe:tcp and tcp agree within 10 % at 1 of 1 size."]
