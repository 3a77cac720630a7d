"""Code shared by the commands of ``viakit``: failures, output, sizes and progress."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console

    from viakit.measure.sweep import Progress

from viakit.measure.ladder import SizeError, parse_size
from viakit.measure.printing import printing
from viakit.measure.result import ResultError, write_file

__all__ = [
    "INTERRUPTED",
    "Delay",
    "Failure",
    "Several",
    "Size",
    "deliver",
    "failures",
    "make_console",
    "percentage",
    "printing",
    "progress_bar",
    "wire_options",
]

INTERRUPTED = 130


class Failure(click.ClickException):
    """Error that is displayed as one message, without a traceback."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Print the message to standard error."""
        click.echo(f"viakit: {self.format_message()}", file=file, err=True)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console; if it is not a terminal, it is wide enough for every table."""
    from rich.console import Console  # start-up time

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, highlight=False, width=160)
    return console


def memory_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --memory and --buffers to a command that measures messages (docs/measuring.md, "Memory and buffers")."""
    command = click.option(
        "--buffers",
        type=click.Choice(["touched", "same", "cold"]),
        default="touched",
        show_default=True,
        help="touched: each message is written before it is sent and read after it was received, within the time. "
        "same: one buffer, never touched. cold: from a pool larger than the last-level cache.",
    )(command)
    return click.option(
        "--memory",
        type=click.Choice(["user", "viakit"]),
        default="user",
        show_default=True,
        help="Where buffers come from: ordinary memory, or the allocator of via-* and msg-via, whose memory a peer on "
        "this host can map.",
    )(command)


