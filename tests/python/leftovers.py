"""Find files, processes and namespaces that a test has left behind, beside other runs on the same machine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHM = Path("/dev/shm")
_OF_MPI = (f"{SHM}/mpich_shm_", f"{SHM}/sm_segment.")


def in_use(name: str) -> bool:
    """Return whether a process uses this name in /dev/shm: as a mapping, open file, argument or variable.

    The file then belongs to another run.
    """
    path = str(SHM / name)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(path.encode() in (process / what).read_bytes() for what in ("maps", "cmdline", "environ")):
                return True
            if any(os.readlink(fd).startswith(path) for fd in (process / "fd").iterdir()):
                return True
    return False


def marked(mark: bytes) -> dict[int, str]:
    """Return the other processes that inherited *mark* in their environment, and the command of each.

    A zombie has no environment, and is not included. A process that is executing a program is included, but the kernel
    shows an empty command for it, too.
    """
    from viakit.base.marks import environment_of  # conftest.py checks later which viakit is installed

    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes()
            if int(process.name) != os.getpid() and mark in environment_of(int(process.name)):
                found[int(process.name)] = command.replace(b"\0", b" ").decode(errors="replace").strip()
    return found


def segments(mark: bytes) -> set[Path]:
    """Return the files of MPICH and Open MPI in /dev/shm that processes with *mark* in their environment use.

    A job that is killed leaves them there.
    """
    found = set()
    for pid in marked(mark):
        process = Path(f"/proc/{pid}")
        with contextlib.suppress(OSError):
            words = [line.split(maxsplit=5)[5:] for line in (process / "maps").read_text().splitlines()]
            names = [word[0] for word in words if word]
            names += [os.readlink(fd) for fd in (process / "fd").iterdir()]
            found |= {Path(name) for name in names if name.startswith(_OF_MPI)}
    return found


@contextlib.contextmanager
def mpi_files() -> Iterator[Callable[[], set[Path]]]:
    """Yield a function that returns what is left of the MPI jobs that this process has started meanwhile.

    These are Open MPI's scratch folders, and MPICH's segments in /dev/shm. Jobs of other tests, which run at the same
    time, have such files, too.
    """
    from viakit.measure import ranks  # conftest.py checks later which viakit is installed

    made: list[ranks.Ranks] = []

    def record(one: ranks.Ranks, *arguments: Any, **more: Any) -> None:
        made.append(one)
        init(one, *arguments, **more)

    init = ranks.Ranks.__init__
    ranks.Ranks.__init__ = record
    try:
        yield lambda: {Path(path) for one in made for path in (one.scratch, *one._files) if os.path.exists(path)}
    finally:
        ranks.Ranks.__init__ = init


def namespaces() -> set[str]:
    """Return the network namespaces of all processes, except those of C tests and of other runs of these tests.

    A namespace with a process of another run is that run's. Some of its processes, as those of sshd, have no mark.
    """
    from viakit.base.marks import environment_of

    ours = os.environ["VIAKIT_TEST_RUN"].encode()
    found, of_others = set(), set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = environment_of(int(process.name))
            other_run = b"VIAKIT_TEST_RUN=" in environment and ours not in environment
            of_other = b"MESON_TEST_ITERATION" in environment or other_run
            (of_others if of_other else found).add(os.readlink(process / "ns/net"))
    return found - of_others
