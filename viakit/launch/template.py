"""Ranks that are forked from one Python process: the option ``--preload`` of ``viakit run``.

An interpreter that starts and imports NumPy and viakit needs 0.2 s of processor time and 20 MiB of memory. With many
ranks on few cores this is most of the start of a job. The template does it once::

    launcher --- a job per rank, with the rank's descriptors --> template (imports, then forks)
       |                                                            |-- child, which forks the rank and ends
       |-- rank: adopted by the launcher, because the child has ended

A rank must be a child of the launcher, which waits for its end and notices signals. Therefore the launcher becomes the
parent of its orphaned descendants for as long as the template exists (PR_SET_CHILD_SUBREAPER). A rank is ended by the
kernel with its launcher, as ranks of other jobs are.
"""

from __future__ import annotations

import builtins
import contextlib
import ctypes
import functools
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import IO, Any

from viakit.base.process import end_with_parent
from viakit.launch import LaunchError
from viakit.launch.child import become_rank

__all__ = ["Forked", "Template", "serve"]

_START_S = 60.0  # for the imports of the template, or for a fork, on a busy machine
_LENGTH = 8  # bytes of a length that precedes a job
_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_MODULES = ("numpy", "viakit.comm.communicator", "viakit.mpi", "viakit.via")
_libc = ctypes.CDLL(None, use_errno=True)

_LOOP = "from viakit.launch import template; exec(*template.serve())"


