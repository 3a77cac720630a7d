"""Results as tables in the terminal.

Every table states the definition of its times: half the round trip, or time per message. It also states the way of
waiting (polling or blocking) and the language of the loop. Numbers without these cannot be compared.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.measure import sockbuf
from viakit.measure.ladder import format_size
from viakit.measure.result import Document, conditions

if TYPE_CHECKING:
    from rich.console import Console, Group

    from viakit.measure import stats

__all__ = [
    "agreement",
    "column_name",
    "find_series",
    "format_bandwidth",
    "format_rate",
    "format_ratio",
    "format_time",
    "groups",
    "how",
    "how_without_mtu",
    "point_at",
    "point_ratio",
    "quantity_cell",
    "show",
    "tables",
    "touching",
]

MOST_ROWS = 40
AGREES = 1.1  # largest ratio of two times that agree
_TOO_FEW = "too few"
WAIT_WORDS = {"poll": "polled", "block": "blocking", "hybrid": "hybrid waits"}
LEVEL_WORDS = {"c": "loop in C", "python": "loop in Python"}


def _three_digits(value: float) -> str:
    """Return *value* with three significant digits and no exponent."""
    value = float(f"{value:.3g}")
    if value >= 100:
        return f"{value:.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def format_time(seconds: float) -> str:
    """Format a time: ``137 ns``, ``1.12 µs``, ``3.40 ms``, and ``0`` for zero."""
    if seconds == 0:
        return "0"
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= scale * 0.9995:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds / 1e-9)} ns"


def format_bandwidth(bytes_per_s: float) -> str:
    """Format a bandwidth with decimal units, as usual for networks: ``1.50 MB/s``, ``7.10 GB/s``."""
    for unit, scale in (("GB/s", 1e9), ("MB/s", 1e6)):
        if bytes_per_s >= scale * 0.9995:
            return f"{_three_digits(bytes_per_s / scale)} {unit}"
    return f"{_three_digits(bytes_per_s / 1e3)} kB/s"


def find_series(document: Mapping[str, Any], protocol: str, **key: Any) -> Mapping[str, Any] | None:
    """Return the first series of *protocol* whose other fields (``mode="stream"``) match, or None."""
    for one in document["series"]:
        if one["protocol"] == protocol and all(one.get(name) == value for name, value in key.items()):
            return one
    return None


def point_at(series: Mapping[str, Any] | None, nbytes: int) -> Mapping[str, Any] | None:
    """Return the point of *series* at *nbytes*, or None."""
    return next((point for point in series["points"] if point["nbytes"] == nbytes), None) if series else None


def point_ratio(top: Mapping[str, Any], bottom: Mapping[str, Any], *, bandwidth: bool = False) -> stats.Ratio | None:
    """Return the ratio of the times of *top* and *bottom*, two points of one document, with its interval.

    Returns None if there is no ratio; the interval is (0, inf) if there are too few bursts.

    Bursts of the same rounds are paired (see :func:`viakit.measure.stats.ratio_of_medians`). With *bandwidth*, the
    result is the ratio of bandwidths: for one size this is the reciprocal of the ratio of times.
    """
    from viakit.measure import stats  # start-up time: NumPy

    if bandwidth:
        top, bottom = bottom, top
    times = [dict(zip(point.get("rounds") or [], point.get("bursts_s") or [], strict=False)) for point in (top, bottom)]
    common = sorted(times[0].keys() & times[1].keys())
    try:
        value = top["one_way_s"]["median"] / bottom["one_way_s"]["median"]
        if len(common) >= stats.MIN_BURSTS:
            ratio = stats.ratio_of_medians([times[0][i] for i in common], [times[1][i] for i in common], paired=True)
            # The value is the ratio of the medians that the reader sees. The interval of the rounds is widened to it.
            return dataclasses.replace(ratio, value=value, low=min(ratio.low, value), high=max(ratio.high, value))
        # Too few bursts for an interval, so nothing can be concluded from the ratio.
        return stats.Ratio(value, 0.0, math.inf, paired=False)
    except (ValueError, ZeroDivisionError):
        return None


def _sizes(series: Iterable[Mapping[str, Any]]) -> tuple[list[int], int]:
    """Return the sizes to show and the number of omitted ones. A long ladder is reduced to powers of two."""
    every = sorted({point["nbytes"] for one in series for point in one["points"]})
    if len(every) <= MOST_ROWS:
        return every, 0
    shown = [size for size in every if size & (size - 1) == 0 or size in (every[0], every[-1])]
    return shown, len(every) - len(shown)


def _time_cell(point: Mapping[str, Any] | None) -> str:
    if point is None:
        return "-"
    times = point["one_way_s"]
    low, high = times["ci95"]
    if times.get("ci_of") == "samples":
        return f"{format_time(times['median'])}   ±?"
    spread = 50.0 * (high - low) / times["median"] if times["median"] else 0.0
    return (
        f"{format_time(times['median'])} ±{spread:.0f}%"
        if spread >= 0.95
        else f"{format_time(times['median'])} ±{spread:.1f}%"
    )


def format_ratio(value: float) -> str:
    """Format a ratio: two decimals, more for a small and none for a large ratio."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _ratio_cell(ratio: stats.Ratio | None) -> str:
    if ratio is None:
        return "-"
    if not math.isfinite(ratio.high):
        return f"[dim]{_TOO_FEW}[/dim]"
    text = format_ratio(ratio.value)
    return f"[dim]~{text}[/dim]" if ratio.low <= 1.0 <= ratio.high else text


