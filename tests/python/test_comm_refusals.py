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


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda c: c.Split("1"), TypeError, "integers"),
        (lambda c: c.Split(0, "1"), TypeError, "integers"),
        (lambda c: c.Create_cart(["1"]), TypeError, "integer"),
        (lambda c: c.Create_cart([1.0]), TypeError, "integer"),
        (lambda c: c.Create(MPI.GROUP_NULL), MPI.Exception, "ERR_GROUP"),
        (lambda c: c.Create_group(MPI.GROUP_NULL), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.Group.Union(c.group, MPI.GROUP_NULL), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.Group.Intersection(MPI.GROUP_NULL, c.group), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.Group.Difference(c.group, MPI.GROUP_NULL), MPI.Exception, "ERR_GROUP"),
        (lambda c: c.group.Translate_ranks([0], MPI.GROUP_NULL), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.GROUP_NULL.Translate_ranks([0], c.group), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.GROUP_NULL.Translate_ranks([], c.group), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.GROUP_NULL.Incl([]), MPI.Exception, "ERR_GROUP"),
        (lambda c: MPI.GROUP_NULL.Excl([]), MPI.Exception, "ERR_GROUP"),
        (lambda c: c.group.Range_incl([(0, 0, 0)]), MPI.Exception, "ERR_ARG"),
        (lambda c: MPI.Compute_dims(0, 2), MPI.Exception, "ERR_DIMS"),
        (lambda c: MPI.Compute_dims(-6, [0, 0]), MPI.Exception, "ERR_DIMS"),
        (lambda c: MPI.INT.Create_subarray([4], [2], [0], order=77), MPI.Exception, "ERR_ARG"),
        (lambda c: MPI.INT.Create_darray(1, 0, [4], [MPI.DISTRIBUTE_BLOCK], [4], [1], 77), MPI.Exception, "ERR_ARG"),
        (lambda c: MPI.INT.Pack(np.zeros(1, "i4"), bytearray(8), -4, c), MPI.Exception, "ERR_ARG"),
        (lambda c: MPI.INT.Pack_external("external32", np.zeros(1, "i4"), bytearray(8), -4), MPI.Exception, "ERR_ARG"),
        (lambda c: MPI.Op.Create(5), TypeError, "function"),
        (lambda c: MPI.Info.Create().Set("key", 5), TypeError, "strings"),
    ],
)
def test_an_argument_that_an_mpi_refuses_is_refused(alone, call, kind, words):
    with pytest.raises(kind, match=words):
        call(alone)


def test_ranges_may_be_read_only_once(alone):
    assert alone.group.Range_incl([iter((0, 0, 1))]).size == 1
    assert alone.group.Range_excl(one for one in [(0, 0, 1)]).size == 0


def test_an_info_takes_bytes_as_text():
    info = MPI.Info.Create({b"a": b"1"})
    info["b"] = b"2"
    assert info.items() == [("a", "1"), ("b", "2")]
    assert info.Get(b"a") == "1"
    info.Delete(b"a")
    assert info.keys() == ["b"]


@pytest.mark.parametrize(("position", "words"), [(0, "ERR_TRUNCATE"), (3, "ERR_TRUNCATE"), (-8, "ERR_ARG")])
def test_packed_bytes_that_do_not_suffice_are_refused(alone, position, words):
    """Elements without packed bytes would keep their old values, or a negative position would count from the end."""
    into = np.full(4, 7, dtype="i4")
    packed = bytearray(into.nbytes - 1 if position == 0 else into.nbytes)
    with pytest.raises(MPI.Exception, match=words):
        MPI.INT.Unpack(packed, position, into, alone)
    with pytest.raises(MPI.Exception, match=words):
        MPI.INT.Unpack_external("external32", packed, position, into)
    assert (into == 7).all()


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda t: t.Pack_size(-1, MPI.COMM_SELF), MPI.ERR_COUNT, "0 or more, got -1"),
        (lambda t: t.Create_subarray([], [], []), MPI.ERR_ARG, "1 or more dimensions"),
        (lambda t: t.Create_darray(1, 0, [4], [MPI.DISTRIBUTE_CYCLIC], [0], [1]), MPI.ERR_ARG, "blocks of 0"),
        (lambda t: t.Create_darray(1, 0, [4], [MPI.DISTRIBUTE_BLOCK], [-4], [1]), MPI.ERR_ARG, "blocks of -4"),
        (lambda t: t.Create_darray(1, 0, [-4], [MPI.DISTRIBUTE_NONE], [-1], [1]), MPI.ERR_ARG, "shape .-4."),
    ],
)
def test_a_number_out_of_range_is_refused(make, kind, words):
    with pytest.raises(MPI.Exception, match=words) as refused:
        make(MPI.INT)
    assert refused.value.Get_error_class() == kind
