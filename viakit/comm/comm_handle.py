"""Handles of communicators: several Python objects may stand for one communicator, or for none."""

from __future__ import annotations

from typing import Any

from viakit import _core
from viakit.comm import objects
from viakit.comm.errors import error


class CommHandle(_core.DirectComm):
    """The part of a communicator that makes, compares and pickles its handles.

    Handles of one communicator share its messages and its state (``CommState`` in ``_core/msg_comm.pxi``).
    """

    _errhandler: Any
    Free: Any
    _predefined = False  # whether this is the handle of COMM_WORLD or COMM_SELF that `free` leaves alone

    @classmethod
    def _takes(cls, comm: Any) -> bool:
        """Return whether a handle of this class may stand for *comm*."""
        return True

    def _handle(self, cls: type[Any]) -> Any:
        """Return another handle of this communicator, of class *cls*, without a call of its constructor."""
        made = _core.DirectComm.__new__(cls, self)
        made.__dict__.update(self.__dict__)
        made.__dict__.pop("_predefined", None)
        made.world.living[id(made)] = made
        if self._errhandler is not None:
            made.Set_errhandler(self._errhandler)
        return made

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CommHandle):
            return NotImplemented
        return self.shares(other) or (self._freed and other._freed)

    def __hash__(self) -> int:
        if self.is_null:
            raise TypeError("unhashable: a null communicator")
        return hash((id(self.world), self.number))

    def __bool__(self) -> bool:
        return not self._freed

    def __repr__(self) -> str:
        if self._freed:
            return f"<viakit MPI.{type(self).__name__} COMM_NULL>"
        return f"<viakit MPI.{type(self).__name__} {self._name!r}: rank {self.rank} of {self.size}>"

    def __reduce__(self) -> Any:
        from viakit.comm import communicator  # it imports this module

        if self is communicator.COMM_NULL:
            return "COMM_NULL"
        if self.is_null:
            return (null, (type(self),))
        if self.number > 1:
            raise ValueError("only COMM_WORLD and COMM_SELF can be pickled; pickle the ranks of the group instead")
        from viakit import comm  # it imports this module

        return (comm.again, (self.number == 1, type(self), self._predefined))

    def _alive(self) -> None:
        """Raise ERR_COMM if this is a null handle or the communicator has been freed."""
        if self._freed:
            raise error("ERR_COMM", f"this communicator {'is COMM_NULL' if self.is_null else 'has been freed'}")

    def counters(self) -> dict[str, int]:
        """Return what this process has counted in the job of this communicator, by name. mpi4py has no such method.

        ``sent``, ``bytes_sent``, ``copies``, ``bytes_copied`` and others count messages and what the engine copied of
        them. ``object_bytes_pickled``, ``object_bytes_in_place`` and ``object_bytes_copied`` count long objects: bytes
        of their pickles, of arrays sent from their own memory, and of arrays that were copied before.

        Raises
        ------
        Exception
            ERR_COMM if this is a null handle or the communicator has been freed.
        """
        self._alive()
        return {**self.world.counters(), **objects.COUNTS}

    def free(self) -> None:
        """Free the communicator, unless it is predefined or null. Collective if it is neither.

        If it is COMM_WORLD or COMM_SELF, only this handle is released.
        """
        if self._freed or self._predefined:
            return
        if self.number < 2:
            self.nullify()
        else:
            self.Free()


def null(kind: type[CommHandle]) -> Any:
    """Return a null handle of a class: from its pickle."""
    return _core.DirectComm.__new__(kind)
