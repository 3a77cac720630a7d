"""The messages of Water's ranks: the molecules that a rank needs, the forces that it returns, and sums over all ranks.

A rank needs its own molecules and those that follow on the circle, as far as its pairs reach: its window. They are in
the first rows of its arrays, its own before the others. :class:`Exchange` updates the rows of other ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from viakit.apps.harness import share
from viakit.apps.kernels import kernels as _kernels

__all__ = ["FORCES", "POSITIONS", "SUMS", "Exchange", "Piece", "wait", "window"]

POSITIONS, FORCES, SUMS = 1, 2, 3  # tags


class Piece(NamedTuple):
    """Successive molecules of one rank that another rank needs."""

    owner: int
    row: int  # row in the owner's arrays
    window_row: int  # row in the other rank's arrays
    n: int


def window(n: int, rank: int, size: int) -> tuple[int, list[Piece]]:
    """Return the number of molecules that a rank needs, its own and those that follow, and the origin of the others.

    With few ranks the window may reach the rank's own molecules again.
    """
    first, end = share(n, rank, size)
    own = end - first
    rows = max((i + 1 + _kernels.water_partners(first + i, n) for i in range(max(own - 2, 0), own)), default=0)
    shares = [share(n, other, size) for other in range(size)]
    pieces, row = [], own
    while row < rows:
        molecule = (first + row) % n
        owner = next(other for other, (begin, stop) in enumerate(shares) if begin <= molecule < stop)
        begin, stop = shares[owner]
        many = min(stop - molecule, rows - row)
        pieces.append(Piece(owner, molecule - begin, row, many))
        row += many
    return rows, pieces


class Exchange:
    """The molecules of a rank and those that it needs, in two arrays, and the messages that update them.

    Attributes
    ----------
    sites, forces : numpy.ndarray, float64, shape (rows, 12)
        The rank's own molecules come first.
    """

    def __init__(self, comm: Any, n: int) -> None:
        rank, size = comm.Get_rank(), comm.Get_size()
        self.comm = comm
        rows, pieces = window(n, rank, size)
        self.sites, self.forces = np.zeros((rows, 12)), np.zeros((rows, 12))
        self.mine = [piece for piece in pieces if piece.owner == rank]
        self.needed = [piece for piece in pieces if piece.owner != rank]
        # Pieces of this rank that other ranks need.
        self.lent = [
            (other, piece)
            for other in range(size)
            if other != rank
            for piece in window(n, other, size)[1]
            if piece.owner == rank
        ]
        self.owed = [np.empty((piece.n, 9)) for piece in self.needed]  # forces on molecules of other ranks, to send
        self.found = [np.empty((piece.n, 9)) for _, piece in self.lent]  # forces that other ranks send

    def start_positions(self) -> list[Any]:
        """Start to receive the sites of other ranks, and to send those of this rank. Return the requests."""
        for piece in self.mine:
            self.sites[piece.window_row : piece.window_row + piece.n] = self.sites[piece.row : piece.row + piece.n]
        requests = [
            self.comm.Irecv(self.sites[piece.window_row : piece.window_row + piece.n], piece.owner, POSITIONS)
            for piece in self.needed
        ]
        for other, piece in self.lent:
            requests.append(self.comm.Isend(self.sites[piece.row : piece.row + piece.n], other, POSITIONS))
        return requests

    def add_forces(self) -> None:
        """Send the forces on molecules of other ranks, and add those that other ranks found for those of this rank."""
        requests = [
            self.comm.Irecv(part, other, FORCES) for (other, _), part in zip(self.lent, self.found, strict=True)
        ]
        _kernels.water_fold(self.forces)
        for piece, part in zip(self.needed, self.owed, strict=True):
            part[:] = self.forces[piece.window_row : piece.window_row + piece.n, :9]
            requests.append(self.comm.Isend(part, piece.owner, FORCES))
        for piece in self.mine:
            self.forces[piece.row : piece.row + piece.n] += self.forces[piece.window_row : piece.window_row + piece.n]
        wait(requests)
        for (_, piece), part in zip(self.lent, self.found, strict=True):
            self.forces[piece.row : piece.row + piece.n, :9] += part

    def sum(self, *values: float) -> np.ndarray:
        """Return sums over all ranks. Rank 0 receives the numbers in the order of ranks and sends the sums to all."""
        comm, total = self.comm, np.array(values)
        if comm.Get_rank() == 0:
            part = np.empty_like(total)
            for other in range(1, comm.Get_size()):
                comm.Recv(part, other, SUMS)
                total += part
            for other in range(1, comm.Get_size()):
                comm.Send(total, other, SUMS)
        else:
            comm.Send(total, 0, SUMS)
            comm.Recv(total, 0, SUMS)
        return total


def wait(requests: Sequence[Any]) -> None:
    """Wait for all requests."""
    for request in requests:
        request.Wait()
