"""``from viakit.mpi import MPI`` in place of ``from mpi4py import MPI``.

``MPI`` has mpi4py's names as far as :mod:`viakit.comm` has what they stand for. ``MPI.COMM_WORLD`` is opened when
it is first used, over the protocol that ``VIAKIT_PROTOCOL`` (or ``viakit run --protocol``) names.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from viakit import comm as _comm
from viakit._comm import communicator, datatype, errors, group, message, objects, op, request, spec
from viakit._comm.errors import error

__all__ = ["MPI"]

VERSION, SUBVERSION = 3, 1


class Info(dict[str, str]):
    """``MPI.Info``: words for words; none of them means anything here."""

    @classmethod
    def Create(cls, items: Any = None) -> Info:
        """A new one."""
        return cls(items or {})

    def Set(self, key: str, value: str) -> None:
        """Put a word for a word."""
        self[key] = value

    def Get(self, key: str) -> str | None:
        """The word for a word, or None."""
        return self.get(key)

    def Delete(self, key: str) -> None:
        """Take it out."""
        if key not in self:
            raise error("ERR_INFO", f"no key {key!r}")
        del self[key]

    def Get_nkeys(self) -> int:
        """How many."""
        return len(self)

    def Get_nthkey(self, n: int) -> str:
        """The n-th key."""
        return list(self)[n]

    def Dup(self) -> Info:
        """Another with the same words."""
        return Info(self)

    def Free(self) -> None:
        """Forget it."""
        self.clear()


class Errhandler:
    """``MPI.Errhandler``: there is one behaviour here, exceptions."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return f"MPI.{self._name}"


def Wtime() -> float:
    """Seconds on a clock that never goes back."""
    return time.monotonic()


def Wtick() -> float:
    """The clock's resolution in seconds."""
    return time.get_clock_info("monotonic").resolution


def Get_processor_name() -> str:
    """The name of this host."""
    return socket.gethostname()


def Get_version() -> tuple[int, int]:
    """The version of the MPI standard whose calls these are."""
    return (VERSION, SUBVERSION)