def how(group: Sequence[Mapping[str, Any]]) -> str:
    """Return a description of how the numbers of a table were measured."""
    wire = f", MTU {group[0]['mtu']}" if group[0]["hosts"] != "local" else ""
    return _how(group, wire)


def how_without_mtu(group: Sequence[Mapping[str, Any]]) -> str:
    """Return the same for a table whose rows have MTUs and delays of their own."""
    return _how(group, "")


def _how(group: Sequence[Mapping[str, Any]], wire: str) -> str:
    one = group[0]
    levels = " and ".join(LEVEL_WORDS[level] for level in LEVEL_WORDS if level in {each["level"] for each in group})
    where = f"two hosts{wire}" if one["hosts"] != "local" else "one host"
    if one["hosts"] == "machine":
        where = f"virtual time on the machine {one['info'].get('machine')}"
    wires = {each.get("wire", "") for each in group}
    # Where the rows have delays of their own, only the rest of the wire is common to all.
    common = [part for part in one.get("wire", "").split(",") if len(wires) == 1 or not part.startswith("delay=")]
    unusual = f", {','.join(common)}" if any(common) else ""
    unusual += f", offset {one['offset']}" if one.get("offset") else ""
    return f"{WAIT_WORDS[one['wait']]}, {levels}, {where}{unusual}, {conditions(group)}"


def touching(group: Sequence[Mapping[str, Any]], nbytes: int) -> float | None:
    """Return the time to touch a message of *nbytes* without sending it: the median over the series, or None."""
    costs = [point["touch_s"] for one in group if (point := point_at(one, nbytes)) and "touch_s" in point]
    return statistics.median(costs) if costs else None


def groups(document: Mapping[str, Any]) -> list[list[Mapping[str, Any]]]:
    """Return the series that can be compared in one table: those with the same mode, wait, hosts, wire and buffers."""
    found: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for one in document["series"]:
        if one["points"] and "algorithm" not in one:  # viakit.measure.barrier shows series with algorithms
            mtu = one["mtu"] if one["hosts"] != "local" else None
            found.setdefault(
                (one["mode"], one["wait"], one["hosts"], mtu, one.get("wire"), one.get("buffers")), []
            ).append(one)
    return list(found.values())


def column_name(group: Sequence[Mapping[str, Any]], one: Mapping[str, Any]) -> str:
    """Return the head of a column: the protocol, and its level if the table has both levels."""
    same = [other for other in group if other["protocol"] == one["protocol"]]
    parts = []
    if len({other.get("sockbuf") for other in same}) > 1:
        parts.append(f"{format_size(one['sockbuf'])} buffers" if "sockbuf" in one else "own buffers")
        same = [other for other in same if other.get("sockbuf") == one.get("sockbuf")]
    if len({other.get("memory") for other in same}) > 1:
        parts.append("own memory" if one.get("memory") == "viakit" else "ordinary memory")
    if len(same) > max(len({other.get("memory") for other in same}), 1) or len({other["level"] for other in group}) > 1:
        parts.append("C" if one["level"] == "c" else "Python")
    return f"{one['protocol']} ({', '.join(parts)})" if parts else str(one["protocol"])


