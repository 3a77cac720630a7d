"""The two sides of a case of the conformance suite: their channel, guarded buffers, and connecting.

A case runs on both sides. Side A's NIC is in one process and side B's in another, on the same host or on two hosts."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time

import numpy as np

from viakit import errors, via

LIMIT_S = 60.0  # no case takes as long, also on a busy machine; what does is stuck
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
        """Connect the two sides' VIs. b waits, a requests."""
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
