"""The agent: the process on another machine that starts processes for this one, and ends them with the connection.

It is started by ssh and serves its standard input and output (:mod:`viakit.remote.mux`). No port is opened. Nothing is
written to disk except in temporary folders that a request makes. The agent removes them when it ends. If it is killed,
the next agent on the host removes them (:mod:`viakit.remote.folders`).

Invariant: no process outlives the agent. Each one is the leader of a process group, which is killed when the connection
ends, and the kernel kills it when the agent dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import viakit
from viakit.base.process import end_with_parent
from viakit.remote.acks import Connection
from viakit.remote.facts import facts, route_to
from viakit.remote.folders import HostFolders
from viakit.remote.mux import Kind, Lost, Mux, limits

__all__ = ["main"]

_GRACE_S = 0.5  # between SIGTERM and SIGKILL when the connection has ended


class _Agent:
    """State of the agent: the running processes."""

    def __init__(self, cut_s: float, silence_s: float) -> None:
        # Only the mux may write to the connection, so 1 becomes standard error.
        self.connection = (fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3), fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3))
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(2, 1)
        connection = Connection.of_agent(self.connection[1], os.environ)
        self.mux = Mux(*self.connection, self.handle, silence_s, connection.unacknowledged, cut_s)
        self.processes: dict[int, int] = {}  # process number -> id
        self.ended: dict[int, int] = {}  # id -> status that is reported once all output has been passed on
        self.folders = HostFolders()
        self.wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda *_: sys.exit(1))

    def serve(self) -> None:
        """Serve until the connection ends."""
        self.folders.remove_left()
        about = {"viakit": viakit.__version__, "executable": sys.executable, "root": _root(), **facts()}
        self.mux.send(Kind.HELLO, payload=json.dumps(about).encode())
        try:
            while True:
                if self.mux.turn({self.wake_r: select.POLLIN}, 1.0):
                    with contextlib.suppress(BlockingIOError):
                        os.read(self.wake_r, 4096)
                self.reap()
        except Lost:
            pass
        finally:
            try:
                self.end_all()
            finally:
                self.folders.remove()

    def handle(self, kind: Kind, ident: int, number: int, payload: bytes) -> None:
        """Handle a frame of the coordinator."""
        request = json.loads(payload)
        if kind == Kind.SPAWN:
            self.spawn(ident, request)
        elif kind == Kind.SIGNAL:
            self.signal(ident, request["signum"], request["group"])
        elif kind == Kind.REQUEST:
            self.mux.send(Kind.REPLY, ident, payload=json.dumps(self.answer(request)).encode())

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the reply to a request of the coordinator."""
        try:
            if request["what"] == "route":
                return {"route": route_to(request["address"])}
            if request["what"] == "clock":
                return {"monotonic_ns": time.monotonic_ns()}
            if request["what"] == "folder":
                return {"folder": self.folders.make()}
            if request["what"] == "files":
                return {"files": sorted(str(path) for path in Path(request["folder"]).iterdir() if path.is_file())}
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}
        return {"error": f"unknown request {request['what']!r}"}

    def spawn(self, ident: int, request: dict[str, Any]) -> None:
        """Start a process, connect its streams to the mux, and report its number or the error."""
        near: dict[int, int] = {}
        far: dict[int, int] = {}
        for number in request["streams"]:
            if number in (1, 2):
                near[number], far[number] = os.pipe2(os.O_CLOEXEC)
            elif number == 0:
                far[number], near[number] = os.pipe2(os.O_CLOEXEC)
            else:
                a, b = socket.socketpair()
                near[number], far[number] = a.detach(), b.detach()
        error_r, error_w = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            _be_process(request, far, error_w)
        for fd in (*far.values(), error_w):
            os.close(fd)
        with open(error_r, "rb") as file:  # ends at once: by exec, or by the end of a process that could not be started
            failed = file.read()
        if failed:
            for fd in near.values():
                os.close(fd)
            os.waitpid(pid, 0)
            self.mux.send(Kind.STARTED, ident, payload=failed)
            return
        self.processes[pid] = ident
        for number, fd in near.items():
            self.mux.add(ident, number, fd, reads=number != 0, writes=number not in (1, 2))
        self.mux.send(Kind.STARTED, ident, payload=json.dumps({"started": pid}).encode())

    def signal(self, ident: int, number: int, group: bool) -> None:
        """Send a signal to a process, or to its process group."""
        for pid, its in self.processes.items():
            if its == ident:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    (os.killpg if group else os.kill)(pid, number)

    def reap(self) -> None:
        """Report processes that have ended, each after its output."""
        for pid, ident in list(self.processes.items()):
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)  # children that it has left
                del self.processes[pid]
                self.ended[ident] = os.waitstatus_to_exitcode(status)
        for ident in [ident for ident in self.ended if self.mux.collect(ident)]:
            payload = json.dumps({"ended": self.ended.pop(ident)}).encode()
            self.mux.send(Kind.ENDED, ident, payload=payload)

    def end_all(self) -> None:
        """End all processes: SIGTERM, and SIGKILL after _GRACE_S."""
        self.mux.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.processes:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, number)
            deadline = time.monotonic() + _GRACE_S
            while self.processes and time.monotonic() < deadline:
                for pid in list(self.processes):
                    if os.waitpid(pid, os.WNOHANG)[0]:
                        with contextlib.suppress(ProcessLookupError, PermissionError):
                            os.killpg(pid, signal.SIGKILL)
                        del self.processes[pid]
                select.select([], [], [], 0.005)


def _root() -> str:
    """Return the folder that contains the package."""
    return os.path.dirname(os.path.dirname(os.path.abspath(viakit.__file__)))


def _be_process(request: dict[str, Any], far: dict[int, int], error_w: int) -> NoReturn:
    """Become the requested process; report an error over *error_w*."""
    try:
        parent = os.getppid()
        end_with_parent()
        os.setpgid(0, 0)
        above = max([2, *far]) + 1
        error_w = fcntl.fcntl(error_w, fcntl.F_DUPFD_CLOEXEC, above)
        # First all descriptors move above every target, because a target may be the current number of another one.
        high = {number: fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for number, fd in far.items()}
        null = fcntl.fcntl(os.open(os.devnull, os.O_RDWR), fcntl.F_DUPFD_CLOEXEC, above)
        for number in {0, 1, 2} | set(high):
            os.dup2(high.get(number, null), number, inheritable=True)
        if request["merged"]:
            os.dup2(1, 2, inheritable=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if request["cwd"]:
            with contextlib.suppress(OSError):  # a folder of the coordinator need not exist here: stay in the home
                os.chdir(request["cwd"])
        if os.getppid() != parent:
            os._exit(1)
        os.execvpe(request["argv"][0], request["argv"], {**os.environ, **request["env"]})
    except OSError as error:
        text = json.dumps({"failed": error.errno, "why": error.strerror, "name": request["argv"][0]})
        with contextlib.suppress(OSError):
            os.write(error_w, text.encode())
    os._exit(127)


def main(*given: str) -> None:
    """Serve the standard streams until they are closed.

    Parameters
    ----------
    *given : str
        The limits of silence in seconds: see :func:`viakit.remote.mux.limits`. Default: those of the environment.
    """
    cut_s, silence_s = map(float, given) if given else limits()
    _Agent(cut_s, silence_s).serve()


if __name__ == "__main__":
    main()
