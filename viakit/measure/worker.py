"""A worker: the process in which one side of a measurement runs. Started by :mod:`viakit.measure.pair`, never by hand.

::

    python -m viakit.measure.worker --fd N [--fd M]    control channels that were inherited; two: both sides, in threads
    python -m viakit.measure.worker --connect NAME     an MPI rank: back to the coordinator's abstract Unix socket

It does what the control channel says, one request at a time, and sleeps in read() in between. A thread of its own
watches the channel for its end: when the coordinator has gone, by whatever death, the worker stops and goes too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import shutil
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from array import array
from typing import Any

import viakit
from viakit.measure.channel import CONTROL_VERSION, Channel
from viakit.measure.endpoints import MeasureError
from viakit.measure.sides import Side, make_side

_LAST_WORDS_S = 1.0  # how long an orphan may take to clean up before it is ended
_OVERHEAD_LOOPS = 20000


class _Session:
    """One control channel and the side that it governs."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.side: Side | None = None
        self.over = threading.Event()
        self.scratch: str | None = None
        self.orphan = False
        self.before: dict[str, int] = {}

    def serve(self, hello: dict[str, Any]) -> None:
        """Answer requests until the channel ends or says so."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self.channel.send({"hello": CONTROL_VERSION, "viakit": viakit.__version__, "pid": os.getpid(), **hello})
            while self._answer():
                pass
        except (EOFError, OSError):
            self.orphan = True  # the coordinator has gone
        finally:
            try:
                if self.side is not None:
                    self.side.close()
            finally:
                if self.orphan:
                    self._sweep_up()
                self.over.set()
                self.channel.close()

    def _sweep_up(self) -> None:
        """Remove what the coordinator would have removed."""
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        for path in self.side.files if self.side is not None else ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _watch(self) -> None:
        """Wait for the end of the channel, and see to it that the worker ends too."""
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLRDHUP)
        poll.poll()
        side = self.side
        if side is not None and side.endpoint is not None:
            side.endpoint.stop()
        if not self.over.wait(_LAST_WORDS_S):
            # The main thread is inside a library that cannot be interrupted.
            self._sweep_up()
            os._exit(3)

    def _answer(self) -> bool:
        """Serve one request; False: that was the last."""
        request, _ = self.channel.recv()
        if request["op"] == "close":
            return False
        blob = b""
        try:
            answer = getattr(self, "_" + request["op"])(request)
            if isinstance(answer, tuple):
                answer, blob = answer
        except Exception as error:
            answer = _tell(error)
        self.channel.send(answer, blob)
        return True

    # -------------------------------------------------------------------------------- requests

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        self.scratch = request.get("scratch")
        side = make_side(request)
        self.side = side
        return {"offer": side.open()}

    def _connect(self, request: dict[str, Any]) -> dict[str, Any]:
        side = self._ready()
        side.connect(request["peer"], time.monotonic() + request["timeout_s"])
        return {"info": side.describe() | _about_the_loop(side.in_c)}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        endpoint = self._ready().endpoint
        endpoint.prepare(**request["plan"], control_fd=self.channel.fileno())
        self.before = endpoint.counters()  # now: the peer may begin before we do
        return {}

    def _go(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        endpoint = self._ready().endpoint
        samples = endpoint.run()
        before, after = self.before, endpoint.counters()
        return {"counters": {key: after[key] - before[key] for key in after}}, samples

    def _ready(self) -> Side:
        if self.side is None:
            raise MeasureError("no side is open in this worker")
        return self.side


def _tell(error: Exception) -> dict[str, Any]:
    """Put an exception into an answer."""
    known = isinstance(error, MeasureError) or type(error).__name__ == "BenchError" or isinstance(error, OSError)
    reason = getattr(error, "reason", None)
    if reason is None:
        kinds = ((TimeoutError, "timeout"), (ConnectionError, "gone"), (PermissionError, "refused"))
        reason = next((reason for kind, reason in kinds if isinstance(error, kind)), "error")
    text = str(error) if known else f"{type(error).__name__}: {error}"
    answer = {"error": text, "reason": reason}
    if not known:
        answer["traceback"] = traceback.format_exc()
    return answer


def _about_the_loop(in_c: bool) -> dict[str, Any]:
    """Measure what the loop itself costs: the same loop on an endpoint that does nothing."""
    from viakit.measure.pyloop import NullTransport, PythonEndpoint

    clock = "perf_counter_ns"
    if in_c:
        from viakit import _core

        endpoint: Any = _core.BenchEndpoint.null()
        clock, _ = _core.bench_clock()
    else:
        endpoint = PythonEndpoint(NullTransport())
    n = _OVERHEAD_LOOPS if in_c else _OVERHEAD_LOOPS // 10
    endpoint.prepare(8, "pingpong", 0, n)
    cost = statistics.median(array("d", endpoint.run()))
    endpoint.close()
    return {"clock": clock, "loop_overhead_s": cost * 1e-9}


def _serve_in_thread(channel: Channel) -> threading.Thread:
    thread = threading.Thread(target=_Session(channel).serve, args=({},))
    thread.start()
    return thread


def main(arguments: list[str] | None = None) -> int:
    """Run the worker until its coordinator is done with it."""
    parser = argparse.ArgumentParser(prog="viakit.measure.worker")
    parser.add_argument("--fd", type=int, action="append", default=[])
    parser.add_argument("--connect")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the coordinator's to answer
    if options.connect:
        rank = next((os.environ[k] for k in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK") if k in os.environ), None)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect("\0" + options.connect)
        except OSError:
            return 3  # the coordinator has gone already
        _Session(Channel(sock)).serve({"rank": int(rank) if rank is not None else None})
        return 0
    channels = [Channel(socket.socket(fileno=fd)) for fd in options.fd]
    threads = [_serve_in_thread(channel) for channel in channels[1:]]
    _Session(channels[0]).serve({})
    for thread in threads:
        thread.join()
    with contextlib.suppress(ValueError, OSError):
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
