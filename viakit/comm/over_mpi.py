"""The library of protocol "mpi": mpi4py's module, whose ranks abort the job if one of them fails."""

from __future__ import annotations

import array
import atexit
import contextlib
import fcntl
import os
import stat
import sys
import termios
import time
from typing import Any

from viakit import _core
from viakit.comm import errors
from viakit.launch import detect
from viakit.launch import mpi_library as mpi

_SEGMENTS = ("/dev/shm/sm_segment.", "/dev/shm/vader_segment.")  # of Open MPI 5 and 4
GRACE_S = 1.0  # A rank with a non-zero exit status waits this long for the other ranks before it aborts the job.


def load() -> Any:
    """Return ``mpi4py.MPI``, with the MPI library of the launcher, or with any installed one if there is no launcher.

    If a rank ends by an exception, it aborts the job, as under every other protocol; MPI alone would wait for this
    rank. A rank with a non-zero exit status does the same while other ranks continue (csrc/msg/mpi_exit.c). There are
    two exceptions: the program has imported ``mpi4py.MPI`` before, or has set ``mpi4py.rc.finalize``. In these cases
    mpi4py or the program is responsible for finalisation.

    The first call is collective.

    Raises
    ------
    Exception
        ERR_OTHER if mpi4py or an MPI library is missing, or if ``viakit run`` has started the ranks without MPI.
    """
    place = detect()
    if place.launcher == "viakit" and place.size > 1:
        raise errors.error(
            "ERR_OTHER", "MPI did not start these ranks; start them with viakit run --protocol mpi or with mpirun"
        )
    if "MPI4PY_LIBMPI" not in os.environ and "mpi4py.MPI" not in sys.modules:
        found = mpi.find_all()
        library = found.get(mpi.family(place.launcher)) or next(iter(found.values()), None)
        if library is not None:
            os.environ["MPI4PY_LIBMPI"] = library.libmpi
    try:
        import mpi4py  # optional package; its module MPI initialises the library

        mine = mpi4py.rc.finalize is None and mpi4py.rc.initialize in (None, True)
        ours = mine and "mpi4py.MPI" not in sys.modules and _core.mpi_exit_can()
        if ours:
            mpi4py.rc.finalize = False
        from mpi4py import MPI  # optional package
    except (ImportError, RuntimeError) as problem:
        text = str(problem).partition("\n")[0]
        raise errors.error(
            "ERR_OTHER", f"protocol 'mpi' needs mpi4py and an MPI library; pip install 'viakit[mpich]' ({text})"
        ) from problem
    if MPI.COMM_WORLD.size == 1:
        atexit.register(_remove, _segments(), os.getpid())
    if MPI.COMM_WORLD.size != place.size and place.launcher == "srun":
        if ours:
            atexit.register(_finalize, MPI, os.getpid())
        raise errors.error(
            "ERR_OTHER",
            f"MPI has {MPI.COMM_WORLD.size} rank, srun has started {place.size}: this MPI was not started by srun; "
            "srun --mpi=pmi2 starts MPICH, srun --mpi=pmix Open MPI, and mpirun within salloc or sbatch either",
        )
    if ours:
        own = MPI.COMM_WORLD.Dup()
        _core.mpi_exit(MPI.__file__, MPI._handleof(MPI.COMM_WORLD), MPI._handleof(own), int(GRACE_S * 1000))
    atexit.register(_leave, MPI, os.getpid())
    return MPI


def _leave(mpi: Any, process: int) -> None:
    """At exit: if the program ends by an exception, abort the job, because the other ranks would wait for this one."""
    if os.getpid() != process or getattr(sys, "last_value", None) is None or hasattr(sys, "ps1"):
        return
    if not mpi.Is_finalized() and mpi.COMM_WORLD.size > 1:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
                _until_read(stream.fileno())
        mpi.COMM_WORLD.Abort(1)


def _finalize(mpi: Any, process: int) -> None:
    """At exit: finalize MPI, as mpi4py does if its rc.finalize is not False."""
    if os.getpid() == process and not mpi.Is_finalized():
        mpi.Finalize()


def _segments() -> list[str]:
    """Return the files of Open MPI in /dev/shm that this process has mapped."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        paths = ["".join(line.rstrip("\n").partition("/")[1:]) for line in maps]
    return sorted({path for path in paths if path.startswith(_SEGMENTS)})


def _remove(files: list[str], process: int) -> None:
    """At exit: remove *files*. Open MPI leaves this to its launcher, and a rank that is alone may have none."""
    if os.getpid() == process:
        for file in files:
            with contextlib.suppress(OSError):
                os.unlink(file)


def _until_read(fd: int, timeout_s: float = 1.0) -> None:
    """Wait at most `timeout_s` seconds until a pipe is empty.

    MPICH's launcher discards unread output when a job aborts.
    """
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return
    deadline = time.monotonic() + timeout_s
    unread = array.array("i", [1])
    while time.monotonic() < deadline:
        fcntl.ioctl(fd, termios.FIONREAD, unread)
        if unread[0] == 0:
            return
        time.sleep(0.001)
