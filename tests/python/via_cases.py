"""The conformance suite in Python: the behaviour of VIA on every link. The same cases run on all links.

A case is a function that runs on both sides at the same time; `me.is_a` distinguishes them. On loop the sides are two
threads of the test, on shm two processes, on eth two processes on two hosts. The sides synchronise over a separate
channel (`me.meet`), so that no case sleeps.

    python via_cases.py ROLE DEVICE PEER_FD COMMAND_FD     one side; it runs the cases that test_conformance.py requests
"""

from __future__ import annotations

import contextlib
import select
import socket
import sys
import time
import traceback

import numpy as np
from via_cases_card import CARD_CASES
from via_cases_trouble import (
    deregister_while_posted,
    disconnect_with_descriptors_posted,
    many_vis,
    peer_killed,
    receive_not_posted,
    stale_handle,
    wait_is_not_a_spin,
    wrong_tag,
)
from via_sides import GUARD, LEVELS, LIMIT_S, Channel, Guarded, Side, connect, failed, pattern, raised

from viakit import errors, via

# ---------------------------------------------------------------- connecting


def connection_tells_who_asks(me: Side):
    address = me.meet(str(me.nic.address))
    with me.vi(max_transfer_size=40000, rdma_write=True) as vi:
        if me.is_b:
            with me.nic.connect_wait(b"\x00\xff\x01", LIMIT_S) as request:
                assert request.remote_address.host == via.Address.parse(address).host
                assert request.remote_attributes.max_transfer_size == 40000
                assert request.remote_attributes.rdma_write
                request.accept(vi)
        else:
            there = vi.connect(via.Address.parse(address) / b"\x00\xff\x01", LIMIT_S, retry=True)
            assert there.reliability == via.Reliability.RELIABLE_DELIVERY
            assert there.max_transfer_size == 40000
        me.meet()


def refuse(me: Side):
    address = me.meet(str(me.nic.address))
    with me.vi() as vi:
        if me.is_b:
            me.nic.connect_wait("refuse", LIMIT_S).reject()
        else:
            error = raised(errors.RejectedError, vi.connect, via.Address.parse(address) / "refuse", LIMIT_S, retry=True)
            assert isinstance(error, ConnectionRefusedError)
            assert vi.state is via.ViState.IDLE
        me.meet()


def no_match(me: Side):
    address = via.Address.parse(me.meet(str(me.nic.address)))
    if me.is_a:
        with me.vi() as vi:
            raised(errors.NoMatchError, vi.connect, address / "nobody", LIMIT_S)
            assert vi.state is via.ViState.IDLE
    else:
        me.until(lambda: me.channel.buffer or select.select([me.channel.sock], [], [], 0)[0], "the other side done")
    me.meet()


def mismatch(me: Side):
    """An Accept with a VI that does not fit leaves the request open; one that fits then takes it."""
    address = via.Address.parse(me.meet(str(me.nic.address)))
    if me.is_a:
        with me.vi(via.Reliability.RELIABLE_RECEPTION) as vi:
            vi.connect(address / "fit", LIMIT_S, retry=True)
            me.meet()
        return
    with me.vi(via.Reliability.UNRELIABLE) as wrong, me.vi(via.Reliability.RELIABLE_RECEPTION) as right:
        with me.nic.connect_wait("fit", LIMIT_S) as request:
            raised(errors.ReliabilityLevelError, request.accept, wrong)
            request.accept(right)
        me.meet()


# ---------------------------------------------------------------- messages


def message(me: Side, level: str, nbytes: int):
    """One message there and back, between guard bytes."""
    room, source = Guarded(me, max(nbytes, 1)), Guarded(me, max(nbytes, 1))
    source.inside[:nbytes] = pattern(nbytes, me.is_a)
    vi = me.vi(LEVELS[level])
    receive = via.Descriptor.recv(room.segment[:nbytes], owner=vi)
    vi.post_recv(receive)
    me.join(vi)
    for sending in (me.is_a, me.is_b):
        if sending:
            vi.post_send(via.Descriptor.send(source.segment[:nbytes], owner=vi))
            done = vi.send_wait(LIMIT_S)
            assert done.operation is via.Operation.SEND
            assert done.status == via.Status.DONE
        else:
            done = vi.recv_wait(LIMIT_S)
            assert done is receive
            assert done.length == nbytes
            assert done.immediate is None
            assert done.operation is via.Operation.RECEIVE
            assert np.array_equal(room.inside[:nbytes], pattern(nbytes, me.is_b))
        room.check()
        source.check()
        me.meet()
    assert np.array_equal(source.inside[:nbytes], pattern(nbytes, me.is_a)), "the source was changed"


