"""Datatypes: the layout of a message's elements in memory.

A datatype is an array of runs, which are pairs of offset and length in bytes, and an extent, the distance from one
element to the next. If the runs fill the extent without a gap, the engine uses the elements in place. Otherwise the
elements are packed and unpacked through an index of bytes, which is computed once per datatype.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np

from viakit import _core
from viakit.base.words import counted
from viakit.comm import layout
from viakit.comm.attributes import HasAttributes
from viakit.comm.buffers import host
from viakit.comm.contents import Made
from viakit.comm.errors import error
from viakit.comm.handle import Numbered
from viakit.comm.layout import check_packed

ORDER_C, ORDER_F = 0, 1
UNDEFINED = -32766


class Datatype(Numbered, Made, HasAttributes, _core.MsgType):
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
    true_lb, true_ub : int
        Offset of the first byte in use, and offset one past the last.
    contiguous : bool
        Whether consecutive elements have no gap.
    """

    _family = _kind_of_keys = "Datatype"
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
        made.take_layout(datatype)
        made._constant_name = ""
        return made

    def __init__(self, datatype: Any = None) -> None:
        del datatype

    @classmethod
    def _of(
        cls,
        blocks: Any,
        lb: int,
        extent: int,
        dtype: np.dtype | None = None,
        name: str = "",
        combiner: str = "NAMED",
    ) -> Datatype:
        """Make a datatype of runs (offset, length)."""
        return _core.MsgType.__new__(cls)._fill(blocks, lb, extent, dtype, name, combiner)

    def _fill(
        self,
        blocks: Any,
        lb: int,
        extent: int,
        dtype: np.dtype | None,
        name: str,
        combiner: str,
    ) -> Datatype:
        runs = layout.merged(blocks)
        return self._settle(runs, layout.bounds(runs), lb, extent, dtype)._named(name, combiner)

    def _same(self, lb: int, extent: int, name: str = "") -> Datatype:
        """Return a new datatype with the same runs."""
        made = _core.MsgType.__new__(Datatype)
        bounds = self.size, self.true_lb, self.true_ub
        return made._settle(self._blocks, bounds, lb, extent, self.dtype)._named(name, "NAMED")

    def _settle(
        self, runs: np.ndarray, bounds: tuple[int, int, int], lb: int, extent: int, dtype: np.dtype | None
    ) -> Datatype:
        self._blocks, self.lb, self.extent = runs, lb, extent
        self.size, self.true_lb, self.true_ub = bounds
        self.dtype = dtype  # None if the element consists of bytes or of several types
        self.contiguous = self.size == extent and len(runs) <= 1 and (not len(runs) or int(runs[0, 0]) == 0)
        self._index: np.ndarray | None = None
        return self

    def _named(self, name: str, combiner: str) -> Datatype:
        self.name = name
        self._made_by(combiner, [], {})
        self._constant_name = ""
        self._token = object()
        self._attributes: dict[int, Any] = {}
        self.plain = self.size if self.contiguous and combiner != "null" else 0
        dtype = self.dtype
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
        """Character code of the NumPy dtype, as ``numpy.dtype.char``; "c" of CHAR, and "V" without a dtype."""
        if self.dtype is None:
            return "V"
        return "c" if self.dtype.kind == "S" else self.dtype.char  # "S" has no length

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
        self._delete_attributes()
        self._combiner, self.plain = "null", 0

    def free(self) -> None:
        """Free the datatype, unless it is predefined or null. Another handle of a predefined one becomes null."""
        if not self._constant_name:
            if self and not self.is_predefined:
                self._delete_attributes()
            self._combiner, self.plain = "null", 0

    def Dup(self) -> Datatype:
        """Duplicate the datatype."""
        self._valid()
        made = self._same(self.lb, self.extent, self.name)
        made._made_by("DUP", [self], {})
        self._copy_attributes(made)
        return made

    Create_dup = Dup

    def _attribute_values(self) -> dict[int, Any]:
        self._valid()
        return self._attributes

    # ------------------------------------------------------------ derived datatypes

    def _repeat(self, count: int, step: int, start: int = 0) -> np.ndarray:
        """Return the runs of *count* elements, one each *step* bytes."""
        if self.contiguous and step == self.extent:
            return np.array([[start, count * self.size]])
        return layout.copies(self._blocks, start + np.arange(count) * step)

    def _spread(self, starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
        """Return the runs of blocks of elements: the start of each in bytes, and its number of elements."""
        if self.contiguous:
            return np.stack((starts, counts * self.size), axis=1)
        return layout.copies(self._blocks, layout.counting(starts, counts, self.extent))

    def _made(self, starts: np.ndarray, counts: np.ndarray) -> Datatype:
        """Derive a datatype of blocks of elements, and compute its bounds."""
        self._valid()
        starts, counts = starts[counts > 0], counts[counts > 0]
        if not len(starts):
            return Datatype._of(layout.NONE, 0, 0, self.dtype)
        lower = int(starts.min()) + self.lb
        upper = int((starts + (counts - 1) * self.extent).max()) + self.lb + self.extent
        return Datatype._of(self._spread(starts, counts), lower, upper - lower, self.dtype)

    def Create_contiguous(self, count: int) -> Datatype:
        """Create a datatype of *count* consecutive elements."""
        made = self._made(*_arrays([0], [count]))
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
        made = self._made(*_arrays(np.arange(_count(count)) * stride, np.full(count, blocklength)))
        return made._made_by("HVECTOR", [self], {"count": count, "blocklength": blocklength, "stride": stride})

    def Create_indexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks with individual lengths and displacements, both in elements."""
        made = self._made(*_arrays(layout.integers(displacements) * self.extent, blocklengths))
        arguments = {"blocklengths": list(blocklengths), "displacements": list(displacements)}
        return made._made_by("INDEXED", [self], arguments)

    def Create_hindexed(self, blocklengths: Sequence[int], displacements: Sequence[int]) -> Datatype:
        """Create a datatype of blocks with individual lengths in elements and displacements in bytes."""
        made = self._made(*_arrays(displacements, blocklengths))
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
        blocks = [layout.NONE]
        lower, upper = [], []
        for length, displacement, datatype in zip(blocklengths, displacements, datatypes, strict=True):
            datatype._valid()
            if _count(length):
                blocks.append(datatype._repeat(length, datatype.extent, index(displacement)))
                lower.append(displacement + datatype.lb)
                upper.append(displacement + datatype.lb + length * datatype.extent)
        start = min(lower, default=0)
        extent = max(upper, default=0) - start
        found = [alignment(datatype) for datatype in datatypes]
        extent += -extent % max(found) if found and 0 not in found else 0
        made = Datatype._of(np.concatenate(blocks), start, extent)
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
            ERR_ARG if the part does not lie inside the array, the array has no dimension, or the order is neither.
        """
        self._valid()
        shape, part, first = ([index(n) for n in given] for given in (sizes, subsizes, starts))
        arguments = {"sizes": shape, "subsizes": part, "starts": first, "order": order}
        if not shape:
            raise error("ERR_ARG", "an array has 1 or more dimensions, got none")
        if order not in (ORDER_C, ORDER_F):
            raise error("ERR_ARG", f"order {order}: there are MPI.ORDER_C and MPI.ORDER_FORTRAN")
        if order == ORDER_F:
            shape, part, first = shape[::-1], part[::-1], first[::-1]
        for n, k, s in zip(shape, part, first, strict=True):
            if not (0 < k <= n and 0 <= s <= n - k):
                raise error(
                    "ERR_ARG", f"a part of {k} elements from index {s} does not fit into a dimension of {n} elements"
                )
        rows = np.zeros(1, np.int64)  # index of the first element of each row of the part
        for n, k, s in zip(shape[:-1], part[:-1], first[:-1], strict=True):
            rows = (rows[:, None] * n + np.arange(s, s + k)[None, :]).reshape(-1)
        places = (rows * shape[-1] + first[-1]) * self.extent
        runs = self._spread(places, np.full(len(places), part[-1]))
        made = Datatype._of(runs, 0, int(np.prod(shape)) * self.extent, self.dtype)
        return made._made_by("SUBARRAY", [self], arguments)

    def Create_resized(self, lb: int, extent: int) -> Datatype:
        """Create a datatype with the same blocks and other bounds.

        Parameters
        ----------
        lb, extent : int
            Lower bound and extent in bytes.
        """
        self._valid()
        made = self._same(index(lb), index(extent))
        return made._made_by("RESIZED", [self], {"lb": lb, "extent": extent})

    # ------------------------------------------------------------ packing

    def _bytes(self, count: int) -> np.ndarray:
        """Return the offsets of the data bytes of *count* elements, in order."""
        if self._index is None:
            self._index = layout.byte_index(self._blocks)
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
        if count < 0:
            raise error("ERR_COUNT", f"count must be 0 or more, got {count}")
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
        check_packed(position, data.size, target.size, "output")
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

        Raises
        ------
        Exception
            ERR_TRUNCATE if `inbuf` has fewer bytes after `position`.
        """
        del comm
        source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
        count = elements_in(target.size, self)
        check_packed(position, count * self.size, source.size, "input")
        data = source[position : position + count * self.size]
        self.scatter(target, 0, count, data)
        return position + int(data.size)


def _count(number: int) -> int:
    number = index(number)  # a float is a TypeError, as in mpi4py
    if number < 0:
        raise error("ERR_COUNT", f"the number of elements must be 0 or more, got {number}")
    return number


def _arrays(starts: Any, counts: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the starts of blocks in bytes, and their numbers of elements, as arrays of one length."""
    places, lengths = layout.integers(starts), layout.integers(counts)
    if len(places) != len(lengths):
        raise error(
            "ERR_ARG",
            f"got {len(lengths)} block lengths and {len(places)} displacements; give one of each per block",
        )
    _count(int(lengths.min(initial=0)))
    return places, lengths


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
from viakit.comm.derive import add_constructors, alignment  # noqa: E402
from viakit.comm.named_types import BYTE, NAMED, fromcode, named, of_buffer  # noqa: E402, F401

add_constructors(Datatype)
