"""Communicators with mpi4py's interface, over every channel.

>>> import viakit
>>> comm = viakit.world("via")          # or "bip", or "tcp", or "mpi": mpi4py underneath
>>> comm.rank, comm.size
(0, 1)

A program finds its ranks by :func:`viakit.launch.bootstrap`: under ``viakit run``, under ``mpirun``, or alone. What may
be called on a communicator is mpi4py's: see docs/comm.md.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import Any

from viakit import _policy
from viakit._comm.communicator import COMM_NULL, Cartcomm, Comm, Intracomm, World
from viakit._comm.datatype import Datatype
from viakit._comm.errors import Exception, error
from viakit._comm.group import Group
from viakit._comm.message import Message
from viakit._comm.op import Op
from viakit._comm.request import Prequest, Request
from viakit._comm.spec import BOTTOM, IN_PLACE
from viakit._comm.status import ANY_SOURCE, ANY_TAG, PROC_NULL, Status
from viakit._leaving import dismissible
from viakit._limits import seconds

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

_lock = threading.RLock()
_worlds: dict[tuple[int, str], Any] = {}  # by process and protocol: a forked child has none of its parent's


def default_protocol() -> str:
    """What ``VIAKIT_PROTOCOL`` says; else the one that the policy of the environment is for; else "via"."""
    return _protocol_for(_policy.wish()[0])


def _protocol_for(policy: str | None) -> str:
    try:
        return _policy.chosen(os.environ.get("VIAKIT_PROTOCOL"), policy)
    except ValueError as problem:
        raise error("ERR_ARG", str(problem)) from None


def world(protocol: str | None = None, *, policy: str | None = None, timeout_s: float | None = 60.0) -> Intracomm:
    """The communicator of all ranks of this job, over one protocol; the same object on every call.

    Collective: all ranks call it, with the same arguments.

    Parameters
    ----------
    protocol : str, optional
        "via" (shared memory within a host, and between hosts the NIC that ``VIAKIT_NETWORK`` names), "bip" (BIP on the
        same NICs), "tcp" (sockets), or "mpi" (mpi4py underneath). Default: what ``VIAKIT_PROTOCOL`` says, else the one
        that the policy is for, else "via".
    policy : str, optional
        A policy of the message engine, with changes: "mvich-rput,credits=16", or only changes: "credits=16". It has to
        be one for the protocol. Default: what ``VIAKIT_POLICY`` or ``VIAKIT_MSG`` says, else one named as the protocol.
    timeout_s : float or None
        Seconds within which all ranks have to be connected; None, as infinity: as long as it takes.

    Returns
    -------
    Intracomm

    Raises
    ------
    Exception
        ERR_ARG for an unknown protocol or policy, or two that do not go together; ERR_OTHER if the ranks cannot be
        connected: the text says why.
    ValueError
        If `timeout_s` is negative, or not a number.
    """
    limit = seconds("timeout_s", timeout_s)
    wish, source = (policy, "policy") if policy else _policy.wish()
    protocol = protocol or _protocol_for(wish)
    with _lock:
        found: Any = _worlds.get((os.getpid(), protocol))
        if found is None:
            if protocol not in _policy.PROTOCOLS:
                raise error("ERR_ARG", f"protocol {protocol!r}: there are 'via', 'bip', 'tcp' and 'mpi'")
            if protocol == "mpi":
                if policy:
                    _complete(protocol, policy, source)
                from viakit._comm.over_mpi import world_over_mpi

                found = world_over_mpi()
            else:
                found = Intracomm(_open(_complete(protocol, wish, source), limit), 0)
                found.name = "MPI_COMM_WORLD"
            _worlds[os.getpid(), protocol] = found
        return found


def _complete(protocol: str, policy: str | None, source: str) -> str:
    try:
        return _policy.complete(protocol, policy, source)
    except ValueError as problem:
        raise error("ERR_ARG", str(problem)) from None


def _open(policy: str, timeout_s: float) -> World:
    from viakit.launch import bootstrap

    job = bootstrap(timeout_s)
    opened = World(
        job.rank,
        job.size,
        exchange=lambda blob: job.exchange(blob, timeout_s),
        policy=policy,
        network_device=job.network_device,
        address=job.address,
        timeout_s=timeout_s,
    )
    atexit.register(_leave, opened, os.getpid())
    return opened


def self_of(comm: Any) -> Intracomm:
    """The communicator of this rank alone, beside a world."""
    found = _worlds.get((os.getpid(), f"self of {id(comm)}"))
    if found is None:
        found = Intracomm(comm.world, 1, [comm.world.rank])
        found.name = "MPI_COMM_SELF"
        _worlds[os.getpid(), f"self of {id(comm)}"] = found
    return found


def again(alone: bool) -> Any:
    """COMM_WORLD, or COMM_SELF, of a pickle."""
    everybody = world()
    return self_of(everybody) if alone else everybody


def _leave(opened: World, process: int) -> None:
    """At the end of a program: wait for the others, or, if it ends by an exception, let them see that at once."""
    if os.getpid() != process or opened.closed:
        return
    from viakit.launch import bootstrap

    bootstrap().leaving()
    if getattr(sys, "last_value", None) is not None and not hasattr(sys, "ps1"):
        opened.abort()
        return
    with dismissible(opened.abort):
        opened.close()


def close_all() -> None:
    """Close every world of this process, which waits until the other ranks do so, too."""
    with _lock:
        for key in [key for key in _worlds if key[0] == os.getpid()]:
            found = _worlds.pop(key)
            if isinstance(found, Intracomm) and not found.world.closed:
                found.world.close()