def _is_rough(one: Mapping[str, Any]) -> bool:
    return any(point["one_way_s"].get("ci_of") == "samples" for point in one["points"])


def _cpu_cell(point: Mapping[str, Any] | None) -> str:
    """Return the processor time of a message; "-" if it was not counted."""
    counters = point["counters"] if point else {}
    if not counters.get("messages") or "cpu_user_ns" not in counters:
        return "-"
    return format_time((counters["cpu_user_ns"] + counters["cpu_system_ns"]) * 1e-9 / counters["messages"])


def _chunks(group: list[Mapping[str, Any]], reference: Mapping[str, Any], width: int) -> list[list[Mapping[str, Any]]]:
    """Cut a group into tables that fit *width* columns; each begins with the reference."""
    cpu = 0 if reference["wait"] == "poll" else len("  1.00 ms")

    def needed(one: Mapping[str, Any]) -> int:
        """Return the columns of a series beside the reference: its time or its name, and its ratio."""
        return 2 + max(len("1.00 ms ±100%"), len(column_name(group, one))) + cpu + len(f"  {_TOO_FEW}")

    left = width - len(" 256 KiB") - len("  touching ") - needed(reference) + len(f"  {_TOO_FEW}")
    found, room = [[reference]], left
    for one in [one for one in group if one is not reference]:
        if len(found[-1]) > 1 and needed(one) > room:
            found.append([reference])
            room = left
        found[-1].append(one)
        room -= needed(one)
    return found


HEADS = {
    "pingpong": "One-way time, half the round trip",
    "stream": "Bandwidth of a stream of messages",
    "bidir": "Bandwidth of both directions together",
    "overlap": "Time of a message that computing beside it could not use, one way",
    "rate": "Message rate of a stream",
}
_SECOND = {  # the second table of modes whose first one has times
    "pingpong": ("bandwidth", "Bandwidth: message size / one-way time"),
    "overlap": ("overlap", "Overlap: the share of the one-way time that computing could use"),
}
_QUANTITIES = {"pingpong": "time", "overlap": "time", "rate": "rate"}  # of other modes: bandwidth


def format_rate(per_s: float) -> str:
    """Format a number of messages per second: ``1.20 M/s``, ``350 k/s``."""
    for unit, scale in (("M/s", 1e6), ("k/s", 1e3)):
        if per_s >= scale * 0.9995:
            return f"{_three_digits(per_s / scale)} {unit}"
    return f"{_three_digits(per_s)} /s"


def _overlap_cell(point: Mapping[str, Any] | None) -> str:
    if point is None or "overlap" not in point:
        return "-"
    return f"{round(100 * point['overlap']['median'])} % of {format_time(point['alone_s'])}"


def quantity_cell(point: Mapping[str, Any] | None, quantity: str, exact: bool = False) -> str:
    """Return the cell of a point: its "time", "bandwidth", "rate" or "overlap". An *exact* time has no interval."""
    if quantity == "time":
        return format_time(point["one_way_s"]["median"]) if exact and point else _time_cell(point)
    if quantity == "overlap":
        return _overlap_cell(point)
    if point is None:
        return "-"
    if quantity == "rate":
        return format_rate(1 / point["one_way_s"]["median"])
    return format_bandwidth(point["bandwidth_Bps"])