def too_long_for_the_vi(me: Side, level: str):
    limit = 40000
    vi = me.vi(LEVELS[level], max_transfer_size=limit)
    room = Guarded(me, limit + 1)
    fits = via.Descriptor.recv(room.segment)
    vi.post_recv(fits)
    me.join(vi)
    if me.is_a:
        source = Guarded(me, limit + 1)
        source.inside[:] = pattern(limit + 1)
        vi.post_send(via.Descriptor.send(source.segment[:limit]))
        vi.send_wait(LIMIT_S)
        vi.post_send(via.Descriptor.send(source.segment))
        assert failed(vi.send_wait, LIMIT_S) & via.Status.LENGTH_ERROR
    else:
        assert vi.recv_wait(LIMIT_S).length == limit
        assert np.array_equal(room.inside[:limit], pattern(limit))
        assert (room.inside[limit:] == GUARD).all()
        room.check()
    me.meet()


def too_long_for_the_receive(me: Side, level: str):
    vi = me.vi(LEVELS[level])
    room = Guarded(me, 100)
    vi.post_recv(via.Descriptor.recv(room.segment))
    me.join(vi)
    if me.is_a:
        source = Guarded(me, 101)
        vi.post_send(via.Descriptor.send(source.segment))
        if level == "reliable_reception":
            assert failed(vi.send_wait, LIMIT_S) & via.Status.REMOTE_DESC_ERROR
        else:
            with contextlib.suppress(errors.CompletionError):
                vi.send_wait(LIMIT_S)
    else:
        assert failed(vi.recv_wait, LIMIT_S) & via.Status.LENGTH_ERROR
        room.check()
    if level == "unreliable":
        me.meet()
        assert vi.state is via.ViState.CONNECTED
    else:
        me.until(lambda: vi.state is via.ViState.ERROR, "the connection broken")
    me.meet()


def order(me: Side, level: str, n: int = 300):
    """Messages of many lengths arrive in the order in which they were sent, each whole. The unreliable level loses what
    finds the receiver's ring full: there no more are under way than every ring holds."""
    vi = me.vi(LEVELS[level])
    lengths = [(7919 * i) % 3000 for i in range(n)]
    burst = 30 if level == "unreliable" else n
    store = Guarded(me, 3000 * n)
    pieces = [store.segment[3000 * i : 3000 * (i + 1)] for i in range(n)]
    if me.is_b:
        for piece in pieces:
            vi.post_recv(via.Descriptor.recv(piece))
    me.join(vi)
    if me.is_a:
        for i, length in enumerate(lengths):
            store.inside[3000 * i : 3000 * i + length] = pattern(length, i)
            vi.post_send(via.Descriptor.send(pieces[i][:length], immediate=i))
            if (i + 1) % burst == 0:
                me.meet()
        sent = [vi.send_wait(LIMIT_S) for _ in lengths]
        assert [descriptor.immediate for descriptor in sent] == list(range(n))
    else:
        for i, length in enumerate(lengths):
            done = vi.recv_wait(LIMIT_S)
            assert (done.length, done.immediate) == (length, i)
            assert np.array_equal(store.inside[3000 * i : 3000 * i + length], pattern(length, i))
            if (i + 1) % burst == 0:
                me.meet()
        store.check()
    me.meet()


