"""The measuring loop in Python, which measures the cost of a message in a Python program.

The loop has the modes, credits, validation and touching of buffers of the loop in C (csrc/bench/loop.c). It is plain
Python on each protocol's Python interface (:mod:`viakit.measure.transports`), with time stamps of
``time.perf_counter_ns``. If buffers are not touched, the loop is as short as Python permits: one call to send, one to
receive, and one time stamp of each round trip. Touching takes about 2 us of each message in Python. Mode bidir exists
in C only: in one Python thread the two directions would only take turns. Cold buffers exist in C only, too.

A :class:`PythonEndpoint` has the methods of :class:`viakit._core.BenchEndpoint`.
"""

from __future__ import annotations

import array
import contextlib
import resource
import select
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from viakit import _core
from viakit.base.words import counted
from viakit.measure.endpoints import MeasureError
from viakit.measure.transports import NullTransport, Transport

__all__ = ["NullTransport", "PythonEndpoint", "Transport"]

_SHORT = 4096  # touched ping-pong: the longest message with two send buffers, as in csrc/bench/endpoint.c
_RING_BYTES, _MIN_RING, _MAX_RING = 1 << 20, 4, 64  # touched streams
_NEXT_VALUE = 0x9E3779B97F4A7C15  # touched: difference of the words of one message to those of the next
_WORD = 2**64 - 1


