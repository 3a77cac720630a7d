"""Reports of speed-ups: tables, pictures like the paper's figures 4 to 10, and a page."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from viakit.apps import paper_tables
from viakit.apps.paper_tables import WIDE
from viakit.apps.speedup import COPIES, Row, find, paper, rows, title_of, wrong
from viakit.base.sheet import sheet
from viakit.measure.crews import show_missing
from viakit.measure.look import looks
from viakit.measure.plot import inline, names_at_lines
from viakit.measure.report import html_table, page_head
from viakit.measure.result import Document, ResultError
from viakit.measure.table import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["figure", "html", "show", "words"]

_HEADS = (
    "ranks", "over", "time", "speed-up", "efficiency", "Karp-Flatt", "communication", "work per rank", "messages",
    "KiB", "Mop/s",
)  # fmt: skip
# A terminal narrower than WIDE gets these columns, under shorter names.
_NARROW = {
    "ranks": "ranks", "over": "over", "time": "time", "speed-up": "speed-up", "Karp-Flatt": "Karp-F.",
    "communication": "comm.", "work per rank": "work", "messages": "messages",
}  # fmt: skip


def _cells(one: Row) -> list[str]:
    return [
        f"{one.ranks}{'*' if one.crowded else ''}",
        one.protocol,
        format_time(one.wall_s),
        f"{one.speedup:.2f} ({one.low:.2f} to {one.high:.2f})",
        f"{one.efficiency:.2f}",
        "" if one.karp_flatt is None else f"{one.karp_flatt:.3f}",
        f"{one.communication:.1%}",
        f"{one.work:.2f}",
        str(one.messages),
        f"{one.nbytes / 1024:.0f}",
        "" if one.mops is None else f"{one.mops:.4g}",
    ]


def _paper_words(label: str) -> str:
    said = paper()
    values = zip(said["columns"], said["problems"][label]["speedups"], strict=True)
    return "paper, 8 processors: " + ", ".join(f"{name} {'NA' if value is None else value}" for name, value in values)


def _size_of(document: Mapping[str, Any], label: str) -> str:
    serial = find(document, label, "serial", 1) or next(one for one in document["series"] if one["label"] == label)
    problem = serial["problem"]
    if not isinstance(problem, Mapping):
        return str(problem)
    return ", ".join(f"{key} {value}" for key, value in problem.items())


def show(document: Document, console: Console) -> None:
    """Print a table for each problem, then Tables I to III with the values of this machine and of the paper."""
    every = list(rows(document))
    for label in paper_tables.labels(document):
        serial = find(document, label, "serial", 1)
        took = f"serial {format_time(serial['points'][0]['time_s']['median'])}" if serial else "no serial time"
        title = f"[bold]{title_of(document, label)}[/bold] ({took}; {escape(_size_of(document, label))})"
        shown = range(len(_HEADS)) if console.width >= WIDE else [_HEADS.index(head) for head in _NARROW]
        heads = [_HEADS[i] if console.width >= WIDE else _NARROW[_HEADS[i]] for i in shown]
        aligned = [head if head == "over" else f">{head}" for head in heads]
        table = sheet(*aligned, title=title, caption=_paper_words(label))
        last = None
        for one in sorted((one for one in every if one.label == label), key=lambda one: one.ranks):
            if last not in (None, one.ranks):
                table.add_section()
            last = one.ranks
            cells = _cells(one)
            table.add_row(*(cells[i] for i in shown))
        console.print(table)
    for number, numbers in _tables(document).items():
        for table in paper_tables.sheets(numbers, number, console.width):
            console.print(table)
    for table in paper_tables.profiles(document):
        console.print(table)
    for sentence in words(document):
        console.print(sentence, markup=False)
    show_missing(document, console)


def _tables(document: Mapping[str, Any]) -> dict[str, paper_tables.Numbers]:
    """Return the paper's tables by number."""
    each = (paper_tables.table_1, paper_tables.table_2, paper_tables.table_3)
    return {number: make(document) for number, make in zip(("I", "II", "III"), each, strict=True)}


