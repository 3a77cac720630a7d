"""Mutual proof of a job's secret at the beginning of a stream, and the reception of callers of any origin.

Little-endian, over TCP and Unix sockets, before anything else:

==============  ======================================================================================================
meeting point   over a Unix socket whose other end is of the same user: ``VKS2``, the job's secret (32 bytes)
meeting point   ``VKC2``, nonce S (16)
rank            ``VKH2``, rank (32 bits), number of ranks (32 bits), nonce C (16), proof (32): the BLAKE2s, keyed with
                the secret, of "viakit meeting rank", S, C, rank, number of ranks
meeting point   ``VKW2``, proof (32): the same of "viakit meeting point", S, C, rank, number of ranks
==============  ======================================================================================================

The two texts differ, so that neither side's proof can be sent back as the other's. Nonces are new for each connection,
so that an overheard proof is not valid in another one.
"""

from __future__ import annotations

import errno
import hashlib
import hmac
import secrets
import select
import socket
import struct
import time
from dataclasses import dataclass, field

from viakit.base.secret import NBYTES, same_user

__all__ = ["Admitted", "Reception", "Refused", "introduce"]

GIVEN, CHALLENGE, HELLO, WELCOME = b"VKS2", b"VKC2", b"VKH2", b"VKW2"
NONCE = 16
_CALLER = struct.Struct("<2I")
_HELLO_LEN = 4 + _CALLER.size + NONCE + NBYTES
_WELCOME_LEN = 4 + NBYTES
_TO_ANSWER_S = 10.0  # for a caller's proof
_MOST_WAITING = 256
_SLICE_MS = 50
_LONGEST_S = 3600.0  # settimeout accepts no infinity
_NO_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Refused(ConnectionError):
    """The other end did not prove that it knows the secret, or did not accept the proof of this one.

    Attributes
    ----------
    proof_refused : bool
        Whether this end had sent its proof when the other one closed the connection.
    """

    def __init__(self, text: str, proof_refused: bool = False) -> None:
        super().__init__(text)
        self.proof_refused = proof_refused


def _proof(secret: bytes, text: bytes, server_nonce: bytes, client_nonce: bytes, caller: bytes) -> bytes:
    return hashlib.blake2s(text + server_nonce + client_nonce + caller, key=secret).digest()


def _of_rank(secret: bytes, server_nonce: bytes, client_nonce: bytes, caller: bytes) -> bytes:
    return _proof(secret, b"viakit meeting rank", server_nonce, client_nonce, caller)


def _of_meeting(secret: bytes, server_nonce: bytes, client_nonce: bytes, caller: bytes) -> bytes:
    return _proof(secret, b"viakit meeting point", server_nonce, client_nonce, caller)


@dataclass
class Admitted:
    """A caller that has proved that it knows the secret; its socket does not block."""

    socket: socket.socket
    rank: int
    n_ranks: int


@dataclass
class _Caller:
    socket: socket.socket
    nonce: bytes
    deadline: float
    received: bytearray = field(default_factory=bytearray)


