"""PVM 3 itself as a protocol of a sweep: ``pvm3`` (by its daemons), ``pvm3:direct``, ``pvm3:inplace``.

The sides are two tasks of a virtual machine that exists only for them, with one daemon (pvmd) on each host. A's daemon
is the master. It starts the other one by the program that PVM_RSH names, which is rsh or ssh as a rule. Here that
program gives the command to A, and B executes it::

    A:  pvm_addhosts -> pvmd -> PVM_RSH -> start (Unix socket) -> A ~~ authenticated TCP ~~> B -> pvmd -s ...
                                                                  A <~~ its first line ~~~~ B

Each daemon has a private folder (PVM_TMP), so other virtual machines of the user are not touched. If a side is killed,
a guard process ends its daemon and removes the folder. PVM does not authenticate the datagrams between its daemons.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from viakit.base.marks import marked
from viakit.measure.endpoints import MeasureError
from viakit.measure.guard import Guard
from viakit.measure.sides import BACKLOG, StreamSide, interface_facts
from viakit.remote.folders import HostFolders

__all__ = ["PvmSide"]

_LIBRARY = "libpvm3.so.3"
_ROOTS = ("/usr/lib/pvm3", "/usr/share/pvm3")
_REMEDY = "Remedy: sudo apt-get install pvm"
_MARK = "PVM_TMP"  # variable in the environment of a daemon: its folder
_GUARD_S = 10.0  # limit for a killed daemon to be gone, on a busy machine
_ROUTE, _AUTO_ERR = 1, 3  # options of pvm_setopt
_BY_DAEMONS, _DIRECT = 1, 3  # values of PvmRoute
_SLAVE = re.compile(r"\S*pvmd3? (-s -d0x0 -n[0-9.]+ 1 [0-9a-f]{8}:[0-9a-f]{4} [0-9]+ 2 [0-9a-f]{8}:[0-9a-f]{4})")
_NUMBER = re.compile(r"[0-9]{1,10}")  # of a task
_STARTER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    sock.sendall((" ".join(sys.argv[3:]) + "\\n").encode())
    print(sock.makefile().readline(), end="")
"""


def _pvmd() -> str:
    """Return the path of PVM's daemon."""
    for root in filter(None, (os.environ.get("PVM_ROOT"), *_ROOTS)):
        program = f"{root}/lib/pvmd"
        if os.access(program, os.X_OK):
            return program
    raise MeasureError(f"pvm3: there is no pvmd in {' or '.join(_ROOTS)}. {_REMEDY}", "missing")


