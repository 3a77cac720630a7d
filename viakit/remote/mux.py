"""Many byte streams over one: the connection between this machine and the agent on another one.

Both ends run the same loop over one connection, which is the standard input and output of an ssh process. A frame is a
header (kind, process, stream, length) and its payload. The streams of a process are its standard streams 0, 1 and 2,
and the descriptors that it inherited, under their numbers.

Invariant: of each stream at most WINDOW bytes are on their way. The receiver grants more when it has delivered some, so
a process that does not read its input delays no other stream, and no buffer grows without limit.

This module imports only the standard library, and runs on both machines.
"""

from __future__ import annotations

import contextlib
import enum
import errno
import fcntl
import os
import select
import socket
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Mapping

__all__ = ["Foreign", "Kind", "Lost", "Mux", "Silent", "limits"]

WINDOW = 1 << 18  # bytes of one stream that are not delivered yet
BEAT_S = 0.5  # interval of the signs of life
SILENCE_S = 10.0  # without any frame, after the first one: the connection is lost
CUT_S = 2.0  # without any frame, if the other kernel acknowledges nothing either: the connection is lost
_HEADER = struct.Struct("!BIiI")
_MAX_FRAME = 1 << 24
_PIECE = 1 << 16
_PENDING = 1 << 20  # bytes that wait for the connection before local streams are no longer read


class Kind(enum.IntEnum):
    """Kinds of frames."""

    HELLO = 1  # properties of the agent's host, as JSON
    SPAWN = 2  # start a process (JSON)
    STARTED = 3  # the process runs, or an error (JSON)
    ENDED = 4  # the process has ended (JSON)
    SIGNAL = 5  # send a signal to the process (JSON)
    DATA = 6  # bytes of a stream
    END = 7  # the stream has ended
    GRANT = 8  # the number of bytes that were delivered
    CLOSED = 9  # the receiver of the stream has closed it
    BEAT = 10  # a sign of life
    REQUEST = 11  # a request to the agent (JSON)
    REPLY = 12  # the reply to it (JSON)


def limits(environment: Mapping[str, str] = os.environ) -> tuple[float, float]:
    """Return the limits of silence without and with acknowledgements: ``VIAKIT_CUT_S`` and ``VIAKIT_SILENCE_S``.

    Raises
    ------
    ValueError
        If a variable is not a number of seconds above 0.
    """
    found = []
    for name, default in (("VIAKIT_CUT_S", CUT_S), ("VIAKIT_SILENCE_S", SILENCE_S)):
        text = environment.get(name) or str(default)
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not value > 0:
            raise ValueError(f"{name} is {text!r}; expected seconds above 0, such as {default:g}")
        found.append(value)
    return found[0], found[1]


class Lost(ConnectionError):
    """The connection has ended, or has been silent for too long."""


class Silent(Lost):
    """The connection has been silent for too long. Its process has not ended."""


class Foreign(Lost):
    """Bytes that are no frames have come. *text*: the first of them."""

    def __init__(self, data: bytes) -> None:
        super().__init__(f"the peer is no agent of viakit: it sent {data!r}")
        text = data.decode(errors="replace").strip()
        unprintable = (i for i, c in enumerate(text) if not c.isprintable() and not c.isspace())
        self.text = text[: next(unprintable, None)].strip()  # a frame may follow the text


def _unblock(fd: int) -> None:
    fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_NONBLOCK)


class _Stream:
    """One stream: a local descriptor, and the bytes that wait to be written to it. It owns the descriptor."""

    def __init__(self, fd: int, reads: bool, writes: bool) -> None:
        self.fd = fd
        self.reads, self.writes = reads, writes  # the directions that are still open, seen from the mux
        self.credit = WINDOW
        self.waiting: deque[bytes] = deque()
        self.ending = False  # close the direction to the descriptor once all bytes are written
        self.pollable = _pollable(fd)
        # Another process may share a pipe's or a terminal's file description, so its flags stay as they are: after poll
        # one read, or one write of at most PIPE_BUF bytes, does not block.
        self.piece = select.PIPE_BUF
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            _unblock(fd)
            self.piece = _PIECE

    @property
    def open(self) -> bool:
        return self.reads or self.writes

    def end_writing(self) -> None:
        """Close the direction to the descriptor."""
        self.writes, self.ending = False, False
        self.waiting.clear()
        if self.reads:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fd)) as sock:
                sock.shutdown(socket.SHUT_WR)

    def end_reading(self) -> None:
        """Close the direction from the descriptor."""
        self.reads = False
        if self.writes:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self.fd)) as sock:
                sock.shutdown(socket.SHUT_RD)


def _pollable(fd: int) -> bool:
    """Return whether poll accepts the descriptor; regular files are always ready."""
    try:
        with select.epoll() as poll:
            poll.register(fd, select.EPOLLIN)
    except OSError:
        return False
    return True


