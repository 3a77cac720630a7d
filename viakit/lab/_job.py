"""A measurement that runs in a process of its own, as the notebook's kernel sees it.

The kernel starts a worker (:mod:`viakit.lab._worker`), and one thread of the kernel's listens to it. That thread calls
*on_update*, and tells the worker when it has returned: bursts are measured only while nothing is drawn. The kernel's
main thread stays free.
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
import weakref
from collections.abc import Callable, Generator, Mapping
from typing import Any

from viakit._limits import seconds
from viakit.measure import children

__all__ = ["Busy", "Job", "LabError", "current", "socket_folder"]

_STOP_S = 12.0  # until a worker that was told to stop has put everything away; then it is killed
_LONGEST_SOCKET_FOLDER = 60
_SLICE_S = 0.05  # of a wait, between which Ctrl-C is answered


class LabError(RuntimeError):
    """A measurement could not be started, or failed; the message says what to do about it."""


class Busy(LabError):
    """Something is being measured already: two measurements at once would measure each other."""


def socket_folder(prefix: str) -> str:
    """Make a folder for sockets, with a name that is short enough: 107 bytes are allowed, with all that is added."""
    folder = tempfile.mkdtemp(prefix=prefix)
    if len(os.fsencode(folder)) > _LONGEST_SOCKET_FOLDER:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix=prefix, dir="/tmp")
    return folder


_lock = threading.Lock()
_current: weakref.ref[Job] | None = None


def current() -> Job | None:
    """Return the measurement that this process is running, or None."""
    job = _current() if _current is not None else None
    return job if job is not None and job.running else None


class Job:
    """One measurement, running or over.

    Parameters
    ----------
    what : str
        The operation, of :data:`viakit.lab._operations.OPERATIONS`.
    request : dict
        Its arguments, of what JSON can carry.
    title : str
        For people: what is measured.
    on_update : callable, optional
        Called in the job's own thread after each batch, and once at the end.

    Attributes
    ----------
    state : {"running", "done", "stopped", "failed"}
    progress : dict
        ``fraction`` in [0, 1], ``left_s`` seconds, ``text``.
    error : str or None
        Why it failed; also when a part of the result is there.
    document : dict or None
        What it came to, once it is over.
    extra : dict
        What came with the document, but is no part of it.
    pid : int or None
        The worker's, once it has said hello.
    drawing_failed : str or None
        The traceback of *on_update*, which is not called any more then.

    Raises
    ------
    Busy
        If another job of this process is running. One of another process is noticed by the worker: the job then fails.
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
        self._wishes: dict[str, Any] = {}
        self._over, self._stop = threading.Event(), threading.Event()
        with _lock:
            other = current()
            if other is not None:
                left = other.progress["left_s"]
                about = f", {left:.0f} s left" if left == left else ""
                raise Busy(
                    f"{other.title} is being measured already{about}, and two measurements at once would measure "
                    "each other. Remedy: wait for it with .wait(), or stop it with lab.stop()"
                )
            self._start(what, request)
            _current = weakref.ref(self)

    def _start(self, what: str, request: Mapping[str, Any]) -> None:
        import zmq

        # The socket lies in a folder that only this user may enter, and goes as soon as the worker has come.
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
                start_new_session=True,  # interrupting the kernel's process group is not meant for the worker
            )
            line = json.dumps({"what": what, "address": address, **request}) + "\n"
            assert self._process.stdin is not None
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()  # and stays open: it is the lifeline
        except BaseException:
            self._put_away()
            raise
        threading.Thread(target=self._listen, name="viakit-lab", daemon=True).start()

    # ------------------------------------------------------------------------------------ listening

    def _listen(self) -> None:
        """Take what the worker says until it has gone: the only thread that touches the socket."""
        told_to_stop: float | None = None
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
                if self._wishes:
                    wishes, self._wishes = self._wishes, {}
                    self._say({"wish": wishes})
                if self._stop.is_set() and told_to_stop is None and self.pid is not None:
                    told_to_stop = time.monotonic()
                    self._say({"stop": True})
                    self._process.terminate()  # for what is in the middle of a long job
                if told_to_stop is not None and time.monotonic() - told_to_stop > _STOP_S:
                    self._process.kill()
            # Over is over: only when everything has been put away may the next one begin.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=_STOP_S)
        finally:
            said = self._put_away()
            self._conclude(over, said)
            self._tell()
            self._over.set()  # last: whoever has waited sees the finished picture

    def _say(self, message: Mapping[str, Any]) -> None:
        import zmq

        with contextlib.suppress(zmq.ZMQError):
            self._socket.send(json.dumps(message).encode(), zmq.NOBLOCK)

    def _take(self, message: dict[str, Any]) -> None:
        if "hello" in message:
            self.pid = message["pid"]
            shutil.rmtree(self._folder, ignore_errors=True)  # connected: the name is not needed any more
        if "batch" not in message:
            return
        for series, point in message["points"]:
            key = json.dumps(
                [series.get(name) for name in sorted(series) if not isinstance(series[name], (list, dict))]
            )
            self._points.setdefault(key, (series, {}))[1][point["nbytes"]] = point
        if message["progress"]:
            self.progress = message["progress"]
        self._tell()
        self._say({"drawn": message["batch"]})

    def _tell(self) -> None:
        if self._on_update is not None:
            try:
                self._on_update(self)
            except Exception:  # a broken picture must not end the measurement
                self._on_update = None
                import traceback

                self.drawing_failed = traceback.format_exc()

    def _conclude(self, message: dict[str, Any] | None, said: str) -> None:
        if message is None:
            stopped = self._stop.is_set()
            self.state = "stopped" if stopped else "failed"
            if not stopped:
                last = said.strip().splitlines()[-1:] or [f"it ended with status {self._process.returncode}"]
                self.error = f"the measuring process ended in the middle: {last[0]}"
            return
        self.document = message.get("result")
        self.extra = message.get("extra", {})
        self.error = message.get("failed") or message.get("error")
        self.kind = message.get("kind", "")
        self.state = "failed" if self.error else "stopped" if message.get("stopped") else "done"
        if self.state == "done":
            self.progress = {"fraction": 1.0, "left_s": 0.0, "text": "done"}

    def _put_away(self) -> str:
        """Close and remove everything; returns what the worker printed."""
        process = getattr(self, "_process", None)
        if process is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
            if process.poll() is None:
                process.kill()
            process.wait()
        self._output.seek(0)
        said = self._output.read()[-4000:].decode(errors="replace")
        self._output.close()
        self._socket.close()
        self._context.term()
        shutil.rmtree(self._folder, ignore_errors=True)
        return said

    # ------------------------------------------------------------------------------------ asking

    @property
    def running(self) -> bool:
        """Whether it is not over yet."""
        return self.state == "running"

    def series(self) -> list[dict[str, Any]]:
        """Return what has been measured so far: series of a result file with their points, in order of size."""
        found = []
        for series, points in sorted(self._points.values(), key=lambda one: self._order.get(one[0]["protocol"], 99)):
            found.append({**series, "points": [points[n] for n in sorted(points)]})
        return found

    def wish(self, **wishes: Any) -> None:
        """Change something while it is measured; what may be wished for, the operation knows."""
        self._wishes = {**self._wishes, **wishes}

    def stop(self, *, wait: bool = True) -> None:
        """End it: ranks and hosts go, what has been measured stays. Of one that is over, nothing happens."""
        self._stop.set()
        if wait:
            self._over.wait(2 * _STOP_S)

    def wait(self, timeout_s: float | None = None) -> None:
        """Wait until it is over. Interrupting the wait stops the measurement.

        Raises
        ------
        TimeoutError
            After *timeout_s* seconds; the measurement goes on. None, as infinity: never.
        ValueError
            If *timeout_s* is negative, or not a number.
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
        """Wait without keeping the event loop: buttons work meanwhile."""
        import asyncio

        while not self._over.is_set():
            yield from asyncio.sleep(_SLICE_S).__await__()


def _at_exit() -> None:
    job = current()
    if job is not None:
        job.stop()


atexit.register(_at_exit)
