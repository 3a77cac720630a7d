"""``lab.via()``: a descriptor followed by hand, from the program's memory into another's.

Two NICs of this process, joined by the loop link and without threads: nothing moves unless a step moves it. So the
instants that a running program never sees can be stood on: posted, but the bell not rung; sent, but not placed; placed,
but not taken. After each step the state of both NICs is read (:meth:`viakit.via.Nic.snapshot`); nothing here is drawn
from imagination.
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

from viakit._words import counted
from viakit.lab import _front

__all__ = ["OPERATIONS", "Stage", "Stepper"]

OPERATIONS = ("send", "rdma_write")
ROOM = 64  # bytes of the region on each side
CONNECT_S = 10.0


class Stage:
    """What was done, and what is then to be seen.

    Attributes
    ----------
    name, what : str
        In a word; in a sentence.
    sides : dict
        For "A" and "B" pairs of text: what, and how it stands: VI, queues, descriptors, region, and counters that the
        step has changed.
    frame : list of (str, str)
        The frame that went over the link in this step; empty if none did.
    """

    def __init__(self, name: str, what: str, sides: Mapping[str, dict[str, str]], frame: list[tuple[str, str]]) -> None:
        self.name, self.what, self.sides, self.frame = name, what, dict(sides), frame

    def text(self, before: Stage | None = None) -> str:
        """Return it as lines of text; with the stage *before*, only what differs from it."""
        lines = [f"{self.name}: {self.what}"]
        for side, rows in self.sides.items():
            old = before.sides[side] if before else {}
            lines += [f"  {side}  {key:22} {value}" for key, value in rows.items() if old.get(key) != value]
        lines += [f"  --  {key:22} {value}" for key, value in self.frame]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.text()

    def html(self, before: Stage | None = None) -> str:
        """Return it as tables; what differs from the stage *before* is marked."""
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
    """A descriptor on its way: what :func:`viakit.lab.via` returns. To be closed, or used in a ``with`` statement.

    Attributes
    ----------
    stages : list of Stage
        Those that have been reached.
    nics : tuple of viakit.via.Nic
        A and B, to be looked into by hand.
    """

    def __init__(self, message: bytes, operation: str) -> None:
        if operation not in OPERATIONS:
            raise ValueError(f"operation is {operation!r}; right would be one of {', '.join(OPERATIONS)}")
        if not isinstance(message, (bytes, bytearray, memoryview)):
            raise TypeError(f"the message is {message!r}; right would be bytes, for instance b'hello'")
        if not 1 <= len(message) <= ROOM:
            raise ValueError(
                f"the message has {counted(len(message), 'byte')}; right would be 1 to {ROOM}, to fit on the screen"
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
        from viakit import via

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

        def ask() -> None:
            try:
                self._vis[0].connect(b.address / "lab", retry=True, timeout_s=CONNECT_S)
            except BaseException as error:
                failed.append(error)

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            b.connect_wait("lab", timeout_s=CONNECT_S).accept(self._vis[1])
        finally:
            asking.join()
        if failed:
            raise failed[0]
        for nic in self.nics:
            nic.poll()  # what is left of connecting
        memoryview(self._regions[0])[: len(self.message)] = self.message
        self._counters = [nic.counters for nic in self.nics]
        words = "two VIs are connected, and memory is registered on both sides; A's holds the message"
        self._reached("connected", words, [])

    # ------------------------------------------------------------------------------------ the steps

    def _post_recv(self) -> tuple[str, str]:
        from viakit import via

        self._vis[1].post_recv(via.Descriptor.recv(self._regions[1][:]))
        return "receive posted", "B says where a message may go, before one comes: a descriptor in its receive queue"

    def _post_send(self) -> tuple[str, str]:
        from viakit import via

        segment, there = self._regions[0][: len(self.message)], self._regions[1]
        if self.operation == "send":
            descriptor = via.Descriptor.send(segment)
        else:
            descriptor = via.Descriptor.rdma_write(segment, there.address, there.handle)
        self._vis[0].deferring = True
        self._vis[0].post_send(descriptor)
        return (
            "send posted",
            "A's descriptor is in its send queue; the bell has not been rung, so the NIC knows nothing",
        )

    def _bell(self) -> tuple[str, str]:
        self._vis[0].deferring = False
        words = "the NIC reads the descriptor and makes a frame of it. "
        if self.operation == "send":
            return "doorbell", words + "The link loses nothing: for A's NIC the send is complete"
        return "doorbell", words + "A write is complete when B's NIC has said that it was allowed, and is in place"

    def _place(self) -> tuple[str, str]:
        self.nics[1].poll()
        if self.operation == "send":
            return "placement", "B's NIC takes the frame, and puts its data where the receive descriptor says"
        return "placement", "B's NIC takes the frame, and puts its data where the frame says; B's program takes no part"

    def _answer(self) -> tuple[str, str]:
        deadline = time.monotonic() + CONNECT_S
        while not self.nics[0].snapshot()["vis"][0]["send"]["done"]:
            for nic in reversed(self.nics):
                nic.poll()  # B's NIC answers after a short delay, in the hope of something to send it with
            if time.monotonic() > deadline:
                raise TimeoutError(f"no acknowledgement came within {CONNECT_S:g} s")
        return "acknowledgement", "B's NIC answers that everything is in place, and A's completes the descriptor"

    def _take_recv(self) -> tuple[str, str]:
        self._vis[1].recv_done()
        return "receive completed", "B's program takes its descriptor back from the queue: the message is its own now"

    def _take_send(self) -> tuple[str, str]:
        self._vis[0].send_done()
        return "send completed", "A's program takes its descriptor back: the memory may be used again"

    # ------------------------------------------------------------------------------------ going on

    @property
    def left(self) -> int:
        """How many steps there are still."""
        return len(self._queue)

    @property
    def stage(self) -> Stage:
        """Where it stands."""
        return self.stages[-1]

    def step(self) -> Stage:
        """Do the next step, and return what is then to be seen.

        Raises
        ------
        StopIteration
            If it has arrived; :func:`viakit.lab.via` makes another.
        """
        if not self._queue:
            raise StopIteration("the descriptor has arrived; lab.via() begins again")
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
        """Do all steps that are left; returns every stage."""
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
        """Begin again, with new NICs."""
        self.close()
        self.stages, self._stack = [], contextlib.ExitStack()
        self._open()

    def close(self) -> None:
        """Close both NICs. The stages stay."""
        self._queue.clear()
        self._stack.close()
        if self.panel is not None:
            self.panel.show()

    def __enter__(self) -> Stepper:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def html(self) -> str:
        """Return every stage so far as tables."""
        return "<hr>".join(stage.html(before) for before, stage in self._pairs())

    def _pairs(self) -> Iterator[tuple[Stage | None, Stage]]:
        return zip([None, *self.stages[:-1]], self.stages, strict=True)

    def __str__(self) -> str:
        return "\n\n".join(stage.text(before) for before, stage in self._pairs())

    def __repr__(self) -> str:
        size, left = counted(len(self.message), "byte"), counted(self.left, "step")
        return f"<{self.operation} of {size}: {self.stage.name}, {left} left>"

    def _begin(self) -> None:
        """Show it: with buttons; or, where there are none, all of it."""
        mode = _front.mode()
        if mode == "widgets":
            from viakit.lab._via_panel import ViaPanel

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
    """Return what is worth knowing of a side that has one VI."""
    (vi,) = snapshot["vis"]
    rows = {"VI": f"number {vi['number']}, {vi['state']}, {vi['level']}"}
    for name, words in (("send", "send queue"), ("recv", "receive queue")):
        queue = vi[name]
        rows[words] = f"{queue['posted']} posted, {queue['done']} done, room for {queue['room']}"
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
    """Return the frame that a step has put on the link, or taken from it, in words; empty if there is none."""
    from viakit.trace import pcapng, timeline

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
