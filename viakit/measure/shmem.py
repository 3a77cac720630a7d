"""OpenSHMEM of Open MPI, with the few methods of mpi4py that :class:`viakit.measure.transports.WindowTransport` calls.

OpenSHMEM writes into memory that all ranks have at the same place of their symmetric heaps. So a window is memory from
``shmem_malloc``, a Put is ``shmem_putmem``, and a flush is ``shmem_quiet``, which returns when all writes are in the
peer's memory. The functions are called through ctypes, in a process that has initialised MPI. One thread.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np

from viakit.measure.endpoints import MeasureError

__all__ = ["Shmem", "Window"]

_EQUAL = 0  # SHMEM_CMP_EQ

# Functions of shmem.h: result and arguments.
_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "shmem_init": (None, []),
    "shmem_finalize": (None, []),
    "shmem_my_pe": (ctypes.c_int, []),
    "shmem_n_pes": (ctypes.c_int, []),
    "shmem_malloc": (ctypes.c_void_p, [ctypes.c_size_t]),
    "shmem_free": (None, [ctypes.c_void_p]),
    "shmem_putmem": (None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]),
    "shmem_quiet": (None, []),
    "shmem_long_test": (ctypes.c_int, [ctypes.c_void_p, ctypes.c_int, ctypes.c_long]),
}


def address_of(buffer: Any) -> int:
    """Return the address of a writable buffer's first byte."""
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Window:
    """Symmetric memory of both ranks, as a window. Collective.

    Parameters
    ----------
    shmem : Shmem
        The library.
    nbytes : int
        Length, the same on both ranks.

    Raises
    ------
    MeasureError
        If the symmetric heap has no room.
    """

    def __init__(self, shmem: Shmem, nbytes: int) -> None:
        self.shmem, self.nbytes = shmem, nbytes
        self.base = shmem.calls.shmem_malloc(nbytes)
        if not self.base:
            raise MeasureError(
                f"shmem: the symmetric heap has no {nbytes} bytes; "
                "set SHMEM_SYMMETRIC_SIZE to more, such as 1G, or measure shorter messages"
            )

    def Lock_all(self) -> None:
        """Do nothing: symmetric memory is always open to the peer."""

    Unlock_all = Lock_all

    def tomemory(self) -> np.ndarray:
        """Return the memory of this rank, as an array of bytes."""
        return np.ctypeslib.as_array((ctypes.c_ubyte * self.nbytes).from_address(self.base))

    def Put(self, origin: Any, peer: int, target: Any) -> None:
        """Write the buffer *origin*, or its first bytes ``[buffer, n, BYTE]``, at *target* or ``[target, ...]``."""
        buffer, nbytes = (origin[0], origin[1]) if isinstance(origin, list) else (origin, origin.nbytes)
        at = target[0] if isinstance(target, list) else target
        self.shmem.calls.shmem_putmem(self.base + at, address_of(buffer), nbytes, peer)

    def Flush(self, peer: int) -> None:
        """Wait until all writes are in the peer's memory."""
        self.shmem.calls.shmem_quiet()

    def Sync(self) -> None:
        """Make progress, which writes of the peer may need on a network."""
        self.shmem.calls.shmem_long_test(self.base, _EQUAL, -1)

    def Free(self) -> None:
        """Release the memory. Collective."""
        self.shmem.calls.shmem_free(self.base)


class Shmem:
    """The library, initialised, in the place of the module ``mpi4py.MPI``.

    Parameters
    ----------
    library : str
        Path of liboshmem.
    mpi : module
        ``mpi4py.MPI``, of the same Open MPI.
    """

    def __init__(self, library: str, mpi: Any) -> None:
        self.calls = ctypes.CDLL(library)
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(self.calls, name)
            function.restype, function.argtypes = result, arguments
        self.BYTE, self.UINT64_T = mpi.BYTE, mpi.UINT64_T
        self.Win = self  # Win.Allocate
        self.calls.shmem_init()
        ranks, expected = (self.calls.shmem_my_pe(), self.calls.shmem_n_pes()), (mpi.COMM_WORLD.rank, 2)
        if ranks != expected:
            raise MeasureError(
                f"shmem: rank {ranks[0]} of {ranks[1]} where rank {expected[0]} of 2 was expected: {library} is not of "
                f"the Open MPI that started this process, {os.environ.get('MPI4PY_LIBMPI')}"
            )

    def Allocate(self, nbytes: int, unit: int, comm: Any) -> Window:
        """Return a window of *nbytes*. Collective."""
        return Window(self, nbytes)

    def close(self) -> None:
        """End OpenSHMEM. Collective, and before MPI ends."""
        self.calls.shmem_finalize()
