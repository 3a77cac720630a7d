"""LAM/MPI itself as a protocol of a sweep: ``lam`` (client to client, by TCP), ``lam:lamd`` (by its daemons).

The sides are two MPI processes of a LAM that exists only for them, with one daemon (lamd) on each host
(:mod:`viakit.measure.sides_daemons`). lamboot starts both: hboot on A, and by its remote agent hboot on B. mpirun is
not used. Each worker calls MPI_Init as a world of its own, and the two worlds meet in MPI-2's way::

    B:  MPI_Open_port -> name ~~ authenticated TCP ~~> A      B:  MPI_Comm_accept <-> A:  MPI_Comm_connect

LAM refuses root, and the user of a testbed's hosts is root there. LAM's programs run in a user namespace in which that
user has another number. On other hosts root is refused.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from viakit.measure.endpoints import MeasureError
from viakit.measure.sides import interface_facts
from viakit.measure.sides_daemons import DaemonSide

__all__ = ["LamSide"]

_RPI = "LAM_MPI_SSI_rpi"  # the module that carries messages
_PROGRAMS = ("lamboot", "hboot", "lamd", "laminfo")
_REMEDY = "Remedy: sudo apt-get install lam-runtime"
_COMMAND = re.compile(r'hboot -t -c lam-conf\.lamd -s -I "?(-H [0-9.]+ -P [0-9]{1,5} -n 1 -o 0)"?')
_PORT = re.compile(r"n[0-9]+:i[0-9]+:[0-9]+")  # the name that MPI_Open_port returns
_LONGEST_REASON = 300  # characters of LAM's text in an error
_NO_NAMESPACE = 71  # exit status of the program below
_STARTER = """
import socket, sys
with socket.socket(socket.AF_UNIX) as sock:
    sock.connect(sys.argv[1])
    sock.sendall((" ".join(sys.argv[3:]) + "\\n").encode())
    sys.exit(int(sock.makefile().readline() or 1))