class Forked:
    """Process of a rank that the template has forked, with the methods of ``subprocess.Popen`` that a launcher uses."""

    def __init__(self, pid: int, stdin: IO[bytes] | None, stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin, self.stdout, self.stderr = stdin, stdout, stderr

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while the process runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        """Wait for the end and return the exit status.

        Raises
        ------
        subprocess.TimeoutExpired
        """
        deadline = time.monotonic() + timeout
        while (status := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return status


class Template:
    """The template of a job, as the launcher has it.

    Parameters
    ----------
    environment : dict
        Variables of the template. The ranks get their own.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        self._before = ctypes.c_int()
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(self._before), 0, 0, 0)
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self._socket, far = socket.socketpair()
        self._socket.settimeout(_START_S)
        with contextlib.ExitStack() as undo, far:
            undo.callback(self._release)
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LOOP, str(far.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[far.fileno()],
            )
            undo.pop_all()  # the process has started, so there is nothing to undo

    def _release(self) -> None:
        self._socket.close()
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, self._before.value, 0, 0, 0)

    def start(
        self, command: list[str], environment: dict[str, str], cores: set[int], meeting: socket.socket, stdin: int
    ) -> Forked:
        """Fork a rank.

        Parameters
        ----------
        command : list of str
            The interpreter, then a Python file or ``-m`` and a module, and the arguments.
        environment : dict
            All variables of the rank, without VIAKIT_RENDEZVOUS.
        cores : set of int
            Cores to bind the rank to; empty: all.
        meeting : socket
            The rank's end of its connection to the launcher.
        stdin : int
            Descriptor for standard input, ``subprocess.PIPE`` or ``subprocess.DEVNULL``.

        Raises
        ------
        LaunchError
            If the template has ended or does not reply.
        """
        job = {"command": command[1:], "environment": environment, "cores": sorted(cores)}
        text = json.dumps(job).encode()
        with contextlib.ExitStack() as stack:
            near_in = None
            if stdin == subprocess.PIPE:
                far_in, near_in = os.pipe()
            else:
                far_in = os.open(os.devnull, os.O_RDONLY) if stdin == subprocess.DEVNULL else os.dup(stdin)
            near_out, far_out = os.pipe()
            near_err, far_err = os.pipe()
            for fd in (far_in, far_out, far_err):
                stack.callback(os.close, fd)
            files = [os.fdopen(fd, "rb", 0) for fd in (near_out, near_err)]
            files_in = None if near_in is None else os.fdopen(near_in, "wb", 0)
            try:
                fds = [far_in, far_out, far_err, meeting.fileno()]
                socket.send_fds(self._socket, [len(text).to_bytes(_LENGTH, "little")], fds)
                self._socket.sendall(text)
                reply = _read(self._socket, _LENGTH)
            except OSError as error:
                for file in (*files, *([files_in] if files_in else [])):
                    file.close()
                status = self._process.poll()
                raise LaunchError(
                    f"the process that ranks are forked from has ended: {error} (status {status})"
                ) from error
        return Forked(int.from_bytes(reply, "little"), files_in, *files)

    def close(self) -> None:
        """End the template; its ranks go on."""
        self._socket.close()  # the template ends at the end of its input
        try:
            self._process.wait(_START_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._release()


def _read(sock: socket.socket, length: int) -> bytes:
    """Read *length* bytes. Raises ConnectionError if the other side has closed before."""
    data = b""
    while len(data) < length:
        piece = sock.recv(length - len(data))
        if not piece:
            raise ConnectionError("connection closed")
        data += piece
    return data


# ---- in the template


def serve() -> tuple[Any, dict[str, Any]]:
    """Import what ranks need, then fork a rank per job. Only ranks return, with their code and its namespace."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which ends the ranks
    launcher = int(sys.argv[2])
    with contextlib.suppress(ImportError):
        for name in _MODULES:
            __import__(name)
    gc.collect()
    gc.freeze()  # so that the collector of a rank does not write to, and thereby copy, what the ranks share
    jobs = socket.socket(fileno=int(sys.argv[1]))
    while True:
        head, fds, _, _ = socket.recv_fds(jobs, _LENGTH, 4)
        if not head:
            sys.exit(0)
        job = json.loads(_read(jobs, int.from_bytes(head, "little")))
        pid = _fork_orphan(launcher)
        if pid == 0:
            jobs.close()
            return _become(job, fds)
        for fd in fds:
            os.close(fd)
        jobs.sendall(pid.to_bytes(_LENGTH, "little"))


def _fork_orphan(launcher: int) -> int:
    """Fork a process that the launcher adopts. Returns 0 in it, and its number in the template."""
    near, far = os.pipe()
    child = os.fork()
    if child:
        os.close(far)
        pid = int.from_bytes(os.read(near, _LENGTH), "little")
        os.close(near)
        os.waitpid(child, 0)  # the rank is the launcher's from now on
        return pid
    child = os.getpid()
    pid = os.fork()
    if pid:
        os.setpgid(pid, pid)  # the launcher signals the group as soon as it has the number
        os.write(far, pid.to_bytes(_LENGTH, "little"))
        os._exit(0)
    os.close(near)
    os.close(far)
    while os.getppid() == child:  # until the child has ended: the next call concerns the parent
        os.sched_yield()
    end_with_parent()
    if os.getppid() != launcher:  # the launcher ended before the call
        os._exit(1)
    return 0


def _become(job: dict[str, Any], fds: list[int]) -> tuple[Any, dict[str, Any]]:
    """Take the place that an interpreter of its own would have as this rank; return the program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    become_rank(job["cores"])
    for number, fd in enumerate(fds[:3]):
        os.dup2(fd, number)
        os.close(fd)
    os.set_inheritable(fds[3], True)
    os.environ.clear()
    os.environ.update(job["environment"], VIAKIT_RENDEZVOUS=f"fd:{fds[3]}")
    sys.excepthook = functools.partial(_show, sys.excepthook)
    return _program(job["command"])


def _show(hook: Callable[..., None], kind: Any, error: Any, trace: types.TracebackType | None) -> None:
    """Report an uncaught exception as *hook* does, without the frames of the template."""
    while trace is not None and trace.tb_frame.f_code.co_filename in ("<string>", __file__):
        trace = trace.tb_next
    hook(kind, error.with_traceback(trace), trace)


def _program(words: list[str]) -> tuple[Any, dict[str, Any]]:
    """Return the code of a Python file, or of ``-m`` and a module, and the namespace of ``__main__``."""
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    sys.modules["__main__"] = main
    if words[0] == "-m":
        import runpy  # on use: a file does not need it

        sys.argv = words[1:]
        run: Callable[..., Any] = runpy.run_module
        main.__dict__.update(_run=run, _name=words[1])
        return compile("_run(_name, run_name='__main__', alter_sys=True)", "<viakit run -m>", "exec"), main.__dict__
    sys.argv = words
    sys.path[0] = os.path.dirname(os.path.realpath(words[0]))
    main.__file__ = os.path.abspath(words[0])
    with open(words[0], "rb") as file:
        return compile(file.read(), main.__file__, "exec"), main.__dict__