class Size(click.ParamType):
    """Number of bytes with an optional suffix."""

    name = "size"

    def __init__(self, *words: str) -> None:
        """Take *words* as they are, besides numbers of bytes."""
        self.words = words

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a size such as 64K; a number is taken as it is."""
        if value in self.words:
            return str(value)
        try:
            return value if isinstance(value, int) else parse_size(value)
        except SizeError as error:
            self.fail(str(error), param, ctx)


class Delay(click.ParamType):
    """Delay of a testbed's wire, in seconds."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a time such as 1ms; a number is taken as seconds."""
        from viakit.testbed.wire import parse_delay  # start-up time

        try:
            return parse_delay(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


_GIVEN = "viakit.cli.wire"  # of a context: the options of the wire in the command line


def wire_options(command: Callable[..., Any], alone: Sequence[int] = (), *, sweep: bool = False) -> Callable[..., Any]:
    """Add --offload, --tcp-options, --rate, --burst and --delay to a command that makes a testbed.

    They are passed on by ``VIAKIT_WIRE``, so that they reach each testbed of the command and of its processes, and are
    in its results.

    Parameters
    ----------
    command : callable
        The function of the command.
    alone : sequence of int
        Values of its parameter ``hosts`` for one host. There, on real machines and on described ones the options are
        refused. Empty: the command checks them itself.
    sweep : bool
        True: without --rate and --delay, because the command has options of its own for them. It also gets the others
        as arguments.
    """

    def keep(ctx: click.Context, param: click.Parameter, value: str | int | None) -> str | int | None:
        if value is not None:
            ctx.meta.setdefault(_GIVEN, []).append(param.opts[0])
            from viakit.testbed.wire import VARIABLE, Wire  # start-up time

            given: dict[str, Any] = {str(param.name): value}
            try:
                os.environ[VARIABLE] = Wire.chosen(**given).text()
            except ValueError as error:
                raise click.BadParameter(str(error), ctx, param) from None
        return value

    if alone:
        command = _only_on_testbeds(command, alone)
    shared: dict[str, Any] = {"expose_value": sweep, "callback": keep}
    if not sweep:
        command = click.option(
            "--rate", metavar="TEXT", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.", **shared
        )(command)
        command = click.option(
            "--delay",
            metavar="TIME",
            help="One-way delay of every frame between testbed hosts, for each protocol: 50us, 1ms.  [default: none]",
            **shared,
        )(command)
    command = click.option(
        "--burst",
        type=Size("min"),
        help="Bucket of --rate, bytes; min: one frame.  [default: 300 µs of the rate]",
        **shared,
    )(command)
    switch = click.Choice(["on", "off"])
    command = click.option(
        "--tcp-options",
        type=switch,
        help="off: TCP on the testbed without window scaling and time stamps.  [default: on]",
        **shared,
    )(command)
    return click.option(
        "--offload",
        type=switch,
        help="off: the testbed's interfaces neither cut nor merge frames (TSO, GSO, GRO).  [default: on]",
        **shared,
    )(command)


def _only_on_testbeds(command: Callable[..., Any], alone: Sequence[int]) -> Callable[..., Any]:
    """Return *command*, which refuses options of the wire unless its parameter ``hosts`` makes a testbed."""

    @functools.wraps(command)
    def checked(*args: Any, **options: Any) -> Any:
        from viakit.testbed.wire import Wire  # start-up time

        elsewhere = options.get("machine") is not None or options["hosts"] in alone or isinstance(options["hosts"], str)
        wire = Wire.chosen() if os.environ.get("VIAKIT_WIRE") else Wire()
        given = [*click.get_current_context().meta.get(_GIVEN, ())]
        given += [name for name, value in (("--rate", wire.rate), ("--delay", wire.delay)) if value is not None]
        if elsewhere and given:
            raise Failure(
                f"{given[0]} sets the testbed's wire: add --hosts testbed:N with N from 2, or remove {given[0]}", 2
            )
        if wire.burst is not None and wire.rate is None:
            raise Failure(f"--burst {wire.burst} is the bucket of a limit: add --rate, for instance --rate 1gbit", 2)
        return command(*args, **options)

    return checked


class Several(click.ParamType):
    """One value of another type, or several separated by commas; converted to the value, or to a tuple of them."""

    def __init__(self, one: click.ParamType) -> None:
        self.one, self.name = one, f"{one.name} list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert each part."""
        if not isinstance(value, str):
            return value
        found = tuple(self.one.convert(part, param, ctx) for part in value.split(","))
        return found[0] if len(found) == 1 else found


@contextlib.contextmanager
def progress_bar(title: str, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show a progress bar with the remaining time on standard error.

    Yields a function to call with each :class:`Progress`. The caller's thread redraws the bar, and only between bursts.
    A bar that redraws itself would take time from the cores under measurement.
    """
    console = make_console(stderr=True)
    if quiet or not console.is_terminal:
        if not quiet:
            console.print(f"{title} ...")
        yield None
        return
    from rich import progress as bars  # start-up time

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
    """Show the progress of a measurement in one line on standard error; yields a function of the fraction and a text.

    Nothing is shown if standard error is not a terminal, or with *quiet*.
    """
    console = make_console(stderr=True)
    shown = not quiet and console.is_terminal

    def update(part: float, what: str) -> None:
        if shown:
            console.print(f"{part:4.0%}  {what:60}", end="\r")

    yield update
    if shown:
        console.print(" " * 70, end="\r")


# ------------------------------------------------------------------------------------------------ results


def failures(document: Mapping[str, Any]) -> str | None:
    """Return the errors of a measurement for the final message, or None."""
    messages = dict.fromkeys(one["message"] for one in document["errors"])
    return f"{'; '.join(messages)} (the measurements so far are kept)" if messages else None


def deliver(
    files: Sequence[tuple[str | None, Callable[[], bytes]]],
    pictures: Sequence[tuple[str, Callable[[str], None]]] = (),
    *,
    show: Callable[[Console], None] | None = None,
    quiet: bool = False,
    interrupted: bool = False,
    error: str | None = None,
) -> None:
    """Write the results, print them, and exit with the appropriate status.

    The files are written first, so that a closed reader, a full disk or a second signal affects as little as possible.

    Parameters
    ----------
    files : sequence of (str or None, callable)
        Names, and functions that return the contents. None: not requested. "-": standard output, which then contains
        nothing else. If a file cannot be written, the first of the contents are saved elsewhere.
    pictures : sequence of (str, callable)
        Names, and functions that write a picture to that name.
    show : callable, optional
        Prints the tables to the console it is given.
    quiet : bool
        Print nothing.
    interrupted : bool
        Exit with status 130.
    error : str, optional
        The errors of the measurement; exit with status 1.

    Raises
    ------
    Failure, click.exceptions.Exit
        For any status but 0.
    """
    from viakit.measure.turns import shielded  # start-up time

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
            problems.append(_save_elsewhere(files[0][1]()))
    streams = [contents for name, contents in files if name == "-"]
    for contents in streams:
        click.echo(contents(), nl=False)
    if not quiet and not streams:
        with printing():
            if show is not None:
                show(make_console())
            for name in written:
                click.echo(f"wrote {name}")
    if error is not None:
        problems.insert(0, error)
    if interrupted:
        what = "; ".join(problems) or "the measurements so far are kept, and all started processes have ended"
        click.echo(f"viakit: interrupted; {what}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if problems:
        raise Failure("\n        ".join(problems))


def _save_elsewhere(contents: bytes) -> str:
    """Save a result elsewhere if it could not be written to the requested file."""
    for folder in (os.getcwd(), tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="viakit-results-", suffix=".json", dir=folder)
            os.close(descriptor)
        except OSError:
            continue
        try:
            write_file(name, contents)
        except ResultError:
            with contextlib.suppress(OSError):
                os.unlink(name)
        else:
            return f"the results were saved in {name}"
    return "the results could not be saved elsewhere either and are lost; free disk space and run the command again"
