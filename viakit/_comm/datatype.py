"""Datatypes: how the elements of a message lie in memory.

A datatype is a list of byte blocks (offset, length) and an extent, the step from one element to the next. Where the
blocks fill the extent without a gap, elements are handed to the engine where they lie; otherwise they are packed
and unpacked by an index of bytes that is made once per datatype.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit._comm.errors import error
from viakit._words import counted

ORDER_C, ORDER_F = 0, 1
UNDEFINED = -32766


class Datatype:
    """``MPI.Datatype``: blocks of bytes and an extent, and a NumPy dtype where the elements are numbers."""

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
        self.dtype = dtype  # of the numbers that it consists of; None: bytes, or a mixture
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

    # ------------------------------------------------------------ what it is

    @property
    def ub(self) -> int:
        """The upper bound in bytes."""
        return self.lb + self.extent

    @property
    def true_lb(self) -> int:
        """The first byte that is used."""
        return min((offset for offset, _ in self._blocks), default=0)

    @property
    def true_ub(self) -> int:
        """One past the last byte that is used."""
        return max((offset + length for offset, length in self._blocks), default=0)

    @property
    def true_extent(self) -> int:
        """Bytes from the first to the last that is used."""
        return self.true_ub - self.true_lb

    @property
    def is_predefined(self) -> bool:
        """Whether MPI has a name for it."""
        return self._combiner in ("named", "null")

    @property
    def is_named(self) -> bool:
        """Whether MPI has a name for it."""
        return self.is_predefined

    @property
    def typechar(self) -> str:
        """The character of the NumPy dtype, as ``numpy.dtype.char``."""
        return "V" if self.dtype is None else self.dtype.char

    @property
    def typestr(self) -> str:
        """The NumPy dtype as a string such as ``"<f8"``."""
        return f"V{self.extent}" if self.dtype is None else self.dtype.str

    def tocode(self) -> str:
        """The character of the NumPy dtype."""
        return self.typechar

    def Get_size(self) -> int:
        """Bytes of data in one element."""
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Lower bound and extent in bytes."""
        return (self.lb, self.extent)

    def Get_true_extent(self) -> tuple[int, int]:
        """The same, of the bytes that are used."""
        return (self.true_lb, self.true_extent)

    def Get_name(self) -> str:
        """The name."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Give it another name."""
        self.name = name

    def Commit(self) -> Datatype:
        """Get it ready; returns itself."""
        return self

    def Free(self) -> None:
        """Forget it; predefined ones cannot be."""
        if self.is_predefined:
            raise error("ERR_TYPE", f"{self.name} is predefined and cannot be freed")
        self._combiner = "null"

    def Dup(self) -> Datatype:
        """The same under another handle."""
        return Datatype(self._blocks, self.lb, self.extent, self.dtype, self.name, "dup")

    # ------------------------------------------------------------ made of others

    def _repeat(self, count: int, step: int, start: int = 0) -> list[tuple[int, int]]:
        if self.contiguous and step == self.extent:
            return [(start, count * self.size)]
        return [(start + i * step + offset, length) for i in range(count) for offset, length in self._blocks]

    def _made(self, blocks: list[tuple[int, int]], combiner: str, starts: list[tuple[int, int]]) -> Datatype:
        """Bounds from the places of the old elements: `starts` has (displacement, number) of each run."""
        used = [(d, n) for d, n in starts if n]
        lower = min((d + self.lb for d, n in used), default=0)
        upper = max((d + (n - 1) * self.extent + self.lb + self.extent for d, n in used), default=0)
        return Datatype(blocks, lower, upper - lower, self.dtype, "", combiner)

    def Create_contiguous(self, count: int) -> Datatype:
        """`count` elements, one after the other."""
        return self._made(self._repeat(_count(count), self.extent), "contiguous", [(0, count)])

    def Create_vector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """`count` blocks of `blocklength` elements, `stride` elements from start to start."""
        return self.Create_hvector(count, blocklength, stride * self.extent)

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """The same with the stride in bytes."""
        return self.Create_hindexed([blocklength] * _count(count), [i * stride for i in range(count)])

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Blocks of several lengths at several places, counted in elements."""
        return self.Create_hindexed(blocklengths, [d * self.extent for d in displacements])

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """The same with the places in bytes."""
        if len(blocklengths) != len(displacements):
            raise error("ERR_ARG", f"{len(blocklengths)} lengths of blocks, but {len(displacements)} displacements")
        blocks: list[tuple[int, int]] = []
        for length, displacement in zip(blocklengths, displacements, strict=True):
            blocks += self._repeat(_count(length), self.extent, displacement)
        return self._made(blocks, "indexed", list(zip(displacements, blocklengths, strict=True)))

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Blocks of one length at several places, counted in elements."""
        return self.Create_indexed([blocklength] * len(displacements), displacements)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """The same with the places in bytes."""
        return self.Create_hindexed([blocklength] * len(displacements), displacements)

    @classmethod
    def Create_struct(
        cls, blocklengths: Sequence[int], displacements: Sequence[int], datatypes: Sequence[Datatype]
    ) -> Datatype:
        """Blocks of several datatypes; places in bytes."""
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
        """The part of an array that begins at `starts` and has shape `subsizes`; its extent is the whole array's."""
        shape, part, first = list(sizes), list(subsizes), list(starts)
        if order == ORDER_F:
            shape, part, first = shape[::-1], part[::-1], first[::-1]
        for n, k, s in zip(shape, part, first, strict=True):
            if not (0 < k <= n and 0 <= s <= n - k):
                raise error("ERR_ARG", f"a part of {k} from {s} on does not fit into {n} elements")
        blocks: list[tuple[int, int]] = []
        for outer in np.ndindex(*part[:-1]):
            place = 0
            for n, s, i in zip(shape[:-1], first[:-1], outer, strict=True):
                place = place * n + s + i
            blocks += self._repeat(part[-1], self.extent, (place * shape[-1] + first[-1]) * self.extent)
        return Datatype(blocks, 0, int(np.prod(shape)) * self.extent, self.dtype, "", "subarray")

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """The same blocks with other bounds."""
        return Datatype(self._blocks, lb, extent, self.dtype, "", "resized")

    # ------------------------------------------------------------ packing

    def _bytes(self, count: int) -> np.ndarray:
        """Where the bytes of `count` elements lie, in order."""
        if self._index is None:
            parts = [np.arange(offset, offset + length) for offset, length in self._blocks]
            self._index = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int64)
        return (np.arange(count)[:, None] * self.extent + self._index[None, :]).reshape(-1)

    def gather(self, memory: np.ndarray, start: int, count: int) -> np.ndarray:
        """The bytes of `count` elements from byte `start` on, without gaps: a view if there are none."""
        if self.contiguous:
            return memory[start : start + count * self.size]
        return memory[start + self._bytes(count)]

    def scatter(self, memory: np.ndarray, start: int, count: int, data: np.ndarray) -> None:
        """Put packed bytes into place; fewer than `count` elements' are right, too."""
        if self.contiguous:
            memory[start : start + len(data)] = data
        else:
            memory[start + self._bytes(count)[: len(data)]] = data

    def Pack_size(self, count: int, comm: Any) -> int:
        """Bytes that `count` elements take when packed."""
        del comm
        return count * self.size

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Pack all elements of `inbuf` into `outbuf` from byte `position` on; returns the position after them."""
        del comm
        source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
        data = self.gather(source, 0, elements_in(source.size, self))
        if position + data.size > target.size:
            raise error(
                "ERR_TRUNCATE", f"{counted(data.size, 'byte')} at {position}, where there is room for {target.size}"
            )
        target[position : position + data.size] = data
        return position + int(data.size)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Unpack as many elements as `outbuf` holds from `inbuf`; returns the position after them."""
        del comm
        source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
        count = elements_in(target.size, self)
        data = source[position : position + count * self.size]
        self.scatter(target, 0, count, data)
        return position + int(data.size)


