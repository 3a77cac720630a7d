"""The objects of viakit.via in one process: opening and closing, buffers, lifetimes, and what they say."""

from __future__ import annotations

import ctypes
import errno
import gc
import hashlib
import os
import subprocess
import sys
import textwrap
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viakit import errors, via

LIMIT_S = 20.0


@pytest.fixture
def nic():
    with via.Nic("loop:objects") as nic:
        yield nic


@pytest.fixture
def pair(nic):
    """Two connected VIs of one NIC."""
    return connected(nic)


def connected(nic, **attributes):
    a, b = nic.create_vi(**attributes), nic.create_vi(**attributes)
    asking = threading.Thread(target=lambda: a.connect(nic.address / "pair", LIMIT_S, retry=True))
    asking.start()
    nic.connect_wait("pair", LIMIT_S).accept(b)
    asking.join(LIMIT_S)
    assert a.state is via.ViState.CONNECTED
    return a, b


def in_child(program: str, *arguments: str) -> subprocess.CompletedProcess:
    """Run a program in a fresh interpreter, which must not say a word unless the program does."""
    return subprocess.run(
        [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", textwrap.dedent(program), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )


# ---------------------------------------------------------------- the NIC


def test_a_nic_says_what_it_is(nic):
    attributes = nic.attributes
    assert attributes.max_transfer_size >= 65536
    assert attributes.max_segments_per_descriptor >= 252
    assert attributes.reliability_support == 7
    assert attributes["address"] == nic.address.host
    assert dict(attributes)["max_vis"] == attributes.max_vis
    info = nic.info
    assert info.link == "loop"
    assert info.lossless
    assert set(nic.counters) == set(via.counters_help)
    assert all(via.counters_help.values())
    assert isinstance(nic.poll(), int)
    assert "loop:objects" in repr(nic)


def test_counters_are_arithmetic(nic):
    before = nic.counters
    nic.poll()
    difference = nic.counters - before
    assert difference["polls"] >= 1
    assert set(difference.nonzero()) <= set(difference)
    assert (before + difference)["polls"] == before["polls"] + difference["polls"]


def test_names(nic):
    assert nic.resolve("localhost") == nic.address
    assert nic.resolve("objects", "x") == nic.address / "x"
    assert nic.resolve("02:00:00:00:00:09").host == b"\x02\0\0\0\0\x09"
    with pytest.raises((errors.NameServiceError, errors.NotSupportedError)):
        nic.name_of(via.Address(b"\x02\0\0\0\0\x09"))


def test_closing_twice_and_using_after():
    nic = via.Nic("loop:closing")
    region, vi, cq = nic.create_region(64), nic.create_vi(), nic.create_cq(4)
    descriptor = via.Descriptor.send(region)
    nic.close()
    nic.close()
    for call in (
        lambda: nic.attributes,
        lambda: nic.counters,
        nic.poll,
        nic.create_vi,
        nic.create_tag,
        lambda: nic.allocate(1),
        lambda: nic.register(bytearray(1)),
        lambda: nic.connect_wait("x", 0),
        lambda: nic.resolve("localhost"),
        lambda: vi.state,
        lambda: vi.post_send(descriptor),
        vi.send_done,
        lambda: vi.recv_wait(0),
        vi.drain,
        cq.done,
        lambda: cq.wait(0),
        lambda: memoryview(region),
        lambda: via.Descriptor.send(region),
        lambda: region.set_attributes(rdma_write=True),
    ):
        with pytest.raises(errors.ClosedError, match="closed"):
            call()
    assert region.closed
    assert vi.closed
    assert cq.closed
    # What has no C behind it still answers.
    assert descriptor.length == 64
    for thing in (nic, region, vi, cq):
        assert "closed" in repr(thing)
        thing.close()


@pytest.mark.parametrize(
    ("device", "options", "kind"),
    [
        ("carrier pigeon", {}, errors.ViaError),
        ("eth:nosuch0", {}, (errors.ViaError, OSError)),
        ("", {}, errors.ViaError),
        ("lo\0op", {}, ValueError),
        (7, {}, TypeError),
        ("loop", {"speed": 3}, TypeError),
        ("loop", {"window": -1}, ValueError),
        ("loop", {"rto_us": 2**32}, ValueError),
        ("loop", {"mtu": "big"}, TypeError),
        ("loop", {"form": "round"}, ValueError),
    ],
)
def test_what_cannot_be_opened(device, options, kind):
    with pytest.raises(kind) as caught:
        via.Nic(device, **options)
    assert len(str(caught.value)) > 10


def test_opening_again_and_again_takes_no_memory():
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    nic = via.Nic.__new__(via.Nic)
    for i in range(3200):
        if i == 200:
            before = resident()
        with pytest.raises(errors.ViaError):
            nic.__init__("no such device")
    assert resident() - before < 4 << 20
    nic.__init__("loop:again")
    with nic, pytest.raises(TypeError):
        nic.__init__("loop:again")


def test_raw_ethernet_without_the_right_to_it():
    result = in_child(
        """
        import os
        from viakit import errors, via
        via.Nic("loop:warm").close()  # all that has to be imported is
        if os.geteuid() == 0:
            os.setgroups([])
            os.setuid(65534)
        try:
            via.Nic("eth:lo").close()
        except PermissionError as error:
            assert isinstance(error, errors.NicPermissionError)
            assert "CAP_NET_RAW" in str(error)
            print(error.errno)
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, f"{errno.EPERM}\n", "")


def test_options(nic):
    with via.Nic("loop:options", no_thread=True, window=16, form="auto", mtu=None) as nic:
        assert not nic.info.thread
        nic.poll()
    with via.Nic("loop:options") as nic:
        assert nic.info.thread


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
        for ask in (nic.create_vi, vi.set_attributes):
            with pytest.raises(ValueError, match=r"expected one of Reliability\.UNRELIABLE, Reliability\.RELIABLE_"):
                ask(reliability=wrong)


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
        with pytest.raises(ValueError, match="other queue"):
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


# ---------------------------------------------------------------- VIs and queues


def test_sends_before_connecting_are_flushed(nic):
    with nic.create_vi() as vi, nic.create_region(8) as region:
        vi.post_send(via.Descriptor.send(region))
        assert vi.n_sends_posted == 1
        with pytest.raises(errors.CompletionError, match="DESC_FLUSHED") as caught:
            vi.send_wait(LIMIT_S)
        assert caught.value.vi is vi
        assert caught.value.descriptor.error.status == caught.value.status
        assert vi.n_sends_posted == 0
        assert vi.send_done() is None


def test_a_full_queue(nic):
    limit = nic.attributes.max_descriptors_per_queue
    with nic.create_vi() as vi:
        for _ in range(limit):
            vi.post_recv(via.Descriptor.recv(owner=vi))
        extra = via.Descriptor.recv(owner=vi)
        with pytest.raises(errors.ResourceError):
            vi.post_recv(extra)
        assert not extra.posted
        assert vi.n_recvs_posted == limit
        deadline = time.monotonic() + LIMIT_S
        while via.ErrorCode.VI_OVERRUN not in [error.code for error in nic.errors]:
            assert time.monotonic() < deadline


def test_nothing_to_wait_for(nic):
    with nic.create_vi() as vi:
        assert vi.recv_done() is None
        for wait in (vi.recv_wait, vi.send_wait, vi.spin_recv, vi.spin_send):
            with pytest.raises(errors.InvalidStateError, match="nothing to wait for"):
                wait(1)


def test_comfortable_messages(nic, pair):
    a, b = pair
    room = bytearray(10)
    b.post_recv(via.Descriptor.recv(owner=b))
    a.send(b"", immediate=3, timeout_s=LIMIT_S)
    with pytest.raises(errors.InvalidStateError, match="1 receives"):
        b.recv(room)
    assert b.recv_wait(LIMIT_S).immediate == 3
    answer = []
    waiting = threading.Thread(target=lambda: answer.append(b.recv(room, LIMIT_S)))
    waiting.start()
    while not b.n_recvs_posted:
        pass
    a.send(np.arange(5, dtype=np.uint8), timeout_s=LIMIT_S)
    waiting.join(LIMIT_S)
    assert answer[0].length == 5
    assert bytes(room[:5]) == bytes(range(5))
    room.append(0)  # nothing holds it any more


def test_closing_a_vi_gives_everything_back(nic, pair):
    a, _ = pair
    memory = bytearray(64)
    region = nic.register(memory)
    kept = weakref.ref(region)
    for _ in range(10):
        a.post_recv(via.Descriptor.recv(region))
    region.close()
    del region
    gc.collect()
    assert kept() is not None, "posted work holds its regions"
    a.close()
    gc.collect()
    assert kept() is None
    memory.append(0)


class PostedLate(via.Vi):
    """A VI to which something is posted just after close() has emptied its queues, as another thread might."""

    n_late = 0

    def drain(self):
        taken = super().drain()
        if self.n_late:
            self.n_late -= 1
            self.post_recv(via.Descriptor.recv(owner=self))
        return taken


def test_closing_a_vi_to_which_others_still_post(nic):
    vi = PostedLate(nic)
    vi.n_late = 3
    vi.close()
    assert vi.closed
    assert nic.info.vis == 0


def test_a_vi_that_cannot_be_closed_stays_open(nic):
    vi = PostedLate(nic)
    vi.n_late = 1_000_000
    with pytest.raises(errors.ResourceError):
        vi.close()
    assert not vi.closed
    assert nic.info.vis == 1
    vi.n_late = 0
    vi.close()
    assert nic.info.vis == 0


def test_completion_queue(nic):
    with nic.create_cq(100) as cq:
        a, b = connected(nic, send_cq=cq, recv_cq=cq)
        with pytest.raises(errors.ResourceError, match="4 work queues"):
            cq.close()
        with nic.create_region(8) as region:
            b.post_recv(via.Descriptor.recv(region))
            assert cq.done() is None
            with pytest.raises(errors.ViaTimeoutError):
                cq.wait(0.01)
            a.post_send(via.Descriptor.send(region, immediate=1))
            seen = {(c.vi, c.queue): c.descriptor for c in (cq.wait(LIMIT_S), cq.wait(LIMIT_S))}
            assert set(seen) == {(a, via.Queue.SEND), (b, via.Queue.RECV)}
            assert seen[b, via.Queue.RECV].immediate == 1
            # Errors come as completions, they do not raise.
            b.post_recv(via.Descriptor.recv(region))
            b.disconnect()
            completion = cq.wait(LIMIT_S)
            assert completion.vi is b
            assert completion.error.status & via.Status.DESC_FLUSHED
            a.close()
            b.close()
    with via.Nic("loop:other") as other, other.create_cq(1) as foreign, pytest.raises(ValueError, match="another Nic"):
        nic.create_vi(recv_cq=foreign)


@given(st.lists(st.integers(0, 400), max_size=20), st.lists(st.integers(1, 400), max_size=20), st.booleans())
def test_any_cut_of_a_message_arrives(gather, scatter, immediate):
    total = sum(gather)
    if sum(scatter) < total:
        scatter = [*scatter, total - sum(scatter)]
    with via.Nic("loop:cuts", no_thread=True) as nic:
        a, b = connected(nic)
        content = np.arange(total, dtype=np.uint8)
        room = np.zeros(sum(scatter) + 1, np.uint8)
        with nic.register(np.append(content, np.uint8(0))) as source, nic.register(room) as target:
            b.post_recv(via.Descriptor.recv(cut(target, scatter), owner=b))
            a.post_send(via.Descriptor.send(cut(source, gather), 9 if immediate else None, owner=a))
            done = b.spin_recv(LIMIT_S)
            a.spin_send(LIMIT_S)
            assert done.length == total
            assert done.immediate == (9 if immediate else None)
            assert np.array_equal(room[:total], content)
            assert not room[total:].any()


def cut(region, lengths):
    pieces, start = [], 0
    for length in lengths:
        pieces.append(region[start : start + length])
        start += length
    return pieces


# ---------------------------------------------------------------- addresses


@given(st.binary(min_size=1, max_size=64), st.text(max_size=60).filter(lambda text: text.isprintable()))
def test_addresses_read_back(host, discriminator):
    address = via.Address(host) / discriminator
    assert via.Address.parse(str(address)) == address
    assert hash(via.Address(host, discriminator.encode())) == hash(address)


def test_addresses():
    address = via.Address(b"\x02\0\0\0\0\x01", "name")
    assert str(address) == "02:00:00:00:00:01/name"
    assert address.discriminator == b"name"
    assert address != via.Address(address.host)
    assert str(address / b"\xff\x00") == "02:00:00:00:00:01/ff00"
    assert (address / bytearray(b"ab")).discriminator == b"ab"
    for wrong in (3, None, 2.5, [1, 2]):
        with pytest.raises(TypeError, match=r"discriminator=.*expected bytes or str, such as nic.address / 'name'"):
            address / wrong
        with pytest.raises(TypeError, match=r"host=.*expected bytes"):
            via.Address(wrong)
    for wrong in ("", "zz", "02:00/x:y".replace("02:00", "nothex")):
        with pytest.raises(ValueError):
            via.Address.parse(wrong)
    with pytest.raises(ValueError, match="too long"):
        address / bytes(256)


def test_a_discriminator_that_is_too_long(nic):
    limit = nic.attributes.max_discriminator_nbytes
    with pytest.raises(errors.ViaTimeoutError):
        nic.connect_wait(bytes(limit), 0)
    with pytest.raises(errors.InvalidParameterError):
        nic.connect_wait(bytes(limit + 1), 0)


# ---------------------------------------------------------------- what is forgotten


@pytest.mark.parametrize("kind", ["nic", "vi", "region", "cq", "tag"])
def test_what_is_dropped_open_is_closed_with_a_warning(kind):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nic = via.Nic("loop:dropped")
        make = {
            "nic": lambda: nic,
            "vi": nic.create_vi,
            "region": lambda: nic.register(bytearray(8)),
            "cq": lambda: nic.create_cq(1),
            "tag": nic.create_tag,
        }
        thing = make[kind]()
        del make
        if kind != "nic":
            del thing
            gc.collect()
            assert not any(via.live_objects()[name] for name in ("vis", "cqs"))
            nic.close()
        else:
            del thing, nic
        gc.collect()
    assert [w.category for w in caught] == [ResourceWarning]
    assert os.path.basename(__file__) in str(caught[0].message)
    assert not any(via.live_objects().values())


def test_a_cycle_of_garbage_is_closed():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        nic = via.Nic("loop:cycle")
        vi, region = nic.create_vi(), nic.create_region(64)
        vi.post_recv(via.Descriptor.recv(region))
        held = [nic, vi, region]
        nic.on_error = held.append
        del nic, vi, region, held
        gc.collect()
    assert not any(via.live_objects().values())
    assert all(w.category is ResourceWarning for w in caught)


@pytest.mark.parametrize("make", ["allocate", "create_region"])
def test_garbage_with_a_view_of_it_is_closed(make):
    """The collector takes the memory first and then the view, which is what lets go of it."""

    def leave_a_cycle(nic: via.Nic) -> None:
        memory = getattr(nic, make)(4096)
        view = memoryview(memory)
        try:
            view["no index"]
        except TypeError as error:
            kept = error  # noqa: F841 - its traceback has this frame

    nic = via.Nic("loop:view")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        leave_a_cycle(nic)
        gc.collect()
    nic.close()
    del nic
    gc.collect()
    assert not any(via.live_objects().values())


def test_an_interpreter_that_exits_without_closing_says_nothing():
    result = in_child(
        """
        import numpy as np
        from viakit import via
        nic = via.Nic("loop:exit")
        shm = via.Nic("shm:exit")
        vi, region, cq = shm.create_vi(), shm.create_region(100), nic.create_cq(3)
        array = np.asarray(region)
        vi.post_recv(via.Descriptor.recv(region))
        nic.on_error = print
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_call_after_fork_is_an_error_and_a_nic_of_the_childs_own_is_not():
    result = in_child(
        """
        import os
        import numpy as np
        from viakit import errors, via
        nic = via.Nic("loop:fork")
        vi, memory, cq = nic.create_vi(), nic.allocate(64), nic.create_cq(3)
        region = nic.register(memory)
        descriptor = via.Descriptor.send(region)
        child = os.fork()
        if child == 0:
            calls = [lambda: nic.counters, nic.create_vi, lambda: vi.post_send(descriptor), vi.recv_done,
                     lambda: vi.state, lambda: np.asarray(region), cq.done, lambda: memoryview(memory),
                     lambda: via.Descriptor.send(region)]
            for i, call in enumerate(calls):
                try:
                    call()
                except errors.ForkError as error:
                    assert "fork" in str(error)
                else:
                    raise SystemExit(f"call {i} was no error")
            for thing in (vi, region, cq, memory, nic):
                repr(thing)
                thing.close()
            with via.Nic("loop:fork") as own:
                own.poll()
            raise SystemExit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert nic.counters is not None
        assert vi.state is via.ViState.IDLE
        nic.close()
        """
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


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


def test_objects_that_nobody_initialised_are_harmless(nic):
    with nic.create_vi() as vi, pytest.raises(TypeError, match="made by"):
        vi.post_send(via.Descriptor.__new__(via.Descriptor))
    empty = via.Descriptor.__new__(via.Descriptor)
    assert empty.length == 0
    assert not empty.posted
    assert "0 bytes" in repr(empty)
    assert "closed" in repr(via.Tap.__new__(via.Tap))
    via.Tap.__new__(via.Tap).close()
