"""The command ``viakit barrier``."""

from __future__ import annotations

import re
from typing import Any

import click

from viakit.cli.group import Numbers, group_options, measured, output_options
from viakit.cli.job import within_job

__all__ = ["barrier"]


class _Time(click.ParamType):
    """Time such as ``50us``, ``1ms`` or a number of seconds; converted to seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        match = re.fullmatch(r"([0-9]*\.?[0-9]+(?:e-?[0-9]+)?)(us|ms|s|)", str(value))
        seconds = float(match[1]) * {"us": 1e-6, "ms": 1e-3}.get(match[2], 1.0) if match else 2.0
        if seconds > 1:
            self.fail(f"{value!r}; expected a time up to 1 s, such as 50us or 1ms", param, ctx)
        return seconds


@click.command()
@click.option(
    "--algorithms",
    metavar="LIST",
    help="Comma-separated names, or all; --list shows them.  [default: those suited to the placement of the ranks]",
)
@click.option(
    "--ranks", type=Numbers(), default="2,3,4,8,16", show_default=True, metavar="LIST", help="Numbers of ranks."
)
@group_options
@click.option("--skew", type=_Time(), default="0", show_default=True, help="Largest delay of each rank, such as 50us.")
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI_Barrier.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="Time for measurements.")
@click.option("--seed", type=int, help="Seed for the order of turns, and for the skew.")
@click.option("--list", "list_them", is_flag=True, help="List the algorithms and exit.")
@output_options
def barrier(algorithms: str | None, ranks: tuple[int, ...], skew: float, list_them: bool, **options: Any) -> None:
    """Measure barriers: by RDMA write, by shared memory, by messages, and MPI's.

    The algorithms are those of the paper (docs/collectives.md). They are measured in turns during one run.
    """
    from viakit.measure import barrier as barriers  # start-up time

    known = barriers.algorithms()
    if list_them:
        for name, text in known.items():
            click.echo(f"{name:20} {text}")
        return
    chosen = None if algorithms is None else list(known) if algorithms == "all" else algorithms.split(",")
    measured(barriers.measure, barriers.show, within_job(ranks), algorithms=chosen, skew_s=skew, **options)
