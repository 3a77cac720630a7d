"""What ``viakit barrier`` and ``viakit collectives`` have in common: options, and where their results go."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from viakit._cli_base import deliver, failures

__all__ = ["Numbers", "check_outputs", "finish", "group_options", "output_options", "save_picture"]


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
    click.option(
        "--bind",
        type=click.Choice(["core", "none"]),
        default="core",
        show_default=True,
        help="Bind each rank to a core, in blocks, MPI's alike; or leave them to the scheduler.",
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
    result.check_writable(*plot_files, *([json_file] if json_file not in (None, "-") else []))


def finish(
    document: dict[str, Any],
    show: Callable[[dict[str, Any], Any], None],
    json_file: str | None,
    plot_files: Sequence[str],
    quiet: bool,
) -> None:
    """Write, draw and print a result, as the options say; see :func:`viakit._cli_base.deliver`."""
    from viakit.measure import result

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
    """The suffix of a picture's path, if something other than transfers can be drawn so."""
    from viakit.measure import plot, result

    if Path(path).suffix.lower() == ".html":
        raise result.ResultError(f"{path}: only sweeps are drawn as pages; give a name that ends in .png, .svg or .pdf")
    return plot.check_format(path, [suffix for suffix in plot.FORMATS if suffix != ".html"])


def save_picture(
    documents: list[dict[str, Any]],
    path: str,
    title: str | None = None,
    *,
    names: Sequence[str] | None = None,
    times: bool = False,
) -> None:
    """Draw results of one kind, other than transfers, into a file: .png, .svg or .pdf.

    *names* tell files apart, and *times* draws times in place of speed-ups; both matter to applications only.
    """
    from viakit.measure import kinds, result

    suffix = _format(path)
    kind = kinds.common_kind(documents, names or [path] * len(documents))
    choice = {"times": times} if kind == kinds.APPLICATIONS else {}
    drawing = kinds.figure(documents, names, title=title, **choice)
    buffer = io.BytesIO()
    drawing.savefig(buffer, format=suffix[1:])
    result.write_file(path, buffer.getvalue())