class PythonEndpoint:
    """The loop over a transport, with the methods of :class:`viakit._core.BenchEndpoint`."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport
        transport.check = self._check
        self._stop = False
        names = ("messages_sent", "messages_received", "bytes_sent", "bytes_received", "bytes_written", "bytes_read")
        self._n = dict.fromkeys(names, 0)

    def prepare(
        self,
        nbytes: int,
        mode: str,
        side: int,
        count: int,
        warmup: int = 1,
        repeats: int = 1,
        offset: int = 0,
        validate: bool = False,
        one_core: bool = False,
        run_id: int = 0,
        timeout_s: float = 60.0,
        stall_s: float = 10.0,
        control_fd: int = -1,
        memory: str = "user",
        buffers: str = "touched",
        pool: int = 0,
        spin_us: int = 0,
    ) -> None:
        """Allocate buffers and post receives, as `BenchEndpoint.prepare` does."""
        if mode == "bidir" or buffers == "cold":
            what = "bidir is" if mode == "bidir" else "cold buffers are"
            raise MeasureError(f"{what} measured by the loop in C only. Remedy: remove --level python", "usage")
        self.nbytes, self.mode, self.side, self.validate, self.run_id = nbytes, mode, side, validate, run_id
        self.count, self.warmup, self.repeats = count, max(warmup, 1), 1 if mode == "pingpong" else repeats
        self.timeout_s, self.one_core, self.control_fd = timeout_s, one_core, control_fd
        self.touched = buffers == "touched" and not validate
        self._share_buffers(nbytes, mode, buffers)
        self.transport.memory = memory
        self.transport.window = self.transport.window_for(nbytes, validate)
        if buffers == "touched" and mode != "pingpong" and self.transport.window:
            self.transport.window = self.transport.n_receives - 2
        self.every = self.transport.window // 2
        self.transport.prepare(nbytes, offset, self._n_expected(), validate)
        self._stop = False

    def _share_buffers(self, nbytes: int, mode: str, buffers: str) -> None:
        """Choose the number of buffers, by the rule of csrc/bench/endpoint.c."""
        n_sends = n_receives = 1
        if buffers == "touched" and mode == "pingpong":
            n_sends = 2 if nbytes <= _SHORT else 1
        elif buffers == "touched":
            n_receives = _MAX_RING
            while n_receives > _MIN_RING and n_receives * nbytes > _RING_BYTES:
                n_receives //= 2
            n_sends = n_receives // 2
        self.transport.n_sends, self.transport.n_receives = n_sends, n_receives
        self.n_out = self.n_in = 0
        self.value_out, self.value_in = (
            (self.run_id * 2 + side + 1) * 0xD6E8FEB86659FD93 & _WORD for side in (self.side, 1 - self.side)
        )

    def _credits(self, n: int) -> int:
        """Return the number of credits that B sends for n messages, without the reply to the last one."""
        return (n - 1) // self.every if self.every else 0

    def _n_expected(self) -> int:
        """Return the number of messages that this side receives in the whole run."""
        if self.mode == "pingpong":
            return self.warmup + self.count
        if self.side:
            return self.warmup + self.repeats * self.count
        return self._credits(self.warmup) + 1 + self.repeats * (self._credits(self.count) + 1)

    def _check(self) -> None:
        """Raise MeasureError if a wait has to end. The transports call this repeatedly."""
        if self._stop or (self.control_fd >= 0 and select.select([self.control_fd], [], [], 0)[0]):
            raise MeasureError("stopped: the coordinator requested it or has gone", "stopped")
        if time.monotonic() > self._deadline:
            raise MeasureError(
                f"the run of {self.nbytes}-byte messages was not over after {self.timeout_s:g} s", "timeout"
            )

    def run(self) -> bytes:
        """Perform the prepared run. Return doubles, in nanoseconds, as `BenchEndpoint.run` does."""
        self._deadline = time.monotonic() + self.timeout_s
        transport = self.transport
        n = self.warmup + self.repeats * self.count
        bare = not (self.touched or self.validate)
        if self.mode == "pingpong":
            ping, pong = (self._bare_ping, self._bare_pong) if bare else (self._ping, self._pong)
            samples = ping(n)[self.warmup :] if self.side == 0 else pong(n)
        else:
            ways = (self._bare_stream_a, self._bare_stream_b) if bare else (self._stream_a, self._stream_b)
            one = ways[self.side]
            samples = array.array("d")
            first = 0
            for i in range(self.repeats + 1):
                k = self.count if i else self.warmup
                before = time.perf_counter_ns()
                one(first, k)
                after = time.perf_counter_ns()
                first += k
                if i and self.side == 0:
                    samples.append((after - before) / k)
        transport.flush()
        sent, received = (n, n) if self.mode == "pingpong" else (n, 0) if self.side == 0 else (0, n)
        self._n["messages_sent"] += sent
        self._n["messages_received"] += received
        self._n["bytes_sent"] += sent * self.nbytes
        self._n["bytes_received"] += received * self.nbytes
        return samples.tobytes()

    # -------------------------------------------------------------------------------- modes

    def _ping(self, n: int) -> array.array[float]:
        """Run side A of a ping-pong. Return half of each round trip, in ns."""
        send, recv, tidy, clock = self.transport.send, self.transport.recv, self.transport.tidy, time.perf_counter_ns
        nbytes, validate, touched = self.nbytes, self.validate, self.touched
        samples = array.array("d", bytes(8 * n))
        before = clock()
        for i in range(n):
            if validate:
                self._fill(i)
                before = clock()
            elif touched:
                self._write()
            send(nbytes)
            tidy()
            recv(nbytes)
            if touched:
                self._read()
            after = clock()
            samples[i] = (after - before) / 2
            before = after
            if validate:
                self._compare(i)
        return samples

    def _pong(self, n: int) -> array.array[float]:
        """Run side B of a ping-pong."""
        send, recv, tidy = self.transport.send, self.transport.recv, self.transport.tidy
        nbytes, validate, touched = self.nbytes, self.validate, self.touched
        for i in range(n):
            recv(nbytes)
            if validate:
                self._compare(i)
                self._fill(i)
            elif touched:
                self._read()
                self._write()
            send(nbytes)
            tidy()
        return array.array("d")

    def _stream_a(self, first: int, n: int) -> None:
        send, recv, tidy = self.transport.send, self.transport.recv, self.transport.tidy
        nbytes, every = self.nbytes, self.every
        credits, window = 0, self.transport.window
        for i in range(n):
            while every and i - credits * every >= window:
                recv(1)
                credits += 1
            if self.validate:
                self._fill(first + i)
            elif self.touched:
                self._write()
            send(nbytes)
            tidy()
        while credits <= self._credits(n):
            recv(1)
            credits += 1
            tidy()

    def _stream_b(self, first: int, n: int) -> None:
        send, recv, tidy = self.transport.send, self.transport.recv, self.transport.tidy
        nbytes, every = self.nbytes, self.every
        for i in range(n):
            recv(nbytes)
            if self.validate:
                self._compare(first + i)
            elif self.touched:
                self._read()
            tidy()
            if every and (i + 1) % every == 0 and i + 1 < n:
                send(1)
        send(1)
        tidy()

    # -------------------------------------------------------------------------------- modes, buffers untouched

    def _bare_calls(self, n: int) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any] | None]:
        """Return the calls that send, receive and tidy. The last is None if the transport has nothing to tidy."""
        transport = self.transport
        tidies = type(transport).tidy is not Transport.tidy
        return (*transport.direct(n), transport.tidy if tidies else None)

    def _bare_ping(self, n: int) -> array.array[float]:
        """Run side A of a ping-pong. Return half of each round trip, in ns."""
        (send, recv, tidy), clock = self._bare_calls(self.nbytes), time.perf_counter_ns
        stamps = [0] * (n + 1)
        stamps[0] = clock()
        for i in range(1, n + 1):
            send()
            if tidy is not None:
                tidy()
            recv()
            stamps[i] = clock()
        return array.array("d", (np.diff(np.array(stamps)) / 2).tobytes())

    def _bare_pong(self, n: int) -> array.array[float]:
        """Run side B of a ping-pong."""
        send, recv, tidy = self._bare_calls(self.nbytes)
        for _ in range(n):
            recv()
            send()
            if tidy is not None:
                tidy()
        return array.array("d")

    def _bare_stream_a(self, first: int, n: int) -> None:
        send, _, tidy = self._bare_calls(self.nbytes)
        _, credit, _ = self._bare_calls(1)
        credits, due = 0, self.transport.window if self.every else n  # due: the message that waits for a credit
        for i in range(n):
            if i == due:
                credit()
                credits += 1
                due += self.every
            send()
            if tidy is not None:
                tidy()
        for _ in range(credits, self._credits(n) + 1):
            credit()
            if tidy is not None:
                tidy()

    def _bare_stream_b(self, first: int, n: int) -> None:
        _, recv, tidy = self._bare_calls(self.nbytes)
        credit, _, _ = self._bare_calls(1)
        due = self.every or n
        for i in range(1, n + 1):
            recv()
            if tidy is not None:
                tidy()
            if i == due and i < n:
                credit()
                due += self.every
        credit()
        if tidy is not None:
            tidy()

    # -------------------------------------------------------------------------------- touching

    def _write(self) -> None:
        """Write the next message into the next send buffer, after its last send has completed."""
        transport = self.transport
        transport.choose(self.n_out)
        self.n_out += 1
        transport.flush_to(transport.n_sends - 1)
        _core.bench_write(transport.messages[self.nbytes], self.value_out)
        self.value_out = (self.value_out + _NEXT_VALUE) & _WORD
        self._n["bytes_written"] += self.nbytes

    def _read(self) -> None:
        """Read the message that has arrived, and compare its sum with that of the expected message."""
        found = _core.bench_sum(self.transport.rooms[self.nbytes])
        due = _core.bench_sum_of(self.nbytes, self.value_in)
        self.value_in = (self.value_in + _NEXT_VALUE) & _WORD
        self._n["bytes_read"] += self.nbytes
        self.n_in += 1
        if found != due and not self.transport.empty:
            raise MeasureError(
                f"message {self.n_in - 1} of {counted(self.nbytes, 'byte')}: its words add up to {found:#x}, should be "
                f"{due:#x}. Remedy: --validate names the byte",
                "mismatch",
            )
        self.transport.received(self.n_in)

    def touch_ns(self) -> float:
        """Return the time to write and read one message without sending it, in ns."""
        message, room = self.transport.messages[self.nbytes], self.transport.rooms[self.nbytes]
        turns = max(3, min(1000, (1 << 20) // (self.nbytes + 1)))
        best = float("inf")
        for _ in range(3):
            before = time.perf_counter_ns()
            for i in range(turns):
                _core.bench_write(message, i)
                _core.bench_sum(room)
            best = min(best, (time.perf_counter_ns() - before) / turns)
        return best

    # -------------------------------------------------------------------------------- validation

    def _pattern(self, side: int, i: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """Return the bytes of message *i* of *side*. They differ for every run, side, message and size."""
        seed = (self.run_id * 1000003 + self.nbytes * 8191 + i * 131 + side * 7919) & 0xFFFFFFFF
        return ((np.arange(self.nbytes, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)) >> 13).astype(
            np.uint8
        )

    def _fill(self, i: int) -> None:
        self.transport.flush()
        if self.nbytes:
            np.frombuffer(self.transport.messages[self.nbytes], dtype=np.uint8)[:] = self._pattern(self.side, i)

    def _compare(self, i: int) -> None:
        if not self.nbytes:
            return
        found = np.frombuffer(self.transport.rooms[self.nbytes], dtype=np.uint8)
        expected = self._pattern(1 - self.side, i)
        wrong = np.flatnonzero(found != expected)
        if wrong.size:
            at = int(wrong[0])
            raise MeasureError(
                f"message {i} of {counted(self.nbytes, 'byte')}: byte {at} is 0x{found[at]:02x}, should be "
                f"0x{expected[at]:02x}",
                "mismatch",
            )

    # -------------------------------------------------------------------------------- control

    def stop(self) -> None:
        """End a run of another thread."""
        self._stop = True

    def counters(self) -> dict[str, int]:
        """Return the free-running counters of the loop, the thread and the protocol."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        return {
            **self._n,
            "cpu_user_ns": int(usage.ru_utime * 1e9),
            "cpu_system_ns": int(usage.ru_stime * 1e9),
            "voluntary_switches": usage.ru_nvcsw,
            "involuntary_switches": usage.ru_nivcsw,
            **self.transport.counters(),
        }

    def close(self) -> None:
        """Release the buffers."""
        with contextlib.suppress(BufferError):
            self.transport.close()
