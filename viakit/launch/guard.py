"""The guard process of a job: it ends the ranks of this machine if the launcher is killed (kill -9).

The guard reads lines from a pipe whose only writer is the launcher. The end of the pipe reports the launcher's end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys

__all__ = ["Guard"]

# It starts in a few milliseconds, without viakit, NumPy or site packages. Lines of the pipe:
#   +PID, -PID   the process group of a rank has started, has ended
#   /FOLDER      a folder to remove
#   *PATTERN     files to remove, if they did not exist before and no process maps them
#   .            the job has ended in order; if the pipe ends without this line, the launcher was killed
_GUARD = """
import glob, os, shutil, signal, sys, time
groups, folders, orderly, pattern, before = set(), [], False, "", set()
def mapped(path):
    for maps in glob.glob("/proc/[0-9]*/maps"):
        try:
            with open(maps, errors="replace") as file:
                if path in file.read(): return True
        except OSError: pass
    return False
for line in sys.stdin:
    if line[0] == "+": groups.add(int(line[1:]))
    elif line[0] == "-": groups.discard(int(line[1:]))
    elif line[0] == "/": folders.append(line.rstrip())
    elif line[0] == "*":
        pattern = line[1:].rstrip()
        before = set(glob.glob(pattern))
    else: orderly = True
for group in groups if not orderly else ():
    try: os.killpg(group, signal.SIGKILL)
    except OSError: pass
deadline = time.monotonic() + 5
for folder in folders if not orderly else ():
    while os.path.exists(folder) and time.monotonic() < deadline: # until no process writes there any more
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
for path in set(glob.glob(pattern)) - before if not orderly else ():
    while mapped(path) and time.monotonic() < deadline: time.sleep(0.05)
    try: mapped(path) or os.stat(path).st_uid != os.geteuid() or os.unlink(path)
    except OSError: pass
"""


class Guard:
    """The process that ends the ranks of this machine if the launcher is killed."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )

    def report(self, text: str) -> None:
        """Send the guard a line: a rank has started or ended, or files are to be removed later."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(text.encode() + b"\n")
            self._process.stdin.flush()

    def dismiss(self) -> None:
        """End the guard. The job has ended in order, so the guard kills no rank."""
        self.report(".")
        self._process.communicate(timeout=5.0)
