"""Exchange of addresses between the ranks of a job: an allgather of small blobs through one meeting point.

Each rank has one stream connection to the meeting point: a socket pair made by the launcher (``fd:N``), or a
connection to rank 0, which listens (``unix:@NAME``, ``unix:/PATH``, ``tcp:HOST:PORT``). A connection to rank 0 begins
with a mutual proof of the job's secret (:mod:`viakit.launch.handshake`). Then, little-endian, in words of 32 bits:

=========================  ===================================================================================
rank, per exchange         ``VKX1``, length of its blob, the blob
rank, before it ends       ``VKL1``, 12, why, and when in 64 bits: see :mod:`viakit.launch.leaving`; optional
meeting point, then        0, number of ranks, then of each rank, in order: length of its blob, the blob
meeting point, on failure  1, length of a text, the text (UTF-8): why there is no reply
=========================  ===================================================================================

The meeting point replies when all ranks have sent their blobs. A client in C takes fifty lines.

Over TCP the first blobs are nonces, and each later blob ends with a keyed tag (:class:`Sealed`). The ranks make and
check the tags. The meeting point passes them on as a part of the blob.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import os
import secrets
import select
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable

from viakit.base import secret as _secret
from viakit.base.words import counted
from viakit.launch.handshake import Admitted, Reception, Refused, introduce
from viakit.launch.leaving import CAUSED, Note

__all__ = ["Client", "Meeting", "RendezvousError", "Sealed", "connect", "listen_for", "open_inherited"]

REQUEST, LEAVE = b"VKX1", b"VKL1"
MAX_BLOB = 1 << 24
_WORD = struct.Struct("<I")
_NOTE = struct.Struct("<IQ")
_SLICE_S = 0.05
_LONGEST_S = 3600.0  # limit of one attempt to connect; settimeout accepts no infinity
_FLUSH_S = 1.5
_TAG, _NONCE = 16, 16
_REFUSALS = 5  # of a rank's proof in succession; then the secrets differ
_GONE = (errno.ECONNREFUSED, errno.ENOENT, errno.ECONNRESET, errno.EPIPE)


class RendezvousError(RuntimeError):
    """Not all ranks of a job could be connected."""


class Client:
    """Connection of one rank to the meeting point.

    Parameters
    ----------
    connection : socket.socket
        A connected stream socket; it is closed by :meth:`close`.
    n_ranks : int
        Number of blobs in a reply.
    """

    def __init__(self, connection: socket.socket, n_ranks: int) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._n_ranks = n_ranks

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """Send `blob` and return the blobs of all ranks, in their order.

        Raises
        ------
        RendezvousError
            If a rank is missing after `timeout` seconds, or if a rank or the launcher has ended.
        """
        deadline = time.monotonic() + timeout
        self._send(REQUEST + _WORD.pack(len(blob)) + blob, deadline, timeout)
        status, n = self._word(deadline, timeout), self._word(deadline, timeout)
        if status != 0:
            raise RendezvousError(self._receive(min(n, 1 << 16), deadline, timeout).decode(errors="replace"))
        if n != self._n_ranks:
            raise RendezvousError(
                f"the launcher reports {counted(n, 'rank')}, but this rank was started with {self._n_ranks}"
            )
        return [self._receive(self._word(deadline, timeout), deadline, timeout) for _ in range(n)]

    def note(self, why: int, when_ns: int) -> None:
        """Notify the launcher that this rank ends, and why. Errors are ignored: the launcher may have ended."""
        with contextlib.suppress(OSError):  # also if a blob fills the socket, because the note must not split the blob
            self._socket.send(LEAVE + _WORD.pack(_NOTE.size) + _NOTE.pack(why, when_ns), socket.MSG_NOSIGNAL)

    def close(self) -> None:
        """Close the connection. Exchanges of the other ranks fail from now on."""
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


class _Member:
    """State of one rank at the meeting point."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setblocking(False)
        self.received = bytearray()
        self.request: bytes | None = None  # the rank's blob, until the reply
        self.to_send = bytearray()
        self.open = True


