"""The hot paths of viakit.mpi and viakit.bip between two ranks, timed by pytest-benchmark; nothing asserts a time.

`make benchmark` runs them. Each test starts a second rank.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import benchmark_calls
import pytest

from viakit.base.channel import Channel

# The table of calls needs two ranks, so the names are here, too: each test compares them.
NAMES = {
    "mpi": (
        "Send array", "Send list", "Send count", "Send displacement", "Send letter", "Send bytearray", "Send 64 KiB",
        "Ssend", "Probe", "Isend Irecv", "Sendrecv", "Start", "send dict", "send array of 1 MiB",
    ),
    "collective": (
        "Barrier", "Bcast", "Reduce", "Allreduce", "Allreduce list", "Allreduce 64 KiB", "Allgather", "Alltoall",
        "Gather", "Scatter", "Scan", "Allgatherv counts", "Allgatherv lists", "Allgatherv pair", "Allgatherv arrays",
        "Alltoallv", "Gatherv", "Scatterv", "Alltoallw", "Reduce_scatter", "Allreduce in place", "Allgather in place",
        "Gather in place", "Ibarrier", "Iallreduce", "Ibcast", "Iallgather", "Iallreduce in place",
        "Scan beside Ibarrier", "bcast", "allreduce", "reduce", "scan",
    ),
    "window": ("Put", "Put list", "Get", "Accumulate", "Fetch_and_op"),
    "bip": ("short", "long", "isend"),
}  # fmt: skip
EVERY = [f"{kind} {name}" for kind, names in NAMES.items() for name in names]
ROUNDS, ITERATIONS = 50, 20


@contextmanager
def two_ranks():
    """Yield the calls of rank 0, and a function that lets the other rank make a call a number of times."""
    mine, other = socket.socketpair()
    command = [sys.executable, str(Path(benchmark_calls.__file__)), str(other.fileno())]
    child = subprocess.Popen(command, pass_fds=[other.fileno()])
    other.close()
    channel = Channel(mine)
    try:
        with benchmark_calls.rank_of(0, channel) as calls:
            yield calls, lambda name, n: channel.send({"call": name, "n": n})
            channel.send({"call": "", "n": 0})
        assert child.wait(benchmark_calls.LIMIT_S) == 0
    finally:
        mine.close()
        if child.poll() is None:
            child.kill()
            child.wait()


@pytest.mark.parametrize("name", EVERY)
def test_call(benchmark, name):
    with two_ranks() as (calls, begin):
        assert list(calls) == EVERY
        begin(name, (ROUNDS + 2) * ITERATIONS + 1)  # pytest-benchmark makes one more call, for the result
        benchmark.pedantic(calls[name], rounds=ROUNDS, iterations=ITERATIONS, warmup_rounds=2)
