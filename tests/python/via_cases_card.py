"""Cases of the conformance suite for links with RDMA by a card: the target's processor takes no part.

Each promise of RDMA holds as on other links. The counters show which way the data came.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import time

import numpy as np
from via_sides import GUARD, LEVELS, LIMIT_S, Guarded, Side, failed, pattern

from viakit import errors, via


def watch(byte: memoryview):
    """Wait for a byte to change, without a call of the library."""
    deadline = time.monotonic() + LIMIT_S
    while byte[0] == 0:
        assert time.monotonic() < deadline, "nothing was written"
        sum(range(100))


def assert_no_part(me: Side, vi: via.Vi):
    """The provider of this side has handled no RDMA and no data."""
    counters = vi.counters
    assert counters["rdma_writes_received"] == counters["rdma_reads_received"] == 0
    assert counters["bytes_received"] == counters["bytes_sent"] == counters["copies"] == 0
    assert counters["frames_received"] < 10, "more than probes of an idle connection"


def card_write(me: Side, level: str, nbytes: int):
    """The target makes no call, and sees the last byte after all others."""
    vi = me.vi(LEVELS[level], rdma_write=True)
    store = Guarded(me, nbytes, rdma_write=True)
    store.inside[:] = pattern(nbytes) | 1 if me.is_a else 0
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
        done = vi.send_wait(LIMIT_S)
        assert done.operation is via.Operation.RDMA_WRITE
        assert done.status & via.Status.DONE
        assert vi.counters["rdma_writes_sent"] == vi.counters["rdma_writes_by_card"] == 1
        assert vi.counters["bytes_sent"] == nbytes
    else:
        watch(memoryview(store.array)[store.margin + nbytes - 1 : store.margin + nbytes])
        assert np.array_equal(store.inside, pattern(nbytes) | 1), "the last byte was written before the others"
        assert_no_part(me, vi)
    store.check()
    me.meet()


def card_read(me: Side, level: str, nbytes: int):
    """The target only waits elsewhere. The data go to three pieces."""
    vi = me.vi(LEVELS[level], rdma_read=True)
    store = Guarded(me, nbytes, rdma_read=True)
    store.inside[:] = pattern(nbytes) if me.is_b else 0
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        cuts = [0, nbytes // 3, nbytes // 2, nbytes]
        pieces = [store.segment[a:b] for a, b in itertools.pairwise(cuts)]
        vi.post_send(via.Descriptor.rdma_read(pieces, address, handle))
        assert vi.send_wait(LIMIT_S).operation is via.Operation.RDMA_READ
        assert np.array_equal(store.inside, pattern(nbytes))
        assert vi.counters["rdma_reads_sent"] == vi.counters["rdma_reads_by_card"] == 1
        assert vi.info.reads_open == 0
    me.meet()
    if me.is_b:
        assert_no_part(me, vi)
    store.check()
    me.meet()


def card_pieces(me: Side):
    """Nine pieces are more than the link gives the card: frames carry them. Eight go by the card."""
    nbytes = 9000
    vi = me.vi(rdma_write=True, rdma_read=True)
    store = Guarded(me, nbytes, rdma_write=True, rdma_read=True)
    store.inside[:] = pattern(nbytes) if me.is_a else 0
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    for n in 9, 8:
        if me.is_a:
            cuts = [nbytes * i // n for i in range(n + 1)]
            pieces = [store.segment[a:b] for a, b in itertools.pairwise(cuts)]
            vi.post_send(via.Descriptor.rdma_write(pieces, address, handle))
            vi.send_wait(LIMIT_S)
        me.meet()
        assert np.array_equal(store.inside, pattern(nbytes))
        me.meet()
        if me.is_b:
            store.inside[:] = 0
        me.meet()
        if me.is_a:
            store.inside[:] = 0
            vi.post_send(via.Descriptor.rdma_read(pieces, address, handle))
            vi.send_wait(LIMIT_S)
            assert (store.inside == 0).all()
            store.inside[:] = pattern(nbytes)
            assert vi.counters["rdma_writes_by_card"] == vi.counters["rdma_reads_by_card"] == 9 - n
        me.meet()
    store.check()


def card_immediate(me: Side, level: str, n: int = 24):
    """Writes with immediate data in a row: at each completion the target finds all bytes of that write."""
    nbytes = 20000
    vi = me.vi(LEVELS[level], rdma_write=True)
    store = Guarded(me, n * nbytes, rdma_write=True)
    if me.is_b:
        for _ in range(n):
            vi.post_recv(via.Descriptor.recv(owner=vi))
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        store.inside[:] = pattern(n * nbytes)
        for i in range(n):
            piece = store.segment[i * nbytes : (i + 1) * nbytes]
            vi.post_send(via.Descriptor.rdma_write(piece, address + i * nbytes, handle, immediate=i))
        for i in range(n):
            assert vi.send_wait(LIMIT_S).immediate == i
        assert vi.counters["rdma_writes_by_card"] == n
    else:
        for i in range(n):
            done = vi.recv_wait(LIMIT_S)
            assert (done.operation, done.immediate) == (via.Operation.REMOTE_RDMA_WRITE, i)
            place = slice(i * nbytes, (i + 1) * nbytes)
            assert np.array_equal(store.inside[place], pattern(n * nbytes)[place])
    store.check()
    me.meet()


def card_order(me: Side, level: str, n: int = 120, least: int = 60):
    """Writes of all lengths, each followed by a send that names it, all posted at once, in both directions.

    A message that is received finds its write placed. At least `least` writes go by the card.
    """
    lengths = [(1 + 7919 * i) % 30000 if i % 3 else 1 + i % 64 for i in range(n)]
    starts = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    vi = me.vi(LEVELS[level], rdma_write=True)
    source, store = Guarded(me, starts[-1]), Guarded(me, starts[-1], rdma_write=True)
    source.inside[:] = pattern(starts[-1], me.is_a)
    for _ in range(n):
        vi.post_recv(via.Descriptor.recv(owner=vi))
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    for i in range(n):
        piece = source.segment[starts[i] : starts[i + 1]]
        vi.post_send(via.Descriptor.rdma_write(piece, address + starts[i], handle))
        vi.post_send(via.Descriptor.send(owner=vi, immediate=i))
    expected = pattern(starts[-1], me.is_b)
    for i in range(n):
        assert vi.recv_wait(LIMIT_S).immediate == i
        place = slice(starts[i], starts[i + 1])
        assert np.array_equal(store.inside[place], expected[place]), f"message {i} has overtaken its write"
    for _ in range(2 * n):
        vi.send_wait(LIMIT_S)
    assert vi.counters["rdma_writes_by_card"] >= least
    store.check()
    me.meet()


def card_row(me: Side, n: int = 40):
    """Many writes posted at once, and a read behind them that sees all."""
    nbytes = 50000
    vi = me.vi(rdma_write=True, rdma_read=True)
    store, copy = Guarded(me, n * nbytes, rdma_write=True, rdma_read=True), Guarded(me, n * nbytes)
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        store.inside[:] = pattern(n * nbytes)
        for i in range(n):
            piece = store.segment[i * nbytes : (i + 1) * nbytes]
            vi.post_send(via.Descriptor.rdma_write(piece, address + i * nbytes, handle))
        vi.post_send(via.Descriptor.rdma_read(copy.segment, address, handle))
        for _ in range(n + 1):
            vi.send_wait(LIMIT_S)
        assert np.array_equal(copy.inside, store.inside)
        assert vi.counters["rdma_writes_by_card"] == n
    me.meet()
    if me.is_b:
        assert np.array_equal(store.inside, pattern(n * nbytes))
        assert_no_part(me, vi)
    store.check()
    me.meet()


def card_deregistered(me: Side):
    """The target deregisters memory whose key its peer knows. A write there is refused as on any link, nothing is
    written, and another connection of the two NICs goes on."""
    nbytes = 100000
    first, second = (me.vi(via.Reliability.RELIABLE_RECEPTION, rdma_write=True) for _ in range(2))
    store, other = Guarded(me, nbytes, rdma_write=True), Guarded(me, nbytes, rdma_write=True)
    me.join(first)
    me.join(second)
    address, handle = me.meet([store.address, store.region.handle])
    other_address, other_handle = me.meet([other.address, other.region.handle])
    if me.is_a:
        first.post_send(via.Descriptor.rdma_write(other.segment, address, handle))
        first.send_wait(LIMIT_S)
    me.meet()
    if me.is_b:
        store.region.close()
        store.array[:] = GUARD
    me.meet()
    if me.is_a:
        store.inside[:] = pattern(nbytes)
        n = 10
        first.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
        for _ in range(n):
            second.post_send(via.Descriptor.rdma_write(store.segment, other_address, other_handle))
        assert failed(first.send_wait, LIMIT_S) & via.Status.RDMA_PROT_ERROR
        for _ in range(n):
            second.send_wait(LIMIT_S)
        assert second.counters["rdma_writes_sent"] == n
    else:
        me.until(lambda: via.ErrorCode.RDMAW_PROT in me.errors(), "RDMAW_PROT")
    me.until(lambda: first.state is via.ViState.ERROR, "the connection broken")
    me.meet()
    assert second.state is via.ViState.CONNECTED
    if me.is_b:
        assert (store.array == GUARD).all(), "a byte was written without a grant"
        assert np.array_equal(other.inside, pattern(nbytes))
    me.meet()


def card_source_deregistered(me: Side):
    """Deregistering the source waits until the card has read it."""
    nbytes = 2 << 20
    vi = me.vi(rdma_write=True)
    store = Guarded(me, nbytes, rdma_write=True)
    store.inside[:] = pattern(nbytes) if me.is_a else 0
    me.join(vi)
    address, handle = me.meet([store.address, store.region.handle])
    if me.is_a:
        vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
        vi.send_wait(LIMIT_S)
        vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
        store.region.close()
        store.array[:] = 0
        assert vi.send_wait(LIMIT_S).operation is via.Operation.RDMA_WRITE
        assert vi.counters["rdma_writes_by_card"] == 2
    me.meet()
    if me.is_b:
        assert np.array_equal(store.inside, pattern(nbytes))
    me.meet()


def card_disconnect(me: Side):
    """Disconnecting and closing with writes and reads under way: each descriptor comes back, and nothing is left."""
    nbytes = 1 << 20
    for _ in range(3):
        vi = me.vi(rdma_write=True, rdma_read=True)
        store = Guarded(me, nbytes, rdma_write=True, rdma_read=True)
        me.join(vi)
        address, handle = me.meet([store.address, store.region.handle])
        for _ in range(6):
            vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))
            vi.post_send(via.Descriptor.rdma_read(store.segment, address, handle))
        with contextlib.suppress(errors.CompletionError):
            vi.send_wait(LIMIT_S)
        if me.is_a:
            vi.disconnect()
            assert vi.state is via.ViState.IDLE
        else:
            me.until(lambda vi=vi: vi.state is via.ViState.ERROR, "the connection broken")
        vi.drain()
        me.meet()
    me.join(vi := me.vi(rdma_write=True))
    address, handle = me.meet([store.address, store.region.handle])
    for _ in range(4):
        vi.post_send(via.Descriptor.rdma_write(store.segment, address, handle))


class Writer:
    """A connected VI, and memory of one length on both sides. A write goes from all of one to all of the other."""

    def __init__(self, me: Side, nbytes: int, level: via.Reliability = via.Reliability.RELIABLE_DELIVERY):
        self.vi = me.vi(level, rdma_write=True)
        self.store = Guarded(me, nbytes, rdma_write=True)
        me.join(self.vi)
        self.target = me.meet([self.store.address, self.store.region.handle])

    def post(self, seed: int):
        self.store.inside[:] = pattern(self.store.inside.size, seed)
        self.vi.post_send(via.Descriptor.rdma_write(self.store.segment, *self.target))

    def write(self, seed: int):
        self.post(seed)
        self.vi.send_wait(LIMIT_S)

    def holds(self, seed: int) -> bool:
        return np.array_equal(self.store.inside, pattern(self.store.inside.size, seed))


def card_rights_changed(me: Side):
    """The key that the peer knows ends with a change of rights. While the new ones allow its writes, they succeed, by
    frames and then by the card again."""
    writer = Writer(me, 20000, via.Reliability.RELIABLE_RECEPTION)
    vi, store = writer.vi, writer.store
    if me.is_a:
        writer.write(1)
        assert vi.counters["rdma_writes_by_card"] == 1
    me.meet()
    if me.is_b:
        store.region.set_attributes(rdma_read=True)
    me.meet()
    if me.is_a:
        writer.write(2)
        assert vi.counters["rdma_writes_by_card"] == 1, "the old key was still valid"
        again_by_card(writer)
    me.meet()
    if me.is_b:
        assert writer.holds(3)
        store.region.set_attributes(rdma_write=False)
    me.meet()
    if me.is_a:
        writer.post(4)
        assert failed(vi.send_wait, LIMIT_S) & via.Status.RDMA_PROT_ERROR
    else:
        me.until(lambda: via.ErrorCode.RDMAW_PROT in me.errors(), "RDMAW_PROT")
    me.meet()


def again_by_card(writer: Writer):
    """Write until the card does it again."""
    before = writer.vi.counters["rdma_writes_by_card"]
    deadline = time.monotonic() + LIMIT_S
    while writer.vi.counters["rdma_writes_by_card"] == before:
        assert time.monotonic() < deadline, "all writes go as frames"
        writer.write(3)


def card_outage(me: Side, interface: str):
    """Packets of the target are lost for so long that the card gives up.

    Frames repeat the write, and later ones go by the card again.
    """
    writer = Writer(me, 30000)
    vi = writer.vi
    if me.is_a:
        writer.write(1)
        assert vi.counters["rdma_writes_by_card"] == 1
    me.meet()
    outage = contextlib.ExitStack()
    me.stack.push(outage)
    if me.is_b:
        subprocess.run(["tc", "qdisc", "add", "dev", interface, "root", "netem", "loss", "100%"], check=True)
        outage.callback(subprocess.run, ["tc", "qdisc", "del", "dev", interface, "root"], check=True)
    me.meet()
    if me.is_a:
        frames = vi.counters["frames_sent"]
        writer.post(2)
        me.until(lambda: vi.counters["frames_sent"] > frames + 10, "frames in place of the card")
    me.meet()
    outage.close()
    me.meet()
    if me.is_a:
        vi.send_wait(LIMIT_S)
        assert vi.counters["rdma_writes_by_card"] == 1
        again_by_card(writer)
    me.meet()
    if me.is_b:
        assert writer.holds(3)
        assert vi.counters["rdma_writes_received"] >= 1
    writer.store.check()
    me.meet()


CARD_CASES = (
    card_write, card_read, card_pieces, card_immediate, card_order, card_row, card_deregistered,
    card_source_deregistered, card_disconnect, card_rights_changed, card_outage,
)  # fmt: skip