class Meeting:
    """Meeting point of an exchange. It never blocks, so that any event loop can run it.

    Parameters
    ----------
    n_ranks : int
        Number of ranks.
    own_clock : bool
        Date the ranks' notes by this process's clock, because theirs are of other machines.
    """

    def __init__(self, n_ranks: int, own_clock: bool = False) -> None:
        self._members: dict[int, _Member] = {}
        self._n_ranks, self._own_clock = n_ranks, own_clock
        self._failure = ""
        self.notes: dict[int, Note] = {}  # by rank: notes of ranks that end

    def admit(self, rank: int | None, connection: socket.socket) -> None:
        """Add a rank's connection, which the meeting point then owns. None: a rank without a place."""
        if rank is None:
            rank = -1 - len(self._members)  # the meeting has failed, and this rank gets the reason, too
        self._members[rank] = _Member(connection)
        if self._failure:
            self._refuse(self._members[rank])

    def has(self, rank: int) -> bool:
        """Return whether a rank is connected."""
        return rank in self._members and self._members[rank].open

    def interest(self) -> dict[int, int]:
        """Return the descriptors and the poll events to wait for."""
        return {
            member.socket.fileno(): select.POLLIN | (select.POLLOUT if member.to_send else 0)
            for member in self._members.values()
            if member.open
        }

    def handle(self, ready: set[int]) -> None:
        """Read from the `ready` descriptors, reply if all ranks have sent their blobs, and write what is pending."""
        for rank, member in self._members.items():
            if member.open and member.socket.fileno() in ready:
                self._read(rank, member)
        if len(self._members) == self._n_ranks and all(one.request is not None for one in self._members.values()):
            blobs = [self._members[rank].request or b"" for rank in range(self._n_ranks)]
            answer = _WORD.pack(0) + _WORD.pack(len(blobs)) + b"".join(_WORD.pack(len(b)) + b for b in blobs)
            for member in self._members.values():
                member.request = None
                member.to_send += answer
        for member in self._members.values():
            self._write(member)

    def fail(self, why: str) -> None:
        """Make all exchanges fail, those in progress and later ones, with `why` as the reason."""
        self._failure = self._failure or why
        for member in self._members.values():
            if member.request is not None:
                self._refuse(member)

    def flush(self, timeout: float) -> None:
        """Send pending replies. Rank 0 may have its own reply and end before the others have read theirs."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            poll = select.poll()
            waiting = [member for member in self._members.values() if member.open and member.to_send]
            if not waiting:
                return
            for member in waiting:
                poll.register(member.socket.fileno(), select.POLLOUT)
            poll.poll(1000 * _SLICE_S)
            for member in waiting:
                self._write(member)

    def close(self) -> None:
        """Close all connections."""
        for member in self._members.values():
            member.socket.close()
            member.open = False

    def _refuse(self, member: _Member) -> None:
        text = self._failure.encode()
        member.request = None
        member.to_send += _WORD.pack(1) + _WORD.pack(len(text)) + text
        self._write(member)

    def _read(self, rank: int, member: _Member) -> None:
        try:
            data = member.socket.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        member.received += data
        if not data:
            member.open = False
            if member.request is not None or any(one.request is not None for one in self._members.values()):
                self.fail(f"rank {rank} left before all had met")
            return
        while len(member.received) >= 8:
            word, (n,) = bytes(member.received[:4]), _WORD.unpack_from(member.received, 4)
            if n > MAX_BLOB or not (word == REQUEST or (word == LEAVE and n == _NOTE.size)):
                member.open = False
                member.socket.close()
                self.fail(f"rank {rank} speaks another protocol: is its viakit of another version?")
                return
            if len(member.received) < 8 + n or (word == REQUEST and member.request is not None):
                return
            content = bytes(member.received[8 : 8 + n])
            del member.received[: 8 + n]
            if word == LEAVE:
                why, when_ns = _NOTE.unpack(content)
                self.notes.setdefault(rank, Note(min(why, CAUSED), time.monotonic_ns() if self._own_clock else when_ns))
                continue
            member.request = content
            gone = [r for r, g in self._members.items() if not g.open]
            if gone and not self._failure:
                self._failure = f"rank {gone[0]} has left the job"
            if self._failure:
                self._refuse(member)

    def _write(self, member: _Member) -> None:
        while member.to_send and member.open:
            try:
                n = member.socket.send(member.to_send, socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            except OSError:
                member.open = False
                return
            del member.to_send[:n]


class Sealed:
    """An exchange whose blobs carry a keyed tag, over a network to which other processes can write.

    First the ranks exchange random numbers (nonces), without tags. The key of the tags is derived from the secret, the
    number of ranks and all nonces. So the tags of an earlier job are not valid in this one, even with the same secret.
    Each rank requires that its own nonce and its own blobs return unchanged. ``csrc/bip/exchange.c`` does the same.

    Parameters
    ----------
    exchange : callable
        The exchange underneath, as :meth:`Client.exchange`.
    rank, n_ranks : int
        This rank, and how many there are.
    secret : bytes
        The job's secret, 32 bytes.
    """

    def __init__(self, exchange: Callable[[bytes, float], list[bytes]], rank: int, n_ranks: int, secret: bytes) -> None:
        self._exchange, self._rank, self._n_ranks, self._secret = exchange, rank, n_ranks, secret
        self._key: bytes | None = None
        self._number = 0

    def _agree(self, timeout: float) -> bytes:
        """Exchange the nonces and return the key."""
        mine = secrets.token_bytes(_NONCE)
        nonces = self._exchange(mine, timeout)
        self._require_own(nonces, mine)
        for rank, nonce in enumerate(nonces):
            if len(nonce) != _NONCE:
                raise RendezvousError(
                    f"rank {rank} began the exchange with {counted(len(nonce), 'byte')}, expected {_NONCE}: it has "
                    "another version of viakit, or it was given no secret; set VIAKIT_SECRET on all ranks"
                )
        return _secret.derive(self._secret, "viakit exchange", _WORD.pack(self._n_ranks) + b"".join(nonces))

    def _require_own(self, blobs: list[bytes], mine: bytes) -> None:
        if len(blobs) != self._n_ranks or blobs[self._rank] != mine:
            raise RendezvousError(
                f"the exchange did not return this rank's own blob unchanged (rank {self._rank} of {self._n_ranks}): "
                "it was changed or forged on its way"
            )

    def _tag(self, key: bytes, rank: int, blob: bytes) -> bytes:
        return hashlib.blake2s(struct.pack("<2I", self._number, rank) + blob, key=key).digest()[:_TAG]

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """Exchange data as :meth:`Client.exchange` does. Raises RendezvousError also if a blob was changed."""
        deadline = time.monotonic() + timeout
        if self._key is None:
            self._key = self._agree(timeout)
        mine = blob + self._tag(self._key, self._rank, blob)
        blobs = self._exchange(mine, max(0.0, deadline - time.monotonic()))
        self._require_own(blobs, mine)
        for rank, sealed in enumerate(blobs):
            if not hmac.compare_digest(sealed[-_TAG:], self._tag(self._key, rank, sealed[:-_TAG])):
                raise RendezvousError(
                    f"what rank {rank} gave to the exchange was changed or forged on its way, or it has another "
                    "secret or another version of viakit"
                )
        self._number += 1
        return [sealed[:-_TAG] for sealed in blobs]


# --- Without viakit's launcher: rank 0 listens ------------------------------------------------------------------------


def unix_name(job: str) -> str:
    """Return the abstract Unix address at which rank 0 of a job listens for the ranks of its user on this host."""
    return f"unix:@viakit-{os.getuid()}-{hashlib.sha256(job.encode()).hexdigest()[:24]}"


def _parse(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    kind, _, rest = address.partition(":")
    if kind == "unix" and rest.startswith("@") and len(rest) > 1:
        return socket.AF_UNIX, "\0" + rest[1:]
    if kind == "unix" and rest.startswith("/"):
        return socket.AF_UNIX, rest
    host, _, port = rest.rpartition(":")
    if kind == "tcp" and host and port.isdigit() and 0 < int(port) < 65536:
        host = host.strip("[]")
        return (socket.AF_INET6 if ":" in host else socket.AF_INET), (host, int(port))
    raise RendezvousError(
        f"VIAKIT_RENDEZVOUS is {address!r}; expected fd:N, unix:@NAME, unix:/PATH or tcp:HOST:PORT of rank 0"
    )


def is_unix(address: str) -> bool:
    """Return whether an address is a Unix socket's, where the kernel reports the user of the other end."""
    return _parse(address)[0] == socket.AF_UNIX


