# What all kernels share: looking at arrays before C gets their addresses, and the level of vector instructions.

from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t

import numpy as np

cdef extern from "kernels.h" nogil:
    const char *kernels_level_name(int level)
    int kernels_level()
    int kernels_level_best()
    int kernels_level_set(int level)


cdef object _check(object array, str name, str dtype, object shape, bint written=False):
    """Return *array* if it is a contiguous array of *dtype* and *shape*, and writable if it is *written*.

    *shape* is a tuple, with None where any length will do; ValueError or TypeError say what is wrong, by *name*.
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} is to be a NumPy array of {dtype}, not {type(array).__name__}")
    if array.dtype != dtype:
        raise TypeError(f"{name} is to be of dtype {dtype}, not {array.dtype}")
    fits = array.ndim == len(shape) and all(want is None or want == have for want, have in zip(shape, array.shape))
    if not fits:
        wanted = "(" + ", ".join("any" if one is None else str(one) for one in shape) + ")"
        raise ValueError(f"{name} is to be of shape {wanted}, not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is to be contiguous (C order): numpy.ascontiguousarray({name}) makes it so")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only, and results are to go there")
    return array


# The address is good as long as the array is referred to, which it is: by the caller's argument.
cdef inline void *_address(object array) except? NULL:
    return <void *><uintptr_t>array.ctypes.data


def level() -> str:
    """Return the level of vector instructions that kernels use: ``"portable"``, ``"avx2"`` or ``"avx512"``."""
    return kernels_level_name(kernels_level()).decode()


def levels() -> list:
    """Return the levels that this machine can run, from the plainest to the best, which is in use until another is set."""
    return [kernels_level_name(one).decode() for one in range(kernels_level_best() + 1)]


def set_level(str name) -> None:
    """Use the vector instructions of the level *name* in this process, to test and to compare.

    ValueError where the machine has none of that level.
    """
    names = levels()
    if name not in names:
        raise ValueError(f"this machine cannot run kernels at level {name!r}; it can: {', '.join(names)}")
    kernels_level_set(names.index(name))
