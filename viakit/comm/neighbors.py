"""Neighbourhood collectives: exchanges with the neighbours of a topology only."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm import objects
from viakit.comm.collective_calls import Made, _forms
from viakit.comm.errors import error
from viakit.comm.schedule import Schedule, run
from viakit.comm.spec import Simple, simple, vector, w_vector
from viakit.comm.status import PROC_NULL
from viakit.comm.step import Step

CART = 1
Parts = Sequence[tuple[Simple, int]]  # a part of a buffer, and the neighbour at the other end


def _in_order(comm: Any, destinations: Sequence[int]) -> list[int]:
    """Return the positions of the destinations in the order in which messages are sent.

    Messages between two ranks keep their order. In a grid, the data for the next rank of a dimension arrives from the
    previous rank, so it is sent first: then both meet also where the two are one rank.
    """
    if comm.topology != CART:
        return list(range(len(destinations)))
    return [i ^ 1 for i in range(len(destinations))]


def _exchange(s: Step, comm: Any, out: Parts, into: Parts) -> Schedule:
    data = [part.pack() if part.direct else np.empty(part.nbytes, np.uint8) for part, _ in into]
    order = _in_order(comm, [rank for _, rank in out])
    yield [s.recv(one, rank) for one, (_, rank) in zip(data, into, strict=True) if rank != PROC_NULL] + [
        s.send(out[i][0].pack(), out[i][1]) for i in order if out[i][1] != PROC_NULL
    ]
    for one, (part, rank) in zip(data, into, strict=True):
        if rank != PROC_NULL and not part.direct:
            part.unpack(one)


def _exchange_objects(
    s: Step, comm: Any, items: Sequence[Any], destinations: list[int], sources: list[int]
) -> Schedule:
    data = [
        b"" if i == PROC_NULL else objects.dump_plain(s, item, i) for i, item in zip(destinations, items, strict=True)
    ]
    heads = [bytearray(8) for _ in sources]
    order = [i for i in _in_order(comm, destinations) if destinations[i] != PROC_NULL]
    known = [i for i, rank in enumerate(sources) if rank != PROC_NULL]
    yield [s.recv(heads[i], sources[i]) for i in known] + [
        s.send(struct.pack("<Q", len(data[i])), destinations[i]) for i in order
    ]
    into: list[Any] = [bytearray(struct.unpack("<Q", head)[0]) for head in heads]
    yield [s.recv(into[i], sources[i]) for i in known] + [s.send(data[i], destinations[i]) for i in order]
    return [
        None if rank == PROC_NULL else objects.load_plain(s, one, rank, s.rank)
        for one, rank in zip(into, sources, strict=True)
    ]


def _equal(spec: Any, writable: bool, n: int) -> list[Simple]:
    """Return the n equal parts of a buffer."""
    if n == 0:
        return []
    total = simple(spec, writable, n)
    if total.count % n:
        raise ValueError(f"message: a count of {total.count} is not a multiple of {counted(n, 'neighbour')}")
    return [total.part(i, n) for i in range(n)]


class Neighbors:
    """The neighbourhood collectives of a communicator with a topology.

    A rank sends to its `outedges` and receives from its `inedges`. Buffers have a part for each of them, in this order.
    Parts for PROC_NULL are neither sent nor changed.
    """

    _make: Any
    _run: Any
    _refusing: Any

    @property
    def inedges(self) -> list[int]:
        """Neighbours that messages arrive from."""
        raise NotImplementedError

    @property
    def outedges(self) -> list[int]:
        """Neighbours that messages are sent to."""
        raise NotImplementedError

    @property
    def degrees(self) -> tuple[int, int]:
        """Numbers of neighbours that messages arrive from, and that they are sent to."""
        return (len(self.inedges), len(self.outedges))

    @property
    def indegree(self) -> int:
        """Number of neighbours that messages arrive from."""
        return len(self.inedges)

    @property
    def outdegree(self) -> int:
        """Number of neighbours that messages are sent to."""
        return len(self.outedges)

    @property
    def inoutedges(self) -> tuple[list[int], list[int]]:
        """Neighbours that messages arrive from, and those they are sent to."""
        return (self.inedges, self.outedges)

    def _neighbor_allgather(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, sources = Step(self, "neighbor"), list(self.inedges)
        mine = simple(sendbuf, False)
        into = list(zip(_equal(recvbuf, True, len(sources)), sources, strict=True))
        return step, _exchange(step, self, [(mine, rank) for rank in self.outedges], into)

    def _neighbor_allgatherv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, sources = Step(self, "neighbor"), list(self.inedges)
        mine = simple(sendbuf, False)
        into = vector(recvbuf, True, len(sources)) if sources else []
        return step, _exchange(
            step, self, [(mine, rank) for rank in self.outedges], list(zip(into, sources, strict=True))
        )

    def _neighbor_alltoall(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, sources, destinations = Step(self, "neighbor"), list(self.inedges), list(self.outedges)
        out, into = _equal(sendbuf, False, len(destinations)), _equal(recvbuf, True, len(sources))
        return self._exchanged(step, out, into)

    def _neighbor_alltoallv(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, sources, destinations = Step(self, "neighbor"), list(self.inedges), list(self.outedges)
        out = vector(sendbuf, False, len(destinations)) if destinations else []
        into = vector(recvbuf, True, len(sources)) if sources else []
        return self._exchanged(step, out, into)

    def _neighbor_alltoallw(self, sendbuf: Any, recvbuf: Any) -> Made:
        step, sources, destinations = Step(self, "neighbor"), list(self.inedges), list(self.outedges)
        out = w_vector(sendbuf, False, len(destinations)) if destinations else []
        into = w_vector(recvbuf, True, len(sources)) if sources else []
        return self._exchanged(step, out, into)

    def _exchanged(self, step: Step, out: Sequence[Simple], into: Sequence[Simple]) -> Made:
        return step, _exchange(
            step,
            self,
            list(zip(out, self.outedges, strict=True)),
            list(zip(into, self.inedges, strict=True)),
        )

    Neighbor_allgather, Ineighbor_allgather, Neighbor_allgather_init = _forms(
        _neighbor_allgather, "send the same data to all neighbours, and gather theirs."
    )
    Neighbor_allgatherv, Ineighbor_allgatherv, Neighbor_allgatherv_init = _forms(
        _neighbor_allgatherv, "send the same data to all neighbours, and gather theirs, in parts of different lengths."
    )
    Neighbor_alltoall, Ineighbor_alltoall, Neighbor_alltoall_init = _forms(
        _neighbor_alltoall, "send a part to each neighbour, and receive one from each."
    )
    Neighbor_alltoallv, Ineighbor_alltoallv, Neighbor_alltoallv_init = _forms(
        _neighbor_alltoallv, "send a part to each neighbour, and receive one from each, of different lengths."
    )
    Neighbor_alltoallw, Ineighbor_alltoallw, Neighbor_alltoallw_init = _forms(
        _neighbor_alltoallw,
        "send a part to each neighbour, and receive one from each, with a datatype and a byte displacement of each.",
    )

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Send an object to all neighbours. Return the list of objects received; None for PROC_NULL."""
        return self._of_neighbors([sendobj] * len(self.outedges))

    def neighbor_alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send one item to each neighbour. Return the list of items received; None for PROC_NULL.

        Parameters
        ----------
        sendobj : sequence
            One item for each of the `outedges`.

        Raises
        ------
        ValueError
            If the number of items is wrong.
        """
        return self._of_neighbors(sendobj)

    def _of_neighbors(self, sendobj: Sequence[Any]) -> list[Any]:
        sources, destinations = list(self.inedges), list(self.outedges)
        with self._refusing():
            items = list(sendobj)
            if len(items) != len(destinations):
                raise ValueError(f"expecting {counted(len(destinations), 'item')}, got {len(items)}")
            step = Step(self, "neighbor")
        found: list[Any] = run(self, _exchange_objects(step, self, items, destinations, sources), step)
        return found


def check_ranks(ranks: Sequence[int], size: int, what: str) -> list[int]:
    """Return a list of neighbours, all of which must be ranks.

    Raises
    ------
    Exception
        ERR_RANK if one is not.
    """
    found = [int(rank) for rank in ranks]
    for rank in found:
        if not 0 <= rank < size:
            raise error("ERR_RANK", f"{what}: rank {rank} is not in this communicator, which has ranks 0 to {size - 1}")
    return found
