"""Functions that mpi4py's own modules in Python (``mpi4py.util.pkl5``, ``mpi4py.futures``) take from ``mpi4py.MPI``."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from typing import Any

from viakit.comm.communicator import TAG_MOST, Comm, Intracomm
from viakit.comm.datatype import Datatype

__all__ = ["_comm_lock", "_comm_lock_table", "_commctx_inter", "_commctx_intra", "_typealign", "_typecode"]

_guard = threading.Lock()


class _Context:
    """Communicators for the internal messages of one communicator, and the number of the next message."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm._dup()
        self.local: Any = None
        self.tag = 0
        if comm.is_inter:
            number, _ = comm.world.take_number(comm._union.allgather)
            self.local = Intracomm(comm.world, number, comm._local)

    def free(self) -> None:
        """Free the communicators."""
        for one in (self.comm, self.local):
            if one is not None:
                one.Free()


_LOCKS = Comm.Create_keyval()
_CONTEXT = Comm.Create_keyval(None, lambda _comm, _key, context: context.free())


def _comm_lock_table(comm: Any) -> dict[Hashable, Any]:
    """Return the locks of a communicator, by key."""
    with _guard:
        table = comm.Get_attr(_LOCKS)
        if table is None:
            table = {}
            comm.Set_attr(_LOCKS, table)
        found: dict[Hashable, Any] = table
        return found


def _comm_lock(comm: Any, key: Hashable | None = None) -> Any:
    """Return the lock of a communicator for one purpose."""
    table = _comm_lock_table(comm)
    with _guard:
        return table.setdefault(key, threading.Lock())


def _context(comm: Any) -> tuple[_Context, int]:
    context = comm.Get_attr(_CONTEXT)
    if context is None:
        context = _Context(comm)
        comm.Set_attr(_CONTEXT, context)
    context.tag = (context.tag + 1) % TAG_MOST
    return context, context.tag


def _commctx_intra(comm: Any) -> tuple[Any, int]:
    """Return a communicator for internal messages, and a tag that is new with each call. Collective."""
    context, tag = _context(comm)
    return context.comm, tag


def _commctx_inter(comm: Any) -> tuple[Any, int, Any, bool]:
    """Return the same for an intercommunicator, a communicator of its local group, and whether it is lower."""
    context, tag = _context(comm)
    return context.comm, tag, context.local, bool(comm._remote_base)


def _typecode(datatype: Datatype) -> str | None:
    """Return the character that NumPy has for a datatype, or None."""
    dtype = datatype.dtype
    if dtype is None or dtype.names is not None:
        return None
    return datatype.typechar


def _typealign(datatype: Datatype) -> int | None:
    """Return the alignment in bytes of a datatype, or None."""
    dtype = datatype.dtype
    return None if dtype is None else dtype.alignment
