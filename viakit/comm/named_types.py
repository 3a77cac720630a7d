"""The predefined datatypes, and how a type code or a buffer's format names one."""

from __future__ import annotations

import numpy as np

from viakit.comm.datatype import Datatype

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
    "COMPLEX32": "G",
    "REAL2": "f2",
    "REAL16": "g",
    "LOGICAL1": "i1",
    "LOGICAL2": "i2",
    "LOGICAL4": "i4",
    "LOGICAL8": "i8",
    "FLOAT32_T": "f4",
    "FLOAT64_T": "f8",
}
# Datatypes whose numbers NumPy does not have.
_ABSENT = ("LOGICAL16", "INTEGER16", "COMPLEX4", "BFLOAT16_T")
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
    "CXX_BOOL": "C_BOOL",
    "CXX_FLOAT_COMPLEX": "C_FLOAT_COMPLEX",
    "CXX_DOUBLE_COMPLEX": "C_DOUBLE_COMPLEX",
    "CXX_LONG_DOUBLE_COMPLEX": "C_LONG_DOUBLE_COMPLEX",
    "F_BOOL": "LOGICAL",
    "F_COMPLEX": "COMPLEX",
    "F_FLOAT_COMPLEX": "COMPLEX",
    "F_DOUBLE_COMPLEX": "DOUBLE_COMPLEX",
    "SIGNED_SHORT": "SHORT",
    "SIGNED_INT": "INT",
    "SIGNED_LONG": "LONG",
    "SIGNED_LONG_LONG": "LONG_LONG",
}


def _make_named() -> dict[str, Datatype]:
    made = {"DATATYPE_NULL": Datatype()}
    made["PACKED"] = Datatype._of([(0, 1)], 0, 1, np.dtype("u1"), "MPI_PACKED")
    for name, code in _NUMBERS.items():
        dtype = np.dtype(code)
        made[name] = Datatype._of([(0, dtype.itemsize)], 0, dtype.itemsize, dtype, f"MPI_{name}")
    for name, code in _PAIRS.items():
        dtype = np.dtype([("value", code), ("index", "i")], align=True)
        first = np.dtype(code).itemsize
        assert dtype.fields is not None
        made[name] = Datatype._of([(0, first), (dtype.fields["index"][1], 4)], 0, dtype.itemsize, dtype, f"MPI_{name}")
    for name, datatype in made.items():
        datatype._constant_name = name
    made.update(dict.fromkeys(_ABSENT, made["DATATYPE_NULL"]))
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
    "P": "UNSIGNED_LONG",
    "i1": "INT8_T", "i2": "INT16_T", "i4": "INT32_T", "i8": "INT64_T", "u1": "UINT8_T", "u2": "UINT16_T",
    "u4": "UINT32_T", "u8": "UINT64_T", "f4": "FLOAT", "f8": "DOUBLE", "c8": "C_FLOAT_COMPLEX",
    "c16": "C_DOUBLE_COMPLEX", "b1": "C_BOOL", "s": "CHAR", "S": "CHAR", "S1": "CHAR", "s1": "CHAR",
    "g16": "LONG_DOUBLE", "e": "FLOAT16_T", "f2": "FLOAT16_T",
}  # fmt: skip


BY_CODE = {code: NAMED[name] for code, name in _OF_CODE.items()}


class CodeError(KeyError, ValueError):
    """Error: a type code that names no datatype."""


def named(name: str) -> Datatype:
    """Return the predefined datatype of a name, without MPI's prefix."""
    return NAMED[name]


def fromcode(code: str) -> Datatype:
    """Return the predefined datatype for a type code.

    Parameters
    ----------
    code : str
        A NumPy or struct type string (``"d"``, ``"i4"``, ``"<f8"``), or the MPI name of the datatype.

    Raises
    ------
    CodeError
        A KeyError and a ValueError, if there is no such datatype.
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
    raise CodeError(code)


def of_buffer(view: memoryview) -> Datatype:
    """Return the datatype of a buffer's elements, derived from its format."""
    code = view.format or "B"
    if len(code) > 1 and code[0] in "<>!" and code[0] != ("<" if np.little_endian else ">"):
        raise BufferError(f"buffer elements of format {code!r} have another byte order; name a datatype to send them")
    if view.itemsize == 0:
        return BYTE
    try:
        datatype = fromcode(code)
        if datatype.extent == view.itemsize:
            return datatype
    except KeyError:
        pass
    raise KeyError(f"buffer elements of format {code!r} have no MPI datatype; name one, as in [buffer, MPI.BYTE]")
