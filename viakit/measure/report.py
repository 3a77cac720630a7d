"""Reports: a summary of a result in sentences computed from it, with its picture, in one HTML file.

Every sentence gives its numbers, their intervals, and the method of measurement. A sentence whose numbers were not
measured is left out. The page loads nothing from the network.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

from viakit.measure import endpoints, plot, sockbuf, table
from viakit.measure.ladder import format_size
from viakit.measure.result import Document, conditions, machine_text, series_label
from viakit.measure.stats import Ratio

__all__ = ["STYLE", "html", "html_table", "page_head", "per_message", "tables_html", "words"]


def _name(series: Mapping[str, Any]) -> str:
    library = series.get("info", {}).get("library")
    if series["protocol"] == "mpi" and library:
        return f"MPI ({library})"
    known = endpoints.known(series["protocol"])
    if series["protocol"] == "tcp" and "sockbuf_tried" in series.get("info", {}):
        return "TCP with its best socket buffers"
    return (known and known.title) or str(series["protocol"])


def _common_size(one: Mapping[str, Any], other: Mapping[str, Any], wanted: int) -> int | None:
    """Return the size nearest to *wanted* that both series have."""
    common = {point["nbytes"] for point in one["points"]} & {point["nbytes"] for point in other["points"]}
    return min(common, key=lambda size: abs(size - wanted)) if common else None


def _interval(ratio: Ratio) -> str:
    if not math.isfinite(ratio.high):
        return "from too few bursts for an interval"
    return f"95 % interval {ratio.low:.3g} to {ratio.high:.3g}"


def _times(ratio: Ratio) -> str:
    """Return a ratio of times in words, with its interval, or the statement that no difference was found."""
    interval = _interval(ratio)
    if not math.isfinite(ratio.high):
        return f"a ratio of {table.format_ratio(ratio.value)}, but {interval}"
    if ratio.low <= 1.0 <= ratio.high:
        return f"no evidence of a difference (ratio {table.format_ratio(ratio.value)}, {interval})"
    if ratio.value < 1.0:
        return f"{table.format_ratio(ratio.value)} of its time ({interval})"
    return f"{table.format_ratio(ratio.value)} times as long ({interval})"


def _compared(
    mine: Mapping[str, Any], others: list[Mapping[str, Any]], wanted: int, bandwidth: bool = False
) -> Iterator[tuple[Mapping[str, Any], int, Mapping[str, Any], Mapping[str, Any], Ratio]]:
    """Yield each other series that can be compared, the size next to *wanted*, both points and their ratio."""
    for other in others:
        size = _common_size(mine, other, wanted)
        point, peer = (table.point_at(one, -1 if size is None else size) for one in (mine, other))
        ratio = table.point_ratio(point, peer, bandwidth=bandwidth) if point and peer else None
        if size is not None and ratio is not None and point is not None and peer is not None:
            yield other, size, point, peer, ratio


def _latency(mine: Mapping[str, Any], others: list[Mapping[str, Any]], wanted: int) -> list[str]:
    """Compare one-way times of short messages."""
    return [
        f"{_name(mine)} carries {format_size(size)} in {table.format_time(point['one_way_s']['median'])} one way "
        f"(half the round trip, {table.WAIT_WORDS[mine['wait']]}), {_name(other)} in "
        f"{table.format_time(peer['one_way_s']['median'])}: {_times(ratio)}."
        for other, size, point, peer, ratio in _compared(mine, others, wanted)
    ]


def _bandwidth(mine: Mapping[str, Any], others: list[Mapping[str, Any]]) -> list[str]:
    """Compare the bandwidth of long messages in a stream."""
    return [
        f"A stream of messages of {format_size(size)} runs at {table.format_bandwidth(point['bandwidth_Bps'])} by "
        f"{_name(mine)} and at {table.format_bandwidth(peer['bandwidth_Bps'])} by {_name(other)}, "
        f"MTU {mine['mtu']}: {table.format_ratio(ratio.value)} times the bandwidth ({_interval(ratio)})."
        for other, size, point, peer, ratio in _compared(mine, others, 4 << 20, bandwidth=True)
    ]


def _tail(series: Mapping[str, Any], wanted: int) -> list[str]:
    """Compare the times of slow messages with the median."""
    if not series["points"]:
        return []
    point = min(series["points"], key=lambda one: abs(one["nbytes"] - wanted))
    times = point["one_way_s"]
    if point["samples"] < 1000:
        return []
    return [
        f"Latency has a tail: of {point['samples']} messages of {format_size(point['nbytes'])} by "
        f"{_name(series)}, one in a hundred took more than {table.format_time(times['p99'])} and one in a "
        f"thousand more than {table.format_time(times['p999'])}; the slowest took "
        f"{table.format_time(times['max'])}. Usually that is an interrupt, or another process that was given the core."
    ]


def per_message(point: Mapping[str, Any]) -> dict[str, float]:
    """Return a point's counters divided by its messages; empty without counters."""
    counters = dict(point["counters"])
    messages = counters.pop("messages", 0)
    return {key: value / messages for key, value in counters.items()} if messages else {}


