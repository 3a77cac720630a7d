"""Replacement for mpi4py: ``from viakit.mpi import MPI`` in place of ``from mpi4py import MPI``.

``MPI`` offers mpi4py's names for everything that :mod:`viakit.comm` implements. ``MPI.COMM_WORLD`` is opened at its
first use, over the protocol that ``VIAKIT_PROTOCOL`` (or ``viakit run --protocol``) names.
"""

from __future__ import annotations

import difflib
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import viakit
from viakit import _core, virtual
from viakit import comm as _comm
from viakit.comm import (
    attributes,
    cart,
    communicator,
    constants,
    contents,
    datatype,
    derive,
    errhandler,
    error_codes,
    errors,
    file,
    grequest,
    group,
    handle,
    info,
    inter,
    internals,
    message,
    named_types,
    objects,
    op,
    ports,
    request,
    session,
    spec,
    topology,
    win,
    win_epochs,
)
from viakit.comm.buffers import Buffer

__all__ = ["MPI"]

VERSION, SUBVERSION = 3, 1


def Wtime() -> float:
    """Return the time in seconds on a monotonic clock, which is virtual on a described machine."""
    return virtual.time_s()


def Wtick() -> float:
    """Return the resolution of the clock in seconds."""
    return time.get_clock_info("monotonic").resolution


def Get_processor_name() -> str:
    """Return the name of this host."""
    return socket.gethostname()


def Get_version() -> tuple[int, int]:
    """Return the version of the MPI standard that the interface follows, as (version, subversion)."""
    return (VERSION, SUBVERSION)


def Get_library_version() -> str:
    """Return the name and version of the library as a string."""
    return f"viakit {viakit.__version__}"


def get_vendor() -> tuple[str, tuple[int, int, int]]:
    """Return the name of the library and its version as three integers."""
    major, minor, micro = (int(part) for part in viakit.__version__.split("."))
    return ("viakit", (major, minor, micro))


def Query_thread() -> int:
    """Return THREAD_MULTIPLE: any thread may call."""
    return 3


def Is_thread_main() -> bool:
    """Return whether the caller is the main thread."""
    return threading.current_thread() is threading.main_thread()


def Alloc_mem(size: int, info: Any = None) -> Buffer:
    """Allocate *size* bytes of zeroed memory."""
    del info
    return Buffer.allocate(size)


def Free_mem(mem: Buffer) -> None:
    """Release memory of `Alloc_mem`."""
    mem.release()


_finalized = False


def Init() -> None:
    """Open COMM_WORLD. Calling it is optional, because the first use of COMM_WORLD does the same."""
    _comm.world()


def Init_thread(required: int = 3) -> int:
    """Open COMM_WORLD and return the level of thread support, which is always THREAD_MULTIPLE."""
    del required
    Init()
    return 3


def Is_initialized() -> bool:
    """Return True: COMM_WORLD is opened when it is needed."""
    return True


def Is_finalized() -> bool:
    """Return whether `Finalize` has been called."""
    return _finalized


def Finalize() -> None:
    """Close all worlds of this process. Collective: the ranks wait for each other."""
    global _finalized
    _comm.close_all()
    _finalized = True


def Attach_buffer(buf: Any) -> None:
    """Attach a buffer for buffered sends of the whole process."""
    _comm.world().Attach_buffer(buf)


def Detach_buffer() -> Any:
    """Wait until all buffered sends have been transmitted, then detach and return the buffer."""
    return _comm.world().Detach_buffer()


def Flush_buffer() -> None:
    """Wait until all buffered sends have been transmitted."""
    _comm.world().Flush_buffer()


def Iflush_buffer() -> Any:
    """Start to wait until all buffered sends have been transmitted."""
    return _comm.world().Iflush_buffer()


def Pcontrol(level: int) -> None:
    """Accept a level of profiling and ignore it, because no profiler is attached."""
    del level


def Get_hw_resource_info() -> Any:
    """Return the types of hardware that `Split_type` knows, as an Info object."""
    return info.Info.Create({"mpi_hw_resource_type": "mpi_shared_memory"})


def Aint_add(base: int, disp: int) -> int:
    """Return the address *disp* bytes after *base*."""
    return base + disp


def Aint_diff(addr1: int, addr2: int) -> int:
    """Return the difference of two addresses in bytes."""
    return addr1 - addr2


def Get_address(location: Any) -> int:
    """Return the address of a buffer's first byte."""
    if isinstance(location, spec.Constant):
        return int(location)
    return 0 if location is None else Buffer(location).address


