"""The command ``viakit barrier``; its own module, because the command line has many."""

from __future__ import annotations

import re
from typing import Any

import click

from viakit._cli_base import percentage
from viakit._cli_group import Numbers, check_outputs, finish, group_options, output_options

__all__ = ["barrier"]


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


@click.command()
@click.option(
    "--algorithms",
    metavar="LIST",
    help="Names with commas between, or all; --list shows them.  [default: the usual ones for where the ranks are]",
)
@click.option(
    "--ranks", type=Numbers(), default="2,3,4,8,16", show_default=True, metavar="LIST", help="Numbers of ranks."
)
@group_options
@click.option("--skew", type=_Time(), default="0", show_default=True, help="Each rank is late by up to so much: 50us.")
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI_Barrier.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Time for measuring.")
@click.option("--seed", type=int, help="Of the order of turns, and of the skew.")
@click.option("--list", "list_them", is_flag=True, help="List the algorithms, and end.")
@output_options
def barrier(
    algorithms: str | None,
    ranks: tuple[int, ...],
    hosts: int,
    protocol: str,
    skew: float,
    mtu: int,
    bind: str,
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

    known = barriers.algorithms()
    if list_them:
        for name, text in known.items():
            click.echo(f"{name:20} {text}")
        return
    check_outputs(json_file, plot_files)
    with percentage(quiet) as tell:
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
            bind=bind,
            on_progress=tell,
        )
    finish(document, barriers.show, json_file, plot_files, quiet)
