"""Memory of objects that have no buffer protocol: DLPack and the CUDA array interface, on the host's memory.

Memory of a GPU is refused with an error, because viakit's NICs reach only the host's memory.
"""

from __future__ import annotations

import math
import operator
import sys
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from viakit import _core
from viakit._core import Buffer

_CPU = 1  # DLPack's number of a device
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # type codes of DLPack
_ADVICE = "viakit sends memory of the host; copy it there first, for example with cupy.asnumpy(x) or x.cpu()"


def host(buffer: Any) -> Any:
    """Return an object with the buffer protocol for the memory of *buffer*: itself if it has the protocol.

    Raises
    ------
    TypeError
        If the object has neither the buffer protocol, DLPack nor the CUDA array interface.
    BufferError
        If its memory is not contiguous or is a GPU's.
    """
    if isinstance(buffer, (np.ndarray, bytes, bytearray, memoryview)):
        return buffer
    try:
        memoryview(buffer).release()
    except TypeError:
        return _find_memory(buffer)
    return buffer


def _find_memory(obj: Any) -> Buffer:
    if hasattr(obj, "__dlpack__") and hasattr(obj, "__dlpack_device__"):
        return _of_dlpack(obj)
    if hasattr(obj, "__cuda_array_interface__"):
        return _of_cuda_array(obj, obj.__cuda_array_interface__)
    raise TypeError(
        "message: expecting an object with the buffer protocol, DLPack or the CUDA array interface, got "
        f"{type(obj).__name__}"
    )


def _format(kind: str, nbytes: int) -> tuple[str, int]:
    """Return the format and size of an element; of bytes if NumPy has no such type."""
    try:
        dtype = np.dtype("?" if kind == "b" and nbytes == 1 else f"{kind}{nbytes}")
    except TypeError:
        return "B", 1
    return (dtype.char, dtype.itemsize) if dtype.kind in "biufc" else ("B", 1)


def _count(shape: Sequence[int], strides: Sequence[int] | None) -> int:
    """Return the number of elements of an array. Strides are in elements."""
    if any(n < 0 for n in shape):
        raise BufferError(f"the shape {tuple(shape)} has a negative extent")
    size = math.prod(shape)
    if strides is None or size == 0:
        return size
    if len(strides) != len(shape):
        raise BufferError(f"the shape has {len(shape)} dimensions and there are {len(strides)} strides")
    for order in (range(len(shape) - 1, -1, -1), range(len(shape))):
        expected, good = 1, True
        for i in order:
            good = good and (shape[i] == 1 or strides[i] == expected)
            expected *= shape[i]
        if good:
            return size
    raise BufferError("the array is not contiguous; pass a contiguous copy or a derived datatype")


def _check_readable(address: int, nbytes: int) -> None:
    if not _core.is_readable(address, nbytes):
        raise BufferError(f"this process cannot read the memory at {address:#x}, which may be a GPU's. {_ADVICE}")


class _Capsule:
    """Owner of a DLPack capsule, whose destructor may run Python code.

    The memory of an argument is released while the error of a call that fails is raised. Python puts a pending error
    aside for ``__del__``, but not for the destructor of a capsule, in which the error would get lost.
    """

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __del__(self) -> None:
        self._capsule = None


def _of_dlpack(obj: Any) -> Buffer:
    kind, number = obj.__dlpack_device__()
    kind, _ = operator.index(kind), operator.index(number)
    stream = {} if kind == _CPU else {"stream": -1}
    try:
        capsule = obj.__dlpack__(max_version=(1, 0), **stream)
    except TypeError:  # an object of DLPack before version 1
        capsule = obj.__dlpack__(**stream)
    address, shape, strides, code, bits, lanes, readonly = _core.read_dlpack(capsule)
    size = bits * lanes // 8
    if code == 2 and bits == 128 and lanes == 2:
        letter, item = "G", size
    elif lanes == 1 and bits % 8 == 0:
        letter, item = _format(_KINDS.get(code, "V"), size)
    else:
        letter, item = "B", 1
    nbytes = _count(shape, strides) * size
    if kind != _CPU:
        _check_readable(address, nbytes)
    return Buffer.of(address, nbytes, readonly, obj, _Capsule(capsule), letter, item, device=kind != _CPU)


def _of_cuda_array(obj: Any, interface: Any) -> Buffer:
    if not isinstance(interface, dict):
        raise TypeError(f"__cuda_array_interface__ must be a dict, got {type(interface).__name__}")
    address, readonly = interface["data"]
    typestr, shape = interface["typestr"], tuple(operator.index(n) for n in interface["shape"])
    strides, descr = interface.get("strides"), interface.get("descr")
    if interface.get("mask") is not None:
        raise BufferError("__cuda_array_interface__: an array with a mask is not supported; pass its data")
    if not isinstance(typestr, str):
        raise TypeError(f"__cuda_array_interface__: typestr must be a string, got {type(typestr).__name__}")
    if typestr[:1] not in ("|", "=", "<" if sys.byteorder == "little" else ">"):
        raise BufferError(f"__cuda_array_interface__: the byte order of {typestr!r} is not this machine's")
    size = int(typestr[2:])
    if descr is not None:
        if not isinstance(descr, (list, tuple)):
            raise TypeError(f"__cuda_array_interface__: descr must be a list, got {type(descr).__name__}")
        if len(descr) != 1 or descr[0][1] != typestr:
            warnings.warn("__cuda_array_interface__: descr is ignored; typestr is used", RuntimeWarning, stacklevel=3)
    if strides is not None:
        strides = tuple(operator.index(n) for n in strides)
        if any(n > 1 and stride % size for n, stride in zip(shape, strides, strict=False)):
            raise BufferError("the array is not contiguous; pass a contiguous copy or a derived datatype")
        strides = [stride // size for stride in strides]
    nbytes = _count(shape, strides) * size
    letter, item = _format(typestr[1], size)
    address = operator.index(address or 0)
    _check_readable(address, nbytes)
    return Buffer.of(address, nbytes, bool(readonly), obj, obj, letter, item, device=True)


_core.set_find_memory(_find_memory)