def _names() -> Iterator[tuple[str, Any]]:
    yield from datatype.NAMED.items()
    yield from ((f"COMBINER_{name}", number) for name, number in contents.NUMBERS.items())
    yield from ((name, value) for name, value in vars(derive).items() if name.startswith(("DISTRIBUTE_", "TYPECLASS_")))
    yield from op.NAMED.items()
    yield from errors.CLASSES.items()
    hidden = (
        "accept",
        "connect",
        "join_socket",
        "world",
        "close_all",
        "HasErrhandler",
        "HasAttributes",
        "predefined",
        "class_of",
        "last_used",
        "text_of",
    )
    for source in (_comm, attributes, constants, errhandler, error_codes, file, info, internals, ports, session):
        for name in source.__all__:
            if name not in hidden and name != "set_predefined":
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
        ("REQUEST_NULL", request.REQUEST_NULL),
        ("COMM_TYPE_SHARED", communicator.COMM_TYPE_SHARED),
        ("CART", cart.CART),
        ("BSEND_OVERHEAD", 96),
        ("Pickle", objects.Pickle),
        ("pickle", objects.PICKLE),
        ("MESSAGE_NULL", message.MESSAGE_NULL),
        ("MESSAGE_NO_PROC", message.MESSAGE_NO_PROC),
        ("MAX_PROCESSOR_NAME", 256),
        ("MAX_ERROR_STRING", 512),
        ("THREAD_SINGLE", 0),
        ("THREAD_FUNNELED", 1),
        ("THREAD_SERIALIZED", 2),
        ("THREAD_MULTIPLE", 3),
        ("_sizeof", handle.sizeof),
        ("_addressof", handle.addressof),
        ("_handleof", handle.handleof),
        ("Grequest", grequest.Grequest),
        ("Intercomm", inter.Intercomm),
        ("Topocomm", communicator.Topocomm),
        ("BUFFER_AUTOMATIC", spec.BUFFER_AUTOMATIC),
        ("BufferAutomaticType", spec.BufferAutomaticType),
        ("_typedict", named_types.BY_CODE),
        ("BottomType", spec.BottomType),
        ("InPlaceType", spec.InPlaceType),
    )
    for source in (win, win_epochs):
        for name, value in vars(source).items():
            if name.startswith(("WIN_", "MODE_", "LOCK_")):
                yield name, value
    yield "Win", win.Win
    for name in topology.__all__:
        yield name, getattr(topology, name)
    for what in (
        Wtime, Wtick, Get_processor_name, Get_version, Get_library_version, get_vendor, Query_thread,
        Is_thread_main, Alloc_mem, Free_mem, Init, Init_thread, Is_initialized, Is_finalized, Finalize, Attach_buffer,
        Detach_buffer, Flush_buffer, Iflush_buffer, Pcontrol, Get_hw_resource_info, Aint_add, Aint_diff, Get_address,
    ):  # fmt: skip
        yield what.__name__, what
    yield "VERSION", VERSION
    yield "SUBVERSION", SUBVERSION
    yield "memory", Buffer
    yield "buffer", Buffer


class _Mpi(ModuleType):
    """The module that replaces ``mpi4py.MPI``."""

    def __init__(self) -> None:
        super().__init__("viakit.mpi.MPI", "The names of mpi4py.MPI, implemented by viakit's communicators.")
        self.__dict__.update(_names())
        self.__file__ = _core.__file__  # the compiled part, as mpi4py.MPI is one

    @property
    def COMM_WORLD(self) -> Any:
        """Communicator of all ranks, opened at its first use."""
        return _comm.world()

    @property
    def COMM_SELF(self) -> Any:
        """Communicator of this rank alone."""
        return _comm.self_of(_comm.world())

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError with the names that resemble the one that does not exist."""
        close = difflib.get_close_matches(name, dir(self), 3, 0.7)
        more = f"; similar names: {', '.join(close)}" if close else "; docs/comm.md lists what exists"
        raise AttributeError(f"viakit.mpi.MPI has no {name}{more}", name=name, obj=self)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, "COMM_WORLD", "COMM_SELF"})


def _choose() -> Any:
    """Return mpi4py's own module for protocol "mpi", otherwise the replacement."""
    if os.environ.get("VIAKIT_PROTOCOL") == "mpi":
        from viakit.comm.over_mpi import load  # optional package

        return load()
    return _Mpi()


MPI: Any = _choose()
sys.modules[f"{__name__}.MPI"] = MPI  # so that `import viakit.mpi.MPI` works as `import mpi4py.MPI` does
