"""Memory of viakit.via in one process: regions, memory shared with arrays, and descriptors that point into them."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import LIMIT_S

from viakit import errors, via


@pytest.fixture
def nic():
    with via.Nic("loop:memory") as nic:
        yield nic


# ---------------------------------------------------------------- memory


def test_an_array_is_seen_not_copied(nic):
    array = np.zeros((3, 4))
    with nic.register(array) as region:
        view = np.asarray(region)
        assert np.shares_memory(view, array)
        assert view.dtype == array.dtype
        assert view.shape == (3, 4)
        view[2, 3] = 99.0
        assert array[2, 3] == 99.0
        assert region.nbytes == len(region) == 96
        assert region.address == array.__array_interface__["data"][0]
        assert 0 < region.handle < 2**32
        del view
    array.resize((4, 4), refcheck=False)


def test_fortran_order_and_strides(nic):
    array = np.asfortranarray(np.arange(6, dtype=np.int32).reshape(2, 3))
    with nic.register(array) as region:
        assert np.array_equal(np.asarray(region), array)
        with pytest.raises(BufferError):
            hash_of(region)
    with pytest.raises((BufferError, ValueError)):
        nic.register(np.arange(10)[::2])
    with pytest.raises(TypeError):
        nic.register(42)


def hash_of(buffer):
    """A consumer that knows nothing of strides."""
    return hashlib.sha256(buffer)


def test_memory_is_locked_while_registered(nic):
    memory = bytearray(100)
    region = nic.register(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    region.close()
    memory.append(1)


def test_memory_is_locked_while_viewed(nic):
    memory = bytearray(100)
    region = nic.register(memory)
    view = memoryview(region)
    region.close()
    with pytest.raises(BufferError):
        memory.append(1)
    view.release()
    memory.append(1)


def test_read_only_memory(nic):
    with nic.register(b"constant") as region:
        assert region.readonly
        assert memoryview(region).readonly
        assert via.Descriptor.send(region).length == 8
        with pytest.raises(ValueError, match="received into"):
            via.Descriptor.recv(region)
        with pytest.raises(ValueError, match="rdma_write"):
            region.set_attributes(rdma_write=True)
        assert not np.frombuffer(region, np.uint8).flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        nic.register(b"constant", rdma_write=True)


def test_allocated_memory(nic):
    memory = nic.allocate(10000)
    array = np.frombuffer(memory, np.uint8)
    assert len(memory) == memory.nbytes == 10000
    assert memory.address % 4096 == 0
    assert not array.any()
    array[:] = 7
    with nic.register(memory) as region:
        assert region.address == memory.address
        assert np.asarray(region)[9999] == 7
    memory.close()
    assert via.live_objects()["allocations"] == 1, "an array still looks at it"
    assert array[0] == 7
    del array
    assert via.live_objects()["allocations"] == 0
    with pytest.raises(errors.ClosedError):
        memoryview(memory)
    for wrong in (0, -1):
        with pytest.raises(ValueError):
            nic.allocate(wrong)


def test_an_array_outlives_its_nic():
    with via.Nic("loop:outlive") as nic:
        array = np.frombuffer(nic.create_region(4096), np.uint8)
        array[:] = 3
    assert nic.closed
    assert int(array.sum()) == 3 * 4096
    assert via.live_objects()["nics"] == 1
    del array
    gc.collect()
    assert not any(via.live_objects().values())


def test_rights(nic):
    with nic.create_region(64) as region:
        assert not region.rdma_write
        region.set_attributes(rdma_write=True)
        assert region.rdma_write
        assert region.tag is nic.tag


def test_tags_in_use(nic):
    tag = nic.create_tag()
    region = nic.create_region(64, tag=tag)
    descriptor = via.Descriptor.send(region)
    with pytest.raises(errors.ResourceError, match="1 regions and VIs"):
        tag.close()
    region.close()
    tag.close()
    tag.close()
    assert descriptor.length == 64
    with pytest.raises(errors.ClosedError):
        nic.create_region(64, tag=tag)
    with via.Nic("loop:other") as other, pytest.raises(ValueError, match="another Nic"):
        nic.create_vi(tag=other.tag)


slices = st.slices(50) | st.builds(slice, st.none() | st.integers(-70, 70), st.none() | st.integers(-70, 70))


@given(slices)
def test_pieces_are_cut_like_bytes(key):
    content = bytes(range(50))
    with via.Nic("loop:pieces", no_thread=True) as nic, nic.register(bytearray(content)) as region:
        if key.step not in (None, 1):
            with pytest.raises(ValueError, match="step"):
                region[key]
            return
        piece = region[key]
        assert bytes(memoryview(piece)) == content[key]
        assert len(piece) == piece.nbytes == len(content[key])
        assert bytes(memoryview(piece[1:3])) == content[key][1:3]
        assert piece.region is region


def test_pieces_are_not_elements(nic):
    with nic.create_region(64) as region:
        with pytest.raises(TypeError, match="asarray"):
            region[3]
        with pytest.raises(BufferError):
            memoryview(via.Segment.unchecked(0, 1, 8))
        with pytest.raises(TypeError):
            via.Segment()


# ---------------------------------------------------------------- descriptors


def test_descriptors_lie_as_the_hardware_wants_them(nic):
    with nic.create_region(4096) as region:
        for n in (0, 1, 2, 3, 14, 15, 100, 252):
            pieces = [region[16 * i : 16 * i + 16] for i in range(n)]
            descriptor = via.Descriptor.send(pieces, immediate=n, owner=nic)
            assert descriptor.address % 64 == 0
            assert descriptor.length == 16 * n
            assert descriptor.immediate == n
            assert descriptor.status == 0
            assert not descriptor.done
            assert descriptor.operation is via.Operation.SEND
            raw = descriptor.raw
            assert len(raw) == 32 + 16 * n
            for i in range(n):
                address, handle, length = (int.from_bytes(raw[32 + 16 * i + a : 32 + 16 * i + b], sys.byteorder)
                                           for a, b in ((0, 8), (8, 12), (12, 16)))  # fmt: skip
                assert (address, handle, length) == (region.address + 16 * i, region.handle, 16)
        with pytest.raises(ValueError, match="252"):
            via.Descriptor.send([region[:1]] * 255)


def test_rdma_descriptors(nic):
    with nic.create_region(64) as region:
        descriptor = via.Descriptor.rdma_write(region[8:24], 0x1234567890, 0xABCD, immediate=5)
        assert descriptor.operation is via.Operation.RDMA_WRITE
        assert descriptor.raw[32:40] == (0x1234567890).to_bytes(8, sys.byteorder)
        assert descriptor.raw[40:44] == (0xABCD).to_bytes(4, sys.byteorder)
        assert descriptor.length == 16
        with pytest.raises(ValueError, match="remote_address=-1"):
            via.Descriptor.rdma_write(region, -1, 1)
        with pytest.raises(ValueError, match=r"remote_handle=.*from 0 to"):
            via.Descriptor.rdma_write(region, 1, 2**32)


def test_read_descriptors_and_fences(nic):
    with nic.create_region(64) as region:
        descriptor = via.Descriptor.rdma_read(region[8:24], 0x1234567890, 0xABCD)
        assert descriptor.operation is via.Operation.RDMA_READ
        assert descriptor.raw[32:40] == (0x1234567890).to_bytes(8, sys.byteorder)
        assert not descriptor.fence
        descriptor.fence = True
        assert descriptor.fence
        descriptor.fence = False
        assert not descriptor.fence
        with pytest.raises(errors.InvalidStateError):
            via.Descriptor.recv(region).fence = True
    with nic.register(b"cannot be written") as fixed, pytest.raises(ValueError, match="read into"):
        via.Descriptor.rdma_read(fixed, 1, 1)


def test_what_a_vi_says_of_its_connection(nic):
    with nic.create_vi() as vi:
        info = vi.info
        assert info.reads_open == info.frames_in_flight == info.frames_missing == info.retries == 0
        assert info.srtt_s == 0
        assert 0 < info.tail_probe_s < info.rto_s
        assert info.retransmission is via.Retransmission.SELECTIVE
        assert info["window"] == nic.info.window
    with via.Nic("loop", retransmission="go_back_n") as other, other.create_vi() as vi:
        assert vi.info.retransmission is via.Retransmission.GO_BACK_N
    with pytest.raises(ValueError, match="selective"):
        via.Nic("loop", retransmission="sometimes")
    with pytest.raises(ValueError, match="auto, crc"):
        via.Nic("loop", checksum="none")
    via.Nic("loop", checksum=via.Checksum.CRC).close()


def test_descriptors_that_make_no_sense(nic):
    with pytest.raises(ValueError, match="owner"):
        via.Descriptor.send()
    with pytest.raises(TypeError, match="register"):
        via.Descriptor.send([bytearray(8)])
    with pytest.raises(TypeError):
        via.Descriptor()
    for wrong in (-1, 2**32):
        with pytest.raises(ValueError, match="from 0 to 4294967295"):
            via.Descriptor.send(owner=nic, immediate=wrong)


def test_numbers_that_c_cannot_hold_are_refused_by_name(nic):
    with nic.create_region(64) as region:
        for wrong in (-1, 1 << 64):
            with pytest.raises(ValueError, match=r"remote_address=.*expected a whole number from 0"):
                via.Descriptor.rdma_write(region[:3], wrong, 3)
        for wrong in (-1, 1 << 32):
            with pytest.raises(ValueError, match=r"remote_handle=.*from 0 to 4294967295"):
                via.Descriptor.rdma_read(region[:3], 0, wrong)
        with pytest.raises(TypeError, match="remote_address='x': expected a whole number"):
            via.Descriptor.rdma_write(region[:3], "x", 3)
    for wrong in (-3, 1 << 70):
        with pytest.raises(ValueError, match=r"n_entries=.*expected a whole number from 0"):
            nic.create_cq(wrong)
        with pytest.raises(ValueError, match="max_transfer_size="):
            nic.create_vi(max_transfer_size=wrong)
    with nic.create_cq(4) as cq, pytest.raises(ValueError, match="n_entries=-1"):
        cq.resize(-1)


@pytest.mark.parametrize("wrong", ["foo", -1, 1 << 70, 2.5])
def test_a_reliability_that_is_none_is_told_which_there_are(nic, wrong):
    with nic.create_vi() as vi:
        for call in (nic.create_vi, vi.set_attributes):
            with pytest.raises(ValueError, match=r"expected one of Reliability\.UNRELIABLE, Reliability\.RELIABLE_"):
                call(reliability=wrong)


def test_descriptors_are_used_again(nic, pair):
    a, b = pair
    store = np.zeros(100, np.uint8)
    with nic.register(store) as region:
        send, recv = via.Descriptor.send(region[:50]), via.Descriptor.recv(region[50:])
        for i in range(5):
            store[:50] = i
            send.immediate = i
            b.post_recv(recv)
            a.post_send(send)
            with pytest.raises(errors.InvalidStateError, match="posted"):
                a.post_send(send)
            assert b.recv_wait(LIMIT_S) is recv
            assert a.spin_send(LIMIT_S) is send
            assert recv.length == 50
            assert recv.immediate == i
            assert (store[50:] == i).all()
            assert recv.done
            assert not recv.posted
        with pytest.raises(ValueError, match=r"belongs on the (send|receive) queue"):
            a.post_send(recv)
        with pytest.raises(errors.InvalidStateError):
            recv.immediate = 3


def test_many_descriptors_share_memory_and_give_it_back(nic):
    with nic.create_region(64) as region:
        regions = nic.info.regions
        first = [via.Descriptor.send(region) for _ in range(2000)]
        assert len({descriptor.address for descriptor in first}) == 2000
        used = nic.info.regions
        assert used - regions <= 4
        del first
        again = [via.Descriptor.send(region) for _ in range(2000)]
        assert nic.info.regions == used
        del again


# ---------------------------------------------------------------- what no sensible program does


def test_a_region_in_fortran_order_is_not_passed_off_as_in_c_order(nic):
    class View(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_char * 256)]  # room enough for a Py_buffer

    get, release = ctypes.pythonapi.PyObject_GetBuffer, ctypes.pythonapi.PyBuffer_Release
    get.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
    release.argtypes = [ctypes.c_void_p]
    strides = 0x18
    c_order, f_order = 0x20 | strides, 0x40 | strides
    square = np.arange(6, dtype=np.uint8).reshape(2, 3)
    with nic.register(square.copy()) as in_c, nic.register(np.asfortranarray(square)) as in_fortran:
        for region, right, wrong in ((in_c, c_order, f_order), (in_fortran, f_order, c_order)):
            view = View()
            get(region, ctypes.byref(view), right)
            release(ctypes.byref(view))
            with pytest.raises(BufferError, match="contiguous"):
                get(region, ctypes.byref(view), wrong)


def test_numbers_that_are_none_or_too_large_are_refused_by_name(nic):
    for name, call in (
        ("immediate", lambda: via.Descriptor.send(owner=nic, immediate=1.5)),
        ("nbytes", lambda: via.Segment.unchecked(0, 0, -1)),
        ("handle", lambda: via.Segment.unchecked(0, 2**32, 1)),
        ("address", lambda: via.Segment.unchecked(2**64, 0, 1)),
        ("file_bytes", lambda: nic.tap(file_bytes=-1)),
        ("mtu", lambda: via.Nic("loop", mtu=1.5)),
        ("spin_us", lambda: via.Nic("loop", spin_us=2**31)),
    ):
        with pytest.raises((ValueError, TypeError), match=f"{name}=.*whole number"):
            call()


def test_uninitialised_objects_are_harmless(nic):
    with nic.create_vi() as vi, pytest.raises(TypeError, match="to create a descriptor"):
        vi.post_send(via.Descriptor.__new__(via.Descriptor))
    empty = via.Descriptor.__new__(via.Descriptor)
    assert empty.length == 0
    assert not empty.posted
    assert "0 bytes" in repr(empty)
    assert "closed" in repr(via.Tap.__new__(via.Tap))
    via.Tap.__new__(via.Tap).close()
