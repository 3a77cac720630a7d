"""Search for processes by a variable in their environment, which all their descendants inherit.

This file imports little, and nothing of viakit: guards that run without viakit load it from its folder.
"""

from __future__ import annotations

import os
import time

__all__ = ["environment_of", "mapped_files", "marked"]

_EXEC_S = 1.0  # limit for a process that is executing a program
_LONGEST = 1 << 23  # bytes; Linux limits arguments and environment to 6 MiB


def marked(name: str, value: str) -> list[int]:
    """Return the processes with this variable in their environment; a zombie has no environment and is not found."""
    mark = f"{name}={value}\0".encode()
    found = []
    for word in os.listdir("/proc"):
        if word.isdecimal():
            try:
                if mark in environment_of(int(word)):
                    found.append(int(word))
            except OSError:
                pass  # the process has ended, or is another user's
    return found


def environment_of(pid: int) -> bytes:
    """Return the environment of a process.

    While a process executes a program, the kernel shows an empty environment. Its parent may run before that is over,
    because the pipe that reports the success to it is closed earlier. So the function waits for the end, at most 1 s.
    """
    deadline = time.monotonic() + _EXEC_S
    while not (found := _read(pid, "environ")) and time.monotonic() < deadline:
        fields = _read(pid, "stat").rpartition(b")")[2].split()
        # Fields 23, 27, 50 and 51 of proc(5). The kernel sets endcode last, after it has copied the environment.
        vsize, endcode, env_start, env_end = (int(fields[i]) for i in (20, 24, 47, 48))
        if vsize == 0 or (endcode > 1 and env_end == env_start):  # a zombie or a thread of the kernel; or it is empty
            break
        time.sleep(0.0005)  # between two looks
    return found


def mapped_files(pid: int | str, start: str) -> set[str]:
    """Return the files whose paths begin with *start*, that a process has mapped, and that still have a name."""
    found = set()
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
            for line in maps:
                path = "".join(line.rstrip("\n").partition("/")[1:])
                if path.startswith(start) and not path.endswith(" (deleted)"):
                    found.add(path)
    except OSError:
        pass  # The process has ended.
    return found


def _read(pid: int, name: str) -> bytes:
    """Read a file of a process in one call: between two, the process may have executed another program."""
    file = os.open(f"/proc/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(file, _LONGEST)
    finally:
        os.close(file)
