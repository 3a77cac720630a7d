"""Arrays for kernels: where each begins does not depend on what the process allocated before.

NumPy's arrays begin 16 bytes behind some multiple of 64, whichever the allocator comes upon. A kernel that goes through
several at once with vectors of 64 bytes needs two cache lines for most vectors of those that begin elsewhere in a line
than the one it stores to: SOR takes half as long again. And a first run in a process may be a fast one, and the next,
whose memory has been used before, slow.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LINE_BYTES", "empty", "zeros"]

LINE_BYTES = 64  # of a cache line, and of the longest vectors


def _lines(made: Any, shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    kind = np.dtype(dtype)
    nbytes = math.prod(shape if isinstance(shape, tuple) else (shape,)) * kind.itemsize
    memory = made(nbytes + LINE_BYTES, np.uint8)
    first = -memory.ctypes.data % LINE_BYTES
    out: npt.NDArray[Any] = memory[first : first + nbytes].view(kind).reshape(shape)
    return out


def empty(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as :func:`numpy.empty` does, that begins with a cache line."""
    return _lines(np.empty, shape, dtype)


def zeros(shape: int | tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an array as :func:`numpy.zeros` does, that begins with a cache line."""
    return _lines(np.zeros, shape, dtype)