"""
# Execute a program as a user whose number is not 0: 65534 in a new namespace, which is the same user outside.
_AS_OTHER = f"""
import ctypes, os, sys
user, group = os.getuid(), os.getgid()
if user == 0:
    if ctypes.CDLL(None, use_errno=True).unshare(0x10000000):
        print("unshare:", os.strerror(ctypes.get_errno()))
        sys.exit({_NO_NAMESPACE})
    for name, text in ("setgroups", "deny"), ("uid_map", f"65534 {{user}} 1"), ("gid_map", f"65534 {{group}} 1"):
        with open("/proc/self/" + name, "w") as file:
            file.write(text)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class LamSide(DaemonSide):
    """Side that is a process of LAM."""

    mark, soname, remedy, starter = "LAM_MPI_SESSION_PREFIX", "liblam.so.4", _REMEDY, _STARTER
    initialised = False  # in this process

    def find(self) -> None:
        """Find the programs, and refuse root where its namespace is not the testbed's."""
        missing = [name for name in _PROGRAMS if shutil.which(name) is None]
        if missing:
            raise MeasureError(f"{self.protocol}: there is no {missing[0]} in PATH. {_REMEDY}", "missing")
        if LamSide.initialised:
            raise MeasureError(f"{self.protocol}: MPI starts once in a process. Remedy: a new pair", "usage")
        if os.geteuid() == 0 and self.request["hosts"] != "testbed":
            raise MeasureError(
                f"{self.protocol}: LAM refuses to run as root. Remedy: --hosts ssh:USER@A,USER@B, or --hosts testbed",
                "refused",
            )
        for name in list(os.environ):  # those of another LAM that the user has started
            if name.startswith(("LAM", "TROLLIUS")):
                del os.environ[name]
        os.environ[_RPI] = "lamd" if self.protocol == "lam:lamd" else "tcp"

    def start(self, other: str, deadline: float) -> None:
        """A: boot both hosts."""
        schema = Path(self.folder, "hosts")
        schema.write_text(f"{self.request['address']}\n{other}\n")
        with self.agent(deadline) as program:
            # B's shell is not examined, and its profile is not read.
            options = {"boot": "rsh", "boot_rsh_agent": program} | dict.fromkeys(
                ("boot_rsh_no_profile", "boot_rsh_no_n", "boot_rsh_fast"), "1"
            )
            words = [word for option in options.items() for word in ("-ssi", *option)]
            self._run("lamboot", *words, str(schema), deadline=deadline)
        self.say("")

    def serve(self, deadline: float) -> None:
        """B: execute the hboot that A's lamboot wants here."""
        command = _COMMAND.fullmatch(self.lines.readline().strip())
        if command is None:
            raise self._failed("A's lamboot did not send the command that starts a daemon here")
        try:
            self._run("hboot", "-t", "-c", "lam-conf.lamd", "-s", "-I", command[1], deadline=deadline)
        except MeasureError:
            self.say("1")
            raise
        self.say("0")
        if self.lines.readline() != "\n":
            raise self._failed("A's lamboot failed")

    def enrol(self) -> Any:
        """Initialise MPI, and connect to the other process."""
        if os.geteuid() == 0:
            self._name_session()
        LamSide.initialised = True
        endpoint = self.core_module.BenchEndpoint.lam(self.soname, self.polled)
        if self.side == 1:
            self.say(endpoint.address().decode())
            endpoint.join(b"")
            return endpoint
        name = self.lines.readline().strip()
        if not _PORT.fullmatch(name):
            raise self._failed("the other side has not opened a port")
        endpoint.join(name.encode())
        return endpoint

    def describe(self) -> dict[str, Any]:
        """Return the version of LAM, the module that carries messages, and the interface."""
        told = subprocess.run(["laminfo"], capture_output=True, text=True, check=False, timeout=30).stdout
        version = re.search(r"LAM/MPI: (\S+)", told)
        name = f"LAM/MPI {version[1]}" if version else "LAM/MPI"
        if self.protocol == "lam:lamd":
            return {"library": name, "transport": "rpi lamd: through two daemons, by UDP"} | interface_facts(
                self.request["interface"]
            )
        facts = {"library": name, "transport": "rpi tcp: client to client, by TCP"}
        return facts | self._buffers() | interface_facts(self.request["interface"])

    # ---- LAM

    def _run(self, *words: str, deadline: float) -> None:
        """Run one of LAM's programs, which leaves a daemon behind."""
        log = Path(self.folder, "log")
        with log.open("w") as output:
            command = [sys.executable, "-I", "-S", "-c", _AS_OTHER, *words]
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.folder)
        try:
            status = process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise TimeoutError(f"{self.protocol}: {words[0]} did not end in time{self._reason(log)}") from None
        if status == _NO_NAMESPACE:
            raise MeasureError(
                f"{self.protocol}: LAM refuses root, and this user cannot have another number in a user namespace"
                f"{self._reason(log)}. Remedy: --hosts ssh:USER@A,USER@B",
                "refused",
            )
        if status:
            raise self._failed(f"{words[0]} failed with exit status {status}{self._reason(log)}")

    def _reason(self, log: Path) -> str:
        """Return what a program has written, without lines and the banner."""
        text = log.read_text(errors="replace") if log.exists() else ""
        words = [line.strip() for line in text.splitlines() if not line.startswith(("-----", "LAM 7"))]
        reason = " ".join(filter(None, words))[:_LONGEST_REASON]
        return f": {reason}" if reason else ""

    def _name_session(self) -> None:
        """Let this process find the folder of the daemon, whose user has another name."""
        mine = pwd.getpwuid(os.getuid()).pw_name
        for path in Path(self.folder).glob("lam-*@*"):
            name = Path(self.folder, f"lam-{mine}@{path.name.partition('@')[2]}")
            with contextlib.suppress(FileExistsError):
                name.symlink_to(path.name)

    def _buffers(self) -> dict[str, int]:
        """Return the sizes of the buffers of LAM's connection: the socket to the peer that is not ours."""
        assert self.sock is not None
        ours, peer = self.sock.fileno(), self.sock.getpeername()[0]
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as sock:
                if int(name) != ours and sock.family == socket.AF_INET and sock.getpeername()[0] == peer:
                    return {
                        "sndbuf": sock.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF),
                        "rcvbuf": sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF),
                    }
        return {}

    def _failed(self, what: str) -> MeasureError:
        return MeasureError(f"{self.protocol}: {what}", "error")
