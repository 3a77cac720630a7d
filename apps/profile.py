"""Profile of a run: for each call of a rank, how often it was made, its time, the part spent waiting, and its bytes.

A receive waits from its begin until its sender begins to send: nothing can arrive before. A barrier, and a collective
operation in which each rank needs data from each other, waits until the last rank enters it. The rest of a call's time
is the library's own: copies, system calls, and the way of the message. :func:`waiting_ns` computes the waits on rank 0
from the times of all ranks, which are of one clock, as those of one machine and of a testbed are. With several clocks,
waits are unknown.

Lobosco et al. (section III.C.1) profiled SOR with MPE: it was MPI_Recv that took longer over MVICH.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet

if TYPE_CHECKING:
    from rich.table import Table

    from viakit.apps.harness import RankReport

__all__ = ["Call", "Made", "Summary", "comparison", "of_runs", "summaries", "table", "total"]

# Operations that end on no rank before each rank has begun.
TOGETHER = ("Barrier", "Allgather", "Allgatherv", "Allreduce", "Alltoall", "Alltoallv")


@dataclass(frozen=True)
class Call:
    """One call of a rank.

    Attributes
    ----------
    name : str
        Name of the method, for requests with their direction: "Recv", "Wait, receive".
    begin_ns, end_ns : int
        Its time on the machine's monotonic clock.
    nbytes : int
        Bytes that it sent.
    arrived : tuple or None
        Message that it received: its source, its tag, and the number of messages of both before it.
    """

    name: str
    begin_ns: int
    end_ns: int
    nbytes: int = 0
    arrived: tuple[int, int, int] | None = None


class Made:
    """Calls of a rank, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def add(self, name: str, begin_ns: int, end_ns: int, nbytes: int = 0) -> None:
        """Add a call that has ended."""
        self.calls.append(Call(name, begin_ns, end_ns, nbytes))

    def arrived(self, source: int, tag: int, number: int) -> None:
        """Record that the last call has received a message."""
        if self.calls:
            last = self.calls[-1]
            self.calls[-1] = Call(last.name, last.begin_ns, last.end_ns, last.nbytes, (source, tag, number))


