"""What the commands of ``viakit`` have in common: how they fail, print, read sizes and show progress."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from viakit.measure.sweep import Progress

__all__ = [
    "INTERRUPTED",
    "Failure",
    "Size",
    "deliver",
    "failures",
    "make_console",
    "percentage",
    "progress_bar",
    "told",
]

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


# ------------------------------------------------------------------------------------------------ what came of it


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Print what a command has to say in here: that nobody reads it any more is no failure of what it did.

    The reader may be ``head``, which has seen enough, or a terminal that was closed; the latter sends SIGHUP again.
    """
    from viakit.measure.sweep import shielded

    try:
        with shielded():
            yield
            sys.stdout.flush()
    except SystemExit:  # rich's answer to a closed pipe; it has turned standard output away by itself
        pass
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # or the interpreter would stumble over it once more at its end
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise


def failures(document: Mapping[str, Any]) -> str | None:
    """Return what went wrong while a result was measured, to be said at the end; None: nothing did."""
    messages = dict.fromkeys(one["message"] for one in document["errors"])
    return f"{'; '.join(messages)} (what had been measured by then is kept)" if messages else None


def deliver(
    files: Sequence[tuple[str | None, Callable[[], bytes]]],
    pictures: Sequence[tuple[str, Callable[[str], None]]] = (),
    *,
    show: Callable[[Console], None] | None = None,
    quiet: bool = False,
    interrupted: bool = False,
    error: str | None = None,
) -> None:
    """Write what was measured, then print it, and end with the status that it deserves.

    In this order, so that no reader who goes away, no full disk and no second signal costs more than itself.

    Parameters
    ----------
    files : sequence of (str or None, callable)
        Names and what returns the contents; None: not asked for; "-": standard output, which then has nothing else. If
        one cannot be written, the first of the contents are kept somewhere else.
    pictures : sequence of (str, callable)
        Names and what writes there.
    show : callable, optional
        Given a console, prints the tables.
    quiet : bool
        Print nothing.
    interrupted : bool
        End with 130.
    error : str, optional
        What went wrong; end with 1.

    Raises
    ------
    Failure, click.exceptions.Exit
        For any status but 0.
    """
    from viakit.measure.result import ResultError, write_file
    from viakit.measure.sweep import shielded

    problems: list[str] = []
    written: list[str] = []

    def attempt(name: str, write: Callable[[str], None]) -> None:
        try:
            write(name)
            written.append(name)
        except ResultError as failure:
            problems.append(str(failure))

    def writer(contents: Callable[[], bytes]) -> Callable[[str], None]:
        return lambda name: write_file(name, contents())

    with shielded():
        for name, contents in files:
            if name not in (None, "-"):
                attempt(name, writer(contents))
    for name, save in pictures:
        attempt(name, save)
    if problems and files and files[0][0] not in (*written, "-"):
        with shielded():
            problems.append(_rescue(files[0][1]()))
    streams = [contents for name, contents in files if name == "-"]
    for contents in streams:
        click.echo(contents(), nl=False)
    if not quiet and not streams:
        with told():
            if show is not None:
                show(make_console())
            for name in written:
                click.echo(f"wrote {name}")
    if error is not None:
        problems.insert(0, error)
    if interrupted:
        what = "; ".join(problems) or "what had been measured is kept, nothing is left running"
        click.echo(f"viakit: interrupted; {what}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if problems:
        raise Failure("\n        ".join(problems))


def _rescue(contents: bytes) -> str:
    """Keep a result that could not be written where it was wanted: a measurement is worth more than a path."""
    from viakit.measure import result

    for folder in (os.getcwd(), tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="viakit-results-", suffix=".json", dir=folder)
            os.close(descriptor)
        except OSError:
            continue
        try:
            result.write_file(name, contents)
        except result.ResultError:
            with contextlib.suppress(OSError):
                os.unlink(name)
        else:
            return f"the results were kept in {name}"
    return "and there was no room for them anywhere else: they are lost; show them again by another run"
