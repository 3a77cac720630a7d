"""``MPI.Info``: hints, which viakit stores and reports. It acts on those that Spawn and Split_type describe."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from viakit.comm.errors import error
from viakit.comm.handle import Handle, forget

__all__ = ["INFO_ENV", "INFO_NULL", "Info"]

MAX_KEY, MAX_VALUE = 255, 1024
_MISSING: Any = object()


def _text(given: Any) -> str:
    """Return a key or a value as text. Bytes are decoded. Raises TypeError for anything else."""
    if isinstance(given, bytes):
        return given.decode()
    if not isinstance(given, str):
        raise TypeError(f"keys and values of an Info are strings, got {type(given).__name__}")
    return given


class Info(Handle):
    """Hints as pairs of key and value: ``MPI.Info``. It can be used as a dictionary of strings.

    Without an argument the constructor returns a null handle; `Create` makes an object.
    """

    _family = "Info"

    def _hints(self) -> dict[str, str]:
        """Return the pairs. Raises ERR_INFO for a null handle."""
        if self._ref is None:
            raise error("ERR_INFO", "this Info is null: make one with MPI.Info.Create()")
        hints: dict[str, str] = self._ref
        return hints

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._ref is None or self._ref is INFO_ENV._ref:
            return self._reduced()
        return (_created, (type(self), dict(self._ref)))

    def __repr__(self) -> str:
        return f"<viakit MPI.Info {'null' if self._ref is None else self._ref}>"

    @classmethod
    def Create(cls, items: Mapping[str, str] | Iterable[tuple[str, str]] | None = None) -> Info:
        """Create an Info object, optionally from a mapping or from pairs."""
        made = cls._of({})
        made.update({} if items is None else items)
        return made

    @classmethod
    def Create_env(cls, args: Any = None) -> Info:
        """Create an Info object that describes how this process was started.

        Parameters
        ----------
        args : str or sequence of str, optional
            Command line. Default: the one of this process.
        """
        words = [sys.executable, *sys.argv] if args is None else [args] if isinstance(args, str) else list(args)
        hints = {
            "command": words[0] if words else sys.executable,
            "argv": shlex.join(words[1:]),
            "maxprocs": os.environ.get("VIAKIT_SIZE", "1"),
            "soft": os.environ.get("VIAKIT_SIZE", "1"),
            "host": platform.node(),
            "arch": platform.machine(),
            "wdir": os.getcwd(),
            "thread_level": "MPI_THREAD_MULTIPLE",
        }
        return cls._of(hints)

    def Free(self) -> None:
        """Free the object. This handle becomes null.

        Raises
        ------
        Exception
            ERR_INFO for a null handle, and for INFO_ENV.
        """
        if self is INFO_ENV:
            raise error("ERR_INFO", "INFO_ENV is predefined and cannot be freed")
        forget(self._family, self._hints())
        self._ref = None

    def free(self) -> None:
        """Free the object if the handle is not null and not INFO_ENV."""
        if self is not INFO_ENV and self._ref is not None:
            if self._ref is INFO_ENV._ref:
                self._ref = None
            else:
                self.Free()

    def Dup(self) -> Info:
        """Duplicate the Info object."""
        return type(self)._of(dict(self._hints()))

    def Set(self, key: str, value: str) -> None:
        """Set the value of *key*.

        Raises
        ------
        Exception
            ERR_INFO_KEY or ERR_INFO_VALUE if the key or the value is too long.
        """
        hints = self._hints()
        key, value = _text(key), _text(value)
        if not 0 < len(key) <= MAX_KEY:
            raise error("ERR_INFO_KEY", f"a key has 1 to {MAX_KEY} characters, this one {len(key)}")
        if len(value) > MAX_VALUE:
            raise error("ERR_INFO_VALUE", f"a value has at most {MAX_VALUE} characters, this one {len(value)}")
        hints[key] = value

    def Get(self, key: str) -> str | None:
        """Return the value of *key*, or None."""
        return self._hints().get(_text(key))

    def Delete(self, key: str) -> None:
        """Remove *key*.

        Raises
        ------
        Exception
            ERR_INFO_NOKEY if there is no such key.
        """
        hints, key = self._hints(), _text(key)
        if key not in hints:
            raise error("ERR_INFO_NOKEY", f"there is no key {key!r}; the keys are {list(hints)}")
        del hints[key]

    def Get_nkeys(self) -> int:
        """Return the number of keys."""
        return len(self._hints())

    def Get_nthkey(self, n: int) -> str:
        """Return the n-th key, counted from 0.

        Raises
        ------
        Exception
            ERR_ARG if there are not so many keys.
        """
        keys = list(self._hints())
        if not 0 <= n < len(keys):
            raise error("ERR_ARG", f"key {n} does not exist; this Info has {len(keys)}, counted from 0")
        return keys[n]

    # ------------------------------------------------------------ dictionary

    def __len__(self) -> int:
        return len(self._ref or ())

    def __contains__(self, key: object) -> bool:
        return key in (self._ref or ())

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __getitem__(self, key: str) -> str:
        return str((self._ref or {})[key])

    def __setitem__(self, key: str, value: str) -> None:
        if self._ref is None:
            raise KeyError(key)
        self.Set(key, value)

    def __delitem__(self, key: str) -> None:
        if key not in self:
            raise KeyError(key)
        self.Delete(key)

    def get(self, key: str, default: str | None = None) -> str | None:
        """Return the value of *key*, or *default*."""
        return (self._ref or {}).get(key, default)

    def keys(self) -> list[str]:
        """Return the keys."""
        return list(self._ref or ())

    def values(self) -> list[str]:
        """Return the values."""
        return list((self._ref or {}).values())

    def items(self) -> list[tuple[str, str]]:
        """Return the pairs of key and value."""
        return list((self._ref or {}).items())

    def update(self, items: Mapping[str, str] | Iterable[tuple[str, str]] = (), **kwds: str) -> None:
        """Set the values of several keys."""
        if self._ref is None:
            raise KeyError("this Info is null: make one with MPI.Info.Create()")
        for key, value in dict(items, **kwds).items():
            self.Set(key, value)

    def pop(self, key: str, default: Any = _MISSING) -> Any:
        """Remove a key and return its value, or *default* if there is no such key."""
        if key in self:
            return self._ref.pop(key)
        if default is _MISSING:
            raise KeyError(key)
        return default

    def popitem(self) -> tuple[str, str]:
        """Remove the last key, and return it and its value."""
        if not self._ref:
            raise KeyError("this Info has no keys")
        key, value = self._ref.popitem()
        return key, value

    def copy(self) -> Info:
        """Duplicate the Info object; the copy of a null handle is null."""
        return type(self)._of(None) if self._ref is None else self.Dup()

    def clear(self) -> None:
        """Remove all keys."""
        if self._ref is not None:
            self._ref.clear()


def _created(kind: type[Info], items: dict[str, str]) -> Info:
    return kind.Create(items)


INFO_NULL: Info = Info()
INFO_ENV: Info = INFO_NULL
INFO_ENV = Info.Create_env()
