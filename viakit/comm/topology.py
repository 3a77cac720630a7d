"""Topologies other than grids: graphs that every rank knows, and graphs of which each rank knows a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from viakit.base.words import counted
from viakit.comm.communicator import Comm, Intracomm, Topocomm
from viakit.comm.datatype import UNDEFINED
from viakit.comm.errors import error
from viakit.comm.neighbors import check_ranks
from viakit.comm.worlds import World

GRAPH, DIST_GRAPH = 2, 3
UNWEIGHTED, WEIGHTS_EMPTY = 10, 11


class Graphcomm(Topocomm):
    """Communicator whose ranks are the nodes of a graph: ``MPI.Graphcomm``."""

    def __init__(
        self,
        world: Any = None,
        number: Any = 0,
        ranks: Any = None,
        index: Any = None,
        edges: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(world, number, ranks, **options)
        if isinstance(world, World):
            self._index, self._edges = list(index), list(edges)

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return isinstance(comm, Graphcomm)

    def _dup(self) -> Any:
        number = self.world.take_number(self._gather_all)[0]
        return Graphcomm(self.world, number, self.world_ranks(), self._index, self._edges)

    @property
    def topology(self) -> int:
        """GRAPH, the type of the topology."""
        return GRAPH

    def Get_dims(self) -> tuple[int, int]:
        """Return the numbers of nodes and of edges."""
        return (len(self._index), len(self._edges))

    @property
    def dims(self) -> tuple[int, int]:
        """Numbers of nodes and of edges."""
        return self.Get_dims()

    @property
    def nnodes(self) -> int:
        """Number of nodes."""
        return len(self._index)

    @property
    def nedges(self) -> int:
        """Number of edges."""
        return len(self._edges)

    def Get_topo(self) -> tuple[list[int], list[int]]:
        """Return index and edges, as `Intracomm.Create_graph` takes them."""
        return (list(self._index), list(self._edges))

    @property
    def topo(self) -> tuple[list[int], list[int]]:
        """Index and edges."""
        return self.Get_topo()

    @property
    def index(self) -> list[int]:
        """For each node the number of edges of it and of all nodes before it."""
        return list(self._index)

    @property
    def edges(self) -> list[int]:
        """Neighbours of all nodes, in the order of nodes."""
        return list(self._edges)

    def Get_neighbors_count(self, rank: int) -> int:
        """Return the number of a rank's neighbours."""
        return len(self.Get_neighbors(rank))

    def Get_neighbors(self, rank: int) -> list[int]:
        """Return the neighbours of a rank.

        Raises
        ------
        Exception
            ERR_RANK if there is no such rank.
        """
        (rank,) = check_ranks([rank], self.size, "neighbours")
        return self._edges[self._index[rank - 1] if rank else 0 : self._index[rank]]

    @property
    def nneighbors(self) -> int:
        """Number of this rank's neighbours."""
        return len(self.neighbors)

    @property
    def neighbors(self) -> list[int]:
        """Neighbours of this rank."""
        return self.Get_neighbors(self.rank)

    @property
    def inedges(self) -> list[int]:
        """Neighbours that messages arrive from."""
        return self.neighbors

    @property
    def outedges(self) -> list[int]:
        """Neighbours that messages are sent to."""
        return self.neighbors


Weights = list[int] | None


