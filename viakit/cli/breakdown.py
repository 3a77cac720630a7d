"""The command ``viakit breakdown``."""

from __future__ import annotations

import io
import json

import click

from viakit.cli.base import Size, deliver
from viakit.measure import plot

__all__ = ["breakdown"]


@click.command()
@click.argument("protocols", nargs=-1, metavar="[tcp|udp|via-eth]...")
@click.option("--size", type=Size(), default="8", show_default=True, metavar="N", help="Bytes of the message, to 1400.")
@click.option("--seconds", type=float, default=9.0, show_default=True, help="Time for measurements.")
@click.option("--seed", type=int, help="Seed for the order of turns.")
@click.option("--json", "json_file", metavar="F", help="Write the result to F; -: to standard output.")
@click.option("--plot", "picture", metavar="P", help="Draw stacked bars: .png, .svg or .pdf.")
@click.option("--live", is_flag=True, help="Print the result so far as a line of JSON before each step.")
@click.option("--quiet", "-q", is_flag=True, help="Print no table.")
def breakdown(
    protocols: tuple[str, ...],
    size: int,
    seconds: float,
    seed: int | None,
    json_file: str | None,
    picture: str | None,
    live: bool,
    quiet: bool,
) -> None:
    """Divide the time of one message into parts: calls, copies, protocol, interrupt, wake-up.

    \b
    viakit breakdown tcp udp via-eth
    viakit breakdown tcp --size 1400 --plot parts.svg

    Both hosts are on a testbed. docs/measuring.md describes how each part is obtained.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.measure import breakdown as parts  # start-up time

    suffix = plot.check_format(picture, (".png", ".svg", ".pdf")) if picture else ""
    chosen = protocols or parts.PROTOCOLS
    parts.check(chosen, size, seconds)

    def on_part(found: parts.Breakdown, words: str) -> None:
        if live:
            click.echo(json.dumps({"step": words, **found.to_dict()}))
        elif words and not quiet:
            click.echo(words, err=True)

    found = parts.measure(chosen, nbytes=size, seconds=seconds, seed=seed, on_part=on_part)

    def draw(name: str) -> None:
        buffer = io.BytesIO()
        found.figure().savefig(buffer, format=suffix[1:])
        with open(name, "wb") as file:
            file.write(buffer.getvalue())

    deliver(
        [(json_file, lambda: parts.save(found))],
        [(picture, draw)] if picture else [],
        show=lambda console: console.print(found.table()),
        quiet=quiet or live,
        interrupted=False,
        error=None,
    )
