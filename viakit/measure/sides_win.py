"""Sides of ranks with windows: Put and Get of viakit and of MPI libraries (:mod:`viakit.measure.sides`)."""

from __future__ import annotations

from typing import Any

from viakit.measure.sides_msg import MpiSide, PyMsgSide, RankSide

__all__ = ["GetSide", "MpiGetSide", "MpiPutSide", "PutSide"]


class WindowSide(RankSide):
    """Base of sides with a window."""

    get = False

    def endpoint_on(self, mpi: Any, comm: Any) -> Any:
        """Return the endpoint on a window of a communicator of two ranks."""
        return self.python_endpoint("WindowTransport", mpi, comm, 1 - self.side, get=self.get)


class MpiPutSide(WindowSide, MpiSide):
    """MPI rank that puts."""


class MpiGetSide(MpiPutSide):
    """MPI rank that gets."""

    get = True


class PutSide(WindowSide, PyMsgSide):
    """Rank of viakit that puts. The channel of the windows is VIA."""

    in_python = None
    channel = "via"  # type: ignore[assignment]

    def endpoint_on(self, mpi: Any, comm: Any) -> Any:
        """Return the endpoint on a window of the world of two ranks."""
        self.world.secret = self.secret  # for the second world, which serves windows
        return super().endpoint_on(mpi, comm)


class GetSide(PutSide):
    """Rank of viakit that gets."""

    get = True
