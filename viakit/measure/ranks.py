"""Ranks of an MPI library, started under its mpiexec, that call back: for those who measure them.

However they end, nothing of them stays: ranks of Open MPI are in process groups of their own and outlive their mpiexec
by a moment, in which they may still write to the folder that is about to be removed. If it is we who are killed, a
guard process does what :meth:`Ranks.kill` would have done.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import IO

from viakit.measure import mpi
from viakit.measure.channel import Channel
from viakit.measure.endpoints import MeasureError

__all__ = ["Ranks"]

_MARK = "VIAKIT_RANKS"  # in the environment of all that we start: how strays are known
_TERM_S = 2.0  # mpiexec ends its ranks when it is asked to; so long it may take
_GONE_S = 5.0  # until the last of what has been killed is gone, and its files with it

# Runs without viakit, NumPy or site packages: a few milliseconds. Each line names a file that has to go; the end of the
# pipe without "." before it means that the owner was killed. Ranks notice that too, and most end by themselves.
_GUARD = """
import glob, os, shutil, signal, sys, time
mark, folder, patience = sys.argv[1].encode() + b"\\0", sys.argv[2], float(sys.argv[3])
files = [line.rstrip() for line in sys.stdin]
if files[-1:] == ["."]: sys.exit()
began = time.monotonic()
while time.monotonic() < began + 3 * patience:
    strays = []
    for path in glob.glob("/proc/[0-9]*/environ"):
        try:
            with open(path, "rb") as file:
                if mark in file.read(): strays.append(int(path.split("/")[2]))
        except OSError: pass
    for pid in strays if time.monotonic() > began + patience else ():
        try: os.kill(pid, signal.SIGKILL)
        except OSError: pass
    if not strays: shutil.rmtree(folder, ignore_errors=True)
    if not strays and not os.path.exists(folder): break
    time.sleep(0.02)
for path in files:
    try: os.unlink(path)
    except OSError: pass
"""


class Ranks:
    """A running mpiexec.

    Parameters
    ----------
    library : mpi.Library
    program : callable
        Given the name of an abstract Unix socket, returns the command of a rank, which has to connect there.
    n_ranks : int
    output : file
        Takes what mpiexec and the ranks print.

    Attributes
    ----------
    process : subprocess.Popen
        The mpiexec.
    scratch : str
        The folder where the library may put its files, in memory if there is such a place.

    Raises
    ------
    MeasureError
        If mpiexec cannot be started.
    """

    def __init__(
        self, library: mpi.Library, program: Callable[[str], list[str]], n_ranks: int, output: IO[bytes]
    ) -> None:
        name = "viakit-ranks-" + secrets.token_hex(12)
        self._files: set[str] = set()  # in /dev/shm, which MPICH leaves there when it is killed
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.scratch = tempfile.mkdtemp(prefix="viakit-mpi-", dir=memory)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._guard: subprocess.Popen[bytes] | None = None
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _GUARD, f"{_MARK}={self.scratch}", self.scratch, str(_TERM_S)],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._listener.bind("\0" + name)  # abstract: nothing is left in the file system
            self._listener.listen(n_ranks)
            self.process = subprocess.Popen(
                library.command(program(name), n_ranks),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=os.environ | library.environment(self.scratch) | {_MARK: self.scratch},
                start_new_session=True,  # to be ended with all that it starts
            )
        except BaseException as error:
            self._listener.close()
            shutil.rmtree(self.scratch, ignore_errors=True)
            self._dismiss()
            if isinstance(error, OSError):
                raise MeasureError(
                    f"mpi:{library.flavour}: {library.mpiexec} cannot be started ({error.strerror}). "
                    f"Remedy: pip install --force-reinstall {library.flavour}",
                    "missing",
                ) from None
            raise

    def accept(self, deadline: float) -> Channel | None:
        """Wait for a rank to call back.

        Parameters
        ----------
        deadline : float
            A time of :func:`time.monotonic`.

        Returns
        -------
        Channel or None
            None: mpiexec has ended, there will be no more.

        Raises
        ------
        TimeoutError
            At the deadline.
        MeasureError
            If it was somebody else.
        """
        while not select.select([self._listener], [], [], 0.1)[0]:
            if self.process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                raise TimeoutError
        sock, _ = self._listener.accept()
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if uid != os.getuid():
            sock.close()
            raise MeasureError(f"process {pid} of another user answered instead of a rank", "refused")
        return Channel(sock)

    def remember(self, files: Iterable[str]) -> None:
        """Files in /dev/shm that have to go when the ranks do."""
        new = set(files) - self._files
        self._files |= new
        self._tell(*sorted(new))

    def kill(self) -> None:
        """End what still runs and remove its files. Idempotent."""
        self._listener.close()
        strays = self._strays()
        for pid in strays:
            self._files |= mpi.shared_files(pid)
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_TERM_S)
            self._signal(signal.SIGKILL)
        deadline = time.monotonic() + _GONE_S
        while True:
            strays = self._strays()
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            self.process.poll()  # one of ours may be a zombie until it is asked after
            shutil.rmtree(self.scratch, ignore_errors=True)
            if not (strays or os.path.exists(self.scratch)) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        for path in self._files:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._dismiss()

    def _tell(self, *lines: str) -> None:
        """Say something to the guard."""
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.write("".join(f"{line}\n" for line in lines).encode())
                self._guard.stdin.flush()

    def _dismiss(self) -> None:
        """All is put away: the guard has nothing to do."""
        if self._guard is not None:
            self._tell(".")
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                self._guard.communicate(timeout=_GONE_S)
            if self._guard.poll() is None:
                self._guard.kill()
                self._guard.wait()
            self._guard = None

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, number)

    def _strays(self) -> list[int]:
        """Every process that came of this mpiexec, itself included."""
        return mpi.marked(_MARK, self.scratch)
