"""Datatypes: the layout of a message's elements in memory.

A datatype is a list of byte blocks (offset, length) and an extent, the distance from one element to the next. If the
blocks fill the extent without a gap, the engine uses the elements in place. Otherwise the elements are packed and
unpacked through an index of bytes, which is computed once per datatype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm.errors import error

ORDER_C, ORDER_F = 0, 1
UNDEFINED = -32766


class Datatype:
    """Layout of the elements of a message: ``MPI.Datatype``.

    Attributes
    ----------
    size : int
        Bytes of data in one element.
    lb : int
        Lower bound in bytes.
    extent : int
        Distance in bytes from one element to the next.
    dtype : numpy.dtype or None
        Type of the numbers in an element; None if they are bytes or of several types.
    name : str
        Name of the datatype; empty for a derived one until `Set_name` is called.
    contiguous : bool
        Whether consecutive elements have no gap.
    """

    def __init__(
        self,
        blocks: Sequence[tuple[int, int]],
        lb: int,
        extent: int,
        dtype: np.dtype | None = None,
        name: str = "",
        combiner: str = "named",
    ) -> None:
        merged: list[tuple[int, int]] = []
        for offset, length in blocks:
            if length == 0:
                continue
            if merged and merged[-1][0] + merged[-1][1] == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((offset, length))
        self._blocks = merged
        self.size = sum(length for _, length in merged)
        self.lb, self.extent = lb, extent
        self.dtype = dtype  # None if the element consists of bytes or of several types
        self.name = name
        self._combiner = combiner
        self.contiguous = self.size == extent and len(merged) <= 1 and (not merged or merged[0][0] == 0)
        self._index: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"<viakit MPI.Datatype {self.name or self._combiner} of {counted(self.size, 'byte')}>"

    def __bool__(self) -> bool:
        return self._combiner != "null"

    def __reduce__(self) -> tuple[Any, ...]:
        if self._combiner in ("named", "null"):
            return (_named, (self.name,))
        return (Datatype, (self._blocks, self.lb, self.extent, self.dtype, self.name, self._combiner))

    # ------------------------------------------------------------ properties

    @property
    def ub(self) -> int:
        """Upper bound in bytes."""
        return self.lb + self.extent

    @property
    def true_lb(self) -> int:
        """Offset of the first byte in use."""
        return min((offset for offset, _ in self._blocks), default=0)

    @property
    def true_ub(self) -> int:
        """Offset one past the last byte in use."""
        return max((offset + length for offset, length in self._blocks), default=0)

    @property
    def true_extent(self) -> int:
        """Distance in bytes from the first byte in use to one past the last."""
        return self.true_ub - self.true_lb

    @property
    def is_predefined(self) -> bool:
        """Whether the datatype is predefined by MPI."""
        return self._combiner in ("named", "null")

    @property
    def is_named(self) -> bool:
        """Whether the datatype is predefined by MPI."""
        return self.is_predefined

    @property
    def typechar(self) -> str:
        """Character code of the NumPy dtype, as ``numpy.dtype.char``; "V" without a dtype."""
        return "V" if self.dtype is None else self.dtype.char

    @property
    def typestr(self) -> str:
        """Type string of the NumPy dtype, such as ``"<f8"``; ``"V"`` and the extent without a dtype."""
        return f"V{self.extent}" if self.dtype is None else self.dtype.str

    def tocode(self) -> str:
        """Return the character code of the NumPy dtype."""
        return self.typechar

    def Get_size(self) -> int:
        """Return the number of data bytes in one element."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound and the extent in bytes."""
        return (self.lb, self.extent)

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the true lower bound and the true extent in bytes, which cover only the bytes in use."""
        return (self.true_lb, self.true_extent)

    def Get_name(self) -> str:
        """Return the name of the datatype."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Set the name of the datatype."""
        self.name = name

    def Commit(self) -> Datatype:
        """Commit the datatype and return it. In viakit every datatype is usable at once."""
        return self

    def Free(self) -> None:
        """Free the datatype.

        Raises
        ------
        Exception
            ERR_TYPE if the datatype is predefined.
        """
        if self.is_predefined:
            raise error("ERR_TYPE", f"{self.name} is predefined and cannot be freed")
        self._combiner = "null"

    def Dup(self) -> Datatype:
        """Duplicate the datatype."""
        return Datatype(self._blocks, self.lb, self.extent, self.dtype, self.name, "dup")

    # ------------------------------------------------------------ derived datatypes

    def _repeat(self, count: int, step: int, start: int = 0) -> list[tuple[int, int]]:
        if self.contiguous and step == self.extent:
            return [(start, count * self.size)]
        return [(start + i * step + offset, length) for i in range(count) for offset, length in self._blocks]

    def _made(self, blocks: list[tuple[int, int]], combiner: str, starts: list[tuple[int, int]]) -> Datatype:
        """Derive a datatype and compute its bounds from `starts`: (displacement, number of elements) of each run."""
        used = [(d, n) for d, n in starts if n]
        lower = min((d + self.lb for d, n in used), default=0)
        upper = max((d + (n - 1) * self.extent + self.lb + self.extent for d, n in used), default=0)
        return Datatype(blocks, lower, upper - lower, self.dtype, "", combiner)

    def Create_contiguous(self, count: int) -> Datatype:
        """Create a datatype of *count* consecutive elements."""
        return self._made(self._repeat(_count(count), self.extent), "contiguous", [(0, count)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Create a datatype of equally spaced blocks.

        Parameters
        ----------
        count : int
            Number of blocks.
        blocklength : int
            Elements in each block.
        stride : int
            Distance between the starts of two blocks, in elements.
        """
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Create a datatype of equally spaced blocks, with *stride* in bytes."""
        return self.Create_hindexed([blocklength] * _count(count), [i * stride for i in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks with individual lengths and displacements, both in elements."""
        return self.Create_hindexed(blocklengths, [d * self.extent for d in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks with individual lengths in elements and displacements in bytes."""
        if len(blocklengths) != len(displacements):
            raise error(
                "ERR_ARG",
                f"got {len(blocklengths)} block lengths and {len(displacements)} displacements; give one of each per "
                "block",
            )
        blocks: list[tuple[int, int]] = []
        for length, displacement in zip(blocklengths, displacements, strict=True):
            blocks += self._repeat(_count(length), self.extent, displacement)
        return self._made(blocks, "indexed", list(zip(displacements, blocklengths, strict=True)))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks of one length, with displacements in elements."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks of one length, with displacements in bytes."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Create a datatype of blocks of several datatypes.

        Parameters
        ----------
        blocklengths : sequence of int
            Elements in each block.
        displacements : sequence of int
            Offset of each block in bytes.
        datatypes : sequence of Datatype
            Datatype of each block.
        """
        blocks: list[tuple[int, int]] = []
        lower, upper = [], []
        for length, displacement, datatype in zip(blocklengths, displacements, datatypes, strict=True):
            if length:
                blocks += datatype._repeat(_count(length), datatype.extent, displacement)
                lower.append(displacement + datatype.lb)
                upper.append(displacement + datatype.lb + length * datatype.extent)
        start = min(lower, default=0)
        return cls(blocks, start, max(upper, default=0) - start, None, "", "struct")

    def Create_subarray(
        self, sizes: Sequence[int], subsizes: Sequence[int], starts: Sequence[int], order: int = ORDER_C
    ) -> Datatype:
        """Create a datatype that selects a rectangular part of an array.

        Parameters
        ----------
        sizes, subsizes, starts : sequence of int
            Shape of the array, shape of the part, and index of the part's first element.
        order : int
            ORDER_C (default) or ORDER_F.

        Returns
        -------
        Datatype
            Its extent is that of the whole array.

        Raises
        ------
        Exception
            ERR_ARG if the part does not lie inside the array.
        """
        shape, part, first = list(sizes), list(subsizes), list(starts)
        if order == ORDER_F:
            shape, part, first = shape[::-1], part[::-1], first[::-1]
        for n, k, s in zip(shape, part, first, strict=True):
            if not (0 < k <= n and 0 <= s <= n - k):
                raise error(
                    "ERR_ARG", f"a part of {k} elements from index {s} does not fit into a dimension of {n} elements"
                )
        blocks: list[tuple[int, int]] = []
        for outer in np.ndindex(*part[:-1]):
            place = 0
            for n, s, i in zip(shape[:-1], first[:-1], outer, strict=True):
                place = place * n + s + i
            blocks += self._repeat(part[-1], self.extent, (place * shape[-1] + first[-1]) * self.extent)
        return Datatype(blocks, 0, int(np.prod(shape)) * self.extent, self.dtype, "", "subarray")

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Create a datatype with the same blocks and other bounds.

        Parameters
        ----------
        lb, extent : int
            Lower bound and extent in bytes.
        """
        return Datatype(self._blocks, lb, extent, self.dtype, "", "resized")

    # ------------------------------------------------------------ packing

    def _bytes(self, count: int) -> np.ndarray:
        """Return the offsets of the data bytes of *count* elements, in order."""
        if self._index is None:
            parts = [np.arange(offset, offset + length) for offset, length in self._blocks]
            self._index = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return (np.arange(count)[:, None] * self.extent + self._index[None, :]).reshape(-1)

    def gather(self, memory: np.ndarray, start: int, count: int) -> np.ndarray:
        """Return the data of *count* elements as bytes without gaps: a view if the datatype is contiguous, else a copy.

        Parameters
        ----------
        memory : numpy.ndarray
            Bytes that hold the elements.
        start : int
            Offset of the first element in bytes.
        count : int
            Number of elements.
        """
        if self.contiguous:
            return memory[start : start + count * self.size]
        return memory[start + self._bytes(count)]

    def scatter(self, memory: np.ndarray, start: int, count: int, data: np.ndarray) -> None:
        """Write packed bytes to the places of the elements; `data` may hold fewer than *count* elements."""
        if self.contiguous:
            memory[start : start + len(data)] = data
        else:
            memory[start + self._bytes(count)[: len(data)]] = data

    def Pack_size(self, count: int, comm: Any) -> int:
        """Return the size in bytes of *count* packed elements."""
        del comm
        return count * self.size

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Pack all elements of *inbuf* into *outbuf*.

        Parameters
        ----------
        inbuf, outbuf : buffer
            Elements, and memory for the packed bytes.
        position : int
            Offset in `outbuf` at which to start, in bytes.
        comm : Comm
            Ignored.

        Returns
        -------
        int
            Offset after the packed elements.

        Raises
        ------
        Exception
            ERR_TRUNCATE if `outbuf` is too small.
        """
        del comm
        source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
        data = self.gather(source, 0, elements_in(source.size, self))
        if position + data.size > target.size:
            raise error(
                "ERR_TRUNCATE",
                f"{counted(data.size, 'byte')} at position {position} exceed the output buffer of "
                f"{counted(target.size, 'byte')}",
            )
        target[position : position + data.size] = data
        return position + int(data.size)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Unpack as many elements as *outbuf* holds.

        Parameters
        ----------
        inbuf, outbuf : buffer
            Packed bytes, and memory for the elements.
        position : int
            Offset in `inbuf` at which to start, in bytes.
        comm : Comm
            Ignored.

        Returns
        -------
        int
            Offset after the unpacked elements.
        """
        del comm
        source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
        count = elements_in(target.size, self)
        data = source[position : position + count * self.size]
        self.scatter(target, 0, count, data)
        return position + int(data.size)


def _count(number: int) -> int:
    if number < 0:
        raise error("ERR_COUNT", f"the number of elements must be 0 or more, got {number}")
    return number


def elements_in(nbytes: int, datatype: Datatype) -> int:
    """Return how many elements of *datatype* fit into *nbytes* bytes."""
    if datatype.extent <= 0:
        return 0
    if datatype.contiguous:
        return nbytes // datatype.extent
    last = datatype.true_ub
    return 0 if nbytes < last else (nbytes - last) // datatype.extent + 1


def as_bytes(buffer: Any, writable: bool) -> np.ndarray:
    """Return the memory of a contiguous buffer as an array of bytes. Raises as the buffer protocol does."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous; pass a contiguous copy or a derived datatype")
    if writable and view.readonly:
        raise BufferError("the buffer is read-only; a receive needs a writable buffer")
    if view.nbytes == 0:
        return np.zeros(0, dtype=np.uint8)
    if isinstance(buffer, np.ndarray):
        flat = buffer.reshape(-1, order="A") if buffer.flags.forc else buffer
        return flat.view(np.uint8) if flat.dtype != np.uint8 else flat
    if view.ndim != 1 or view.format not in ("B", "b", "c"):
        view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes("A"))
    return np.frombuffer(view, dtype=np.uint8)


# ---------------------------------------------------------------- predefined datatypes

_NUMBERS = {
    "CHAR": "S1",
    "SIGNED_CHAR": "b",
    "UNSIGNED_CHAR": "B",
    "SHORT": "h",
    "UNSIGNED_SHORT": "H",
    "INT": "i",
    "UNSIGNED": "I",
    "LONG": "l",
    "UNSIGNED_LONG": "L",
    "LONG_LONG": "q",
    "UNSIGNED_LONG_LONG": "Q",
    "FLOAT": "f",
    "FLOAT16_T": "e",
    "DOUBLE": "d",
    "LONG_DOUBLE": "g",
    "C_BOOL": "?",
    "INT8_T": "i1",
    "INT16_T": "i2",
    "INT32_T": "i4",
    "INT64_T": "i8",
    "UINT8_T": "u1",
    "UINT16_T": "u2",
    "UINT32_T": "u4",
    "UINT64_T": "u8",
    "C_FLOAT_COMPLEX": "F",
    "C_DOUBLE_COMPLEX": "D",
    "C_LONG_DOUBLE_COMPLEX": "G",
    "BYTE": "u1",
    "AINT": "l",
    "OFFSET": "l",
    "COUNT": "l",
    "WCHAR": "i4",
    "LOGICAL": "i",
    "INTEGER": "i",
    "REAL": "f",
    "DOUBLE_PRECISION": "d",
    "COMPLEX": "F",
    "DOUBLE_COMPLEX": "D",
    "CHARACTER": "S1",
    "INTEGER1": "i1",
    "INTEGER2": "i2",
    "INTEGER4": "i4",
    "INTEGER8": "i8",
    "REAL4": "f4",
    "REAL8": "f8",
    "COMPLEX8": "c8",
    "COMPLEX16": "c16",
}
_PAIRS = {
    "FLOAT_INT": "f",
    "DOUBLE_INT": "d",
    "LONG_INT": "l",
    "INT_INT": "i",
    "SHORT_INT": "h",
    "LONG_DOUBLE_INT": "g",
}
_ALIASES = {
    "BOOL": "C_BOOL",
    "TWOINT": "INT_INT",
    "UNSIGNED_INT": "UNSIGNED",
    "C_COMPLEX": "C_FLOAT_COMPLEX",
    "F_INT": "INTEGER",
    "F_FLOAT": "REAL",
    "F_DOUBLE": "DOUBLE_PRECISION",
    "SINT8_T": "INT8_T",
    "SINT16_T": "INT16_T",
    "SINT32_T": "INT32_T",
    "SINT64_T": "INT64_T",
}


def _make_named() -> dict[str, Datatype]:
    made = {"DATATYPE_NULL": Datatype([], 0, 0, None, "MPI_DATATYPE_NULL", "null")}
    made["PACKED"] = Datatype([(0, 1)], 0, 1, np.dtype("u1"), "MPI_PACKED")
    for name, code in _NUMBERS.items():
        dtype = np.dtype(code)
        made[name] = Datatype([(0, dtype.itemsize)], 0, dtype.itemsize, dtype, f"MPI_{name}")
    for name, code in _PAIRS.items():
        dtype = np.dtype([("value", code), ("index", "i")], align=True)
        first = np.dtype(code).itemsize
        assert dtype.fields is not None
        made[name] = Datatype([(0, first), (dtype.fields["index"][1], 4)], 0, dtype.itemsize, dtype, f"MPI_{name}")
    for alias, name in _ALIASES.items():
        made[alias] = made[name]
    return made


NAMED = _make_named()
BYTE = NAMED["BYTE"]
_BY_NAME = {datatype.name: datatype for datatype in NAMED.values()}
_OF_CODE = {
    "?": "C_BOOL", "b": "SIGNED_CHAR", "B": "UNSIGNED_CHAR", "c": "CHAR", "h": "SHORT", "H": "UNSIGNED_SHORT",
    "i": "INT",
    "I": "UNSIGNED", "l": "LONG", "L": "UNSIGNED_LONG", "q": "LONG_LONG", "Q": "UNSIGNED_LONG_LONG", "f": "FLOAT",
    "d": "DOUBLE", "g": "LONG_DOUBLE", "F": "C_FLOAT_COMPLEX", "D": "C_DOUBLE_COMPLEX", "G": "C_LONG_DOUBLE_COMPLEX",
    "Zf": "C_FLOAT_COMPLEX", "Zd": "C_DOUBLE_COMPLEX", "Zg": "C_LONG_DOUBLE_COMPLEX", "p": "AINT", "n": "AINT",
    "i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T", "u1": "UINT8_T", "u2": "UINT16_T",
    "u4": "UINT32_T", "u8": "UINT64_T", "f4": "FLOAT", "f8": "DOUBLE", "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX", "b1": "C_BOOL", "s": "CHAR", "S": "CHAR", "S1": "CHAR", "s1": "CHAR",
    "g16": "LONG_DOUBLE", "e": "FLOAT16_T", "f2": "FLOAT16_T",
}  # fmt: skip


def _named(name: str) -> Datatype:
    return _BY_NAME[name]


def fromcode(code: str) -> Datatype:
    """Return the predefined datatype for a type code.

    Parameters
    ----------
    code : str
        A NumPy or struct type string (``"d"``, ``"i4"``, ``"<f8"``), or the MPI name of the datatype.

    Raises
    ------
    KeyError
        If there is no such datatype.
    """
    name = code.lstrip("@=|")
    if name[:1] in "<>!" and name[:1] == ("<" if np.little_endian else ">"):
        name = name[1:]
    if name in _OF_CODE:
        return NAMED[_OF_CODE[name]]
    if code in NAMED:
        return NAMED[code]
    if code in _BY_NAME:
        return _BY_NAME[code]
    raise KeyError(code)


def of_buffer(view: memoryview) -> Datatype:
    """Return the datatype of a buffer's elements, derived from its format."""
    code = view.format or "B"
    if view.itemsize == 0:
        return BYTE
    try:
        datatype = fromcode(code)
        if datatype.extent == view.itemsize:
            return datatype
    except KeyError:
        pass
    raise KeyError(f"buffer elements of format {code!r} have no MPI datatype; name one, as in [buffer, MPI.BYTE]")


Datatype.fromcode = staticmethod(fromcode)  # type: ignore[attr-defined]