def _fill(columns: list[Mapping[str, Any]], sizes: list[int], *, quantity: str, title: str, notes: list[str]) -> Group:
    """Return one table of a quantity. The first of *columns* is the reference of the ratios."""
    from rich.console import Group  # start-up time

    # Ratios are shown for the quantity of the mode: times of ping-pong, bandwidths of streams.
    exact = columns[0]["hosts"] == "machine"
    with_ratios = quantity == _QUANTITIES.get(columns[0]["mode"], "bandwidth")
    if with_ratios and len(columns) > 1:
        base = column_name(columns, columns[0])
        doubt = "" if exact else "; ~: no evidence of a difference"
        notes = [*notes, f"ratios of medians against {base}{doubt}"]
    heads = ["message"]
    # A polled wait uses a whole core; of other waits the processor time is a result.
    with_cpu = quantity == "time" and columns[0]["wait"] != "poll"
    if with_cpu:
        notes = [*notes, "CPU: processor time of the measuring threads of both sides, per message"]
    touched = quantity == "time" and any(touching(columns, nbytes) is not None for nbytes in sizes)
    for i, one in enumerate(columns):
        heads += [column_name(columns, one), *["CPU"] * with_cpu, *["ratio"] * bool(i and with_ratios)]
    if touched:
        heads.append("touching")
        notes = [*notes, "touching: writing and reading a message without sending it, part of every time"]
    table = sheet(*(f">{head}" for head in heads), whole=heads)
    few = False
    for nbytes in sizes:
        row = [format_size(nbytes)]
        base_point = point_at(columns[0], nbytes)
        for i, one in enumerate(columns):
            point = point_at(one, nbytes)
            row.append(quantity_cell(point, quantity, exact))
            row += [_cpu_cell(point)] * with_cpu
            if i and with_ratios:
                inverse = quantity != "time"
                ratio = point_ratio(point, base_point, bandwidth=inverse) if point and base_point else None
                row.append(format_ratio(ratio.value) if exact and ratio else _ratio_cell(ratio))
                few = few or _TOO_FEW in row[-1]
        if touched:
            cost = touching(columns, nbytes)
            row.append("-" if cost is None else format_time(cost))
        table.add_row(*row)
    if few:
        from viakit.measure import stats  # start-up time: NumPy

        notes = [*notes, f"{_TOO_FEW}: fewer than {stats.MIN_BURSTS} bursts have no ratio; raise --seconds"]
    # Title and notes are outside the table, because rich would wrap them to its width.
    return Group(title, table, *([f"[dim]{'; '.join(notes)}[/dim]"] if notes else []), "")


def tables(document: Document, against: str | None = None, width: int = 160) -> list[Group]:
    """Return the tables of a result: times and bandwidths for each way of measuring.

    Parameters
    ----------
    document : dict
        A ``viakit.result/1``.
    against : str, optional
        Reference protocol for the ratios. Default: the first of each table.
    width : int
        Columns of the terminal. Protocols that do not fit into one table are continued in further tables.

    Raises
    ------
    ValueError
        If *against* was not measured.
    """
    names = list(dict.fromkeys(one["protocol"] for one in document["series"]))
    if against is not None and against not in names:
        raise ValueError(f"{against} was not measured: ratios can be against {', '.join(names)}")
    made = []
    for group in groups(document):
        sizes, hidden = _sizes(group)
        reference = next((one for one in group if one["protocol"] == against), group[0])
        notes = [f"{hidden} further sizes are in the result"] if hidden else []
        few = ["±?: too few bursts for one"] if any(map(_is_rough, group)) else []
        of_times = ["±: half the 95 % interval of the median", *few, *notes]
        if group[0]["hosts"] == "machine":
            of_times = ["virtual time repeats to the bit, so no number has an interval", *notes]
        mode = group[0]["mode"]
        for columns in _chunks(group, reference, width):
            title = f"[bold]{HEADS[mode]}[/bold]\n{how(group)}"
            quantity = _QUANTITIES.get(mode, "bandwidth")
            if quantity == "time":
                made.append(_fill(columns, sizes, quantity="time", title=title, notes=of_times))
                quantity, head = _SECOND[mode]
                title = f"[bold]{head}[/bold]\n{how(group)}"
            made.append(_fill(columns, sizes, quantity=quantity, title=title, notes=notes))
    return made


def faults_of(document: Document) -> list[str]:
    """Return a note on faults: the protocols that were measured with them, and those that were not."""
    asked: dict[str, str] = {
        one["protocol"]: one.get("info", {}).get("options", {}).get("fault", "") for one in document["series"]
    }
    texts = []
    for fault in dict.fromkeys(filter(None, asked.values())):
        spoilt = ", ".join(name for name, its in asked.items() if its == fault)
        sound = ", ".join(name for name, its in asked.items() if not its)
        texts.append(f"Faults ({fault}) in what is sent by {spoilt}." + (f" Without: {sound}." if sound else ""))
    return texts


