"""Output of a run: a table, a result file of schema ``viakit.result/1``, and a trace."""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

from viakit.apps import profile
from viakit.apps.harness import COMMAND, Application, RankReport, Run, as_dict
from viakit.apps.phases import STATES
from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.launch import detect

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["check_files", "point", "rate", "series", "table", "verdict", "write_report"]

WIDE = 130  # columns of a terminal for one table of a run; a narrower one gets two tables
MOST_ROWS = 16  # For more ranks the table shows the minimum, the median and the maximum instead.


def check_files(json_file: str | None, trace_file: str | None) -> None:
    """Raise ResultError if an output file cannot be written."""
    from viakit.measure import result  # start-up time

    if trace_file is not None:
        from viakit.apps import tracing  # start-up time

        tracing.check_format(trace_file)
    result.check_writable(*(one for one in (json_file, trace_file) if one is not None and one != "-"))


def _library() -> tuple[str, dict[str, Any]]:
    """Return the protocol's full name and the properties of the MPI library, if mpi4py carries the messages."""
    from mpi4py import MPI  # optional package

    version = MPI.Get_library_version().strip().splitlines()[0].rstrip("\x00 ")
    flavour = "openmpi" if "Open MPI" in version else "mpich" if "MPICH" in version else "other"
    return f"mpi:{flavour}", {"protocol": f"mpi:{flavour}", "library": flavour, "version": version}


def _plain(value: Any) -> Any:
    """Return a value in a form for JSON."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)


def _cores(value: Sequence[int] | None = None) -> int:
    return len(os.sched_getaffinity(0)) if value is None else len(value)


def series(
    application: Application, problem: Any, protocol: str | None, runs: Sequence[Run], *, hosts: int = 1
) -> dict[str, Any]:
    """Return the series of a result file for the runs of one application.

    Parameters
    ----------
    protocol : str or None
        Name of the protocol; None for the serial program.
    """
    name, info = (protocol or "serial", {}) if protocol != "mpi" else _library()
    summary = application.summary(problem, runs[-1].outcome) if application.summary else {}
    return {
        "application": application.name,
        "title": application.title,
        "protocol": name,
        "ranks": len(runs[0].ranks),
        "hosts": hosts,
        "cores": _cores(),
        "level": "python",
        "problem": _plain(asdict(problem)) if is_dataclass(problem) and not isinstance(problem, type) else str(problem),
        "summary": _plain(summary),
        "operations": None if application.operations is None else application.operations(problem),
        "info": info,
        "runs": [
            {
                "wall_s": one.wall_s,
                "ok": one.ok,
                "checks": [_plain(as_dict(check)) for check in one.checks],
                "ranks": [_rank(one, i) for i in range(len(one.ranks))],
            }
            for one in runs
        ],
        "points": [point([one.wall_s for one in runs])],
    }


def _rank(one: Run, i: int) -> dict[str, Any]:
    """Return a rank's report for a result file, with the calls of a profile."""
    made = as_dict(one.ranks[i])
    if one.calls:
        made["calls"] = {name: each.as_dict() for name, each in one.calls[i].items()}
    return made


def point(walls_s: Sequence[float]) -> dict[str, Any]:
    """Return the point of a series: the wall times of its runs."""
    from viakit.measure import stats  # start-up time

    return {
        "nbytes": 0,
        "time_s": stats.summarise([[wall_s] for wall_s in walls_s]).as_dict(),
        "samples": len(walls_s),
        "bursts_s": list(walls_s),
        "rounds": list(range(len(walls_s))),
    }


def _command() -> str:
    """Return the command line of this program."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    words = ["-m", spec.name, *sys.argv[1:]] if spec is not None else sys.argv
    if os.environ.get(COMMAND):
        return os.environ[COMMAND]
    place = detect()
    start = ["python"]
    if place.size > 1:
        start = ["viakit", "run"] if place.launcher == "viakit" else ["mpiexec"]
        start += ["-n", str(place.size), *(["python"] if start == ["mpiexec"] else [])]
    return shlex.join([*start, *words])


# ------------------------------------------------------------------------------------------------------ table


def _size(nbytes: float) -> str:
    return f"{nbytes / 1024:.1f}"


def _row(report: RankReport, states: Sequence[str]) -> list[str]:
    from viakit.measure.table import format_time  # start-up time: only rank 0 prints

    times = [format_time(report.seconds[state]) for state in states]
    share = report.communication_s / report.wall_s if report.wall_s else 0.0
    ends = [format_time(report.cpu_s), str(report.messages), _size(report.nbytes)]
    return [str(report.rank), format_time(report.wall_s), *times, f"{share:.1%}", *ends]


def _title(application: Application, problem: Any, protocol: str | None, one: Run) -> str:
    how = f"{counted(len(one.ranks), 'rank')} over {protocol}" if protocol else "serial"
    return f"{application.title}: {application.describe(problem)}; {how}"


def table(one: Run, width: int = WIDE) -> list[Table]:
    """Return a run as rich tables, with a row per rank and one for all: one table, or two below *width* WIDE."""
    states = [state for state in STATES if state == "compute" or any(each.seconds[state] for each in one.ranks)]
    heads = ["rank", "wall", *states, "communication", "CPU", "messages", "KiB sent"]
    rows = _rows(one, states)
    cut = len(heads) - 3
    parts = [range(len(heads))] if width >= WIDE else [range(cut), [0, *range(cut, len(heads))]]
    made = []
    for columns in parts:
        short = {"communication": "comm."} if width < WIDE else {}
        each = sheet(*(f">{short.get(heads[i], heads[i])}" for i in columns))
        for row in rows:
            if row[0] == "all":
                each.add_section()
            each.add_row(*(row[i] for i in columns))
        made.append(each)
    return made


def _rows(one: Run, states: Sequence[str]) -> list[list[str]]:
    """Return the cells of all rows."""
    reports = sorted(one.ranks, key=lambda report: report.rank)
    if len(reports) > MOST_ROWS:
        by_time = sorted(reports, key=lambda report: report.communication_s)
        reports = [by_time[0], by_time[len(by_time) // 2], by_time[-1]]
    rows = [_row(report, states) for report in reports]
    if len(one.ranks) > 1:
        from viakit.measure.table import format_time  # start-up time: only rank 0 prints

        messages, nbytes = sum(r.messages for r in one.ranks), sum(r.nbytes for r in one.ranks)
        cpu = format_time(sum(r.cpu_s for r in one.ranks))
        blank = [""] * (len(states) + 1)
        rows.append(["all", format_time(one.wall_s), *blank, cpu, str(messages), _size(nbytes)])
    return rows


def verdict(one: Run) -> str:
    """Return a line, with rich's markup, that states whether the figures of a run are correct."""
    if not one.checks:
        return "[yellow]not verified: there is nothing to hold this problem's result against[/yellow]"
    if one.ok:
        n = len(one.checks)
        return f"[green]right: {n} figure{'s' * (n > 1)} verified[/green]"
    return f"[bold red]WRONG: {len(one.wrong())} of {len(one.checks)} figures[/bold red]"


