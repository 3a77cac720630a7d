"""Processes on a host, seen from outside: starting them, waiting for them, and calling Python functions in them.

Every process has two sockets. The *channel* carries its instructions and its reply. On the *status* socket the host
reports the start and the end of the process. Processes share no state, so handles may be used from any thread. A
background thread runs only for a submitted call.
"""

from __future__ import annotations

import concurrent.futures
import functools
import json
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from codecs import getincrementaldecoder
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

from viakit.testbed.host import MAX_FDS
from viakit.testbed.process import LENGTH, send_object

if TYPE_CHECKING:
    from viakit.testbed import Host

_START_DEADLINE_S = 60.0
_KILL_DEADLINE_S = 5.0
_SLICE_S = 0.05


class TestbedError(RuntimeError):
    """Error of a testbed; base class of this module's errors."""

    __test__ = False


class HostTimeoutError(TestbedError, TimeoutError, subprocess.TimeoutExpired):
    """A process on a host did not end in time. ``stdout`` and ``stderr`` hold its output if it was collected."""

    def __init__(self, command: Any, timeout: float, output: Any = None, stderr: Any = None) -> None:
        self.cmd, self.timeout, self.output, self.stderr = command, timeout, output, stderr
        Exception.__init__(self, f"{command} did not end within {timeout:g} s")

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return HostTimeoutError, (self.cmd, self.timeout, self.output, self.stderr)


