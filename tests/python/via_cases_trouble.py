"""Cases of the conformance suite in which something fails: local errors, and a peer that is not ready or ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time

import numpy as np
from via_sides import DONE_FLUSHED, GUARD, LEVELS, LIMIT_S, Guarded, Side, failed, pattern, raised

from viakit import errors, via

# ---------------------------------------------------------------- local errors


def wrong_tag(me: Side):
    """A local region of another tag than the VI: PROTECTION_ERROR in the descriptor."""
    vi = me.vi(via.Reliability.UNRELIABLE)
    me.join(vi)
    with me.nic.create_tag() as tag, me.nic.register(bytearray(64), tag=tag) as foreign:
        vi.post_send(via.Descriptor.send(foreign, owner=vi))
        assert failed(vi.send_wait, LIMIT_S) & via.Status.PROTECTION_ERROR
        # At the unreliable level only this descriptor has failed.
        assert vi.state is via.ViState.CONNECTED
        # Taken into the VI's tag it works.
        foreign.set_attributes(tag=me.nic.tag)
        vi.post_send(via.Descriptor.send(foreign))
        vi.send_wait(LIMIT_S)
    me.meet()


def stale_handle(me: Side):
    """Deregistered before posting, a handle that never was, a range outside the region."""
    vi = me.vi(via.Reliability.UNRELIABLE)
    me.join(vi)
    region = me.keep(me.nic.register(bytearray(64)))
    stale = via.Descriptor.send(region, owner=vi)
    region.close()
    with me.nic.register(bytearray(64)) as live:
        wrong = [
            stale,
            via.Descriptor.send(via.Segment.unchecked(live.address, 0xDEAD0001, 64), owner=vi),
            via.Descriptor.send(via.Segment.unchecked(live.address, live.handle, 65), owner=vi),
            via.Descriptor.send(via.Segment.unchecked(live.address - 1, live.handle, 8), owner=vi),
            via.Descriptor.send(via.Segment.unchecked(2**64 - 4, live.handle, 8), owner=vi),
        ]
        for descriptor in wrong:
            vi.post_send(descriptor)
            assert failed(vi.send_wait, LIMIT_S) & via.Status.PROTECTION_ERROR
    me.meet()


def deregister_while_posted(me: Side):
    """A receive whose memory went away takes the next message with PROTECTION_ERROR; nothing is written there."""
    vi = me.vi(via.Reliability.UNRELIABLE)
    array = bytearray(b"\xa5" * 4096)
    if me.is_b:
        region = me.keep(me.nic.register(array))
        vi.post_recv(via.Descriptor.recv(region))
        region.close()
        raised(BufferError, array.append, 0)  # the posted descriptor still holds the memory
    me.join(vi)
    if me.is_a:
        vi.send(bytes(100), timeout_s=LIMIT_S)
    else:
        assert failed(vi.recv_wait, LIMIT_S) & via.Status.PROTECTION_ERROR
        array.append(0)
        assert array[:4096] == b"\xa5" * 4096
    me.meet()


# ---------------------------------------------------------------- the other side is not ready, or goes


def receive_not_posted(me: Side, level: str):
    vi = me.vi(LEVELS[level])
    me.join(vi)
    if me.is_a:
        with me.nic.register(bytearray(64)) as region:
            vi.post_send(via.Descriptor.send(region))
            if level == "reliable_reception":
                assert failed(vi.send_wait, LIMIT_S) & via.Status.REMOTE_DESC_ERROR
            else:
                with contextlib.suppress(errors.CompletionError):
                    vi.send_wait(LIMIT_S)
    else:
        me.until(lambda: via.ErrorCode.RECVQ_EMPTY in me.errors(), "RECVQ_EMPTY")
        assert me.nic.counters["dropped_no_descriptor"] == 1
    if level == "unreliable":
        me.meet()
        assert vi.state is via.ViState.CONNECTED
    else:
        me.until(lambda: vi.state is via.ViState.ERROR, "the connection broken")
        # A send that is posted now comes back flushed.
        with me.nic.register(bytearray(8)) as region:
            vi.post_send(via.Descriptor.send(region))
            assert failed(vi.send_wait, LIMIT_S) & via.Status.DESC_FLUSHED
    me.meet()


def disconnect_with_descriptors_posted(me: Side, level: str):
    vi = me.vi(LEVELS[level])
    array = bytearray(10 * 64)
    region = me.keep(me.nic.register(array))
    receives = [via.Descriptor.recv(region[64 * i : 64 * (i + 1)]) for i in range(10)]
    for descriptor in receives:
        vi.post_recv(descriptor)
    me.join(vi)
    if me.is_a:
        vi.disconnect()
    else:
        me.until(lambda: vi.state is via.ViState.ERROR, "the connection lost")
    taken = vi.drain()
    assert taken == receives
    assert all(descriptor.status == DONE_FLUSHED for descriptor in taken)
    assert vi.recv_done() is None
    region.close()
    array.append(0)
    me.meet()


def many_vis(me: Side, n: int = 64):
    """Every VI has a connection of its own; one completion queue announces them all."""
    cq = me.keep(me.nic.create_cq(4 * n))
    store = Guarded(me, 16 * n)
    vis = [me.vi(recv_cq=cq) for _ in range(n)]
    for i, vi in enumerate(vis):
        vi.post_recv(via.Descriptor.recv(store.segment[16 * i : 16 * i + 8]))
    address = via.Address.parse(me.meet(str(me.nic.address)))
    for i, vi in enumerate(vis):
        if me.is_a:
            vi.connect(address / f"vi {i}", LIMIT_S, retry=True)
        else:
            me.nic.connect_wait(f"vi {i}", LIMIT_S).accept(vi)
    me.meet()
    for i, vi in enumerate(vis):
        store.inside[16 * i + 8 : 16 * i + 16] = pattern(8, i)
        vi.post_send(via.Descriptor.send(store.segment[16 * i + 8 : 16 * i + 16], immediate=i))
    for vi in vis:
        vi.send_wait(LIMIT_S)
    seen = set()
    while len(seen) < n:
        completion = cq.wait(LIMIT_S)
        assert completion.error is None
        assert completion.queue is via.Queue.RECV
        i = completion.descriptor.immediate
        assert completion.vi is vis[i]
        assert np.array_equal(store.inside[16 * i : 16 * i + 8], pattern(8, i))
        seen.add(i)
    assert list(cq) == []
    store.check()
    me.meet()
    if me.is_a:
        vis[0].disconnect()
        me.meet()
    else:
        me.meet()
        me.until(lambda: vis[0].state is via.ViState.ERROR, "one connection lost")
        assert all(vi.state is via.ViState.CONNECTED for vi in vis[1:])
    me.meet()


def peer_killed(me: Side, write: bool = False):
    """B dies in the middle of a stream of messages or RDMA writes. A detects it, gets its descriptors back, and can
    connect to another peer."""
    vi = me.vi(rdma_write=True)
    store = Guarded(me, 1 << 16, rdma_write=True)
    receives = [via.Descriptor.recv(store.segment) for _ in range(64)]
    for descriptor in receives:
        vi.post_recv(descriptor)
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_b:
        if write:
            me.until(lambda: store.inside[-1] != GUARD, "a write")
        else:
            for _ in range(3):
                vi.recv_wait(LIMIT_S)
        os.kill(os.getpid(), signal.SIGKILL)
    store.inside[:] = 0
    descriptor = via.Descriptor.send(store.segment)
    if write:
        descriptor = via.Descriptor.rdma_write(store.segment, address, handle)
    statuses = [via.Status.DONE]
    for _ in receives:  # no more than B had receives for
        vi.post_send(descriptor)
        try:
            vi.send_wait(LIMIT_S)
        except errors.CompletionError as error:
            statuses.append(error.status)
            break
    assert statuses[-1] in (via.Status.DONE, DONE_FLUSHED, via.Status.DONE | via.Status.TRANSPORT_ERROR)
    me.until(lambda: vi.state is via.ViState.ERROR, "the loss of the peer")
    me.until(lambda: via.ErrorCode.CONN_LOST in me.errors(), "CONN_LOST")
    flushed = vi.drain()
    assert [d for d in flushed if d in receives] == receives
    store.check()
    vi.disconnect()
    assert vi.state is via.ViState.IDLE


def wait_is_not_a_spin(me: Side):
    """A wait of a long time sleeps in the kernel and is woken by the message."""
    vi = me.vi()
    with me.nic.register(bytearray(8)) as region:
        vi.post_recv(via.Descriptor.recv(region))
        me.join(vi)
        if me.is_b:
            cpu_s = time.thread_time()
            raised(errors.ViaTimeoutError, vi.recv_wait, 0.3)
            assert time.thread_time() - cpu_s < 0.25, "the wait was spent computing"
            me.meet()
            vi.recv_wait(LIMIT_S)
        else:
            me.meet()
            vi.send(b"12345678", timeout_s=LIMIT_S)
        me.meet()
        vi.close()
