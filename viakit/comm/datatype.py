"""Datatypes: the layout of a message's elements in memory.

A datatype is a list of byte blocks (offset, length) and an extent, the distance from one element to the next. If the
blocks fill the extent without a gap, the engine uses the elements in place. Otherwise the elements are packed and
unpacked through an index of bytes, which is computed once per datatype.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from viakit import _core
from viakit.base.words import counted
from viakit.comm.buffers import host
from viakit.comm.contents import Made
from viakit.comm.errors import error
from viakit.comm.handle import Numbered

ORDER_C, ORDER_F = 0, 1
UNDEFINED = -32766


class Datatype(Numbered, Made, _core.MsgType):
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

    _family = "Datatype"
    name: str
    _token: object  # the same in all handles of one datatype

    def __new__(cls, datatype: Any = None) -> Any:
        """Return another handle of *datatype*, or a null handle without an argument."""
        if datatype is not None and not isinstance(datatype, Datatype):
            raise TypeError(f"{cls.__name__}() takes no argument or a Datatype, got {type(datatype).__name__}")
        made = super().__new__(cls)
        if datatype is None:
            return made._fill([], 0, 0, None, "MPI_DATATYPE_NULL", "null")
        made.__dict__.update(datatype.__dict__)
        made.plain, made.kind = datatype.plain, datatype.kind
        made._constant_name = ""
        return made

    def __init__(self, datatype: Any = None) -> None:
        del datatype

    @classmethod
    def _of(
        cls,
        blocks: Sequence[tuple[int, int]],
        lb: int,
        extent: int,
        dtype: np.dtype | None = None,
        name: str = "",
        combiner: str = "NAMED",
    ) -> Datatype:
        """Make a datatype of byte blocks (offset, length)."""
        return _core.MsgType.__new__(cls)._fill(blocks, lb, extent, dtype, name, combiner)

    def _fill(
        self,
        blocks: Sequence[tuple[int, int]],
        lb: int,
        extent: int,
        dtype: np.dtype | None,
        name: str,
        combiner: str,
    ) -> Datatype:
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
        self._made_by(combiner, [], {})
        self.contiguous = self.size == extent and len(merged) <= 1 and (not merged or merged[0][0] == 0)
        self._index: np.ndarray | None = None
        self._constant_name = ""
        self._token = object()
        self.plain = self.size if self.contiguous and combiner != "null" else 0
        whole = dtype is not None and dtype.isnative and self.plain
        self.kind = _core._COLL_KINDS.get((dtype.kind, dtype.itemsize), -1) if dtype is not None and whole else -1
        return self

    def _again(self) -> Datatype:
        """Return this datatype if it is predefined, and otherwise another handle of it."""
        return self if self._constant_name else Datatype(self)

    def _another(self) -> Datatype:
        return self._again()

    def _identity(self) -> Any:
        return None if self._combiner == "null" else self._token

    def __repr__(self) -> str:
        return f"<viakit MPI.Datatype {self.name or self._combiner.lower()} of {counted(self.size, 'byte')}>"

    def __bool__(self) -> bool:
        return self._combiner != "null"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Datatype):
            return NotImplemented
        return self._identity() is other._identity()

    def __hash__(self) -> int:
        if self._combiner == "null":
            raise TypeError("unhashable: a null Datatype")
        return hash(id(self._token))

    def __reduce__(self) -> tuple[Any, ...]:
        if self._constant_name:
            return (named, (self._constant_name,))
        if self._combiner in ("NAMED", "null"):
            return (type(self), (named("DATATYPE_NULL") if self._combiner == "null" else self._named_twin(),))
        base, kind, arguments = self.decode()
        return (_remade, (base, kind, arguments, self.name))

    def _named_twin(self) -> Datatype:
        return next(datatype for datatype in NAMED.values() if datatype == self)

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
        return self._combiner in ("NAMED", "null") or self._combiner.startswith("F90")

    @property
    def is_named(self) -> bool:
        """Whether the datatype has a name of MPI's: it is no derived one."""
        return self._combiner in ("NAMED", "null")

    @property
    def typechar(self) -> str:
        """Character code of the NumPy dtype, as ``numpy.dtype.char``; "V" without a dtype."""
        return "V" if self.dtype is None else self.dtype.char

    @property
    def typestr(self) -> str:
        """Type string of the NumPy dtype, such as ``"<f8"``; ``"V"`` and the extent without a dtype."""
        return f"V{self.extent}" if self.dtype is None or self.dtype.kind == "V" else self.dtype.str

    def tocode(self) -> str:
        """Return the character code of the NumPy dtype.

        Raises
        ------
        ValueError
            If the datatype is not that of one number.
        """
        if self.dtype is None or self.dtype.kind == "V" or self.size != self.dtype.itemsize:
            raise ValueError(f"{self!r} has no type code; only datatypes of one number have")
        return self.typechar

    def Get_size(self) -> int:
        """Return the number of data bytes in one element."""
        self._valid()
        return self.size

    def Get_extent(self) -> tuple[int, int]:
        """Return the lower bound and the extent in bytes."""
        self._valid()
        return (self.lb, self.extent)

    def Get_true_extent(self) -> tuple[int, int]:
        """Return the true lower bound and the true extent in bytes, which cover only the bytes in use."""
        self._valid()
        return (self.true_lb, self.true_extent)

    def Get_name(self) -> str:
        """Return the name of the datatype."""
        return self.name

    def Set_name(self, name: str) -> None:
        """Set the name of the datatype."""
        self._valid()
        self.name = name

    def Commit(self) -> Datatype:
        """Commit the datatype and return it. In viakit every datatype is usable at once."""
        self._valid()
        return self

    def Free(self) -> None:
        """Free the datatype.

        Raises
        ------
        Exception
            ERR_TYPE if the datatype is predefined.
        """
        self._valid()
        if self.is_predefined:
            raise error("ERR_TYPE", f"{self.name} is predefined and cannot be freed")
        self._combiner, self.plain = "null", 0

    def free(self) -> None:
        """Free the datatype, unless it is predefined or null. Another handle of a predefined one becomes null."""
        if not self._constant_name:
            self._combiner, self.plain = "null", 0

    def Dup(self) -> Datatype:
        """Duplicate the datatype."""
        self._valid()
        made = Datatype._of(self._blocks, self.lb, self.extent, self.dtype, self.name)
        return made._made_by("DUP", [self], {})

    Create_dup = Dup

    # ------------------------------------------------------------ derived datatypes

    def _repeat(self, count: int, step: int, start: int = 0) -> list[tuple[int, int]]:
        if self.contiguous and step == self.extent:
            return [(start, count * self.size)]
        return [(start + i * step + offset, length) for i in range(count) for offset, length in self._blocks]

    def _made(self, blocks: list[tuple[int, int]], starts: list[tuple[int, int]]) -> Datatype:
        """Derive a datatype and compute its bounds from `starts`: (displacement, number of elements) of each run."""
        self._valid()
        used = [(d, n) for d, n in starts if n]
        lower = min((d + self.lb for d, n in used), default=0)
        upper = max((d + (n - 1) * self.extent + self.lb + self.extent for d, n in used), default=0)
        return Datatype._of(blocks, lower, upper - lower, self.dtype)

    def Create_contiguous(self, count: int) -> Datatype:
        """Create a datatype of *count* consecutive elements."""
        count = _count(count)
        made = self._made(self._repeat(count, self.extent), [(0, count)])
        return made._made_by("CONTIGUOUS", [self], {"count": count})

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
        made = self.Create_hvector(count, blocklength, index(stride) * self.extent)
        return made._made_by("VECTOR", [self], {"count": count, "blocklength": blocklength, "stride": stride})

    def Create_hvector(self, count: int, blocklength: int, stride: int) -> Datatype:
        """Create a datatype of equally spaced blocks, with *stride* in bytes."""
        made = self.Create_hindexed([blocklength] * _count(count), [i * stride for i in range(count)])
        return made._made_by("HVECTOR", [self], {"count": count, "blocklength": blocklength, "stride": stride})

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks with individual lengths and displacements, both in elements."""
        made = self.Create_hindexed(blocklengths, [index(d) * self.extent for d in displacements])
        arguments = {"blocklengths": list(blocklengths), "displacements": list(displacements)}
        return made._made_by("INDEXED", [self], arguments)

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
            blocks += self._repeat(_count(length), self.extent, index(displacement))
        made = self._made(blocks, list(zip(displacements, blocklengths, strict=True)))
        arguments = {"blocklengths": list(blocklengths), "displacements": list(displacements)}
        return made._made_by("HINDEXED", [self], arguments)

    def Create_indexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks of one length, with displacements in elements."""
        made = self.Create_indexed([blocklength] * len(displacements), displacements)
        arguments = {"blocklength": blocklength, "displacements": list(displacements)}
        return made._made_by("INDEXED_BLOCK", [self], arguments)

    def Create_hindexed_block(self, blocklength: int, displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks of one length, with displacements in bytes."""
        made = self.Create_hindexed([blocklength] * len(displacements), displacements)
        arguments = {"blocklength": blocklength, "displacements": list(displacements)}
        return made._made_by("HINDEXED_BLOCK", [self], arguments)

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
            datatype._valid()
            if _count(length):
                blocks += datatype._repeat(length, datatype.extent, index(displacement))
                lower.append(displacement + datatype.lb)
                upper.append(displacement + datatype.lb + length * datatype.extent)
        start = min(lower, default=0)
        made = Datatype._of(blocks, start, max(upper, default=0) - start)
        arguments = {"blocklengths": list(blocklengths), "displacements": list(displacements)}
        return made._made_by("STRUCT", list(datatypes), arguments)

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
        self._valid()
        shape, part, first = ([index(n) for n in given] for given in (sizes, subsizes, starts))
        arguments = {"sizes": shape, "subsizes": part, "starts": first, "order": order}
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
        made = Datatype._of(blocks, 0, int(np.prod(shape)) * self.extent, self.dtype)
        return made._made_by("SUBARRAY", [self], arguments)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Create a datatype with the same blocks and other bounds.

        Parameters
        ----------
        lb, extent : int
            Lower bound and extent in bytes.
        """
        self._valid()
        made = Datatype._of(self._blocks, index(lb), index(extent), self.dtype)
        return made._made_by("RESIZED", [self], {"lb": lb, "extent": extent})

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
    number = index(number)  # a float is a TypeError, as in mpi4py
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
    buffer = host(buffer)
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


def _remade(base: Datatype, kind: str, arguments: dict[str, Any], name: str) -> Datatype:
    """Make a derived datatype again: from its pickle."""
    made: Datatype = getattr(base, ("Get_" if kind == "VALUE_INDEX" else "Create_") + kind.lower())(**arguments)
    made.name = name
    return made


# The class is complete, so the predefined datatypes can be made.
from viakit.comm.derive import add_constructors  # noqa: E402
from viakit.comm.named_types import BYTE, NAMED, fromcode, named, of_buffer  # noqa: E402, F401

add_constructors(Datatype)
