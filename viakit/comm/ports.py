"""Ports and services: how two jobs of one user find each other (Open_port, Publish_name, Accept, Connect, Join).

The name of a port contains its address and a secret of 128 bits or more. A job that knows the name may connect: both
roots prove the secret to each other before any other message, and derive the secret of the connection from it. A name
is published in a file that only processes of the same user can read.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import secrets
import socket
import struct
import threading
import time
from typing import Any

from viakit.base import secret as _secret
from viakit.comm.dynamic import Meeting, agree, hold_meeting, join, meeting_listener, protocol_of, service_file
from viakit.comm.errors import error
from viakit.launch.handshake import Reception, Refused, introduce
from viakit.launch.rendezvous import _parse

__all__ = [
    "Close_port",
    "Lookup_name",
    "Open_port",
    "Publish_name",
    "Unpublish_name",
    "accept",
    "connect",
    "join_socket",
]

_PREFIX = "viakit-port"
_TIMEOUT_S = 60.0  # for a port that is there but whose job does not accept yet
_LEN = struct.Struct("<I")
_lock = threading.Lock()
_open: dict[str, Reception] = {}
_published: dict[str, str] = {}


def Open_port(info: Any = None) -> str:
    """Open a port at which another job can connect, and return its name.

    The name contains a secret. A process that knows the name can connect, so pass it on to no others.
    """
    from viakit import comm  # start-up time

    del info
    (listener, address), key = meeting_listener(comm.world()), _secret.new()
    name = f"{_PREFIX} {address} {key.hex()}"
    with _lock:
        _open[name] = Reception(listener, key)
    return name


def Close_port(port_name: str) -> None:
    """Close a port that this process has opened.

    Raises
    ------
    Exception
        ERR_PORT if it has not.
    """
    with _lock:
        reception = _open.pop(port_name, None)
    if reception is None:
        raise error("ERR_PORT", "this process has not opened such a port; Open_port returns its name")
    reception.close()


def Publish_name(service_name: str, port_name: str, info: Any = None) -> None:
    """Publish a port under the name of a service, for other jobs of the same user on this host.

    Raises
    ------
    Exception
        ERR_SERVICE if the service is published already.
    """
    del info
    path = service_file(service_name)
    _remove_if_dead(path)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise error(
            "ERR_SERVICE", f"the service {service_name!r} is published already; Unpublish_name ends it"
        ) from None
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        json.dump({"service": service_name, "port": port_name, "process": os.getpid()}, file)
    _published[service_name] = port_name


def _record(path: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError):
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
        return found
    return None


def _remove_if_dead(path: str) -> None:
    record = _record(path)
    if record is not None and not os.path.exists(f"/proc/{record['process']}"):
        with contextlib.suppress(OSError):
            os.unlink(path)


def Lookup_name(service_name: str, info: Any = None) -> str:
    """Return the port that is published under the name of a service.

    Raises
    ------
    Exception
        ERR_NAME if there is no such service.
    """
    del info
    path = service_file(service_name)
    _remove_if_dead(path)
    record = _record(path)
    if record is None:
        raise error("ERR_NAME", f"no service {service_name!r} is published by this user on this host")
    return str(record["port"])


def Unpublish_name(service_name: str, port_name: str, info: Any = None) -> None:
    """End the publication of a service.

    Raises
    ------
    Exception
        ERR_SERVICE if this process has not published it.
    """
    del info
    if _published.get(service_name) != port_name:
        raise error("ERR_SERVICE", f"this process has not published the service {service_name!r} with this port")
    del _published[service_name]
    with contextlib.suppress(OSError):
        os.unlink(service_file(service_name))


def _leave(process: int) -> None:
    if os.getpid() == process:
        for service, port in list(_published.items()):
            Unpublish_name(service, port)
        for name in list(_open):
            Close_port(name)


atexit.register(_leave, os.getpid())


# ---------------------------------------------------------------- two roots


def _tell(connection: socket.socket, what: Any) -> None:
    data = json.dumps(what).encode()
    connection.sendall(_LEN.pack(len(data)) + data)


def _told(connection: socket.socket, timeout_s: float) -> Any:
    """Receive what the other root sends. Waits in short slices, so that Ctrl-C ends it."""
    deadline, data, wanted = time.monotonic() + timeout_s, b"", _LEN.size
    connection.settimeout(0.05)
    while len(data) < wanted:
        try:
            piece = connection.recv(wanted - len(data))
        except TimeoutError:
            if time.monotonic() > deadline:
                raise error("ERR_PORT", f"the other root did not reply within {timeout_s:g} s") from None
            continue
        except OSError:
            piece = b""
        if not piece:
            raise error("ERR_PORT", "the other root has closed the connection")
        data += piece
        if len(data) == _LEN.size and wanted == _LEN.size:
            wanted += min(_LEN.unpack(data)[0], 1 << 16)
    return json.loads(data[_LEN.size :])


def _as_listener(connection: socket.socket, comm: Any, key: bytes) -> tuple[Meeting, Any]:
    """Agree with the root that has connected; this one holds the meeting."""
    mine = secrets.token_hex(16)
    _tell(connection, [mine, comm.size])
    theirs, n = _told(connection, _TIMEOUT_S)
    both = comm.size + int(n)
    secret = _secret.derive(key, "viakit connection", f"{mine} {theirs} {comm.size} {n}".encode())
    meeting, stop = hold_meeting(comm, secret, both)
    _tell(connection, meeting.address)
    return meeting, stop


def _as_caller(connection: socket.socket, comm: Any, key: bytes) -> Meeting:
    """Agree with the root that accepts."""
    theirs, n = _told(connection, math.inf)
    mine = secrets.token_hex(16)
    _tell(connection, [mine, comm.size])
    secret = _secret.derive(key, "viakit connection", f"{theirs} {mine} {n} {comm.size}".encode())
    return Meeting(_told(connection, _TIMEOUT_S), secret, int(n), int(n) + comm.size)


def _joined(comm: Any, root: int, prepare: Any) -> Any:
    """Connect a group. `prepare`, on its root, agrees with the other root; it returns a meeting and its end, if any."""
    ends: list[Any] = []

    def on_root() -> tuple[Meeting, None]:
        meeting, stop = prepare()
        if stop is not None:
            ends.append(stop)
        return meeting, None

    try:
        meeting, _ = agree(comm, root, on_root)
        return join(meeting, comm.rank, comm.size, protocol_of(comm))
    finally:
        for stop in ends:
            stop()


def accept(comm: Any, port_name: str, root: int) -> Any:
    """Wait for another job at a port: see Intracomm.Accept."""

    def prepare() -> tuple[Meeting, Any]:
        reception = _open.get(port_name)
        if reception is None:
            raise error("ERR_PORT", "this process has not opened such a port; Open_port returns its name")
        with reception.first(math.inf) as connection:
            return _as_listener(connection, comm, bytes.fromhex(port_name.split()[2]))

    return _joined(comm, root, prepare)


def connect(comm: Any, port_name: str, root: int) -> Any:
    """Connect to another job at a port: see Intracomm.Connect."""

    def prepare() -> tuple[Meeting, Any]:
        words = str(port_name).split()
        if len(words) != 3 or words[0] != _PREFIX or len(words[2]) != 2 * _secret.NBYTES:
            raise error("ERR_PORT", "the name of the port is not one that Open_port has returned")
        key, (family, where) = bytes.fromhex(words[2]), _parse(words[1])
        with socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
            try:
                connection.connect(where)
                introduce(connection, key, 0, 1, time.monotonic() + _TIMEOUT_S)
            except (OSError, Refused) as problem:
                raise error("ERR_PORT", f"no job accepts at this port: {problem}") from problem
            return _as_caller(connection, comm, key), None

    return _joined(comm, root, prepare)


def join_socket(fd: int) -> Any:
    """Connect the two processes at the ends of a connected socket: see Comm.Join."""
    from viakit import comm  # start-up time

    alone = comm.self_of(comm.world())
    with socket.socket(fileno=os.dup(fd)) as connection:
        if connection.family != socket.AF_UNIX and connection.getpeername()[0] != connection.getsockname()[0]:
            raise error(
                "ERR_OTHER",
                "Join would send the secret of the connection over a network; use Open_port, Connect and Accept",
            )
        mine = secrets.token_hex(_secret.NBYTES)
        _tell(connection, mine)
        theirs = _told(connection, _TIMEOUT_S)
        key = _secret.derive(bytes.fromhex(max(mine, theirs)), "viakit join", bytes.fromhex(min(mine, theirs)))
        if mine > theirs:
            return _joined(alone, 0, lambda: _as_listener(connection, alone, key))
        return _joined(alone, 0, lambda: (_as_caller(connection, alone, key), None))
