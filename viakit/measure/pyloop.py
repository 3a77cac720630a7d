"""The measuring loop in Python: what a message costs a program that is written in Python.

The same modes, the same credits and the same validation as the loop in C (csrc/bench/loop.c), in plain Python on each
protocol's Python interface, with ``time.perf_counter_ns`` for the stamps. Bidir is left to C: from one Python thread
the two directions would only take turns.

A :class:`PythonEndpoint` answers to the same calls as :class:`viakit._core.BenchEndpoint`.
"""

from __future__ import annotations

import abc
import array
import contextlib
import resource
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit._words import counted
from viakit.measure.endpoints import MeasureError

__all__ = [
    "MpiTransport",
    "NullTransport",
    "PythonEndpoint",
    "SocketTransport",
    "Transport",
    "ViaTransport",
    "ZmqTransport",
]

_SPINS = 256  # tries between two looks at the clock
_SLICE_S = 0.05  # longest sleep between two looks at the clock
_HEADROOM = 4096
_WINDOW_BYTES = 32 << 20


class Transport(abc.ABC):
    """A protocol as the Python loop sees it. Sizes are bytes.

    ``window`` is the number of messages that may be under way unanswered; 0 where the protocol controls its own flow.
    ``check`` is set by the endpoint: to be called now and then in a wait, it raises when the wait has to end.
    """

    window = 0
    check: Callable[[], None] = staticmethod(lambda: None)

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return the window for messages of *nbytes*."""
        return 0

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Make buffers for messages of *nbytes*, and post receives where they are posted."""
        size = _HEADROOM + offset + nbytes + 1
        self.nbytes = nbytes
        self.out, self.into = bytearray(size), bytearray(size)
        start = offset  # of a bytearray that malloc aligned: what a Python program gets
        self.messages = {n: memoryview(self.out)[start : start + n] for n in (nbytes, 1)}
        self.rooms = {n: memoryview(self.into)[start : start + n] for n in (nbytes, 1)}

    @abc.abstractmethod
    def send(self, n: int) -> None:
        """Send the first *n* bytes of the message."""

    @abc.abstractmethod
    def recv(self, n: int) -> None:
        """Receive a message of *n* bytes into ``rooms[n]``."""

    def tidy(self) -> None:  # noqa: B027 - a protocol that needs nothing here leaves it so
        """Do what can wait until after a send."""

    def flush(self) -> None:  # noqa: B027 - a protocol that needs nothing here leaves it so
        """Wait until the message may be changed."""

    def counters(self) -> dict[str, int]:
        """Return the protocol's free-running counters."""
        return {}

    def close(self) -> None:  # noqa: B027 - a protocol that needs nothing here leaves it so
        """Release what `prepare` made."""


class SocketTransport(Transport):
    """``socket.socket``: send and recv_into."""

    def __init__(self, sock: socket.socket, polled: bool) -> None:
        self.sock = sock
        self.flags = socket.MSG_DONTWAIT if polled else 0
        self.spins = _SPINS if polled else 1
        # A socket that Python believes to block, but that comes back now and then: one system call per operation.
        slice_us = int(_SLICE_S * 1e6)
        value = array.array("l", [0, slice_us]).tobytes()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        self.calls = 0

    def send(self, n: int) -> None:
        """Send all of it."""
        view = self.messages[n]
        spins = 0
        while True:
            self.calls += 1
            try:
                done = self.sock.send(view, self.flags)
            except BlockingIOError:
                spins += 1
                if spins % self.spins == 0:
                    self.check()
                continue
            if done == len(view):
                return
            view = view[done:]

    def recv(self, n: int) -> None:
        """Receive all of it."""
        view = self.rooms[n]
        spins = 0
        while True:
            self.calls += 1
            try:
                done = self.sock.recv_into(view, 0, self.flags)
            except BlockingIOError:
                spins += 1
                if spins % self.spins == 0:
                    self.check()
                continue
            if done == len(view):
                return
            if done == 0:
                raise MeasureError("the peer closed the connection", "gone")
            view = view[done:]

    def counters(self) -> dict[str, int]:
        """Return the system calls."""
        return {"system_calls": self.calls}


