"""Communicators with mpi4py's interface, over every channel.

>>> import viakit
>>> comm = viakit.world("via")          # or "bip", "tcp", or "mpi": mpi4py underneath
>>> comm.rank, comm.size
(0, 1)

A program finds its ranks with :func:`viakit.launch.bootstrap`: under ``viakit run``, under ``mpirun``, or as a single
process. The methods of a communicator are those of mpi4py: see docs/comm.md.
"""

from __future__ import annotations

import atexit
import os
import secrets
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from viakit import _core
from viakit.base import secret as _secret
from viakit.base.limits import seconds
from viakit.comm.communicator import COMM_NULL, Cartcomm, Comm, Intracomm, World
from viakit.comm.datatype import Datatype
from viakit.comm.errors import Exception, error
from viakit.comm.group import Group
from viakit.comm.message import Message
from viakit.comm.op import Op
from viakit.comm.request import Prequest, Request
from viakit.comm.seal import ForgedObjectError, Seal
from viakit.comm.spec import BOTTOM, IN_PLACE
from viakit.comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status
from viakit.launch import policy as _policy
from viakit.launch.leaving import dismissible

if TYPE_CHECKING:
    from viakit.launch import Job

__all__ = [
    "ANY_SOURCE",
    "ANY_TAG",
    "BOTTOM",
    "COMM_NULL",
    "IN_PLACE",
    "PROC_NULL",
    "Cartcomm",
    "Comm",
    "Datatype",
    "Exception",
    "ForgedObjectError",
    "Group",
    "Intracomm",
    "Message",
    "Op",
    "Prequest",
    "Request",
    "Status",
    "close_all",
    "world",
]

_HOST, _NONCE = 16, 16  # bytes of a host name and a nonce, exchanged before a world opens
_lock = threading.RLock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.RLock()))  # its holder is not in the child
_worlds: dict[tuple[int, str], Any] = {}  # by process and protocol: a forked child has no world of its parent


def default_protocol() -> str:
    """Return the protocol of ``VIAKIT_PROTOCOL``, else that of the policy in the environment, else "via"."""
    return _protocol_for(_policy.wish()[0])


def _protocol_for(policy: str | None) -> str:
    try:
        return _policy.chosen(os.environ.get("VIAKIT_PROTOCOL"), policy)
    except ValueError as problem:
        raise error("ERR_ARG", str(problem)) from None


def world(protocol: str | None = None, *, policy: str | None = None, timeout_s: float | None = 60.0) -> Intracomm:
    """Return the communicator of all ranks of this job over one protocol; the same object on every call.

    Collective: all ranks call it with the same arguments.

    Parameters
    ----------
    protocol : str, optional
        "via" (shared memory within a host, and the NIC that ``VIAKIT_NETWORK`` names between hosts), "bip" (BIP on the
        same NICs), "tcp" (sockets), or "mpi" (mpi4py underneath). Default: ``VIAKIT_PROTOCOL``, else the protocol of
        the policy, else "via".
    policy : str, optional
        Policy of the message engine, with or without changes: "mvich-rput,credits=16", or changes only: "credits=16".
        It must belong to the protocol. Default: ``VIAKIT_POLICY`` or ``VIAKIT_MSG``, else the policy named as the
        protocol.
    timeout_s : float or None
        Timeout in seconds for the connection of all ranks; None and infinity mean no limit.

    Returns
    -------
    Intracomm
        For protocol "mpi" that of mpi4py, whose methods take mpi4py's constants and types.

    Raises
    ------
    Exception
        ERR_ARG if the protocol or policy is unknown, or they do not belong together. ERR_OTHER if the ranks cannot be
        connected; the text gives the reason.
    ValueError
        If `timeout_s` is negative or not a number.
    """
    limit = seconds("timeout_s", timeout_s)
    wish, source = (policy, "policy") if policy else _policy.wish()
    protocol = protocol or _protocol_for(wish)
    with _lock:
        found: Any = _worlds.get((os.getpid(), protocol))
        if found is None:
            if protocol not in _policy.PROTOCOLS:
                raise error("ERR_ARG", f"protocol {protocol!r}; expected one of {', '.join(_policy.PROTOCOLS)}")
            if protocol == "mpi":
                if policy:
                    _complete(protocol, policy, source)
                from viakit.comm.over_mpi import load  # start-up time: no other protocol needs it

                found = load().COMM_WORLD
            else:
                found = Intracomm(_open(_complete(protocol, wish, source), limit), 0)
                found.name, found._predefined = "MPI_COMM_WORLD", True
            _worlds[os.getpid(), protocol] = found
        return found


