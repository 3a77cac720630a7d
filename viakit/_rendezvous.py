"""The exchange by which the ranks of a job learn of each other: an allgather of small blobs through one meeting point.

Each rank has one stream connection to the meeting point: a socket pair that the launcher made (``fd:N``), or a
connection to whoever listens (``unix:@NAME``, ``tcp:HOST:PORT``). Little-endian, in words of 32 bits:

=========================  ===================================================================================
rank, once, if it listens  ``VKH1``, rank, number of ranks, length of the job's token, the token
rank, per exchange         ``VKX1``, length of its blob, the blob
rank, before it goes       ``VKL1``, 12, why, and when in 64 bits: see :mod:`viakit._leaving`; it may go without, too
meeting point, then        0, number of ranks, then of each rank, in order: length of its blob, the blob
meeting point, on failure  1, length of a text, the text (UTF-8): why there will be no answer
=========================  ===================================================================================

An answer comes when all ranks have asked. It is simple enough to be spoken from C in fifty lines.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from viakit._leaving import CAUSED, Note
from viakit._words import counted

__all__ = ["Client", "Meeting", "RendezvousError", "connect", "listen_for"]

HELLO, ASK, LEAVE = b"VKH1", b"VKX1", b"VKL1"
MAX_BLOB = 1 << 24
_WORD = struct.Struct("<I")
_NOTE = struct.Struct("<IQ")
_SLICE_S = 0.05
_LONGEST_S = 3600.0  # that one try to connect may take; sockets know no infinite time
_FLUSH_S = 1.5
_GONE = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET)


class RendezvousError(RuntimeError):
    """The ranks of a job did not all find each other."""


class Client:
    """One rank's connection to the meeting point.

    Parameters
    ----------
    connection : socket.socket
        A connected stream socket; it is closed by :meth:`close`.
    n_ranks : int
        How many blobs an answer has.
    """

    def __init__(self, connection: socket.socket, n_ranks: int) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._n_ranks = n_ranks

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """Give `blob` and return the blobs of all ranks, in their order.

        Raises
        ------
        RendezvousError
            If a rank is missing after `timeout` seconds, or has ended, or the launcher has.
        """
        deadline = time.monotonic() + timeout
        self._send(ASK + _WORD.pack(len(blob)) + blob, deadline, timeout)
        status, n = self._word(deadline, timeout), self._word(deadline, timeout)
        if status != 0:
            raise RendezvousError(self._receive(min(n, 1 << 16), deadline, timeout).decode(errors="replace"))
        if n != self._n_ranks:
            raise RendezvousError(f"the launcher speaks of {counted(n, 'rank')}, this one was told of {self._n_ranks}")
        return [self._receive(self._word(deadline, timeout), deadline, timeout) for _ in range(n)]

    def note(self, why: int, when_ns: int) -> None:
        """Say that this rank goes, and why; a launcher that is gone, or does not listen, need not know."""
        with contextlib.suppress(OSError):  # also if a blob fills the socket: nothing may come amidst it
            self._socket.send(LEAVE + _WORD.pack(_NOTE.size) + _NOTE.pack(why, when_ns), socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Let go of the connection; the other ranks' exchanges fail from now on."""
        self._socket.close()

    def _wait(self, event: int, deadline: float, timeout: float) -> None:
        """Wait until the socket can be read or written. Interruptible (Ctrl-C)."""
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        while not poll.poll(1000 * _SLICE_S):
            if time.monotonic() > deadline:
                raise RendezvousError(
                    f"not all of the {self._n_ranks} ranks came to the exchange within {timeout:g} s: "
                    "each has to call it, and none may have ended before"
                )

    def _send(self, data: bytes, deadline: float, timeout: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[self._socket.send(view, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLOUT, deadline, timeout)
            except OSError as error:
                raise RendezvousError(f"the meeting point of this job is gone ({error.strerror})") from error

    def _receive(self, n: int, deadline: float, timeout: float) -> bytes:
        data = bytearray()
        while len(data) < n:
            try:
                piece = self._socket.recv(min(n - len(data), 1 << 20))
            except BlockingIOError:
                self._wait(select.POLLIN, deadline, timeout)
                continue
            except OSError:
                piece = b""
            if not piece:
                raise RendezvousError("the meeting point of this job is gone: its launcher, or rank 0, has ended")
            data += piece
        return bytes(data)

    def _word(self, deadline: float, timeout: float) -> int:
        return int(_WORD.unpack(self._receive(4, deadline, timeout))[0])


class _Guest:
    """What the meeting point knows of one rank."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.received = bytearray()
        self.asked: bytes | None = None
        self.to_send = bytearray()
        self.open = True


class Meeting:
    """The meeting point's side: sockets in, answers out, never blocking, so that it fits into anybody's loop.

    Parameters
    ----------
    n_ranks : int
        How many ranks will come.
    """

    def __init__(self, n_ranks: int) -> None:
        self._guests: dict[int, _Guest] = {}
        self._n_ranks = n_ranks
        self._failure = ""
        self.notes: dict[int, Note] = {}  # of the ranks that have said that they go: why, and when

    def admit(self, rank: int, connection: socket.socket) -> None:
        """Take the connection of a rank; it belongs to the meeting point from now on."""
        self._guests[rank] = _Guest(connection)
        if self._failure:
            self._refuse(self._guests[rank])

    def interest(self) -> dict[int, int]:
        """Descriptors and the poll events that are waited for."""
        return {
            guest.socket.fileno(): select.POLLIN | (select.POLLOUT if guest.to_send else 0)
            for guest in self._guests.values()
            if guest.open
        }

    def handle(self, ready: set[int]) -> None:
        """Read and write what can be; answer once everybody has asked."""
        for rank, guest in self._guests.items():
            if guest.open and guest.socket.fileno() in ready:
                self._read(rank, guest)
        if len(self._guests) == self._n_ranks and all(g.asked is not None for g in self._guests.values()):
            blobs = [self._guests[rank].asked or b"" for rank in range(self._n_ranks)]
            answer = _WORD.pack(0) + _WORD.pack(len(blobs)) + b"".join(_WORD.pack(len(b)) + b for b in blobs)
            for guest in self._guests.values():
                guest.asked = None
                guest.to_send += answer
        for guest in self._guests.values():
            self._write(guest)

    def fail(self, why: str) -> None:
        """No exchange will succeed any more: tell those who wait and those who will ask."""
        self._failure = self._failure or why
        for guest in self._guests.values():
            if guest.asked is not None:
                self._refuse(guest)

    def flush(self, timeout: float) -> None:
        """Send what is still to be sent: rank 0 may have its answer and end before the others have read theirs."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            poll = select.poll()
            waiting = [guest for guest in self._guests.values() if guest.open and guest.to_send]
            if not waiting:
                return
            for guest in waiting:
                poll.register(guest.socket.fileno(), select.POLLOUT)
            poll.poll(1000 * _SLICE_S)
            for guest in waiting:
                self._write(guest)

    def close(self) -> None:
        """Close all connections."""
        for guest in self._guests.values():
            guest.socket.close()
            guest.open = False

    def _refuse(self, guest: _Guest) -> None:
        text = self._failure.encode()
        guest.asked = None
        guest.to_send += _WORD.pack(1) + _WORD.pack(len(text)) + text
        self._write(guest)

    def _read(self, rank: int, guest: _Guest) -> None:
        try:
            data = guest.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        guest.received += data
        if not data:
            guest.open = False
            if guest.asked is not None or any(g.asked is not None for g in self._guests.values()):
                self.fail(f"rank {rank} left before all had met")
            return
        while len(guest.received) >= 8:
            word, (n,) = bytes(guest.received[:4]), _WORD.unpack_from(guest.received, 4)
            if n > MAX_BLOB or not (word == ASK or (word == LEAVE and n == _NOTE.size)):
                guest.open = False
                guest.socket.close()
                self.fail(f"rank {rank} speaks another protocol: is its viakit of another version?")
                return
            if len(guest.received) < 8 + n or (word == ASK and guest.asked is not None):
                return
            content = bytes(guest.received[8 : 8 + n])
            del guest.received[: 8 + n]
            if word == LEAVE:
                why, when_ns = _NOTE.unpack(content)
                self.notes.setdefault(rank, Note(min(why, CAUSED), when_ns))
                continue
            guest.asked = content
            gone = [r for r, g in self._guests.items() if not g.open]
            if gone and not self._failure:
                self._failure = f"rank {gone[0]} has left the job"
            if self._failure:
                self._refuse(guest)

    def _write(self, guest: _Guest) -> None:
        while guest.to_send and guest.open:
            try:
                n = guest.socket.send(guest.to_send, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                guest.open = False
                return
            del guest.to_send[:n]


# --- Where there is no launcher of ours: rank 0 listens --------------------------------------------------------------


def unix_name(job: str) -> str:
    """The abstract Unix address on which rank 0 of a job meets the others of its user on this host."""
    return f"unix:@viakit-{os.getuid()}-{hashlib.sha256(job.encode()).hexdigest()[:24]}"


def _parse(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest.startswith("@"):
        return socket.AF_UNIX, "\0" + rest[1:]
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdigit() and 0 < int(port) < 65536:
        host = host.strip("[]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise RendezvousError(
        f"VIAKIT_RENDEZVOUS is {address!r}; right would be fd:N, unix:@NAME or tcp:HOST:PORT of rank 0"
    )


def _same_user(connection: socket.socket) -> bool:
    """A stranger's process may listen at, or connect to, any abstract address."""
    if connection.family != socket.AF_UNIX:
        return True
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid in (os.getuid(), os.geteuid())


def listen_for(address: str, n_ranks: int, token: bytes) -> Callable[[], None]:
    """In rank 0: hold the meeting at `address` in a thread of its own. Returns what ends it.

    Raises
    ------
    RendezvousError
        If the address cannot be used.
    """
    family, where = _parse(address)
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if family != socket.AF_UNIX:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(where)
        server.listen(n_ranks)
    except OSError as error:
        server.close()
        raise RendezvousError(
            f"rank 0 cannot hold the meeting at {address}: {error.strerror}; set VIAKIT_RENDEZVOUS=tcp:HOST:PORT to "
            "an address of its host that is free"
        ) from error
    server.setblocking(False)
    stop_read, stop_write = os.pipe2(os.O_CLOEXEC)
    meeting = Meeting(n_ranks)
    thread = threading.Thread(
        target=_hold, args=(server, meeting, n_ranks, token, stop_read), name="viakit rendezvous", daemon=True
    )
    thread.start()

    def stop() -> None:
        with contextlib.suppress(OSError):
            os.write(stop_write, b"x")
        thread.join(2.0)
        for fd in (stop_read, stop_write):
            with contextlib.suppress(OSError):
                os.close(fd)

    return stop


def _hold(server: socket.socket, meeting: Meeting, n_ranks: int, token: bytes, stop: int) -> None:
    """The thread of :func:`listen_for`."""
    arriving: dict[int, tuple[socket.socket, bytearray]] = {}
    try:
        while True:
            poll = select.poll()
            wanted = {server.fileno(): select.POLLIN, stop: select.POLLIN, **meeting.interest()}
            wanted |= dict.fromkeys(arriving, select.POLLIN)
            for fd, events in wanted.items():
                poll.register(fd, events)
            ready = {fd for fd, _ in poll.poll()}
            if stop in ready:
                meeting.flush(_FLUSH_S)
                return
            if server.fileno() in ready:
                with contextlib.suppress(OSError):
                    connection, _ = server.accept()
                    if _same_user(connection) and len(arriving) < 4 * n_ranks:
                        connection.setblocking(False)
                        arriving[connection.fileno()] = (connection, bytearray())
                    else:
                        connection.close()
            for fd in ready & set(arriving):
                _welcome(fd, arriving, meeting, n_ranks, token)
            meeting.handle(ready)
    finally:
        server.close()
        meeting.close()
        for connection, _ in arriving.values():
            connection.close()


def _welcome(
    fd: int, arriving: dict[int, tuple[socket.socket, bytearray]], meeting: Meeting, n_ranks: int, token: bytes
) -> None:
    """Read a newcomer's HELLO; who does not say it rightly is shown out."""
    connection, data = arriving[fd]
    want = 16 + len(token)
    try:
        piece = connection.recv(want - len(data))
    except BlockingIOError:
        return
    except OSError:
        piece = b""
    data += piece
    if piece and len(data) < want:
        return
    del arriving[fd]
    rank, size, length = struct.unpack_from("<3I", data, 4) if len(data) == want else (n_ranks, 0, 0)
    if data[:4] != HELLO or rank >= n_ranks or length != len(token) or data[16:] != token:
        connection.close()
        return
    meeting.admit(rank, connection)
    if size != n_ranks:
        meeting.fail(f"rank {rank} was started as one of {size}, rank 0 as one of {n_ranks}")


def connect(address: str, rank: int, n_ranks: int, token: bytes, timeout: float) -> Client:
    """Come to the meeting at `address`, which may not be held yet.

    Raises
    ------
    RendezvousError
        If nobody holds it within `timeout` seconds.
    """
    if address.startswith("fd:"):
        try:
            return Client(socket.socket(fileno=os.dup(int(address[3:]))), n_ranks)
        except (ValueError, OSError) as error:
            raise RendezvousError(
                f"VIAKIT_RENDEZVOUS is {address}, but that descriptor is not open here: a program between `viakit run` "
                "and this one has closed it (Python's subprocess does, unless told by pass_fds)"
            ) from error
    family, where = _parse(address)
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(min(max(_SLICE_S, deadline - time.monotonic()), _LONGEST_S))
            connection.connect(where)
            if not _same_user(connection):
                raise RendezvousError(f"another user's process listens at {address}")
            connection.sendall(HELLO + struct.pack("<3I", rank, n_ranks, len(token)) + token)
            return Client(connection, n_ranks)
        except OSError as error:
            connection.close()
            if (error.errno not in _GONE and not isinstance(error, TimeoutError)) or time.monotonic() > deadline:
                raise RendezvousError(
                    f"rank {rank} finds nobody at {address} after {timeout:g} s ({error}): is rank 0 on another host? "
                    "Then set VIAKIT_RENDEZVOUS=tcp:HOST:PORT, an address of rank 0's host"
                ) from error
            select.select([], [], [], _SLICE_S)  # until rank 0 listens; there is nothing to be woken by
        except BaseException:
            connection.close()
            raise