class ZmqTransport(Transport):
    """``zmq.Socket``: send with copy, recv_into where pyzmq has it."""

    def __init__(self, sock: Any, polled: bool) -> None:
        import zmq

        self.sock, self.again = sock, zmq.Again
        self.flags = zmq.NOBLOCK if polled else 0
        self.spins = _SPINS if polled else 1
        self.into_buffer = getattr(sock, "recv_into", None)

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Keep libzmq's queues, which are without bound, short."""
        return max(4, min(128, _WINDOW_BYTES // (nbytes + 1)))

    def send(self, n: int) -> None:
        """Send."""
        spins = 0
        while True:
            try:
                self.sock.send(self.messages[n], self.flags, copy=True)
                return
            except self.again:
                spins += 1
                if spins % self.spins == 0:
                    self.check()

    def recv(self, n: int) -> None:
        """Receive."""
        spins = 0
        while True:
            try:
                if n and self.into_buffer is not None:
                    got = self.into_buffer(self.rooms[n], flags=self.flags)
                else:
                    data = self.sock.recv(self.flags)
                    got = len(data)
                    self.rooms[n][:got] = data
                break
            except self.again:
                spins += 1
                if spins % self.spins == 0:
                    self.check()
        if got != n:
            raise MeasureError(f"a message of {counted(got, 'byte')} arrived where one of {n} was due")


class MpiTransport(Transport):
    """``mpi4py``: Send and Recv of buffers. They poll inside and cannot be interrupted."""

    def __init__(self, mpi: Any, comm: Any, peer: int) -> None:
        self.mpi, self.comm, self.peer = mpi, comm, peer

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Keep the queue of unexpected messages short."""
        return max(4, min(64, _WINDOW_BYTES // (nbytes + 1)))

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Make buffers as mpi4py takes them."""
        super().prepare(nbytes, offset, n_expected, validate)
        self.specs_out = {n: [view, self.mpi.BYTE] for n, view in self.messages.items()}
        self.specs_in = {n: [view, self.mpi.BYTE] for n, view in self.rooms.items()}

    def send(self, n: int) -> None:
        """Send."""
        self.comm.Send(self.specs_out[n], self.peer, 7)

    def recv(self, n: int) -> None:
        """Receive."""
        self.comm.Recv(self.specs_in[n], self.peer, 7)


class ViaTransport(Transport):
    """``viakit.via``: descriptors on registered regions, posted in advance."""

    def __init__(self, via: Any, nic: Any, vi: Any, polled: bool) -> None:
        self.via, self.nic, self.vi = via, nic, vi
        self.take = vi.spin_recv if polled else vi.recv_wait
        self.reap = vi.spin_send if polled else vi.send_wait
        self.region: Any = None

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return how many messages have a receive waiting for them, and a slot of their own if they are validated."""
        return 2 if validate and nbytes > 1 << 20 else max(4, min(64, _WINDOW_BYTES // (nbytes + 1)))

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Register memory, build the descriptors and post the receives."""
        self.nbytes = nbytes
        self.depth = min(self.window + 2, n_expected)
        room = max(nbytes, 1)
        stride = (_HEADROOM + offset + room + 4095) // 4096 * 4096
        n_slots = self.depth if validate else 1
        self.close()
        region = self.region = self.nic.create_region(stride * (1 + n_slots))
        whole = memoryview(region)
        view = whole[offset : offset + room]
        make = self.via.Descriptor
        self.messages = {n: view[:n] for n in (nbytes, 1)}
        self.sends = {n: [make.send(region[offset : offset + n]) for _ in range(self.window + 2)] for n in (nbytes, 1)}
        self.n_sent = dict.fromkeys(self.sends, 0)
        self.outstanding = 0
        self.views = []
        self.receives = []
        for i in range(self.depth):
            at = stride * (1 + i % n_slots) + offset
            self.views.append(whole[at : at + room])
            self.receives.append(make.recv(region[at : at + room]))
        self.left, self.taken = n_expected, 0
        self.free: deque[Any] = deque()
        for descriptor in self.receives:
            self.vi.post_recv(descriptor)
        self.left -= self.depth
        self.rooms = {n: self.views[0][:n] for n in (nbytes, 1)}

    def send(self, n: int) -> None:
        """Post a send; the ring is as long as the window, so its next descriptor is free once the oldest is reaped."""
        ring = self.sends[n]
        while self.outstanding >= self.window:
            self._reap()
        i = self.n_sent[n]
        self.n_sent[n] = i + 1
        self.vi.post_send(ring[i % len(ring)])
        self.outstanding += 1

    def _reap(self) -> None:
        while True:
            try:
                self.reap(_SLICE_S)
                self.outstanding -= 1
                return
            except TimeoutError:
                self.check()

    def recv(self, n: int) -> None:
        """Wait for a message."""
        while True:
            try:
                descriptor = self.take(_SLICE_S)
                break
            except TimeoutError:
                self.check()
        if descriptor.length != n:
            raise MeasureError(f"a message of {counted(descriptor.length, 'byte')} arrived where one of {n} was due")
        self.rooms[n] = self.views[self.taken % self.depth][:n]
        self.taken += 1
        self.free.append(descriptor)

    def tidy(self) -> None:
        """Post receives again, and reap what is done."""
        free = self.free
        while free and self.left > 0:
            self.vi.post_recv(free.popleft())
            self.left -= 1
        while self.outstanding > 1 and self.vi.send_done() is not None:
            self.outstanding -= 1

    def flush(self) -> None:
        """Reap all sends."""
        while self.outstanding:
            self._reap()

    def counters(self) -> dict[str, int]:
        """Return the NIC's."""
        return dict(self.nic.counters)

    def close(self) -> None:
        """Give the memory back."""
        self.messages = self.rooms = {}
        self.views, self.receives, self.sends = [], [], {}
        self.free = deque()
        region, self.region = self.region, None
        if region is not None:
            region.close()


class PythonEndpoint:
    """The loop on a transport; answers to the calls of :class:`viakit._core.BenchEndpoint`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        transport.check = self._check
        self._stop = False
        self._n = dict.fromkeys(("messages_sent", "messages_received", "bytes_sent", "bytes_received"), 0)

    def prepare(
        self,
        nbytes: int,
        mode: str,
        side: int,
        count: int,
        warmup: int = 1,
        repeats: int = 1,
        offset: int = 0,
        validate: bool = False,
        one_core: bool = False,
        run_id: int = 0,
        timeout_s: float = 60.0,
        stall_s: float = 10.0,
        control_fd: int = -1,
    ) -> None:
        """Make buffers and post receives, as `BenchEndpoint.prepare` does."""
        if mode == "bidir":
            raise MeasureError("bidir is measured by the loop in C only. Remedy: leave --level python away", "usage")
        self.nbytes, self.mode, self.side, self.validate, self.run_id = nbytes, mode, side, validate, run_id
        self.count, self.warmup, self.repeats = count, max(warmup, 1), 1 if mode == "pingpong" else repeats
        self.timeout_s, self.one_core, self.control_fd = timeout_s, one_core, control_fd
        self.transport.window = self.transport.window_for(nbytes, validate)
        self.every = self.transport.window // 2
        self.transport.prepare(nbytes, offset, self._n_expected(), validate)
        self._stop = False

    def _credits(self, n: int) -> int:
        """Count the credits that B gives for n messages, the answer to the last not among them."""
        return (n - 1) // self.every if self.every else 0

    def _n_expected(self) -> int:
        """Count what this side will receive in the whole run."""
        if self.mode == "pingpong":
            return self.warmup + self.count
        if self.side:
            return self.warmup + self.repeats * self.count
        return self._credits(self.warmup) + 1 + self.repeats * (self._credits(self.count) + 1)

    def _check(self) -> None:
        """Raise MeasureError if a wait has to end; called now and then by the transports."""
        if self._stop or (self.control_fd >= 0 and select.select([self.control_fd], [], [], 0)[0]):
            raise MeasureError("stopped: the coordinator said so or has gone", "stopped")
        if time.monotonic() > self._deadline:
            raise MeasureError(
                f"the run of {self.nbytes}-byte messages was not over after {self.timeout_s:g} s", "timeout"
            )

    def run(self) -> bytes:
        """Run what was prepared; return doubles, nanoseconds, as `BenchEndpoint.run` does."""
        self._deadline = time.monotonic() + self.timeout_s
        transport = self.transport
        n = self.warmup + self.repeats * self.count
        if self.mode == "pingpong":
            samples = self._ping(n)[self.warmup :] if self.side == 0 else self._pong(n)
        else:
            one = self._stream_b if self.side else self._stream_a
            samples = array.array("d")
            first = 0
            for i in range(self.repeats + 1):
                k = self.count if i else self.warmup
                before = time.perf_counter_ns()
                one(first, k)
                after = time.perf_counter_ns()
                first += k
                if i and self.side == 0:
                    samples.append((after - before) / k)
        transport.flush()
        sent, received = (n, n) if self.mode == "pingpong" else (n, 0) if self.side == 0 else (0, n)
        self._n["messages_sent"] += sent
        self._n["messages_received"] += received
        self._n["bytes_sent"] += sent * self.nbytes
        self._n["bytes_received"] += received * self.nbytes
        return samples.tobytes()

    # -------------------------------------------------------------------------------- modes

    def _ping(self, n: int) -> array.array[float]:
        """Side A of a ping-pong: half of each round trip, in ns."""
        send, recv, tidy, clock = self.transport.send, self.transport.recv, self.transport.tidy, time.perf_counter_ns
        nbytes, validate = self.nbytes, self.validate
        samples = array.array("d", bytes(8 * n))
        before = clock()
        for i in range(n):
            if validate:
                self._fill(i)
                before = clock()
            send(nbytes)
            tidy()
            recv(nbytes)
            after = clock()
            samples[i] = (after - before) / 2
            before = after
            if validate:
                self._compare(i)
        return samples

    def _pong(self, n: int) -> array.array[float]:
        """Side B of a ping-pong."""
        send, recv, tidy, nbytes, validate = (
            self.transport.send,
            self.transport.recv,
            self.transport.tidy,
            self.nbytes,
            self.validate,
        )
        for i in range(n):
            recv(nbytes)
            if validate:
                self._compare(i)
                self._fill(i)
            send(nbytes)
            tidy()
        return array.array("d")

    def _stream_a(self, first: int, n: int) -> None:
        send, recv, tidy, nbytes, every = (
            self.transport.send,
            self.transport.recv,
            self.transport.tidy,
            self.nbytes,
            self.every,
        )
        credits, window = 0, self.transport.window
        for i in range(n):
            while every and i - credits * every >= window:
                recv(1)
                credits += 1
            if self.validate:
                self._fill(first + i)
            send(nbytes)
            tidy()
        while credits <= self._credits(n):
            recv(1)
            credits += 1
            tidy()

    def _stream_b(self, first: int, n: int) -> None:
        send, recv, tidy, nbytes, every = (
            self.transport.send,
            self.transport.recv,
            self.transport.tidy,
            self.nbytes,
            self.every,
        )
        for i in range(n):
            recv(nbytes)
            if self.validate:
                self._compare(first + i)
            tidy()
            if every and (i + 1) % every == 0 and i + 1 < n:
                send(1)
        send(1)
        tidy()

    # -------------------------------------------------------------------------------- validation

    def _pattern(self, side: int, i: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of message *i* of *side*: different for every run, side, message and size."""
        seed = (self.run_id * 1000003 + self.nbytes * 8191 + i * 131 + side * 7919) & 0xFFFFFFFF
        return ((np.arange(self.nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)) >> 13).astype(
            np.uint8
        )

    def _fill(self, i: int) -> None:
        self.transport.flush()
        if self.nbytes:
            np.frombuffer(self.transport.messages[self.nbytes], dtype=np.uint8)[:] = self._pattern(self.side, i)

    def _compare(self, i: int) -> None:
        if not self.nbytes:
            return
        found = np.frombuffer(self.transport.rooms[self.nbytes], dtype=np.uint8)
        expected = self._pattern(1 - self.side, i)
        wrong = np.flatnonzero(found != expected)
        if wrong.size:
            at = int(wrong[0])
            raise MeasureError(
                f"message {i} of {counted(self.nbytes, 'byte')}: byte {at} is 0x{found[at]:02x}, should be "
                f"0x{expected[at]:02x}",
                "mismatch",
            )

    # -------------------------------------------------------------------------------- the rest

    def stop(self) -> None:
        """End a run that another thread is in."""
        self._stop = True

    def counters(self) -> dict[str, int]:
        """Return free-running counters of the loop, the thread and the protocol."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return {
            **self._n,
            "cpu_user_ns": int(usage.ru_utime * 1e9),
            "cpu_system_ns": int(usage.ru_stime * 1e9),
            "voluntary_switches": usage.ru_nvcsw,
            "involuntary_switches": usage.ru_nivcsw,
            **self.transport.counters(),
        }

    def close(self) -> None:
        """Release buffers."""
        with contextlib.suppress(BufferError):
            self.transport.close()


class NullTransport(Transport):
    """Does nothing: what is left is the loop in Python itself."""

    def send(self, n: int) -> None:
        """Send nothing."""

    def recv(self, n: int) -> None:
        """Receive nothing."""
