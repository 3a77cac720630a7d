"""Measurement of barriers: figures 4 and 5 of the paper on the RDMA barrier, compared with MPI_Barrier.

::

    document = measure(ranks=[2, 4, 8], algorithms=["rdma", "message"], hosts=2)

The algorithms (csrc/coll) are those of Gupta, Tipparaju, Nieplocha and Panda, "Efficient Barrier using Remote Memory
Operations on VIA-Based Clusters", under the paper's names; :func:`algorithms` lists them. They are measured in turns
(:mod:`.crews`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.launch import mpi_library as mpi
from viakit.measure import crews, plot, stats
from viakit.measure.crew import TURN, Crew
from viakit.measure.crews import BINDINGS, MPIS, PROTOCOLS, Entry, Placement, draw_curve, show_missing
from viakit.measure.look import looks
from viakit.measure.result import Document, ResultError
from viakit.measure.table import format_ratio, format_time
from viakit.measure.turns import Turns

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = [
    "BINDINGS",
    "PROTOCOLS",
    "algorithms",
    "best_mpi",
    "check",
    "drawn_as",
    "figure",
    "find",
    "is_collective",
    "measure",
    "ratio",
    "show",
]

USUAL_LOCAL = ("default", "flat", "flags", "counter", "rdma", "message", "dissemination", "gather")
USUAL_HOSTS = (
    *("default", "overall", "overall-gather", "rdma", "rdma-dissemination", "rdma-gather"),
    *("message", "message-gather", "dissemination", "gather"),
)


def algorithms() -> dict[str, str]:
    """Return the barrier algorithms: a dict from name to description, with the section of the paper."""
    from viakit import _core  # start-up time

    return _core.barrier_algorithms()


def is_collective(document: Mapping[str, Any]) -> bool:
    """Return whether a result holds collectives (series with an ``algorithm``) and not transfers."""
    return any("algorithm" in one for one in document["series"])


class _Entry(Entry):
    """A barrier on a crew."""

    def __init__(self, crew: Crew, protocol: str, algorithm: str, operation: str = "barrier") -> None:
        super().__init__(crew, protocol, algorithm, operation)

    def info(self) -> dict[str, Any]:
        """Return the properties of the series, with the algorithm that the default stands for."""
        default = {"stands_for": self.crew.default} if self.algorithm == "default" and self.crew.default else {}
        return super().info() | {"barriers_per_run": self.n} | default

    def series(self, skew_s: float) -> dict[str, Any]:
        """Return the series for the result, in which a turn of the scheduler stands beside the barriers."""
        return super().series(skew_s) | {"operation": "barrier"}


class _Turn(_Entry):
    """A turn of the scheduler: the lower limit of a barrier if ranks share cores."""

    def __init__(self, crew: Crew) -> None:
        super().__init__(crew, "scheduler", TURN, TURN)

    def subject(self) -> tuple[str, str, int]:
        """Return the subject of an error, which is the crew."""
        return self.crew.protocol, "barrier, a turn of the scheduler", 0


def check(
    ranks: Sequence[int],
    algorithms: Sequence[str] | None,
    hosts: int,
    protocol: str,
    seconds: float,
    bind: str = "core",
    machine: str | None = None,
) -> None:
    """Raise ValueError for invalid arguments of :func:`measure`, without starting anything."""
    _check(ranks, algorithms, Placement(hosts, protocol, bind=bind, machine=machine), seconds)


def _check(ranks: Sequence[int], chosen: Sequence[str] | None, where: Placement, seconds: float) -> None:
    known = algorithms()
    for name in chosen or ():
        if name not in known:
            raise ValueError(f"unknown barrier {name!r}; expected one of {', '.join(known)}")
    crews.check(ranks, where, seconds)


def measure(
    ranks: Sequence[int] = (2, 4, 8, 16),
    *,
    algorithms: Sequence[str] | None = None,
    seconds: float = 20.0,
    seed: int | None = None,
    command: str | None = None,
    on_progress: Callable[[float, str], None] | None = None,
    on_series: Callable[[list[dict[str, Any]]], None] | None = None,
    **where: Any,
) -> Document:
    """Measure barriers, and MPI_Barrier of each installed MPI.

    Parameters
    ----------
    ranks : sequence of int
        Numbers of ranks.
    algorithms : sequence of str, optional
        Names from :func:`algorithms`. Algorithms that a group does not support are left out and listed in ``skipped``.
        Default: the usual ones for one host, or for several.
    seconds : float
        Time for measurements of all numbers of ranks together.
    seed : int, optional
        Seed of the order of turns and of the delays.
    command : str, optional
        Command line for the result. Default: that of this process.
    on_progress : callable, optional
        Called with the completed fraction (0 to 1) and the current subject. A KeyboardInterrupt from it ends the run.
    on_series : callable, optional
        Called after each round with the series of the present number of ranks, for live plots.
    **where
        Fields of :class:`viakit.measure.crews.Placement`: ``hosts``, ``protocol``, ``with_mpi``, ``mtu``, ``bind``,
        ``level``, ``skew_s``.

    Returns
    -------
    dict
        A ``viakit.result/1`` whose series have ``algorithm``, ``ranks`` and ``hosts``. With more ranks than cores and
        without skew, protocol ``scheduler`` gives the lower limit: a turn of ``sched_yield()`` by all ranks. After an
        interrupt (Ctrl-C), or if a rank fails, the dict has the measurements so far, with ``complete`` false;
        ``errors`` names the failure.

    Raises
    ------
    ValueError
        If an argument is invalid.
    MeasureError, TestbedError
        If ranks or hosts cannot be started, or fail before the first measurement.
    """
    ranks, placed = list(dict.fromkeys(ranks)), Placement(**where)
    _check(ranks, algorithms, placed, seconds)
    turns = Turns(seconds, seed, command=command)

    def parts(own: list[Crew], mpis: dict[str, Crew]) -> list[tuple[str, list[Entry]]]:
        return [("", _entries(own, mpis, algorithms, placed, turns))]

    return turns.document(crews.Crews(placed, turns, on_progress, on_series).measure(ranks, parts))


def _entries(
    own: Sequence[Crew], mpis: Mapping[str, Crew], chosen: Sequence[str] | None, where: Placement, turns: Turns
) -> list[Entry]:
    """Return the barriers to measure on one number of ranks."""
    entries: list[Entry] = []
    for crew in own:
        for name in dict.fromkeys(chosen or (USUAL_HOSTS if crew.n_hosts > 1 else USUAL_LOCAL)):
            if name in crew.algorithms:
                entries.append(_Entry(crew, crew.protocol, name))
            elif chosen:
                placed = f"{counted(crew.n_ranks, 'rank')} on {counted(crew.n_hosts, 'host')}"
                turns.skipped[f"{crew.protocol} {name}"] = f"not supported by {placed} over {crew.protocol}"
    crew = own[0]
    entries += [_Entry(peer, name, "MPI_Barrier") for name, peer in mpis.items()]
    if crew.crowded and where.machine is None and entries and not where.skew_s and TURN in crew.operations:
        entries.append(_Turn(crew))
    return entries


# ---------------------------------------------------------------------------------------------- display


def find(document: Mapping[str, Any], algorithm: str, ranks: int, protocol: str | None = None) -> dict[str, Any] | None:
    """Return the point of a barrier at a number of ranks, or None. The algorithm of MPI is "MPI_Barrier"."""
    for one in document["series"]:
        if (one.get("algorithm"), one.get("ranks")) == (algorithm, ranks) and protocol in (None, one["protocol"]):
            return one["points"][0] if one["points"] else None
    return None


def best_mpi(document: Mapping[str, Any], ranks: int) -> tuple[str, dict[str, Any]] | None:
    """Return the name of the MPI with the faster barrier, and its point; None without MPI."""
    points = [(f"mpi:{flavour}", find(document, "MPI_Barrier", ranks, f"mpi:{flavour}")) for flavour in MPIS]
    there = [(name, point) for name, point in points if point is not None]
    return min(there, key=lambda one: one[1]["time_s"]["median"]) if there else None


def ratio(top: Mapping[str, Any], bottom: Mapping[str, Any]) -> stats.Ratio:
    """Return the ratio of the times of *top* and *bottom*, two points of one run, with its 95 % interval.

    Common rounds are paired, and the value is the ratio of their medians.
    """
    both = [dict(zip(point["rounds"], point["bursts_s"], strict=True)) for point in (top, bottom)]
    common = sorted(both[0].keys() & both[1].keys())
    return stats.ratio_of_medians([both[0][i] for i in common], [both[1][i] for i in common], paired=True)


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as a table with one row for each number of ranks and algorithm."""
    measured = [one for one in document["series"] if one.get("operation") == "barrier" and one["points"]]
    hosts = sorted({one["hosts"] for one in measured})
    several, named = len(hosts) > 1, len(_ours(one["protocol"] for one in measured)) > 1
    places = f", {hosts[0]} hosts" if hosts[-1:] > [1] and not several else ""
    heads = [">ranks", *([">hosts"] if several else []), *(["by"] if named else []), "algorithm"]
    table = sheet(
        *heads, ">median", ">p90", ">p99", ">/message", ">/MPI", title=f"[bold]Barrier[/bold]{places}",
        caption="/message, /MPI: time over that of the algorithm message, and of the best MPI",
    )  # fmt: skip
    last = None
    for one in measured:
        point, n = one["points"][0], one["ranks"]
        message, mpi = find(document, "message", n, one["protocol"]), best_mpi(document, n)
        message = message or find(document, "message", n)  # for MPI, and for a turn of the scheduler
        against = [
            format_ratio(ratio(point, peer).value) if peer is not None and peer is not point else ""
            for peer in (message, mpi[1] if mpi else None)
        ]
        name = drawn_as(one["protocol"], one["algorithm"])
        if "stands_for" in one["info"]:
            name += f" ({one['info']['stands_for']})"
        times = [format_time(point["time_s"][key]) for key in ("median", "p90", "p99")]
        if last not in (None, n):
            table.add_section()
        last = n
        where = ([str(one["hosts"])] if several else []) + ([one["protocol"]] if named else [])
        table.add_row(str(n), *where, name, *times, *against)
    console.print(table)
    show_missing(document, console)