def _counters(series: Mapping[str, Any], wanted: int) -> list[str]:
    """State the copies and system calls per message."""
    if not series["points"]:
        return []
    point = min(series["points"], key=lambda one: abs(one["nbytes"] - wanted))
    each = per_message(point)
    if "copies" not in each or "system_calls" not in each:
        return []
    return [
        f"According to the counters, a message of {format_size(point['nbytes'])} by {_name(series)} cost "
        f"{each['copies']:.2f} copies of its payload and {each['system_calls']:.2f} system calls, both sides together "
        f"({table.WAIT_WORDS[series['wait']]})."
    ]


def words(document: Document) -> list[str]:
    """Return the summary of a result as sentences."""
    groups: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for one in document["series"]:
        if one["points"]:
            key = (one["hosts"], one["mode"], one["wait"], one["level"], one.get("buffers"))
            groups.setdefault(key, {}).setdefault(one["protocol"], one)  # With two kinds of memory, the first one.
    sentences: list[str] = []
    for (hosts, mode, _, _, _), found in groups.items():
        mine = next((found[name] for name in ("via-eth", "via-udp", "via-shm", "via-loop") if name in found), None)
        if mine is None:
            continue
        others = [one for one in found.values() if one is not mine]
        wanted = 8 if hosts == "local" else 64
        if mode == "pingpong":
            sentences += _latency(mine, others, wanted)
            sentences += _floor(document, mine)
            sentences += _tail(mine, wanted)
            sentences += _counters(mine, wanted)
        elif mode == "stream":
            sentences += _bandwidth(mine, others)
    sentences += _conditions(document)
    if any(one["hosts"] == "testbed" for one in document["series"]):
        sentences.append(
            "The two hosts are network namespaces of this one machine and their wire is a veth pair: no cable and no "
            "card, so these are the costs of software alone, and both hosts share this machine's cores and memory."
        )
    for one in document.get("skipped", []):
        sentences.append(f"Not measured: {one['protocol']}. {one['reason']}")
    if not document.get("complete", True):
        sentences.append("The run was not finished; the measurements so far are shown.")
    return sentences


def _conditions(document: Document) -> list[str]:
    """Describe the memory of the messages, the treatment of the buffers, and the socket buffers."""
    measured = [one for one in document["series"] if one["points"] and "wait" in one]
    if not measured:
        return []
    sentences = [f"Memory of the messages: {conditions(measured)}."]
    if any(one.get("buffers") == "touched" for one in measured):
        sentences.append(
            "Touched buffers: each message was written before it was sent and read after it was received, within the "
            "time and for every protocol alike; what that costs without sending stands beside the times."
        )
    return sentences + list(dict.fromkeys(filter(None, (sockbuf.words(one.get("info", {})) for one in measured))))


