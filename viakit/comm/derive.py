"""Constructors of datatypes that are rarely used: distributed arrays, Fortran's selected kinds, pairs, external32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit.base.words import counted
from viakit.comm.errors import error
from viakit.comm.layout import check_packed

DISTRIBUTE_NONE, DISTRIBUTE_BLOCK, DISTRIBUTE_CYCLIC, DISTRIBUTE_DFLT_DARG = 1, 2, 3, -1
TYPECLASS_INTEGER, TYPECLASS_REAL, TYPECLASS_COMPLEX, TYPECLASS_LOGICAL = 1, 2, 3, 4
_ORDER_C, _ORDER_F = 0, 1


def _owned(n: int, how: int, argument: int, parts: int, place: int) -> np.ndarray:
    """Return the indices of one dimension that belong to a place of the process grid."""
    if how == DISTRIBUTE_NONE:
        return np.arange(n)
    if argument < 1 and argument != DISTRIBUTE_DFLT_DARG:
        raise error("ERR_ARG", f"blocks of {argument} elements: give 1 or more, or DISTRIBUTE_DFLT_DARG")
    if how == DISTRIBUTE_BLOCK:
        each = -(-n // parts) if argument == DISTRIBUTE_DFLT_DARG else argument
        if each * parts < n:
            raise error("ERR_ARG", f"blocks of {each} on {parts} processes do not cover {n} elements")
        return np.arange(min(place * each, n), min((place + 1) * each, n))
    if how == DISTRIBUTE_CYCLIC:
        each = 1 if argument == DISTRIBUTE_DFLT_DARG else argument
        every = np.arange(n)
        return every[every // each % parts == place]
    raise error("ERR_ARG", f"distribution {how}: there are DISTRIBUTE_NONE, DISTRIBUTE_BLOCK and DISTRIBUTE_CYCLIC")


def Create_darray(
    self: Any,
    size: int,
    rank: int,
    gsizes: Sequence[int],
    distribs: Sequence[int],
    dargs: Sequence[int],
    psizes: Sequence[int],
    order: int = _ORDER_C,
) -> Any:
    """Create a datatype of one process's part of a distributed array.

    Parameters
    ----------
    size, rank : int
        Number of processes, and the one whose part it is.
    gsizes : sequence of int
        Shape of the whole array.
    distribs, dargs : sequence of int
        For each dimension how it is distributed, and the length of a block or DISTRIBUTE_DFLT_DARG.
    psizes : sequence of int
        Shape of the grid of processes, whose order is row-major.
    order : int
        ORDER_C (default) or ORDER_F: how the array lies in memory.

    Raises
    ------
    Exception
        ERR_ARG if the arguments have different lengths, the grid has another number of processes, or a dimension or
        block has no element.
    """
    self._valid()
    lists = [list(x) for x in (gsizes, distribs, dargs, psizes)]
    if len({len(x) for x in lists}) != 1 or math.prod(lists[3]) != size or not 0 <= rank < size:
        raise error("ERR_ARG", f"a grid of shape {lists[3]} does not fit rank {rank} of {size}, or lengths differ")
    if not lists[0] or min(lists[0]) < 1:
        raise error("ERR_ARG", f"an array of shape {lists[0]}: it has 1 or more dimensions of 1 or more elements")
    if order not in (_ORDER_C, _ORDER_F):
        raise error("ERR_ARG", f"order {order}: there are MPI.ORDER_C and MPI.ORDER_FORTRAN")
    places: list[int] = []
    rest = rank
    for parts in reversed(lists[3]):
        rest, place = divmod(rest, parts)
        places.insert(0, place)
    owned = [_owned(*each) for each in zip(*lists, places, strict=True)]
    if order != _ORDER_C:
        owned.reverse()
    shape = lists[0] if order == _ORDER_C else lists[0][::-1]
    index = np.zeros(1, dtype=np.int64)
    for n, mine in zip(shape, owned, strict=True):
        index = (index[:, None] * n + mine[None, :]).reshape(-1)
    begins = np.flatnonzero(np.diff(index, prepend=index[:1] - 2) != 1)  # of each run of consecutive elements
    counts = np.diff(np.append(begins, len(index)))
    runs = self._spread(index[begins] * self.extent, counts)
    made = type(self)._of(runs, 0, math.prod(shape) * self.extent, self.dtype)
    names = ("gsizes", "distribs", "dargs", "psizes")
    return made._made_by(
        "DARRAY", [self], {"size": size, "rank": rank, **dict(zip(names, lists, strict=True)), "order": order}
    )


def _selected(cls: Any, code: str, combiner: str, arguments: dict[str, int]) -> Any:
    base = cls.fromcode(code)
    made = cls._of(base._blocks, 0, base.extent, base.dtype)
    return made._made_by(combiner, [], arguments)


def Create_f90_integer(cls: Any, r: int) -> Any:
    """Return the datatype of Fortran's integers with *r* decimal digits (``selected_int_kind``)."""
    for most, code in ((2, "i1"), (4, "i2"), (9, "i4"), (18, "i8")):
        if r <= most:
            return _selected(cls, code, "F90_INTEGER", {"r": r})
    raise error("ERR_ARG", f"there is no integer of {r} decimal digits; at most 18 are possible")


