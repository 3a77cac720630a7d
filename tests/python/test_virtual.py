"""Described machines in virtual time: `--machine` of sweep, barrier, collectives and run, and :mod:`viakit.virtual`."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from rich.console import Console

from viakit import machines, replay, virtual
from viakit.measure import barrier, plan, result, sweep, table
from viakit.measure.crews import Placement, check

VIAKIT = [sys.executable, "-m", "viakit"]

# One way: 1 send, 2 + 2 cards, 1 wire, 4 receive = 10 us; a byte costs 1 ns on either bus and 8 ns on the wire.
TEN_US = """
[machine]
title = "10 us"
[host]
copy_mb_s = {is = 1000, from = "assumed: a round number"}
[wire]
rate_mbit_s = {is = 1000, from = "assumed: a round number"}
frame_bytes = {is = 0, from = "assumed: none"}
delay_us = {is = 1, from = "assumed: a round number"}
mtu = {is = 1024, from = "assumed: a round number"}
[card]
start_us = {is = 2, from = "assumed: a round number"}
bus_mb_s = {is = 1000, from = "assumed: a round number"}
[via]
send_us = {is = 1, from = "assumed: a round number"}
receive_us = {is = 4, from = "assumed: a round number"}
notice_us = {is = 4, from = "assumed: a round number"}
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    path = tmp_path_factory.mktemp("machine") / "ten.toml"
    path.write_text(TEN_US)
    return str(path)


def _points(series):
    """Return all times of the series. Counters of polls depend on the load of the real machine."""
    return [
        (one["protocol"], point["nbytes"], point.get("one_way_s", point.get("time_s")))
        for one in series
        for point in one["points"]
    ]


def _sweep(machine, **options):
    document = sweep.run(plan.Config(machine=machine, **options)).document
    result.validate(document)
    assert document["complete"]
    return document["series"]


def test_a_sweep_has_the_declared_times_and_repeats_to_the_bit(machine):
    first, again = (_sweep(machine, protocols=["via", "msg-via", "bip"], sizes=[8, 1000, 20000]) for _ in range(2))
    assert _points(first) == _points(again)
    via = first[0]
    assert (via["protocol"], via["hosts"], via["info"]["time"]) == ("via-sim", "machine", "virtual")
    assert via["points"][0]["one_way_s"]["median"] == pytest.approx(10.08e-6, abs=1e-12)
    assert via["points"][1]["one_way_s"]["median"] == pytest.approx(20e-6, abs=1e-12)
    # Messages copy on both sides; BIP announces long messages.
    assert first[1]["points"][1]["one_way_s"]["median"] > 22e-6


def test_a_stream_is_limited_by_the_slowest_stage(machine):
    (via,) = _sweep(machine, protocols=["via"], sizes=[65536], mode="stream")
    assert via["points"][0]["bandwidth_Bps"] == pytest.approx(125e6, rel=0.02)


def test_policies_differ_and_their_table_has_no_intervals(machine):
    config = plan.Config(["msg-via:mvich-rput", "msg-via:mvich-r3"], [8, 65536], machine=machine)
    document = sweep.run(config).document
    rput, r3 = ([point["one_way_s"]["median"] for point in one["points"]] for one in document["series"])
    assert rput[0] == r3[0], "both are eager"
    assert rput[1] < r3[1], "only R3 copies long messages"
    console = Console(file=io.StringIO(), width=120)
    table.show(document, console)
    text = console.file.getvalue()
    assert "virtual time repeats to the bit" in text
    assert "too few" not in text
    assert "±" not in text
    assert table.format_ratio(r3[1] / rput[1]) in text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"protocols": ["via"], "mtu": 1500}, "wire.mtu"),
        ({"protocols": ["via"], "hosts": "testbed"}, "all ranks run on this host"),
        ({"protocols": ["zmq"]}, "cannot run on a described machine"),
        ({"protocols": ["via"], "level": "python"}, "only the loop in C"),
    ],
)
def test_options_without_a_meaning_are_refused(machine, options, words):
    with pytest.raises(ValueError, match=words):
        sweep.check(plan.Config(machine=machine, sizes=[8], **options))


def test_barriers_take_one_latency_for_each_step(machine):
    def measured():
        document = barrier.measure([2, 8], algorithms=["rdma", "dissemination"], machine=machine, with_mpi=False)
        result.validate(document)
        return document["series"]

    first, again = measured(), measured()
    differences = [(a, b) for a, b in zip(_points(first), _points(again), strict=True) if a != b]
    assert not differences, [(a[2]["median"], b[2]["median"], b[2]) for a, b in differences]
    times = {(one["algorithm"], one["ranks"]): one["points"][0]["time_s"]["median"] for one in first}
    assert times["rdma", 2] >= 10e-6
    assert 2.5 < times["rdma", 8] / times["rdma", 2] < 3.5  # log2(8) steps
    with pytest.raises(ValueError, match="leave out hosts"):
        check([2], Placement(hosts=2, machine=machine), 1.0)


