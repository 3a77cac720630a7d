"""The command ``viakit collectives``; its own module, because the command line has many."""

from __future__ import annotations

from typing import Any

import click

from viakit._cli_base import Size, percentage
from viakit._cli_group import Numbers, check_outputs, finish, group_options, output_options

__all__ = ["collectives"]


class _Sizes(click.ParamType):
    """``8,1K,1M``; converted to a tuple of bytes."""

    name = "sizes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(Size().convert(word, param, ctx) for word in value.split(","))


@click.command()
@click.option("--operations", default="bcast,reduce,allreduce,allgather,alltoall", show_default=True, metavar="LIST")
@click.option("--algorithms", metavar="LIST", help="Names with commas between; --list shows them.  [default: all]")
@click.option("--ranks", type=Numbers(), default="4", show_default=True, metavar="LIST", help="Numbers of ranks.")
@click.option(
    "--sizes",
    type=_Sizes(),
    default="8,1K,64K,1M",
    show_default=True,
    metavar="LIST",
    help="Bytes of the buffer; for allgather and alltoall of what each rank gives.",
)
@group_options
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Time for measuring.")
@click.option("--seed", type=int, help="Of the order of turns.")
@click.option("--list", "list_them", is_flag=True, help="List operations and algorithms, and end.")
@output_options
def collectives(
    operations: str,
    algorithms: str | None,
    ranks: tuple[int, ...],
    sizes: tuple[int, ...],
    hosts: int,
    protocol: str,
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
    """Measure collectives: through shared memory, by RDMA write, by messages, and MPI's own.

    All that are compared take turns in one run (docs/collectives.md).
    """
    from viakit import collectives as module

    if list_them:
        for operation, names in module.algorithms().items():
            for name, text in names.items():
                click.echo(f"{operation:10} {name:22} {text}")
        return
    check_outputs(json_file, plot_files)
    with percentage(quiet) as tell:
        document = module.measure(
            operations.split(","),
            algorithms=None if algorithms in (None, "all") else algorithms.split(","),
            ranks=ranks,
            sizes=sizes,
            hosts=hosts,
            protocol=protocol,
            with_mpi=not no_mpi,
            seconds=seconds,
            seed=seed,
            mtu=mtu,
            bind=bind,
            on_progress=tell,
        )
    finish(document, module.show, json_file, plot_files, quiet)