def _rounds(document: Mapping[str, Any], label: str, protocol: str, n: int) -> int:
    """Return how many rounds a problem was measured over a protocol with *n* ranks."""
    one = find(document, label, protocol, n)
    return len(one["runs"]) if one else 0


def words(document: Mapping[str, Any]) -> list[str]:
    """Return a summary in sentences: the faster protocols, wrong results, and caveats."""
    found, sentences = list(rows(document)), []
    n = paper_tables.most_ranks(document)
    for label in paper_tables.labels(document):
        here = {one.protocol: one for one in found if one.label == label and one.ranks == n}
        if "via" in here and "tcp" in here:
            if min(_rounds(document, label, name, n) for name in ("via", "tcp")) < 2:
                sentences.append(
                    f"{title_of(document, label)}: one round has no range, so nothing is concluded about TCP and VIA; "
                    "more --rounds have one."
                )
                continue
            part = here["tcp"].speedup / here["via"].speedup
            said = paper()["problems"][label]["speedups"]
            if here["tcp"].low <= here["via"].high and here["via"].low <= here["tcp"].high:
                sentences.append(
                    f"{title_of(document, label)}: with {n} ranks there is no evidence of a difference between TCP and "
                    "VIA, because the ranges of the rounds overlap; more --rounds make them narrower."
                )
                continue
            sentences.append(
                f"{title_of(document, label)}: with {n} ranks the speed-up over TCP is {part:.0%} of that over VIA "
                f"(in the paper {said[0] / said[1]:.0%} on the same Ethernet)."
            )
    if any(one.crowded for one in found):
        cores = document["series"][0].get("cores", "?")
        sentences.append(
            f"* More ranks than the {cores} cores: on a quiet machine no speed-up exceeds {cores}. `Work per rank` "
            "says how the work divides all the same: the CPU time that the busiest rank spends computing, 1 being an "
            "even share of the serial program's."
        )
    if any(one.protocol == COPIES for one in found):
        sentences.append(
            "copies: the serial program on every rank at once, each for itself. Their loss against as many times "
            "the speed of one is the machine's (memory, caches, halves of cores). No parallel program can be faster."
        )
    sentences += [f"WRONG RESULT: {one}" for one in wrong(document)]
    return sentences


# -------------------------------------------------------------------------------------------------- pictures