def _real(p: int, r: int) -> str:
    for digits, exponent, code in ((6, 37, "f"), (15, 307, "d"), (18, 4931, "g")):
        if p <= digits and r <= exponent:
            return code
    raise error("ERR_ARG", f"there is no real of {p} digits and a range of {r}; at most 18 and 4931 are possible")


def Create_f90_real(cls: Any, p: int, r: int) -> Any:
    """Return the datatype of Fortran's reals with *p* digits and exponents to *r* (``selected_real_kind``)."""
    return _selected(cls, _real(p, r), "F90_REAL", {"p": p, "r": r})


def Create_f90_complex(cls: Any, p: int, r: int) -> Any:
    """Return the datatype of Fortran's complex numbers with *p* digits and exponents to *r*."""
    return _selected(cls, _real(p, r).upper(), "F90_COMPLEX", {"p": p, "r": r})


def Match_size(typeclass: int, size: int) -> Any:
    """Return the Fortran datatype of a class (``MPI.TYPECLASS_*``) and a size in bytes.

    Raises
    ------
    Exception
        ERR_ARG if MPI has no such datatype.
    """
    from viakit.comm.datatype import NAMED  # it imports this module

    prefix = {1: "INTEGER", 2: "REAL", 3: "COMPLEX", 4: "LOGICAL"}.get(typeclass, "")
    found = NAMED.get(f"{prefix}{size}")
    if not found:
        raise error("ERR_ARG", f"there is no datatype of class {prefix or typeclass} with {counted(size, 'byte')}")
    return found


def Get_value_index(value: Any, index: Any) -> Any:
    """Return the datatype of pairs of *value* and *index* for MAXLOC and MINLOC, or DATATYPE_NULL."""
    from viakit.comm.datatype import NAMED  # it imports this module

    value._valid()
    index._valid()
    if index == NAMED["INT"]:
        for name in ("SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "LONG_DOUBLE"):
            if value == NAMED[name]:
                return NAMED[name + "_INT"]
    return NAMED["DATATYPE_NULL"]


# ---------------------------------------------------------------- external32: big-endian, with sizes of its own


def _external(datatype: Any, datarep: str) -> int:
    """Return the size of a number in external32."""
    if datarep != "external32":
        raise error("ERR_ARG", f"data representation {datarep!r}: only 'external32' is supported")
    dtype = datatype._valid().dtype
    if dtype is None or dtype.kind not in "biufcS":
        raise error("ERR_TYPE", f"{datatype!r} has several types; pack its parts one by one, or use Pack")
    return 4 if dtype.char in "lL" else int(dtype.itemsize)


def _to_external(data: np.ndarray, dtype: np.dtype, size: int) -> np.ndarray:
    numbers = data.view(dtype)
    if dtype.kind in "iu" and size != dtype.itemsize:
        numbers = numbers.astype(f"{dtype.kind}{size}")
    if dtype.char in "gG":
        return _quads(numbers.view("g")).view(np.uint8)
    return numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8)


