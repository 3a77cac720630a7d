"""PVM 3 itself as a protocol of a sweep: ``pvm3`` (by its daemons), ``pvm3:direct``, ``pvm3:inplace``.

The sides are two tasks of a virtual machine that exists only for them, with one daemon (pvmd) on each host
(:mod:`viakit.measure.sides_daemons`). A's daemon is the master. pvm_addhosts makes it start the other one by the
program that PVM_RSH names.
"""

from __future__ import annotations

import ctypes
import os
import re
import select
import subprocess
import time
from pathlib import Path
from typing import Any

from viakit.measure.endpoints import MeasureError
from viakit.measure.sides import interface_facts
from viakit.measure.sides_daemons import DaemonSide

__all__ = ["PvmSide"]

_ROOTS = ("/usr/lib/pvm3", "/usr/share/pvm3")
_REMEDY = "Remedy: sudo apt-get install pvm"
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


class PvmSide(DaemonSide):
    """Side that enrols in a virtual machine."""

    mark, soname, remedy, starter = "PVM_TMP", "libpvm3.so.3", _REMEDY, _STARTER
    library: Any = None

    def find(self) -> None:
        """Find the daemon."""
        self.program = _pvmd()
        # The library reads these from the environment of this process, which has no other virtual machine.
        os.environ["PVM_ROOT"] = str(Path(self.program).parents[1])
        os.environ["PVM_ALLOW_ROOT"] = "1"  # the user of a testbed's hosts is root there

    def enrol(self) -> Any:
        """Exchange the numbers of the tasks."""
        return self.core_module.BenchEndpoint.pvm(
            self.soname, self._exchange(), self.protocol == "pvm3:inplace", self.polled
        )

    def describe(self) -> dict[str, Any]:
        """Return the version of PVM, the route, and the interface."""
        route = "through two daemons, by UDP" if self.protocol == "pvm3" else "PvmRouteDirect, by TCP"
        data = "PvmDataInPlace" if self.protocol == "pvm3:inplace" else "PvmDataRaw"
        self.found.pvm_version.restype = ctypes.c_char_p
        version = self.found.pvm_version().decode()
        return {"library": f"PVM {version}", "transport": f"{route}; {data}"} | interface_facts(
            self.request["interface"]
        )

    def close(self) -> None:
        """Leave the virtual machine, and end this host's daemon."""
        if self.library is not None:
            self.library.pvm_exit()
            self.library = None
        super().close()

    # ---- the virtual machine

    def _start(self, *words: str, deadline: float) -> str:
        """Start a daemon. Return the first line that it prints."""
        process = subprocess.Popen(
            [self.program, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, cwd=self.folder, text=True
        )
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))[0]
        return process.stdout.readline() if ready else ""

    def start(self, other: str, deadline: float) -> None:
        """A: start the master, and let it add the other host."""
        with self.agent(deadline) as program:
            os.environ["PVM_RSH"] = program
            if not self._start(f"-n{self.request['address']}", deadline=deadline).strip():
                raise self._failed("its daemon did not start")
            self._enrol()
            hosts, code = (ctypes.c_char_p * 1)(other.encode()), (ctypes.c_int * 1)()
            if self.library.pvm_addhosts(hosts, 1, code) != 1:
                raise self._failed(f"pvm_addhosts failed with code {code[0]}")
        self.say("")

    def serve(self, deadline: float) -> None:
        """B: start the daemon that A's daemon wants here, and enrol when it is part of the virtual machine."""
        command = _SLAVE.fullmatch(self.lines.readline().strip())
        if command is None:
            raise self._failed("A's daemon did not send the command that starts one here")
        self.say(self._start(*command[1].split(), deadline=deadline).strip())
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
        self.say(str(self.number))
        number = self.lines.readline().strip()
        if not _NUMBER.fullmatch(number):
            raise self._failed("the other side has not enrolled")
        return int(number)

    def _failed(self, what: str) -> MeasureError:
        """Return an error with the last line of the daemon's log."""
        logs = [
            log for path in Path(self.folder).glob("pvml.*") for log in path.read_text(errors="replace").splitlines()
        ]
        return MeasureError(f"{self.protocol}: {what}{': ' + logs[-1] if logs else ''}", "error")