def _complete(protocol: str, policy: str | None, source: str) -> str:
    try:
        return _policy.complete(protocol, policy, source)
    except ValueError as problem:
        raise error("ERR_ARG", str(problem)) from None


def _open(policy: str, timeout_s: float) -> World:
    from viakit.launch import bootstrap  # start-up time

    job = bootstrap(timeout_s)
    return _connected(job, job.rank, job.size, job.exchange, job.secret, policy, timeout_s)


def open_between(
    job: Job,
    rank: int,
    size: int,
    exchange: Callable[[bytes, float], list[bytes]],
    secret: bytes,
    timeout_s: float,
    protocol: str | None = None,
) -> World:
    """Open a world of two groups of ranks: see :mod:`viakit.comm.dynamic`."""
    wish, source = _policy.wish()
    protocol = protocol or _protocol_for(wish)
    return _connected(job, rank, size, exchange, secret, _complete(protocol, wish, source), timeout_s)


def _connected(
    job: Job,
    rank: int,
    size: int,
    exchange: Callable[[bytes, float], list[bytes]],
    secret: bytes,
    policy: str,
    timeout_s: float,
) -> World:
    """Open a world of ranks that can exchange data and have a secret."""
    opened = World(
        rank,
        size,
        exchange=lambda blob: exchange(blob, timeout_s),
        policy=policy,
        network_device=job.network_device,
        address=job.address,
        secret=secret if size > 1 else None,
        timeout_s=timeout_s,
    )
    opened.secret = secret
    try:
        opened.seal = _seal_for(exchange, secret, opened, timeout_s)
    except BaseException:
        opened.abort()
        raise
    atexit.register(_leave, opened, os.getpid())
    return opened


def _is_local(route: str) -> bool:
    """Return whether a connection is memory of this host or its loopback, where other users cannot write to it."""
    if route == "self":
        return True
    if route.startswith("tcp "):
        return route.startswith(("tcp 127.", "tcp ::1:"))
    return not _core.link_of(route).leaves_host


def _seal_for(
    exchange: Callable[[bytes, float], list[bytes]], secret: bytes, opened: World, timeout_s: float
) -> Seal | None:
    """Agree with all ranks on a key for the tags of objects; None if all connections are local to a host."""
    local = all(_is_local(opened.route(rank)) for rank in range(opened.size))
    gathered = exchange(bytes([local]) + secrets.token_bytes(_NONCE), timeout_s)
    if all(blob[0] for blob in gathered):
        return None
    # The nonces make the key new for each world, even with an old secret.
    nonces = b"".join(blob[1:] for blob in gathered)
    return Seal(_secret.derive(secret, "viakit objects", nonces))


def self_of(comm: Any) -> Intracomm:
    """Return the communicator of this rank alone, which belongs to a world."""
    found = _worlds.get((os.getpid(), f"self of {id(comm.world)}"))
    if found is None:
        found = Intracomm(comm.world, 1, [comm.world.rank])
        found.name, found._predefined = "MPI_COMM_SELF", True
        _worlds[os.getpid(), f"self of {id(comm.world)}"] = found
    return found


def again(alone: bool, kind: type[Any] = Intracomm, itself: bool = True) -> Any:
    """Return COMM_WORLD or COMM_SELF for a pickle, or another handle of it."""
    whole = world()
    found = self_of(whole) if alone else whole
    return found if itself and kind is type(found) else found._handle(kind)


def _leave(opened: World, process: int) -> None:
    """Wait for the other ranks at the end of a program; after an exception, abort so that they notice at once."""
    if os.getpid() != process:
        return
    _core.begin_exit()  # daemon threads may be in calls of this world
    if opened.closed:
        return
    from viakit.launch import bootstrap  # start-up time

    bootstrap().leaving()
    if getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"):
        opened.abort()
        return
    with dismissible(opened.abort):
        opened.close()


def step_all() -> bool:
    """Let the schedules of all worlds of this process make progress; return whether there are any."""
    busy = False
    for found in [one for key, one in list(_worlds.items()) if key[0] == os.getpid()]:
        world = getattr(found, "world", None)
        if isinstance(world, World) and not world.closed and world.n_active:
            world.progress()
            world.step()
            busy = True
    return busy


def close_all() -> None:
    """Close every world of this process. Collective: the call waits until the other ranks close theirs."""
    with _lock:
        for key in [key for key in _worlds if key[0] == os.getpid()]:
            found = _worlds.pop(key)
            if isinstance(found, Intracomm) and not found.world.closed:
                found.world.close()
