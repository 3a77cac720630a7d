"""The conformance suite seen from Python: what VIA must do on every link, once for all links.

A case is one function that runs on two sides at the same time; `me.is_a` tells them apart. On loop the sides are two
threads of the test, on shm two processes, on eth two processes on two hosts. The sides talk over a channel of their own
(`me.meet`), so that no case has to sleep or to guess.

    python via_cases.py ROLE DEVICE PEER_FD COMMAND_FD     one side, working off cases that test_conformance.py names
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
import traceback

import numpy as np

from viakit import errors, via

LIMIT_S = 20.0  # no case takes as long; what does is stuck
LEVELS = {level.name.lower(): level for level in via.Reliability}
GUARD = 0xA5
DONE_FLUSHED = via.Status.DONE | via.Status.DESC_FLUSHED


class Channel:
    """Lines of JSON over a stream socket, with a deadline on every line."""

    def __init__(self, sock: socket.socket):
        self.sock = sock
        self.buffer = b""

    def write(self, value):
        self.sock.sendall(json.dumps(value).encode() + b"\n")

    def read(self, timeout_s=LIMIT_S):
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self.sock], [], [], left)[0]:
                raise TimeoutError(f"the other side said nothing for {timeout_s} s")
            piece = self.sock.recv(65536)
            if not piece:
                raise EOFError("the other side is gone")
            self.buffer += piece
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)


class Side:
    """One of the two sides of a case, with a NIC of its own that is closed after the case."""

    def __init__(self, is_a: bool, device: str, channel: Channel, case: str):
        self.is_a = is_a
        self.is_b = not is_a
        self.device = device
        self.channel = channel
        self.case = case
        self.stack = contextlib.ExitStack()
        self.n_meetings = 0
        self.kept = []
        self.nic = self.stack.enter_context(via.Nic(device))

    def meet(self, value=None):
        """Wait until the other side comes here too; give it `value` and get its own."""
        self.n_meetings += 1
        self.channel.write([self.n_meetings, value])
        number, theirs = self.channel.read()
        assert number == self.n_meetings, "the two sides have lost each other"
        return theirs

    def join(self, vi: via.Vi, name: str = "join"):
        """Connect the two sides' VIs; b waits, a asks."""
        address = self.meet(str(self.nic.address))
        if self.is_b:
            with self.nic.connect_wait(name, LIMIT_S) as request:
                assert request.remote_attributes.reliability == vi.attributes.reliability
                request.accept(vi)
        else:
            vi.connect(via.Address.parse(address) / name, LIMIT_S, retry=True)
        self.meet()
        return vi

    def keep(self, thing):
        """Hold what a case made until its NIC is closed, which closes it."""
        self.kept.append(thing)
        return thing

    def vi(self, *arguments, **attributes) -> via.Vi:
        return self.keep(self.nic.create_vi(*arguments, **attributes))

    def until(self, condition, what: str):
        """Wait for a condition; the NIC is driven meanwhile."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            assert time.monotonic() < deadline, f"in vain: {what}; {self.nic.counters.nonzero()}; {self.nic.errors}"
            self.nic.poll()
            time.sleep(0.0005)  # between two looks at a condition, not instead of one

    def errors(self):
        return [error.code for error in self.nic.errors]


class Guarded:
    """A region with guard bytes around the part that may be touched."""

    def __init__(self, me: Side, nbytes: int, margin: int = 64, **rights):
        self.array = np.full(nbytes + 2 * margin, GUARD, np.uint8)
        self.region = me.keep(me.nic.register(self.array, **rights))
        self.margin = margin
        self.inside = self.array[margin : margin + nbytes]
        self.segment = self.region[margin : margin + nbytes]
        self.address = self.region.address + margin

    def check(self):
        assert (self.array[: self.margin] == GUARD).all(), "written before the buffer"
        assert (self.array[len(self.array) - self.margin :] == GUARD).all(), "written behind the buffer"


def pattern(nbytes: int, seed: int = 1) -> np.ndarray:
    """Bytes in which a piece that is missing, doubled or moved shows: they repeat only after 65521, a prime."""
    once = (np.arange(min(nbytes, 65521), dtype=np.uint32) * 2654435761 + seed * 40503 >> 13).astype(np.uint8)
    return np.resize(once, nbytes)


def raised(kind: type, call, *arguments, **keywords):
    """The exception of this kind that the call raises."""
    try:
        call(*arguments, **keywords)
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised")


def failed(call, *arguments) -> via.Status:
    """The status of the completion error that the call raises."""
    return raised(errors.CompletionError, call, *arguments).status


# ---------------------------------------------------------------- connecting


def connect(me: Side):
    vi = me.vi()
    assert vi.state is via.ViState.IDLE
    me.join(vi)
    assert vi.state is via.ViState.CONNECTED
    me.meet()
    if me.is_a:
        vi.disconnect()
        assert vi.state is via.ViState.IDLE
        vi.disconnect()  # once more does nothing
    else:
        me.until(lambda: vi.state is via.ViState.ERROR, "the VI in state ERROR")
        me.until(lambda: via.ErrorCode.CONN_LOST in me.errors(), "CONN_LOST")
        vi.disconnect()
        assert vi.state is via.ViState.IDLE
    # The same VI connects again.
    me.join(vi, "again")
    assert vi.state is via.ViState.CONNECTED
    me.meet()


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
    """Inside the region; without immediate data nobody notices, with it one receive is consumed."""
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


def rdma_write_refused(me: Side, level: str, fault: str):
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
        vi.post_send(via.Descriptor.rdma_write(other.segment[:200], start, handle))
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
        assert (store.array == GUARD).all(), "a byte was written that nobody granted"


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
    """Memory that grants writing only: the reader's descriptor says so, and the connection is broken."""
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


def peer_killed(me: Side):
    """B dies in the middle of a stream; a notices, gets its descriptors back, and can connect to somebody else."""
    vi = me.vi()
    store = Guarded(me, 1 << 16)
    receives = [via.Descriptor.recv(store.segment) for _ in range(64)]
    for descriptor in receives:
        vi.post_recv(descriptor)
    me.join(vi)
    if me.is_b:
        for _ in range(3):
            vi.recv_wait(LIMIT_S)
        os.kill(os.getpid(), signal.SIGKILL)
    descriptor = via.Descriptor.send(store.segment)
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


CASES = {
    function.__name__: function
    for function in (
        connect, connection_tells_who_asks, refuse, no_match, mismatch, message, too_long_for_the_vi,
        too_long_for_the_receive, order, segments, immediate, rdma_read, rdma_read_refused, rdma_write,
        rdma_write_refused, rdma_write_while_computing, wrong_tag, stale_handle, deregister_while_posted,
        receive_not_posted, disconnect_with_descriptors_posted, many_vis, peer_killed, wait_is_not_a_spin,
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