def segments(me: Side, level: str):
    """Gathered from pieces in one order, scattered to pieces of other lengths."""
    vi = me.vi(LEVELS[level])
    total = 250 * 37
    store = Guarded(me, total)
    if me.is_a:
        store.inside[:] = pattern(total)
        cuts = [(37 * i, 37 * (i + 1)) for i in range(250)]
    else:
        cuts, start = [], 0
        while start < total:
            stop = min(total, start + 1 + (53 * len(cuts)) % 190)
            cuts.append((start, stop))
            start = stop
        cuts.insert(3, (5, 5))  # an empty piece is allowed
        # Scattered backwards: the first bytes of the message go to the last piece.
        cuts.reverse()
        vi.post_recv(via.Descriptor.recv([store.segment[a:b] for a, b in cuts]))
    me.join(vi)
    if me.is_a:
        vi.post_send(via.Descriptor.send([store.segment[a:b] for a, b in cuts]))
        vi.send_wait(LIMIT_S)
    else:
        done = vi.recv_wait(LIMIT_S)
        assert done.length == total
        gathered = np.concatenate([store.inside[a:b] for a, b in cuts])
        assert np.array_equal(gathered, pattern(total))
        store.check()
    me.meet()


def immediate(me: Side, level: str):
    vi = me.vi(LEVELS[level])
    values = [0, 1, 0x80000000, 0xFFFFFFFF, None]
    room = Guarded(me, 8)
    if me.is_b:
        for _ in values:
            vi.post_recv(via.Descriptor.recv(owner=vi))
    me.join(vi)
    if me.is_a:
        descriptor = via.Descriptor.send(owner=vi)
        for value in values:
            descriptor.immediate = value
            vi.post_send(descriptor)
            assert vi.send_wait(LIMIT_S) is descriptor
    else:
        for value in values:
            done = vi.recv_wait(LIMIT_S)
            assert (done.length, done.immediate) == (0, value)
            assert bool(done.status & via.Status.IMMEDIATE) == (value is not None)
    room.check()
    me.meet()


# ---------------------------------------------------------------- RDMA write


def rdma_write(me: Side, level: str, nbytes: int = 10000):
    """Inside the region. Without immediate data the target gets no completion, with it one receive is consumed."""
    vi = me.vi(LEVELS[level], rdma_write=True)
    store = Guarded(me, nbytes, rdma_write=True)
    if me.is_b:
        vi.post_recv(via.Descriptor.recv(owner=vi))
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        store.inside[:] = pattern(nbytes)
        vi.post_send(via.Descriptor.rdma_write(store.segment[: nbytes - 8], address, handle))
        assert vi.send_wait(LIMIT_S).operation is via.Operation.RDMA_WRITE
        vi.post_send(via.Descriptor.rdma_write(store.segment[nbytes - 8 :], address + nbytes - 8, handle, immediate=7))
        vi.send_wait(LIMIT_S)
        assert vi.counters["rdma_writes_sent"] == 2
    else:
        done = vi.recv_wait(LIMIT_S)
        assert done.immediate == 7
        assert done.operation is via.Operation.REMOTE_RDMA_WRITE
        assert np.array_equal(store.inside, pattern(nbytes))
    store.check()
    me.meet()


def rdma_write_refused(me: Side, level: str, fault: str, length: int = 200):
    """Outside the region, across its end, without the right on region or VI, with another tag, or a stale handle."""
    nbytes = 4096
    vi = me.vi(LEVELS[level], rdma_write=not (me.is_b and fault == "vi"))
    tag = me.keep(me.nic.create_tag()) if fault == "tag" else None
    store = Guarded(me, nbytes, rdma_write=fault != "region", tag=tag if me.is_b else None)
    other = Guarded(me, nbytes, rdma_write=True)
    if fault == "stale" and me.is_b:
        store.region.close()
    me.join(vi)
    address, handle = me.meet([store.region.address, store.region.handle])
    whole = len(store.array)
    start = address + {"outside": whole + 4096, "across": whole - 100, "before": -1}.get(fault, 0)
    if me.is_a:
        other.inside[:] = 0
        vi.post_send(via.Descriptor.rdma_write(other.segment[:length], start, handle))
        if level == "reliable_reception":
            assert failed(vi.send_wait, LIMIT_S) & via.Status.RDMA_PROT_ERROR
        else:
            with contextlib.suppress(errors.CompletionError):
                vi.send_wait(LIMIT_S)
    else:
        me.until(lambda: via.ErrorCode.RDMAW_PROT in me.errors(), "RDMAW_PROT")
    if level == "unreliable":
        me.meet()
        assert vi.state is via.ViState.CONNECTED
    else:
        me.until(lambda: vi.state is via.ViState.ERROR, "the connection broken")
    me.meet()
    if me.is_b:
        assert (store.array == GUARD).all(), "a byte was written without a grant"