def _ratio_as_netpipe(peer: Mapping[str, Any], mine: Mapping[str, Any]) -> float:
    """Return the ratio of the time of a point of NetPIPE to that of viakit's loop, taken as NetPIPE takes it.

    It is the median of the ratios of bursts of the same round, which are neighbours in time. So a machine whose speed
    changes during the sweep changes both times of a ratio. Without common rounds it is the ratio of the medians.
    """
    times = mine.get("bursts_best_s") or mine.get("bursts_s") or []
    ours = dict(zip(mine.get("rounds") or [], times, strict=False))
    theirs = dict(zip(peer.get("rounds") or [], peer.get("bursts_s") or [], strict=False))
    if common := ours.keys() & theirs.keys():
        return statistics.median(theirs[i] / ours[i] for i in common)
    return float(peer["one_way_s"]["median"] / (statistics.median(times) if times else mine["one_way_s"]["median"]))


def agreement(document: Document) -> list[str]:
    """Return verdicts on NetPIPE's own programs beside viakit's loop: the sizes at which their times agree."""
    from viakit.measure.foreign import NETPIPE_PEERS  # it imports NumPy

    texts = []
    for group in groups(document):
        sides = {one["protocol"]: one for one in group}
        for program, names in NETPIPE_PEERS.items():
            mine = next((sides[name] for name in names if name in sides), None)
            if mine is not None and program in sides:
                texts.append(_verdict(mine, sides[program]))
    return texts or _without_verdict(document, NETPIPE_PEERS)


def _without_verdict(document: Document, peers: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the remedy for a sweep that has NetPIPE and viakit's loop, but only viakit's touches its buffers."""
    buffers = {one["protocol"]: one.get("buffers") for one in document["series"]}
    return [
        f"{program} and {name} cannot be compared: only {name} touches its buffers. Add --buffers same."
        for program, names in peers.items()
        for name in names
        if program in buffers and buffers.get(name) == "touched"
    ]


def _verdict(mine: Mapping[str, Any], peer: Mapping[str, Any]) -> str:
    """Return the verdict on a series of viakit's loop and one of NetPIPE's program, at the sizes that both have."""
    pairs = [(point, other) for point in mine["points"] if (other := point_at(peer, point["nbytes"]))]
    ratios = {a["nbytes"]: _ratio_as_netpipe(b, a) for a, b in pairs}
    far = {n: ratio for n, ratio in ratios.items() if not 1 / AGREES <= ratio <= AGREES}
    limit = f"{100 * (AGREES - 1):.0f} %"
    near = f"{len(ratios) - len(far)} of {counted(len(ratios), 'size')}"
    text = f"{peer['protocol']} and {mine['protocol']} agree within {limit} at {near}."
    outside = ", ".join(f"{format_size(n)} ({format_ratio(ratio)})" for n, ratio in far.items())
    return text + f" Not at: {outside}, with the ratio of NetPIPE's time." * bool(far)


def show(document: Document, console: Console, against: str | None = None) -> None:
    """Print a result: its tables, the floor, and skipped and failed protocols."""
    from rich.markup import escape  # start-up time

    from viakit.measure.grid import grids  # it uses this module

    for table in grids(document) or tables(document, against, console.width):
        console.print(table)
    floor = document.get("floor")
    if floor:
        times = floor["one_way_s"]
        console.print(
            f"Floor: one cache line from core to core takes [bold]{format_time(times['median'])}[/bold] one way, "
            "measured in the same run; no message between processes can be faster."
        )
    for text in [*filter(None, (sockbuf.words(one.get("info", {})) for one in document["series"]))]:
        console.print(escape(text))
    for text in (*faults_of(document), *agreement(document)):
        console.print(escape(text))
    lost: Counter[str] = Counter()  # a protocol may have several series: for each level, for each mode
    for one in document["series"]:
        lost[one["protocol"]] += sum(point.get("lost", 0) for point in one["points"])
    for protocol, n in lost.items():
        if n:
            were = f"{counted(n, 'frame')} {'was' if n == 1 else 'were'}"
            console.print(f"{protocol}: {were} lost and retransmitted; the delay is part of the times.")
    for one in document.get("skipped", []):
        console.print(f"[yellow]Not measured: {one['protocol']}.[/yellow] {escape(one['reason'])}")
    for one in document.get("errors", []):
        console.print(f"[yellow]Failed:[/yellow] {escape(one['message'])}")
    if not document.get("complete", True):
        console.print("[yellow]This run was not finished; the measurements so far are shown.[/yellow]")
