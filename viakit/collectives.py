"""Collectives measured: broadcast, reduce, allreduce, allgather and alltoall, beside those of each MPI found.

::

    document = measure(["allreduce"], ranks=[2, 4], sizes=[8, 65536])

What there is, :func:`algorithms` lists (csrc/coll): through memory that a host shares, by RDMA write, and each of those
by messages as well. All that are compared at one number of ranks are kept open together and take turns in random order,
so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit._words import counted
from viakit.barrier import _document, _draw_curve, _Entry, _open_crews, _take_turns, _tell_missing
from viakit.barrier import check as check_barrier
from viakit.measure import plot
from viakit.measure.crew import Crew
from viakit.measure.ending import Ending
from viakit.measure.result import Document, ResultError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["OPERATIONS", "algorithms", "figure", "find", "measure", "show"]

OPERATIONS = ("bcast", "reduce", "allreduce", "allgather", "alltoall")
USUAL_SIZES = (8, 1024, 65536, 1048576)
MAX_BYTES = 1 << 26


def algorithms() -> dict[str, dict[str, str]]:
    """Return what there is: name of the operation to a dict from algorithm to what it does."""
    from viakit import _core

    return {operation: names for operation, names in _core.collective_algorithms().items() if operation in OPERATIONS}


class _Point(_Entry):
    """One point in the making: an algorithm of an operation, with so many bytes."""

    def __init__(self, crew: Crew, protocol: str, algorithm: str, operation: str, nbytes: int) -> None:
        super().__init__(crew, protocol, algorithm)
        self.operation, self.nbytes = operation, nbytes

    def point(self) -> dict[str, Any]:
        """Return what the result holds of it."""
        point = {**self._point(), "nbytes": self.nbytes, "per_run": self.n}
        if self.algorithm == "default" and self.crew.stands_for:
            point["stands_for"] = self.crew.stands_for
        return point


def _check(
    operations: Sequence[str], sizes: Sequence[int], chosen: Sequence[str] | None, **others: Any
) -> dict[str, list[str]]:
    """Raise ValueError for what makes no sense; returns the algorithms that are asked for, of each operation."""
    known = algorithms()
    for name in operations:
        if name not in known:
            raise ValueError(f"no operation is called {name!r}; there are {', '.join(known)}")
    if not operations or not sizes or any(not 0 <= size <= MAX_BYTES for size in sizes):
        raise ValueError(f"sizes are {list(sizes)}; right would be bytes from 0 to {MAX_BYTES}")
    if any(size % 8 for size in sizes) and {"reduce", "allreduce"} & set(operations):
        raise ValueError(f"sizes are {list(sizes)}; reductions add doubles: right would be multiples of 8")
    everything = {name for operation in operations for name in known[operation]}
    for name in chosen or ():
        if name not in everything:
            raise ValueError(f"no algorithm is called {name!r}; there are {', '.join(sorted(everything))}")
    check_barrier(algorithms=None, **others)
    return {operation: [n for n in known[operation] if chosen is None or n in chosen] for operation in operations}


def measure(
    operations: Sequence[str] = OPERATIONS,
    *,
    ranks: Sequence[int] = (4,),
    sizes: Sequence[int] = USUAL_SIZES,
    algorithms: Sequence[str] | None = None,
    hosts: int = 1,
    protocol: str = "via",
    with_mpi: bool = True,
    seconds: float = 30.0,
    seed: int | None = None,
    mtu: int = 1500,
    bind: str = "core",
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
) -> Document:
    """Measure collectives, and those of each MPI that is here.

    Parameters
    ----------
    operations : sequence of str
        Of :data:`OPERATIONS`.
    ranks : sequence of int
        Numbers of ranks.
    sizes : sequence of int
        Bytes: of the buffer, for allgather and alltoall of what each rank gives (to each). Reductions add doubles.
    algorithms : sequence of str, optional
        Names from :func:`algorithms`; those that a group cannot do are passed over. Default: all.
    hosts, protocol, with_mpi, seconds, seed, mtu, bind, on_progress
        As for :func:`viakit.barrier.measure`.

    Returns
    -------
    dict
        A ``viakit.result/1`` whose series carry ``operation``, ``algorithm``, ``ranks`` and ``hosts``, with a point
        for each size. A sample is the mean of a run of consecutive operations, over all ranks; the root moves on by one
        from each to the next. Interrupted (Ctrl-C), or when a rank fails in the middle, what had been measured, with
        ``complete`` false; ``errors`` says what failed.

    Raises
    ------
    ValueError
        For arguments that make no sense.
    MeasureError, TestbedError
        If ranks or hosts cannot be started, or fail, and nothing has been measured yet.
    """
    ranks, sizes = list(dict.fromkeys(ranks)), list(dict.fromkeys(sizes))
    where: dict[str, Any] = {"ranks": ranks, "hosts": hosts, "protocol": protocol, "bind": bind}
    asked = _check(operations, sizes, algorithms, seconds=seconds, **where)
    seed = secrets.randbits(31) if seed is None else seed
    chance = random.Random(seed)
    skipped: dict[str, str] = {}
    finished: dict[tuple[Any, ...], dict[str, Any]] = {}
    began = time.monotonic()
    total, number = len(ranks) * len(asked) * len(sizes), 0
    with Ending(lambda: finished) as ending:
        for n in ranks:
            ending.doing(what=f"{counted(n, 'rank')}")
            with contextlib.ExitStack() as stack:
                n_hosts = n if hosts == 0 else hosts
                crew, mpis, link = _open_crews(stack, n, n_hosts, protocol, with_mpi, mtu, bind, skipped)
                for operation, names in asked.items():
                    possible = [name for name in names if name in crew.operations[operation]]
                    for nbytes in sizes:
                        entries = [_Point(crew, protocol, name, operation, nbytes) for name in possible]
                        function = f"MPI_{operation.capitalize()}"
                        entries += [_Point(theirs, name, function, operation, nbytes) for name, theirs in mpis.items()]
                        what = f"{counted(n, 'rank')}, {operation}, {counted(nbytes, 'byte')}"

                        def tell(part: float, number: int = number, what: str = what) -> None:
                            if on_progress is not None:
                                on_progress((number + part) / total, what)

                        try:
                            _take_turns(entries, seconds / total, 0.0, chance, tell, ending)
                        finally:
                            for one in entries:
                                if one.bursts:
                                    _add(finished, one, link)
                        number += 1
    series = list(finished.values())
    return _document(series, ending, skipped, seed=seed, seconds=seconds, began=began, command=command)


def _add(finished: dict[tuple[Any, ...], dict[str, Any]], one: _Point, link: str) -> None:
    key = (one.crew.n_ranks, one.operation, one.protocol, one.algorithm)
    series = finished.setdefault(
        key,
        {
            "protocol": one.protocol,
            "operation": one.operation,
            "algorithm": one.algorithm,
            "ranks": one.crew.n_ranks,
            "hosts": one.crew.n_hosts,
            "link": link,
            "level": "c",
            "skew_s": 0.0,
            "info": dict(one.crew.info),
            "points": [],
        },
    )
    series["points"].append(one.point())


# ---------------------------------------------------------------------------------------------- reading


def find(
    document: Mapping[str, Any], operation: str, algorithm: str, ranks: int, nbytes: int, protocol: str | None = None
) -> dict[str, Any] | None:
    """Return the point of an algorithm, or None. Of MPI the algorithm is the function: "MPI_Bcast"."""
    for one in document["series"]:
        if (one.get("operation"), one.get("algorithm"), one.get("ranks")) == (operation, algorithm, ranks):
            for point in one["points"]:
                if point["nbytes"] == nbytes and protocol in (None, one["protocol"]):
                    return point
    return None


def _where(ranks: int, hosts: int) -> str:
    """Return the words for so many ranks on so many hosts."""
    return counted(ranks, "rank") + (f" on {counted(hosts, 'host')}" if hosts > 1 else "")


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as tables: one per operation and place of the ranks, a line per algorithm, a column per size."""
    from rich import box
    from rich.table import Table

    from viakit.measure.ladder import format_size
    from viakit.measure.table import format_time

    groups = dict.fromkeys((one["operation"], one["ranks"], one["hosts"]) for one in document["series"])
    for operation, ranks, hosts in groups:
        group = (operation, ranks, hosts)
        lines = [one for one in document["series"] if (one["operation"], one["ranks"], one["hosts"]) == group]
        sizes = sorted({point["nbytes"] for one in lines for point in one["points"]})
        title = f"[bold]{operation}[/bold], {_where(ranks, hosts)}"
        sheet = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
        sheet.add_column("algorithm")
        for size in sizes:
            sheet.add_column(format_size(size), justify="right")
        best = {
            size: min(p["time_s"]["median"] for one in lines for p in one["points"] if p["nbytes"] == size)
            for size in sizes
        }
        for one in lines:
            times = {point["nbytes"]: point["time_s"]["median"] for point in one["points"]}
            name = f"{one['algorithm']} ({one['protocol']})" if one["protocol"].startswith("mpi") else one["algorithm"]
            cells = [format_time(times[size]) if size in times else "" for size in sizes]
            marked = [f"[bold]{c}[/bold]" if times.get(s) == best[s] else c for c, s in zip(cells, sizes, strict=True)]
            sheet.add_row(name, *marked)
        console.print(sheet)
    _tell_missing(document, console)