def rdma_read(me: Side, level: str, nbytes: int = 100000):
    """The other side's memory comes, while its program only waits elsewhere; a fence holds what is posted behind it."""
    vi = me.vi(LEVELS[level], rdma_read=True)
    store = Guarded(me, nbytes, rdma_read=True)
    if me.is_b:
        store.inside[:] = pattern(nbytes)
        vi.post_recv(via.Descriptor.recv(owner=vi))
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        store.inside[:] = 0
        read = via.Descriptor.rdma_read([store.segment[:100], store.segment[100:]], address, handle)
        note = via.Descriptor.send(owner=vi)
        note.fence = True
        vi.post_send(read)
        vi.post_send(note)
        assert vi.send_wait(LIMIT_S).operation is via.Operation.RDMA_READ
        assert np.array_equal(store.inside, pattern(nbytes))
        assert vi.send_wait(LIMIT_S) is note
        assert vi.counters["rdma_reads_sent"] == 1
        assert vi.info.reads_open == 0
    else:
        vi.recv_wait(LIMIT_S)
    store.check()
    me.meet()


def rdma_read_refused(me: Side):
    """Memory that grants writing only: the reader's descriptor reports the error, and the connection is broken."""
    vi = me.vi(via.Reliability.RELIABLE_DELIVERY, rdma_read=True)
    store = Guarded(me, 4096, rdma_write=True)
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        vi.post_send(via.Descriptor.rdma_read(store.segment, address, handle))
        assert failed(vi.send_wait, LIMIT_S) & via.Status.RDMA_PROT_ERROR
    else:
        me.until(lambda: via.ErrorCode.RDMAR_PROT in me.errors(), "RDMAR_PROT")
    me.until(lambda: vi.state is via.ViState.ERROR, "the connection broken")
    me.meet()


def rdma_write_while_computing(me: Side):
    """It lands while the target computes in pure Python and calls nothing."""
    vi = me.vi(rdma_write=True)
    store = Guarded(me, 64, rdma_write=True)
    store.inside[:] = 0
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        store.inside[:] = pattern(64) | 1
        vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
        vi.send_wait(LIMIT_S)
    else:
        last = memoryview(store.array)[store.margin + 63 : store.margin + 64]
        polls = me.nic.counters["polls"]
        deadline = time.monotonic() + LIMIT_S
        n = 0
        while last[0] == 0:
            n += sum(range(100))  # computing: no call of this library
            assert time.monotonic() < deadline, f"nothing landed; {me.nic.counters.nonzero()}, polls before: {polls}"
        del last
        assert np.array_equal(store.inside, pattern(64) | 1), "the last byte was written before the others"
    me.meet()


CASES = {
    function.__name__: function
    for function in (
        connect, connection_tells_who_asks, refuse, no_match, mismatch, message, too_long_for_the_vi,
        too_long_for_the_receive, order, segments, immediate, rdma_read, rdma_read_refused, rdma_write,
        rdma_write_refused, rdma_write_while_computing, wrong_tag, stale_handle, deregister_while_posted,
        receive_not_posted, disconnect_with_descriptors_posted, many_vis, peer_killed, wait_is_not_a_spin, *CARD_CASES,
    )
}  # fmt: skip


def run(case: str, parameters: dict, is_a: bool, device: str, channel: Channel):
    """One side of one case; afterwards everything that it opened is closed."""
    me = Side(is_a, device, channel, case)
    with me.stack:
        CASES[case](me, **parameters)


def main(role: str, device: str, peer_fd: str, command_fd: str) -> None:
    """Work off cases, one line of JSON each, until the test closes the channel."""
    import gc

    peer = Channel(socket.socket(fileno=int(peer_fd)))
    commands = Channel(socket.socket(fileno=int(command_fd)))
    while True:
        try:
            name, case, parameters = commands.read(timeout_s=600)
        except EOFError:
            return
        try:
            run(case, parameters, role == "a", device.format(name=name), peer)
            gc.collect()
            live = {kind: n for kind, n in via.live_objects().items() if n}
            assert not live, f"left alive: {live}"
            commands.write("ok")
        except BaseException:
            commands.write(f"side {role}:\n{traceback.format_exc()}")
            return  # the two sides may be out of step now


if __name__ == "__main__":
    main(*sys.argv[1:])
