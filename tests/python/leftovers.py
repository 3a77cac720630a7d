"""What tests look for when they ask whether something is left, beside others that run on the same machine."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

SHM = Path("/dev/shm")


def in_use(name: str) -> bool:
    """Whether a process maps, holds open or was told of this name in /dev/shm: then it is of another run."""
    path = str(SHM / name)
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(path.encode() in (process / what).read_bytes() for what in ("maps", "cmdline", "environ")):
                return True
            if any(os.readlink(fd).startswith(path) for fd in (process / "fd").iterdir()):
                return True
    return False


def marked(mark: bytes) -> dict[int, str]:
    """Processes other than this one that inherited *mark* in their environment, and the command of each.

    One that has ended, and that its parent has not asked after yet, has neither, and is not among them.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int(process.name) == os.getpid() or mark not in (process / "environ").read_bytes():
                continue
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if command:
                found[int(process.name)] = command
    return found


def mpi_files() -> set[Path]:
    """Open MPI's scratch and MPICH's segments in /dev/shm that no process has."""
    found = {*SHM.glob("viakit-mpi-*"), *SHM.glob("mpich*")}
    return {path for path in found if not in_use(path.name)}


def namespaces() -> set[str]:
    """Network namespaces that some process is in; not those of C tests or of another run of these tests beside us."""
    ours = os.environ["VIAKIT_TEST_RUN"].encode()
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (process / "environ").read_bytes()
            if b"MESON_TEST_ITERATION" in environment or (
                b"VIAKIT_TEST_RUN=" in environment and ours not in environment
            ):
                continue
            found.add(os.readlink(process / "ns/net"))
    return found
