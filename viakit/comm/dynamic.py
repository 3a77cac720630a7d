"""Connections between groups of ranks that are separate jobs: Spawn, Connect and Accept, Join.

Each connection is a world of its own, with all ranks of both groups, and with a secret of its own that only these ranks
get. The root of one group holds the meeting of that world (:mod:`viakit.launch.rendezvous`). The secret reaches

- spawned ranks through a pipe and their environment,
- the ranks of a root's group through their communicator, encrypted for them if it leaves this host,
- the other root not at all: both derive it from the secret in the port's name, which they have proved to each other.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from viakit.base import secret as _secret
from viakit.comm.errors import Exception as MpiException
from viakit.comm.errors import error
from viakit.comm.inter import Intercomm
from viakit.launch.options import CHANNELS
from viakit.launch.rendezvous import RendezvousError, Sealed, connect, is_unix, listen_for

__all__ = ["PARENT", "PARENT_SECRET", "Meeting", "agree", "hold_meeting", "join", "meeting_listener", "parent"]

PARENT, PARENT_SECRET = "VIAKIT_PARENT", "VIAKIT_PARENT_SECRET"
TIMEOUT_S = 60.0
_SECRET = "viakit connection secret"


@dataclass
class Meeting:
    """The data that the ranks of a group need to take part in a connection.

    Attributes
    ----------
    address : str
        Address of the meeting.
    secret : bytes
        Secret of the connection.
    first, n_ranks : int
        Rank in the connection of the group's rank 0, and number of all ranks.
    """

    address: str
    secret: bytes
    first: int
    n_ranks: int


def meeting_listener(comm: Any) -> tuple[socket.socket, str]:
    """Return a socket that listens on this host, and its address: a Unix socket's if the group does not leave the host.

    The kernel chooses the port, and the socket keeps it: another process cannot take it before the meeting begins.
    """
    from viakit.launch import bootstrap  # start-up time

    job = bootstrap()
    where: str | tuple[str, int]
    if comm.world.seal is None and job.address is None:
        name = f"viakit-{os.getuid()}-{secrets.token_hex(12)}"
        family, where, address = socket.AF_UNIX, f"\0{name}", f"unix:@{name}"
    else:
        host = job.address or socket.gethostbyname(socket.gethostname())
        family, where = socket.AF_INET6 if ":" in host else socket.AF_INET, (host, 0)
        address = f"tcp:[{host}]" if ":" in host else f"tcp:{host}"
    listener = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.bind(where)
        listener.listen(max(2 * comm.size, 128))
    except OSError as problem:
        listener.close()
        raise error("ERR_PORT", f"a port cannot be opened at {address}: {problem.strerror}") from problem
    return listener, address if family == socket.AF_UNIX else f"{address}:{listener.getsockname()[1]}"


def hold_meeting(comm: Any, secret: bytes, n_ranks: int) -> tuple[Meeting, Callable[[], None]]:
    """Hold a meeting of *n_ranks* ranks on this host. Return it, and a function that ends it."""
    listener, address = meeting_listener(comm)
    return Meeting(address, secret, 0, n_ranks), listen_for(address, n_ranks, secret, server=listener)


def _encrypted(comm: Any, text: bytes, nonce: bytes) -> bytes:
    """Encrypt or decrypt up to 32 bytes for the ranks of a world that other hosts are part of."""
    if comm.world.seal is None:
        return text
    pad = _secret.derive(comm.world.secret, _SECRET, nonce)
    return bytes(a ^ b for a, b in zip(text, pad, strict=True))


def agree(comm: Any, root: int, prepare: Any) -> tuple[Meeting, Any]:
    """Call *prepare* on the root, and give its meeting to all ranks of *comm*.

    `prepare` returns a Meeting and data for all ranks. If it fails, all ranks raise its error.
    """
    blob: Any = None
    problem: BaseException | None = None
    if comm.rank == root:
        try:
            meeting, data = prepare()
            nonce = secrets.token_bytes(16)
            hidden = _encrypted(comm, meeting.secret, nonce)
            blob = (meeting.address, hidden, nonce, meeting.first, meeting.n_ranks, data)
        except MpiException as failed:
            problem, blob = failed, (failed.error_code, failed.text)
        except Exception as failed:
            problem, blob = failed, (None, str(failed))
        except BaseException as failed:
            problem = failed
            blob = (None, "the root was interrupted")
    blob = comm.bcast(blob, root)
    if problem is not None:
        raise problem
    if len(blob) == 2:
        raise MpiException(blob[0], blob[1]) if blob[0] is not None else error("ERR_OTHER", f"the root: {blob[1]}")
    address, hidden, nonce, first, n_ranks, data = blob
    return Meeting(address, _encrypted(comm, hidden, nonce), first, n_ranks), data


def join(meeting: Meeting, rank: int, size: int, protocol: str | None = None) -> Intercomm:
    """Connect to the other group and return the intercommunicator. Collective over both groups.

    Parameters
    ----------
    meeting : Meeting
        The meeting on which this group has agreed.
    rank, size : int
        Rank in this group, and number of its ranks.
    protocol : str, optional
        Protocol of the connection. Default: that of COMM_WORLD.
    """
    from viakit import comm  # start-up time
    from viakit.launch import bootstrap  # start-up time

    mine = meeting.first + rank
    try:
        client, _ = connect(meeting.address, mine, meeting.n_ranks, meeting.secret, TIMEOUT_S)
        exchange = client.exchange
        if not is_unix(meeting.address):
            exchange = Sealed(client.exchange, mine, meeting.n_ranks, meeting.secret).exchange
        try:
            world = comm.open_between(bootstrap(), mine, meeting.n_ranks, exchange, meeting.secret, TIMEOUT_S, protocol)
        finally:
            client.close()
    except RendezvousError as problem:
        raise error("ERR_PORT", f"the other group could not be reached: {problem}") from problem
    local = list(range(meeting.first, meeting.first + size))
    remote = [rank for rank in range(meeting.n_ranks) if rank not in local]
    made: Intercomm = Intercomm(world, 0, remote, local)
    made._at_exit = world.close
    return made


# ---------------------------------------------------------------- the parent of spawned ranks

_lock = threading.Lock()
_parents: dict[int, Any] = {}  # by process


def parent() -> Any:
    """Return the intercommunicator with the ranks that spawned this one; a null one if no rank did."""
    given = os.environ.get(PARENT, "")
    with _lock:
        found = _parents.get(os.getpid())
        if found is None:
            if not given:
                found = Intercomm()
            else:
                address, first, n_ranks = json.loads(given)
                meeting = Meeting(address, bytes.fromhex(os.environ[PARENT_SECRET]), first, n_ranks)
                from viakit.launch import detect  # start-up time

                place = detect()
                found = join(meeting, place.rank, place.size)
                found.name = "MPI_COMM_PARENT"
            _parents[os.getpid()] = found
        return found if found else Intercomm()


# ---------------------------------------------------------------- spawning


def spawn(comm: Any, root: int, programs: Any) -> tuple[Intercomm, list[int]]:
    """Start ranks of the programs that *programs* returns on the root; see Intracomm.Spawn_multiple.

    Returns
    -------
    Intercomm
        Intercommunicator with the new ranks.
    list of int
        Number of ranks of each program.
    """
    from viakit.launch.spawner import Spawner  # start-up time

    started: list[Any] = []

    def prepare() -> tuple[Meeting, list[int]]:
        wanted = programs()
        children = sum(n for _, _, n in wanted)
        n_ranks = comm.size + children
        meeting, stop = hold_meeting(comm, _secret.new(), n_ranks)
        environment = {
            PARENT: json.dumps([meeting.address, comm.size, n_ranks]),
            PARENT_SECRET: meeting.secret.hex(),
            "VIAKIT_PROTOCOL": protocol_of(comm),
        }
        try:
            spawner = Spawner(wanted, environment)
        except BaseException:
            stop()
            raise
        atexit.register(_leave, spawner, os.getpid())
        started.extend((spawner, stop))
        return meeting, [n for _, _, n in wanted]

    meeting, counts = agree(comm, root, prepare)
    connected = threading.Event()
    if started:
        threading.Thread(target=_watch, args=(*started, connected), daemon=True).start()
    try:
        made = join(meeting, comm.rank, comm.size, protocol_of(comm))
    except MpiException as problem:
        raise error("ERR_SPAWN", f"the spawned ranks did not connect: {problem.text}") from problem
    finally:
        connected.set()
        if started:
            started[1]()
    return made, counts


def protocol_of(comm: Any) -> str:
    """Return the protocol of a communicator's world, for another world like it."""
    channel = str(comm.world.channel)
    return channel if channel in CHANNELS else "via"


def _watch(spawner: Any, stop: Any, connected: threading.Event) -> None:
    """End the meeting if the spawned ranks end before they have connected."""
    deadline = time.monotonic() + TIMEOUT_S
    while not connected.wait(0.05) and time.monotonic() < deadline:
        if spawner.status() is not None:
            if not connected.wait(0.5):
                stop()
            return


def _leave(spawner: Any, process: int) -> None:
    if os.getpid() == process:
        spawner.leave()


def service_file(service: str) -> str:
    """Return the file in which the name of a service is published: only processes of the same user can read it."""
    base = os.environ.get("XDG_RUNTIME_DIR") or "/tmp"
    folder = os.path.join(base, f"viakit-names-{os.getuid()}")
    os.makedirs(folder, 0o700, exist_ok=True)
    about = os.lstat(folder)
    if not os.path.isdir(folder) or os.path.islink(folder) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise error("ERR_SERVICE", f"{folder} is not a folder that only this user can read; remove it")
    return os.path.join(folder, hashlib.sha256(service.encode()).hexdigest()[:32])