def _floor(document: Document, series: Mapping[str, Any]) -> list[str]:
    """Compare shared memory with the limit of the machine."""
    floor = document.get("floor")
    if not floor or series["link"] != "shm":
        return []
    point = table.point_at(series, 8) or min(series["points"], key=lambda one: abs(one["nbytes"] - 8))
    ratio = table.point_ratio(point, floor)
    if ratio is None:
        return []
    times = table.format_ratio(ratio.value)
    beaten = f"which no message between processes can beat: {_name(series)} needs {times} times that"
    return [
        f"One cache line needs {table.format_time(floor['one_way_s']['median'])} from core to core, {beaten} for "
        f"{format_size(point['nbytes'])} ({_interval(ratio)})."
    ]


# ------------------------------------------------------------------------------------------------ HTML

STYLE = """
:root { color-scheme: light dark; --dim: #555; --line: #ddd; --field: #f4f4f4; --warn: #fff6e0; }
@media (prefers-color-scheme: dark) { :root { --dim: #aaa; --line: #444; --field: #2a2a2a; --warn: #3a2c00; } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin: 0; } .sub { margin: 0; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.sub, caption, .note { color: var(--dim); font-size: .9rem; }
table { border-collapse: collapse; margin: .5rem 0 1rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .2rem .8rem; text-align: right; border-bottom: 1px solid var(--line); }
.numbers th { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.facts td, .facts th { text-align: left; }
.scroll { overflow-x: auto; } code { background: var(--field); padding: .1rem .3rem; }
.missing { background: var(--warn); border-left: 4px solid #e69f00; padding: .3rem .8rem; }
"""


def html_table(caption: str, head: list[str], rows: list[list[str]], kind: str = "numbers") -> str:
    """Return an HTML table of text cells.

    In a table of numbers a line of a cell does not end between a number and its unit.
    """
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    if kind == "numbers":
        rows = [[re.sub(r"(?<=\d) (?=[^\W\d])", "\N{NO-BREAK SPACE}", cell) for cell in row] for row in rows]
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{kind}"><caption>{escape(caption)}</caption>'
        f"<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _limits(times: Mapping[str, Any]) -> str:
    """Return the 95 % interval of a median, or the statement that there are too few bursts for one."""
    if times.get("ci_of") == "samples":
        return "[too few bursts]"
    low, high = (table.format_time(limit) for limit in times["ci95"])
    return f"[{low}, {high}]".replace(" ", "\N{NO-BREAK SPACE}")


def _time_rows(document: Document) -> str:
    """Return tables like those of the terminal: medians, intervals, 99th percentiles; or bandwidths."""
    parts = []
    for group in table.groups(document):
        first = group[0]
        rows = []
        sizes = sorted({point["nbytes"] for one in group for point in one["points"]})
        touched = any(table.touching(group, size) is not None for size in sizes)
        for size in sizes:
            row = [format_size(size)]
            for one in group:
                point = table.point_at(one, size)
                if point is None:
                    row.append("-")
                elif first["mode"] in ("pingpong", "overlap"):
                    times = point["one_way_s"]
                    row.append(
                        f"{table.format_time(times['median'])} {_limits(times)}, p99 {table.format_time(times['p99'])}"
                    )
                    if first["mode"] == "overlap":
                        row[-1] += f"; overlap {table.quantity_cell(point, 'overlap')}"
                else:
                    row.append(table.quantity_cell(point, "rate" if first["mode"] == "rate" else "bandwidth"))
            if touched:
                cost = table.touching(group, size)
                row.append("-" if cost is None else table.format_time(cost))
            rows.append(row)
        timed = first["mode"] in ("pingpong", "overlap")
        meaning = "median [its 95 % interval], 99th percentile" if timed else "median"
        caption = f"{table.HEADS[first['mode']]}; {table.how(group)}: {meaning}"
        head = ["message", *(table.column_name(group, one) for one in group)]
        if touched:
            caption += "; touching: writing and reading a message without sending it, part of every time"
            head.append("touching")
        parts.append(html_table(caption, head, rows))
    return "".join(parts)