class Distgraphcomm(Topocomm):
    """Communicator with a graph of which each rank knows its own edges: ``MPI.Distgraphcomm``."""

    def __init__(
        self,
        world: Any = None,
        number: Any = 0,
        ranks: Any = None,
        sources: Any = None,
        destinations: Any = None,
        weights: tuple[list[int], list[int]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(world, number, ranks, **options)
        if isinstance(world, World):
            self._sources, self._destinations, self._weights = list(sources), list(destinations), weights

    @classmethod
    def _takes(cls, comm: Comm) -> bool:
        return isinstance(comm, Distgraphcomm)

    def _dup(self) -> Any:
        number = self.world.take_number(self._gather_all)[0]
        return Distgraphcomm(self.world, number, self.world_ranks(), self._sources, self._destinations, self._weights)

    @property
    def topology(self) -> int:
        """DIST_GRAPH, the type of the topology."""
        return DIST_GRAPH

    def Get_dist_neighbors_count(self) -> tuple[int, int, bool]:
        """Return the numbers of edges to and from this rank, and whether they have weights."""
        return (len(self._sources), len(self._destinations), self._weights is not None)

    def Get_dist_neighbors(self) -> tuple[list[int], list[int], tuple[list[int], list[int]] | None]:
        """Return the ranks of edges to and from this rank, and the weights of both; None without weights."""
        weights = None if self._weights is None else (list(self._weights[0]), list(self._weights[1]))
        return (list(self._sources), list(self._destinations), weights)

    @property
    def inedges(self) -> list[int]:
        """Ranks that messages arrive from."""
        return list(self._sources)

    @property
    def outedges(self) -> list[int]:
        """Ranks that messages are sent to."""
        return list(self._destinations)


# ---------------------------------------------------------------- creation


def _graph(index: Sequence[int], edges: Sequence[int], size: int) -> tuple[list[int], list[int]]:
    """Check a graph. As mpi4py does, accept an index that begins with 0, as of a sparse matrix."""
    offsets, ends = [int(i) for i in index], [int(e) for e in edges]
    if offsets and offsets[0] == 0 and offsets[-1] == len(ends):
        offsets = offsets[1:] if len(offsets) > 1 or not ends else offsets
    n = len(offsets)
    if n > size:
        raise error("ERR_ARG", f"a graph of {counted(n, 'node')} does not fit on {counted(size, 'rank')}")
    if any(a > b for a, b in zip([0, *offsets], offsets, strict=False)) or (offsets or [0])[-1] != len(ends):
        raise error(
            "ERR_ARG",
            f"index {offsets}: it must not decrease, and end with the number of edges, which is {len(ends)}",
        )
    return offsets, check_ranks(ends, max(n, 1), "edges")


def create_graph(comm: Intracomm, index: Sequence[int], edges: Sequence[int]) -> Any:
    """Create a communicator with a graph. Collective."""
    with comm._refusing():
        offsets, ends = _graph(index, edges, comm.size)
    number, _ = comm.world.take_number(comm._gather_all)
    if comm.rank >= len(offsets):
        return comm._none(number)
    return Graphcomm(comm.world, number, comm.world_ranks()[: len(offsets)], offsets, ends)


def graph_map(comm: Intracomm, index: Sequence[int], edges: Sequence[int]) -> int:
    """Return the rank that this process would have in the graph."""
    offsets, _ = _graph(index, edges, comm.size)
    return comm.rank if comm.rank < len(offsets) else UNDEFINED


def _weights(given: Any, n: int, what: str) -> Weights:
    """Return weights, or None for none."""
    if given is None or (isinstance(given, int) and given == UNWEIGHTED):
        return None
    if isinstance(given, int) and given == WEIGHTS_EMPTY:
        given = []
    found = [int(w) for w in given]
    if len(found) != n:
        raise ValueError(f"{what}: expecting {counted(n, 'weight')}, got {len(found)}")
    return found


def create_dist_graph_adjacent(
    comm: Intracomm, sources: Any, destinations: Any, sourceweights: Any, destweights: Any
) -> Any:
    """Create a communicator from the edges to and from each rank. Collective."""
    with comm._refusing():
        into = check_ranks([] if sources is None else sources, comm.size, "sources")
        out = check_ranks([] if destinations is None else destinations, comm.size, "destinations")
        given = [_weights(sourceweights, len(into), "sources"), _weights(destweights, len(out), "destinations")]
    number, gathered = comm.world.take_number(comm._gather_all, any(w is not None for w in given))
    weights = None
    if any(gathered):
        weights = (given[0] or [1] * len(into), given[1] or [1] * len(out))
    return Distgraphcomm(comm.world, number, comm.world_ranks(), into, out, weights)


def create_dist_graph(comm: Intracomm, sources: Any, degrees: Any, destinations: Any, weights: Any) -> Any:
    """Create a communicator from edges, each given by any one rank. Collective."""
    with comm._refusing():
        begins, numbers = check_ranks(sources, comm.size, "sources"), [int(d) for d in degrees]
        ends = check_ranks(destinations, comm.size, "destinations")
        if len(numbers) != len(begins) or sum(numbers) != len(ends) or any(d < 0 for d in numbers):
            raise ValueError(
                f"expecting a degree for each of {counted(len(begins), 'source')} and as many destinations as the sum, "
                f"got {counted(len(numbers), 'degree')} with the sum {sum(numbers)} and {len(ends)} destinations"
            )
        given = _weights(weights, len(ends), "weights")
    edges, at = [], 0
    for begin, degree in zip(begins, numbers, strict=True):
        for i in range(at, at + degree):
            edges.append((begin, ends[i], given[i] if given is not None else 1))
        at += degree
    number, gathered = comm.world.take_number(comm._gather_all, (edges, given is not None))
    mine = comm.rank
    into = [(begin, w) for theirs, _ in gathered for begin, end, w in theirs if end == mine]
    out = [(end, w) for theirs, _ in gathered for begin, end, w in theirs if begin == mine]
    weighted = any(has for _, has in gathered)
    return Distgraphcomm(
        comm.world,
        number,
        comm.world_ranks(),
        [rank for rank, _ in into],
        [rank for rank, _ in out],
        ([w for _, w in into], [w for _, w in out]) if weighted else None,
    )


__all__ = ["DIST_GRAPH", "GRAPH", "UNWEIGHTED", "WEIGHTS_EMPTY", "Distgraphcomm", "Graphcomm"]
