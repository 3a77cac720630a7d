"""What ``viakit barrier`` and ``viakit collectives`` have in common: options, and where their results go."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from viakit._cli_base import INTERRUPTED, make_console

__all__ = ["Numbers", "check_outputs", "deliver", "group_options", "output_options", "save_picture"]


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


_GROUP = (
    click.option(
        "--hosts",
        type=click.IntRange(0, 64),
        default=1,
        show_default=True,
        metavar="N",
        help="1: this host. More: hosts made of network namespaces (no root needed). 0: a host for each rank.",
    ),
    click.option(
        "--protocol",
        type=click.Choice(["via", "udp", "tcp"]),
        default="via",
        show_default=True,
        help="VIA over shared memory and Ethernet; over UDP between hosts; or TCP.",
    ),
    click.option("--mtu", type=int, default=1500, show_default=True, help="MTU of the testbed's wire, bytes."),
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
    """Give a command the options that say where its ranks are, and what is between them."""
    return _all(_GROUP, command)


def output_options(command: Any) -> Any:
    """Give a command the options that say where its result goes."""
    return _all(_OUTPUT, command)


def check_outputs(json_file: str | None, plot_files: Sequence[str]) -> None:
    """Raise ResultError, before anything is measured, where a file of results could not be written."""
    from viakit.measure import result

    for path in plot_files:
        _format(path)
    for path in (*plot_files, *([json_file] if json_file not in (None, "-") else [])):
        result.check_writable(str(path))


def deliver(
    document: dict[str, Any],
    show: Callable[[dict[str, Any], Any], None],
    json_file: str | None,
    plot_files: Sequence[str],
    quiet: bool,
) -> None:
    """Print, write and draw a result, as the options say; status 130 if it was interrupted."""
    from viakit.measure import result

    if json_file == "-":
        result.validate(document)
        click.echo(result.to_bytes(document).decode(), nl=False)
    else:
        if not quiet:
            show(document, make_console())
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


def _format(path: str) -> str:
    """The suffix of a picture's path, if collectives can be drawn so."""
    from viakit.measure import plot, result

    suffix = plot.check_format(path)
    if suffix == ".html":
        raise result.ResultError(f"{path}: collectives are drawn as .png, .svg or .pdf")
    return suffix


def save_picture(documents: list[dict[str, Any]], path: str, title: str | None = None) -> None:
    """Draw results of collectives into a file: .png, .svg or .pdf."""
    from viakit import barrier as barriers
    from viakit import collectives
    from viakit.measure import result

    suffix = _format(path)
    buffer = io.BytesIO()
    drawer = collectives if any(collectives.has_data(document) for document in documents) else barriers
    drawer.figure(documents, title=title).savefig(buffer, format=suffix[1:])
    result.write_file(path, buffer.getvalue())