def _bound(family: socket.AddressFamily, where: str | tuple[str, int], address: str, n_ranks: int) -> socket.socket:
    """Return a socket that listens at `where`. Raises RendezvousError if the address cannot be used."""
    server = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        if family != socket.AF_UNIX:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        elif isinstance(where, str) and where.startswith("/"):
            _remove_dead_socket(where)
        server.bind(where)
        server.listen(max(2 * n_ranks, 128))
    except OSError as error:
        server.close()
        raise RendezvousError(
            f"rank 0 cannot hold the meeting at {address}: {error.strerror}; set VIAKIT_RENDEZVOUS=tcp:HOST:PORT to "
            "an address of its host that is free"
        ) from error
    return server


def listen_for(
    address: str, n_ranks: int, secret: bytes, gives: bool = False, server: socket.socket | None = None
) -> Callable[[], None]:
    """Hold the meeting at `address` in a thread of rank 0.

    Parameters
    ----------
    address : str
        ``unix:@NAME``, ``unix:/PATH`` or ``tcp:HOST:PORT``.
    n_ranks : int
        Number of ranks.
    secret : bytes
        The job's secret.
    gives : bool
        Whether to send the secret to callers of this user (Unix addresses only). Otherwise callers must know it.
    server : socket, optional
        Socket that listens at the address already; it is closed at the end.

    Returns
    -------
    callable
        Ends the meeting. A second call does nothing.

    Raises
    ------
    RendezvousError
        If the address cannot be used.
    """
    family, where = _parse(address)
    if gives and (family != socket.AF_UNIX or not _secret.users_can_be_told_apart()):
        raise RendezvousError(
            f"rank 0 cannot hold the meeting at {address}: in this user namespace the kernel reports one number for "
            f"several users, so other users' processes cannot be recognised. Give the job a secret: set\n"
            f"{_secret.HOW_TO_SET}"
        )
    server = server or _bound(family, where, address, n_ranks)
    stop_read, stop_write = os.pipe2(os.O_CLOEXEC)
    meeting, reception = Meeting(n_ranks), Reception(server, secret, gives=gives)
    thread = threading.Thread(
        target=_hold, args=(reception, meeting, n_ranks, stop_read), name="viakit rendezvous", daemon=True
    )
    thread.start()
    ending, pipe = threading.Lock(), [stop_read, stop_write]

    def stop() -> None:
        with ending:
            if not pipe:
                return  # In a second call the numbers may be those of other files.
            with contextlib.suppress(OSError):
                os.write(stop_write, b"x")
            thread.join(2.0)
            while pipe:
                with contextlib.suppress(OSError):
                    os.close(pipe.pop())
        if isinstance(where, str) and where.startswith("/"):
            with contextlib.suppress(OSError):
                os.unlink(where)

    return stop


