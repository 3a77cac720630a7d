"""The paper's three tables (Lobosco et al.), with a result of `viakit speedup` beside the published figures.

Table I has the times of the serial programs and their standard deviations. Table II has the messages of the parallel
ones. Table III has their speed-ups on 8 processors, with the paper's five columns. The bandwidth per CPU in Table II
is the bytes of all ranks over their number and the wall time. The paper divides by the time over MPICH on Ethernet.
Here each protocol has a column.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viakit.apps import profile
from viakit.apps.speedup import PROBLEMS, SMALL, find, paper, rows, title_of
from viakit.base.sheet import sheet

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Numbers", "labels", "most_ranks", "profiles", "protocols", "sheets", "table_1", "table_2", "table_3"]

WIDE = 100  # columns of a terminal for tables of many columns
TITLE_WIDTH, COLUMN_WIDTH = 20, 13  # of the tables here: the first column, and the others at most
KB = 1024


@dataclass(frozen=True)
class Numbers:
    """One of the tables: heads, the first of the paper's own columns, rows, and the published problem of each row."""

    title: str
    heads: list[str]
    cut: int
    lines: list[list[str]]
    published: list[str]

    def parts(self, number: str, most: int) -> list[tuple[str, list[str], list[list[str]]]]:
        """Return titles, heads and rows of tables with at most *most* columns after the first.

        It is one table if the columns fit and the problems measured have the published sizes. Otherwise the paper's
        columns have tables of their own, with the published problems at their rows.
        """
        ours, paper_words = range(1, self.cut), f"Table {number} of the paper"
        measured = [line[0] for line in self.lines]
        small = any(one.endswith(SMALL) for one in measured)
        split = [("here", ours, measured), (paper_words, range(self.cut, len(self.heads)), self.published)]
        if len(self.heads) - 1 <= most and not small:
            split = [(f"here, and {paper_words}", range(1, len(self.heads)), measured)]
        found = []
        for words, columns, names in split:
            for i in range(0, len(columns), most):
                some = columns[i : i + most]
                rows_ = [[name, *(line[j] for j in some)] for name, line in zip(names, self.lines, strict=True)]
                found.append((f"{self.title}: {words}", [self.heads[0], *(self.heads[j] for j in some)], rows_))
        return found


def labels(document: Mapping[str, Any]) -> list[str]:
    """Return the problems of a result, in the order of the paper."""
    there = {one["label"] for one in document["series"]}
    return [label for label in PROBLEMS if label in there]


def protocols(document: Mapping[str, Any]) -> list[str]:
    """Return the protocols of a result in their order."""
    return list(dict.fromkeys(one["protocol"] for one in document["series"] if one["protocol"] != "serial"))


def _published(label: str) -> str:
    """Return a problem's name and size in the paper."""
    said = paper()["problems"][label]
    return f"{said['title']}, {said['size']}"


def most_ranks(document: Mapping[str, Any]) -> int:
    """Return 8 if it was measured, as in the paper; otherwise the largest number of ranks."""
    there = {one["ranks"] for one in document["series"] if one["protocol"] != "serial"}
    return paper()["processors"] if paper()["processors"] in there else max(there, default=1)


def table_1(document: Mapping[str, Any]) -> Numbers:
    """Return Table I: times of the serial programs, and their standard deviations in percent."""
    lines, named = [], []
    for label in labels(document):
        serial = find(document, label, "serial", 1)
        if serial is None:
            continue
        walls = [run["wall_s"] for run in serial["runs"]]
        mean = statistics.fmean(walls)
        spread = f"{100 * statistics.stdev(walls) / mean:.2f}" if len(walls) > 1 and mean else "-"
        said = paper()["problems"][label]
        published = [f"{said['sequential_ms']:.1f}", f"{said['deviation_percent']:.2f}"]
        named.append(_published(label))
        lines.append([title_of(document, label), f"{mean * 1e3:.1f}", spread, *published])
    heads = ["application", "ms here", "deviation, % here", "ms, paper", "deviation, %, paper"]
    return Numbers("Sequential times, means of the rounds", heads, 3, lines, named)


def table_2(document: Mapping[str, Any]) -> Numbers:
    """Return Table II: messages of all ranks, their sizes, and the bandwidth that each rank uses."""
    n, names = most_ranks(document), protocols(document)
    found = {(one.label, one.protocol): one for one in rows(document) if one.ranks == n}
    heads = ["application", f"messages, {n} here", "KB here", "KB each here"]
    heads += [f"MB/s per CPU, {name}" for name in names] + ["messages, 8", "KB, 8", "KB each, 8", "MB/s per CPU, 8"]
    lines, named = [], []
    for label in labels(document):
        mine = {name: found[label, name] for name in names if (label, name) in found and found[label, name].messages}
        first = next(iter(mine.values()), None)
        sent = ["-"] * 3
        if first is not None:
            sent = [f"{first.messages}", f"{first.nbytes / KB:.1f}", f"{first.nbytes / KB / first.messages:.2f}"]
        used = [f"{mine[name].per_cpu / KB**2:.3g}" if name in mine else "-" for name in names]
        said = paper()["problems"][label]
        published = [f"{said['messages']}", f"{said['kilobytes']:g}", f"{said['mean_kilobytes']:.2f}"]
        named.append(_published(label))
        lines.append([title_of(document, label), *sent, *used, *published, f"{said['megabytes_per_s']:.2f}"])
    return Numbers("Messages", heads, len(heads) - 4, lines, named)


def table_3(document: Mapping[str, Any]) -> Numbers:
    """Return Table III: speed-ups on 8 processors, or on the largest number of ranks measured."""
    n, names, said = most_ranks(document), protocols(document), paper()
    found = {(one.label, one.protocol): one for one in rows(document) if one.ranks == n}
    heads = ["application", *(f"{name}, {n} here" for name in names), *(f"{name}, 8" for name in said["columns"])]
    lines, named = [], []
    for label in labels(document):
        mine = [found.get((label, name)) for name in names]
        published = ["NA" if value is None else f"{value:.2f}" for value in said["problems"][label]["speedups"]]
        named.append(_published(label))
        lines.append([title_of(document, label), *(f"{one.speedup:.2f}" if one else "-" for one in mine), *published])
    return Numbers("Speed-ups", heads, len(heads) - len(said["columns"]), lines, named)


def sheets(numbers: Numbers, number: str, width: int = WIDE) -> list[Table]:
    """Return a table for the terminal, with the paper's number for it, or several as in :meth:`Numbers.parts`."""
    made = []
    for title, heads, lines in numbers.parts(number, max(1, (width - TITLE_WIDTH) // COLUMN_WIDTH)):
        table = sheet(heads[0], *(f">{head}" for head in heads[1:]), title=f"[bold]{title}[/bold]")
        for line in lines:
            table.add_row(*line)
        made.append(table)
    return made


def profiles(document: Mapping[str, Any]) -> list[Table]:
    """Return for each profiled problem the mean time of each call over each protocol."""
    n, made = most_ranks(document), []
    for label in labels(document):
        columns = {}
        for name in protocols(document):
            one = find(document, label, name, n)
            every = profile.of_runs(one["runs"]) if one is not None else {}
            if every:
                columns[name] = every
        if columns:
            what = f"{title_of(document, label)}, {n} ranks"
            made.append(profile.comparison(f"[bold]{what}: mean time of a call / without its waiting[/bold]", columns))
    return made