def figure(document: Mapping[str, Any], title: str | None = None) -> Figure:
    """Draw speed-up over ranks, with a field for each problem, as figures 4 to 10 of the paper, with its values at 8.

    Raises
    ------
    ResultError
        If no problem was measured both serial and parallel.
    """
    from matplotlib.figure import Figure  # start-up time

    found, labels = list(rows(document)), paper_tables.labels(document)
    if not found:
        raise ResultError("nothing to draw: no problem was measured both serial and parallel")
    columns = min(4, len(labels))
    lines = -(-len(labels) // columns)
    width = max(4.4 * columns, 6.0)
    drawing = Figure(figsize=(width, 3.3 * lines + 0.9), layout="constrained")
    fields = drawing.subplots(lines, columns, squeeze=False)
    said, chosen = paper(), looks(paper_tables.protocols(document))
    handles: dict[str, Any] = {}  # of curves and points without a name at their line
    for axes, label in zip(fields.flat, labels, strict=False):
        mine = [one for one in found if one.label == label]
        ticks = sorted({one.ranks for one in mine} | {said["processors"]})
        (handles["linear"],) = axes.plot(ticks, ticks, color="0.75", linewidth=1, linestyle=":", label="_linear")
        for protocol in paper_tables.protocols(document):
            points = sorted((one for one in mine if one.protocol == protocol), key=lambda one: one.ranks)
            if not points:
                continue
            spread = [[one.speedup - one.low for one in points], [one.high - one.speedup for one in points]]
            axes.errorbar(
                [one.ranks for one in points], [one.speedup for one in points], yerr=spread, capsize=2, label=protocol,
                **chosen[protocol].line(),
            )  # fmt: skip
        for i, (name, value) in enumerate(zip(said["columns"], said["problems"][label]["speedups"], strict=True)):
            if value is not None:
                (handles[f"paper: {name}"],) = axes.plot(
                    [said["processors"]], [value], marker="x+12*"[i], color="black", markersize=6, linestyle="none",
                    label="_paper",
                )  # fmt: skip
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(ticks, [str(n) for n in ticks])
        high = max([one.high for one in mine] + [value for value in said["problems"][label]["speedups"] if value])
        low = min([one.low for one in mine] + [1.0])
        powers = [2.0**i for i in range(math.floor(math.log2(max(low, 1e-3))), math.ceil(math.log2(high)) + 1)]
        axes.set_yticks(powers, [f"{value:g}" for value in powers])
        axes.minorticks_off()
        axes.grid(True, alpha=0.25)
        axes.set_title(f"{title_of(document, label)} (figure {said['problems'][label]['figure']})", fontsize="medium")
        axes.set_xlabel("ranks")
        axes.set_ylabel("speed-up")
        names_at_lines(axes, 8.0)
    for axes in list(fields.flat)[len(labels) :]:
        axes.set_axis_off()
    ncols = min(len(handles), max(3, int(width / 1.9)))
    drawing.legend(
        list(handles.values()), list(handles), ncols=ncols, loc="outside lower center", fontsize="small", frameon=False
    )
    drawing.suptitle(title or "Speed-up against the serial program", parse_math=False)
    return drawing


def picture(document: Mapping[str, Any], suffix: str) -> bytes:
    """Return :func:`figure` as the bytes of a .png, .svg or .pdf."""
    buffer = io.BytesIO()
    figure(document).savefig(buffer, format=suffix.removeprefix("."), dpi=130)
    return buffer.getvalue()


def _html_rows(document: Mapping[str, Any], label: str, found: Sequence[Row]) -> str:
    mine = sorted((one for one in found if one.label == label), key=lambda one: one.ranks)
    return html_table(
        f"{title_of(document, label)}: {_size_of(document, label)}", list(_HEADS), [_cells(one) for one in mine]
    )


def html(document: Document, title: str = "viakit speedup") -> str:
    """Return a self-contained page with summary, pictures, tables and environment of a result."""
    machine, found = document["environment"], list(rows(document))
    drawn = inline(picture(document, ".svg"), "speed-up over ranks for each problem")
    compared = "".join(
        html_table(words_, heads, lines)
        for number, one in _tables(document).items()
        for words_, heads, lines in one.parts(number, len(one.heads))
    )
    facts = [[key, str(value)] for key, value in machine.items() if key != "command" and value is not None]
    missing = [f"Not measured: {one['protocol']}: {one['reason']}" for one in document["skipped"]]
    missing += [f"Failed: {one['message']}" for one in document["errors"]]
    tables = "".join(
        f"{_html_rows(document, label, found)}<p class='note'>{escape(_paper_words(label))}</p>"
        for label in paper_tables.labels(document)
    )
    picture_words = """<p class="note">Speed-up against the serial program, medians over the rounds;
bars reach from the least to the greatest ratio within a round.
Marks without a line are the paper's speed-ups on 8 processors.</p>"""
    return f"""{page_head(title, machine, words(document), missing, f"{drawn}{picture_words}")}
<h2>The paper's tables</h2>
{compared}
<h2>Numbers</h2>
<p class="note">Ranks with a star are more than there are cores. Work per rank: the CPU time that the busiest rank
spends computing, 1 being an even share of the serial program's. Karp-Flatt: the part of the work that would have to be
serial to explain the speed-up.</p>
{tables}
<h2>How it was measured</h2>
<p>In each round every protocol and number of ranks runs once, in a random order (seed {document.get("seed")}), and the
serial programs too. Measured again by: <code>{escape(document["command"])}</code></p>
{html_table("Machine", ["", ""], facts, "facts")}
</body></html>
"""
