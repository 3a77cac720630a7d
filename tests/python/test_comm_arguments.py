"""Arguments with buffers, as the core interprets them: every form, and what is refused."""

from __future__ import annotations

import array

import numpy as np
import pytest

from viakit.comm.spec import Simple, simple, vector, w_vector
from viakit.mpi import MPI

DATA = np.arange(12.0)
WHOLE = [(3, 0), (3, 24), (3, 48), (3, 72)]


def places(parts: list[Simple]) -> list[tuple[int, int]]:
    return [(part.count, part.start) for part in parts]


@pytest.mark.parametrize(
    "spec",
    [
        DATA,
        DATA.reshape(3, 4),
        np.asfortranarray(DATA.reshape(3, 4)),
        [DATA],
        [DATA, MPI.DOUBLE],
        [DATA, "d"],
        [DATA, 3],
        (DATA, np.int32(3), MPI.DOUBLE),
        [DATA, np.array(3), MPI.DOUBLE],
        [DATA, [3, 3, 3, 3]],
        [DATA, (3, 3, 3, 3), None, MPI.DOUBLE],
        [DATA, ([3] * 4, [0, 3, 6, 9]), MPI.DOUBLE],
        [DATA, (3, 3), MPI.DOUBLE],
        [DATA, np.full(4, 3), np.arange(0, 12, 3), MPI.DOUBLE],
        [array.array("d", DATA), [3] * 4, [0, 3, 6, 9], MPI.DOUBLE],
        [bytearray(DATA.tobytes()), [3] * 4, [0, 3, 6, 9], MPI.DOUBLE],
    ],
)
def test_a_vector_in_every_form(spec):
    parts = vector(spec, True, 4)
    assert places(parts) == WHOLE
    assert {part.datatype for part in parts} == {MPI.DOUBLE}
    assert parts[0].memory.nbytes == 96


def test_parts_are_views_of_the_buffer():
    data = DATA.copy()
    parts = vector([data, [2, 0, 4, 1], [10, 0, 3, 0], MPI.DOUBLE], True, 4)
    assert [part.pack().view("d").tolist() for part in parts] == [[10, 11], [], [3, 4, 5, 6], [0]]
    parts[2].unpack(np.full(4, -1.0).view(np.uint8))
    assert data[3:7].tolist() == [-1] * 4
    assert places(vector([np.zeros(5, "i"), None], True, 3)) == [(2, 0), (2, 8), (1, 16)]


def test_derived_datatypes_in_vectors():
    column = MPI.DOUBLE.Create_vector(3, 1, 4).Create_resized(0, 8)
    parts = vector([DATA, [1, 2], [0, 2], column], False, 2)
    assert [part.pack().view("d").tolist() for part in parts] == [[0, 4, 8], [2, 6, 10, 3, 7, 11]]
    assert w_vector([DATA, [1, 2], [0, 16], [column, column]], False, 2)[1].start == 16
    assert places(w_vector([DATA, ([1, 4], [0, 8]), [MPI.DOUBLE, MPI.INT]], False, 2)) == [(1, 0), (4, 8)]
    with pytest.raises(MPI.Exception, match="not fit into"):
        vector([DATA, [1, 2], [0, 3], column], False, 2)


@pytest.mark.parametrize(
    ("spec", "kind", "words"),
    [
        ([DATA, [3, 3, 3]], ValueError, "expecting 4 counts, got 3"),
        ([DATA, [3] * 4, [0], MPI.DOUBLE], ValueError, "expecting 4 displacements, got 1"),
        ([DATA, [3, 3, 3, -1]], MPI.Exception, "count must be 0 or more, got -1"),
        ([DATA, -1, MPI.DOUBLE], MPI.Exception, "count must be 0 or more, got -1"),
        ([DATA, [3.0] * 4], TypeError, "float"),
        ([DATA, [3] * 4, [0, 3, 6, 10], MPI.DOUBLE], MPI.Exception, "3 elements of 8 bytes at byte 80"),
        ([DATA, [3] * 4, [0, 3, 6, -1], MPI.DOUBLE], MPI.Exception, "not fit into"),
        ([DATA, [1 << 62] * 4, MPI.DOUBLE], (MPI.Exception, OverflowError), "not fit into|too large"),
        ([DATA, [1] * 4, [1 << 61] * 4, MPI.DOUBLE], MPI.Exception, "not fit into"),
        ([DATA, [1 << 64] * 4], OverflowError, "int"),
        ([bytearray(9), None, MPI.DOUBLE], ValueError, "not a multiple of the datatype's extent"),
        (MPI.IN_PLACE, MPI.Exception, "IN_PLACE is not possible"),
        ([MPI.IN_PLACE, 3, MPI.INT], MPI.Exception, "IN_PLACE is not possible"),
        (None, TypeError, "expecting a buffer, got None"),
        ([DATA, 1, 2, MPI.INT, 0], ValueError, "1 to 4 items"),
        (b"read only", BufferError, "read-only"),
        (DATA[::2], ValueError, "not contiguous"),
        (object(), TypeError, "buffer protocol"),
        ([DATA, [1] * 4, MPI.DATATYPE_NULL], MPI.Exception, "DATATYPE_NULL"),
    ],
)
def test_a_wrong_vector_is_refused(spec, kind, words):
    with pytest.raises(kind, match=words):
        vector(spec, True, 4)


def test_a_simple_argument_is_refused():
    for spec, kind, words in (
        ([DATA, (1, -1), MPI.DOUBLE], ValueError, "negative displacement"),
        ([DATA, (1, 13), MPI.DOUBLE], ValueError, "out of bounds"),
        ([DATA, (1 << 60, 0), MPI.DOUBLE], MPI.Exception, "not fit into"),
        (np.array([None, None]), (TypeError, KeyError, ValueError), "object|format|references"),
        ([np.array([None, None]), 1, MPI.DOUBLE], (TypeError, ValueError), "object|format|references"),
    ):
        with pytest.raises(kind, match=words):
            simple(spec, False)
    with pytest.raises(ValueError, match="required number of blocks 5"):
        simple(DATA, False, 5)


@pytest.mark.parametrize("name", ["BOTTOM", "IN_PLACE", "BUFFER_AUTOMATIC"])
def test_a_constant_is_an_empty_buffer_that_no_message_accepts(name):
    constant = getattr(MPI, name)
    with memoryview(constant) as view:
        assert view.nbytes == 0
        assert view.obj is None
    assert type(constant)() == constant
    assert MPI.Get_address(constant) == int(constant)
    for spec in (constant, [constant, 1, MPI.BYTE]):
        with pytest.raises(MPI.Exception, match=name):
            MPI.COMM_SELF.Send(spec, 0)


@pytest.mark.parametrize("call", ["Allreduce", "Reduce", "Scan", "Iallreduce", "Reduce_scatter_block"])
def test_a_reduction_refuses_what_is_no_operation(call):
    with pytest.raises(TypeError, match=r"op must be an Op such as MPI\.SUM, got builtin_function_or_method"):
        getattr(MPI.COMM_SELF, call)(np.ones(1), np.zeros(1), sum)


def test_another_handle_of_an_operation_reduces_until_it_is_null():
    total, handle = np.zeros(1), MPI.Op(MPI.SUM)
    MPI.COMM_SELF.Allreduce(np.ones(1), total, handle)
    assert total == 1
    handle.free()
    with pytest.raises(MPI.Exception, match="OP_NULL"):
        MPI.COMM_SELF.Allreduce(np.ones(1), total, handle)
    MPI.COMM_SELF.Allreduce(np.full(1, 2.0), total, MPI.SUM)
    assert total == 2