def drawn_as(protocol: str, algorithm: str, *, named: bool = False) -> str:
    """Return the name of a curve: an MPI library, or an algorithm of viakit, *named* with its protocol."""
    if mpi.is_mpi(protocol):
        return protocol
    name = "scheduler" if algorithm == TURN else algorithm
    return f"{name} ({protocol})" if named and algorithm != TURN else name


def _ours(protocols: Iterable[str]) -> set[str]:
    """Return those protocols that are neither MPI nor a turn of the scheduler."""
    return {name for name in protocols if name != "scheduler" and not mpi.is_mpi(name)}


def figure(documents: Iterable[Document], *, title: str | None = None) -> Figure:
    """Draw barrier time over the number of ranks, as figures 4 and 5 of the paper: one curve per algorithm.

    The bands are the 5th to the 90th percentile.

    Raises
    ------
    ResultError
        If the result has no barriers.
    """
    from matplotlib.figure import Figure  # start-up time

    curves: dict[tuple[Any, ...], list[tuple[int, dict[str, Any]]]] = {}
    per_host: set[bool] = set()
    for document in documents:
        for one in document["series"]:
            if one.get("operation") == "barrier" and one["points"]:
                key = (one["protocol"], one["algorithm"], one["link"], one.get("skew_s", 0.0))
                curves.setdefault(key, []).append((one["ranks"], one["points"][0]["time_s"]))
                per_host.add(one["hosts"] > 1)
    if not curves:
        raise ResultError("the result has no barriers to draw")
    drawing = Figure(figsize=(8, 5), layout="constrained")
    axes = drawing.subplots()
    several = len({key[2] for key in curves}) > 1
    protocols = _ours(key[0] for key in curves)
    names = [drawn_as(*key[:2], named=len(protocols) > 1) for key in curves]
    chosen, skews = looks(names), sorted({key[3] for key in curves})
    for (protocol, algorithm, link, skew_s), points in curves.items():
        points.sort(key=lambda one: one[0])
        n = [one[0] for one in points]
        label = protocol if mpi.is_mpi(protocol) else f"{algorithm} ({link})" if several else algorithm
        label += f" by {protocol}" if len(protocols) > 1 and protocol in protocols else ""
        label = "a turn of the scheduler" if algorithm == TURN else label
        if skew_s:
            label += f", skew {skew_s * 1e6:g} µs"
        look = chosen[drawn_as(protocol, algorithm, named=len(protocols) > 1)].of_file(skews.index(skew_s))
        draw_curve(axes, n, [one[1] for one in points], label, look)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({n for points in curves.values() for n, _ in points})
    axes.set_xticks(ticks, [str(n) for n in ticks])
    axes.minorticks_off()
    plot.times(axes.yaxis)
    axes.set_xlabel("ranks")
    axes.set_ylabel("time of a barrier, µs")
    axes.grid(True, which="both", alpha=0.25)
    plot.names_at_lines(axes)
    axes.set_title(title or ("Barrier, ranks on several hosts" if per_host == {True} else "Barrier"), parse_math=False)
    return drawing
