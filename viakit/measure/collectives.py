"""Measurement of collectives: broadcast, reduce, allreduce, allgather and alltoall, compared with each installed MPI.

::

    document = measure(["allreduce"], ranks=[2, 4], sizes=[8, 65536])

:func:`algorithms` lists the algorithms (csrc/coll): by shared memory within a host, by RDMA write, and by messages.
They are measured in turns (:mod:`.crews`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.launch import mpi_library as mpi
from viakit.measure import crews, plot
from viakit.measure.barrier import drawn_as
from viakit.measure.crew import Crew
from viakit.measure.crews import Entry, Placement, draw_curve, show_missing
from viakit.measure.ladder import format_size
from viakit.measure.look import looks
from viakit.measure.result import Document, ResultError
from viakit.measure.table import format_time
from viakit.measure.turns import Turns

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["OPERATIONS", "algorithms", "figure", "find", "measure", "show"]

OPERATIONS = ("bcast", "reduce", "allreduce", "allgather", "alltoall")
USUAL_SIZES = (8, 1024, 65536, 1048576)
MAX_BYTES = 1 << 26


def algorithms() -> dict[str, dict[str, str]]:
    """Return the algorithms of each operation: a dict from operation to a dict from algorithm to description."""
    from viakit import _core  # start-up time

    return {operation: names for operation, names in _core.collective_algorithms().items() if operation in OPERATIONS}


class _Entry(Entry):
    """A collective on a crew."""

    def point(self) -> dict[str, Any]:
        """Return the point for the result, with the algorithm that the default stands for at this size."""
        default = self.algorithm == "default" and self.crew.stands_for
        return {**super().point(), "per_run": self.n, **({"stands_for": default} if default else {})}


def _check(operations: Sequence[str], sizes: Sequence[int], chosen: Sequence[str] | None) -> dict[str, list[str]]:
    """Raise ValueError for invalid arguments; return the requested algorithms of each operation."""
    known = algorithms()
    for name in operations:
        if name not in known:
            raise ValueError(f"unknown operation {name!r}; expected one of {', '.join(known)}")
    if not operations or not sizes or any(not 0 <= size <= MAX_BYTES for size in sizes):
        raise ValueError(f"sizes are {list(sizes)}; expected bytes from 0 to {MAX_BYTES}")
    if any(size % 8 for size in sizes) and {"reduce", "allreduce"} & set(operations):
        raise ValueError(f"sizes are {list(sizes)}; reductions add doubles and need multiples of 8")
    everything = {name for operation in operations for name in known[operation]}
    for name in chosen or ():
        if name not in everything:
            raise ValueError(f"unknown algorithm {name!r}; expected one of {', '.join(sorted(everything))}")
    return {operation: [n for n in known[operation] if chosen is None or n in chosen] for operation in operations}


def measure(
    operations: Sequence[str] = OPERATIONS,
    *,
    ranks: Sequence[int] = (4,),
    sizes: Sequence[int] = USUAL_SIZES,
    algorithms: Sequence[str] | None = None,
    seconds: float = 30.0,
    seed: int | None = None,
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    **where: Any,
) -> Document:
    """Measure collectives, and those of each installed MPI.

    Parameters
    ----------
    operations : sequence of str
        Names from :data:`OPERATIONS`.
    ranks : sequence of int
        Numbers of ranks.
    sizes : sequence of int
        Bytes of the buffer; for allgather and alltoall, bytes that each rank contributes (to each). Reductions add
        doubles.
    algorithms : sequence of str, optional
        Names from :func:`algorithms`. Algorithms that a group does not support are left out. Default: all.
    seconds, seed, command, on_progress, **where
        As for :func:`viakit.measure.barrier.measure`.

    Returns
    -------
    dict
        A ``viakit.result/1`` whose series have ``operation``, ``algorithm``, ``ranks`` and ``hosts``, with a point for
        each size. A sample is the mean of a run of consecutive operations, over all ranks; the root moves on by one
        rank after each operation. After an interrupt (Ctrl-C), or if a rank fails, the dict has the measurements so
        far, with ``complete`` false; ``errors`` names the failure.

    Raises
    ------
    ValueError
        If an argument is invalid.
    MeasureError, TestbedError
        If ranks or hosts cannot be started, or fail before the first measurement.
    """
    ranks, sizes, placed = list(dict.fromkeys(ranks)), list(dict.fromkeys(sizes)), Placement(**where)
    asked = _check(operations, sizes, algorithms)
    crews.check(ranks, placed, seconds)
    turns = Turns(seconds, seed, command=command)

    def parts(own: list[Crew], mpis: dict[str, Crew]) -> list[tuple[str, list[Entry]]]:
        every: list[tuple[str, list[Entry]]] = []
        for operation, nbytes in ((operation, nbytes) for operation in asked for nbytes in sizes):
            function = f"MPI_{operation.capitalize()}"
            rows = [
                (crew, crew.protocol, name)
                for crew in own
                for name in asked[operation]
                if name in crew.operations[operation]
            ]
            rows += [(peer, name, function) for name, peer in mpis.items() if peer.operations[operation]]
            every.append((f"{operation}, {counted(nbytes, 'byte')}", [_Entry(*row, operation, nbytes) for row in rows]))
        return every

    measured = crews.Crews(placed, turns, on_progress).measure(ranks, parts, len(asked) * len(sizes))
    return turns.document(measured)


# ---------------------------------------------------------------------------------------------- display


def find(
    document: Mapping[str, Any], operation: str, algorithm: str, ranks: int, nbytes: int, protocol: str | None = None
) -> dict[str, Any] | None:
    """Return the point of an algorithm, or None. The algorithm of MPI is its function: "MPI_Bcast"."""
    for one in document["series"]:
        if (one.get("operation"), one.get("algorithm"), one.get("ranks")) == (operation, algorithm, ranks):
            for point in one["points"]:
                if point["nbytes"] == nbytes and protocol in (None, one["protocol"]):
                    return point
    return None


def _where(ranks: int, hosts: int) -> str:
    """Return a text for ranks on hosts."""
    return counted(ranks, "rank") + (f" on {counted(hosts, 'host')}" if hosts > 1 else "")


def _named(series: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the protocols that are named beside their algorithms: MPI's, and viakit's if there are several."""
    protocols = {one["protocol"] for one in series}
    mpis = {name for name in protocols if mpi.is_mpi(name)}
    return protocols if len(protocols - mpis) > 1 else mpis


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as tables: one per operation and placement, with a row per algorithm and a column per size."""
    groups = dict.fromkeys((one["operation"], one["ranks"], one["hosts"]) for one in document["series"])
    named = _named(document["series"])
    for operation, ranks, hosts in groups:
        group = (operation, ranks, hosts)
        lines = [one for one in document["series"] if (one["operation"], one["ranks"], one["hosts"]) == group]
        sizes = sorted({point["nbytes"] for one in lines for point in one["points"]})
        heads = [f">{format_size(size)}" for size in sizes]
        table = sheet("algorithm", *heads, title=f"[bold]{operation}[/bold], {_where(ranks, hosts)}")
        best = {
            size: min(p["time_s"]["median"] for one in lines for p in one["points"] if p["nbytes"] == size)
            for size in sizes
        }
        for one in lines:
            times = {point["nbytes"]: point["time_s"]["median"] for point in one["points"]}
            name = f"{one['algorithm']} ({one['protocol']})" if one["protocol"] in named else one["algorithm"]
            cells = [format_time(times[size]) if size in times else "" for size in sizes]
            marked = [f"[bold]{c}[/bold]" if times.get(s) == best[s] else c for c, s in zip(cells, sizes, strict=True)]
            table.add_row(name, *marked)
        console.print(table)
    show_missing(document, console)


def figure(documents: Iterable[Document], *, title: str | None = None) -> Figure:
    """Draw time over size: one panel per operation and numbers of ranks and hosts, one curve per algorithm.

    The bands are the 5th to the 90th percentile.

    Raises
    ------
    ResultError
        If the result has no collectives.
    """
    panels: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for document in documents:
        for one in document["series"]:
            if one.get("operation") in OPERATIONS and one["points"]:
                panels.setdefault((one["operation"], one["ranks"], one["hosts"]), []).append(one)
    if not panels:
        raise ResultError("the result has no collectives with data to draw")
    drawing, fields = plot.panels(len(panels))
    named = _named([one for lines in panels.values() for one in lines])
    for axes, ((operation, n, hosts), lines) in zip(fields, panels.items(), strict=True):
        chosen = looks(drawn_as(one["protocol"], one["algorithm"], named=one["protocol"] in named) for one in lines)
        for one in lines:
            points = sorted((p for p in one["points"] if p["nbytes"]), key=lambda p: p["nbytes"])
            x = [p["nbytes"] for p in points]
            label = drawn_as(one["protocol"], one["algorithm"], named=one["protocol"] in named)
            draw_curve(axes, x, [p["time_s"] for p in points], label, chosen[label])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        ticks = sorted({p["nbytes"] for one in lines for p in one["points"] if p["nbytes"]})
        ticks = ticks[:: 1 + len(ticks) // 10]
        axes.set_xticks(ticks, [format_size(n) for n in ticks], rotation=30, ha="right")
        axes.minorticks_off()
        plot.times(axes.yaxis)
        axes.set_title(f"{operation}, {_where(n, hosts)}")
        axes.set_xlabel("message size")
        axes.set_ylabel("time, µs")
        axes.grid(True, which="both", alpha=0.25)
        plot.names_at_lines(axes, size=8)
    if title:
        drawing.suptitle(title, parse_math=False)
    return drawing
