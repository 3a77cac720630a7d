"""Sessions: ``MPI.Session``, and its process sets ``mpi://WORLD`` and ``mpi://SELF``."""

from __future__ import annotations

from typing import Any

from viakit.comm.errhandler import Errhandler, HasErrhandler
from viakit.comm.errors import error
from viakit.comm.group import Group
from viakit.comm.handle import Handle, forget
from viakit.comm.info import Info

__all__ = ["SESSION_NULL", "Session"]

_PSETS = ("mpi://WORLD", "mpi://SELF")


class Session(Handle, HasErrhandler):
    """Session: ``MPI.Session``. Without an argument the constructor returns a null handle; `Init` begins a session."""

    _family = "Session"
    _kind_of_handlers, _null_class = "Session", "ERR_SESSION"

    @classmethod
    def Init(cls, info: Any = None, errhandler: Errhandler | None = None) -> Session:
        """Begin a session.

        Parameters
        ----------
        info : Info, optional
            Hints, which viakit stores.
        errhandler : Errhandler, optional
            Error handler of the session.
        """
        session = cls._of({"hints": dict(info or {})})
        if errhandler:
            session.Set_errhandler(errhandler)
        return session

    def Finalize(self) -> None:
        """End the session. This handle becomes null.

        Raises
        ------
        Exception
            ERR_SESSION for a null handle.
        """
        self._require_valid()
        forget(self._family, self._ref)
        self._ref = None

    def free(self) -> None:
        """End the session if the handle is not null."""
        if self:
            self.Finalize()

    def _pset(self, name: str) -> str:
        self._require_valid()
        for known in _PSETS:
            if name.lower() == known.lower():
                return known
        raise error("ERR_ARG", f"there is no process set {name!r}; the process sets are {', '.join(_PSETS)}")

    def Get_num_psets(self, info: Any = None) -> int:
        """Return the number of process sets."""
        del info
        self._require_valid()
        return len(_PSETS)

    def Get_nth_pset(self, n: int, info: Any = None) -> str:
        """Return the name of the n-th process set, counted from 0.

        Raises
        ------
        Exception
            ERR_ARG if there are not so many.
        """
        del info
        self._require_valid()
        if not 0 <= n < len(_PSETS):
            raise error("ERR_ARG", f"process set {n} does not exist; there are {len(_PSETS)}, counted from 0")
        return _PSETS[n]

    def Get_info(self) -> Info:
        """Return the hints of the session."""
        self._require_valid()
        return Info.Create({"thread_level": "MPI_THREAD_MULTIPLE", **self._ref["hints"]})

    def Get_pset_info(self, pset_name: str) -> Info:
        """Return a description of a process set: the number of its ranks, ``mpi_size``."""
        return Info.Create({"mpi_size": str(self.Create_group(pset_name).size)})

    def Create_group(self, pset_name: str) -> Group:
        """Return the group of the ranks in a process set.

        Raises
        ------
        Exception
            ERR_ARG if there is no such process set.
        """
        from viakit import comm  # start-up time

        world = comm.world()
        return world.group if self._pset(pset_name) == _PSETS[0] else comm.self_of(world).group

    def Attach_buffer(self, buf: Any) -> None:
        """Attach a buffer for buffered sends of the whole process."""
        from viakit import comm  # start-up time

        self._require_valid()
        comm.world().Attach_buffer(buf)

    def Detach_buffer(self) -> Any:
        """Wait until all buffered sends have been transmitted, then detach and return the buffer."""
        from viakit import comm  # start-up time

        self._require_valid()
        return comm.world().Detach_buffer()

    def Flush_buffer(self) -> None:
        """Wait until all buffered sends have been transmitted."""
        from viakit import comm  # start-up time

        self._require_valid()
        comm.world().Flush_buffer()

    def Iflush_buffer(self) -> Any:
        """Start to wait until all buffered sends have been transmitted."""
        from viakit import comm  # start-up time

        self._require_valid()
        return comm.world().Iflush_buffer()

    @property
    def name(self) -> str:
        """Name of the session's object."""
        return "MPI_SESSION" if self else "MPI_SESSION_NULL"


SESSION_NULL = Session()
