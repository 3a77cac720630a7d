"""Ranks of ``%%ranks`` on other machines: how their engines reach the controller, through ssh.

::

    this machine                              another machine
    controller --Unix sockets-- Relay ====== main() --Unix sockets-- engine of rank 0, 1, ...
                                one process there, its socket passed on by viakit.remote

An engine connects to the controller's Unix sockets. On another machine a process of this module listens at sockets of
the same names, in a temporary folder. It passes each connection on as a stream (:mod:`viakit.remote.mux`), for which
the relay here connects to the controller's socket. No port is opened, and no command line has the controller's key.

The connections of ssh detect a lost host. A silent relay therefore counts as alive.

The ``mpiexec`` of an MPI ends its ranks when it receives SIGINT. The processes of this module therefore interrupt
engines that an MPI has started: each finds those of its host by their command line.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import math
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from viakit.base.process import command
from viakit.launch import LaunchError
from viakit.launch.far_mpi import Place
from viakit.launch.far_mpi_job import FarMpiLaunch
from viakit.launch.options import Options
from viakit.launch.runner import Launch
from viakit.remote.mux import Kind, Lost, Mux
from viakit.remote.spec import HERE

__all__ = ["RemoteEngines", "RemoteMpiEngines", "interrupt_engines", "main"]

_STREAM = 3  # number of the only stream of each connection; the connections are numbered
_START_S = 60.0
_TURN_S = 0.5
_NAME = re.compile(r"e:\d{1,5}")  # of a socket that engines connect to


def interrupt_engines(engine_file: Path) -> None:
    """Send SIGINT to each engine on this host directly, because ``mpiexec`` would end the engines instead.

    Engines are identified by their command line, which contains the path of *engine_file*. That of ``mpiexec`` contains
    it, too, but in a later position.
    """
    wanted = [b"-m", b"ipyparallel.engine", f"--file={engine_file}".encode()]
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "cmdline").read_bytes().split(b"\0")[1:4] == wanted:
                os.kill(int(process.name), signal.SIGINT)


class _Relay:
    """The end of a relay on this machine.

    Parameters
    ----------
    host : viakit.remote.RemoteHost
    folder : Path
        Folder with the controller's sockets.
    engine_file : str
        Path of the connection file of engines, relative to the folder.
    """

    def __init__(self, host: Any, folder: Path, engine_file: str) -> None:
        self.host, self._sockets = host, folder
        self.folder = host.folder()
        self.closing = False
        self._interrupts = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)  # requested, and not sent yet
        self._ready, self._problem = threading.Event(), ""
        self._near, far = socket.socketpair()
        words = command("viakit.lab._relay", ["--fd", str(far.fileno()), self.folder])
        with far:
            self._process = host.popen(
                words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=2, pass_fds=[far.fileno()]
            )
        self._mux = Mux(self._near.fileno(), self._near.fileno(), self._handle, silence_s=math.inf)
        about = {
            "names": sorted(path.name for path in folder.glob("e:*")),
            "file": engine_file,
            "contents": (folder / engine_file).read_text(encoding="utf-8").replace(str(folder), self.folder),
        }
        self._mux.send(Kind.HELLO, payload=json.dumps(about).encode())
        threading.Thread(target=self._serve, name=f"viakit relay {host.name}", daemon=True).start()
        if not self._ready.wait(_START_S):
            self._problem = f"the relay was not ready within {_START_S:g} s"
        if self._problem:
            raise LaunchError(f"host {host.name}: {self._problem}")

    def interrupt(self) -> None:
        """Let the other end interrupt the engines of its host. Any thread may call it."""
        os.eventfd_write(self._interrupts, 1)

    def _serve(self) -> None:
        """Move frames until the connection ends. The ranks cannot go on without it."""
        try:
            while True:
                if self._mux.turn({self._interrupts: select.POLLIN}, _TURN_S):
                    os.eventfd_read(self._interrupts)
                    self._mux.send(Kind.SIGNAL)
        except Lost as error:
            lost = f"lost the relay of the ranks: {error}"
        self._mux.close()
        self._near.close()
        if self._ready.is_set() and not self.closing:
            print(f"host {self.host.name}: {lost}", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGTERM)  # the launcher's handler ends all ranks
        self._problem = self._problem or lost
        self._ready.set()

    def _handle(self, kind: Kind, ident: int, number: int, payload: bytes) -> None:
        """Handle a frame of the other end: it is ready, or an engine has connected."""
        message = json.loads(payload)
        if kind == Kind.REPLY:
            self._problem = message.get("error", "")
            self._ready.set()
        elif kind == Kind.REQUEST and _NAME.fullmatch(str(message["open"])):
            sock = socket.socket(socket.AF_UNIX)
            try:
                sock.connect(str(self._sockets / message["open"]))
            except OSError:  # the controller has ended
                sock.close()
                self._mux.send(Kind.CLOSED, ident, _STREAM)
                return
            self._mux.add(ident, _STREAM, sock.detach(), reads=True, writes=True)


class _Relays:
    """The relays of all machines, and the folders there that take the place of one on this machine.

    Parameters
    ----------
    folder : Path
        Folder of the controller on this machine.
    engine_file : str
        Path of the connection file of engines, relative to the folder.
    """

    def __init__(self, folder: Path, engine_file: str) -> None:
        self._folder, self._engine_file = folder, engine_file
        self._folders: dict[str, str] = {}  # by host, for other machines
        self._relays: list[_Relay] = []

    def open(self, hosts: Sequence[Any]) -> None:
        """Start a relay on each machine that is not this one. Idempotent."""
        others = [host for host in hosts if host.name != HERE and host.name not in self._folders]
        with concurrent.futures.ThreadPoolExecutor(max(1, min(32, len(others)))) as pool:
            self._relays += pool.map(lambda host: _Relay(host, self._folder, self._engine_file), others)
        self._folders = {relay.host.name: relay.folder for relay in self._relays}

    def on(self, host: Any, text: str) -> str:
        """Return *text* with the folder of a host in place of that of this machine."""
        return text.replace(str(self._folder), self._folders.get(host.name, str(self._folder)))

    def interrupt(self) -> None:
        """Interrupt the engines of all machines."""
        interrupt_engines(self._folder / self._engine_file)
        for relay in self._relays:
            relay.interrupt()

    def closing(self) -> None:
        """Expect the end of the relays."""
        for relay in self._relays:
            relay.closing = True


class RemoteEngines(Launch):
    """A job whose ranks are engines on machines that ssh reaches.

    Parameters
    ----------
    words : list of str
        Command of an engine on this machine. On another one its folder takes the place of *folder*.
    options : Options
    folder, engine_file
        Folder of the controller on this machine, and path of the connection file of engines, relative to the folder.
    out : binary file
        Destination of the output outside of cells.
    """

    def __init__(
        self, words: list[str], options: Options, folder: Path, engine_file: str, out: IO[bytes] | None = None
    ) -> None:
        super().__init__(words, options, out)
        self._relays = _Relays(folder, engine_file)

    def _prepare(self, hosts: list[Any]) -> None:
        """Start a relay on each other machine."""
        self._relays.open(hosts)

    def _clear_away(self) -> None:
        self._relays.closing()
        super()._clear_away()

    def _command_on(self, host: Any) -> list[str]:
        return [self._relays.on(host, word) for word in super()._command_on(host)]

    def _environment(self, number: int, host: Any, local_rank: int, fd: int) -> dict[str, str]:
        found = super()._environment(number, host, local_rank, fd)
        return {name: self._relays.on(host, value) for name, value in found.items()}


class RemoteMpiEngines(FarMpiLaunch):
    """A job whose ranks are engines on machines that ssh reaches, started by an MPI; see :class:`RemoteEngines`."""

    def __init__(
        self, words: list[str], options: Options, folder: Path, engine_file: str, out: IO[bytes] | None = None
    ) -> None:
        super().__init__(words, options, out)
        self._relays = _Relays(folder, engine_file)

    def interrupt(self) -> None:
        """Send SIGINT to the engines, and not to ``mpiexec``."""
        self._relays.interrupt()

    def _program(self, place: Place) -> list[str]:
        """Return the command of the engines on a machine, whose relay has been started."""
        assert self._testbed is not None
        self._relays.open(self._testbed.hosts)
        return [self._relays.on(place.host, word) for word in super()._program(place)]

    def _clear_away(self) -> None:
        self._relays.closing()
        super()._clear_away()


# ---- the other machine


class _Server:
    """The end of a relay on another machine: it listens at the names of the controller's sockets."""

    def __init__(self, fd: int, folder: Path) -> None:
        self._folder = folder
        self._engine_file: Path | None = None
        self._connection = socket.socket(fileno=fd)
        self._mux = Mux(fd, fd, self._handle, silence_s=math.inf)
        self._listeners: dict[int, tuple[str, socket.socket]] = {}
        self._n = 0

    def serve(self) -> None:
        """Serve until the connection ends."""
        try:
            while True:
                for fd in self._mux.turn(dict.fromkeys(self._listeners, select.POLLIN), _TURN_S):
                    self._accept(*self._listeners[fd])
        except Lost:
            pass
        finally:
            self._mux.close()

    def _handle(self, kind: Kind, ident: int, number: int, payload: bytes) -> None:
        """Handle the first frame, what engines need, or a request to interrupt the engines."""
        if kind == Kind.SIGNAL and self._engine_file is not None:
            interrupt_engines(self._engine_file)
        if kind != Kind.HELLO:
            return
        about = json.loads(payload)
        if importlib.util.find_spec("ipyparallel") is None:
            error = f"ranks of a notebook need ipyparallel there: {sys.executable} -m pip install 'viakit[lab]'"
            self._mux.send(Kind.REPLY, payload=json.dumps({"error": error}).encode())
            return
        for name in about["names"]:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(str(self._folder / name))
            listener.listen(128)
            self._listeners[listener.fileno()] = (name, listener)
        file = self._folder / about["file"]
        file.parent.mkdir(parents=True)
        file.write_text(about["contents"], encoding="utf-8")
        self._engine_file = file
        self._mux.send(Kind.REPLY, payload=b"{}")

    def _accept(self, name: str, listener: socket.socket) -> None:
        sock, _ = listener.accept()
        self._n += 1
        self._mux.send(Kind.REQUEST, self._n, payload=json.dumps({"open": name}).encode())
        self._mux.add(self._n, _STREAM, sock.detach(), reads=True, writes=True)


def main() -> int:
    """Serve the connection of the option --fd; the other argument is the folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    _Server(given.fd, given.folder).serve()
    return 0
