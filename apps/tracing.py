"""Activity of each rank over time: as JSON for Perfetto and Chrome, and as a picture similar to Jumpshot's.

The states of :data:`viakit.apps.phases.STATES` are drawn as bars on one row per rank, and messages as arrows from the
sender's row to the receiver's. Messages do not overtake each other. Therefore the k-th message with a tag that a rank
received from a peer is the k-th message that the peer sent to it with this tag. All times are on the monotonic clock of
one machine; ranks on several machines would need synchronised clocks.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from viakit.apps.harness import RankReport
from viakit.apps.phases import STATES

__all__ = ["Arrow", "arrows", "check_format", "figure", "save", "to_trace_events"]

PICTURES = (".png", ".svg", ".pdf")
# Colours of the Okabe-Ito palette, which can be distinguished with colour blindness. Perfetto uses similar colours.
COLOURS = ("#009e73", "#0072b2", "#56b4e9", "#d55e00", "#cc79a7", "#f0e442")
MOST_ARROWS = 2000  # More arrows on a page would be a grey area.


class Arrow(NamedTuple):
    """A message, from its send until the end of its receive."""

    source: int
    dest: int
    tag: int
    nbytes: int
    sent_ns: int
    received_ns: int


def check_format(path: str) -> str:
    """Return the suffix of a trace file; raise ValueError if the format is unknown."""
    suffix = PurePath(path).suffix.lower()
    if suffix not in (".json", *PICTURES):
        raise ValueError(
            f"{path}: a trace is written as .json (for https://ui.perfetto.dev) or as {', '.join(PICTURES)}"
        )
    return suffix


def arrows(reports: Sequence[RankReport]) -> Iterator[Arrow]:
    """Yield the messages whose send and receive are both recorded."""
    waiting = {(report.rank, one.peer, one.tag, one.number): one for report in reports for one in report.sent}
    for report in reports:
        for one in report.received:
            sent = waiting.get((one.peer, report.rank, one.tag, one.number))
            if sent is not None:
                yield Arrow(one.peer, report.rank, one.tag, sent.nbytes, sent.time_ns, one.time_ns)


def _begin(reports: Sequence[RankReport]) -> int:
    return min(one.began_ns for one in reports)


def to_trace_events(reports: Sequence[RankReport], title: str = "") -> dict[str, Any]:
    """Return the run in the Trace Event Format: one process per rank, times in microseconds since the first start."""
    began = _begin(reports)
    events: list[dict[str, Any]] = []
    for report in reports:
        who = {"pid": report.rank + 1, "tid": 1, "ts": 0}
        events.append({"ph": "M", "name": "process_name", **who, "args": {"name": f"rank {report.rank}"}})
        events.append({"ph": "M", "name": "process_sort_index", **who, "args": {"sort_index": report.rank}})
        for one in report.intervals:
            events.append(
                {
                    "ph": "X", "name": STATES[one.state], "cat": "state", "pid": report.rank + 1, "tid": 1,
                    "ts": (one.begin_ns - began) / 1000, "dur": (one.end_ns - one.begin_ns) / 1000,
                }
            )  # fmt: skip
    for i, arrow in enumerate(arrows(reports), 1):
        what = {"name": f"{arrow.nbytes} B", "cat": "message", "id": i, "tid": 1}
        args = {"bytes": arrow.nbytes, "tag": arrow.tag, "from": arrow.source, "to": arrow.dest}
        events.append({"ph": "s", **what, "pid": arrow.source + 1, "ts": (arrow.sent_ns - began) / 1000, "args": args})
        # "bp": "e" binds the arrow's head to the slice that it falls into: the receive, or the wait for it.
        events.append({"ph": "f", "bp": "e", **what, "pid": arrow.dest + 1, "ts": (arrow.received_ns - began) / 1000})
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"title": title}}


def figure(reports: Sequence[RankReport], title: str = "") -> Any:
    """Draw the run: one row of coloured bars per rank, and an arrow per message (a sample if there are very many)."""
    from matplotlib.collections import LineCollection  # start-up time
    from matplotlib.figure import Figure  # start-up time
    from matplotlib.patches import Patch  # start-up time

    reports = sorted(reports, key=lambda one: one.rank)
    began = _begin(reports)
    drawing = Figure(figsize=(12, 1.6 + 0.45 * len(reports)), layout="constrained")
    axes = drawing.subplots()
    used: set[int] = set()
    for report in reports:
        for state, colour in enumerate(COLOURS):
            spans = [
                ((one.begin_ns - began) / 1e6, (one.end_ns - one.begin_ns) / 1e6)
                for one in report.intervals
                if one.state == state
            ]
            if spans:
                used.add(state)
                axes.broken_barh(spans, (report.rank - 0.35, 0.7), facecolors=colour, linewidth=0)
    found = list(arrows(reports))
    step = max(1, -(-len(found) // MOST_ARROWS))
    lines = [
        [((one.sent_ns - began) / 1e6, one.source), ((one.received_ns - began) / 1e6, one.dest)]
        for one in found[::step]
    ]
    if lines:
        axes.add_collection(LineCollection(lines, colors="black", linewidths=0.5, alpha=0.6))
        axes.plot([x for _, (x, _) in lines], [y for _, (_, y) in lines], "k.", markersize=2)
    axes.set_yticks([one.rank for one in reports], [f"rank {one.rank}" for one in reports])
    axes.invert_yaxis()
    axes.set_xlabel("time, ms")
    axes.set_title(
        title + (f" (one message of {step} is drawn)" if step > 1 else ""), fontsize="medium", parse_math=False
    )
    axes.autoscale(axis="x", tight=True)
    patches = [Patch(color=COLOURS[state], label=STATES[state]) for state in sorted(used)]
    drawing.legend(handles=patches, loc="outside lower center", ncols=len(patches), fontsize="small")
    return drawing


def save(reports: Sequence[RankReport], path: str | os.PathLike[str], title: str = "") -> None:
    """Write the trace of a run in the format of the file's suffix.

    Raises
    ------
    ValueError
        If the suffix is not a trace format.
    ResultError
        If the file cannot be written.
    """
    from viakit.measure import result  # start-up time

    suffix = check_format(os.fspath(path))
    if suffix == ".json":
        text = json.dumps(to_trace_events(reports, title), separators=(",", ":"))
        result.write_file(path, text.encode())
        return
    buffer = io.BytesIO()
    figure(reports, title).savefig(buffer, format=suffix[1:], dpi=150)
    result.write_file(path, buffer.getvalue())
