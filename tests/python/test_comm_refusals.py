"""Collectives that one rank refuses, or that do not match: on all channels the other ranks notice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest

from viakit.mpi import MPI

JOB = Path(__file__).with_name("refusals_job.py")
CHANNELS = {
    "via": ["--protocol", "via"],
    "via, hosts": ["--protocol", "via", "--hosts", "testbed:2"],
    "bip": ["--protocol", "bip"],
    "tcp": ["--protocol", "tcp"],
}


@pytest.mark.parametrize("kind", ["refused", "mismatched"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("channel", CHANNELS)
def test_no_rank_waits_for_ever(channel, ranks, kind):
    if "hosts" in channel:
        needs.hosts().close()
    command = [
        sys.executable,
        "-m",
        "viakit",
        "run",
        "-n",
        str(ranks),
        *CHANNELS[channel],
        "--timeout",
        "300",
        str(JOB),
    ]
    done = subprocess.run([*command, kind], capture_output=True, text=True, timeout=330)
    assert "WRONG" not in done.stdout, (done.stdout, done.stderr)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "END" in done.stdout, (done.stdout, done.stderr)


@pytest.fixture
def alone():
    """The world of one rank."""
    yield MPI.COMM_WORLD
    MPI.Finalize()


@pytest.mark.parametrize("form", ["Reduce_scatter", "Ireduce_scatter", "Reduce_scatter_init"])
def test_a_reduce_scatter_of_another_type_is_refused(alone, form):
    """The bits of an int are not a float."""
    into = np.full(4, 7.0, dtype="f4")

    def call():
        request = getattr(alone, form)(np.arange(4, dtype="i4"), into)
        request.Start()  # a persistent one is checked when it starts

    with pytest.raises(ValueError, match="int32 is sent and float32 received"):
        call()
    assert (into == 7.0).all()


@pytest.mark.parametrize(
    "call",
    [
        lambda c, a, b: c.Isend([a, 2.9, MPI.INT], 0),
        lambda c, a, b: c.Irecv([b, 2.0, MPI.INT], 0),
        lambda c, a, b: c.Allreduce([a, 2.9, MPI.INT], [b, 2.9, MPI.INT]),
        lambda c, a, b: c.Allgatherv([a, 4, MPI.INT], [b, [4.7], MPI.INT]),
        lambda c, a, b: c.Allgatherv([a, 4, MPI.INT], [b, np.array([4.7]), MPI.INT]),
        lambda c, a, b: c.Allgatherv([a, 2, MPI.INT], [b, ([2], [1.5]), MPI.INT]),
        lambda c, a, b: c.Bcast([a, 1, 1.5, MPI.INT]),
        lambda c, a, b: c.Reduce_scatter(a, b, [4.2]),
    ],
)
def test_a_count_that_is_no_integer_is_refused_and_not_truncated(alone, call):
    mine, into = np.arange(4, dtype="i4"), np.full(4, 7, dtype="i4")
    with pytest.raises(TypeError, match="cannot be interpreted as an integer"):
        call(alone, mine, into)
    assert (into == 7).all()


@pytest.mark.parametrize(
    "make",
    [
        lambda t: t.Create_contiguous(2.5),
        lambda t: t.Create_vector(2, 1.5, 2),
        lambda t: t.Create_vector(2, 1, 2.0),
        lambda t: t.Create_hvector(2, 1, 8.0),
        lambda t: t.Create_indexed([1, 2.0], [0, 1]),
        lambda t: t.Create_hindexed([1, 2], [0, 8.0]),
        lambda t: t.Create_struct([1.0], [0], [t]),
        lambda t: t.Create_subarray([4], [2.0], [1]),
        lambda t: t.Create_resized(0, 8.0),
    ],
)
def test_a_layout_that_is_no_integer_is_refused(make):
    """mpi4py refuses them, too."""
    with pytest.raises(TypeError, match="integer"):
        make(MPI.INT)