def _counter_rows(document: Document) -> str:
    """Return a table of counters per message at the smallest and the largest size, where they differ most.

    A counter that no protocol of the result counts has no column.
    """
    wanted = (
        "copies",
        "bytes_copied",
        "system_calls",
        "frames_sent",
        "frames_retransmitted",
        "acks_sent",
        "wakeups",
        "doorbells",
    )
    counted: list[tuple[str, str, Mapping[str, float]]] = []
    for one in document["series"]:
        name = f"{series_label(one, document['series'])}, {one['hosts']}"
        for point in {id(point): point for point in one["points"][:1] + one["points"][-1:]}.values():
            counted.append((name, format_size(point["nbytes"]), per_message(point)))
    shown = [key for key in wanted if any(key in each for _, _, each in counted)]
    rows = [
        [name, size, *(f"{each[key]:.2f}" if key in each else "-" for key in shown)]
        for name, size, each in counted
        if any(key in each for key in shown)
    ]
    if not rows:
        return ""
    caption = "Counters per message, both sides together"
    return "<h2>Cost of a message</h2>" + html_table(
        caption, ["protocol", "message", *(key.replace("_", " ") for key in shown)], rows
    )


def tables_html(document: Document) -> str:
    """Return the tables of a result, times and counters, as HTML without a page around them."""
    return _time_rows(document) + _counter_rows(document)


def _flat(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_flat(one)}" for key, one in value.items() if one is not None)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_flat, value))
    return "unknown" if value is None else str(value)


def page_head(
    title: str, machine: Mapping[str, Any], told: Sequence[str], missing: Sequence[str], picture: str = ""
) -> str:
    """Return the beginning of a report's page: the machine, a picture, the summary, and missing measurements."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p class="sub">{escape(str(machine["date"]))} · {escape(machine_text(machine))} ·
viakit {escape(str(machine["viakit"]))}</p>
{picture}
<h2>Summary</h2>
<ul>{"".join(f"<li>{escape(one)}</li>" for one in told)}</ul>
{"".join(f'<p class="missing">{escape(one)}</p>' for one in missing)}"""


def html(document: Document, title: str = "viakit report") -> str:
    """Return a self-contained page with summary, pictures, tables and environment of a result."""
    machine = document["environment"]
    sentences = words(document)
    missing = [one for one in sentences if one.startswith("Not measured")]
    told = [one for one in sentences if one not in missing]
    still = {**document, "series": [one for one in document["series"] if one["mode"] == "pingpong"]}
    drawn = still if any(one["points"] for one in still["series"]) else document
    graphs = plot.usual_graphs([drawn])
    interactive = plot.html([drawn], whole=False, graphs=graphs, title="One way, over message size")
    picture = base64.b64encode(plot.picture([drawn], ".png", graphs=graphs, title=title)).decode()
    facts = [[key, _flat(value)] for key, value in machine.items() if key != "command"]
    infos = [
        [series_label(one, document["series"]), one["mode"], _flat(one.get("info", {}))] for one in document["series"]
    ]
    pictures = f"""{interactive}
<noscript><img alt="throughput and signature graphs" style="max-width:100%"
src="data:image/png;base64,{picture}"></noscript>
<p class="note">Throughput over message size; the signature graph, throughput over the time of a message (the
further left a curve begins, the lower the latency); and the ratio of times. Lines are medians, bands reach from the
5th to the 90th percentile. Move the pointer over a curve for its numbers.</p>"""
    return f"""{page_head(title, machine, told, missing, pictures)}
<h2>Numbers</h2>
{_time_rows(document)}
{_counter_rows(document)}
<h2>How it was measured</h2>
<p>Protocols take turns at each size, burst by burst, in a random order (seed {document.get("seed")}), so that drift of
the machine hits all alike. Each interval is that of the medians of bursts. The measuring loop's own cost is part of the
times and is listed for each protocol below. Memory of the messages: {escape(conditions(document["series"]))}.
Measured again by: <code>{escape(document["command"])}</code></p>
{html_table("Endpoints", ["protocol", "mode", "properties"], infos, "facts")}
{html_table("Machine", ["", ""], facts, "facts")}
</body></html>
"""
