"""Ranks of an MPI library that are started under its mpiexec and connect back to this process.

No process or file remains, however the ranks end. Ranks of Open MPI are in process groups of their own. They outlive
their mpiexec for a moment, and may still write to the folder that is about to be removed. If this process is killed, a
guard process does the work of :meth:`Ranks.kill`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from typing import IO, TYPE_CHECKING

from viakit.base import marks
from viakit.base.channel import Channel
from viakit.base.secret import same_user, users_can_be_told_apart
from viakit.launch import mpi_agent
from viakit.launch import mpi_library as mpi
from viakit.measure.endpoints import MeasureError
from viakit.measure.guard import Guard

if TYPE_CHECKING:
    from viakit.testbed import Testbed

__all__ = ["MpiProcesses", "Ranks", "call_back"]

_MARK = "VIAKIT_RANKS"  # variable in the environment of all started processes, which identifies strays
_TERM_S = 2.0  # time for mpiexec to end its ranks after SIGTERM
_GONE_S = 5.0  # time until the killed processes and their files are gone


def call_back(name: str) -> Channel | None:
    """In a rank: connect to the owner of the ranks at a Unix socket, an abstract one unless *name* is a path.

    Returns
    -------
    Channel or None
        None: the owner has gone, or the process there is another user's.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(OSError):
        sock.connect(name if name.startswith("/") else "\0" + name)
        if same_user(sock):
            return Channel(sock)
    sock.close()
    return None


class MpiProcesses:
    """Base of what starts processes of an MPI library: their folder, their environment, and their end.

    Parameters
    ----------
    library : mpi.Library
        MPI library.
    testbed : Testbed, optional
        Hosts of the ranks, which then use TCP (:meth:`viakit.launch.mpi_library.Library.over_tcp`).

    Attributes
    ----------
    process : subprocess.Popen or None
        An mpiexec that this process has started.
    scratch : str
        Folder for files of the library, in memory if possible.
    """

    def __init__(self, library: mpi.Library, testbed: Testbed | None = None) -> None:
        self._library, self._testbed, self._stack = library, testbed, contextlib.ExitStack()
        self._files: set[str] = set()  # files in /dev/shm that MPICH leaves when it is killed
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self._guard: Guard | None = None
        self.process: subprocess.Popen[bytes] | None = None
        self.scratch = os.path.join(memory or tempfile.gettempdir(), "viakit-mpi-" + secrets.token_hex(8))

    def make_scratch(self) -> None:
        """Make the folder, and start the guard. Call :meth:`kill` after an error."""
        os.mkdir(self.scratch, 0o700)
        # Ranks notice the end of their owner, too, and most of them end by themselves.
        self._guard = Guard(_MARK, self.scratch, _TERM_S, 3 * _TERM_S)

    def variables(self) -> dict[str, str]:
        """Return what :meth:`kill` and the library need in the environment of an mpiexec."""
        more = self._library.over_tcp() if self._testbed is not None else {}
        return self._library.environment(self.scratch) | more | {_MARK: self.scratch}

    def remember(self, files: Iterable[str]) -> None:
        """Register files in /dev/shm to be removed after the ranks have ended."""
        new = set(files) - self._files
        self._files |= new
        if self._guard is not None:
            self._guard.send(*sorted(new))

    def kill(self) -> None:
        """Kill all remaining processes and remove their files. Idempotent."""
        strays = self._strays()
        for pid in strays:
            self._files |= mpi.shared_files(pid)
        if self.process is not None and self.process.poll() is None:
            self._signal(self.process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_TERM_S)
            self._signal(self.process, signal.SIGKILL)
        deadline = time.monotonic() + _GONE_S
        while True:
            strays = self._strays()
            for pid in strays:
                with contextlib.suppress(OSError):
                    os.kill(pid, signal.SIGKILL)
            if self.process is not None:
                self.process.poll()  # Collect its status, or it remains as a zombie.
            shutil.rmtree(self.scratch, ignore_errors=True)
            if not (strays or os.path.exists(self.scratch)) or time.monotonic() > deadline:
                break
            time.sleep(0.01)
        for path in self._files:
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._stack.close()
        if self._guard is not None:
            self._guard.dismiss()
            self._guard = None

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)

    def _strays(self) -> list[int]:
        """Every process that came of this mpiexec, itself included."""
        return marks.marked(_MARK, self.scratch)


