"""Cartesian grids: coordinates, neighbours and shifts."""

from __future__ import annotations

from collections.abc import Sequence

from viakit.base.words import counted
from viakit.comm.errors import error
from viakit.comm.status import PROC_NULL

CART = 1


class Grid:
    """Arithmetic of a grid whose places are the ranks of a communicator, in row-major order."""

    _dims: list[int]
    _periods: list[bool]
    rank: int
    size: int

    @property
    def dims(self) -> list[int]:
        """Number of ranks along each dimension."""
        return list(self._dims)

    @property
    def topology(self) -> int:
        """CART, the type of the topology."""
        return CART

    @property
    def periods(self) -> list[int]:
        """Periodicity of each dimension: 1 if it is periodic, otherwise 0."""
        return [int(p) for p in self._periods]

    @property
    def coords(self) -> list[int]:
        """Coordinates of this rank in the grid."""
        return self.Get_coords(self.rank)

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._dims)

    dim = ndim

    @property
    def topo(self) -> tuple[list[int], list[int], list[int]]:
        """Shape of the grid, periodicity of its dimensions, and coordinates of this rank."""
        return (self.dims, self.periods, self.coords)

    def Get_dim(self) -> int:
        """Return the number of dimensions."""
        return self.ndim

    def Get_topo(self) -> tuple[list[int], list[int], list[int]]:
        """Return the shape of the grid, the periodicity of its dimensions, and the coordinates of this rank."""
        return self.topo

    def Get_cart_rank(self, coords: Sequence[int]) -> int:
        """Translate coordinates to a rank. Coordinates wrap around in periodic dimensions.

        Raises
        ------
        Exception
            ERR_ARG if a coordinate is outside a dimension that is not periodic.
        """
        rank = 0
        for x, n, ring in zip(coords, self._dims, self._periods, strict=True):
            if ring:
                x %= n
            elif not 0 <= x < n:
                raise error("ERR_ARG", f"coordinates {list(coords)} are outside the grid of shape {self._dims}")
            rank = rank * n + x
        return rank

    def Get_coords(self, rank: int) -> list[int]:
        """Translate a rank to coordinates.

        Raises
        ------
        Exception
            ERR_RANK if the grid has no such rank.
        """
        if not 0 <= rank < self.size:
            raise error("ERR_RANK", f"rank {rank}: this grid has ranks 0 to {self.size - 1}")
        place = []
        for n in reversed(self._dims):
            rank, x = divmod(rank, n)
            place.append(x)
        return place[::-1]

    def Shift(self, direction: int, disp: int) -> tuple[int, int]:
        """Return the source and the destination of a shift along one dimension.

        Parameters
        ----------
        direction : int
            Dimension, counted from 0.
        disp : int
            Displacement in steps; a negative one shifts downwards.

        Returns
        -------
        source, dest : int
            Ranks to receive from and to send to; PROC_NULL beyond the border of a dimension that is not periodic.
        """
        if not 0 <= direction < self.ndim:
            dimensions = counted(self.ndim, "dimension")
            raise error("ERR_DIMS", f"direction {direction} does not exist; the grid has {dimensions}, numbered from 0")

        def at(step: int) -> int:
            place = self.coords
            place[direction] += step
            inside = self._periods[direction] or 0 <= place[direction] < self._dims[direction]
            return self.Get_cart_rank(place) if inside else PROC_NULL

        return at(-disp), at(disp)

    @property
    def inedges(self) -> list[int]:
        """Neighbours that messages arrive from: for each dimension the previous and the next rank.

        PROC_NULL stands for neighbours beyond the border.
        """
        return [rank for dimension in range(self.ndim) for rank in self.Shift(dimension, 1)]

    outedges = inedges