def _readable(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


class Mux:
    """One end of the connection.

    Parameters
    ----------
    in_fd, out_fd : int
        Descriptors of the connection; may be equal. The owner closes them.
    handle : callable
        Called with (kind, process, number, payload) for each frame that is not of a stream.
    silence_s : float
        Time without any frame, after the first one, for which the connection still counts as alive.
    is_cut : callable, optional
        Returns whether the kernel of the other machine has ceased to acknowledge data. Called from *cut_s* seconds
        without any frame on; the connection is lost if it returns True.
    cut_s : float
    """

    def __init__(
        self,
        in_fd: int,
        out_fd: int,
        handle: Callable[[Kind, int, int, bytes], None],
        silence_s: float = SILENCE_S,
        is_cut: Callable[[], bool] | None = None,
        cut_s: float = CUT_S,
    ) -> None:
        self._is_cut, self._cut_s = is_cut, cut_s
        self._in, self._out, self._handle, self._silence_s = in_fd, out_fd, handle, silence_s
        for fd in (in_fd, out_fd):
            _unblock(fd)
        self._streams: dict[tuple[int, int], _Stream] = {}
        self._received = bytearray()
        self._outgoing: deque[bytes] = deque()
        self._n_outgoing = 0
        self._beaten = time.monotonic()
        self._heard: float | None = None  # when the latest frame came; the peer may take its time to start

    # ---- for the owner

    def add(self, ident: int, number: int, fd: int, *, reads: bool, writes: bool) -> None:
        """Add a stream. *reads*: pass on what the descriptor gives; *writes*: write to it what arrives."""
        self._streams[ident, number] = _Stream(fd, reads, writes)

    def send(self, kind: Kind, ident: int = 0, number: int = 0, payload: bytes = b"") -> None:
        """Queue a frame."""
        frame = _HEADER.pack(kind, ident, number, len(payload)) + payload
        self._outgoing.append(frame)
        self._n_outgoing += len(frame)

    def turn(self, others: dict[int, int], timeout_s: float) -> set[int]:
        """Wait for events at most *timeout_s* seconds and handle those of the streams.

        Parameters
        ----------
        others : dict
            Further descriptors to wait for, with their poll events.

        Returns
        -------
        set of int
            Those of *others* that are ready.

        Raises
        ------
        Lost
            If the connection has ended or is silent.
        """
        poll, by_fd, always = self._interest()
        for fd, events in others.items():
            poll.register(fd, events)
        ready = dict(poll.poll(0 if always else 1000 * min(timeout_s, BEAT_S, self._silence_left())))
        if self._in in ready:
            self._receive()
        for key, events in [(key, ready[fd]) for fd, key in by_fd.items() if fd in ready] + always:
            stream = self._streams.get(key)
            if stream is None:
                continue
            if stream.writes and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                self._deliver(key, stream)
            if stream.reads and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                self._collect(key, stream)
        self._beat()
        self._flush()
        return {fd for fd in others if fd in ready}

    def collect(self, ident: int) -> bool:
        """Pass on what the streams of a process hold already. Returns whether nothing more is to be read at once."""
        for key in [key for key, stream in self._streams.items() if key[0] == ident and stream.reads]:
            while (stream := self._streams.get(key)) is not None and stream.reads and _readable(stream.fd):
                if stream.credit <= 0:
                    return False
                self._collect(key, stream)
        return True

    def delivered(self, ident: int) -> bool:
        """Return whether all bytes that arrived for a process have been written to its descriptors."""
        return not any(stream.waiting for key, stream in self._streams.items() if key[0] == ident)

    def drain(self, deadline: float) -> None:
        """Write all queued frames, until *deadline* at the latest."""
        while self._outgoing and time.monotonic() < deadline:
            poll = select.poll()
            poll.register(self._out, select.POLLOUT)
            poll.poll(50)
            self._flush()

    def close_process(self, ident: int) -> None:
        """Close all streams of a process, unsent bytes included."""
        for key in [key for key in self._streams if key[0] == ident]:
            os.close(self._streams.pop(key).fd)

    def close(self) -> None:
        """Close all streams."""
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                os.close(stream.fd)
        self._streams.clear()

    # ---- the loop

    def _interest(self) -> tuple[select.poll, dict[int, tuple[int, int]], list[tuple[tuple[int, int], int]]]:
        """Return what to wait for, the streams by descriptor, and those whose descriptors are always ready."""
        poll = select.poll()
        poll.register(self._in, select.POLLIN)
        if self._outgoing:
            poll.register(self._out, select.POLLOUT | (select.POLLIN if self._out == self._in else 0))
        by_fd: dict[int, tuple[int, int]] = {}
        always: list[tuple[tuple[int, int], int]] = []
        for key, stream in self._streams.items():
            events = select.POLLIN * (stream.reads and stream.credit > 0 and self._n_outgoing < _PENDING)
            events |= select.POLLOUT * (stream.writes and bool(stream.waiting or stream.ending))
            if events and stream.pollable:
                poll.register(stream.fd, events)
                by_fd[stream.fd] = key
            elif events:
                always.append((key, events))
        return poll, by_fd, always

    def _silence_left(self) -> float:
        """Return the seconds until silence ends the connection."""
        if self._heard is None:
            return BEAT_S
        return max(0.0, self._heard + self._silence_s - time.monotonic())

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten >= BEAT_S:
            if now - self._beaten > self._silence_s / 2 and self._heard is not None:
                self._heard = now  # this process stood still, so it cannot judge the other one
            self._beaten = now
            self.send(Kind.BEAT)
        if self._heard is None:
            return
        if now - self._heard >= self._silence_s:
            raise Silent(f"the connection has been silent for {self._silence_s:g} s")
        if now - self._heard > self._cut_s and self._is_cut is not None and self._is_cut():
            raise Silent(f"the connection has been silent for {self._cut_s:g} s, and the host acknowledges no packet")

    def _flush(self) -> None:
        """Write queued frames as far as the connection takes them."""
        while self._outgoing:
            frame = self._outgoing[0]
            try:
                n = os.write(self._out, frame[:_MAX_FRAME])
            except BlockingIOError:
                return
            except OSError as error:
                raise Lost(f"the connection has ended ({error.strerror})") from error
            self._n_outgoing -= n
            if n == len(frame):
                self._outgoing.popleft()
            else:
                self._outgoing[0] = frame[n:]

    def _receive(self) -> None:
        """Read from the connection, and handle all whole frames."""
        try:
            data = os.read(self._in, 1 << 18)
        except BlockingIOError:
            return
        except OSError as error:
            raise Lost(f"the connection has ended ({error.strerror})") from error
        if not data:
            raise Lost("the connection has ended")
        self._heard = time.monotonic()
        self._received += data
        begin = 0
        while len(self._received) - begin >= _HEADER.size:
            kind, ident, number, length = _HEADER.unpack_from(self._received, begin)
            if length > _MAX_FRAME or kind not in Kind.__members__.values():
                raise Foreign(bytes(self._received[begin : begin + 60]))
            if len(self._received) - begin < _HEADER.size + length:
                break
            begin += _HEADER.size
            payload = bytes(self._received[begin : begin + length])
            begin += length
            self._frame(Kind(kind), ident, number, payload)
        del self._received[:begin]

    def _frame(self, kind: Kind, ident: int, number: int, payload: bytes) -> None:
        stream = self._streams.get((ident, number))
        if kind in (Kind.DATA, Kind.END, Kind.GRANT, Kind.CLOSED):
            if stream is None:
                return  # it has been closed meanwhile
            if kind == Kind.DATA and stream.writes:
                stream.waiting.append(payload)
            elif kind == Kind.END:
                stream.ending = True
            elif kind == Kind.GRANT:
                stream.credit += int.from_bytes(payload, "big")
            elif kind == Kind.CLOSED:
                stream.end_reading()
                self._forget((ident, number))
        elif kind != Kind.BEAT:
            self._handle(kind, ident, number, payload)

    def _deliver(self, key: tuple[int, int], stream: _Stream) -> None:
        """Write waiting bytes to the descriptor, and grant the sender as many."""
        done = 0
        try:
            if stream.waiting:
                piece = stream.waiting[0]
                done = os.write(stream.fd, piece[: stream.piece])
                if done == len(piece):
                    stream.waiting.popleft()
                else:
                    stream.waiting[0] = piece[done:]
        except BlockingIOError:
            pass
        except OSError:
            stream.end_writing()
            self.send(Kind.CLOSED, *key)
        if done:
            self.send(Kind.GRANT, *key, done.to_bytes(8, "big"))
        if stream.ending and not stream.waiting:
            stream.end_writing()
        self._forget(key)

    def _collect(self, key: tuple[int, int], stream: _Stream) -> None:
        """Read from the descriptor and pass it on."""
        try:
            data = os.read(stream.fd, min(_PIECE, max(stream.credit, 1)))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno == errno.EINTR:
                return
            data = b""
        if data:
            stream.credit -= len(data)
            self.send(Kind.DATA, *key, data)
        else:
            self.send(Kind.END, *key)
            stream.end_reading()
            self._forget(key)

    def _forget(self, key: tuple[int, int]) -> None:
        """Close a stream of which both directions have ended."""
        stream = self._streams.get(key)
        if stream is not None and not stream.open:
            os.close(stream.fd)
            del self._streams[key]
