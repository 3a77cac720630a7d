"""The command ``viakit collectives``."""

from __future__ import annotations

from typing import Any

import click

from viakit.cli.base import Size
from viakit.cli.group import Numbers, group_options, measured, output_options
from viakit.cli.job import within_job

__all__ = ["collectives"]


class _Sizes(click.ParamType):
    """Sizes such as ``8,1K,1M``; converted to a tuple of bytes."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(Size().convert(word, param, ctx) for word in value.split(","))


@click.command()
@click.option("--operations", default="bcast,reduce,allreduce,allgather,alltoall", show_default=True, metavar="LIST")
@click.option("--algorithms", metavar="LIST", help="Comma-separated names; --list shows them.  [default: all]")
@click.option("--ranks", type=Numbers(), default="4", show_default=True, metavar="LIST", help="Numbers of ranks.")
@click.option(
    "--sizes",
    type=_Sizes(),
    default="8,1K,64K,1M",
    show_default=True,
    metavar="LIST",
    help="Bytes of the buffer; for allgather and alltoall, bytes that each rank contributes.",
)
@group_options
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Time for measurements.")
@click.option("--seed", type=int, help="Seed for the order of turns.")
@click.option("--list", "list_them", is_flag=True, help="List operations and algorithms and exit.")
@output_options
def collectives(operations: str, algorithms: str | None, list_them: bool, **options: Any) -> None:
    """Measure collectives: through shared memory, by RDMA write, by messages, and MPI's.

    The algorithms are measured in turns during one run (docs/collectives.md).
    """
    from viakit.measure import collectives as module  # start-up time

    if list_them:
        for operation, names in module.algorithms().items():
            for name, text in names.items():
                click.echo(f"{operation:10} {name:22} {text}")
        return
    chosen = None if algorithms in (None, "all") else algorithms.split(",")
    options["ranks"] = within_job(options["ranks"])
    measured(module.measure, module.show, operations.split(","), algorithms=chosen, **options)
