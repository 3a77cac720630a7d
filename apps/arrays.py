"""Arrays for kernels, aligned to cache lines, so that their alignment does not depend on earlier allocations.

NumPy's arrays begin 16 bytes after some multiple of 64, which depends on the allocator. A kernel may process several
arrays with vectors of 64 bytes. If the arrays are aligned differently from the one it writes, most vectors need two
cache lines, and SOR takes half as long again. The first run in a process may then be fast, and the next one slow,
because its memory has been used before.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LINE_BYTES", "empty", "zeros"]

LINE_BYTES = 64  # length of a cache line, and of the longest vectors


def _lines(made: Any, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    nbytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    memory = made(nbytes + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    out: npt.NDArray[Any] = memory[first : first + nbytes].view(kind).reshape(shape)
    return out


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as :func:`numpy.empty` does, aligned to a cache line."""
    return _lines(np.empty, shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as :func:`numpy.zeros` does, aligned to a cache line."""
    return _lines(np.zeros, shape, dtype)