def figure(documents: Iterable[Document], *, title: str | None = None) -> Figure:
    """Draw time against size: a panel per operation and numbers of ranks and hosts, a curve per algorithm.

    The bands are the 5th to the 90th percentile.

    Raises
    ------
    ResultError
        If there is nothing to draw.
    """
    panels: dict[tuple[str, int, int], list[dict[str, Any]]] = {}
    for document in documents:
        for one in document["series"]:
            if one.get("operation") in OPERATIONS and one["points"]:
                panels.setdefault((one["operation"], one["ranks"], one["hosts"]), []).append(one)
    if not panels:
        raise ResultError("nothing to draw: the result has no collectives with data")
    drawing, fields = plot.panels(len(panels))
    for axes, ((operation, n, hosts), lines) in zip(fields, panels.items(), strict=True):
        for one in lines:
            points = sorted((p for p in one["points"] if p["nbytes"]), key=lambda p: p["nbytes"])
            x = [p["nbytes"] for p in points]
            label = one["protocol"] if one["protocol"].startswith("mpi") else one["algorithm"]
            _draw_curve(axes, x, [p["time_s"] for p in points], label, one["protocol"])
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_title(f"{operation}, {_where(n, hosts)}")
        axes.set_xlabel("bytes")
        axes.set_ylabel("time, µs")
        axes.grid(True, which="both", alpha=0.25)
        axes.legend(fontsize="x-small")
    if title:
        drawing.suptitle(title, parse_math=False)
    return drawing
