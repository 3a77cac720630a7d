"""``lab.via()``: a descriptor followed step by step, from one program's memory to another's.

Two NICs of this process are connected by the loop link and have no threads, so that each change is the effect of a
step. This shows states that a running program never sees: a descriptor that is posted before its doorbell, a frame that
is sent and not placed, a completion that is not taken. After each step the state of both NICs is read
(:meth:`viakit.via.Nic.snapshot`).
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from html import escape
from types import TracebackType
from typing import Any

from viakit import via
from viakit.base.words import counted
from viakit.lab import _front
from viakit.trace import pcapng, timeline

__all__ = ["OPERATIONS", "Stage", "Stepper"]

OPERATIONS = ("send", "rdma_write")
ROOM = 64  # bytes of the region on each side
CONNECT_S = 10.0


class Stage:
    """A step and the state after it.

    Attributes
    ----------
    name, what : str
        Name and description of the step.
    sides : dict
        For "A" and "B", pairs of text: VI, queues, descriptors, region, and counters that the step has changed.
    frame : list of (str, str)
        The frame that crossed the link in this step; empty without a frame.
    """

    def __init__(self, name: str, what: str, sides: Mapping[str, dict[str, str]], frame: list[tuple[str, str]]) -> None:
        self.name, self.what, self.sides, self.frame = name, what, dict(sides), frame

    def text(self, before: Stage | None = None) -> str:
        """Return the stage as lines of text; with the previous stage *before*, only the differences."""
        lines = [f"{self.name}: {self.what}"]
        for side, rows in self.sides.items():
            old = before.sides[side] if before else {}
            lines += [f"  {side}  {key:22} {value}" for key, value in rows.items() if old.get(key) != value]
        lines += [f"  --  {key:22} {value}" for key, value in self.frame]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def html(self, before: Stage | None = None) -> str:
        """Return the stage as tables; differences from the previous stage *before* are marked."""
        parts = [f"<p><b>{escape(self.name)}</b>: {escape(self.what)}</p>"]
        cells = [
            _table(f"side {side}", rows, before.sides[side] if before else rows) for side, rows in self.sides.items()
        ]
        cells.insert(1, _table("on the wire", dict(self.frame), {}) if self.frame else "<i>nothing on the wire</i>")
        parts.append('<div style="display:flex;gap:2em;align-items:flex-start">' + "".join(cells) + "</div>")
        return "".join(parts)

    def _repr_html_(self) -> str:
        return self.html()


def _table(title: str, rows: Mapping[str, str], before: Mapping[str, str]) -> str:
    lines = []
    for key, value in rows.items():
        mark = ' style="background:#fff3b0;color:#1a1a1a"' if before.get(key) != value else ""
        lines.append(f"<tr{mark}><td>{escape(key)}</td><td><code>{escape(value)}</code></td></tr>")
    return f"<table><caption>{escape(title)}</caption>{''.join(lines)}</table>"


class Stepper:
    """A descriptor in progress: the result of :func:`viakit.lab.via`. Close it, or use it in a ``with`` statement.

    Attributes
    ----------
    stages : list of Stage
        Stages that have been reached.
    nics : tuple of viakit.via.Nic
        NICs A and B.
    """

    def __init__(self, message: bytes, operation: str) -> None:
        if operation not in OPERATIONS:
            raise ValueError(f"operation is {operation!r}; expected one of {', '.join(OPERATIONS)}")
        if not isinstance(message, (bytes, bytearray, memoryview)):
            raise TypeError(f"the message is {message!r}; expected bytes, for instance b'hello'")
        if not 1 <= len(message) <= ROOM:
            raise ValueError(
                f"the message has {counted(len(message), 'byte')}; expected 1 to {ROOM}, which fit on the screen"
            )
        self.message, self.operation = bytes(message), operation
        self.stages: list[Stage] = []
        self._stack = contextlib.ExitStack()
        self.panel: Any = None
        try:
            self._open()
        except BaseException:
            self._stack.close()
            raise

    def _open(self) -> None:
        a, b = (self._stack.enter_context(via.Nic("loop", no_thread=True)) for _ in "AB")
        self.nics = (a, b)
        level = via.Reliability.RELIABLE_DELIVERY
        self._vis = (a.create_vi(level), b.create_vi(level, rdma_write=True))
        self._regions = (a.create_region(ROOM), b.create_region(ROOM, rdma_write=True))
        self._queue: list[Callable[[], tuple[str, str]]] = [self._post_send, self._bell, self._place]
        if self.operation == "send":
            self._queue = [self._post_recv, *self._queue, self._take_recv]
        else:
            self._queue.append(self._answer)
        self._queue.append(self._take_send)
        failed: list[BaseException] = []

        def request() -> None:
            try:
                self._vis[0].connect(b.address / "lab", retry=True, timeout_s=CONNECT_S)
            except BaseException as error:
                failed.append(error)

        requester = threading.Thread(target=request)
        requester.start()
        try:
            b.connect_wait("lab", timeout_s=CONNECT_S).accept(self._vis[1])
        finally:
            requester.join()
        if failed:
            raise failed[0]
        for nic in self.nics:
            nic.poll()  # Process the remaining frames of the connection.
        memoryview(self._regions[0])[: len(self.message)] = self.message
        self._counters = [nic.counters for nic in self.nics]
        words = "two VIs are connected, and memory is registered on both sides; A's region holds the message"
        self._reached("connected", words, [])

    # ------------------------------------------------------------------------------------ the steps

    def _post_recv(self) -> tuple[str, str]:
        self._vis[1].post_recv(via.Descriptor.recv(self._regions[1][:]))
        return "receive posted", "B posts a receive descriptor, which names the memory for the next message"

    def _post_send(self) -> tuple[str, str]:
        segment, there = self._regions[0][: len(self.message)], self._regions[1]
        if self.operation == "send":
            descriptor = via.Descriptor.send(segment)
        else:
            descriptor = via.Descriptor.rdma_write(segment, there.address, there.handle)
        self._vis[0].deferring = True
        self._vis[0].post_send(descriptor)
        return (
            "send posted",
            "A's descriptor is in its send queue; without a doorbell the NIC has not been notified",
        )

    def _bell(self) -> tuple[str, str]:
        self._vis[0].deferring = False
        words = "the NIC reads the descriptor and sends a frame. "
        if self.operation == "send":
            return "doorbell", words + "The link is lossless, so the send is complete for A's NIC"
        return "doorbell", words + "The write completes when B's NIC has acknowledged that the data is in place"

    def _place(self) -> tuple[str, str]:
        self.nics[1].poll()
        if self.operation == "send":
            return "placement", "B's NIC receives the frame, and writes its data to the receive descriptor's memory"
        return "placement", "B's NIC receives the frame, and writes its data to the address in the frame"

    def _answer(self) -> tuple[str, str]:
        deadline = time.monotonic() + CONNECT_S
        while not self.nics[0].snapshot()["vis"][0]["send"]["done"]:
            for nic in reversed(self.nics):
                nic.poll()  # B's NIC delays the acknowledgement, which may travel with another frame.
            if time.monotonic() > deadline:
                raise TimeoutError(f"no acknowledgement arrived within {CONNECT_S:g} s")
        return "acknowledgement", "B's NIC acknowledges the placement, and A's NIC completes the descriptor"

    def _take_recv(self) -> tuple[str, str]:
        self._vis[1].recv_done()
        return "receive completed", "B's program takes its descriptor from the queue and may read the message"

    def _take_send(self) -> tuple[str, str]:
        self._vis[0].send_done()
        return "send completed", "A's program takes its descriptor from the queue and may use the memory again"

    # ------------------------------------------------------------------------------------ progress

    @property
    def left(self) -> int:
        """Number of remaining steps."""
        return len(self._queue)

    @property
    def stage(self) -> Stage:
        """The latest stage."""
        return self.stages[-1]

    def step(self) -> Stage:
        """Perform the next step, and return the new stage.

        Raises
        ------
        StopIteration
            If all steps have been performed; :func:`viakit.lab.via` starts again.
        """
        if not self._queue:
            raise StopIteration("all steps have been performed; lab.via() starts again")
        with tempfile.TemporaryDirectory(prefix="viakit-step-") as folder:
            files = [os.path.join(folder, f"{name}.pcapng") for name in "ab"]
            taps = [nic.tap(file) for nic, file in zip(self.nics, files, strict=True)]
            try:
                name, what = self._queue.pop(0)()
            finally:
                for tap in taps:
                    tap.close()
            frame = _frame(files)
        stage = self._reached(name, what, frame)
        if self.panel is not None:
            self.panel.show()
        return stage

    def run(self) -> list[Stage]:
        """Perform all remaining steps, and return all stages."""
        while self._queue:
            self.step()
        return self.stages

    def _reached(self, name: str, what: str, frame: list[tuple[str, str]]) -> Stage:
        sides = {}
        for i, side in enumerate("AB"):
            now = self.nics[i].counters
            sides[side] = _look(self.nics[i].snapshot(), bytes(memoryview(self._regions[i])), self._regions[i].address)
            changed = (now - self._counters[i]).nonzero()
            sides[side]["counted"] = ", ".join(f"{key} +{value}" for key, value in changed.items()) or "nothing"
            self._counters[i] = now
        self.stages.append(Stage(name, what, sides, frame))
        return self.stages[-1]

    def restart(self) -> None:
        """Start again with new NICs."""
        self.close()
        self.stages, self._stack = [], contextlib.ExitStack()
        self._open()

    def close(self) -> None:
        """Close both NICs. The stages are kept."""
        self._queue.clear()
        self._stack.close()
        if self.panel is not None:
            self.panel.show()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def html(self) -> str:
        """Return all stages so far as tables."""
        return "<hr>".join(stage.html(before) for before, stage in self._pairs())

    def _pairs(self) -> Iterator[tuple[Stage | None, Stage]]:
        return zip([None, *self.stages[:-1]], self.stages, strict=True)

    def __str__(self) -> str:
        return "\n\n".join(stage.text(before) for before, stage in self._pairs())

    def __repr__(self) -> str:
        size, left = counted(len(self.message), "byte"), counted(self.left, "step")
        return f"<{self.operation} of {size}: {self.stage.name}, {left} left>"

    def _begin(self) -> None:
        """Show the panel; without widgets, perform and show all steps."""
        mode = _front.mode()
        if mode == "widgets":
            from viakit.lab._via_panel import ViaPanel  # optional package

            self.panel = ViaPanel(self)
            _front.display(self.panel.widget)
            return
        self.run()
        self.close()
        if mode == "static":
            _front.html(self.html())
        else:
            print(self)


def _look(snapshot: Mapping[str, Any], memory: bytes, address: int) -> dict[str, str]:
    """Return the displayed state of a side, which has one VI."""
    (vi,) = snapshot["vis"]
    rows = {"VI": f"number {vi['number']}, {vi['state']}, {vi['level']}"}
    for name, words in (("send", "send queue"), ("recv", "receive queue")):
        queue = vi[name]
        rows[words] = f"{queue['posted']} posted, {queue['done']} done, {queue['room']} free"
        rows[f"{name} descriptor"] = "; ".join(
            f"{one['operation']} of {one['length']} B in {one['segments']} segment(s): {one['state']}"
            for one in queue["descriptors"]
        ) or "none"  # fmt: skip
    rows["next sequence number"] = str(vi["transmitter"]["next_psn"])
    rows["expects"] = str(vi["receiver"]["expected_psn"])
    region = next(one for one in snapshot["regions"] if int(str(one["address"]), 16) == address)
    rows["region"] = f"{region['length']} B at {region['address']}, handle {region['handle']}"
    shown = memory.rstrip(b"\0")
    rows["memory"] = repr(shown)[1:] if shown else "zeros"
    return rows


def _frame(files: list[str]) -> list[tuple[str, str]]:
    """Return the frame that a step has sent or received, as pairs of text; empty without a frame."""
    capture = pcapng.read(files)
    seen = timeline.build(capture)
    for frame, packet in zip(seen.frames, [one for one in capture.packets if len(one.data) > 14], strict=False):
        if frame.name not in ("SEND", "WRITE", "ACK"):
            continue
        return [
            ("goes" if frame.out else "comes", "out" if frame.out else "in"),
            ("kind", frame.name),
            ("to VI", str(frame.dst_vi)),
            ("from VI", str(frame.src_vi)),
            ("sequence number", str(frame.psn)),
            ("payload", f"{frame.length} B"),
            ("bytes", packet.data[-frame.length :].hex(" ") if frame.length else ""),
        ]
    return []
