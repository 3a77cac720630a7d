"""Sides of ranks with windows: Put and Get of viakit, MPI libraries and OpenSHMEM (:mod:`viakit.measure.sides`)."""

from __future__ import annotations

from typing import Any

from viakit.launch.mpi_library import oshmem
from viakit.measure.sides_msg import MpiSide, PyMsgSide, RankSide

__all__ = ["GetSide", "MpiGetSide", "MpiPutSide", "PutSide", "ShmemSide"]


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


class ShmemSide(MpiPutSide):
    """MPI rank that puts by OpenSHMEM."""

    shmem: Any = None

    def endpoint_on(self, mpi: Any, comm: Any) -> Any:
        """Return the endpoint on symmetric memory of two ranks."""
        from viakit.measure.shmem import Shmem  # on use: no other side needs it

        self.shmem = Shmem(oshmem(self.library), mpi)
        return self.python_endpoint("WindowTransport", self.shmem, comm, 1 - self.side)

    def describe(self) -> dict[str, Any]:
        """Return the library. Which transport it chose is not visible from outside."""
        return super().describe() | {"transport": "OpenSHMEM", "liboshmem": oshmem(self.library)}

    def close(self) -> None:
        """Free the symmetric memory, and end OpenSHMEM."""
        super().close()
        if self.shmem is not None:
            shmem, self.shmem = self.shmem, None
            shmem.close()


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
