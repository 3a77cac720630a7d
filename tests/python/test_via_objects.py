"""The objects of viakit.via in one process: NICs, VIs and queues, addresses, and their texts."""

from __future__ import annotations

import errno
import gc
import os
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from via_child import in_child
from via_pair import connected
from waiting import LIMIT_S

from viakit import errors, via


@pytest.fixture
def nic():
    with via.Nic("loop:objects") as nic:
        yield nic


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


def test_links_have_properties(nic):
    links = {link.name: link for link in via.links()}
    assert set(links) >= {"loop", "shm", "eth", "udp"}
    assert [name for name, link in links.items() if link.leaves_host] == ["eth", "udp", "verbs"]
    assert links["shm"].maps_memory
    assert links["shm"]["lossless"]
    assert not links["eth"].lossless
    assert nic.info.link == via.link_of("loop:objects").name == "loop"
    assert via.link_of("eth").device("a", "eth0", "10.0.0.1") == "eth:eth0"
    assert via.link_of("udp:").device("a", "eth0", "10.0.0.1") == "udp:10.0.0.1"
    with pytest.raises(errors.InvalidParameterError, match="give loop, loop:NAME"):
        via.link_of("pigeon")


def test_counters_are_arithmetic(nic):
    before = nic.counters
    nic.poll()
    difference = nic.counters - before
    assert difference["polls"] >= 1
    assert set(difference.nonzero()) <= set(difference)
    assert (before + difference)["polls"] == before["polls"] + difference["polls"]
    with pytest.warns(DeprecationWarning, match="dropped_unknown_peer"):
        assert before["dropped_stranger"] == before["dropped_unknown_peer"]
    with pytest.raises(KeyError, match="no such counter"):
        before["no such counter"]


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
    # Attributes without a C object behind them still work.
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


# ---------------------------------------------------------------- VIs and queues


# A program that sends to itself and polls. Its polls postpone the checks of the NIC's thread, which sleeps; the kernel
# counts its sleeps. Each interval has 2 ms of the core, in which there were at least 4 checks when each came after
# 0.4 ms. A check is due if the program loses its core for long, so on a busy machine some of the intervals have checks.
# The pause before each interval lets the thread take over. Afterwards the program stops polling.
TAKEOVER = """
import os, sys, threading, time
from pathlib import Path
from viakit import via

def checks():
    (thread,) = (task for task in Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "viakit-nic\\n")
    return int(dict(line.split(":", 1) for line in (thread / "status").open())["voluntary_ctxt_switches"])

def poll_for(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        a.post_recv(via.Descriptor.recv(memory[:32]))
        b.post_send(via.Descriptor.send(memory[32:]))
        while a.recv_done() is None:
            pass
        while b.send_done() is None:
            pass

name = f"pair-{os.getpid()}"  # other processes with NICs of 127.0.0.1 receive the request, too

def query():
    b.connect(nic.address / name, 10, retry=True)

with via.Nic("udp:127.0.0.1", takeover_us=int(sys.argv[1])) as nic, nic.create_vi() as a, nic.create_vi() as b:
    querying = threading.Thread(target=query)
    querying.start()
    nic.connect_wait(name, 10).accept(a)
    querying.join()
    with nic.create_region(64) as memory:
        found, limit = [], time.monotonic() + 40
        while (len(found) < 15 or min(found) > 0) and time.monotonic() < limit:
            time.sleep(0.01)
            poll_for(0.002)
            before = checks()
            poll_for(0.002)
            found.append(checks() - before)
        # Read before the last polls: the thread takes over at once if the program loses its core after them.
        before = nic.counters["thread_takeovers"]
        poll_for(0.0005)
    while nic.counters["thread_takeovers"] == before and time.monotonic() < limit:
        time.sleep(0.001)
    print(min(found), nic.counters["thread_takeovers"] - before)
"""


@pytest.mark.parametrize("takeover_us", [0, 1000, 2**32 - 1])  # more than 10 ms is 10 ms
def test_the_thread_sleeps_while_the_program_polls_and_takes_over_when_it_stops(takeover_us):
    done = in_child(TAKEOVER, str(takeover_us))
    assert (done.returncode, done.stderr) == (0, "")
    fewest, takeovers = map(int, done.stdout.split())
    assert fewest == 0
    assert takeovers > 0


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
            with pytest.raises(errors.InvalidStateError, match="post one before waiting"):
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
