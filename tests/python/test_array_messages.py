"""NumPy arrays as buffers of messages: each type of numbers, each layout, and what keeps an array."""

import sys
from array import array as array_of

import numpy as np
import pytest

from viakit.mpi import MPI

TYPES = "?bBhHiIlLqQefdgFD"


def sent(message, nbytes):
    """Return the bytes that a message transmits."""
    room, status = bytearray(nbytes + 64), MPI.Status()
    MPI.COMM_SELF.Send(message, 0)
    MPI.COMM_SELF.Recv(room, 0, status=status)
    return bytes(room[: status.Get_count(MPI.BYTE)])


@pytest.mark.parametrize("character", TYPES)
def test_all_types_of_numbers(character):
    array = np.arange(12).astype(character).reshape(3, 4)
    for one in (array, np.asfortranarray(array), array[1:2], array[0, 0:1].reshape(()), array[:0]):
        assert sent(one, array.nbytes) == one.tobytes("A")
        assert sent([one, MPI.BYTE], array.nbytes) == one.tobytes("A")
        into = np.zeros_like(one)
        MPI.COMM_SELF.Sendrecv(one, 0, recvbuf=into, source=0)
        assert np.array_equal(into, one)
        into = np.zeros_like(one)
        MPI.COMM_SELF.Send(one, 0)
        MPI.COMM_SELF.Recv(into, 0)
        assert np.array_equal(into, one)
    assert sent([array, 2], array.nbytes) == array.tobytes()[: 2 * array.itemsize]


def test_a_count_and_a_displacement_in_every_form():
    data = np.arange(12.0)
    part, rest = data[3:7], data[3:]
    for buffer in (data, memoryview(data), array_of("d", data), bytearray(data.tobytes())):
        for kind in (MPI.DOUBLE, "d", "f8", "MPI_DOUBLE"):
            for message in (
                [buffer, 4, 3, kind],
                [buffer, (4, 3), kind],
                (buffer, [4, 3], kind),
                [buffer, np.int32(4), np.int64(3), kind],
            ):
                assert sent(message, 32) == part.tobytes()
            for message in ([buffer, None, 3, kind], [buffer, (None, 3), kind]):
                assert sent(message, 72) == rest.tobytes()
            for message in ([buffer, kind], [buffer, None, kind], [buffer, None, None, kind], [buffer]):
                assert sent(message, 96) == data.tobytes()
            assert sent([buffer, 0, 12, kind], 0) == b""
        into = np.zeros(12)
        MPI.COMM_SELF.Send([buffer, (4, 3), "d"], 0)
        MPI.COMM_SELF.Recv([into, 4, 8, "d"], 0)
        assert into.tolist() == [0] * 8 + [3, 4, 5, 6]
    assert sent([data, (4, 3)], 32) == part.tobytes()
    for message in (
        [data, -1, 0, "d"],
        [data, 1, -1, "d"],
        [data, 1, 12, "d"],
        [data, 0, 13, "d"],
        [data, 1, 1 << 61, "d"],
        [data, 1 << 61, 1, "d"],
        [data, 1.0, 0, "d"],
        [data, 1, 0, "no type"],
        [data, 1, 0, 0, "d"],
    ):
        with pytest.raises((ValueError, TypeError, MPI.Exception)):
            MPI.COMM_SELF.Send(message, 0)


def test_memoryviews_in_lists_that_are_refused():
    data, released = bytearray(range(16)), memoryview(bytearray(8))
    released.release()
    assert sent([memoryview(data)[4:8], MPI.BYTE], 4) == data[4:8]
    assert sent([memoryview(bytes(data)), 2, 3, MPI.BYTE], 2) == data[3:5]
    for view in (memoryview(data)[::2], released):
        with pytest.raises((ValueError, BufferError)):
            MPI.COMM_SELF.Send([view, MPI.BYTE], 0)
    for view in (memoryview(bytes(data)), memoryview(data)[::2], released):
        with pytest.raises((ValueError, BufferError)):
            MPI.COMM_SELF.Recv([view, MPI.BYTE], 0)
    data.extend(b"x")  # no view is left, so the memory may be resized


def test_counts_and_displacements_in_collectives():
    data, result = np.arange(12, dtype="i4"), np.zeros(12, "i4")
    MPI.COMM_SELF.Allreduce([data, (4, 3), "i4"], [result, 4, 8, "MPI_INT"])
    assert result.tolist() == [0] * 8 + [3, 4, 5, 6]
    MPI.COMM_SELF.Allreduce(MPI.IN_PLACE, [result, 2, 8, MPI.INT], MPI.MAX)
    MPI.COMM_SELF.Bcast([data, (4, 3), "i"])
    MPI.COMM_SELF.Allgather([data, 2, 1, "i"], [result, 2, 0, "i"])
    assert result.tolist() == [1, 2] + [0] * 6 + [3, 4, 5, 6]
    assert data.tolist() == list(range(12))


def test_other_byte_orders_and_unaligned_arrays():
    swapped = np.arange(5, dtype=np.dtype("f8").newbyteorder("S"))
    unaligned = np.frombuffer(b"x" + np.arange(5.0).tobytes(), np.uint8)[1:].view("f8")
    assert not unaligned.flags.aligned
    for array in (swapped, unaligned):
        assert sent([array, MPI.BYTE], 40) == array.tobytes()


def test_arrays_that_are_refused():
    gaps, frozen = np.arange(8.0)[::2], np.zeros(4)
    frozen.flags.writeable = False
    with pytest.raises((ValueError, BufferError)):
        MPI.COMM_SELF.Send(gaps, 0)
    with pytest.raises((ValueError, BufferError)):
        MPI.COMM_SELF.Send([gaps, MPI.DOUBLE], 0)
    for into in (frozen, [frozen, MPI.DOUBLE]):
        with pytest.raises((ValueError, BufferError)):
            MPI.COMM_SELF.Recv(into, 0)
    assert sent(frozen, 32) == bytes(32)
    with pytest.raises((ValueError, TypeError, MPI.Exception)):
        MPI.COMM_SELF.Send(np.array([None, 1]), 0)
    for message in ([np.array([None, 1]), MPI.DOUBLE], [np.array([None, 1]), (1, 0), MPI.DOUBLE]):
        with pytest.raises((ValueError, TypeError)):
            MPI.COMM_SELF.Recv(message, 0)
    with pytest.raises(MPI.Exception):
        MPI.COMM_SELF.Send([np.zeros(4), 5, MPI.DOUBLE], 0)


def test_an_array_is_kept_until_its_request_ends_and_no_longer():
    array = np.zeros(4)
    before = sys.getrefcount(array)
    request = MPI.COMM_SELF.Irecv(array, 0)
    with pytest.raises(ValueError, match="resize"):
        array.resize(1000)
    MPI.COMM_SELF.Send(np.ones(4), 0)
    request.Wait()
    del request
    assert sys.getrefcount(array) == before
    for message in (array, [array, MPI.DOUBLE], [array, 4, MPI.DOUBLE], (array, 4)):
        MPI.COMM_SELF.Send(message, 0)
        MPI.COMM_SELF.Recv(message, 0)
        MPI.COMM_SELF.Isend(message, 0).Wait()
        MPI.COMM_SELF.Irecv(message, 0).Wait()
    del message
    assert sys.getrefcount(array) == before
    assert array.tolist() == [1, 1, 1, 1]
