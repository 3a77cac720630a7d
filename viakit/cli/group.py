"""Code shared by ``viakit barrier`` and ``viakit collectives``: options and output of results."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from viakit.cli.base import deliver, failures, percentage, wire_options
from viakit.cli.job import JOB, hosts_of_job
from viakit.cli.running import Hosts, machine_option
from viakit.measure import kinds, plot, result

__all__ = ["Numbers", "check_outputs", "finish", "group_options", "measured", "output_options", "save_picture"]


class Numbers(click.ParamType):
    """Numbers such as ``2,3,4,8``; converted to a tuple."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        """Parse a list of numbers such as 2,4,8."""
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(word) for word in value.split(","))
        except ValueError:
            self.fail(f"{value!r}; expected comma-separated numbers: 2,4,8", param, ctx)


class _Hosts(click.ParamType):
    """Hosts as a number, ``local``, ``testbed:N``, ``ssh:A,B`` or ``job``; converted to a number, or left as text."""

    name = "hosts"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if isinstance(value, int) or value == JOB:
            return value
        if value == "local" or value.isdigit():
            value = 1 if value == "local" else int(value)
            if value > _MOST_HOSTS:
                self.fail(f"{value}; expected 0 to {_MOST_HOSTS}", param, ctx)
            return value
        return Hosts().convert(value, param, ctx)


_MOST_HOSTS = 64
_GROUP = (
    click.option(
        "--hosts",
        type=_Hosts(),
        default="1",
        show_default=True,
        callback=hosts_of_job,
        metavar="N|ssh:A,B|job",
        help="1 or local: this host. More, or testbed:N: testbed hosts in network namespaces (no root needed). 0: a "
        "testbed host per rank. ssh:A,B: machines that ssh reaches. job: the hosts of the job of mpirun or srun, "
        "the default there.",
    ),
    click.option("--python", metavar="PATH", help="Interpreter with viakit on the machines of --hosts ssh:."),
    click.option(
        "--network", metavar="LINK", help="With --hosts ssh:, the wire: eth:IF, udp:ADDRESS, udp:10.0.0.0/24."
    ),
    click.option(
        "--protocol",
        metavar="LIST",
        default="via",
        show_default=True,
        help="via: VIA over shared memory and Ethernet; udp: VIA over UDP between hosts; tcp: TCP. Several are "
        "measured in turns, also with a policy of the message engine: via,tcp:mpich-p4.",
    ),
    machine_option,
    click.option("--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes."),
    click.option(
        "--bind",
        type=click.Choice(["core", "none"]),
        default="core",
        show_default=True,
        help="Bind each rank to a core, in blocks, also for MPI; or leave placement to the scheduler.",
    ),
    click.option(
        "--level",
        type=click.Choice(["c", "python"]),
        default="c",
        show_default=True,
        help="Language of the measuring loop. python: barrier and allreduce of viakit.comm and mpi4py.",
    ),
)
_OUTPUT = (
    click.option(
        "--json", "json_file", metavar="F", help="Write the result (schema viakit.result/1); - for standard output."
    ),
    click.option("--plot", "plot_files", metavar="F", multiple=True, help="Draw: .png, .svg, .pdf; repeatable."),
    click.option("--quiet", "-q", is_flag=True, help="No progress and no table."),
)


def _all(options: Sequence[Callable[[Any], Any]], command: Any) -> Any:
    for option in reversed(options):  # as decorators, of which the last one works first
        command = option(command)
    return command


def group_options(command: Any) -> Any:
    """Add the options for the placement of the ranks, their wire and the protocol to a command."""
    return _all(_GROUP, wire_options(command, alone=(1,)))


def output_options(command: Any) -> Any:
    """Add the options for the output of results to a command."""
    return _all(_OUTPUT, command)


def check_outputs(json_file: str | None, plot_files: Sequence[str]) -> None:
    """Raise ResultError if an output file cannot be written. Call it before the measurement."""
    for path in plot_files:
        _format(path)
    result.check_writable(*plot_files, *([json_file] if json_file not in (None, "-") else []))


def measured(
    measure: Callable[..., dict[str, Any]],
    show: Callable[[dict[str, Any], Any], None],
    subjects: Sequence[Any],
    *,
    no_mpi: bool,
    json_file: str | None,
    plot_files: Sequence[str],
    quiet: bool,
    **options: Any,
) -> None:
    """Measure with ``measure(subjects, **options)``, then call :func:`finish` with the result."""
    check_outputs(json_file, plot_files)
    with percentage(quiet) as on_progress:
        document = measure(subjects, with_mpi=not no_mpi, on_progress=on_progress, **options)
    finish(document, show, json_file, plot_files, quiet)


def finish(
    document: dict[str, Any],
    show: Callable[[dict[str, Any], Any], None],
    json_file: str | None,
    plot_files: Sequence[str],
    quiet: bool,
) -> None:
    """Write, draw and print a result according to the options; see :func:`viakit.cli.base.deliver`."""
    result.validate(document)
    error = failures(document)
    deliver(
        [(json_file, lambda: result.to_bytes(document))],
        [(path, lambda path: save_picture([document], path)) for path in (plot_files if document["series"] else ())],
        show=lambda console: show(document, console),
        quiet=quiet,
        interrupted=not document["complete"] and error is None,
        error=error,
    )


def _format(path: str) -> str:
    """Return the suffix of a picture's path.

    Raises ResultError if results other than sweeps cannot be drawn in this format.
    """
    if Path(path).suffix.lower() == ".html":
        raise result.ResultError(f"{path}: only sweeps can be drawn as pages; choose .png, .svg or .pdf")
    return plot.check_format(path, [suffix for suffix in plot.FORMATS if suffix != ".html"])


def save_picture(
    documents: list[dict[str, Any]],
    path: str,
    title: str | None = None,
    *,
    names: Sequence[str] | None = None,
    times: bool = False,
) -> None:
    """Draw results of one kind, other than sweeps, into a file: .png, .svg or .pdf.

    *names* distinguish the files, and *times* draws times instead of speed-ups. Both apply to applications only.
    """
    suffix = _format(path)
    kind = kinds.common_kind(documents, names or [path] * len(documents))
    choice = {"times": times} if kind == kinds.APPLICATIONS else {}
    drawing = kinds.figure(documents, names, title=title, **choice)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=suffix[1:])
    result.write_file(path, buffer.getvalue())
