"""``MPI.Info`` and ``MPI.Errhandler``, which viakit stores and reports, and acts on none."""

from __future__ import annotations

from typing import Any

from viakit.comm.errors import error

__all__ = ["ERRORS_ARE_FATAL", "ERRORS_RETURN", "Errhandler", "Info"]


class Info(dict[str, str]):
    """Hints as pairs of key and value: ``MPI.Info``. viakit stores hints and acts on none."""

    @classmethod
    def Create(cls, items: Any = None) -> Info:
        """Create an Info object, optionally from a mapping or from pairs."""
        return cls(items or {})

    def Set(self, key: str, value: str) -> None:
        """Set the value of *key*."""
        self[key] = value

    def Get(self, key: str) -> str | None:
        """Return the value of *key*, or None."""
        return self.get(key)

    def Delete(self, key: str) -> None:
        """Remove *key*.

        Raises
        ------
        Exception
            ERR_INFO if there is no such key.
        """
        if key not in self:
            raise error("ERR_INFO", f"there is no key {key!r}; the keys are {list(self)}")
        del self[key]

    def Get_nkeys(self) -> int:
        """Return the number of keys."""
        return len(self)

    def Get_nthkey(self, n: int) -> str:
        """Return the n-th key, counted from 0."""
        return list(self)[n]

    def Dup(self) -> Info:
        """Duplicate the Info object."""
        return Info(self)

    def Free(self) -> None:
        """Remove all keys."""
        self.clear()


class Errhandler:
    """Error handler: ``MPI.Errhandler``. viakit always raises exceptions, whichever handler is set."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"MPI.{self._name}"


ERRORS_RETURN, ERRORS_ARE_FATAL = Errhandler("ERRORS_RETURN"), Errhandler("ERRORS_ARE_FATAL")
