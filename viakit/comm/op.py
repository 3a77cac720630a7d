"""Reduction operations: predefined ones, computed by NumPy on arrays and by Python on objects, and user-defined."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit import _core
from viakit.comm.buffers import Buffer
from viakit.comm.datatype import Datatype
from viakit.comm.errors import error
from viakit.comm.handle import Numbered, forget


def _logical(ufunc: Callable[..., Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    return lambda a, b: ufunc(a, b).astype(a.dtype)


def _extreme(better: Callable[..., Any]) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    def choose(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        if a.dtype.names is None:
            raise error(
                "ERR_OP",
                "MAXLOC and MINLOC need a pair datatype: FLOAT_INT, DOUBLE_INT, LONG_INT, INT_INT or SHORT_INT",
            )
        take = better(b["value"], a["value"]) | ((a["value"] == b["value"]) & (b["index"] < a["index"]))
        return np.where(take, b, a)

    return choose


def _pair(better: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def choose(x: Any, y: Any) -> Any:
        (u, i), (v, j) = x, y
        if better(u, v):
            return u, i
        if better(v, u):
            return v, j
        return (u, i) if i <= j else (v, j)

    return choose


class Op(Numbered, _core.MsgOp):
    """Reduction operation: ``MPI.Op``.

    An operation can be called with two objects. The operand of the lower rank comes first.
    """

    _family = "Op"

    def __init__(
        self,
        name: str | Op = "MPI_OP_NULL",
        arrays: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
        objects: Callable[[Any, Any], Any] | None = None,
        commutative: bool = True,
        user: Callable[[Any, Any, Datatype], Any] | None = None,
        kinds: str = "biufc?V",
    ) -> None:
        if isinstance(name, Op):  # another handle of the same operation
            self.__dict__.update(name.__dict__)
            self._number = name._number
            return
        if not isinstance(name, str) or not name.startswith("MPI_"):
            raise TypeError(f"Op() takes no argument or an Op, got {type(name).__name__}; use Op.Create for a function")
        self._key: object = object() if user is not None else name
        self.name, self._arrays, self._objects, self._commutative = name, arrays, objects, commutative
        self._user: Callable[[Any, Any, Any], Any] | None = user  # The datatype is None when it combines objects.
        self._kinds, self._number = kinds, _core.COLL_OPS.get(name, -1)

    def __repr__(self) -> str:
        return f"<viakit MPI.Op {self.name}>"

    def __bool__(self) -> bool:
        return self._key != "MPI_OP_NULL"

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, Op) else NotImplemented

    def __hash__(self) -> int:
        if not self:
            raise TypeError("unhashable: a null Op")
        return hash(self._key)

    def _identity(self) -> Any:
        return self._key if self else None

    def __reduce__(self) -> str | tuple[Any, ...]:
        if self._user is not None:
            return (Op.Create, (self._user, self._commutative))
        known = _named(self.name)
        return (_named, (self.name,)) if self is known else (type(self), (known,))

    def __call__(self, x: Any, y: Any) -> Any:
        """Combine two objects. A user-defined function gets None as datatype."""
        if self._user is not None:
            return self._user(x, y, None)
        if self._objects is None:
            raise ValueError(f"{self.name} has no function to combine operands; use an operation such as MPI.SUM")
        return self._objects(x, y)

    @classmethod
    def Create(cls, function: Callable[[Any, Any, Datatype], Any], commute: bool = False) -> Op:
        """Create a user-defined operation.

        Parameters
        ----------
        function : callable
            Called as ``function(inbuf, inoutbuf, datatype)`` with two buffers (`MPI.buffer`). It stores `inbuf` op
            `inoutbuf` in `inoutbuf`.
        commute : bool
            Whether the operation is commutative.
        """
        if not callable(function):
            raise TypeError(f"an operation is made of a function, got {type(function).__name__}")
        return cls("MPI_OP_USER", None, None, bool(commute), function)

    def Free(self) -> None:
        """Free a user-defined operation.

        Raises
        ------
        Exception
            ERR_OP if the operation is predefined.
        """
        if self._user is None:
            raise error("ERR_OP", f"{self.name} is predefined and cannot be freed")
        forget(self._family, self._key)
        self._become_null()

    def _become_null(self) -> None:
        self._user = self._arrays = self._objects = None
        self._key, self.name, self._number = "MPI_OP_NULL", "MPI_OP_NULL", -1

    def free(self) -> None:
        """Free the operation; a handle of a predefined one becomes null, and the constant itself stays."""
        if self._user is not None:
            self.Free()
        elif self is not _BY_NAME.get(self.name):
            self._become_null()

    def Is_commutative(self) -> bool:
        """Return whether the operation is commutative."""
        return self._commutative

    @property
    def is_commutative(self) -> bool:
        """Whether the operation is commutative."""
        return self._commutative

    @property
    def is_predefined(self) -> bool:
        """Whether the operation is predefined by MPI."""
        return self._user is None

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Combine two local buffers and store the result in the second.

        Parameters
        ----------
        inbuf, inoutbuf : buffer or list
            Operands of the same datatype and count.
        """
        from viakit.comm.spec import simple  # it imports this module

        first, second = simple(inbuf, False), simple(inoutbuf, True)
        second.check_twin(first)
        second.unpack(self.combine(first.pack(), second.pack(), second.datatype, second.count))

    def check(self, datatype: Datatype) -> None:
        """Raise ERR_OP if the operation cannot combine elements of *datatype*."""
        if self._user is not None:
            return
        if self._arrays is None:
            raise error("ERR_OP", "OP_NULL has no function to combine operands; use an operation such as MPI.SUM")
        dtype = datatype.dtype
        if dtype is None or dtype.kind not in self._kinds:
            raise error("ERR_OP", f"{self.name} cannot combine elements of {datatype.name or 'a derived datatype'}")

    def combine(self, low: np.ndarray, high: np.ndarray, datatype: Datatype, count: int) -> np.ndarray:
        """Return `low` op `high` as new packed bytes; the operands are not changed.

        Parameters
        ----------
        low, high : numpy.ndarray
            Packed operands; `low` comes from the lower ranks.
        datatype : Datatype
            Datatype of the elements.
        count : int
            Number of elements.
        """
        if self._user is not None:
            result = high.copy()
            if datatype.contiguous:
                self._user(Buffer(low), Buffer(result), datatype)
                return result
            wide_low = np.zeros(count * datatype.extent, np.uint8)
            wide = wide_low.copy()
            datatype.scatter(wide_low, 0, count, low)
            datatype.scatter(wide, 0, count, result)
            self._user(Buffer(wide_low), Buffer(wide), datatype)
            return datatype.gather(wide, 0, count)
        self.check(datatype)
        assert self._arrays is not None
        assert datatype.dtype is not None
        dtype = datatype.dtype
        if dtype.names is None:
            return _as_bytes(self._arrays(_typed(low, dtype), _typed(high, dtype)))
        pairs = [np.zeros(count, dtype), np.zeros(count, dtype)]
        for pair, data in zip(pairs, (low, high), strict=True):
            datatype.scatter(pair.view(np.uint8), 0, count, data)
        return datatype.gather(self._arrays(*pairs).astype(dtype).view(np.uint8), 0, count)


