"""The commands ``viakit plot`` and ``viakit show`` for results, and ``viakit protocols``."""

from __future__ import annotations

import json
from pathlib import Path

import click

from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.cli.base import Failure, make_console
from viakit.cli.group import save_picture
from viakit.measure import endpoints, kinds, result
from viakit.measure import plot as plotting

__all__ = ["compare", "import_results", "plot", "protocols", "show"]

SLOWER, NO_VERDICT = 3, 4  # exit statuses of `viakit compare`


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="F...")
@click.option("-o", "--out", metavar="PICTURE", help="Name of the picture: .png, .svg, .pdf, .html.  [default: F.png]")
@click.option(
    "--graph",
    "graphs",
    type=click.Choice(plotting.GRAPHS),
    multiple=True,
    help="Graph to draw; repeatable.  [default: throughput, signature, and ratio or p99]",
)
@click.option("--linear", is_flag=True, help="Draw throughput on a linear axis.")
@click.option("--title", help="Title above the graphs.")
@click.option("--force", is_flag=True, help="Overwrite an existing picture.")
def plot(
    files: tuple[str, ...], out: str | None, graphs: tuple[str, ...], linear: bool, title: str | None, force: bool
) -> None:
    """Draw result files; several files of one kind are overlaid.

    Sweeps are drawn as NetPIPE's throughput and signature graphs, barriers and collectives as times, and applications
    as times over ranks. Results of `viakit speedup` are drawn as speed-ups, or with --graph time as times.
    """
    if out is None:
        out = str(Path(files[0]).with_suffix(".png"))
    plotting.check_format(out)
    result.check_writable(out)
    documents = [result.load(name) for name in files]
    names = [Path(name).stem for name in files]
    kind = kinds.common_kind(documents, files)
    if kind != kinds.TRANSFERS and (linear or set(graphs) - {"time"}):
        option = "--linear" if linear else f"--graph {next(graph for graph in graphs if graph != 'time')}"
        raise Failure(f"{option} applies to sweeps only; {kind} have no throughput: {files[0]}", 2)
    if Path(out).is_file() and not force:
        raise Failure(f"{out} exists; name another file with -o, or overwrite it with --force", 2)
    if kind == kinds.TRANSFERS:
        plotting.save(documents, out, names=names, graphs=graphs or None, log_y=not linear, title=title)
    else:
        save_picture(documents, out, title, names=names, times="time" in graphs)
    click.echo(f"wrote {out}")


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@click.option("--confidence", type=float, default=0.95, show_default=True, help="Joint confidence of all intervals.")
@click.option(
    "--indifferent", type=float, default=0.01, show_default=True, help="Smallest relative change that counts."
)
@click.option("--quiet", "-q", is_flag=True, help="Print the summary only.")
def compare(before: str, after: str, confidence: float, indifferent: float, quiet: bool) -> None:
    """Compare two result files point by point: faster, slower, or no evidence of change.

    \b
    viakit sweep via-shm tcp --json before.json
    viakit sweep via-shm tcp --json after.json
    viakit compare before.json after.json || echo "slower, or no verdict"

    The intervals of all points hold jointly. Exit status: 0 if no point became slower, 3 if one did, 4 without a
    verdict (no common point, or too few bursts), 1 if a file cannot be read.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.measure.comparison import compare as comparing  # start-up time

    found = comparing(result.load(before), result.load(after), confidence=confidence, indifferent=indifferent)
    click.echo(found.verdict if quiet else str(found))
    if any(one.verdict == "slower" for one in found):
        raise SystemExit(SLOWER)
    if all(one.verdict == "too few bursts" for one in found):
        raise SystemExit(NO_VERDICT)


@click.command()
@click.argument("file", metavar="F")
@click.option(
    "--against", metavar="PROTOCOL", help="Reference protocol for the ratios of a sweep.  [default: the first]"
)
def show(file: str, against: str | None) -> None:
    """Show a result file as tables."""
    document = result.load(file)
    parts = kinds.split(document)
    if against is not None and kinds.TRANSFERS not in parts:
        raise Failure(f"--against applies to sweeps only; tables of {' and '.join(parts)} have no ratios: {file}", 2)
    console = make_console()
    machine = document["environment"]
    console.print(f"{machine['date']}  {result.machine_text(machine)}, viakit {machine['viakit']}", style="dim")
    console.print(document["command"], style="dim", markup=False)
    kinds.show(document, console, against)


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="F...")
@click.option("-o", "--out", metavar="JSON", help="Name of the result; - for standard output.  [default: F.json]")
@click.option("--name", metavar="PROTOCOL", help="Name of the curve.  [default: netpipe, osu_latency, ... iperf3]")
@click.option(
    "--hosts",
    type=click.Choice(["local", "testbed", "ssh"]),
    default="local",
    show_default=True,
    help="Where the program ran: on one host, on two testbed hosts, or on two machines.",
)
@click.option("--mtu", type=click.IntRange(68, 65535), help="MTU of its wire, bytes.")
@click.option("--force", is_flag=True, help="Overwrite an existing result.")
def import_results(
    files: tuple[str, ...], out: str | None, name: str | None, hosts: str, mtu: int | None, force: bool
) -> None:
    """Import results of NetPIPE (np.out), the OSU benchmarks (their output) and iperf3 (--json).

    \b
    viakit import np.out --hosts testbed --mtu 1500
    viakit import osu-latency-*.txt -o osu.json
    viakit plot np.json mine.json

    `viakit show`, `plot` and `compare` take what this command writes. Several files of one program are one curve.
    Six or more give intervals.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.measure import foreign  # start-up time

    document = foreign.read(files, protocol=name, hosts=hosts, mtu=mtu)
    result.validate(document)
    out = out or str(Path(files[0]).with_suffix(".json"))
    if out == "-":
        click.echo(result.to_bytes(document), nl=False)
        return
    if Path(out).exists() and not force:
        raise Failure(f"{out} exists; name another file with -o, or overwrite it with --force", 2)
    result.save(document, out)
    points = sum(len(one["points"]) for one in document["series"])
    click.echo(f"wrote {out}: {counted(points, 'size')} of {', '.join(one['protocol'] for one in document['series'])}")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def protocols(as_json: bool) -> None:
    """List the protocols that can be measured."""
    found = endpoints.protocols()
    if as_json:
        rows = [
            {
                "name": one.name,
                "link": one.link,
                "levels": list(one.levels),
                "needs": sorted(one.needs),
                "description": one.description,
            }
            for one in found.values()
        ]
        click.echo(json.dumps(rows, indent=1))
        return
    table = sheet("protocol", "link", "loop in", "needs", "description", whole=["protocol"])
    for one in found.values():
        table.add_row(one.name, one.link, ", ".join(one.levels), ", ".join(sorted(one.needs)) or "-", one.description)
    make_console().print(table)