def _quads(numbers: np.ndarray) -> np.ndarray:
    """Convert x86's 80-bit numbers to IEEE's binary128, big-endian: pairs of 64-bit words."""
    words = np.ascontiguousarray(numbers).view("<u8").reshape(-1, 2)
    fraction, top = words[:, 0] << np.uint64(1) >> np.uint64(1), words[:, 1] & np.uint64(0xFFFF)
    out = np.empty_like(words)
    out[:, 0] = top << np.uint64(48) | fraction >> np.uint64(15)
    out[:, 1] = fraction << np.uint64(49)
    return out.astype(">u8").reshape(-1)


def _from_quads(data: np.ndarray) -> np.ndarray:
    words = data.view(">u8").astype("<u8").reshape(-1, 2)
    top = words[:, 0] >> np.uint64(48)
    fraction = (words[:, 0] << np.uint64(16) >> np.uint64(1)) | words[:, 1] >> np.uint64(49)
    normal = (top & np.uint64(0x7FFF)) != 0  # the 80-bit format stores the leading one of normal numbers
    out = np.empty_like(words)
    out[:, 0], out[:, 1] = fraction | normal.astype("<u8") << np.uint64(63), top
    return out.reshape(-1).view("g")


def _from_external(data: np.ndarray, dtype: np.dtype, size: int) -> np.ndarray:
    if dtype.char in "gG":
        return _from_quads(data).view(np.uint8)
    outside = np.dtype(f"{dtype.kind}{size}") if dtype.kind in "iu" else dtype
    return data.view(outside.newbyteorder(">")).astype(dtype).view(np.uint8)


def Pack_external_size(self: Any, datarep: str, count: int) -> int:
    """Return the size in bytes of *count* elements in a data representation: "external32"."""
    size = _external(self, datarep)
    return count * (self.size // self.dtype.itemsize) * size


def Pack_external(self: Any, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
    """Pack all elements of *inbuf* into *outbuf* in the representation "external32", from *position* on.

    Returns
    -------
    int
        Offset in bytes after the packed elements.

    Raises
    ------
    Exception
        ERR_TRUNCATE if *outbuf* is too small.
    """
    from viakit.comm.datatype import as_bytes, elements_in  # it imports this module

    size = _external(self, datarep)
    source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
    data = self.gather(source, 0, elements_in(source.size, self))
    packed = _to_external(np.ascontiguousarray(data), self.dtype, size)
    check_packed(position, packed.size, target.size, "output")
    target[position : position + packed.size] = packed
    return position + int(packed.size)


def Unpack_external(self: Any, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
    """Unpack as many elements as *outbuf* holds from the representation "external32"; return the offset after them.

    Raises
    ------
    Exception
        ERR_TRUNCATE if *inbuf* has fewer bytes after *position*.
    """
    from viakit.comm.datatype import as_bytes, elements_in  # it imports this module

    size = _external(self, datarep)
    source, target = as_bytes(inbuf, False), as_bytes(outbuf, True)
    count = elements_in(target.size, self)
    length = count * (self.size // self.dtype.itemsize) * size
    check_packed(position, length, source.size, "input")
    packed = np.array(source[position : position + length])
    self.scatter(target, 0, count, _from_external(packed, self.dtype, size))
    return position + length


def alignment(datatype: Any) -> int:
    """Return the alignment in bytes of the datatype's numbers; 0 if it has bounds that the program has set.

    MPI pads a structure to a multiple of the largest alignment, but not if one of its parts has such bounds.
    """
    if datatype._combiner in ("RESIZED", "SUBARRAY", "DARRAY"):
        return 0
    if datatype.dtype is not None:
        return int(datatype.dtype.alignment)
    found = [alignment(base) for base in datatype._bases]
    return 0 if 0 in found else max(found, default=1)


def add_constructors(cls: Any) -> None:
    """Add the functions of this module to the class of datatypes."""
    from viakit.comm.named_types import fromcode  # it imports this module

    own: tuple[Any, ...] = (Create_darray, Pack_external_size, Pack_external, Unpack_external)
    of_class: tuple[Any, ...] = (Create_f90_integer, Create_f90_real, Create_f90_complex)
    static: tuple[Any, ...] = (Match_size, Get_value_index, fromcode)
    for function in own:
        setattr(cls, function.__name__, function)
    for function in of_class:
        setattr(cls, function.__name__, classmethod(function))
    for function in static:
        setattr(cls, function.__name__, staticmethod(function))