def _console() -> Console:
    """Return a console. If it is not a terminal, or has no size (as under Open MPI), it is wide enough."""
    from rich.console import Console  # start-up time

    try:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    known = "COLUMNS" in os.environ or (columns and os.environ.get("TERM") != "dumb")
    return Console(highlight=False, width=None if known else 160)


def middle(runs: Sequence[Run]) -> Run:
    """Return the run with the median time; for an even number of runs, the faster of the two."""
    return sorted(runs, key=lambda one: one.wall_s)[(len(runs) - 1) // 2]


def rate(operations: float | None, one: Run) -> str | None:
    """Return a run's million operations per second as text, by all ranks and by each; None without operations."""
    if not operations or not one.wall_s:
        return None
    mops, ranks = operations / one.wall_s / 1e6, len(one.ranks)
    return f"{mops:.4g}" + (f", {mops / ranks:.4g} by each rank" if ranks > 1 else "")


def show_runs(
    runs: Sequence[Run], summary: Mapping[str, Any], console: Console, operations: float | None = None
) -> None:
    """Print the run with the median time as a table, its summary, the spread of times, and the verdict."""
    median = middle(runs)
    for part in table(median, console.width):
        console.print(part)
    if any(median.calls):
        console.print(profile.table(profile.total(median.calls), sum(one.wall_s for one in median.ranks)))
    for key, value in summary.items():
        console.print(f"{key}: {value}", markup=False)
    mops = rate(operations, median)
    if mops is not None:
        console.print(f"Mop/s: {mops}", markup=False)
    if len(runs) > 1:
        walls = [one.wall_s for one in runs]
        console.print(
            f"{len(runs)} runs: {min(walls):.4g} to {max(walls):.4g} s; the table is of the one in the middle"
        )
    console.print(verdict(next((one for one in runs if not one.ok), median)))


def write_report(
    application: Application,
    problem: Any,
    protocol: str | None,
    runs: Sequence[Run],
    *,
    json_file: str | None,
    trace_file: str | None,
    quiet: bool,
    elapsed_s: float,
    complete: bool = True,
    errors: Sequence[str] = (),
) -> None:
    """Write the files, and print the table of the run with the median time.

    Not *complete*: there should have been more runs; *errors* say what failed, if it was no interruption.
    """
    from viakit.measure import result  # start-up time
    from viakit.measure.printing import printing  # start-up time
    from viakit.measure.turns import document_of  # start-up time

    median = middle(runs)
    if json_file is not None:
        made = series(application, problem, protocol, runs)
        failed = [{"protocol": made["protocol"], "nbytes": None, "message": error} for error in errors]
        found = document_of([made], command=_command(), complete=complete, errors=failed, elapsed_s=elapsed_s)
        if json_file == "-":
            result.validate(found)
            sys.stdout.write(result.to_bytes(found).decode())
        else:
            result.save(found, str(json_file))
    if trace_file is not None:
        from viakit.apps import tracing  # start-up time

        tracing.save(median.ranks, trace_file, title=f"{application.title}, {application.describe(problem)}")
    if quiet or json_file == "-":
        return
    with printing():
        console = _console()
        console.print(_title(application, problem, protocol, median), markup=False, style="bold")
        summary = application.summary
        operations = None if application.operations is None else application.operations(problem)
        show_runs(runs, {} if summary is None else summary(problem, median.outcome), console, operations)
        ranks, cores = len(median.ranks), _cores()
        if ranks > cores and "VIAKIT_MACHINE" not in os.environ:  # virtual time has no waits for a core
            console.print(
                f"{ranks} ranks on {counted(cores, 'core')} of {socket.gethostname()}: compare CPU times, because wall "
                "times contain waits for a core"
            )
        if not complete:
            console.print("this run was not finished; the measurements so far are shown", style="yellow")
        for path in (json_file, trace_file):
            if path is not None:
                console.print(f"wrote {path}", markup=False)