def _count(number: int) -> int:
    if number < 0:
        raise error("ERR_COUNT", f"{number} elements; right would be 0 or more")
    return number


def elements_in(nbytes: int, datatype: Datatype) -> int:
    """How many elements a buffer of so many bytes has room for."""
    if datatype.extent <= 0:
        return 0
    if datatype.contiguous:
        return nbytes // datatype.extent
    last = datatype.true_ub
    return 0 if nbytes < last else (nbytes - last) // datatype.extent + 1


def as_bytes(buffer: Any, writable: bool) -> np.ndarray:
    """The memory of a contiguous buffer as an array of bytes; raises as the buffer protocol does."""
    view = memoryview(buffer)
    if not view.contiguous:
        raise ValueError("the buffer is not contiguous")
    if writable and view.readonly:
        raise BufferError("the buffer is read-only, and is to be received into")
    if view.nbytes == 0:
        return np.zeros(0, dtype=np.uint8)
    if isinstance(buffer, np.ndarray):
        flat = buffer.reshape(-1, order="A") if buffer.flags.forc else buffer
        return flat.view(np.uint8) if flat.dtype != np.uint8 else flat
    if view.ndim != 1 or view.format not in ("B", "b", "c"):
        view = view.cast("B") if view.c_contiguous else memoryview(view.tobytes("A"))
    return np.frombuffer(view, dtype=np.uint8)


# ---------------------------------------------------------------- those that MPI has names for

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
    """The datatype for a NumPy or struct type string (``"d"``, ``"i4"``, ``"<f8"``), or MPI's own name of one."""
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
    """The datatype of a buffer's elements, from its format."""
    code = view.format or "B"
    if view.itemsize == 0:
        return BYTE
    try:
        datatype = fromcode(code)
        if datatype.extent == view.itemsize:
            return datatype
    except KeyError:
        pass
    raise KeyError(f"no datatype is known for elements of format {code!r}: give one, as in [buffer, MPI.BYTE]")


Datatype.fromcode = staticmethod(fromcode)  # type: ignore[attr-defined]
