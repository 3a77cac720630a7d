"""Windows below MPI's names: services, the memory of windows, and the translation of datatypes to bytes.

A service is a second world among the ranks of a communicator. It serves windows only and has a progress thread, so a
rank serves others while it computes. Windows of the same ranks share one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from viakit import _core
from viakit.comm import layout
from viakit.comm.datatype import Datatype
from viakit.comm.errors import error
from viakit.comm.op import Op
from viakit.comm.spec import Simple

_OPEN_S = 60.0
_PAGE = 4096
_NUMBERS = {
    ("i", 1): 0, ("u", 1): 1, ("i", 2): 2, ("u", 2): 3, ("i", 4): 4, ("u", 4): 5, ("i", 8): 6, ("u", 8): 7,
    ("f", 4): 8, ("f", 8): 9, ("c", 8): 10, ("c", 16): 11, ("f", 16): 12, ("c", 32): 13, ("b", 1): 1, ("S", 1): 1,
}  # fmt: skip
_PAIRS = {"f": 14, "d": 15, "l": 16, "i": 17, "h": 18, "g": 19}
_OPS = {
    "MPI_SUM": 0, "MPI_PROD": 1, "MPI_MAX": 2, "MPI_MIN": 3, "MPI_LAND": 4, "MPI_LOR": 5, "MPI_LXOR": 6, "MPI_BAND": 7,
    "MPI_BOR": 8, "MPI_BXOR": 9, "MPI_MAXLOC": 10, "MPI_MINLOC": 11, "MPI_REPLACE": 12, "MPI_NO_OP": 13,
}  # fmt: skip
_OF_BOOLS = {"MPI_SUM": 5, "MPI_MAX": 5, "MPI_PROD": 4, "MPI_MIN": 4}  # or, and: as NumPy adds and multiplies them
REPLACE, NO_OP = 12, 13


def service_of(comm: Any) -> _core.RmaService:
    """Return the service of a communicator's ranks. Collective at the first call."""
    from viakit.launch import bootstrap  # start-up time

    world = comm.world
    ranks = tuple(comm.world_ranks())
    found: Any = world.services.get(ranks)
    if found is None:
        job, place = bootstrap(), world.place
        private = _core.MsgWorld(
            comm.rank,
            comm.size,
            exchange=comm.allgather,
            policy=f"{world.channel},progress=thread",
            network_device=place["network_device"] or job.network_device,
            address=place["address"] or job.address,
            secret=(world.secret or job.secret) if comm.size > 1 else None,
            timeout_s=_OPEN_S,
        )
        found = world.services[ranks] = _core.RmaService(private)
    return found


def bytes_of(memory: Any) -> np.ndarray:
    """Return memory as an array of bytes."""
    return np.frombuffer(memory, np.uint8)


class Segment:
    """Memory that the ranks of one host share: a part of each, one after the other."""

    def __init__(self, memory: _core.RmaMemory | None, starts: list[int], lengths: list[int]) -> None:
        self.memory, self.starts, self.lengths = memory, starts, lengths

    def part(self, rank: int) -> np.ndarray:
        """Return the bytes of a rank's part."""
        if self.memory is None:
            return np.zeros(0, np.uint8)
        first = self.starts[rank]
        return bytes_of(self.memory)[first : first + self.lengths[rank]]


def share(comm: Any, size: int, apart: bool) -> Segment:
    """Create memory that the ranks of *comm* share. Collective.

    Parameters
    ----------
    comm : Comm
        Ranks of one host.
    size : int
        Bytes of this rank's part.
    apart : bool
        Whether each part begins on a page of its own.

    Raises
    ------
    Exception
        ERR_RMA_SHARED if the ranks are on several hosts, or cannot open each other's memory.
    """
    lengths = comm.allgather(int(size))
    starts, total = [], 0
    for length in lengths:
        starts.append(total)
        total += -(-length // _PAGE) * _PAGE if apart else -(-length // 16) * 16
    if total == 0:
        return Segment(None, starts, lengths)
    offer = _core.RmaMemory.offer(total) if comm.rank == 0 else None
    try:
        pid, descriptor, magic = comm.bcast((os.getpid(), *offer) if offer else (0, -1, (0, 0)))
        memory = _core.RmaMemory.map(pid, descriptor, total, magic) if descriptor >= 0 else None
        mapped = comm.allgather(memory is not None)
    finally:
        if offer:
            os.close(offer[0])
    if not all(mapped):
        raise error(
            "ERR_RMA_SHARED",
            f"rank {mapped.index(False)} cannot map the memory of rank 0: the ranks of such a window must be on one "
            "host and belong to one user; use comm.Split_type(MPI.COMM_TYPE_SHARED)",
        )
    assert memory is not None
    if comm.rank == 0:
        bytes_of(memory)[:16] = 0  # the magic numbers
    comm.Barrier()
    return Segment(memory, starts, lengths)


def runs(datatype: Datatype, count: int, start: int) -> Iterator[tuple[int, int]]:
    """Yield the contiguous runs of *count* elements at byte *start*: (offset, length)."""
    if count <= 0 or datatype.size == 0:
        return
    if datatype.contiguous:
        yield start, count * datatype.size
        return
    places = start + np.arange(count) * datatype.extent
    yield from layout.merged(layout.copies(datatype._blocks, places)).tolist()


def _element(datatype: Datatype) -> tuple[int, bool]:
    """Return the number of the element type in csrc/rma, or -1, and whether it is a pair with gaps."""
    dtype = datatype.dtype
    if dtype is None:
        return -1, False
    if dtype.names is not None:
        return _PAIRS.get(dtype["value"].char, -1), True
    return _NUMBERS.get((dtype.kind, dtype.itemsize), -1), False


def numbers_of(datatype: Datatype, op: Op) -> tuple[int, int, int]:
    """Return element type and operation as csrc/rma numbers them, and the bytes of an element.

    Raises
    ------
    Exception
        ERR_OP if the elements cannot be combined so.
    """
    combine = _OPS.get(op.name, -1)
    kind, pair = _element(datatype)
    if combine in (REPLACE, NO_OP) and not pair:
        return 1, combine, 1  # bytes
    dtype = datatype.dtype
    if dtype is not None and dtype.kind == "b":
        combine = _OF_BOOLS.get(op.name, combine)
    if combine < 0 or not op.is_predefined:
        raise error("ERR_OP", f"{op.name} cannot update a window; use a predefined operation such as MPI.SUM")
    if kind < 0 or (dtype is not None and dtype.kind == "S") or not _core.rma_combines_elements(kind, combine):
        raise error(
            "ERR_OP", f"{op.name} cannot combine elements of {datatype.name or 'a derived datatype'} in a window"
        )
    assert dtype is not None
    return kind, combine, dtype.itemsize


def raw(spec: Simple) -> np.ndarray:
    """Return the elements as packed bytes; pairs with the gaps between their members."""
    dtype = spec.datatype.dtype
    if dtype is not None and dtype.names is not None and spec.datatype.extent == dtype.itemsize:
        return spec.memory[spec.start : spec.start + spec.count * spec.datatype.extent]
    return spec.pack()


def is_pair(datatype: Datatype) -> bool:
    """Return whether the elements are pairs of MAXLOC, which travel with their gaps."""
    return (
        datatype.dtype is not None and datatype.dtype.names is not None and datatype.extent == datatype.dtype.itemsize
    )
