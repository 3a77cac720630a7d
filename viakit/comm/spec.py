"""Interpretation of buffer arguments, in all forms that mpi4py accepts.

A simple argument is a buffer, or a list of buffer, count (or counts and displacements) and datatype. A vector has a
count and a displacement for each rank. The argument of Alltoallw also has a datatype for each rank, and its
displacements are in bytes.
"""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm.buffers import host
from viakit.comm.datatype import BYTE, Datatype, as_bytes, elements_in, fromcode, of_buffer
from viakit.comm.errors import CLASSES, ArgumentException, error


class Constant:
    """Special value of a buffer argument, such as ``MPI.IN_PLACE``."""

    def __init__(self, name: str, number: int = 0) -> None:
        self._name, self._number = name, number

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


IN_PLACE = Constant("IN_PLACE", -1)
BUFFER_AUTOMATIC = Constant("BUFFER_AUTOMATIC", -2)
BOTTOM = Constant("BOTTOM")
_NOTHING = np.zeros(0, dtype=np.uint8)


def in_place(operand: Any) -> bool:
    """Return whether the operand lies in the result's buffer: the argument is IN_PLACE, or None as in mpi4py."""
    return operand is None or operand is IN_PLACE


class Simple:
    """*count* elements of *datatype* in *memory* (bytes), the first at byte *start*."""

    def __init__(self, memory: np.ndarray, datatype: Datatype, count: int, start: int = 0) -> None:
        self.memory, self.datatype, self.count, self.start = memory, datatype, count, start
        if count and (start < 0 or start + (count - 1) * datatype.extent + datatype.true_ub > memory.size):
            raise ArgumentException(
                CLASSES["ERR_TRUNCATE"],
                f"{counted(count, 'element')} of {counted(datatype.extent, 'byte')} at byte {start} "
                f"do{'es' * (count == 1)} not fit into a buffer of {counted(memory.size, 'byte')}",
            )

    @property
    def nbytes(self) -> int:
        """Length of the packed data in bytes."""
        return self.count * self.datatype.size

    def pack(self) -> np.ndarray:
        """Return the data as bytes without gaps: a view if the datatype has no gaps, otherwise a copy."""
        return self.datatype.gather(self.memory, self.start, self.count)

    def unpack(self, data: np.ndarray) -> None:
        """Write packed bytes to the places of the elements."""
        self.datatype.scatter(self.memory, self.start, self.count, data)

    @property
    def direct(self) -> bool:
        """Whether `pack` returns a view, into which a message can be received."""
        return self.datatype.contiguous

    def check_twin(self, operand: Simple) -> None:
        """Raise ValueError unless *operand* has the same datatype and length as this result."""
        mine, others = self.datatype.dtype, operand.datatype.dtype
        if mine != others:
            raise ValueError(f"mismatch in send and receive datatypes: {others} is sent and {mine} received")
        if self.nbytes != operand.nbytes:
            raise ValueError(f"mismatch in send count and receive count: {operand.nbytes} and {self.nbytes} bytes")

    def part(self, index: int, parts: int) -> Simple:
        """Return one of *parts* equal parts."""
        each = self.count // parts
        return Simple(self.memory, self.datatype, each, self.start + index * each * self.datatype.extent)


def _absolute(kind: Any, count: Any, displacement: Any) -> Simple:
    """Interpret a buffer BOTTOM: elements at absolute addresses (``MPI.Get_address``), which cannot be checked."""
    datatype, number = _datatype(kind, None), _number(count or 0)
    first = datatype.true_lb
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


def _at_address(address: int, datatype: Datatype, count: int) -> Simple:
    """Return *count* elements that start at an absolute address."""
    if not count or not datatype.size:
        return Simple(_NOTHING, datatype, 0)
    first, last = datatype.true_lb, (count - 1) * datatype.extent + datatype.true_ub
    if address + first <= 0:
        raise error("ERR_BUFFER", "BOTTOM needs absolute addresses (Get_address), in the datatype or the displacement")
    return _from(address + first, last - first, datatype, count, -first)


def _datatype(what: Any, view: memoryview | None) -> Datatype:
    if what is None:
        return BYTE if view is None else of_buffer(view)
    if isinstance(what, Datatype):
        if not what:
            raise error("ERR_TYPE", "the datatype is DATATYPE_NULL or has been freed; use one that is valid")
        return what
    if isinstance(what, str):
        return fromcode(what)
    return fromcode(np.dtype(what).str)


def _is_datatype(what: Any) -> bool:
    return isinstance(what, (Datatype, str))


def _memory(buffer: Any, writable: bool) -> tuple[np.ndarray, memoryview | None]:
    if buffer is None:
        return _NOTHING, None
    if buffer is BOTTOM:
        raise error(
            "ERR_BUFFER",
            "BOTTOM needs a count and a datatype with absolute addresses; vector collectives do not accept it",
        )
    if buffer is IN_PLACE:
        raise error("ERR_BUFFER", "IN_PLACE is not possible for this argument; pass a buffer")
    buffer = host(buffer)
    return as_bytes(buffer, writable), memoryview(buffer)


def _number(what: Any) -> int:
    number = operator.index(what)  # a float is refused, not truncated
    if number < 0:
        raise error("ERR_COUNT", f"count must be 0 or more, got {number}")
    return number


