"""The command ``viakit barrier``; its own module, because the command line has many."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import click

from viakit._cli_base import INTERRUPTED, make_console

__all__ = ["Numbers", "barrier", "save_picture"]


class Numbers(click.ParamType):
    """``2,3,4,8``; converted to a tuple of numbers."""

    name = "numbers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        try:
            return tuple(int(word) for word in value.split(","))
        except ValueError:
            self.fail(f"{value!r}; right would be numbers with commas between: 2,4,8", param, ctx)


class _Time(click.ParamType):
    """``50us``, ``1ms`` or seconds; converted to seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)(us|ms|s|)", str(value))
        seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3}.get(match[2], 1.0) if match else 2.0
        if seconds > 1:
            self.fail(f"{value!r}; right would be a time up to 1 s, such as 50us or 1ms", param, ctx)
        return seconds


def save_picture(documents: list[dict[str, Any]], path: str, title: str | None = None) -> None:
    """Draw results of collectives into a file: .png, .svg or .pdf."""
    from viakit import barrier as barriers
    from viakit import collectives
    from viakit.measure import plot, result

    suffix = plot.check_format(path)
    if suffix == ".html":
        raise result.ResultError(f"{path}: collectives are drawn as .png, .svg or .pdf")
    buffer = io.BytesIO()
    drawer = collectives if any(collectives.has_data(document) for document in documents) else barriers
    drawer.figure(documents, title=title).savefig(buffer, format=suffix[1:])
    result.write_file(path, buffer.getvalue())


@click.command()
@click.option(
    "--algorithms",
    metavar="LIST",
    help="Names with commas between, or all; --list shows them.  [default: the usual ones for where the ranks are]",
)
@click.option(
    "--ranks", type=Numbers(), default="2,3,4,8,16", show_default=True, metavar="LIST", help="Numbers of ranks."
)
@click.option(
    "--hosts",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="1: this host. More: hosts made of network namespaces (no root needed). 0: a host for each rank.",
)
@click.option(
    "--protocol",
    type=click.Choice(["via", "udp", "tcp"]),
    default="via",
    show_default=True,
    help="VIA over shared memory and Ethernet; over UDP between hosts; or TCP.",
)
@click.option("--skew", type=_Time(), default="0", show_default=True, help="Each rank is late by up to so much: 50us.")
@click.option("--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes.")
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI_Barrier.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Time for measuring.")
@click.option("--seed", type=int, help="Of the order of turns, and of the skew.")
@click.option("--list", "list_them", is_flag=True, help="List the algorithms, and end.")
@click.option(
    "--json", "json_file", metavar="F", help="Write the result (schema viakit.result/1); - for standard output."
)
@click.option("--plot", "plot_files", metavar="F", multiple=True, help="Draw: .png, .svg, .pdf; repeatable.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def barrier(
    algorithms: str | None,
    ranks: tuple[int, ...],
    hosts: int,
    protocol: str,
    skew: float,
    mtu: int,
    no_mpi: bool,
    seconds: float,
    seed: int | None,
    list_them: bool,
    json_file: str | None,
    plot_files: tuple[str, ...],
    quiet: bool,
) -> None:
    """Measure barriers: by RDMA write, by shared memory, by messages, and MPI's own.

    The algorithms are the paper's (docs/collectives.md). All that are compared take turns in one run.
    """
    from viakit import barrier as barriers
    from viakit.measure import plot, result

    known = barriers.algorithms()
    if list_them:
        for name, text in known.items():
            click.echo(f"{name:20} {text}")
        return
    for path in [*plot_files, *([json_file] if json_file not in (None, "-") else [])]:
        if path in plot_files:
            plot.check_format(path)
        result.check_writable(path)
    console, progress = make_console(), make_console(stderr=True)
    quiet_progress = quiet or not progress.is_terminal

    def tell(part: float, what: str) -> None:
        if not quiet_progress:
            progress.print(f"{part:4.0%}  {what}", end="\r")

    document = barriers.measure(
        ranks,
        algorithms=None if algorithms is None else list(known) if algorithms == "all" else algorithms.split(","),
        hosts=hosts,
        protocol=protocol,
        with_mpi=not no_mpi,
        skew_s=skew,
        seconds=seconds,
        seed=seed,
        mtu=mtu,
        on_progress=tell,
    )
    if not quiet_progress:
        progress.print(" " * 40, end="\r")
    if json_file == "-":
        result.validate(document)
        click.echo(result.to_bytes(document).decode(), nl=False)
    else:
        if not quiet:
            barriers.show(document, console)
        if json_file:
            result.save(document, json_file)
    for path in plot_files if document["series"] else ():
        save_picture([document], path)
    if not quiet and json_file != "-":
        for path in (json_file, *plot_files):
            if path and Path(path).exists():
                click.echo(f"wrote {path}")
    if not document["complete"]:
        click.echo("viakit: interrupted; what had been measured is kept, nothing is left running", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
