# Shared by all kernels: checks of arrays before C gets their addresses, and the level of vector instructions.

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

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
    cdef tuple wanted_shape = shape, given_shape = array.shape
    cdef bint fits = len(wanted_shape) == len(given_shape)
    cdef Py_ssize_t i
    for i in range(len(wanted_shape) if fits else 0):
        fits = fits and (wanted_shape[i] is None or wanted_shape[i] == given_shape[i])
    if not fits:
        wanted = "(" + ", ".join("any" if one is None else str(one) for one in shape) + ")"
        raise ValueError(f"{name} is to be of shape {wanted}, not {array.shape}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{name} is to be contiguous (C order): numpy.ascontiguousarray({name}) makes it so")
    if written and not array.flags.writeable:
        raise ValueError(f"{name} is read-only, and results are to go there")
    return array


cdef int _apart(object one, str name, object other, str other_name) except -1:
    """Raise ValueError if two contiguous arrays have memory in common: C would read what it has overwritten."""
    if np.may_share_memory(one, other):
        raise ValueError(f"{name} and {other_name} overlap")
    return 0


# The address is good as long as the array is referred to, which it is: by the caller's argument. An array that is
# referred to elsewhere cannot be resized, so the view need not be held. (array.ctypes.data says the same, but slowly.)
cdef void *_address(object array) except? NULL:
    cdef Py_buffer view
    PyObject_GetBuffer(array, &view, PyBUF_SIMPLE)
    cdef void *address = view.buf
    PyBuffer_Release(&view)
    return address


def level() -> str:
    """Return the level of vector instructions that kernels use: ``"portable"``, ``"avx2"`` or ``"avx512"``."""
    return kernels_level_name(kernels_level()).decode()


def levels() -> list:
    """Return the levels that this machine can run, plainest first; the last is used unless another is set."""
    return [kernels_level_name(one).decode() for one in range(kernels_level_best() + 1)]


def set_level(str name) -> None:
    """Use the vector instructions of the level *name* in this process, to test and to compare.

    ValueError where the machine has none of that level.
    """
    names = levels()
    if name not in names:
        raise ValueError(f"this machine cannot run kernels at level {name!r}; it can: {', '.join(names)}")
    kernels_level_set(names.index(name))
