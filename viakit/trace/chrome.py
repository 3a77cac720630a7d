"""Timelines as JSON for Perfetto (https://ui.perfetto.dev) and chrome://tracing.

The Trace Event Format has one process for each traced process. Each VI has three rows: ``program`` (posts and reaps),
``send queue`` and ``receive queue``. The queues show each descriptor from post to completion as an asynchronous span,
because many are posted at the same time. Each NIC has one row ``wire`` with its frames. Arrows of category ``message``
lead from the post over the frames to the peer's reap; arrows of category ``completion`` lead from the post to the
sender's own reap.
"""

from __future__ import annotations

import json
from collections import defaultdict
from os import PathLike
from pathlib import Path
from typing import Any

from viakit.trace.timeline import Event, Frame, Message, NicSeen, Timeline, names_of

__all__ = ["save", "to_trace_events"]

SHORT_NS = 100  # drawn duration of an instantaneous event, unless the next one is closer
QUEUES = ("send", "receive")


class _Tracks:
    """Rows of the trace, each with a process and a number within it, and their metadata."""

    def __init__(self, nics: list[NicSeen]) -> None:
        self.names = names_of(nics)
        self.pids: dict[int, int] = {}  # id of a NIC -> its process number
        self.tids: dict[tuple[int, str], int] = {}
        self.metadata: list[dict[str, Any]] = []
        numbers: dict[tuple[str, int], int] = {}
        for nic in nics:
            pid = numbers.get((nic.host, nic.pid))
            if pid is None:  # processes of two hosts may have the same number
                pid = nic.pid if nic.pid not in numbers.values() else max(numbers.values()) + 1
                numbers[nic.host, nic.pid] = pid
                self._add_metadata("process_name", pid, 0, name=nic.process)
            self.pids[id(nic)] = pid

    def _add_metadata(self, what: str, pid: int, tid: int, **args: Any) -> None:
        self.metadata.append({"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args})

    def row(self, nic: NicSeen, name: str) -> tuple[int, int]:
        """Return the process and the row number of the NIC's row `name`; create the row if necessary."""
        pid, full = self.pids[id(nic)], f"{self.names[id(nic)]} {name}"
        if (pid, full) not in self.tids:
            tid = len(self.tids) + 1
            self.tids[pid, full] = tid
            self._add_metadata("thread_name", pid, tid, name=full)
            self._add_metadata("thread_sort_index", pid, tid, sort_index=tid)
        return pid, self.tids[pid, full]


class _Drawing:
    def __init__(self, timeline: Timeline) -> None:
        self.timeline = timeline
        self.begin, self.end = timeline.span_ns
        self.tracks = _Tracks(timeline.nics)
        self.slices: defaultdict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
        self.others: list[dict[str, Any]] = []
        self.at: set[tuple[int, int, int]] = set()  # (pid, tid, ns) of the slices' starts; arrows need a slice

    def ts(self, time_ns: int) -> float:
        """Return a time in microseconds since the first record."""
        return (time_ns - self.begin) / 1000

    def slice(self, row: tuple[int, int], time_ns: int, name: str, category: str, args: dict[str, Any]) -> None:
        """Add an instantaneous event to a row; `settle` computes its drawn duration."""
        pid, tid = row
        one = {"ph": "X", "name": name, "cat": category, "pid": pid, "tid": tid, "ns": time_ns, "args": args}
        self.slices[row].append(one)
        self.at.add((pid, tid, time_ns))

    def frame(self, frame: Frame) -> None:
        arrow = "→" if frame.out else "←"
        args = {
            "psn": frame.psn, "ack": frame.ack, "bytes": frame.length, "from": f"{frame.src_port}.{frame.src_vi}",
            "to": f"{frame.dst_port}.{frame.dst_vi}", "key": f"{frame.key:08x}",
        }  # fmt: skip
        if frame.note:
            args["note"] = frame.note
        name = f"{arrow} {frame.name}{' LOST' if frame.lost else ''}"
        self.slice(self.tracks.row(frame.nic, "wire"), frame.time_ns, name, "frame", args)

    def event(self, event: Event) -> None:
        if event.name not in ("posted", "reaped"):
            return
        verb = "post" if event.name == "posted" else "reap"
        row = self.tracks.row(event.nic, f"VI {event.vi} program")
        args = {"descriptor": f"{event.descriptor:x}", "bytes": event.length, "status": f"{event.status:x}"}
        self.slice(row, event.time_ns, f"{verb} {QUEUES[event.queue & 1]} {event.index}", "program", args)

    def spans(self) -> None:
        """Add a span for each descriptor, from post to completion."""
        unfinished: dict[tuple[int, int, int, int], dict[str, Any]] = {}
        number = 0
        for event in self.timeline.events:
            which = (id(event.nic), event.vi, event.queue, event.index)
            queue = QUEUES[event.queue & 1]
            if event.name == "posted":
                number += 1
                pid, tid = self.tracks.row(event.nic, f"VI {event.vi} {queue} queue")
                begin = {
                    "ph": "b", "cat": queue, "id": f"d{number}", "name": f"{queue} {event.index}", "pid": pid,
                    "tid": tid, "ts": self.ts(event.time_ns), "args": {"bytes": event.length},
                }  # fmt: skip
                self.others.append(begin)
                unfinished[which] = begin
            elif event.name == "completed" and which in unfinished:
                begin = unfinished.pop(which)
                args = {"status": f"{event.status:x}", "bytes": event.length}
                self.others.append({**begin, "ph": "e", "ts": self.ts(event.time_ns), "args": args})
        for begin in unfinished.values():
            self.others.append({**begin, "ph": "e", "ts": self.ts(self.end), "args": {"unfinished": True}})

    def arrows(self, message: Message, number: int) -> None:
        """Add the arrows of a message and of its completion, over the stations that are drawn."""
        program = self.tracks.row(message.nic, f"VI {message.vi} program")
        stations = [(program, message.posted)]
        if message.sent is not None:
            stations.append((self.tracks.row(message.nic, "wire"), message.sent))
        if message.receiver is not None:
            stations.append((self.tracks.row(message.receiver, "wire"), message.arrived))
            stations.append((self.tracks.row(message.receiver, f"VI {message.recv_vi} program"), message.recv_reaped))
        self.arrow("message", f"m{number}", stations)
        self.arrow("completion", f"c{number}", [(program, message.posted), (program, message.reaped)])

    def arrow(self, category: str, name: str, stations: list[tuple[tuple[int, int], int | None]]) -> None:
        drawn = [(row, time) for row, time in stations if time is not None and (*row, time) in self.at]
        drawn.sort(key=lambda station: station[1])
        for i, ((pid, tid), time_ns) in enumerate(drawn if len(drawn) > 1 else []):
            phase = "s" if i == 0 else "f" if i == len(drawn) - 1 else "t"
            one = {"ph": phase, "cat": category, "id": name, "name": category, "pid": pid, "tid": tid}
            one["ts"] = self.ts(time_ns)
            if phase == "f":
                one["bp"] = "e"  # The arrow ends at the enclosing slice and not at the next one.
            self.others.append(one)

    def settle(self) -> list[dict[str, Any]]:
        """Return all slices, each limited by the start of the next slice on its row."""
        result = []
        for row in self.slices.values():
            row.sort(key=lambda one: one["ns"])
            for i, one in enumerate(row):
                start = one.pop("ns")
                gap = row[i + 1]["ns"] - start if i + 1 < len(row) else SHORT_NS
                result.append({**one, "ts": self.ts(start), "dur": min(gap, SHORT_NS) / 1000})
        return result


def to_trace_events(timeline: Timeline) -> dict[str, Any]:
    """Return the timeline in the Trace Event Format, ready for :func:`json.dump`.

    Times (``ts``, ``dur``) are in microseconds since the first record, with a resolution of a nanosecond.
    ``otherData["begin_ns"]`` is the time of that record on CLOCK_MONOTONIC.
    """
    drawing = _Drawing(timeline)
    for event in timeline.events:
        drawing.event(event)
    drawing.spans()
    for frame in timeline.frames:
        drawing.frame(frame)
    for number, message in enumerate(timeline.messages):
        drawing.arrows(message, number)
    slices = drawing.settle()
    events = sorted(slices + drawing.others, key=lambda one: one["ts"])
    return {
        "traceEvents": drawing.tracks.metadata + events,
        "displayTimeUnit": "ns",
        "otherData": {"begin_ns": drawing.begin, "made_by": "viakit trace"},
    }


def save(timeline: Timeline, path: str | PathLike[str]) -> None:
    """Write the timeline as JSON to *path*."""
    Path(path).write_text(json.dumps(to_trace_events(timeline), separators=(",", ":")), encoding="utf-8")