def _take_apart(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Return buffer, count, displacement and datatype, or None for each. A pair may hold count and displacement."""
    if spec is IN_PLACE:
        raise error("ERR_BUFFER", "IN_PLACE is not possible for this argument; pass a buffer")
    if spec is None:
        raise TypeError("message: expecting a buffer, got None; pass an array, or [None, 0, datatype]")
    given = tuple(spec) if isinstance(spec, (list, tuple)) else (spec,)
    if not 1 <= len(given) <= 4:
        raise ValueError("message: expecting 1 to 4 items")
    if len(given) == 2 and _is_datatype(given[1]):
        return given[0], None, None, given[1]
    if len(given) == 3:
        return given[0], given[1], None, given[2]
    buffer, count, displacement, kind = given + (None,) * (4 - len(given))
    return buffer, count, displacement, kind


def _check_whole(length: int, datatype: Datatype) -> None:
    """Raise ValueError if a buffer without a count cannot hold a whole number of elements."""
    if length and datatype.extent <= 0:
        raise ValueError(f"message: cannot infer count, datatype extent {datatype.extent}")
    if datatype.contiguous and datatype.extent and length % datatype.extent:
        raise ValueError(
            f"message: buffer length {length} is not a multiple of the datatype's extent {datatype.extent}"
        )


def simple(spec: Any, writable: bool, blocks: int = 1) -> Simple:
    """Interpret an argument with one buffer.

    Parameters
    ----------
    spec : buffer or list
        The argument.
    writable : bool
        Whether the buffer must be writable.
    blocks : int
        Number of ranks that have a block in the buffer. A count applies to one block. Without a count the buffer holds
        as many elements as fit, which must be a multiple of `blocks`.

    Returns
    -------
    Simple
        All elements of the buffer.
    """
    buffer, count, displacement, kind = _take_apart(spec)
    if isinstance(count, (list, tuple)):
        count, displacement = count
    if buffer is BOTTOM and kind is not None:
        return _absolute(kind, count, displacement)
    memory, view = _memory(buffer, writable)
    datatype = _datatype(kind, view)
    start = operator.index(displacement or 0) * datatype.extent
    if start < 0:
        raise ValueError(f"message: negative displacement {displacement}")
    if start > memory.size:
        raise ValueError(
            f"message: displacement {displacement} out of bounds, the buffer has {counted(memory.size, 'byte')}"
        )
    if count is None:
        length = max(memory.size - start, 0)
        _check_whole(length, datatype)
        count = elements_in(length, datatype)
        if blocks > 1 and count % blocks:
            raise ValueError(
                f"message: number of datatype items {count} is not a multiple of the required number of blocks {blocks}"
            )
    else:
        count = _number(count) * blocks
    return Simple(memory, datatype, _number(count), start)


class Vector:
    """One part of a buffer for each rank."""

    def __init__(self, parts: list[Simple]) -> None:
        self.parts = parts


def _list(what: Any, ranks: int, name: str) -> list[int]:
    numbers = [operator.index(x) for x in (what.tolist() if isinstance(what, np.ndarray) else what)]
    if len(numbers) != ranks:
        raise ValueError(f"message: expecting {ranks} {name}, got {len(numbers)}")
    return numbers


def vector(spec: Any, writable: bool, ranks: int) -> Vector:
    """Interpret the argument of a vector collective (Scatterv, Allgatherv, ...)."""
    buffer, counts, displacements, kind = _take_apart(spec)
    if isinstance(counts, tuple) and len(counts) == 2:
        counts, displacements = counts
    memory, view = (_NOTHING, None) if buffer is BOTTOM else _memory(buffer, writable)
    datatype = _datatype(kind, view)
    if isinstance(counts, np.ndarray) and counts.ndim == 0:
        counts = int(counts)
    if counts is None:
        _check_whole(memory.size, datatype)
        total = elements_in(memory.size, datatype)
        counts = [total // ranks + (i < total % ranks) for i in range(ranks)]
    elif isinstance(counts, (int, np.integer)):
        counts = [int(counts)] * ranks
    else:
        counts = _list(counts, ranks, "counts")
    if displacements is None:
        displacements = [sum(counts[:i]) for i in range(ranks)]
    elif isinstance(displacements, (int, np.integer)):
        displacements = [int(displacements) * i for i in range(ranks)]
    else:
        displacements = _list(displacements, ranks, "displacements")
    places = [(_number(c), d * datatype.extent) for c, d in zip(counts, displacements, strict=True)]
    if buffer is BOTTOM:
        return Vector([_at_address(at, datatype, count) for count, at in places])
    return Vector([Simple(memory, datatype, count, at) for count, at in places])


def w_vector(spec: Any, writable: bool, ranks: int) -> Vector:
    """Interpret the argument of Alltoallw, whose displacements are in bytes."""
    if not isinstance(spec, (list, tuple)) or not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    counts: Any = None
    displacements: Any = None
    if len(spec) == 2:
        buffer, kinds = spec
    elif len(spec) == 3:
        buffer, (counts, displacements), kinds = spec
    else:
        buffer, counts, displacements, kinds = spec
    if buffer is BOTTOM and (counts is None or displacements is None):
        raise ValueError("message: BOTTOM needs counts and displacements, which are addresses (Get_address)")
    memory = None if buffer is BOTTOM else _memory(buffer, writable)[0]
    datatypes = [_datatype(kind, None) for kind in ([kinds] * ranks if _is_datatype(kinds) else kinds)]
    counts = [1] * ranks if counts is None else _list(counts, ranks, "counts")
    displacements = [0] * ranks if displacements is None else _list(displacements, ranks, "displacements")
    return Vector(
        [
            _at_address(d, datatype, _number(c)) if memory is None else Simple(memory, datatype, _number(c), d)
            for datatype, c, d in zip(datatypes, counts, displacements, strict=True)
        ]
    )  # fmt: skip


def same_blocks(total: Simple, ranks: int) -> Sequence[Simple]:
    """Split a simple argument into one equal part for each rank."""
    if total.count % ranks:
        raise ValueError(f"message: a count of {total.count} is not a multiple of {counted(ranks, 'rank')}")
    return [total.part(i, ranks) for i in range(ranks)]
