"""Memory in buffer arguments: DLPack, the CUDA array interface, MPI.buffer, and lists with counts and datatypes."""

import array
import ctypes
import gc
import pickle

import numpy as np
import pytest

from viakit.mpi import MPI


class Dlpack:
    """An array that offers DLPack alone."""

    def __init__(self, data):
        self.data = data

    def __dlpack_device__(self):
        return self.data.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.data.__dlpack__(**options)


class CudaArray:
    """An array that offers the CUDA array interface alone."""

    def __init__(self, data, address=None):
        self.data = data
        self.__cuda_array_interface__ = {
            "version": 3,
            "data": (data.ctypes.data if address is None else address, False),
            "typestr": data.dtype.str,
            "shape": data.shape,
        }


@pytest.fixture
def alone():
    yield MPI.COMM_SELF
    MPI.Finalize()


@pytest.mark.parametrize("kind", [Dlpack, CudaArray])
def test_messages_to_and_from_objects_without_the_buffer_protocol(alone, kind):
    for code in "bhilqBHILQfdFD":
        there = np.zeros(6, code)
        data = np.arange(6, dtype=code)
        for what in ((), (4,), (4, MPI.Datatype.fromcode(code)), ((3, 2),), (MPI.Datatype.fromcode(code),)):
            there[:] = 0
            alone.Sendrecv([kind(data), *what] if what else kind(data), 0, 0, [kind(there), *what], 0, 0)
            first = 2 if what == ((3, 2),) else 0
            n = 3 if first else 4 if what and what[0] == 4 else 6
            assert (there[first : first + n] == data[first : first + n]).all(), (code, what)
            assert not there[first + n :].any()
            assert not there[:first].any()
        alone.Allreduce(kind(data), kind(there))
        assert (there == data).all()


def test_memory_that_this_process_cannot_read_is_refused(alone):
    with pytest.raises(BufferError, match="GPU"):
        alone.Send(CudaArray(np.zeros(4), address=8), 0)
    assert MPI.Get_address(CudaArray(np.zeros(4))) != 0
    with pytest.raises(TypeError, match="buffer protocol, DLPack"):
        alone.Send(object(), 0)


def test_a_buffer_keeps_its_memory_while_views_exist():
    owner = bytearray(b"abcdef")
    memory = MPI.buffer(owner)
    view = memoryview(memory)
    part = memory[2:4]
    memory[0] = ord("x")
    memory[4:] = b"yz"
    memory.release()
    assert (memory.address, memory.nbytes) == (0, 0)
    assert bytes(view) == owner == b"xbcdyz"
    assert part.tobytes() == b"cd"
    with pytest.raises(BufferError):
        owner.append(1)  # the views hold it
    view.release()
    del part
    owner.append(1)
    with pytest.raises(TypeError):
        MPI.buffer(b"abc")[0] = 1
    with pytest.raises(ValueError, match="3 bytes are assigned, got 2"):
        MPI.Alloc_mem(3)[:] = b"ab"


def test_lists_are_checked_as_before(alone):
    data = np.arange(4.0)
    for wrong in (
        [data, 5],
        [data, 5, MPI.DOUBLE],
        [data, -1, MPI.DOUBLE],
        [data, 1, MPI.DATATYPE_NULL],
        [data, 1, 2, 3, 4],
    ):
        with pytest.raises(ValueError):
            alone.Send(wrong, MPI.PROC_NULL if len(wrong) > 9 else 0)
    with pytest.raises((BufferError, ValueError)):
        alone.Irecv([b"abcd", 4, MPI.BYTE], 0)
    request = alone.Irecv([data, 2, MPI.DOUBLE], 0)
    alone.Send([array.array("d", [7, 8, 9]), 2, MPI.DOUBLE], 0)
    request.Wait()
    assert list(data) == [7, 8, 2, 3]


def test_bytes_of_a_device_are_sent_but_not_read_one_by_one(alone):
    there = np.zeros(4, "i")
    buffer = MPI.buffer(CudaArray(np.arange(4, dtype="i")))
    alone.Sendrecv([buffer, MPI.INT], 0, 0, there, 0, 0)
    assert there.tolist() == [0, 1, 2, 3]
    for call in (buffer.tobytes, lambda: buffer.cast("i"), lambda: buffer[0], lambda: buffer[1:3].tobytes()):
        with pytest.raises(BufferError, match="memory of a device"):
            call()