def _largest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the larger elements, and of equal ones (0.0 and -0.0) those of `low`, as csrc/coll/combine.c does."""
    return np.where((low >= high) | (low != low), low, high)


def _smallest(low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Return the smaller elements, otherwise as :func:`_largest`."""
    return np.where((low <= high) | (low != low), low, high)


def _typed(data: np.ndarray, dtype: np.dtype) -> np.ndarray:
    if data.ctypes.data % dtype.alignment:
        data = data.copy()
    return data.view(dtype)


def _as_bytes(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint8)


_INTEGERS = "biu?"
NAMED: dict[str, Op] = {
    "OP_NULL": Op("MPI_OP_NULL"),
    "MAX": Op("MPI_MAX", _largest, lambda x, y: max(x, y), kinds="biuf?"),
    "MIN": Op("MPI_MIN", _smallest, lambda x, y: min(x, y), kinds="biuf?"),
    "SUM": Op("MPI_SUM", lambda a, b: np.add(a, b, dtype=a.dtype), operator.add, kinds="biufc?"),
    "PROD": Op("MPI_PROD", lambda a, b: np.multiply(a, b, dtype=a.dtype), operator.mul, kinds="biufc?"),
    "LAND": Op("MPI_LAND", _logical(np.logical_and), lambda x, y: bool(x) & bool(y), kinds=_INTEGERS),
    "BAND": Op("MPI_BAND", np.bitwise_and, operator.and_, kinds=_INTEGERS),
    "LOR": Op("MPI_LOR", _logical(np.logical_or), lambda x, y: bool(x) | bool(y), kinds=_INTEGERS),
    "BOR": Op("MPI_BOR", np.bitwise_or, operator.or_, kinds=_INTEGERS),
    "LXOR": Op("MPI_LXOR", _logical(np.logical_xor), lambda x, y: bool(x) ^ bool(y), kinds=_INTEGERS),
    "BXOR": Op("MPI_BXOR", np.bitwise_xor, operator.xor, kinds=_INTEGERS),
    "MAXLOC": Op("MPI_MAXLOC", _extreme(np.greater), _pair(operator.gt), kinds="V"),
    "MINLOC": Op("MPI_MINLOC", _extreme(np.less), _pair(operator.lt), kinds="V"),
    "REPLACE": Op("MPI_REPLACE", lambda a, b: a.copy(), lambda x, y: y, commutative=False),
    "NO_OP": Op("MPI_NO_OP", lambda a, b: b.copy(), lambda x, y: x, commutative=False),
}
_BY_NAME = {op.name: op for op in NAMED.values()}


def _named(name: str) -> Op:
    return _BY_NAME[name]