def test_the_copy_of_a_short_write_is_charged(machine, tmp_path):
    """The flag of a barrier, 8 bytes, is copied before the RDMA write sends it: 8 us at 1 us for each byte."""
    slow = tmp_path / "slow.toml"
    slow.write_text(TEN_US.replace("copy_mb_s = {is = 1000", "copy_mb_s = {is = 1"))

    def time_s(of):
        document = barrier.measure([2], algorithms=["rdma"], machine=str(of), with_mpi=False)
        return document["series"][0]["points"][0]["time_s"]["median"]

    assert time_s(slow) - time_s(machine) == pytest.approx(8 * 0.999e-6, abs=1e-9)


def test_registration_in_each_barrier_costs_a_message_more(machine):
    """The address of the memory comes first, by a message. That costs more than the whole exchange by RDMA write."""
    document = barrier.measure([2], algorithms=["rdma", "rdma-dynamic"], machine=machine, with_mpi=False)
    once, each = (one["points"][0]["time_s"]["median"] for one in document["series"])
    assert each > 2 * once


def test_notices_of_a_write_cost_a_receive_and_an_interrupt():
    """Gupta et al., 4.2: immediate data consumes a receive, and an interrupt is "very expensive". To the bit, twice."""
    chosen = ["rdma", "rdma-immediate", "rdma-interrupt", "rdma-dynamic", "message"]

    def measured():
        return barrier.measure([2, 3], algorithms=chosen, machine="barrier-cluster-1", with_mpi=False)["series"]

    first, again = measured(), measured()
    differences = [(a, b) for a, b in zip(_points(first), _points(again), strict=True) if a != b]
    assert not differences, [(a[2]["median"], b[2]["median"], b[2]) for a, b in differences]
    times = {(one["algorithm"], one["ranks"]): one["points"][0]["time_s"]["median"] for one in first}
    interrupt_s = 1e-6 * machines.load("barrier-cluster-1")["via.interrupt_us"]
    for ranks, steps in ((2, 1), (3, 2)):
        write, notice, wakeup, _, message = (times[name, ranks] for name in chosen)
        assert write < notice < message, "the receive costs, but no envelope is matched"
        assert wakeup - notice >= 0.8 * steps * interrupt_s


@pytest.mark.parametrize(("name", "ranks"), [("barrier-cluster-1", [2, 3, 5, 8]), ("barrier-cluster-3", [32])])
def test_live_barriers_agree_with_the_replay(name, ranks):
    """One cost model: the code on the simulated link, and its schedule in the replay, within 2 %."""
    costs = replay.model(machines.load(name))
    # Those with centres have one for each core of a host. A described host has one, whatever this machine has.
    chosen = ["rdma", "message", "message-gather", *(["rdma-gather"] if max(ranks) < 16 else [])]
    document = barrier.measure(ranks, algorithms=chosen, machine=name, with_mpi=False)
    assert len(document["series"]) == len(chosen) * len(ranks)
    for one in document["series"]:
        live = one["points"][0]["time_s"]["median"]
        few, many = (
            replay.run(replay.barrier(one["algorithm"], one["ranks"], repeats=n), costs).end_s for n in (10, 30)
        )
        assert live == pytest.approx((many - few) / 20, rel=0.02), (one["algorithm"], one["ranks"])


PROGRAM = """
from viakit import virtual
from viakit.mpi import MPI

comm = MPI.COMM_WORLD
assert virtual.is_on()
comm.Barrier()
before = MPI.Wtime()
virtual.compute(0.25 if comm.rank else 0.125)
comm.Barrier()
took = MPI.Wtime() - before
print(f"{comm.rank} {took:.9f}", flush=True)
"""


def test_a_job_declares_its_computing(machine, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run():
        command = [*VIAKIT, "run", "-n", "4", "--machine", machine, str(program)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return sorted(done.stdout.splitlines())

    first = run()
    assert first == run()
    assert len(first) == 4
    assert all(0.25 < float(line.split()[1]) < 0.2503 for line in first)


def test_time_is_real_without_a_machine():
    assert not virtual.is_on()
    before = virtual.time_s()
    virtual.compute(3600)
    virtual.end()
    assert virtual.time_s() - before < 600
    with pytest.raises(ValueError, match="seconds"):
        virtual.compute(-1)
    with pytest.raises(RuntimeError, match="no NIC of this process"):
        virtual.begin(2, 0)


def test_the_command_line_shows_the_machine(machine):
    command = [*VIAKIT, "sweep", "via", "--machine", machine, "--sizes", "8", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["series"][0]["info"]["machine"] == "ten"
