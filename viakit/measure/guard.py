"""A guard process: it ends the processes with a word in their environment if the process that started it is killed."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from viakit.base import marks

__all__ = ["Guard"]

_DISMISS_S = 5.0  # for the guard to end

# The guard runs without viakit, NumPy or site packages and starts in a few milliseconds. It imports viakit.base.marks
# from the folder of that file. Each line of its input names a file to remove. The end of the input without a last line
# "." means that the owner was killed. It also removes the segments of MPICH that the processes have mapped.
_GUARD = """
import os, shutil, signal, sys, time
name, folder, grace, limit = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
sys.path.append(sys.argv[5])
from marks import mapped_files, marked
files = [line.rstrip() for line in sys.stdin]
if files[-1:] == ["."]: sys.exit()
began = time.monotonic()
while time.monotonic() < began + limit:
    strays = marked(name, folder)
    for pid in strays: files += mapped_files(pid, "/dev/shm/mpich")
    for pid in strays if time.monotonic() >= began + grace else ():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    if not strays: shutil.rmtree(folder, ignore_errors=True)
    if not strays and not os.path.exists(folder): break
    time.sleep(0.02)
for path in files:
    try: os.unlink(path)
    except OSError: pass
"""


class Guard:
    """The process that ends processes, and removes their files, if this process is killed.

    Its own environment must not contain the word: start it first.

    Parameters
    ----------
    name, folder : str
        Variable and its value in the environment of the processes. The value is the folder of their files, which is
        removed after their end.
    grace_s : float
        Time that they have to end by themselves.
    limit_s : float
        The guard gives up after this time.
    """

    def __init__(self, name: str, folder: str, grace_s: float, limit_s: float) -> None:
        words = [name, folder, str(grace_s), str(limit_s), os.path.dirname(marks.__file__)]
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def send(self, *lines: str) -> None:
        """Send the guard lines: files to remove, too."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self.process.stdin.flush()

    def dismiss(self) -> None:
        """End the guard: everything has been cleaned up."""
        self.send(".")
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.communicate(timeout=_DISMISS_S)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