class Ranks(MpiProcesses):
    """A running mpiexec whose ranks connect back to this process.

    Parameters
    ----------
    library : mpi.Library
        MPI library.
    program : callable
        Returns the command of a rank for the name of a Unix socket, to which the rank must connect: :func:`call_back`.
    n_ranks : int
        Number of ranks.
    output : file
        File for the output of mpiexec and of the ranks.
    testbed : Testbed, optional
        Hosts of the ranks.

    Attributes
    ----------
    process : subprocess.Popen or None
        The mpiexec; None before :meth:`start`, and if that was interrupted.
    """

    def __init__(
        self,
        library: mpi.Library,
        program: Callable[[str], list[str]],
        n_ranks: int,
        output: IO[bytes],
        testbed: Testbed | None = None,
    ) -> None:
        super().__init__(library, testbed)
        self._program, self._n_ranks, self._output = program, n_ranks, output
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)

    def start(self) -> None:
        """Start mpiexec. The caller holds this object first, so that :meth:`kill` finds all after an interrupt.

        Raises
        ------
        MeasureError
            If mpiexec cannot be started.
        """
        library, name = self._library, "viakit-ranks-" + secrets.token_hex(12)
        try:
            self.make_scratch()
            if not users_can_be_told_apart():
                raise MeasureError(
                    f"mpi:{library.flavour}: in this user namespace the kernel reports one number for several "
                    "users, so ranks cannot be recognised; map your user (unshare --map-current-user)",
                    "refused",
                )
            if self._testbed is None:
                self._listener.bind("\0" + name)  # An abstract name leaves nothing in the file system.
                command = library.command(self._program(name), self._n_ranks)
            else:
                name = os.path.join(self.scratch, "ranks")  # An abstract name belongs to one network namespace.
                self._listener.bind(name)
                agent = self._stack.enter_context(mpi_agent(self._testbed))
                per_host = self._n_ranks // len(self._testbed.hosts)
                command = agent.command(library, per_host, self._program(name))
            self._listener.listen(self._n_ranks)
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                env=os.environ | self.variables(),
                start_new_session=True,  # so that it can be killed with all its descendants
            )
        except BaseException as error:
            # An interrupt within Popen leaves an mpiexec that runs, but is in no variable.
            self.kill()
            if isinstance(error, OSError):
                raise MeasureError(
                    f"mpi:{library.flavour}: {library.mpiexec} cannot be started ({error.strerror}); "
                    f"pip install --force-reinstall {library.flavour}",
                    "missing",
                ) from None
            raise

    def accept(self, deadline: float) -> Channel | None:
        """Wait for the connection of a rank.

        Parameters
        ----------
        deadline : float
            Time on the clock of :func:`time.monotonic`.

        Returns
        -------
        Channel or None
            None if mpiexec has ended, so that no more ranks will connect.

        Raises
        ------
        TimeoutError
            At the deadline.
        """
        while True:
            if not select.select([self._listener], [], [], 0.1)[0]:
                if self.process is None or self.process.poll() is not None:
                    return None
                if time.monotonic() > deadline:
                    raise TimeoutError
                continue
            with contextlib.suppress(OSError):
                sock, _ = self._listener.accept()
                if same_user(sock):
                    return Channel(sock)
                sock.close()  # A process of another user found the name in /proc/net/unix.

    def kill(self) -> None:
        """Kill all remaining processes and remove their files. Idempotent."""
        self._listener.close()
        super().kill()
