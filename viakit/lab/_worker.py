"""The worker: the process in which a laboratory measures. It is started by :mod:`viakit.lab._job` only.

One line of JSON on standard input describes the measurement and the notebook's address. Standard input then stays open.
When it ends, the notebook's kernel has ended, and the worker stops the measurement and ends with all ranks and hosts.
All other messages use a ZeroMQ socket:

    worker -> kernel   {"hello"}  {"batch": n, "progress": {...}, "points": [[series, point], ...]}  {"result": {...}}
    kernel -> worker   {"drawn": n}  {"stop": true}

**Nothing is drawn during a burst.** A batch is sent between two bursts, at most ten times a second. The next burst
starts when the kernel has reported that the batch is drawn. Drawing takes a part of the sweep's time, but does not use
the cores during a burst, so that the medians equal those of an unwatched run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from typing import Any

import zmq

from viakit.base.failure import MeasureError
from viakit.base.secret import same_user
from viakit.lab._operations import OPERATIONS

__all__ = ["main"]

LEAST_INTERVAL_S = 0.1  # between two batches
MOST_SHARE = 0.2  # largest share of time for drawing; batches are less frequent if drawing is slow
DRAWN_WITHIN_S = 0.5  # limit of the wait for a kernel that is busy
CLEANUP_S = 10.0  # limit for the clean-up of a worker whose kernel has ended
PARENT_CHECK_S = 1.0


class Wire:
    """The worker's end of the ZeroMQ socket. Only the measuring thread uses it, between bursts."""

    def __init__(self, address: str, stop: threading.Event) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 2000
        self._socket.connect(address)
        self._again = zmq.Again
        self.stop = stop
        self.settings: dict[str, Any] = {}  # settings that the notebook has changed during the measurement
        self._batch = 0
        self._next = 0.0
        self._progress: dict[str, Any] | None = None
        self._points: dict[str, list[Any]] = {}

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message without waiting. A message that the kernel does not read is dropped."""
        with contextlib.suppress(self._again):
            self._socket.send(json.dumps(message).encode(), flags=1)  # 1: do not block

    def point(self, key: str, described: Mapping[str, Any], point: Mapping[str, Any]) -> None:
        """Record a changed point. Only the last change within a batch is sent."""
        self._points[f"{key}/{point.get('nbytes', '')}"] = [described, point]

    def progress(self, fraction: float, left_s: float, text: str) -> None:
        """Report progress. If a batch is due, send it and wait until the kernel has drawn it."""
        self._progress = {"fraction": fraction, "left_s": left_s, "text": text}
        self._take(0.0)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Send the recorded points."""
        self._batch += 1
        began = time.monotonic()
        self.send({"batch": self._batch, "progress": self._progress, "points": list(self._points.values())})
        self._points.clear()
        while self._take(max(0.0, began + DRAWN_WITHIN_S - time.monotonic())) < self._batch:
            if time.monotonic() - began >= DRAWN_WITHIN_S or self.stop.is_set():
                break
        now = time.monotonic()
        self._next = now + max(LEAST_INTERVAL_S, (now - began) * (1 / MOST_SHARE - 1))

    def _take(self, timeout_s: float) -> int:
        """Receive the kernel's messages; return the number of the latest batch that it has drawn, or 0."""
        drawn = 0
        while self._socket.poll(round(timeout_s * 1000)):
            message = json.loads(self._socket.recv())
            if message.get("stop"):
                self.stop.set()
            self.settings.update(message.get("change", {}))
            drawn = max(drawn, message.get("drawn", 0))
            timeout_s = 0.0
        return drawn

    def close(self) -> None:
        """Send pending messages and close the socket."""
        self._socket.close()
        self._context.term()


# ------------------------------------------------------------------------------------------------ process


def acquire_lock() -> socket.socket:
    """Acquire the lock of this user's laboratories, because two measurements at the same time would disturb each other.

    The lock is a name in the kernel's abstract namespace, which disappears with the process. ``VIAKIT_LAB_FLOOR`` is
    appended to it. Tests set this variable, and accept that other processes measure at the same time.

    Raises
    ------
    BlockingIOError
        If another process has the lock; the message names the process.
    """
    name = f"\0viakit/lab/{os.getuid()}{os.environ.get('VIAKIT_LAB_FLOOR', '')}"
    lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        lock.bind(name)
        lock.listen(8)
        return lock
    except OSError:
        lock.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as query:
        owner = "another process"
        with contextlib.suppress(OSError):
            query.settimeout(1.0)
            query.connect(name)
            pid, uid, _ = struct.unpack("3i", query.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            whose = "of this user" if same_user(query) else f"of user {uid % (1 << 32)}"
            owner = f"process {pid} {whose}"
    raise BlockingIOError(
        f"{owner} is measuring, perhaps for another notebook, and two measurements at the same time would "
        "disturb each other; wait until it has ended, or stop it there with lab.stop()"
    )


def _watch(over: threading.Event, parent: int, address: str) -> None:
    """Wait until the kernel has ended, remove the folder of the socket, and make sure that the worker ends."""
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while os.getppid() == parent:
        if poll.poll(PARENT_CHECK_S * 1000) and not os.read(0, 4096):
            break
    shutil.rmtree(os.path.dirname(address.removeprefix("ipc://")), ignore_errors=True)  # if the kernel ended early
    os.kill(os.getpid(), signal.SIGTERM)
    if not over.wait(CLEANUP_S):
        os._exit(3)


def _error_message(error: BaseException) -> dict[str, Any]:
    """Return the last message, which reports an exception."""
    expected = (MeasureError, ValueError, OSError, ImportError, RuntimeError)
    text = str(error) if isinstance(error, expected) and str(error) else f"{type(error).__name__}: {error}"
    kind = "busy" if isinstance(error, BlockingIOError) else "usage" if isinstance(error, ValueError) else "error"
    return {"failed": text, "kind": kind}


def main() -> int:
    """Run the measurement that the first line of standard input requests."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The kernel handles an interrupt.
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return 3
        line += piece
    request = json.loads(line)
    stop, over = threading.Event(), threading.Event()
    checks_stop = request["what"] in ("sweep", "faults", "disturbance")  # operations that check *stop* after each burst

    def on_term(*_: Any) -> None:
        stop.set()
        if not checks_stop:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_term)
    threading.Thread(target=_watch, args=(over, parent, request["address"]), name="watch", daemon=True).start()
    wire = Wire(request["address"], stop)
    wire.send({"hello": 1, "pid": os.getpid()})
    try:
        with contextlib.closing(acquire_lock()):
            last = OPERATIONS[request["what"]](wire, request)
            wire.flush()
    except KeyboardInterrupt:
        last = {"result": None, "stopped": True, "error": None}
    except Exception as error:
        last = _error_message(error)
        if os.environ.get("VIAKIT_DEBUG"):
            traceback.print_exc()
    wire.send({**last, "last": True})
    wire.close()
    over.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