def Get_library_version() -> str:
    """Which library this is."""
    import viakit

    return f"viakit {viakit.__version__}"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Name and version of the library."""
    import viakit

    major, minor, micro = (int(part) for part in viakit.__version__.split("."))
    return ("viakit", (major, minor, micro))


def Query_thread() -> int:
    """THREAD_MULTIPLE: any thread may call."""
    return 3


def Is_thread_main() -> bool:
    """Whether this is the main thread."""
    return threading.current_thread() is threading.main_thread()


def Alloc_mem(size: int, info: Any = None) -> memoryview:
    """Memory of so many bytes."""
    del info
    return memoryview(bytearray(size))


def Free_mem(mem: memoryview) -> None:
    """Give it back."""
    mem.release()


_finalized = False


def Init() -> None:
    """Open the world."""
    _comm.world()


def Init_thread(required: int = 3) -> int:
    """Open the world; the level of threads that is given: THREAD_MULTIPLE."""
    del required
    Init()
    return 3


def Is_initialized() -> bool:
    """True: the world is opened when it is needed."""
    return True


def Is_finalized() -> bool:
    """Whether Finalize has been called."""
    return _finalized


def Finalize() -> None:
    """Close all worlds; the ranks wait for each other."""
    global _finalized
    _comm.close_all()
    _finalized = True


def Attach_buffer(buf: Any) -> None:
    """The buffer for buffered sends."""
    _comm.world().Attach_buffer(buf)


def Detach_buffer() -> Any:
    """Wait until buffered sends have left; the buffer."""
    return _comm.world().Detach_buffer()


def Get_address(location: Any) -> int:
    """Where a buffer begins."""
    import numpy as np

    return np.frombuffer(location, np.uint8).ctypes.data


def _names() -> Iterator[tuple[str, Any]]:
    yield from datatype.NAMED.items()
    yield from op.NAMED.items()
    yield from errors.CLASSES.items()
    for source in (_comm,):
        for name in source.__all__:
            if name not in ("world", "close_all"):
                yield name, getattr(source, name)
    yield from (
        ("UNDEFINED", datatype.UNDEFINED),
        ("ORDER_C", datatype.ORDER_C),
        ("ORDER_FORTRAN", datatype.ORDER_F),
        ("ORDER_F", datatype.ORDER_F),
        ("IDENT", group.IDENT),
        ("CONGRUENT", group.CONGRUENT),
        ("SIMILAR", group.SIMILAR),
        ("UNEQUAL", group.UNEQUAL),
        ("GROUP_EMPTY", group.EMPTY),
        ("GROUP_NULL", group.NULL),
        ("Compute_dims", group.Compute_dims),
        ("REQUEST_NULL", request.Request()),
        ("COMM_TYPE_SHARED", communicator.COMM_TYPE_SHARED),
        ("CART", communicator.CART),
        ("GRAPH", 2),
        ("DIST_GRAPH", 3),
        ("BSEND_OVERHEAD", 96),
        ("Pickle", objects.Pickle),
        ("pickle", objects.PICKLE),
        ("TAG_UB", communicator.TAG_UB),
        ("MESSAGE_NULL", message.MESSAGE_NULL),
        ("MESSAGE_NO_PROC", message.MESSAGE_NO_PROC),
        ("MAX_PROCESSOR_NAME", 256),
        ("MAX_ERROR_STRING", 512),
        ("THREAD_SINGLE", 0),
        ("THREAD_FUNNELED", 1),
        ("THREAD_SERIALIZED", 2),
        ("THREAD_MULTIPLE", 3),
        ("INFO_NULL", Info()),
        ("ERRORS_RETURN", Errhandler("ERRORS_RETURN")),
        ("ERRORS_ARE_FATAL", Errhandler("ERRORS_ARE_FATAL")),
        ("Get_error_class", errors.Get_error_class),
        ("Get_error_string", errors.Get_error_string),
        ("Topocomm", communicator.Cartcomm),
        ("BottomType", spec.Constant),
        ("InPlaceType", spec.Constant),
    )
    for what in (
        Info, Errhandler, Wtime, Wtick, Get_processor_name, Get_version, Get_library_version, get_vendor, Query_thread,
        Is_thread_main, Alloc_mem, Free_mem, Init, Init_thread, Is_initialized, Is_finalized, Finalize, Attach_buffer,
        Detach_buffer, Get_address,
    ):  # fmt: skip
        yield what.__name__, what
    yield "VERSION", VERSION
    yield "SUBVERSION", SUBVERSION
    yield "memory", memoryview
    yield "buffer", memoryview


class _Mpi(ModuleType):
    """The module that stands in for ``mpi4py.MPI``."""

    def __init__(self) -> None:
        super().__init__("viakit.mpi.MPI", "mpi4py's names over viakit's communicators.")
        self.__dict__.update(_names())

    @property
    def COMM_WORLD(self) -> Any:
        """All ranks; opened when it is first used."""
        return _comm.world()

    @property
    def COMM_SELF(self) -> Any:
        """A rank alone."""
        everybody = _comm.world()
        return everybody.COMM_SELF if hasattr(everybody, "COMM_SELF") else _comm.self_of(everybody)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, "COMM_WORLD", "COMM_SELF"})


def _choose() -> Any:
    """mpi4py's own module where that is the protocol, else the one that stands in for it."""
    if os.environ.get("VIAKIT_PROTOCOL") == "mpi":
        from viakit._comm.over_mpi import load

        return load()
    return _Mpi()


MPI: Any = _choose()
sys.modules[f"{__name__}.MPI"] = MPI  # so that `import viakit.mpi.MPI` works as `import mpi4py.MPI` does
