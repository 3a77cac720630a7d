"""Hybrid waits, the processor time of waits that sleep, and counters that a protocol does not have."""

import io

import needs
import pytest
from rich.console import Console

from viakit.measure import interactive, plan, plot, result, sweep, table
from viakit.measure.pair import MeasureError, Pair

NAMES = ["tcp", "udp", "unix", "zmq", "via-udp", "via-shm", "bip-shm", "msg-via", "msg-tcp:mpich-p4"]


@pytest.mark.parametrize("name", NAMES)
def test_every_protocol_in_c_waits_so(name):
    with Pair(name, wait="hybrid") as pair:
        for mode in ("pingpong", "stream"):
            samples = pair.run(1000, mode, count=20, validate=True)
            assert samples.one_way_s.size
        assert pair.info["wait"] == "hybrid"


def test_a_long_pause_ends_in_a_sleep():
    """The peer of a stream of long messages is silent for longer than the wait polls, so the wait sleeps."""
    with Pair("unix", wait="hybrid") as pair:
        counters = pair.run(16 << 20, "stream", count=2, repeats=2).counters
    assert counters["voluntary_switches"] > 0


def test_a_poll_never_sleeps_and_a_hybrid_wait_polls():
    polls = {}
    for wait in ("block", "hybrid"):
        with Pair("unix", wait=wait) as pair:
            polls[wait] = pair.run(8, count=2000).counters["system_calls"]
    assert polls["hybrid"] > polls["block"]


def test_the_table_has_the_processor_time():
    document = sweep.run(plan.Config(["unix", "tcp"], [64], wait="hybrid", seconds=0.3)).document
    result.validate(document)
    console = Console(file=io.StringIO(), width=160)
    table.show(document, console)
    text = console.file.getvalue()
    assert "hybrid waits" in text
    assert text.count("CPU") >= 3
    assert plot.figure([document]) is not None
    assert "12px,3px" in str(interactive.figure([document]).to_json())
    polled = sweep.run(plan.Config(["unix"], [64], seconds=0.2)).document
    console = Console(file=io.StringIO(), width=160)
    table.show(polled, console)
    assert "CPU" not in console.file.getvalue()


def test_the_loop_in_python_has_none():
    with pytest.raises(plan.UsageError, match="with hybrid waits, only at c"):
        plan.plan(plan.Config(["tcp"], [8], wait="hybrid", level="python"))
    with pytest.raises(MeasureError, match="no hybrid wait"):
        Pair("tcp", wait="hybrid", level="python")
    with pytest.raises(plan.UsageError, match="--wait hybrid, only with poll"):
        plan.plan(plan.Config(["floor"], [8], wait="hybrid"))


@pytest.mark.parametrize("name", ["tcp", "zmq", "msg-via", "msg-tcp", "mpi:openmpi", "mpi:mpich", "udp", "via-shm"])
def test_a_counter_that_does_not_count_is_absent(name):
    if name.startswith("mpi"):
        needs.mpi_library(name)
    with Pair(name) as pair:
        counters = pair.run(64, count=50).counters
    assert ("system_calls" in counters) == (name in ("tcp", "udp", "via-shm"))
    assert {"acks_sent", "frames_retransmitted"} <= set(counters) or name not in ("udp", "via-shm")
    assert not {"acks_sent", "frames_retransmitted", "timeouts"} & set(counters) or name in ("udp", "via-shm")


@pytest.mark.parametrize("protocol", ["msg-tcp", "msg-tcp:lam-c2c", "msg-via", "msg-bip"])
def test_a_blocking_wait_for_a_message_sleeps_at_once(protocol):
    """Polls before the sleep would make a ping-pong that never sleeps."""
    with Pair(protocol, wait="block") as pair:
        samples = pair.run(8, count=300, warmup=10)
    assert samples.counters["voluntary_switches"] > 300  # of 600 waits; a message may arrive before its wait
