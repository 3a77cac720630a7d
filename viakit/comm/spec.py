"""Interpretation of buffer arguments, in all forms that mpi4py accepts.

`viakit/_core/spec.pxi` interprets the common forms: `Simple`, `simple`, `vector` and `w_vector`. This module has the
constants, absolute addresses, and the errors.

A simple argument is a buffer, or a list of buffer, count (or counts and displacements) and datatype. A vector has a
count and a displacement for each rank. The argument of Alltoallw also has a datatype for each rank, and its
displacements are in bytes.
"""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit import _core
from viakit._core import Simple, simple, vector, w_vector
from viakit.base.words import counted
from viakit.comm.buffers import host
from viakit.comm.datatype import BYTE, Datatype, as_bytes, fromcode, of_buffer
from viakit.comm.errors import CLASSES, ArgumentException, error

__all__ = ["Simple", "in_place", "same_blocks", "simple", "vector", "w_vector"]


class Constant(_core.NoMemory):
    """Special value of a buffer argument, such as ``MPI.IN_PLACE``. As a buffer it is empty."""

    _name, _number = "", 0

    def __int__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Constant):
            return self._name == other._name
        return self._number == other if isinstance(other, int) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._number)

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return bool(self._number)


class BottomType(Constant):
    """Type of ``MPI.BOTTOM``: the datatype or the displacement has absolute addresses."""

    _name = "BOTTOM"

    def __index__(self) -> int:
        return self._number


class InPlaceType(Constant):
    """Type of ``MPI.IN_PLACE``: the operand already is in the result's buffer."""

    _name, _number = "IN_PLACE", -1


class BufferAutomaticType(Constant):
    """Type of ``MPI.BUFFER_AUTOMATIC``: the library allocates the memory for buffered sends."""

    _name, _number = "BUFFER_AUTOMATIC", -2


IN_PLACE, BUFFER_AUTOMATIC, BOTTOM = InPlaceType(), BufferAutomaticType(), BottomType()
_NOTHING = np.zeros(0, dtype=np.uint8)


def in_place(operand: Any) -> bool:
    """Return whether the operand lies in the result's buffer: the argument is IN_PLACE, or None as in mpi4py."""
    return operand is None or operand is IN_PLACE


# ---------------------------------------------------------------- what the core leaves to this module


def refuse_place(extent: int, count: int, start: int, nbytes: int) -> None:
    """Raise the error for elements that do not lie inside their buffer."""
    raise ArgumentException(
        CLASSES["ERR_TRUNCATE"],
        f"{counted(count, 'element')} of {counted(extent, 'byte')} at byte {start} "
        f"do{'es' * (count == 1)} not fit into a buffer of {counted(nbytes, 'byte')}",
    )


def refuse_count(number: int) -> None:
    """Raise the error for a negative count."""
    raise error("ERR_COUNT", f"count must be 0 or more, got {number}")


def refuse_buffer(what: Any) -> None:
    """Raise the error for None or a constant in the place of a buffer."""
    if what is None:
        raise TypeError("message: expecting a buffer, got None; pass an array, or [None, 0, datatype]")
    if what is BOTTOM:
        raise error(
            "ERR_BUFFER",
            "BOTTOM needs a count and a datatype with absolute addresses; vector collectives do not accept it",
        )
    raise error("ERR_BUFFER", f"{what!r} is not possible for this argument; pass a buffer")


def absolute(kind: Any, count: Any, displacement: Any) -> Simple:
    """Interpret a buffer BOTTOM: elements at absolute addresses (``MPI.Get_address``), which cannot be checked."""
    datatype, number = datatype_of(kind, None), operator.index(count or 0)
    first = datatype.true_lb
    if number < 0:
        refuse_count(number)
    if not number:
        return Simple(_NOTHING, datatype, 0)
    if first <= 0 or displacement:
        raise error("ERR_BUFFER", "BOTTOM needs a datatype with absolute addresses (Get_address) and no displacement")
    length = (number - 1) * datatype.extent + datatype.true_ub - first if number else 0
    # The memory reaches from the first address to the last. Bytes between the blocks are not touched.
    return _from(first, length, datatype, number, -first)


def _from(address: int, length: int, datatype: Datatype, count: int, start: int) -> Simple:
    memory: Any = (ctypes.c_uint8 * max(length, 0)).from_address(address)
    found = Simple(np.frombuffer(memory, np.uint8), datatype, 0)
    found.count, found.start = count, start
    return found


def at_address(address: int, datatype: Datatype, count: int) -> Simple:
    """Return *count* elements that start at an absolute address."""
    if not count or not datatype.size:
        return Simple(_NOTHING, datatype, 0)
    first, last = datatype.true_lb, (count - 1) * datatype.extent + datatype.true_ub
    if address + first <= 0:
        raise error("ERR_BUFFER", "BOTTOM needs absolute addresses (Get_address), in the datatype or the displacement")
    return _from(address + first, last - first, datatype, count, -first)


def datatype_of(what: Any, view: memoryview | None) -> Datatype:
    """Return the datatype that an argument names; None means the type of the buffer's elements, or bytes."""
    if what is None:
        return BYTE if view is None else of_buffer(view)
    if isinstance(what, Datatype):
        if not what:
            raise error("ERR_TYPE", "the datatype is DATATYPE_NULL or has been freed; use one that is valid")
        return what
    if isinstance(what, str):
        return fromcode(what)
    return fromcode(np.dtype(what).str)


def memory_of(buffer: Any, writable: bool) -> tuple[np.ndarray, memoryview | None]:
    """Return the memory of a buffer as bytes, and a view of its elements; no memory for None."""
    if buffer is None:
        return _NOTHING, None
    if isinstance(buffer, Constant):
        refuse_buffer(buffer)
    buffer = host(buffer)
    return as_bytes(buffer, writable), memoryview(buffer)


_core.set_rare_arguments(sys.modules[__name__], np)


def same_blocks(total: Simple, ranks: int) -> Sequence[Simple]:
    """Split a simple argument into one equal part for each rank."""
    if total.count % ranks:
        raise ValueError(f"message: a count of {total.count} is not a multiple of {counted(ranks, 'rank')}")
    return [total.part(i, ranks) for i in range(ranks)]
