"""The connection to one host: the ssh process, and the thread that moves its frames."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import viakit
from viakit.remote.acks import Connection
from viakit.remote.mux import Foreign, Kind, Lost, Mux, Silent, limits
from viakit.remote.spec import HERE
from viakit.testbed.call import HostProcess, TestbedError, _open_streams, _wait_readable

if TYPE_CHECKING:
    from viakit.remote import RemoteHost

__all__ = ["Link", "RemoteError"]

NO_PYTHON = "viakit-no-python"  # printed on the host before the path that is no program
_SSH_FAILED = 255  # exit status of ssh for a failure of its own; others are those of the host's program
_START_S = 20.0
_CLOSE_S = 2.0
_NO_CLIENT = "install OpenSSH's client: sudo apt-get install openssh-client; VIAKIT_SSH names another command"
_HINTS = (
    ("Permission denied", "set up a key: ssh-copy-id {name}. viakit never asks for a password"),
    ("Host key verification failed", "connect once by hand and check the key: ssh {name}"),
    ("Could not resolve hostname", "check the name, or add the host to ~/.ssh/config"),
    ("Connection refused", "start its ssh server: sudo systemctl start ssh"),
    ("No route to host", "check the cable and the address"),
    ("not responding", "its ssh server has fallen silent: check its load and its log"),
    ("timed out", "check that the host is up and that no firewall drops port 22"),
)


class RemoteError(TestbedError):
    """A host cannot be reached or used, or its connection has been lost."""


class Link:
    """Connection to the agent on one host.

    Parameters
    ----------
    name : str
        Name of the host.
    command : list of str
        Command whose standard streams are the connection.
    python : str
        Interpreter on the host, for messages.
    """

    def __init__(self, name: str, command: list[str], python: str = "python3") -> None:
        self.name, self._python = name, python
        self.hello: dict[str, Any] = {}
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None
        self._todo: list[Any] = []  # functions that the thread calls, in order
        self._statuses: dict[int, socket.socket] = {}
        self._ended: dict[int, bytes] = {}  # reports that wait until all output has been written
        self._answers: dict[int, list[dict[str, Any]]] = {}
        self._ready = threading.Event()
        self._news = threading.Condition()
        self._closing = False
        self._abandoned = False
        self._why: str | None = None  # why the connection has ended
        self._foreign: str | None = None  # text that came in place of frames
        self._n = 0

    # ---- opening and closing

    def open(self, timeout_s: float) -> RemoteError | None:
        """Start ssh and wait for the agent. Returns an error in place of raising it, for a pool of threads."""
        with contextlib.ExitStack() as undo:
            try:
                self._errors = undo.enter_context(tempfile.TemporaryFile())
                near, far = map(undo.enter_context, socket.socketpair())
                self._wake_r, self._wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
                undo.callback(os.close, self._wake_r)
                undo.callback(os.close, self._wake_w)
                process = subprocess.Popen(
                    self._command, stdin=far.fileno(), stdout=far.fileno(), stderr=self._errors, start_new_session=True
                )
            except OSError as error:
                self._why = f"{self._command[0]}: {error.strerror}"
                is_missing = error.errno == errno.ENOENT and error.filename == self._command[0] and self.name != HERE
                remedy = f". Remedy: {_NO_CLIENT}" if is_missing else ""
                return RemoteError(f"host {self.name}: {self._command[0]} cannot be started: {error.strerror}{remedy}")
            undo.pop_all()
        far.close()
        self._near = near
        with self._lock:
            self._process = process
            if self._abandoned:
                self._kill()
        cut_s, silence_s = limits()
        is_cut = lambda: Connection.of_process(process.pid).unacknowledged()  # noqa: E731
        self._mux = Mux(near.fileno(), near.fileno(), self._handle, silence_s, is_cut, cut_s)
        self._thread = threading.Thread(target=self._serve, name=f"viakit {self.name}", daemon=True)
        self._thread.start()
        if not self._ready.wait(timeout_s) and self._why is None:
            self._why = f"no answer within {timeout_s:g} s"
            self._kill()  # it does not end by itself, and the limit has passed
        if self.hello:
            return None
        problem = RemoteError(self._explain())
        self.close()
        return problem

    def _explain(self) -> str:
        """Return why the agent did not start, and what to do."""
        with contextlib.suppress(Exception):
            assert self._process is not None
            self._process.wait(1.0)
        said = self._said()
        python = _after(said, "viakit-missing ")
        if python:
            return (
                f"host {self.name}: viakit is not installed for {python[0]}. Install it there: ssh {self.name} "
                f"{python[0]} -m pip install viakit=={viakit.__version__}; or name another interpreter: --python PATH"
            )
        python = _after(said, "viakit-version ")
        if python:
            return (
                f"host {self.name}: it has viakit {python[1]}, this is viakit {viakit.__version__}. Install "
                f"one version: ssh {self.name} {python[0]} -m pip install viakit=={viakit.__version__}"
            )
        if program := _after(said, f"{NO_PYTHON} "):
            return (
                f"host {self.name}: {' '.join(program)} is no program there. Find an interpreter with viakit: ssh "
                f"{self.name} 'ls /usr/bin/python3*', ssh {self.name} PATH -c 'import viakit'; name it: --python PATH"
            )
        if self._foreign is not None:
            return (
                f"host {self.name}: its login shell wrote {self._foreign!r} to standard output, so the agent cannot "
                f"use the connection. Remedy: `ssh {self.name} true` must print nothing; let ~/.bashrc and the like "
                "write in interactive shells only"
            )
        reason = said.rstrip(".") or self._why or "ssh ended"
        status = self._process.returncode if self._process is not None else None
        if status is not None and 0 <= status < _SSH_FAILED:  # the host is reached, and its program is no agent
            return (
                f"host {self.name}: {self._python} ended there with exit status {status}: {reason.splitlines()[-1]}. "
                f"Check it: ssh {self.name} {self._python} -c 'import viakit'; name another one: --python PATH"
            )
        hint = next((hint for mark, hint in _HINTS if mark in said), None)
        remedy = f". Remedy: {hint.format(name=self.name)}" if hint else ""
        return f"host {self.name} cannot be reached: {reason}{remedy}"

    def abandon(self) -> None:
        """End an attempt to open the connection, which another thread makes. open() then returns an error at once."""
        with self._lock:
            self._abandoned = True
            self._kill()

    def _kill(self) -> None:
        """Kill ssh, and with its process group the ProxyCommand, which would outlive it."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def _said(self) -> str:
        """Return the end of what ssh and the agent wrote to standard error."""
        self._errors.seek(0)
        return self._errors.read()[-2000:].decode(errors="replace").strip()

    def close(self) -> None:
        """End the connection; the agent ends all its processes. Idempotent; any thread may call it."""
        with self._lock:
            if self._closing or self._process is None:
                return
            self._closing = True
        self._wake()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_S + 1.0)
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._kill()
            self._process.wait(_CLOSE_S)
        os.close(self._wake_r)
        os.close(self._wake_w)
        self._errors.close()

    @property
    def trouble(self) -> str | None:
        """Why the connection has ended without being closed, with the name of the host. None while it stands."""
        return f"host {self.name}: {self._why}" if self._why is not None and not self._closing else None

    # ---- requests

    def start(
        self,
        host: RemoteHost,
        argv: list[str],
        streams: tuple[Any, Any, Any],
        pass_fds: Sequence[int],
        cwd: str,
        env: dict[str, str],
        text: bool,
    ) -> HostProcess:
        """Start a process: see RemoteHost."""
        ident = host._next_id()
        status, status_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        status.setblocking(False)
        process = HostProcess(host, argv, ident, status, text)
        nears: list[Any] = [status]
        fars: list[Any] = []
        try:
            fds = dict(enumerate(_open_streams(process, streams, nears, fars)))
            merged = fds[1] == fds[2]  # stderr=STDOUT
            if merged:
                del fds[2]
            fds |= {int(fd): int(fd) for fd in pass_fds}
            copies = {number: os.dup(fd) for number, fd in fds.items()}
            request = {"argv": argv, "cwd": cwd, "env": env, "streams": list(fds), "merged": merged}
            self._do(lambda: self._spawn(ident, request, copies, status_far))
            answer = self._first(status)
            if "failed" in answer:
                text_of = os.strerror(answer["failed"]) if answer["failed"] else answer["why"]
                kind = {errno.ENOENT: FileNotFoundError, errno.EACCES: PermissionError}.get(answer["failed"], OSError)
                raise kind(answer["failed"], f"{text_of} on {self.name}", answer["name"])
            if "lost" in answer:
                raise RemoteError(f"host {self.name}: {answer['lost']}")
            process.pid = answer["started"]
        except BaseException:
            for item in nears:
                os.close(item) if isinstance(item, int) else item.close()
            raise
        finally:
            for item in fars:
                os.close(item) if isinstance(item, int) else item.close()
        return process

    def _first(self, status: socket.socket) -> dict[str, Any]:
        """Wait for the report that a process has started."""
        deadline = time.monotonic() + _START_S
        while (ready := _wait_readable([status.fileno()], deadline)) == [-1]:
            pass
        if not ready:
            return {"lost": f"it did not start a process within {_START_S:g} s"}
        message = status.recv(1 << 16)
        return dict(json.loads(message)) if message else {"lost": self._why or "the connection has ended"}

    def signal(self, ident: int, number: int, group: bool) -> None:
        """Send a signal to a process."""
        payload = json.dumps({"signum": int(number), "group": group}).encode()
        with contextlib.suppress(RemoteError):
            self._do(lambda: self._mux.send(Kind.SIGNAL, ident, payload=payload))

    def query(self, request: dict[str, Any], timeout_s: float) -> dict[str, Any]:
        """Send a request to the agent and wait for the reply."""
        with self._lock:
            self._n += 1
            number = self._n
        self._do(lambda: self._mux.send(Kind.REQUEST, number, payload=json.dumps(request).encode()))
        deadline = time.monotonic() + timeout_s
        with self._news:
            while number not in self._answers:
                if self._why is not None or time.monotonic() > deadline:
                    raise RemoteError(f"host {self.name}: {self._why or f'no answer within {timeout_s:g} s'}")
                self._news.wait(0.05)
            answer = self._answers.pop(number)[0]
        if "error" in answer:
            raise RemoteError(f"host {self.name}: {answer['error']}")
        return answer

    def _do(self, function: Any) -> None:
        """Let the thread call *function*."""
        with self._lock:
            if self._closing or self._why is not None:
                raise RemoteError(f"host {self.name}: {self._why or 'the connection has been closed'}")
            self._todo.append(function)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._wake_w, b"x")

    # ---- the thread

    def _serve(self) -> None:
        """Move frames until the connection ends or is closed."""
        why = "the connection has been closed"
        try:
            while not self._closing:
                if self._mux.turn({self._wake_r: select.POLLIN}, 1.0):
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake_r, 4096)
                with self._lock:
                    todo, self._todo = self._todo, []
                for function in todo:
                    function()
                for ident in [ident for ident in self._ended if self._mux.delivered(ident)]:
                    self._report(ident, self._ended.pop(ident))
            self._mux.drain(time.monotonic() + 0.5)
        except Lost as error:
            why = f"lost the connection to the host: {error}"
            if isinstance(error, Silent):
                self._kill()  # ssh would not end either, and close() would wait for it
            if isinstance(error, Foreign):
                self._foreign = error.text
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        self._why = self._why or why
        self._mux.close()
        self._near.close()
        for status in self._statuses.values():
            with contextlib.suppress(OSError):
                status.send(json.dumps({"ended": -signal.SIGKILL, "lost": self._why}).encode())
            status.close()
        self._statuses.clear()
        self._ready.set()
        with self._news:
            self._news.notify_all()

    def _report(self, ident: int, payload: bytes, last: bool = True) -> None:
        """Pass a report about a process to its handle; *last*: it has ended."""
        status = self._statuses.pop(ident) if last else self._statuses[ident]
        with contextlib.suppress(OSError):
            status.send(payload)
        if last:
            status.close()

    def _spawn(self, ident: int, request: dict[str, Any], fds: dict[int, int], status: socket.socket) -> None:
        self._statuses[ident] = status
        for number, fd in fds.items():
            # standard streams have one direction, sockets both
            self._mux.add(ident, number, fd, reads=number not in (1, 2), writes=number != 0)
        self._mux.send(Kind.SPAWN, ident, payload=json.dumps(request).encode())

    def _handle(self, kind: Kind, ident: int, number: int, payload: bytes) -> None:
        """Handle a frame of the agent."""
        message = json.loads(payload)
        if kind == Kind.HELLO:
            self.hello = message
            self._ready.set()
        elif kind == Kind.ENDED:
            self._ended[ident] = payload
        elif kind == Kind.STARTED:
            self._report(ident, payload, last="failed" in message)
            if "failed" in message:
                self._mux.close_process(ident)
        elif kind == Kind.REPLY:
            with self._news:
                self._answers[ident] = [message]
                self._news.notify_all()


def _after(text: str, mark: str) -> list[str]:
    """Return the words of the line that begins with *mark*."""
    for line in text.splitlines():
        if line.startswith(mark):
            return line.removeprefix(mark).split()
    return []
