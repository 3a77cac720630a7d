"""A measurement in a separate process, from the side of the notebook's kernel.

The kernel starts a worker (:mod:`viakit.lab._worker`), and one thread of the kernel receives its messages. This thread
calls *on_update* and notifies the worker after it has returned. Bursts are measured only while nothing is drawn. The
kernel's main thread stays free.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

import zmq

from viakit.base.limits import seconds
from viakit.measure import children

__all__ = ["Busy", "Job", "LabError", "current", "socket_folder"]

_STOP_S = 12.0  # limit for a worker's clean-up after the request to stop; then it is killed
_LONGEST_SOCKET_FOLDER = 60
_SLICE_S = 0.05  # length of one wait; Ctrl-C is handled in between


class LabError(RuntimeError):
    """A measurement could not be started, or failed; the message contains a remedy."""


class Busy(LabError):
    """Another measurement is running; two measurements at the same time would disturb each other."""


def socket_folder(prefix: str) -> str:
    """Create a folder for sockets with a short name: a path of at most 107 bytes must hold the folder and the file."""
    folder = tempfile.mkdtemp(prefix=prefix)
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    return folder


_lock = threading.Lock()
os.register_at_fork(after_in_child=lambda: globals().update(_lock=threading.Lock()))  # a child lacks its holder
_current: weakref.ref[Job] | None = None


def current() -> Job | None:
    """Return the measurement that this process runs, or None."""
    job = _current() if _current is not None else None
    return job if job is not None and job.running else None


class Job:
    """One measurement, running or complete.

    Parameters
    ----------
    what : str
        Operation, one of :data:`viakit.lab._operations.OPERATIONS`.
    request : dict
        Arguments of the operation, in a form for JSON.
    title : str
        Description of the measurement.
    on_update : callable, optional
        Called in the job's own thread after each batch, and once at the end.

    Attributes
    ----------
    state : {"running", "done", "stopped", "failed"}
        State of the measurement.
    progress : dict
        ``fraction`` in [0, 1], ``left_s`` seconds, ``text``.
    error : str or None
        Reason of a failure, which may leave a part of the result.
    document : dict or None
        The result, once the measurement is over.
    extra : dict
        Data that belongs to the document, but is not part of it.
    pid : int or None
        Process number of the worker, once it is connected.
    drawing_failed : str or None
        Traceback of *on_update*, which is not called again after an exception.

    Raises
    ------
    Busy
        If another job of this process is running. The worker detects jobs of other processes; the job then fails.
    """

    def __init__(
        self, what: str, request: Mapping[str, Any], *, title: str, on_update: Callable[[Job], None] | None = None
    ) -> None:
        global _current
        self.title = title
        self.began = time.monotonic()
        self.drawing_failed: str | None = None
        self.state = "running"
        self.error: str | None = None
        self.kind = ""
        self.progress: dict[str, Any] = {"fraction": 0.0, "left_s": float("nan"), "text": "starting"}
        self.document: dict[str, Any] | None = None
        self.pid: int | None = None
        self._points: dict[str, tuple[dict[str, Any], dict[int, dict[str, Any]]]] = {}
        self._order = {name: i for i, name in enumerate(request.get("config", {}).get("protocols", ()))}
        self._on_update = on_update
        self.extra: dict[str, Any] = {}
        self._settings: dict[str, Any] = {}
        self._over, self._stop = threading.Event(), threading.Event()
        with _lock:
            other = current()
            if other is not None:
                left = other.progress["left_s"]
                about = f", {left:.0f} s left" if left == left else ""
                raise Busy(
                    f"another measurement is running ({other.title}{about}), and two at the same time would disturb "
                    "each other; wait for it with .wait(), or stop it with lab.stop()"
                )
            self._start(what, request)
            _current = weakref.ref(self)

    def _start(self, what: str, request: Mapping[str, Any]) -> None:
        # The socket is in a folder that only this user may enter. It is removed as soon as the worker is connected.
        self._folder = socket_folder("viakit-lab-")
        self._output = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the listener
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 0
        try:
            address = f"ipc://{self._folder}/wire"
            self._socket.bind(address)
            self._process = subprocess.Popen(
                children.command("viakit.lab._worker"),
                stdin=subprocess.PIPE,
                stdout=self._output,
                stderr=self._output,
                start_new_session=True,  # An interrupt of the kernel's process group must not reach the worker.
            )
            line = json.dumps({"what": what, "address": address, **request}) + "\n"
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()  # The pipe stays open. Its end stops the worker.
        except BaseException:
            self._clean_up()
            raise
        threading.Thread(target=self._listen, name="viakit-lab", daemon=True).start()

    # ------------------------------------------------------------------------------------ messages of the worker

    def _listen(self) -> None:
        """Receive the worker's messages until it ends. Only this thread uses the socket."""
        stop_sent: float | None = None
        over: dict[str, Any] | None = None
        try:
            while over is None:
                gone = self._process.poll() is not None
                if self._socket.poll(0 if gone else 50):
                    message = json.loads(self._socket.recv())
                    over = message if message.get("last") else None
                    self._take(message)
                elif gone:
                    break
                if self._settings:
                    settings, self._settings = self._settings, {}
                    self._send({"change": settings})
                if self._stop.is_set() and stop_sent is None and self.pid is not None:
                    stop_sent = time.monotonic()
                    self._send({"stop": True})
                    self._process.terminate()  # for an operation that does not check for messages
                if stop_sent is not None and time.monotonic() - stop_sent > _STOP_S:
                    self._process.kill()
            # The next measurement may start only after the worker has cleaned up and ended.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_S)
        finally:
            output = self._clean_up()
            self._conclude(over, output)
            self._update()
            self._over.set()  # Set it last, so that a waiting caller finds the finished picture.

    def _send(self, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(json.dumps(message).encode(), zmq.NOBLOCK)

    def _take(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            self.pid = message["pid"]
            shutil.rmtree(self._folder, ignore_errors=True)  # The socket is connected, and its name is not needed.
        if "batch" not in message:
            return
        for series, point in message["points"]:
            key = json.dumps(
                [series.get(name) for name in sorted(series) if not isinstance(series[name], (list, dict))]
            )
            self._points.setdefault(key, (series, {}))[1][point["nbytes"]] = point
        if message["progress"]:
            self.progress = message["progress"]
        self._update()
        self._send({"drawn": message["batch"]})

    def _update(self) -> None:
        if self._on_update is not None:
            try:
                self._on_update(self)
            except Exception:  # A failure to draw must not end the measurement.
                self._on_update = None
                self.drawing_failed = traceback.format_exc()

    def _conclude(self, message: dict[str, Any] | None, output: str) -> None:
        if message is None:
            stopped = self._stop.is_set()
            self.state = "stopped" if stopped else "failed"
            if not stopped:
                last = output.strip().splitlines()[-1:] or [f"it ended with status {self._process.returncode}"]
                self.error = f"the measuring process ended unexpectedly: {last[0]}"
            return
        self.document = message.get("result")
        self.extra = message.get("extra", {})
        self.error = message.get("failed") or message.get("error")
        self.kind = message.get("kind", "")
        self.state = "failed" if self.error else "stopped" if message.get("stopped") else "done"
        if self.state == "done":
            self.progress = {"fraction": 1.0, "left_s": 0.0, "text": "done"}

    def _clean_up(self) -> str:
        """Close and remove everything; return the output of the worker."""
        process = getattr(self, "_process", None)
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.poll() is None:
                process.kill()
            process.wait()
        self._output.seek(0)
        output = self._output.read()[-4000:].decode(errors="replace")
        self._output.close()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
        return output

    # ------------------------------------------------------------------------------------ state

    @property
    def running(self) -> bool:
        """Whether the measurement is still running."""
        return self.state == "running"

    def series(self) -> list[dict[str, Any]]:
        """Return the measurements so far: series of a result file with their points, in the order of size."""
        found = []
        for series, points in sorted(self._points.values(), key=lambda one: self._order.get(one[0]["protocol"], 99)):
            found.append({**series, "points": [points[n] for n in sorted(points)]})
        return found

    def change(self, **settings: Any) -> None:
        """Change settings during the measurement. The operation defines which settings can be changed."""
        self._settings = {**self._settings, **settings}

    def stop(self, *, wait: bool = True) -> None:
        """Stop the measurement with its ranks and hosts, and keep the measurements so far.

        After the end of the measurement the call does nothing.
        """
        self._stop.set()
        if wait:
            self._over.wait(2 * _STOP_S)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until the measurement is over. Interrupting the wait stops the measurement.

        Raises
        ------
        TimeoutError
            After *timeout_s* seconds (None and infinity: never). The measurement continues.
        ValueError
            If *timeout_s* is negative or not a number.
        """
        deadline = time.monotonic() + seconds("timeout_s", timeout_s)
        try:
            while not self._over.wait(_SLICE_S):
                if time.monotonic() >= deadline:
                    raise TimeoutError(f"{self.title} is still being measured after {timeout_s:g} s")
        except KeyboardInterrupt:
            self.stop()
            raise

    def __await__(self) -> Generator[Any, None, None]:
        """Wait without blocking the event loop, so that buttons keep working."""
        import asyncio  # start-up time

        while not self._over.is_set():
            yield from asyncio.sleep(_SLICE_S).__await__()


def _at_exit() -> None:
    job = current()
    if job is not None:
        job.stop()


atexit.register(_at_exit)