class PvmSide(StreamSide):
    """Side that starts a daemon and enrols in its virtual machine."""

    library: Any = None
    folder = ""
    guard: Guard | None = None

    def open(self) -> dict[str, Any]:
        """Find PVM. B listens."""
        super().open()
        self.program = _pvmd()
        try:
            self.found = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise MeasureError(f"{self.protocol}: {error}. {_REMEDY}", "missing") from None
        self.found.pvm_version.restype = ctypes.c_char_p
        self.folders = HostFolders()
        self.folders.remove_left()
        self.folder = self.folders.make()
        self.guard = Guard(_MARK, self.folder, 0.0, _GUARD_S)
        root = str(Path(self.program).parents[1])
        # The library reads its folder from the environment of this process, which has no other virtual machine.
        os.environ.update(PVM_ROOT=root, PVM_TMP=self.folder, PVM_RSH=f"{self.folder}/rsh")
        os.environ["PVM_ALLOW_ROOT"] = "1"  # the user of a testbed's hosts is root there
        if self.side == 0:
            return {}
        self.listener = socket.create_server((self.request["address"], 0), backlog=BACKLOG)
        return {"address": self.listener.getsockname()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Make the virtual machine, enrol, and exchange the numbers of the tasks."""
        if self.side == 0:
            self.sock = socket.create_connection(tuple(peer["address"]), max(0.1, deadline - time.monotonic()))
            self.introduce(deadline)
        else:
            self.accept(deadline)
        assert self.sock is not None
        self.sock.settimeout(max(0.1, deadline - time.monotonic()))
        self.lines = self.sock.makefile("rw", encoding="ascii")
        if self.side == 0:
            self._make(str(peer["address"][0]), deadline)
        else:
            self._serve(deadline)
        self.endpoint = self.core_module.BenchEndpoint.pvm(
            _LIBRARY, self._exchange(), self.protocol == "pvm3:inplace", self.polled
        )

    def describe(self) -> dict[str, Any]:
        """Return the version of PVM, the route, and the interface."""
        route = "through two daemons, by UDP" if self.protocol == "pvm3" else "PvmRouteDirect, by TCP"
        data = "PvmDataInPlace" if self.protocol == "pvm3:inplace" else "PvmDataRaw"
        version = self.found.pvm_version().decode()
        return {"library": f"PVM {version}", "transport": f"{route}; {data}"} | interface_facts(
            self.request["interface"]
        )

    def close(self) -> None:
        """Leave the virtual machine, and end this host's daemon."""
        super().close()
        if self.library is not None:
            self.library.pvm_exit()
            self.library = None
        if self.folder:
            for pid in marked(_MARK, self.folder):
                if pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self.folders.remove()
        if self.guard is not None:
            self.guard.dismiss()
            self.guard = None

    # ---- the virtual machine

    def _start(self, *words: str, deadline: float) -> str:
        """Start a daemon. Return the first line that it prints."""
        process = subprocess.Popen(
            [self.program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=self.folder, text=True
        )
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
        return process.stdout.readline() if ready else ""

    def _make(self, other: str, deadline: float) -> None:
        """A: start the master, and let it add the other host."""
        Path(self.folder, "start.py").write_text(_STARTER)
        words = [sys.executable, "-I", f"{self.folder}/start.py", f"{self.folder}/start"]
        Path(self.folder, "rsh").write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        Path(self.folder, "rsh").chmod(0o700)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self.folder}/start")
            listener.listen()
            listener.settimeout(max(0.1, deadline - time.monotonic()))
            if not self._start(f"-n{self.request['address']}", deadline=deadline).strip():
                raise self._failed("its daemon did not start")
            self._enrol()
            threading.Thread(target=self._pass_on, args=(listener,), daemon=True).start()
            hosts, code = (ctypes.c_char_p * 1)(other.encode()), (ctypes.c_int * 1)()
            if self.library.pvm_addhosts(hosts, 1, code) != 1:
                raise self._failed(f"pvm_addhosts failed with code {code[0]}")
        self._say("")

    def _pass_on(self, listener: socket.socket) -> None:
        """A: pass the first command of the daemon to B, and B's answer back."""
        with contextlib.suppress(OSError):
            caller = listener.accept()[0]
            with caller, caller.makefile("rw", encoding="ascii", errors="replace") as words:
                self._say(words.readline().strip())
                words.write(self.lines.readline())

    def _serve(self, deadline: float) -> None:
        """B: start the daemon that A's daemon wants here, and enrol when it is part of the virtual machine."""
        command = _SLAVE.fullmatch(self.lines.readline().strip())
        if command is None:
            raise self._failed("A's daemon did not send the command that starts one here")
        self._say(self._start(*command[1].split(), deadline=deadline).strip())
        if self.lines.readline() != "\n":
            raise self._failed("A's daemon did not accept the one of this host")
        self._enrol()

    def _enrol(self) -> None:
        number = self.found.pvm_mytid()
        if number < 0:
            raise self._failed(f"pvm_mytid failed with code {number}")
        self.library, self.number = self.found, number
        self.library.pvm_setopt(_AUTO_ERR, 0)  # no text on the standard error
        self.library.pvm_setopt(_ROUTE, _BY_DAEMONS if self.protocol == "pvm3" else _DIRECT)

    def _exchange(self) -> int:
        """Return the number of the other task."""
        self._say(str(self.number))
        number = self.lines.readline().strip()
        if not _NUMBER.fullmatch(number):
            raise self._failed("the other side has not enrolled")
        return int(number)

    def _say(self, text: str) -> None:
        self.lines.write(text + "\n")
        self.lines.flush()

    def _failed(self, what: str) -> MeasureError:
        """Return an error with the last line of the daemon's log."""
        logs = [
            log for path in Path(self.folder).glob("pvml.*") for log in path.read_text(errors="replace").splitlines()
        ]
        return MeasureError(f"{self.protocol}: {what}{': ' + logs[-1] if logs else ''}", "error")