def test_bottom_in_vectors(alone):
    data, there = np.arange(4, dtype="i"), np.zeros(4, "i")
    places = [[MPI.BOTTOM, ([2], [MPI.Get_address(x) // 4]), MPI.INT] for x in (data, there)]
    alone.Alltoallv(*places)
    assert there.tolist() == [0, 1, 0, 0]
    alone.Alltoallv([MPI.BOTTOM, "B"], [MPI.BOTTOM, 0, "B"])
    with pytest.raises(MPI.Exception, match="absolute addresses"):
        alone.Alltoallv([MPI.BOTTOM, ([2], [0]), MPI.INT], [there, ([2], [0]), MPI.INT])
    with pytest.raises(ValueError, match="BOTTOM needs counts and displacements"):
        alone.Alltoallw([MPI.BOTTOM, None, [0], [MPI.INT]], [there, [0], [0], [MPI.INT]])
    with pytest.raises(ValueError, match="not a multiple"):
        alone.Alltoallv([bytearray(5), "i"], there)


def test_large_buffers_of_a_pickle_are_buffers_with_an_address():
    array = np.arange(100.0)
    data, outside = MPI.Pickle(threshold=100).dumps_oob(array)
    assert [(type(one), one.address) for one in outside] == [(MPI.buffer, array.ctypes.data)]
    assert (MPI.pickle.loads_oob(data, outside) == array).all()


def test_a_derived_datatype_describes_itself():
    base = MPI.INT
    grid = base.Create_darray(4, 3, [4, 4], [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC], [-1, -1], [2, 2])
    made = [
        base.Create_contiguous(3), base.Create_vector(3, 2, 4), base.Create_hvector(3, 2, 16),
        base.Create_resized(-4, 16), base.Create_indexed([1, 2], [0, 3]), base.Create_hindexed([1, 2], [0, 12]),
        base.Create_indexed_block(2, [0, 3]), base.Create_hindexed_block(2, [0, 12]),
        base.Create_subarray([4, 4], [2, 2], [1, 1]), base.Dup(), grid,
        MPI.Datatype.Create_struct([1, 2], [0, 8], [base, MPI.DOUBLE]), MPI.Datatype.Create_f90_real(15, 300),
    ]  # fmt: skip
    for datatype in made:
        again = pickle.loads(pickle.dumps(datatype))
        assert again.envelope == datatype.envelope
        assert again.contents[:3] == datatype.contents[:3]
        assert again.Get_extent() == datatype.Get_extent()
        assert (again._blocks == datatype._blocks).all()
        other = MPI.Datatype(datatype)
        assert other == datatype
        assert other != again
        if not datatype.is_predefined:
            other.Free()
            assert not other
            assert other == MPI.DATATYPE_NULL
            assert datatype
    data = np.arange(16, dtype="i").reshape(4, 4)
    packed = np.zeros(grid.size // 4, "i")
    grid.Pack(data, packed, 0, MPI.COMM_NULL)
    assert packed.tolist() == data[2:4, 1::2].reshape(-1).tolist()


@pytest.mark.parametrize("code", ["h", "i", "l", "q", "f", "d", "g", "F", "D"])
def test_external32_is_big_endian_and_comes_back(code):
    datatype = MPI.Datatype.fromcode(code)
    data = np.array([0, 1, -2, 1000], dtype=code)
    back = np.zeros_like(data)
    out = bytearray(datatype.Pack_external_size("external32", 4))
    assert datatype.Pack_external("external32", data, out, 0) == len(out)
    assert datatype.Unpack_external("external32", out, 0, back) == len(out)
    assert (back == data).all()
    if code == "i":
        assert out[4:8] == b"\0\0\0\1"
    with pytest.raises(MPI.Exception):
        datatype.Pack_external("native", data, out, 0)


class _Tensor(ctypes.Structure):
    """DLManagedTensor of DLPack before version 1: a vector of bytes."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


def test_an_error_survives_a_capsule_whose_destructor_runs_python(alone):
    memory, shape, freed = (ctypes.c_uint8 * 4)(), (ctypes.c_int64 * 1)(4), []
    tensor = _Tensor(ctypes.addressof(memory), (1, 0), 1, 1, 8, 1, shape)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

    def free(capsule):
        del capsule
        freed.append(next(iter(()), None))  # clears whatever error is pending

    destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(free)

    class Owner:
        def __dlpack_device__(self):
            return 1, 0

        def __dlpack__(self, **options):
            return new(ctypes.addressof(tensor), b"dltensor", ctypes.cast(destructor, ctypes.c_void_p))

    with pytest.raises(MPI.Exception) as caught:
        alone.Send([Owner(), 5, MPI.BYTE], 0)
    assert caught.value.Get_error_class() == MPI.ERR_TRUNCATE
    gc.collect()
    assert freed == [None]