def _remove_dead_socket(path: str) -> None:
    """Remove a socket file of this user at which no process listens, because its job was killed."""
    with contextlib.suppress(OSError):
        about = os.lstat(path)
        if not stat.S_ISSOCK(about.st_mode) or about.st_uid != os.geteuid():
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.setblocking(False)  # A stopped listener with a full backlog would never reply.
            try:
                probe.connect(path)
            except BlockingIOError:
                return  # The backlog is full, so a process listens.
            except ConnectionRefusedError:
                os.unlink(path)


def _hold(reception: Reception, meeting: Meeting, n_ranks: int, stop: int) -> None:
    """Run the thread of :func:`listen_for`."""
    try:
        while True:
            poll = select.poll()
            for fd, events in {stop: select.POLLIN, **meeting.interest(), **reception.interest()}.items():
                poll.register(fd, events)
            ready = {fd for fd, _ in poll.poll(reception.timeout_ms())}
            if stop in ready:
                meeting.flush(_FLUSH_S)
                return
            meeting.handle(ready)  # before new connections reuse descriptor numbers
            for caller in reception.handle(ready):
                _admit(caller, meeting, n_ranks)
    finally:
        reception.close()
        meeting.close()


def _admit(caller: Admitted, meeting: Meeting, n_ranks: int) -> None:
    """Admit a caller that knows the secret to the place of its rank, unless that is taken."""
    why = ""
    if caller.n_ranks != n_ranks:
        why = f"rank {caller.rank} was started as one of {caller.n_ranks}, rank 0 as one of {n_ranks}"
    elif caller.rank >= n_ranks or meeting.has(caller.rank):
        why = f"two processes were started as rank {caller.rank} of {counted(n_ranks, 'rank')}"
    if why:
        meeting.fail(why)
    meeting.admit(caller.rank if caller.rank < n_ranks and not meeting.has(caller.rank) else None, caller.socket)


