"""What the commands of ``viakit`` have in common: how they fail, print, read sizes and show progress."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from viakit.measure.sweep import Progress

__all__ = ["INTERRUPTED", "Failure", "Size", "make_console", "percentage", "progress_bar"]

INTERRUPTED = 130


class Failure(click.ClickException):
    """An error that is shown as one message, without a traceback."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Print the message to standard error."""
        click.echo(f"viakit: {self.format_message()}", file=file, err=True)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console; where it is no terminal, wide enough for every table."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, highlight=False, width=160)
    return console


class Size(click.ParamType):
    """A number of bytes with an optional suffix."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        from viakit.measure.ladder import SizeError, parse_size

        try:
            return value if isinstance(value, int) else parse_size(value)
        except SizeError as error:
            self.fail(str(error), param, ctx)


@contextlib.contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show a bar with the time left on standard error; yields what to call with each :class:`Progress`.

    It is drawn between bursts only, by the caller's thread: a bar that redraws itself would take time from the cores
    that are being measured.
    """
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        if not quiet:
            console.print(f"{title} ...")
        yield None
        return
    from rich import progress as bars

    columns = (
        bars.TextColumn("{task.description}"),
        bars.BarColumn(bar_width=30),
        bars.TextColumn("{task.fields[left]}"),
        bars.TextColumn("{task.fields[what]}"),
    )
    bar = bars.Progress(*columns, console=console, auto_refresh=False, transient=True)
    last = 0.0

    def update(progress: Progress) -> None:
        nonlocal last
        import time

        now = time.monotonic()
        if now - last < 0.1:
            return
        last = now
        left = f"{progress.left_s:.0f} s left" if progress.left_s >= 0.5 else "finishing"
        bar.update(task, completed=progress.fraction, left=left, what=progress.text)
        bar.refresh()

    with bar:
        task = bar.add_task(title, total=1.0, left="starting", what="")
        bar.refresh()
        yield update


@contextlib.contextmanager
def percentage(quiet: bool) -> Iterator[Callable[[float, str], None]]:
    """Show on standard error, in one line, how far a measurement is; yields what to call with the part and with what.

    Nothing is shown where that is no terminal, or *quiet*.
    """
    console = make_console(stderr=True)
    shown = not quiet and console.is_terminal

    def tell(part: float, what: str) -> None:
        if shown:
            console.print(f"{part:4.0%}  {what:60}", end="\r")

    yield tell
    if shown:
        console.print(" " * 70, end="\r")
