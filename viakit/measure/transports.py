"""Protocols in the measuring loop in Python (:mod:`viakit.measure.pyloop`): how each sends and receives a message."""

from __future__ import annotations

import abc
import array
import contextlib
import mmap
import socket
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.measure.endpoints import MeasureError

__all__ = [
    "MpiTransport",
    "NullTransport",
    "SocketTransport",
    "Transport",
    "ViaTransport",
    "WindowTransport",
    "ZmqTransport",
]

_SPINS = 256  # attempts between two checks of the clock
_SLICE_S = 0.05  # longest sleep between two checks of the clock
_HEADROOM = 4096
_WINDOW_BYTES = 32 << 20


def _window(nbytes: int, most: int) -> int:
    """Return the messages that may be in flight: 4 to *most*, and at most 32 MiB of them."""
    return max(4, min(most, _WINDOW_BYTES // (nbytes + 1)))


class Transport(abc.ABC):
    """Interface of a protocol to the loop in Python. Sizes are bytes.

    ``window`` is the number of messages in flight without a credit; 0 if the protocol has its own flow control.

    The endpoint sets the other attributes before `prepare`. A wait calls ``check`` repeatedly; it raises an error when
    the wait has to end. ``n_sends`` and ``n_receives`` are the numbers of buffers of each direction, ``memory`` is
    their source.
    """

    window = 0
    n_sends = n_receives = 1
    memory = "user"
    empty = False  # True: the transport carries no data, so received data is not compared
    check: Callable[[], None] = staticmethod(lambda: None)

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return the window for messages of *nbytes*."""
        return 0

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Allocate buffers for messages of *nbytes*, and post receives if the protocol needs them in advance."""
        size = _HEADROOM + offset + nbytes + 1
        self.nbytes = nbytes
        # Bytearrays, aligned by malloc: the memory that a Python program gets.
        self.all_messages, self.all_rooms = (
            [{n: memoryview(bytearray(size))[offset : offset + n] for n in (nbytes, 1)} for _ in range(count)]
            for count in (self.n_sends, self.n_receives)
        )
        self.messages, self.rooms = self.all_messages[0], self.all_rooms[0]

    def choose(self, i: int) -> None:
        """Select the send buffer of message *i*."""
        self.messages = self.all_messages[i % self.n_sends]

    def received(self, i: int) -> None:
        """Select the buffer of receive *i*. Protocols that post their receives in advance do nothing."""
        self.rooms = self.all_rooms[i % self.n_receives]

    @abc.abstractmethod
    def send(self, n: int) -> None:
        """Send the first *n* bytes of the message."""

    @abc.abstractmethod
    def recv(self, n: int) -> None:
        """Receive a message of *n* bytes into ``rooms[n]``."""

    def direct(self, n: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return two functions without arguments that send and receive messages of *n* bytes, for untouched buffers.

        The functions may leave out what only serves the contents, such as the choice of a buffer.
        """
        return partial(self.send, n), partial(self.recv, n)

    def tidy(self) -> None:  # noqa: B027 - optional, so not abstract
        """Do work that can be delayed until after a send."""

    def flush(self) -> None:  # noqa: B027 - optional, so not abstract
        """Wait until the message may be changed."""

    def flush_to(self, most: int) -> None:
        """Wait until at most the last *most* messages still use their buffers."""
        self.flush()

    def counters(self) -> dict[str, int]:
        """Return the protocol's free-running counters."""
        return {}

    def close(self) -> None:  # noqa: B027 - optional, so not abstract
        """Release the resources of `prepare`."""


class SocketTransport(Transport):
    """Transport over ``socket.socket``: send and recv_into."""

    def __init__(self, sock: socket.socket, polled: bool) -> None:
        self.sock = sock
        self.flags = socket.MSG_DONTWAIT if polled else 0
        self.spins = _SPINS if polled else 1
        # Python treats the socket as blocking, but calls return after a timeout: one system call per operation.
        slice_us = int(_SLICE_S * 1e6)
        value = array.array("l", [0, slice_us]).tobytes()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, value)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, value)
        self.calls = 0

    def send(self, n: int) -> None:
        """Send the whole message."""
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
        """Receive the whole message."""
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
        """Return the number of system calls."""
        return {"system_calls": self.calls}


class ZmqTransport(Transport):
    """Transport over ``zmq.Socket``: send with copy, and recv_into if pyzmq has it."""

    def __init__(self, sock: Any, polled: bool) -> None:
        import zmq  # start-up time

        self.sock, self.again = sock, zmq.Again
        self.flags = zmq.NOBLOCK if polled else 0
        self.spins = _SPINS if polled else 1
        self.into_buffer = getattr(sock, "recv_into", None)

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return a window that limits libzmq's queues, which have no limit of their own."""
        return _window(nbytes, 128)

    def send(self, n: int) -> None:
        """Send a message."""
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
        """Receive a message."""
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
    """Transport over ``mpi4py`` or ``viakit.mpi``, whose calls cannot be interrupted.

    *spec* is one of :data:`viakit.measure.endpoints.SPECS`: "list" and "plain" are arguments of Send and Recv, "array"
    and "dict" objects that send and recv pickle.
    """

    def __init__(self, mpi: Any, comm: Any, peer: int, spec: str = "list") -> None:
        self.mpi, self.comm, self.peer, self.spec = mpi, comm, peer, spec
        if spec in ("array", "dict"):
            self.send, self.recv = getattr(self, f"_send_{spec}"), self._recv_object  # type: ignore[method-assign]

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return a window that limits the queue of unexpected messages."""
        return _window(nbytes, 64)

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Allocate buffers, and what Send and Recv take for them."""
        super().prepare(nbytes, offset, n_expected, validate)
        self.all_out, self.all_in = (
            [
                {n: [view, self.mpi.BYTE] if self.spec == "list" else np.asarray(view) for n, view in one.items()}
                for one in every
            ]
            for every in (self.all_messages, self.all_rooms)
        )
        self.specs_out, self.specs_in = self.all_out[0], self.all_in[0]

    def choose(self, i: int) -> None:
        """Select the send buffer of message *i*."""
        super().choose(i)
        self.specs_out = self.all_out[i % self.n_sends]

    def received(self, i: int) -> None:
        """Select the buffer of receive *i*."""
        super().received(i)
        self.specs_in = self.all_in[i % self.n_receives]

    def send(self, n: int) -> None:
        """Send a message."""
        self.comm.Send(self.specs_out[n], self.peer, 7)

    def recv(self, n: int) -> None:
        """Receive a message."""
        self.comm.Recv(self.specs_in[n], self.peer, 7)

    def direct(self, n: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return the calls of the communicator themselves. An object is created once."""
        comm, peer, pickled = self.comm, self.peer, self.spec in ("array", "dict")
        if pickled:
            thing = self._dict(n) if self.spec == "dict" else self.specs_out[n]
            return partial(comm.send, thing, peer, 7), partial(comm.recv, None, peer, 7)
        return partial(comm.Send, self.specs_out[n], peer, 7), partial(comm.Recv, self.specs_in[n], peer, 7)

    def _send_array(self, n: int) -> None:
        self.comm.send(self.specs_out[n], self.peer, 7)

    def _dict(self, n: int) -> dict[str, Any]:
        return {"step": n, "data": bytes(self.messages[n])}

    def _send_dict(self, n: int) -> None:
        self.comm.send(self._dict(n), self.peer, 7)

    def _recv_object(self, n: int) -> None:
        got = self.comm.recv(None, self.peer, 7)
        self.rooms[n] = memoryview(got["data"] if self.spec == "dict" else got)


class WindowTransport(Transport):
    """One-sided transport over windows of ``mpi4py`` or ``viakit.mpi``: a message, and a counter after it.

    The part of each rank begins with the number of messages that have arrived. Behind it are slots. A put writes the
    message into a slot of the peer, flushes, and writes the peer's counter. With *get*, the messages are in the slots
    of the sender; the receiver reads one after its counter has changed. The receiver polls its own memory.
    """

    def __init__(self, mpi: Any, comm: Any, peer: int, get: bool = False) -> None:
        self.mpi, self.comm, self.peer, self.get = mpi, comm, peer, get
        self.win: Any = None
        self.arrived: Any = None  # this rank's counter, in its part of the window
        self.memory_of_slots: Any = None
        self.room = 0  # bytes of the window
        self.n_out = self.n_in = 0

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return the number of slots that the peer may fill without a credit."""
        return 2 if validate and nbytes > 1 << 20 else _window(nbytes, 64)

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Lay out the slots; allocate a larger window if they need one. Collective."""
        self.n_slots = self.window + 2 if validate or self.n_receives > 1 else self.n_sends
        self.n_read = 1 if validate else self.n_sends  # slots of the sender: validated messages are in the first one
        self.stride = (offset + max(nbytes, 1) + 4095) // 4096 * 4096
        self.offset = 4096 + offset
        if (size := 4096 + self.n_slots * self.stride) > self.room:
            self._allocate(1 << (size - 1).bit_length())
        super().prepare(nbytes, offset, n_expected, validate)
        self.memory_of_slots = memoryview(self.win.tomemory()).cast("B")
        self.arrived = self.memory_of_slots[:8].cast("Q")
        self.arrived[0] = self.n_out = self.n_in = 0
        self.number = np.zeros(1, np.uint64)
        if self.get:
            self.all_messages = [self._slot(i) for i in range(self.n_sends)]
            self.messages = self.all_messages[0]
        else:
            self.rooms = self._slot(0)
        self.comm.Barrier()  # no rank may reset its counter after a message has arrived

    def _slot(self, i: int) -> dict[int, memoryview]:
        at = self.offset + i % self.n_slots * self.stride
        return {n: self.memory_of_slots[at : at + n] for n in (self.nbytes, 1)}

    def _allocate(self, size: int) -> None:
        self._free()
        self.win, self.room = self.mpi.Win.Allocate(size, 1, comm=self.comm), size
        self.win.Lock_all()

    def _free(self) -> None:
        self.messages = self.rooms = {}
        self.all_messages, self.all_rooms, self.arrived, self.memory_of_slots = [], [], None, None
        if self.win is not None:
            win, self.win, self.room = self.win, None, 0
            win.Unlock_all()
            win.Free()

    def received(self, i: int) -> None:
        """Do nothing, because the order of messages selects the slot."""

    def send(self, n: int) -> None:
        """Write a message into the peer's window, and then the peer's counter."""
        win, peer = self.win, self.peer
        if n and not self.get:
            at = self.offset + self.n_out % self.n_slots * self.stride
            win.Put([self.messages[n], n, self.mpi.BYTE], peer, at)
            win.Flush(peer)
        self.n_out += 1
        self.number[0] = self.n_out
        win.Put(self.number, peer, [0, 1, self.mpi.UINT64_T])
        win.Flush(peer)

    def direct(self, n: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return functions that prepare the arguments of Put and Flush once. Untouched messages share a slot."""
        if self.get or not n:
            return super().direct(n)
        win, peer, number = self.win, self.peer, self.number.data
        put = partial(win.Put, [self.messages[n], n, self.mpi.BYTE], peer, self.offset)
        count = partial(win.Put, self.number, peer, [0, 1, self.mpi.UINT64_T])
        flush = partial(win.Flush, peer)

        def send() -> None:
            put()
            flush()
            self.n_out += 1
            number[0] = self.n_out
            count()
            flush()

        return send, self._arrive

    def _arrive(self) -> None:
        """Wait until the counter has changed."""
        arrived, due, spins = self.arrived, self.n_in, 0
        while arrived[0] <= due:
            spins += 1
            if spins % _SPINS == 0:
                self.win.Sync()
                self.check()
        self.n_in += 1

    def recv(self, n: int) -> None:
        """Wait until the counter has changed; with *get*, read the message."""
        due = self.n_in
        self._arrive()
        if not self.get:
            self.rooms = self._slot(due)
        elif n:
            at = self.offset + due % self.n_read * self.stride
            self.win.Get([self.rooms[n], n, self.mpi.BYTE], self.peer, at)
            self.win.Flush(self.peer)

    def counters(self) -> dict[str, int]:
        """Return the counters of viakit's windows. A window of an MPI library has none.

        The NIC's counters have their own names, because the NIC moves the data. Those of the engine begin with
        ``msg_``, as in the other endpoints on the engine.
        """
        if self.win is None or not hasattr(self.win, "counters"):
            return {}
        found = self.win.counters().items()
        return {name[4:] if name.startswith("nic_") else f"msg_{name}": value for name, value in found}


class ViaTransport(Transport):
    """Transport over ``viakit.via``: descriptors on registered regions, posted in advance."""

    def __init__(self, via: Any, nic: Any, vi: Any, polled: bool) -> None:
        self.via, self.nic, self.vi = via, nic, vi
        self.take = vi.spin_recv if polled else vi.recv_wait
        self.reap = vi.spin_send if polled else vi.send_wait
        self.region: Any = None
        self.own: mmap.mmap | None = None  # ordinary memory under the region

    def window_for(self, nbytes: int, validate: bool) -> int:
        """Return the number of posted receives. If messages are validated, each receive has a buffer of its own."""
        return 2 if validate and nbytes > 1 << 20 else _window(nbytes, 64)

    def prepare(self, nbytes: int, offset: int, n_expected: int, validate: bool) -> None:
        """Register memory, build the descriptors and post the receives."""
        self.nbytes = nbytes
        self.depth = min(self.window + 2, n_expected)
        room = max(nbytes, 1)
        stride = (_HEADROOM + offset + room + 4095) // 4096 * 4096
        n_slots = self.depth if validate or self.n_receives > 1 else 1
        self.close()
        size = stride * (self.n_sends + n_slots)
        if self.memory == "user":
            self.own = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            self.own.write(bytes(size))  # the page faults happen here
            region = self.region = self.nic.register(self.own)
        else:
            region = self.region = self.nic.create_region(size)
        whole = memoryview(region)
        make = self.via.Descriptor
        starts = [stride * i + offset for i in range(self.n_sends)]
        self.all_messages = [{n: whole[at : at + n] for n in (nbytes, 1)} for at in starts]
        # For each buffer as many descriptors as can be in flight.
        self.all_sends = [
            {n: [make.send(region[at : at + n]) for _ in range(self.window + 2)] for n in (nbytes, 1)} for at in starts
        ]
        self.all_n_sent = [dict.fromkeys((nbytes, 1), 0) for _ in starts]
        self.choose(0)
        self.outstanding = 0
        self.views = []
        self.receives = []
        for i in range(self.depth):
            at = stride * (self.n_sends + i % n_slots) + offset
            self.views.append(whole[at : at + room])
            self.receives.append(make.recv(region[at : at + room]))
        self.left, self.taken = n_expected, 0
        self.free: deque[Any] = deque()
        for descriptor in self.receives:
            self.vi.post_recv(descriptor)
        self.left -= self.depth
        self.rooms = {n: self.views[0][:n] for n in (nbytes, 1)}

    def choose(self, i: int) -> None:
        """Select the send buffer of message *i*."""
        i %= self.n_sends
        self.messages, self.sends, self.n_sent = self.all_messages[i], self.all_sends[i], self.all_n_sent[i]

    def received(self, i: int) -> None:
        """Do nothing, because receives are posted in advance."""

    def send(self, n: int) -> None:
        """Post a send. The ring is as long as the window, so its next descriptor is free once the oldest is reaped."""
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
        """Wait for a message and check its length."""
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
        """Post completed receives again, and reap completed sends."""
        free = self.free
        while free and self.left > 0:
            self.vi.post_recv(free.popleft())
            self.left -= 1
        while self.outstanding > 1 and self.vi.send_done() is not None:
            self.outstanding -= 1

    def flush(self) -> None:
        """Reap all sends."""
        self.flush_to(0)

    def flush_to(self, most: int) -> None:
        """Reap the oldest sends until at most *most* are pending."""
        while self.outstanding > most:
            self._reap()

    def counters(self) -> dict[str, int]:
        """Return the counters of the NIC."""
        return dict(self.nic.counters)

    def close(self) -> None:
        """Release the memory."""
        self.messages = self.rooms = {}
        self.sends = {}
        self.all_messages, self.all_sends = [], []
        self.views, self.receives = [], []
        self.free = deque()
        region, self.region = self.region, None
        if region is not None:
            region.close()
        own, self.own = self.own, None
        if own is not None:
            with contextlib.suppress(BufferError):  # a descriptor still refers to it and frees it at its end
                own.close()


class NullTransport(Transport):
    """Transport that does nothing, to measure the loop in Python itself."""

    empty = True

    def send(self, n: int) -> None:
        """Send nothing."""

    def recv(self, n: int) -> None:
        """Receive nothing."""
