"""What a buffer argument means, in all the forms that mpi4py takes.

A simple one is a buffer, or a list of buffer, count (or counts and displacements) and datatype; a vector has a
count and a displacement for each rank; a "w" has a datatype for each rank, too, and displacements in bytes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit._comm.datatype import BYTE, Datatype, as_bytes, elements_in, fromcode, of_buffer
from viakit._comm.errors import CLASSES, ArgumentException, error
from viakit._words import counted


class Constant:
    """A word with a meaning of its own, such as ``MPI.IN_PLACE``."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name

    def __reduce__(self) -> str:
        return self._name

    def __bool__(self) -> bool:
        return False


IN_PLACE = Constant("IN_PLACE")
BOTTOM = Constant("BOTTOM")
_NOTHING = np.zeros(0, dtype=np.uint8)


def in_place(operand: Any) -> bool:
    """Whether an argument says that the operand is where the result will be: IN_PLACE, or None as in mpi4py."""
    return operand is None or operand is IN_PLACE


class Simple:
    """`count` elements of `datatype` in `memory` (bytes) from byte `start` on."""

    def __init__(self, memory: np.ndarray, datatype: Datatype, count: int, start: int = 0) -> None:
        self.memory, self.datatype, self.count, self.start = memory, datatype, count, start
        if count and (start < 0 or start + (count - 1) * datatype.extent + datatype.true_ub > memory.size):
            raise ArgumentException(
                CLASSES["ERR_TRUNCATE"],
                f"{counted(count, 'element')} of {counted(datatype.extent, 'byte')} from byte {start} on "
                f"do{'es' * (count == 1)} not fit into {counted(memory.size, 'byte')}",
            )

    @property
    def nbytes(self) -> int:
        """Bytes of data, packed."""
        return self.count * self.datatype.size

    def pack(self) -> np.ndarray:
        """The data as bytes without gaps: a view where there are none."""
        return self.datatype.gather(self.memory, self.start, self.count)

    def unpack(self, data: np.ndarray) -> None:
        """Put packed bytes into place."""
        self.datatype.scatter(self.memory, self.start, self.count, data)

    @property
    def direct(self) -> bool:
        """Whether pack() is a view, into which may be received."""
        return self.datatype.contiguous

    def check_twin(self, operand: Simple) -> None:
        """Raise if an operand is not as long as this result, or of other numbers."""
        mine, others = self.datatype.dtype, operand.datatype.dtype
        if mine != others:
            raise ValueError(f"mismatch in send and receive datatypes: elements of {others} sent, of {mine} received")
        if self.nbytes != operand.nbytes:
            raise ValueError(f"mismatch in send count and receive count: {operand.nbytes} and {self.nbytes} bytes")

    def part(self, index: int, parts: int) -> Simple:
        """The index-th of `parts` equal parts."""
        each = self.count // parts
        return Simple(self.memory, self.datatype, each, self.start + index * each * self.datatype.extent)


def _absolute(kind: Any, count: Any, displacement: Any) -> Simple:
    """Elements of a datatype whose places are addresses (``MPI.Get_address``), which nothing can check."""
    datatype, number = _datatype(kind, None), _number(count or 0)
    first = datatype.true_lb
    if not number:
        return Simple(_NOTHING, datatype, 0)
    if first <= 0 or displacement:
        raise error("ERR_BUFFER", "BOTTOM needs a datatype made of absolute addresses, and no displacement")
    room = (number - 1) * datatype.extent + datatype.true_ub - first if number else 0
    # From the first address to the last; what lies between the blocks is not touched.
    return _from(first, room, datatype, number, -first)


def _from(address: int, room: int, datatype: Datatype, count: int, start: int) -> Simple:
    memory: Any = (ctypes.c_uint8 * max(room, 0)).from_address(address)
    found = Simple(np.frombuffer(memory, np.uint8), datatype, 0)
    found.count, found.start = count, start
    return found


def _at_address(address: int, datatype: Datatype, count: int) -> Simple:
    """So many elements from an absolute address on."""
    if not count or not datatype.size:
        return Simple(_NOTHING, datatype, 0)
    first, last = datatype.true_lb, (count - 1) * datatype.extent + datatype.true_ub
    return _from(address + first, last - first, datatype, count, -first)


