"""The command ``viakit collectives``; its own module, because the command line has many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from viakit._cli_barrier import Numbers, save_picture
from viakit._cli_base import INTERRUPTED, Size, make_console

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
@click.option("--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes.")
@click.option("--no-mpi", is_flag=True, help="Do not compare with MPI.")
@click.option("--seconds", type=float, default=30.0, show_default=True, help="Time for measuring.")
@click.option("--seed", type=int, help="Of the order of turns.")
@click.option("--list", "list_them", is_flag=True, help="List operations and algorithms, and end.")
@click.option(
    "--json", "json_file", metavar="F", help="Write the result (schema viakit.result/1); - for standard output."
)
@click.option("--plot", "plot_files", metavar="F", multiple=True, help="Draw: .png, .svg, .pdf; repeatable.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def collectives(
    operations: str,
    algorithms: str | None,
    ranks: tuple[int, ...],
    sizes: tuple[int, ...],
    hosts: int,
    protocol: str,
    mtu: int,
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
    from viakit.measure import plot, result

    if list_them:
        for operation, names in module.algorithms().items():
            for name, text in names.items():
                click.echo(f"{operation:10} {name:22} {text}")
        return
    for path in [*plot_files, *([json_file] if json_file not in (None, "-") else [])]:
        if path in plot_files:
            plot.check_format(path)
        result.check_writable(path)
    console, progress = make_console(), make_console(stderr=True)
    quiet_progress = quiet or not progress.is_terminal

    def tell(part: float, what: str) -> None:
        if not quiet_progress:
            progress.print(f"{part:4.0%}  {what:50}", end="\r")

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
        on_progress=tell,
    )
    if not quiet_progress:
        progress.print(" " * 60, end="\r")
    if json_file == "-":
        result.validate(document)
        click.echo(result.to_bytes(document).decode(), nl=False)
    else:
        if not quiet:
            module.show(document, console)
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
