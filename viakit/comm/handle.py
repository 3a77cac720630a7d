"""Handles: how Python objects stand for MPI's objects.

Several Python objects may stand for the same object of MPI: ``MPI.Info(info)`` is a second handle of ``info``. They
are equal, and freeing one makes only that one null. A handle also has a number, which a program can store and turn into
a handle again (``handle``, ``toint``, ``py2f``). As in mpi4py, null handles cannot be hashed, and constants are pickled
by name.
"""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Handle", "Numbered", "addressof", "handleof", "sizeof"]

_lock = threading.Lock()
_next = itertools.count(1)
_number_of: dict[tuple[str, int], int] = {}  # by family and identity of the object
_object_of: dict[int, tuple[str, Any, Any]] = {}  # by number: family, the object's identity, a handle of it


class Numbered:
    """Part of a handle that gives it a number.

    A class with this part has `_family`, the name of its kind of objects, and a method `_identity`. The method returns
    the object that all handles share, or None for a null handle.
    """

    _family: ClassVar[str] = ""

    def _identity(self) -> Any:
        raise NotImplementedError

    def _another(self) -> Any:
        """Return another handle of the same object."""
        return type(self)(self)  # type: ignore[call-arg]

    @property
    def handle(self) -> int:
        """Number of the object that this handle stands for; 0 for a null handle."""
        identity = self._identity()
        if identity is None:
            return 0
        with _lock:
            key = (self._family, id(identity))
            number = _number_of.get(key)
            if number is None:
                number = _number_of[key] = next(_next)
                _object_of[number] = (self._family, identity, self._another())
            return number

    @classmethod
    def fromhandle(cls, handle: int) -> Self:
        """Return a handle of the object with a number.

        Parameters
        ----------
        handle : int
            Number that `handle` of an object of the same kind has returned; 0 for a null handle.

        Raises
        ------
        ValueError
            If no object of this kind has the number.
        """
        if handle == 0:
            return cls()
        family, _, first = _object_of.get(handle, ("", None, None))
        if family != cls._family:
            raise ValueError(
                f"no {cls._family} has the handle {handle}; pass a number that its attribute handle returned"
            )
        made: Any = first._another()
        return made if isinstance(made, cls) else cls(made)  # type: ignore[call-arg]

    def toint(self) -> int:
        """Return the number of the object that this handle stands for."""
        return self.handle

    @classmethod
    def fromint(cls, arg: int, /) -> Self:
        """Return a handle of the object with a number; see `fromhandle`."""
        return cls.fromhandle(arg)

    def py2f(self) -> int:
        """Return the number of the object that this handle stands for, as a Fortran handle."""
        return self.handle

    @classmethod
    def f2py(cls, arg: int, /) -> Self:
        """Return a handle of the object with a Fortran handle; see `fromhandle`."""
        return cls.fromhandle(arg)

    def _constant(self) -> str | None:
        """Return the name of the constant that this handle is in the module of its class, or None."""
        names = vars(sys.modules[type(self).__module__])
        return next((name for name, value in names.items() if value is self and name.isupper()), None)

    def _equal_constant(self) -> Any:
        """Return the constant that stands for the same object, or None."""
        for kind in type(self).__mro__:
            for name, value in vars(sys.modules.get(kind.__module__, sys)).items():
                if name.isupper() and isinstance(value, kind) and isinstance(self, type(value)) and value == self:
                    return value
        return None

    def _reduced(self) -> str | tuple[Any, ...]:
        """Return the pickle of a constant or of a handle equal to one.

        Raises
        ------
        ValueError
            If the handle is not a constant: its object exists only in this process.
        """
        name = self._constant()
        if name is not None:
            return name
        same = self._equal_constant()
        if same is None:
            raise ValueError(f"cannot pickle {type(self).__name__}: it stands for an object of this process only")
        return (type(self), (same,))


def forget(family: str, identity: Any) -> None:
    """Release the number of an object that has been freed."""
    with _lock:
        number = _number_of.pop((family, id(identity)), None)
        if number is not None:
            del _object_of[number]


class Handle(Numbered):
    """Handle whose object is `_ref`; None for a null handle.

    Parameters
    ----------
    other : Handle, optional
        Handle of the same kind, of which this one becomes another handle. Default: a null handle.
    """

    _ref: Any

    def __new__(cls, other: Any = None) -> Self:
        """Return a null handle, or another handle of *other*'s object."""
        base = cls._base()
        if other is not None and not isinstance(other, base):
            raise TypeError(f"{cls.__name__}() takes no argument or a {base.__name__}, got {type(other).__name__}")
        made = super().__new__(cls)
        made._ref = getattr(other, "_ref", None)
        return made

    @classmethod
    def _base(cls) -> type:
        return next(kind for kind in reversed(cls.__mro__) if issubclass(kind, Handle) and "_family" in vars(kind))

    @classmethod
    def _of(cls, ref: Any) -> Self:
        """Return a handle of an object."""
        made = Handle.__new__(cls)
        made._ref = ref
        return made

    def _identity(self) -> Any:
        return self._ref

    def __bool__(self) -> bool:
        return self._ref is not None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Handle) or not isinstance(other, self._base()):
            return NotImplemented
        return self._ref is other._ref

    def __hash__(self) -> int:
        if self._ref is None:
            raise TypeError(f"unhashable: a null {self._base().__name__}")
        return hash((self._family, id(self._ref)))

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self._reduced()


def _is_handle(kind: type) -> bool:
    return issubclass(kind, Numbered) or kind.__name__ == "Status" or any(k.__name__ == "Status" for k in kind.__mro__)


def sizeof(arg: Any) -> int:
    """Return the size in bytes of the value that an MPI object, or its class, has in a C program of viakit."""
    kind = arg if isinstance(arg, type) else type(arg)
    if not _is_handle(kind):
        raise TypeError(f"expecting an MPI object or its class, got {kind.__name__}")
    return 8 if issubclass(kind, Numbered) and hasattr(kind, "_identity") else 32


def addressof(arg: Any) -> int:
    """Return the address of the Python object that stands for an MPI object."""
    if not _is_handle(type(arg)):
        raise TypeError(f"expecting an MPI object, got {type(arg).__name__}")
    return id(arg)


def handleof(arg: Any) -> int:
    """Return the number of the object that a handle stands for."""
    if not _is_handle(type(arg)):
        raise TypeError(f"expecting an MPI object, got {type(arg).__name__}")
    return arg.handle if isinstance(arg, Numbered) else 0
