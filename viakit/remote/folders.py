"""Temporary folders of an agent on its host, and those that killed agents have left there.

The agent holds a lock (flock) on each of its folders. The kernel releases it when the agent ends, also by SIGKILL. An
agent that starts removes every folder of its host and user whose lock it can take. The name of a folder contains a
checksum of the host's name: a file system that several hosts share need not show one host the locks of another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["HostFolders"]

_LONGEST = 80  # bytes: the path of a socket has at most 107


class HostFolders:
    """The temporary folders of this process."""

    def __init__(self) -> None:
        self._prefix = f"viakit-host-{zlib.crc32(os.uname().nodename.encode()):08x}"
        self._locks: dict[str, int] = {}  # folder -> descriptor that holds its lock

    def make(self) -> str:
        """Make a folder and return its path, which is so short that the folder may hold Unix sockets."""
        while True:
            folder = tempfile.mkdtemp(prefix=self._prefix)
            if len(os.fsencode(folder)) > _LONGEST:
                os.rmdir(folder)
                folder = tempfile.mkdtemp(prefix=self._prefix, dir="/tmp")
            if self._lock(folder):
                return folder

    def _lock(self, folder: str) -> bool:
        """Take the lock of a new folder. Return False if another agent took it before, and removed the folder."""
        try:
            fd = _open(folder)
        except FileNotFoundError:
            return False
        with contextlib.suppress(OSError):  # a file system without locks: no agent removes folders there
            fcntl.flock(fd, fcntl.LOCK_SH)
        if not os.path.exists(folder):
            os.close(fd)
            return False
        self._locks[folder] = fd
        return True

    def remove_left(self) -> None:
        """Remove the folders of agents that were killed on this host."""
        for path in self._candidates():
            with contextlib.suppress(OSError):  # among these BlockingIOError: its agent lives
                fd = _open(path)
                try:
                    if os.fstat(fd).st_uid == os.geteuid():
                        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(fd)

    def _candidates(self) -> Iterator[str]:
        """Yield the folders of this host whose names are those of agents' folders."""
        places = {"/tmp"}
        with contextlib.suppress(FileNotFoundError):  # nothing can be written anywhere, as on a full disk
            places.add(tempfile.gettempdir())
        for place in places:
            yield from map(str, Path(place).glob(f"{self._prefix}*"))

    def remove(self) -> None:
        """Remove the folders of this process. Idempotent."""
        while self._locks:
            folder, fd = self._locks.popitem()
            shutil.rmtree(folder, ignore_errors=True)
            os.close(fd)


def _open(folder: str) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
