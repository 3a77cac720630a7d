"""The worker: the process in which a laboratory measures. Started by :mod:`viakit.lab._job`, never by hand.

One line of JSON on standard input says what to measure and where the notebook listens; from there on, standard input is
the lifeline: when it ends, the notebook's kernel has gone, and the worker stops what it measures and goes too, with all
ranks and hosts. Everything else goes over a ZeroMQ socket:

    worker -> kernel   {"hello"}  {"batch": n, "progress": {...}, "points": [[series, point], ...]}  {"result": {...}}
    kernel -> worker   {"drawn": n}  {"stop": true}

**Nothing is drawn while something is measured.** A batch goes out between two bursts, at most ten times a second, and
the next burst begins when the kernel has drawn it and says so. Drawing then takes some of the sweep's time, but none of
the cores under a burst, so the medians are those of an unwatched run.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["main"]

LEAST_INTERVAL_S = 0.1  # between two batches
MOST_SHARE = 0.2  # of the time that drawing may take: slow drawing is asked for less often
DRAWN_WITHIN_S = 0.5  # a kernel that has not drawn by then is busy, and is not waited for
LAST_WORDS_S = 10.0  # an orphan that has not put everything away by then is ended
PARENT_LOOK_S = 1.0


class Wire:
    """The worker's end of the ZeroMQ socket, used by the measuring thread alone, between bursts."""

    def __init__(self, address: str, stop: threading.Event) -> None:
        import zmq

        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.linger = 2000
        self._socket.connect(address)
        self._again = zmq.Again
        self.stop = stop
        self.wishes: dict[str, Any] = {}  # what the notebook has changed meanwhile
        self._batch = 0
        self._next = 0.0
        self._progress: dict[str, Any] | None = None
        self._points: dict[str, list[Any]] = {}

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; never waits for long: a kernel that does not read is as good as gone."""
        with contextlib.suppress(self._again):
            self._socket.send(json.dumps(message).encode(), flags=1)  # 1: do not block

    def point(self, key: str, described: Mapping[str, Any], point: Mapping[str, Any]) -> None:
        """Note that a point has changed; of a point that changes twice within a batch, the last is sent."""
        self._points[f"{key}/{point.get('nbytes', '')}"] = [described, point]

    def progress(self, fraction: float, left_s: float, text: str) -> None:
        """Say how far the measurement is, and send a batch if it is time; waits until the kernel has drawn it."""
        self._progress = {"fraction": fraction, "left_s": left_s, "text": text}
        self._take(0.0)
        if time.monotonic() >= self._next:
            self.flush()

    def flush(self) -> None:
        """Send what has gathered."""
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
        """Take what the kernel says; returns the newest batch that it has drawn, or 0."""
        drawn = 0
        while self._socket.poll(round(timeout_s * 1000)):
            message = json.loads(self._socket.recv())
            if message.get("stop"):
                self.stop.set()
            self.wishes.update(message.get("wish", {}))
            drawn = max(drawn, message.get("drawn", 0))
            timeout_s = 0.0
        return drawn

    def close(self) -> None:
        """Send what is left and close."""
        self._socket.close()
        self._context.term()


# ------------------------------------------------------------------------------------------------ life


def take_the_floor() -> socket.socket:
    """Make sure that nobody else of this user measures in a laboratory: two at once would measure each other.

    The name is in the kernel's abstract namespace, so that it goes with the process. ``VIAKIT_LAB_FLOOR`` is added to
    it: who sets it (tests do) accepts that others measure meanwhile.

    Raises
    ------
    BlockingIOError
        If somebody does; the message names the process.
    """
    name = f"\0viakit/lab/{os.getuid()}{os.environ.get('VIAKIT_LAB_FLOOR', '')}"
    floor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        floor.bind(name)
        floor.listen(8)
        return floor
    except OSError:
        floor.close()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as question:
        who = "another process"
        with contextlib.suppress(OSError):
            question.settimeout(1.0)
            question.connect(name)
            pid, _, _ = struct.unpack("3i", question.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            who = f"process {pid}"
    raise BlockingIOError(
        f"{who} of yours is measuring already (another notebook?), and two measurements at once would measure each "
        "other. Remedy: wait until it has ended, or stop it there with lab.stop()"
    )


def _watch(over: threading.Event, parent: int, address: str) -> None:
    """Wait until the kernel has gone, and see to it that the worker goes too, with the folder of the socket."""
    import select
    import shutil

    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    while os.getppid() == parent:
        if poll.poll(PARENT_LOOK_S * 1000) and not os.read(0, 4096):
            break
    shutil.rmtree(os.path.dirname(address.removeprefix("ipc://")), ignore_errors=True)  # if it went that early
    os.kill(os.getpid(), signal.SIGTERM)
    if not over.wait(LAST_WORDS_S):
        os._exit(3)


def _tell(error: BaseException) -> dict[str, Any]:
    """Put an exception into the last message."""
    from viakit.measure.endpoints import MeasureError

    expected = (MeasureError, ValueError, OSError, ImportError, RuntimeError)
    text = str(error) if isinstance(error, expected) and str(error) else f"{type(error).__name__}: {error}"
    kind = "busy" if isinstance(error, BlockingIOError) else "usage" if isinstance(error, ValueError) else "error"
    return {"failed": text, "kind": kind}


def main() -> int:
    """Measure what the first line of standard input asks for."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # interrupting the kernel is the kernel's to answer
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            return 3
        line += piece
    request = json.loads(line)
    from viakit.lab._operations import OPERATIONS

    stop, over = threading.Event(), threading.Event()
    patient = request["what"] in ("sweep", "faults", "disturbance")  # they look at *stop* after each burst

    def on_term(*_: Any) -> None:
        stop.set()
        if not patient:
            raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, on_term)
    threading.Thread(target=_watch, args=(over, parent, request["address"]), name="watch", daemon=True).start()
    wire = Wire(request["address"], stop)
    wire.send({"hello": 1, "pid": os.getpid()})
    try:
        with contextlib.closing(take_the_floor()):
            last = OPERATIONS[request["what"]](wire, request)
            wire.flush()
    except KeyboardInterrupt:
        last = {"result": None, "stopped": True, "error": None}
    except Exception as error:
        last = _tell(error)
        if os.environ.get("VIAKIT_DEBUG"):
            import traceback

            traceback.print_exc()
    wire.send({**last, "last": True})
    wire.close()
    over.set()
    return 0


if __name__ == "__main__":
    sys.exit(main())