def open_inherited(address: str, n_ranks: int) -> Client:
    """Use the connection ``fd:N``, inherited from the launcher.

    Raises
    ------
    RendezvousError
        If the descriptor is not open.
    """
    try:
        return Client(socket.socket(fileno=os.dup(int(address[3:]))), n_ranks)
    except (ValueError, OSError) as error:
        raise RendezvousError(
            f"VIAKIT_RENDEZVOUS is {address}, but that descriptor is not open here: a program between `viakit run` "
            "and this one has closed it (Python's subprocess does, unless pass_fds names it)"
        ) from error


def connect(
    address: str, rank: int, n_ranks: int, secret: bytes | None, timeout: float, takes: bool = False
) -> tuple[Client, bytes]:
    """Connect to the meeting at `address`, which may not have begun yet, and prove the job's secret there.

    Parameters
    ----------
    address : str
        As for :func:`listen_for`.
    rank, n_ranks : int
        This rank, and the number of ranks.
    secret : bytes or None
        None: rank 0 sends it, which requires `takes`.
    timeout : float
        Seconds.
    takes : bool
        Whether to accept the secret from rank 0. This requires a Unix address, and a process of the same user there.

    Returns
    -------
    Client, bytes
        The connection, and the secret.

    Raises
    ------
    RendezvousError
        If no process listens within `timeout` seconds, or the process there does not know the secret.
    """
    family, where = _parse(address)
    deadline = time.monotonic() + timeout
    refusals = 0
    while True:
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            connection.settimeout(min(max(_SLICE_S, deadline - time.monotonic()), _LONGEST_S))
            connection.connect(where)
            if takes and not _secret.same_user(connection):
                raise RendezvousError(
                    f"the process that listens at {address} is another user's, or users cannot be told apart in this "
                    f"user namespace; give the job a secret: set\n{_secret.HOW_TO_SET}"
                )
            secret = introduce(connection, secret, rank, n_ranks, min(deadline, time.monotonic() + 10.0), takes)
            return Client(connection, n_ranks), secret
        except OSError as error:
            connection.close()
            refusals += isinstance(error, Refused) and error.proof_refused
            over = time.monotonic() > deadline
            if refusals >= _REFUSALS or (over and isinstance(error, Refused)):
                raise RendezvousError(
                    f"rank {rank} is not let in at {address}: {error}. {_secret.VARIABLE}, or the content of "
                    f"{_secret.FILE}, has to be the same on all ranks, and the address that of this job's rank 0"
                ) from error
            passing = isinstance(error, (Refused, TimeoutError)) or error.errno in _GONE
            if not passing or over:
                raise RendezvousError(
                    f"rank {rank} finds no listener at {address} after {timeout:g} s ({error}): is rank 0 on another "
                    "host? Then set VIAKIT_RENDEZVOUS=tcp:HOST:PORT, an address of rank 0's host"
                ) from error
            select.select([], [], [], _SLICE_S)  # until rank 0 listens, which raises no event here
        except BaseException:
            connection.close()
            raise
