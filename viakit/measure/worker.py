"""A worker: the process that runs one side of a measurement. It is started by :mod:`viakit.measure.pair` only.

::

    python -m viakit.measure.worker --fd N [--fd M]    inherited control channels; with two, both sides are threads
    python -m viakit.measure.worker --connect NAME     an MPI rank: connects to the coordinator's abstract Unix socket
    python -m viakit.measure.worker --take PATH        the same on another machine: viakit.launch.far_mpi

The worker serves the requests of the control channel one after the other, and sleeps in read() in between. A separate
thread watches the channel. When the coordinator has ended, even by a kill, the worker stops and ends as well.
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
from viakit.base.channel import CONTROL_VERSION, Channel
from viakit.launch.far_mpi import taken
from viakit.measure import children
from viakit.measure.endpoints import MeasureError
from viakit.measure.ranks import call_back
from viakit.measure.sides import Side, make_side

_CLEANUP_S = 1.0  # limit for the clean-up of a worker whose coordinator has ended
_OVERHEAD_LOOPS = 20000


class _Session:
    """One control channel and the side that it controls."""

    def __init__(self, channel: Channel) -> None:
        self.channel = channel
        self.side: Side | None = None
        self.over = threading.Event()
        self.scratch: str | None = None
        self.orphan = False
        self.before: dict[str, int] = {}
        self.plan: dict[str, Any] = {}
        self.touch_ns: dict[tuple[Any, ...], float] = {}  # cost of touching, by size and placement

    def serve(self, hello: dict[str, Any]) -> None:
        """Serve requests until the channel is closed or requests the end."""
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            self.channel.send({"hello": CONTROL_VERSION, "viakit": viakit.__version__, "pid": os.getpid(), **hello})
            while self._serve_one():
                pass
        except (EOFError, OSError):
            self.orphan = True  # The coordinator has ended.
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
        """Remove files that the coordinator would have removed."""
        if self.scratch:
            shutil.rmtree(self.scratch, ignore_errors=True)
        for path in self.side.files if self.side is not None else ():
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _watch(self) -> None:
        """Wait until the channel is closed, and make sure that the worker then ends."""
        poll = select.poll()
        poll.register(self.channel.fileno(), select.POLLRDHUP)
        poll.poll()
        side = self.side
        if side is not None and side.endpoint is not None:
            side.endpoint.stop()
        if not self.over.wait(_CLEANUP_S):
            # The main thread is in a library call that cannot be interrupted.
            self._sweep_up()
            os._exit(3)

    def _serve_one(self) -> bool:
        """Serve one request. Returns False after the last one."""
        request, _ = self.channel.recv()
        if request["op"] == "close":
            return False
        blob = b""
        try:
            answer = getattr(self, "_" + request["op"])(request)
            if isinstance(answer, tuple):
                answer, blob = answer
        except Exception as error:
            answer = _error_reply(error)
        self.channel.send(answer, blob)
        return True

    # -------------------------------------------------------------------------------- requests

    def _open(self, request: dict[str, Any]) -> dict[str, Any]:
        self.scratch = request.get("scratch")
        if self.side is not None:  # It belongs to an earlier connection.
            self.side.close()
            self.side = None
        children.use_machine(request.get("machine"))
        side = make_side(request)
        self.side = side
        return {"offer": side.open()}

    def _connect(self, request: dict[str, Any]) -> dict[str, Any]:
        side = self._ready()
        side.connect(request["peer"], time.monotonic() + request["timeout_s"])
        return {"info": side.describe() | _loop_properties(side.in_c)}

    def _prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        endpoint = self._ready().endpoint
        self.plan = request["plan"]
        endpoint.prepare(**self.plan, control_fd=self.channel.fileno())
        self.before = endpoint.counters()  # Read them now, because the peer may start before this side.
        return {}

    def _go(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        endpoint = self._ready().endpoint
        samples = endpoint.run()
        before, after = self.before, endpoint.counters()
        answer: dict[str, Any] = {"counters": {key: after[key] - before[key] for key in after}}
        if self.plan["buffers"] == "touched" and not (self.plan["validate"] or self.plan["side"]):
            key = tuple(self.plan[name] for name in ("nbytes", "mode", "offset", "memory"))
            if key not in self.touch_ns:
                self.touch_ns[key] = endpoint.touch_ns()
            answer["touch_s"] = self.touch_ns[key] * 1e-9
        return answer, samples

    def _ready(self) -> Side:
        if self.side is None:
            raise MeasureError("this worker has no open side; send the request open first")
        return self.side


def _error_reply(error: Exception) -> dict[str, Any]:
    """Return the reply that reports an exception."""
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


def _loop_properties(in_c: bool) -> dict[str, Any]:
    """Measure the cost of the measuring loop with an endpoint that does nothing."""
    from viakit.measure.pyloop import NullTransport, PythonEndpoint  # start-up time

    clock = "perf_counter_ns"
    if in_c:
        from viakit import _core  # start-up time

        endpoint: Any = _core.BenchEndpoint.open("null")
        clock, _ = _core.bench_clock()
    else:
        endpoint = PythonEndpoint(NullTransport())
    n = _OVERHEAD_LOOPS if in_c else _OVERHEAD_LOOPS // 10
    endpoint.prepare(8, "pingpong", 0, n, buffers="same")
    cost = statistics.median(array("d", endpoint.run()))
    endpoint.close()
    return {"clock": clock, "loop_overhead_s": cost * 1e-9}


def _serve_in_thread(channel: Channel) -> threading.Thread:
    thread = threading.Thread(target=_Session(channel).serve, args=({},))
    thread.start()
    return thread


def main(arguments: list[str] | None = None) -> int:
    """Run the worker until its coordinator closes the channel."""
    parser = argparse.ArgumentParser(prog="viakit.measure.worker")
    parser.add_argument("--fd", type=int, action="append", default=[])
    parser.add_argument("--connect")
    parser.add_argument("--take")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # The coordinator handles Ctrl-C.
    if options.connect or options.take:
        rank = next((os.environ[k] for k in ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK") if k in os.environ), None)
        channel = call_back(options.connect) if options.connect else taken(options.take)
        if channel is None:
            return 3  # The coordinator has ended already.
        _Session(channel).serve({"rank": int(rank) if rank is not None else None})
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