class Reception:
    """Admit the callers of a listening socket that know the secret, and drop all others. No call blocks.

    The number and the time of waiting callers are limited. If too many wait, the oldest is dropped. So silent or slow
    callers do not delay a caller that replies at once.

    Parameters
    ----------
    listener : socket.socket
        Owned by the reception from now on.
    secret : bytes
        The secret, 32 bytes.
    gives : bool
        Over a Unix socket: send the secret to callers of the same user, and drop callers of other users. Otherwise
        callers of any user must know it already.
    most_waiting : int
        Largest number of callers whose proof is incomplete.
    """

    def __init__(
        self, listener: socket.socket, secret: bytes, *, gives: bool = False, most_waiting: int = _MOST_WAITING
    ) -> None:
        self._listener, self._secret, self._gives, self._most = listener, secret, gives, most_waiting
        self._listener.setblocking(False)
        self._callers: dict[int, _Caller] = {}  # by descriptor, the oldest first
        self._closed_until = 0.0  # no descriptors were left at the last accept

    def interest(self) -> dict[int, int]:
        """Return the descriptors and poll events to wait for."""
        events = dict.fromkeys(self._callers, select.POLLIN)
        if time.monotonic() >= self._closed_until:
            events[self._listener.fileno()] = select.POLLIN
        return events

    def timeout_ms(self) -> int | None:
        """Return the time until the first caller's deadline, for poll, in ms; None: no limit."""
        until = [caller.deadline for caller in self._callers.values()]
        if time.monotonic() < self._closed_until:
            until.append(self._closed_until)
        return None if not until else max(0, round(1000 * (min(until) - time.monotonic())) + 1)

    def handle(self, ready: set[int]) -> list[Admitted]:
        """Accept new callers, and read from those that are `ready`; return the callers whose proof is valid."""
        if self._listener.fileno() in ready:
            self._accept()
        admitted = []
        for fd in [fd for fd in self._callers if fd in ready]:
            found = self._read(self._callers[fd])
            if found is not None:
                del self._callers[fd]
                admitted.append(found)
        now = time.monotonic()
        for fd in [fd for fd, caller in self._callers.items() if caller.deadline < now]:
            self._drop(fd)
        return admitted

    def first(self, deadline: float) -> socket.socket:
        """Wait for the first caller that knows the secret, and return its connection, a blocking socket.

        Raises
        ------
        TimeoutError
            At the deadline, a time of :func:`time.monotonic`.
        """
        while (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            for fd, events in self.interest().items():
                poll.register(fd, events)
            wait = self.timeout_ms()
            ready = poll.poll(min(1000 * left, 1000 if wait is None else wait))
            for caller in self.handle({fd for fd, _ in ready}):
                caller.socket.setblocking(True)
                return caller.socket
        raise TimeoutError("no caller proved that it knows the secret")

    def close(self) -> None:
        """Close the listener, and the connections of callers that were not admitted."""
        self._listener.close()
        for fd in list(self._callers):
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        self._callers.pop(fd).socket.close()

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:
            if error.errno in _NO_FILES and self._callers:
                self._drop(next(iter(self._callers)))
            elif error.errno in _NO_FILES:
                self._closed_until = time.monotonic() + _SLICE_MS / 1000
            return
        connection.setblocking(False)
        nonce = secrets.token_bytes(NONCE)
        greeting = CHALLENGE + nonce
        try:
            if self._gives:
                if not same_user(connection):
                    connection.close()
                    return
                greeting = GIVEN + self._secret + greeting
            if connection.send(greeting, socket.MSG_NOSIGNAL) != len(greeting):
                raise BlockingIOError
        except OSError:
            connection.close()
            return
        while len(self._callers) >= self._most:
            self._drop(next(iter(self._callers)))
        self._callers[connection.fileno()] = _Caller(connection, nonce, time.monotonic() + _TO_ANSWER_S)

    def _read(self, caller: _Caller) -> Admitted | None:
        """Read the available part of the caller's hello. A caller that fails is dropped."""
        data = caller.received
        try:
            piece = caller.socket.recv(_HELLO_LEN - len(data))
        except BlockingIOError:
            return None
        except OSError:
            piece = b""
        data += piece
        if piece and len(data) < _HELLO_LEN and HELLO.startswith(data[:4]):
            return None
        caller_id, nonce, proof = bytes(data[4:12]), bytes(data[12 : 12 + NONCE]), bytes(data[12 + NONCE :])
        right = _of_rank(self._secret, caller.nonce, nonce, caller_id)
        if len(data) == _HELLO_LEN and data[:4] == HELLO and hmac.compare_digest(proof, right):
            answer = WELCOME + _of_meeting(self._secret, caller.nonce, nonce, caller_id)
            try:
                if caller.socket.send(answer, socket.MSG_NOSIGNAL) == len(answer):
                    return Admitted(caller.socket, *_CALLER.unpack(caller_id))
            except OSError:
                pass
        self._drop(caller.socket.fileno())
        return None


def introduce(
    connection: socket.socket, secret: bytes | None, rank: int, n_ranks: int, deadline: float, takes: bool = False
) -> bytes:
    """Prove over a connected socket that this rank knows the secret, and require the same proof of the other end.

    Parameters
    ----------
    connection : socket.socket
        A connected socket; blocking afterwards.
    secret : bytes or None
        None: the other end sends it, which requires `takes`.
    rank, n_ranks : int
        This rank, and the number of ranks.
    deadline : float
        A time of :func:`time.monotonic`.
    takes : bool
        Whether to accept the secret from the other end: only over a Unix socket to a process of the same user.

    Returns
    -------
    bytes
        The secret.

    Raises
    ------
    Refused
        If the other end does not know the secret, or closes the connection.
    TimeoutError
        At the deadline.
    """
    word = _receive(connection, 4, deadline)
    if word == GIVEN and (takes or secret is not None):
        given = _receive(connection, NBYTES, deadline)
        secret = given if secret is None else secret
        word = _receive(connection, 4, deadline)
    if word != CHALLENGE:
        raise Refused(f"it answers {word!r} where {CHALLENGE!r} was expected")
    if secret is None:
        raise Refused("it does not hand out the job's secret, and this rank has none")
    theirs, mine = _receive(connection, NONCE, deadline), secrets.token_bytes(NONCE)
    caller = _CALLER.pack(rank, n_ranks)
    connection.sendall(HELLO + caller + mine + _of_rank(secret, theirs, mine, caller))
    try:
        answer = _receive(connection, _WELCOME_LEN, deadline)
    except Refused as error:
        raise Refused("it closed the connection upon this rank's proof of the secret", proof_refused=True) from error
    if answer[:4] != WELCOME or not hmac.compare_digest(answer[4:], _of_meeting(secret, theirs, mine, caller)):
        raise Refused("it does not know the job's secret", proof_refused=True)
    connection.settimeout(None)
    return secret


def _receive(connection: socket.socket, n: int, deadline: float) -> bytes:
    data = b""
    while len(data) < n:
        connection.settimeout(min(max(0.001, deadline - time.monotonic()), _LONGEST_S))
        try:
            piece = connection.recv(n - len(data))
        except ConnectionError:
            piece = b""
        if not piece:
            raise Refused("it closed the connection")
        data += piece
    return data
