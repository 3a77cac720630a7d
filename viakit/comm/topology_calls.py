"""Creation of topologies under MPI's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from viakit.comm.datatype import UNDEFINED
from viakit.comm.errors import error


class Topologies:
    """The part of an intracommunicator that creates topologies. viakit never reorders ranks."""

    rank: int
    size: int

    def Create_graph(self, index: Sequence[int], edges: Sequence[int], reorder: bool = False) -> Any:
        """Create a communicator whose ranks are the nodes of a graph. Collective.

        Parameters
        ----------
        index : sequence of int
            For each node the number of edges of it and of all nodes before it. A leading 0 is accepted.
        edges : sequence of int
            Neighbours of all nodes, in the order of nodes.
        reorder : bool, optional
            Ignored. Ranks keep their order.

        Returns
        -------
        Graphcomm
            COMM_NULL on ranks beyond the graph.

        Raises
        ------
        Exception
            ERR_ARG if the graph is not consistent or has more nodes than there are ranks. ERR_RANK for a wrong edge.
        """
        del reorder
        from viakit.comm import topology  # it imports this module

        return topology.create_graph(self, index, edges)  # type: ignore[arg-type]

    def Create_dist_graph_adjacent(
        self,
        sources: Sequence[int] | None,
        destinations: Sequence[int] | None,
        sourceweights: Sequence[int] | int | None = None,
        destweights: Sequence[int] | int | None = None,
        info: Any = None,
        reorder: bool = False,
    ) -> Any:
        """Create a communicator with a graph, of which each rank gives the edges to and from itself. Collective.

        Parameters
        ----------
        sources, destinations : sequence of int or None
            Ranks of the edges to and from this rank. None stands for no edges.
        sourceweights, destweights : sequence of int, optional
            Weights of the edges. None and UNWEIGHTED stand for none.
        info : Info, optional
            Ignored.
        reorder : bool, optional
            Ignored. Ranks keep their order.

        Returns
        -------
        Distgraphcomm

        Raises
        ------
        Exception
            ERR_RANK for a wrong rank.
        ValueError
            If the number of weights is wrong.
        """
        del info, reorder
        from viakit.comm import topology  # it imports this module

        return topology.create_dist_graph_adjacent(
            self,  # type: ignore[arg-type]
            sources,
            destinations,
            sourceweights,
            destweights,
        )

    def Create_dist_graph(
        self,
        sources: Sequence[int],
        degrees: Sequence[int],
        destinations: Sequence[int],
        weights: Sequence[int] | int | None = None,
        info: Any = None,
        reorder: bool = False,
    ) -> Any:
        """Create a communicator with a graph, of which each rank gives any edges. Collective.

        Parameters
        ----------
        sources : sequence of int
            Ranks where edges begin.
        degrees : sequence of int
            Number of edges of each source.
        destinations : sequence of int
            Ranks where the edges end, in the order of sources.
        weights : sequence of int, optional
            Weight of each edge. None and UNWEIGHTED stand for none.
        info : Info, optional
            Ignored.
        reorder : bool, optional
            Ignored. Ranks keep their order.

        Returns
        -------
        Distgraphcomm

        Raises
        ------
        Exception
            ERR_RANK for a wrong rank.
        ValueError
            If the numbers of degrees, destinations and weights do not fit.
        """
        del info, reorder
        from viakit.comm import topology  # it imports this module

        return topology.create_dist_graph(self, sources, degrees, destinations, weights)  # type: ignore[arg-type]

    def Cart_map(self, dims: Sequence[int], periods: Sequence[bool] | bool | None = None) -> int:
        """Return the rank that this process would have in a grid, or UNDEFINED.

        Raises
        ------
        Exception
            ERR_DIMS if the grid does not fit.
        """
        del periods
        shape = [int(d) for d in ([dims] if isinstance(dims, int) else dims)]
        n = math.prod(shape)
        if any(d < 1 for d in shape) or n > self.size:
            raise error("ERR_DIMS", f"a grid of shape {shape} does not fit on the {self.size} ranks")
        return self.rank if self.rank < n else UNDEFINED

    def Graph_map(self, index: Sequence[int], edges: Sequence[int]) -> int:
        """Return the rank that this process would have in a graph, or UNDEFINED."""
        from viakit.comm import topology  # it imports this module

        return topology.graph_map(self, index, edges)  # type: ignore[arg-type]
