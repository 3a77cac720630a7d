"""Base of sides whose library has a daemon on each host: PVM and LAM (:mod:`viakit.measure.sides`).

The daemons exist only for one pair of workers. A's side starts both, as a user of the library does: its own program
starts the other one with rsh or ssh as a rule. Here that program gives the command to A, and B executes it::

    A:  program of the library -> agent -> start (Unix socket) -> A ~~ authenticated TCP ~~> B -> daemon
                                                                 A <~~ B's answer ~~~~~~~~~~ B

Each daemon has a private folder, so other daemons of the user are not touched. If a side is killed, a guard process
ends its daemon and removes the folder. The libraries do not authenticate what their daemons send each other.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from viakit.base.marks import marked
from viakit.measure.endpoints import MeasureError
from viakit.measure.guard import Guard
from viakit.measure.sides import StreamSide
from viakit.remote.folders import HostFolders

__all__ = ["DaemonSide"]

_GUARD_S = 10.0  # limit for a killed daemon to be gone, on a busy machine


class DaemonSide(StreamSide):
    """Side that starts a daemon.

    Attributes
    ----------
    mark : str
        Variable in the environment of a daemon: its folder.
    soname, remedy : str
        The library, and how to install it.
    starter : str
        Program in Python that the agent executes. Its arguments are the path of the socket, and those of rsh.
    found : ctypes.CDLL
        The library.
    folder : str
        The private folder.
    """

    mark: ClassVar[str]
    soname: ClassVar[str]
    remedy: ClassVar[str]
    starter: ClassVar[str]
    folder = ""
    guard: Guard | None = None

    def find(self) -> None:
        """Find the programs. Raises MeasureError if they are missing."""
        raise NotImplementedError

    def start(self, other: str, deadline: float) -> None:
        """A: start both daemons. *other* is the address of B."""
        raise NotImplementedError

    def serve(self, deadline: float) -> None:
        """B: execute the command that starts a daemon."""
        raise NotImplementedError

    def enrol(self) -> Any:
        """Enrol this process with its daemon, find the other one, and return the endpoint."""
        raise NotImplementedError

    def open(self) -> dict[str, Any]:
        """Find the library. B listens."""
        super().open()
        self.find()
        try:
            self.found = ctypes.CDLL(self.soname)
        except OSError as error:
            raise MeasureError(f"{self.protocol}: {error}. {self.remedy}", "missing") from None
        self.folders = HostFolders()
        self.folders.remove_left()
        self.folder = self.folders.make()
        self.guard = Guard(self.mark, self.folder, 0.0, _GUARD_S)
        os.environ[self.mark] = self.folder  # the library reads it from here, too
        return self.listen()

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Start the daemons, and enrol."""
        sock = self.meet(peer, deadline)
        sock.settimeout(max(0.1, deadline - time.monotonic()))
        self.lines = sock.makefile("rw", encoding="ascii", errors="replace")
        if self.side == 0:
            self.start(str(peer["address"][0]), deadline)
        else:
            self.serve(deadline)
        self.endpoint = self.enrol()

    def close(self) -> None:
        """End this host's daemon."""
        super().close()
        if self.folder:
            for pid in marked(self.mark, self.folder):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.folders.remove()
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None

    def say(self, text: str) -> None:
        """Send the other side a line."""
        self.lines.write(text + "\n")
        self.lines.flush()

    @contextlib.contextmanager
    def agent(self, deadline: float) -> Iterator[str]:
        """A: within the context, pass one command to B, and the answer back. Yield the path of the program to call."""
        Path(self.folder, "start.py").write_text(self.starter)
        words = [sys.executable, "-I", f"{self.folder}/start.py", f"{self.folder}/start"]
        program = Path(self.folder, "rsh")
        program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        program.chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.folder}/start")
            listener.listen()
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            threading.Thread(target=self._pass_on, args=(listener,), daemon=True).start()
            yield str(program)

    def _pass_on(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            caller = listener.accept()[0]
            with caller, caller.makefile("rw", encoding="ascii", errors="replace") as words:
                self.say(words.readline().strip())
                words.write(self.lines.readline())
