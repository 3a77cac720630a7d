"""The commands ``viakit papers`` and ``viakit machines``."""

from __future__ import annotations

import io
import json
from typing import Any

import click

from viakit.base.sheet import sheet
from viakit.cli.base import Failure, make_console
from viakit.measure import plot as plotting
from viakit.measure import result

__all__ = ["machines_command", "papers"]


def _save(figure: Any, path: str) -> None:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.rpartition(".")[2], dpi=150)
    result.write_file(path, buffer.getvalue())


@click.command()
@click.argument("paper", required=False)
@click.argument("figure", required=False)
@click.option("--json", "json_file", metavar="F", help="Write the verdicts as JSON; - for standard output.")
@click.option("--html", "html_file", metavar="F", help="Write a report with all figures as one self-contained page.")
@click.option("--markdown", metavar="F", help="Write the page of the documentation.")
@click.option(
    "--png",
    "--plot",
    "pictures",
    multiple=True,
    metavar="F",
    help="Draw FIGURE, or all figures of PAPER in one picture: .png, .svg, .pdf; repeatable.",
)
@click.option(
    "--result", "result_file", metavar="F", help="Write FIGURE's curves (schema viakit.result/1), as a sweep has them."
)
@click.option(
    "--measure",
    "seconds",
    type=click.FloatRange(0, min_open=True),
    metavar="SECONDS",
    help="Measure FIGURE's libraries here, between two hosts of a testbed, and draw them with the predictions: "
    "policies of viakit, and LAM, PVM, MPICH and Open MPI if they are installed.",
)
@click.option(
    "--measured",
    "sweeps",
    multiple=True,
    metavar="F",
    help="Draw a result of `viakit sweep` with the predictions; repeatable.",
)
@click.option("--all", "everything", is_flag=True, help="Show inputs and descriptions in the table, too.")
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor table.")
def papers(
    paper: str | None,
    figure: str | None,
    json_file: str | None,
    html_file: str | None,
    markdown: str | None,
    pictures: tuple[str, ...],
    result_file: str | None,
    seconds: float | None,
    sweeps: tuple[str, ...],
    everything: bool,
    quiet: bool,
) -> None:
    """Predict the figures of the five papers on their machines, and judge each one.

    \b
    viakit papers --json verdicts.json --html papers.html
    viakit papers turner-chen --plot turner-chen.png
    viakit papers turner-chen fig1 --measure 20 --plot fig1.png
    viakit papers lobosco table3

    PAPER: ong-farrell, turner-chen, lobosco, gupta, prylli. FIGURE: such as fig5 or table3. Everything is computed in
    virtual time from machine files (`viakit machines`), so two runs give equal bits.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.papers import PAPERS, find_paper, report, verdicts  # start-up time
    from viakit.papers import figures as drawing  # start-up time

    _check_files(pictures, (html_file, markdown, result_file, json_file if json_file != "-" else None))
    if pictures and paper is None:
        raise Failure("--plot draws a paper, or one figure: viakit papers gupta fig5 --plot fig5.png", 2)
    for option, given in (("--result", result_file), ("--measure", seconds), ("--measured", sweeps)):
        if given and figure is None:
            raise Failure(f"{option} is for one figure: viakit papers turner-chen fig1 {option} ...", 2)
    if markdown and paper:
        raise Failure("--markdown writes the page of all papers; leave PAPER out", 2)
    wanted = [find_paper(paper)] if paper else list(PAPERS)
    console = make_console()
    if figure is not None and figure.startswith("table"):
        found = report.tables(verdicts(wanted))
        if figure not in found or pictures or result_file or seconds or sweeps:
            raise Failure(f"{wanted[0]} has {', '.join(found) or 'no table with figures'}; a table is only printed", 2)
        report.show_table(found[figure], console)
        return
    if figure is not None:
        measured, failed = _measured(wanted[0], figure, seconds, sweeps)
        _write_pictures(drawing.draw(wanted[0], figure, measured), pictures)
        if result_file:
            from viakit.papers.results import document  # start-up time

            result.save(document(wanted[0], figure), result_file)
            click.echo(f"wrote {result_file}")
        if not quiet:
            title = f"{PAPERS[wanted[0]][0]}, {figure}"
            _print_series(
                {**drawing.series(wanted[0])[figure], **measured}, title, drawing.axes_of(wanted[0], figure), console
            )
        if failed is not None:
            raise Failure(f"--measure: {failed} (the measurements so far are shown)")
        return
    if pictures:
        _write_pictures(drawing.draw(wanted[0]), pictures)
    status = make_console(stderr=True)
    with status.status("predicting", spinner="dots") if not quiet and status.is_terminal else _Quiet() as shown:
        entries = verdicts(wanted, lambda name: shown.update(f"predicting {PAPERS[name][0]}"))
    if json_file == "-":
        click.echo(json.dumps(report.document(entries), indent=1))
    elif json_file:
        result.write_file(json_file, (json.dumps(report.document(entries), indent=1) + "\n").encode())
    if html_file:
        result.write_file(html_file, report.html(entries, wanted).encode())
    if markdown:
        result.write_file(markdown, report.markdown(entries).encode())
    if not quiet and json_file != "-":
        report.show(entries, console, everything)
    for path in (html_file, markdown, json_file if json_file != "-" else None):
        if path and not quiet:
            click.echo(f"wrote {path}")


def _check_files(pictures: tuple[str, ...], others: tuple[str | None, ...]) -> None:
    """Raise Failure if a file cannot be written, before anything is computed."""
    for path in filter(None, (*pictures, *others)):
        result.check_writable(path)
    for path in pictures:
        if path.rpartition(".")[2] not in ("png", "svg", "pdf"):
            raise Failure(f"{path}: a figure is written as .png, .svg or .pdf", 2)


def _write_pictures(drawn: Any, pictures: tuple[str, ...]) -> None:
    for path in pictures:
        _save(drawn, path)
        click.echo(f"wrote {path}")


def _measured(
    paper: str, figure: str, seconds: float | None, sweeps: tuple[str, ...]
) -> tuple[dict[str, Any], str | None]:
    """Return the curves of sweeps, read from files or measured now: name, and bytes with Mbit/s; and a failure."""
    from viakit.papers import figures, module_of  # start-up time

    if not sweeps and seconds is None:
        return {}, None
    failed: str | None = None
    figures.check(paper, figure, figures.series(paper))
    if not figures.has_curves(paper):
        raise Failure(f"{paper}: its figures are no curves by message size; leave out --measure and --measured", 2)
    documents = [result.load(path) for path in sweeps]
    if seconds is not None:
        from viakit.measure import ladder, plan, sockbuf, sweep  # start-up time

        protocols = module_of(paper).MEASURED.get(figure)
        if protocols is None:
            raise Failure(f"--measure: viakit has no protocol of {figure}; give a sweep's result with --measured", 2)
        sizes = ladder.parse_sizes("1:4M", 0)
        config = plan.Config(
            protocols=list(protocols), sizes=sizes, hosts="testbed", seconds=seconds, skip_unavailable=True,
            sockbuf=sockbuf.AUTO if "tcp" in protocols else None,  # raw TCP at its best, as in the papers
        )  # fmt: skip
        outcome = sweep.run(config)
        document = outcome.document
        if outcome.interrupted:
            raise KeyboardInterrupt
        failed = None if outcome.error is None else str(outcome.error)
        for one in document.get("skipped", []):
            click.echo(f"not measured: {one['protocol']}: {one['reason']}", err=True)
        for one in document["series"]:
            if said := sockbuf.words(one["info"]):
                click.echo(said, err=True)
        documents.append(document)
    return {
        one["label"]: [(nbytes, 8e-6 * rate) for nbytes, rate in zip(one["nbytes"], one["Bps"], strict=True)]
        for one in plotting.curves(documents)
    }, failed  # fmt: skip


class _Quiet:
    """Progress display that shows nothing."""

    def __enter__(self) -> _Quiet:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, _: str) -> None:
        """Show nothing."""


def _print_series(found: dict[str, list[tuple[float, float]]], title: str, axes: tuple[str, str], console: Any) -> None:
    """Print the series of a figure: a row for each place on the x axis. *axes* are the quantities with their units."""
    table = sheet(f">{axes[0]}", *(f">{name}" for name in found), title=f"{title}: {axes[1]}")
    places = sorted({x for points in found.values() for x, _ in points})
    rows = places if len(places) <= 40 else [x for x in places if x and x == 2 ** (int(x).bit_length() - 1)]
    for x in rows:
        table.add_row(f"{x:.0f}", *(f"{dict(points)[x]:.4g}" if x in dict(points) else "" for points in found.values()))
    console.print(table)


@click.command("machines")
@click.argument("name", required=False)
@click.option(
    "--size", default="1", show_default=True, metavar="BYTES", help="Size of the message whose time is shown."
)
@click.option("--png", "--plot", "picture", metavar="F", help="Draw where the time goes: .png, .svg, .pdf.")
def machines_command(name: str | None, size: str, picture: str | None) -> None:
    """List the machines of the papers and of today, or explain one: where a message's time goes.

    NAME: one of the list, or the path of your own file (docs/machines.md).
    """
    from viakit import machines as known  # start-up time
    from viakit.machines import explain  # start-up time
    from viakit.measure.ladder import parse_size  # start-up time

    if picture:
        plotting.check_format(picture)
        result.check_writable(picture)
    console = make_console()
    if name is None:
        if picture:
            raise Failure("--plot needs the name of a machine", 2)
        explain.show_all([known.load(one) for one in known.names()], console)
        return
    machine = known.load(name)
    nbytes = parse_size(size)
    explain.show(machine, nbytes, console)
    if picture:
        _save(explain.figure(machine, nbytes), picture)
        click.echo(f"wrote {picture}")