@dataclass
class Summary:
    """All calls of one name, of a rank or of all ranks.

    Attributes
    ----------
    count, nbytes : int
        Number of calls, and bytes that they sent.
    seconds, waiting_s : float or None
        Time in the calls, and the part in which they waited for another rank; None if it is unknown.
    """

    count: int = 0
    seconds: float = 0.0
    waiting_s: float | None = 0.0
    nbytes: int = 0

    def add(self, other: Summary) -> None:
        """Add other calls of the same name."""
        self.count += other.count
        self.seconds += other.seconds
        self.nbytes += other.nbytes
        unknown = self.waiting_s is None or other.waiting_s is None
        self.waiting_s = None if unknown else (self.waiting_s or 0.0) + (other.waiting_s or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """Return the figures for a result file."""
        return {"count": self.count, "seconds": self.seconds, "waiting_s": self.waiting_s, "nbytes": self.nbytes}


# ---------------------------------------------------------------------------------------------------- computing


def _entries(reports: Sequence[RankReport]) -> dict[str, list[int]]:
    """Return for each operation among all, by name, the time at which the last rank entered it: one for each turn."""
    last: dict[str, list[int]] = defaultdict(list)
    for report in reports:
        turns: dict[str, int] = defaultdict(int)
        for call in report.calls:
            if call.name not in TOGETHER:
                continue
            turn, times = turns[call.name], last[call.name]
            turns[call.name] += 1
            if turn == len(times):
                times.append(call.begin_ns)
            times[turn] = max(times[turn], call.begin_ns)
    return last


def waiting_ns(reports: Sequence[RankReport]) -> Iterator[list[int]]:
    """Yield for each rank the waiting time of each of its calls, in nanoseconds."""
    sent = {(report.rank, one.peer, one.tag, one.number): one.time_ns for report in reports for one in report.sent}
    last = _entries(reports)
    for report in reports:
        turns: dict[str, int] = defaultdict(int)
        waits = []
        for call in report.calls:
            until = 0
            if call.arrived is not None:
                source, tag, number = call.arrived
                until = sent.get((source, report.rank, tag, number), 0)
            elif call.name in TOGETHER:
                until = last[call.name][turns[call.name]]
                turns[call.name] += 1
            waits.append(max(0, min(until, call.end_ns) - call.begin_ns))
        yield waits


def summaries(reports: Sequence[RankReport], one_clock: bool = True) -> list[dict[str, Summary]]:
    """Return for each rank the summary of its calls by name; without *one_clock* waits are unknown."""
    found = []
    for report, waits in zip(reports, waiting_ns(reports), strict=True):
        mine: dict[str, Summary] = {}
        for call, wait in zip(report.calls, waits, strict=True):
            seconds = (call.end_ns - call.begin_ns) * 1e-9
            one = Summary(1, seconds, wait * 1e-9 if one_clock else None, call.nbytes)
            mine.setdefault(call.name, Summary()).add(one)
        found.append(mine)
    return found


def total(ranks: Iterable[Mapping[str, Summary]]) -> dict[str, Summary]:
    """Return the sums over all ranks, the call with the most time first."""
    every: dict[str, Summary] = {}
    for mine in ranks:
        for name, one in mine.items():
            every.setdefault(name, Summary()).add(one)
    return dict(sorted(every.items(), key=lambda item: -item[1].seconds))


def of_runs(runs: Sequence[Mapping[str, Any]]) -> dict[str, Summary]:
    """Return the sums over the ranks of a run of a result file, the one with the median time."""
    if not runs:
        return {}
    middle = sorted(runs, key=lambda run: run["wall_s"])[(len(runs) - 1) // 2]
    return total({name: Summary(**one) for name, one in rank.get("calls", {}).items()} for rank in middle["ranks"])


# ------------------------------------------------------------------------------------------------------ tables


def _share(seconds: float | None, wall_s: float) -> str:
    return "-" if seconds is None or not wall_s else f"{seconds / wall_s:.1%}"


def table(every: Mapping[str, Summary], walls_s: float) -> Table:
    """Return the calls of all ranks as a table.

    Parameters
    ----------
    every : mapping
        Summaries by name, as from :func:`total`.
    walls_s : float
        Sum of the wall times of all ranks, of which the table states the parts.
    """
    from viakit.measure.table import format_time  # start-up time: only rank 0 prints

    made = sheet("call", ">calls", ">time", ">of wall", ">waiting", ">the rest, each", ">KiB sent")
    for name, one in every.items():
        rest = (one.seconds - (one.waiting_s or 0.0)) / one.count
        made.add_row(
            name, str(one.count), format_time(one.seconds), _share(one.seconds, walls_s),
            "-" if one.waiting_s is None else format_time(one.waiting_s), format_time(rest),
            f"{one.nbytes / 1024:.1f}" if one.nbytes else "",
        )  # fmt: skip
    return made


def comparison(title: str, columns: Mapping[str, Mapping[str, Summary]]) -> Table:
    """Return a table of several libraries: a row for each call, and for each library the time of one call.

    A cell is the mean time of a call in all, and after a slash that without the waiting for other ranks.
    """
    from viakit.measure.table import format_time  # start-up time: only rank 0 prints

    made = sheet("call", ">calls", *(f">{name}" for name in columns), title=title)
    for name in total(columns.values()):
        there = {column: every[name] for column, every in columns.items() if name in every}
        cells = []
        for column in columns:
            one = there.get(column)
            if one is None:
                cells.append("-")
                continue
            rest = "-" if one.waiting_s is None else format_time((one.seconds - one.waiting_s) / one.count)
            cells.append(f"{format_time(one.seconds / one.count)} / {rest}")
        made.add_row(name, "/".join(dict.fromkeys(str(one.count) for one in there.values())), *cells)
    return made