class RemoteError(TestbedError):
    """Traceback of an exception on a host, as text: the ``__cause__`` of the exception raised in this process."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


class HostProcess:
    """Process on a host, with the interface of subprocess.Popen. Created by :meth:`viakit.testbed.Host.popen`.

    Attributes
    ----------
    args : list of str
        The command.
    pid : int
        Number of the process outside the host; on the host it has another one.
    stdin, stdout, stderr : file or None
        This process's ends of the requested pipes.
    returncode : int or None
        None while the process runs; then its exit status, or minus the number of the signal that ended it.
    """

    def __init__(self, host: Host, args: Any, ident: int, status: socket.socket, text: bool) -> None:
        self.host = host
        self.args = args
        self.pid = -1
        self.returncode: int | None = None
        self.stdin: IO[Any] | None = None
        self.stdout: IO[Any] | None = None
        self.stderr: IO[Any] | None = None
        self._id = ident
        self._status = status
        self._text = text
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<HostProcess {self.args} on {self.host.name}, pid={self.pid}, returncode={self.returncode}>"

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Close the pipes and wait, as subprocess.Popen does. After an exception, kill the process first."""
        if kind is not None:
            self.kill(group=True)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass
        self.wait(None if kind is None else _KILL_DEADLINE_S)

    def fileno(self) -> int:
        """Return a descriptor for select and poll that becomes readable when the process ends.

        -1 once the end is known.
        """
        return self._status.fileno()

    def poll(self) -> int | None:
        """Return the return code, or None while the process runs."""
        with self._lock:
            while self.returncode is None:
                try:
                    message = self._status.recv(4096)
                except BlockingIOError:
                    return None
                except OSError:
                    message = b""
                answer = json.loads(message) if message else {}
                if "started" not in answer:
                    # The host closes the socket without a message only if it dies. Then its processes were killed.
                    self.returncode = answer.get("ended", -signal.SIGKILL)
                    self._status.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process and return the return code.

        Raises HostTimeoutError after `timeout` seconds (None: no limit).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if not _wait_readable([self.fileno()], deadline):
                assert timeout is not None
                raise HostTimeoutError(self.args, timeout)
        return code

    def send_signal(self, signum: int, *, group: bool = False) -> None:
        """Send a signal to the process, or with `group` to its process group. After its end the call does nothing."""
        if self.poll() is None:
            try:
                self.host._send({"signum": int(signum), "ident": self._id, "group": group})
            except TestbedError:
                pass  # The host is gone, and the process with it.

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self.send_signal(signal.SIGTERM)

    def kill(self, *, group: bool = False) -> None:
        """Send SIGKILL to the process, or with `group` to its process group."""
        self.send_signal(signal.SIGKILL, group=group)

    def communicate(self, input: str | bytes | None = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read the pipes until the process ends, and return (stdout, stderr).

        A stream that is not a pipe gives None. Unlike subprocess.Popen, the method does not wait for other processes
        that have inherited the pipes.

        Raises
        ------
        HostTimeoutError
            After `timeout` seconds. The process continues; the exception contains its output so far.
        """
        streams = [stream for stream in (self.stdout, self.stderr) if stream is not None]
        chunks: dict[int, list[bytes]] = {stream.fileno(): [] for stream in streams}
        data = input.encode() if isinstance(input, str) else input

        def gathered(stream: IO[Any] | None) -> Any:
            if stream is None:
                return None
            whole = b"".join(chunks[stream.fileno()])
            return whole.decode(errors="replace") if self._text else whole

        try:
            _collect(self, {fd: got.append for fd, got in chunks.items()}, self.stdin, data, timeout)
        except HostTimeoutError as error:
            error.output, error.stderr = gathered(self.stdout), gathered(self.stderr)
            raise
        result = gathered(self.stdout), gathered(self.stderr)
        for stream in streams:
            stream.close()
        return result


def _wait_readable(fds: list[int], deadline: float | None, write_fd: int | None = None) -> list[int]:
    """Wait briefly until descriptors are readable, or until `write_fd` is writable or hung up, and return them.

    Returns [-1] if none is ready yet, and [] after the deadline. The wait is short, because another thread that sees
    the end of the process may close the descriptor. The close would not wake this thread.
    """
    left = _SLICE_S if deadline is None else deadline - time.monotonic()
    if left <= 0:
        return []
    poll = select.poll()
    for fd in fds:
        if fd >= 0:
            poll.register(fd, select.POLLIN)
    if write_fd is not None:
        poll.register(write_fd, select.POLLOUT)
    return [fd for fd, _ in poll.poll(min(left, _SLICE_S) * 1000)] or [-1]


def _collect(
    process: HostProcess,
    sinks: dict[int, Callable[[bytes], Any]],
    stdin: IO[Any] | None,
    data: bytes | None,
    timeout: float | None,
) -> None:
    """Pass data from the descriptors in `sinks` to their functions, and `data` to `stdin`, until the process ends."""
    deadline = None if timeout is None else time.monotonic() + timeout
    open_fds = dict(sinks)
    for fd in open_fds:
        os.set_blocking(fd, False)
    rest = memoryview(data or b"")
    if stdin is not None:
        stdin.flush()
        os.set_blocking(stdin.fileno(), False)
    while process.poll() is None:
        if stdin is not None and not rest:
            stdin.close()
            stdin = None
        write_fd = None if stdin is None else stdin.fileno()
        ready = _wait_readable([process.fileno(), *open_fds], deadline, write_fd)
        if not ready:
            assert timeout is not None
            raise HostTimeoutError(process.args, timeout)
        if write_fd in ready and stdin is not None:
            try:
                rest = rest[os.write(stdin.fileno(), rest) :]
            except BlockingIOError:
                pass
            except BrokenPipeError:
                rest = rest[:0]  # The process has closed its standard input, which is not an error.
        for fd in ready:
            if fd in open_fds and not _read_once(fd, open_fds[fd]):
                del open_fds[fd]
    # The process has ended. Read the rest of the pipes, without waiting for an end of file: a descendant of the
    # process may still have the pipes open.
    for fd, sink in open_fds.items():
        while _read_once(fd, sink, at_end=True):
            pass


def _read_once(fd: int, sink: Callable[[bytes], Any], at_end: bool = False) -> bool:
    """Pass one piece of data to the sink.

    Returns False at the end of the file, and with `at_end` also if no data is available now.
    """
    try:
        piece = os.read(fd, 1 << 18)
    except BlockingIOError:
        return not at_end
    except ConnectionError:
        return False
    if piece:
        sink(piece)
    return bool(piece)


# --- Starting processes ---------------------------------------------------------------------------------------------


def _working_directory() -> str:
    """Return the directory in which programs of the hosts start by default: that of this process."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        words = "the working directory of this process has been deleted; change to one that exists, or pass cwd="
        raise TestbedError(words) from None


def start_on(
    host: Host,
    argv: list[str] | None,
    extra: dict[str, Any],
    streams: tuple[Any, Any, Any],
    *,
    pass_fds: Sequence[int] = (),
    cwd: str | os.PathLike[str] | None = None,
    env: dict[str, str] | None = None,
    text: bool = False,
    channel_out: list[socket.socket] | None = None,
) -> HostProcess:
    """Start a program (`argv`) or a call (`extra`; its channel is appended to `channel_out`) on a host."""
    fds = [int(fd) for fd in pass_fds]
    if len(fds) > MAX_FDS or len(set(fds)) != len(fds) or min(fds, default=3) < 3:
        raise ValueError(f"pass_fds is {pass_fds!r}; expected at most {MAX_FDS} different descriptors above 2")
    spec = {
        "argv": argv,
        "pass_fds": fds,
        "cwd": os.fspath(cwd) if cwd is not None else _working_directory(),
        # The hosts' names are for VipNSGetHostByName on the host. An environment of the caller takes precedence.
        "env": {**os.environ, **host._environment()} if env is None else {**host._environment(), **env},
        **extra,
    }
    ident = host._next_id()
    channel, channel_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    status, status_far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = HostProcess(host, argv if argv is not None else extra.get("label"), ident, status, text)
    nears: list[Any] = [channel, status]
    fars: list[Any] = [channel_far, status_far]
    try:
        status.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        status.setblocking(False)
        stream_fds = _open_streams(process, streams, nears, fars)
        host._send({"spawn": ident}, [channel_far.fileno(), status_far.fileno(), *stream_fds, *fds])
        while fars:
            _close(fars.pop())
        process.pid = _await_start(host, status)
        channel.settimeout(_START_DEADLINE_S)
        send_object(channel, spec)
        if argv is not None:
            _await_exec(channel, process)
            channel.close()
        elif channel_out is not None:
            channel_out.append(channel)
    except BaseException as error:
        process.kill(group=True)
        for item in nears:
            _close(item)
        if isinstance(error, (BrokenPipeError, ConnectionResetError)):
            raise TestbedError(f"host {host.name} is gone, or its new process died at its start") from error
        raise
    finally:
        for item in fars:
            _close(item)
    return process


def _close(item: Any) -> None:
    """Close a descriptor or a file."""
    os.close(item) if isinstance(item, int) else item.close()


def _open_streams(process: HostProcess, streams: tuple[Any, Any, Any], nears: list[Any], fars: list[Any]) -> list[int]:
    """Return the descriptors of the standard streams. Files and descriptors to be closed are added to the lists."""
    fds: list[int] = []
    for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
        if stream == subprocess.PIPE:
            read_fd, write_fd = os.pipe()
            near, far = (write_fd, read_fd) if number == 0 else (read_fd, write_fd)
            fars.append(far)
            mode = ("w" if number == 0 else "r") + ("" if process._text else "b")
            file: IO[Any] = open(near, mode, -1 if process._text else 0)  # noqa: SIM115
            nears.append(file)
            setattr(process, name, file)
            fds.append(far)
        elif stream == subprocess.STDOUT and number == 2:
            fds.append(fds[1])
        elif stream == subprocess.DEVNULL or (stream is None and not _is_open(number)):
            fds.append(os.open(os.devnull, os.O_RDWR))
            fars.append(fds[-1])
        elif stream is None:
            fds.append(number)
        else:
            fds.append(stream if isinstance(stream, int) else stream.fileno())
    return fds


def _is_open(fd: int) -> bool:
    """Return whether `fd` is an open descriptor of this process."""
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _await_start(host: Host, status: socket.socket) -> int:
    """Wait until the host reports the new process, and return its number in this PID namespace."""
    deadline = time.monotonic() + _START_DEADLINE_S
    while (ready := _wait_readable([status.fileno()], deadline)) == [-1]:
        pass
    if not ready:
        raise TestbedError(f"host {host.name} did not start a process within {_START_DEADLINE_S:g} s")
    try:
        message, ancillary, _, _ = status.recvmsg(4096, socket.CMSG_SPACE(12))
    except ConnectionError:
        message, ancillary = b"", []
    if not message:
        raise TestbedError(f"host {host.name} is gone; open a new Testbed")
    answer = json.loads(message)
    if "error" in answer:
        raise TestbedError(f"host {host.name} could not start a process: {answer['error']}")
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(struct.unpack_from("=i", data)[0])
    return -1


def _await_exec(channel: socket.socket, process: HostProcess) -> None:
    """Wait until the channel is closed, which happens when the program starts. Raises the OSError of a failed start."""
    data = b""
    while piece := channel.recv(1 << 16):
        data += piece
    if data:
        process.wait(_KILL_DEADLINE_S)
        raise pickle.loads(data[LENGTH.size :])["failed"]


# --- Calling functions ----------------------------------------------------------------------------------------------


def _pack_call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Pickle a call, and add the file of its module in case the host cannot import it by name.

    Raises TypeError if the call cannot be pickled.
    """
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    name = getattr(inner, "__module__", None) or ""
    try:
        payload = pickle.dumps((function, args, kwargs), protocol=pickle.HIGHEST_PROTOCOL)
        why: Exception | None = None
    except Exception as error:
        payload, why = b"", error
    if b"__main__" in payload:
        name = "__main__"
    path = getattr(sys.modules.get(name), "__file__", None)
    if why is not None or name == "__main__":
        # Pickle by value, because a lambda has no name, and loading a script by its name runs it again.
        try:
            import cloudpickle  # optional package

            payload, name = cloudpickle.dumps((function, args, kwargs)), ""
        except ImportError:
            if why is not None or path is None:
                what = getattr(function, "__qualname__", repr(function))
                raise TypeError(
                    f"{what} cannot be sent to a host ({why or 'it was defined interactively'}); define it at the top "
                    "level of a module, or pip install cloudpickle"
                ) from why
    module = (name, os.path.abspath(path)) if name and path and name != "builtins" else None
    label = f"{getattr(function, '__qualname__', function)}()"
    return {"payload": payload, "module": module, "sys_path": sys.path, "sys_argv": sys.argv, "label": label}


class _Echo:
    """Sink that writes UTF-8 data to a text stream of this process as it arrives."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._decoder = getincrementaldecoder("utf-8")("replace")

    def __call__(self, data: bytes) -> None:
        stream = getattr(sys, self._name)  # Look it up each time, because a notebook or pytest may replace it.
        text = self._decoder.decode(data)
        if stream is not None and text:
            stream.write(text)
            stream.flush()


class _Running:
    """Call of a function on a host."""

    def __init__(self, host: Host, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        packed = _pack_call(function, args, kwargs)
        channels: list[socket.socket] = []
        streams = (subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE)
        self.process = start_on(host, None, packed, streams, channel_out=channels)
        self._channel = channels[0]

    def finish(self, timeout: float | None) -> Any:
        """Wait for the end; return the function's result or raise its exception. A timeout kills the process."""
        process = self.process
        chunks: list[bytes] = []
        assert process.stdout is not None
        assert process.stderr is not None
        sinks: dict[int, Callable[[bytes], Any]] = {
            self._channel.fileno(): chunks.append,
            process.stdout.fileno(): _Echo("stdout"),
            process.stderr.fileno(): _Echo("stderr"),
        }
        try:
            _collect(process, sinks, None, None, timeout)
        except BaseException:
            process.kill(group=True)
            process.wait(_KILL_DEADLINE_S)
            raise
        finally:
            for item in (self._channel, process.stdout, process.stderr):
                item.close()
        answer = b"".join(chunks)
        whole = len(answer) >= LENGTH.size and len(answer) == LENGTH.size + LENGTH.unpack_from(answer)[0]
        return _unpack_answer(process, answer[LENGTH.size :] if whole else b"")


def _unpack_answer(process: HostProcess, data: bytes) -> Any:
    """Return the function's result or raise its exception."""
    where = f"{process.args} on host {process.host.name}"
    if not data:
        code = process.returncode or 0
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"
        raise TestbedError(f"{where} {how} before it returned a result")
    answer = pickle.loads(data)
    if "returned" in answer:
        return answer["returned"]
    if "failed" in answer:
        raise TestbedError(f"{where} could not start: {answer['failed']}") from answer["failed"]
    trace = RemoteError(f"On host {process.host.name}:\n{answer['traceback']}")
    error = answer["raised"]
    if isinstance(error, Exception):
        raise error from trace
    what = answer["traceback"].strip().splitlines()[-1]
    raise TestbedError(f"{where} ended with {what}") from trace


def call_on(
    host: Host, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
) -> Any:
    """Call a function on a host and wait for its result; see Host.call."""
    return _Running(host, function, args, kwargs).finish(timeout)


class Call(concurrent.futures.Future[Any]):
    """Call that runs in the background. Created by :meth:`viakit.testbed.Host.submit`.

    It is a concurrent.futures.Future, so that concurrent.futures.wait and as_completed accept it. Unlike other futures,
    cancel() works while the function runs: it kills the process.
    """

    def __init__(self, host: Host, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.host = host
        self._running = _Running(host, function, args, kwargs)
        self.process = self._running.process
        self._thread = threading.Thread(target=self._finish, name=f"viakit call on {host.name}", daemon=True)
        self._thread.start()

    def _finish(self) -> None:
        """Wait for the reply and store it. Runs in a thread."""
        try:
            value, error = self._running.finish(None), None
        except BaseException as raised:
            value, error = None, raised
        try:
            if error is None:
                self.set_result(value)
            else:
                self.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass  # The call was cancelled in the meantime.

    def result(self, timeout: float | None = 60.0) -> Any:
        """Return the function's result. After a timeout the call continues.

        Parameters
        ----------
        timeout : float or None
            Timeout in seconds; None: no limit.

        Raises
        ------
        HostTimeoutError
            If there is no result in time.
        concurrent.futures.CancelledError
            If cancel() was called.
        Exception
            As :meth:`viakit.testbed.Host.call`.
        """
        concurrent.futures.wait([self], timeout)
        if not self.done():
            raise HostTimeoutError(self.process.args, timeout or 0.0)
        return super().result(0)

    def exception(self, timeout: float | None = 60.0) -> BaseException | None:
        """Return the exception that result() would raise, or None.

        Raises HostTimeoutError and CancelledError as result().
        """
        concurrent.futures.wait([self], timeout)
        if not self.done():
            raise HostTimeoutError(self.process.args, timeout or 0.0)
        return super().exception(0)

    def running(self) -> bool:
        """Return True until the call is done."""
        return not self.done()

    def cancel(self) -> bool:
        """Kill the process and wait for its end. Returns False if the call was done already."""
        if not super().cancel():
            return False
        self.set_running_or_notify_cancel()
        self.process.kill(group=True)
        self._thread.join(_KILL_DEADLINE_S)
        return True