def _datatype(what: Any, view: memoryview | None) -> Datatype:
    if what is None:
        return BYTE if view is None else of_buffer(view)
    if isinstance(what, Datatype):
        if not what:
            raise error("ERR_TYPE", "DATATYPE_NULL, or a datatype that was freed")
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
            "ERR_BUFFER", "BOTTOM goes with a count and a datatype of absolute addresses, where one buffer is meant"
        )
    if buffer is IN_PLACE:
        raise error("ERR_BUFFER", "IN_PLACE is not possible here")
    return as_bytes(buffer, writable), memoryview(buffer)


def _number(what: Any) -> int:
    number = int(what)
    if number < 0:
        raise error("ERR_COUNT", f"a count of {number}; right would be 0 or more")
    return number


def _take_apart(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Buffer, count, displacement and datatype: None if not given. A pair may stand for count and displacement."""
    if spec is IN_PLACE:
        raise error("ERR_BUFFER", "IN_PLACE is not possible here")
    if spec is None:
        raise TypeError("message: None where a buffer is needed; right would be an array, or [None, 0, datatype]")
    given = tuple(spec) if isinstance(spec, (list, tuple)) else (spec,)
    if not 1 <= len(given) <= 4:
        raise ValueError("message: expecting 1 to 4 items")
    if len(given) == 2 and _is_datatype(given[1]):
        return given[0], None, None, given[1]
    if len(given) == 3:
        return given[0], given[1], None, given[2]
    buffer, count, displacement, kind = given + (None,) * (4 - len(given))
    return buffer, count, displacement, kind


def simple(spec: Any, writable: bool, blocks: int = 1) -> Simple:
    """What a simple argument says: all of its elements.

    A count is that of each of `blocks`, one for each rank; without one there are as many elements as fit, which have
    to be a multiple of `blocks`.
    """
    buffer, count, displacement, kind = _take_apart(spec)
    if isinstance(count, (list, tuple)):
        count, displacement = count
    if buffer is BOTTOM and kind is not None:
        return _absolute(kind, count, displacement)
    memory, view = _memory(buffer, writable)
    datatype = _datatype(kind, view)
    start = int(displacement or 0) * datatype.extent
    if start < 0:
        raise ValueError(f"message: negative displacement {displacement}")
    if start > memory.size:
        raise ValueError(
            f"message: displacement {displacement} out of bounds, the buffer has {counted(memory.size, 'byte')}"
        )
    if count is None and memory.size and datatype.extent <= 0:
        raise ValueError(f"message: cannot infer count, datatype extent {datatype.extent}")
    if count is None:
        room = max(memory.size - start, 0)
        count = elements_in(room, datatype)
        if datatype.contiguous and datatype.extent and room % datatype.extent:
            raise ValueError(
                f"message: buffer length {room} is not a multiple of the datatype's extent {datatype.extent}"
            )
        if blocks > 1 and count % blocks:
            raise ValueError(
                f"message: number of datatype items {count} is not a multiple of the required number of blocks {blocks}"
            )
    else:
        count = _number(count) * blocks
    return Simple(memory, datatype, _number(count), start)


class Vector:
    """A part for each rank."""

    def __init__(self, parts: list[Simple]) -> None:
        self.parts = parts


def _list(what: Any, ranks: int, name: str) -> list[int]:
    numbers = [int(x) for x in (what.tolist() if isinstance(what, np.ndarray) else what)]
    if len(numbers) != ranks:
        raise ValueError(f"message: expecting {ranks} {name}, got {len(numbers)}")
    return numbers


def vector(spec: Any, writable: bool, ranks: int) -> Vector:
    """What the argument of a vector form (Scatterv, Allgatherv, ...) says."""
    buffer, counts, displacements, kind = _take_apart(spec)
    if isinstance(counts, tuple) and len(counts) == 2:
        counts, displacements = counts
    memory, view = _memory(buffer, writable)
    datatype = _datatype(kind, view)
    if counts is None:
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
    return Vector(
        [
            Simple(memory, datatype, _number(c), d * datatype.extent)
            for c, d in zip(counts, displacements, strict=True)
        ]
    )  # fmt: skip


def w_vector(spec: Any, writable: bool, ranks: int) -> Vector:
    """What the argument of Alltoallw says; displacements are in bytes."""
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
    """A simple message cut into one equal part for each rank."""
    if total.count % ranks:
        raise ValueError(f"message: a count of {total.count} is not a multiple of {counted(ranks, 'rank')}")
    return [total.part(i, ranks) for i in range(ranks)]
