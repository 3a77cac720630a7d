"""The command ``viakit``: sweeps, pictures, the demo, the doctor.

Exit status: 0 done; 1 it failed, and the message says why and what to do; 2 the command makes no sense; 130 it was
interrupted (Ctrl-C, SIGTERM, or the terminal closed), with what had been measured by then kept.
``VIAKIT_DEBUG=1`` shows tracebacks.

Whatever is heavy (NumPy, Matplotlib, the compiled part) is imported by the commands that use it: ``viakit --help`` is
quick.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from viakit import __version__
from viakit._cli_barrier import barrier, save_picture
from viakit._cli_run import run

if TYPE_CHECKING:
    from rich.console import Console

    from viakit.measure.sweep import Outcome, Progress

__all__ = ["cli", "main"]

INTERRUPTED = 130


class Failure(click.ClickException):
    """An error that is shown as one message, without a traceback."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code  # type: ignore[misc]  # click reads it from the instance

    def show(self, file: Any = None) -> None:
        """Print the message to standard error."""
        click.echo(f"viakit: {self.format_message()}", file=file, err=True)


def _known(error: Exception) -> Failure | None:
    """Return how an exception is told to the user, or None if it is a fault of viakit's own."""
    from viakit.measure.ladder import SizeError
    from viakit.measure.result import ResultError

    if isinstance(error, (SizeError, ResultError)):
        return Failure(str(error), 2 if isinstance(error, SizeError) else 1)
    # The modules of these are only there to compare with if something has used them.
    for module, name, status in (
        ("viakit.measure.sweep", "UsageError", 2),
        ("viakit.measure.endpoints", "MeasureError", 1),
        ("viakit.measure.endpoints", "UnknownProtocol", 2),
        ("viakit.launch", "LaunchError", 1),
        ("viakit.testbed", "TestbedError", 1),
        ("viakit.inspect", "InspectError", 1),
        ("viakit.trace.pcapng", "CaptureError", 1),
    ):
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(error, kind):
            return Failure(str(error), 2 if getattr(error, "reason", "") == "usage" else status)
    if isinstance(error, ValueError):
        return Failure(str(error), 2)
    if isinstance(error, OSError):
        return Failure(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    if isinstance(error, ImportError):
        return Failure(f"{error}; `viakit doctor` says what is missing")
    return None


class _Group(click.Group):
    """The command group: turns exceptions into messages and exit statuses."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("viakit: interrupted; nothing is left running", err=True)
            ctx.exit(INTERRUPTED)
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("VIAKIT_DEBUG") == "1":
                raise
            known = _known(error)
            if known is None:
                text = f"internal error: {type(error).__name__}: {error} (VIAKIT_DEBUG=1 shows where)"
                known = Failure(text)
            raise known from error


def _console(*, stderr: bool = False) -> Console:
    """Return a console; where it is no terminal, wide enough for every table."""
    from rich.console import Console

    console = Console(stderr=stderr, highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console = Console(stderr=stderr, highlight=False, width=160)
    return console


class _Size(click.ParamType):
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
    console = _console(stderr=True)
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


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="viakit")
def cli() -> None:
    """The Virtual Interface Architecture in software, and the instruments to measure it.

    Start with `viakit demo`; if something does not work on this machine, `viakit doctor` says why.
    """


cli.add_command(run)
cli.add_command(barrier)


# ------------------------------------------------------------------------------------------------ sweep


@cli.command()
@click.argument("protocols", nargs=-1, required=True, metavar="PROTOCOL...")
@click.option(
    "--hosts",
    type=click.Choice(["auto", "local", "testbed"]),
    default="auto",
    show_default=True,
    help="Run on this host, or on two hosts made of network namespaces (no root needed); auto: the testbed if a "
    "protocol needs it.",
)
@click.option("--mtu", type=int, help="MTU of the testbed's wire, bytes.  [default: 1500]")
@click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")
@click.option("--interface", help="Ethernet interface of this host, or two (IF0,IF1), for via-eth with --hosts local.")
@click.option("--sockbuf", type=_Size(), help="Socket buffers of tcp, udp and unix, bytes.")
@click.option("--mode", type=click.Choice(["pingpong", "stream", "bidir"]), default="pingpong", show_default=True)
@click.option(
    "--wait",
    type=click.Choice(["poll", "block"]),
    default="poll",
    show_default=True,
    help="Wait by looking, or by sleeping in the kernel.",
)
@click.option(
    "--level",
    type=click.Choice(["c", "python", "both"]),
    help="Language of the measuring loop.  [default: C wherever it can]",
)
@click.option(
    "--form",
    type=click.Choice(["plain", "udp", "auto"]),
    help="Frames of via-eth: an EtherType of their own, dressed as UDP, or as fits.",
)
@click.option(
    "--reliability", type=click.Choice(["unreliable", "delivery", "reception"]), help="Reliability level of via-*."
)
@click.option(
    "--fault",
    metavar="LIST",
    help="What both sides of via-* do to the frames that they send: loss=1%,dup=1%,reorder=1%,corrupt=1%,delay=200us,"
    "jitter=50us,stall=10ms/100ms,seed=7.",
)
@click.option(
    "--retransmission", type=click.Choice(["selective", "go_back_n"]), help="How via-* repeats what was lost."
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Policy of msg-*: mpich-p4, lam-c2c, mvich-rget ..., or fields of it: via,eager_limit=64K,credits=16.",
)
@click.option("--network", type=click.Choice(["eth", "udp"]), help="What msg-via takes between two hosts.")
@click.option(
    "--sizes",
    default="1:4M",
    show_default=True,
    metavar="LIST",
    help="Bytes: 64 | 1,64,4K | 1:4M (a range is NetPIPE's ladder).",
)
@click.option(
    "--perturb", type=int, default=3, show_default=True, help="Bytes around each step of the ladder; 0: none."
)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Time for the whole sweep.")
@click.option("--validate", is_flag=True, help="Check every byte of every message.")
@click.option("--seed", type=int, help="Of the order in which points are measured.  [default: drawn, and written down]")
@click.option("--against", metavar="PROTOCOL", help="Protocol that ratios are against.  [default: the first]")
@click.option(
    "--json", "json_file", metavar="F", help="Write the result (schema viakit.result/1); - for standard output."
)
@click.option("--csv", "csv_file", metavar="F", help="Write the points as CSV; - for standard output.")
@click.option(
    "--plot",
    "plot_files",
    metavar="F",
    multiple=True,
    help="Draw: .png, .svg, .pdf, or .html (interactive); repeatable.",
)
@click.option(
    "--live", is_flag=True, help="Print each point as a line of JSON when it is measured or refined; no table."
)
@click.option(
    "--tap",
    "tap_file",
    metavar="F",
    help="Capture the frames of via-* (pcapng, for Wireshark), 256 MiB per process at most. Slows them down.",
)
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def sweep(
    protocols: tuple[str, ...],
    sizes: str,
    perturb: int,
    against: str | None,
    json_file: str | None,
    csv_file: str | None,
    plot_files: tuple[str, ...],
    live: bool,
    tap_file: str | None,
    quiet: bool,
    **options: Any,
) -> None:
    r"""Measure protocols over message sizes, interleaved point by point.

    \b
    viakit sweep via-eth tcp --sizes 64              latency on one wire, two hosts
    viakit sweep via-eth tcp --mode stream --sizes 4M
    viakit sweep via-shm mpi:openmpi mpi:mpich --sizes 1:4M --json shm.json --plot shm.png

    `viakit protocols` lists what can be measured.
    """
    from viakit.measure import ladder, plot, result
    from viakit.measure import sweep as sweeping

    for name in (json_file, csv_file, tap_file, *plot_files):
        if name is not None and name != "-":
            result.check_writable(name)
    for name in plot_files:
        plot.check_format(name)
    if against is not None and against not in protocols:
        raise Failure(f"--against {against}: not among the protocols to measure ({', '.join(protocols)})", 2)
    config = sweeping.Config(protocols=list(protocols), sizes=ladder.parse_sizes(sizes, perturb), **options)
    to_stdout = live or "-" in (json_file, csv_file)
    with _tapped(tap_file), progress_bar(f"sweep of {', '.join(protocols)}", quiet) as on_progress:
        outcome = sweeping.run(config, on_progress=on_progress, on_point=_print_point if live else None)
    if not quiet and not to_stdout:
        from viakit.measure import table

        table.show(outcome.document, _console(), against)
    _finish(outcome, json_file, csv_file, plot_files, quiet=quiet or to_stdout)


@contextlib.contextmanager
def _tapped(file: str | None) -> Iterator[None]:
    """Capture what NICs send and receive meanwhile, into one file; None: do not."""
    if file is None:
        yield
        return
    from viakit import trace

    with trace.recording(events=False, snap_bytes=None, file_bytes=256 << 20) as taken:
        yield
    trace.merge(taken.capture(), file)


def _print_point(series: Mapping[str, Any], point: dict[str, Any]) -> None:
    """Print a point for programs that follow a sweep: one line of JSON, at once."""
    import json

    key = {name: series[name] for name in ("protocol", "link", "hosts", "mtu", "mode", "wait", "level")}
    short = {name: point[name] for name in ("nbytes", "one_way_s", "bandwidth_Bps", "samples")}
    click.echo(json.dumps({**key, **short}))


def _finish(
    outcome: Outcome, json_file: str | None, csv_file: str | None, plot_files: Sequence[str], *, quiet: bool
) -> None:
    """Write what was asked for, and end with the status that the outcome deserves."""
    from viakit.measure import plot, result

    document = outcome.document
    has_points = any(one["points"] for one in document["series"])
    problems: list[str] = []
    result.validate(document)

    def attempt(name: str | None, write: Callable[[str], None]) -> None:
        if name is None:
            return
        try:
            write("/dev/stdout" if name == "-" else name)
        except result.ResultError as error:
            problems.append(str(error))
        else:
            if not quiet:
                click.echo(f"wrote {name}")

    def to_stdout(text: str) -> None:
        click.echo(text, nl=False)

    if json_file == "-":
        to_stdout(result.to_bytes(document).decode())
    else:
        attempt(json_file, lambda name: result.save(document, name))
    if csv_file == "-":
        to_stdout(result.to_csv(document))
    else:
        attempt(csv_file, lambda name: result.save_csv(document, name))
    for one in plot_files if has_points else ():
        attempt(one, lambda name: plot.save([document], name))
    if problems:
        problems.append(_rescue(document))
    if outcome.interrupted:
        if not problems:
            click.echo("viakit: interrupted; what had been measured is kept, nothing is left running", err=True)
        else:
            click.echo(f"viakit: interrupted; {'; '.join(problems)}", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if outcome.error is not None:
        problems.insert(0, f"{outcome.error} (what had been measured by then is kept)")
    if problems:
        raise Failure("\n        ".join(problems))


def _rescue(document: dict[str, Any]) -> str:
    """Keep a result that could not be written where it was wanted: a measurement is worth more than a path."""
    from viakit.measure import result

    for folder in (os.getcwd(), tempfile.gettempdir()):
        try:
            descriptor, name = tempfile.mkstemp(prefix="viakit-results-", suffix=".json", dir=folder)
            os.close(descriptor)
        except OSError:
            continue
        try:
            result.save(document, name)
        except result.ResultError:
            with contextlib.suppress(OSError):
                os.unlink(name)
        else:
            return f"the results were kept in {name}"
    return "and there was no room for them anywhere else: they are lost; show them again by another run"


@cli.command()
@click.argument("links", nargs=-1, metavar="[shm|eth|udp]...")
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Time for measuring each link, about.")
@click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")
@click.option(
    "--plot", "picture", metavar="P", help="Draw model and measurement; several links: P with the link's name."
)
@click.option("--dry-run", is_flag=True, help="Show the calibration and do not keep it.")
def calibrate(links: tuple[str, ...], seconds: float, rate: str | None, picture: str | None, dry_run: bool) -> None:
    """Measure BIP's pipeline, and keep the packet sizes that follow. Default: all links; eth and udp on a testbed."""
    from viakit import calibrate as calibration
    from viakit.testbed import Testbed

    for link in links or ("shm", "eth", "udp"):
        if link not in ("shm", "eth", "udp"):
            raise click.UsageError(f"{link!r} is no link that can be calibrated: give shm, eth or udp")
        with contextlib.ExitStack() as stack:
            testbed = None if link == "shm" else stack.enter_context(Testbed(hosts=2, rate=rate))
            found = calibration.calibrate(
                link, testbed=testbed, seconds=seconds, say=lambda text: click.echo(text, err=True)
            )
        click.echo(found.text(), nl=False)
        click.echo(f"# model against measurement: {found.error:.0%} apart (median)")
        if not dry_run:
            click.echo(f"wrote {found.save()}")
        if picture:
            place = Path(picture) if len(links) == 1 else Path(picture).with_stem(f"{Path(picture).stem}-{link}")
            calibration.save_picture(found, str(place))
            click.echo(f"wrote {place}")


# ------------------------------------------------------------------------------------------------ results


@cli.command()
@click.argument("files", nargs=-1, required=True, metavar="F...")
@click.option("-o", "--out", metavar="PICTURE", help="Where to; .png, .svg, .pdf or .html.  [default: F.png]")
@click.option(
    "--graph",
    "graphs",
    type=click.Choice(["throughput", "signature", "time"]),
    multiple=True,
    help="What to draw; repeatable.  [default: throughput and signature]",
)
@click.option("--linear", is_flag=True, help="Throughput on a linear axis.")
@click.option("--title", help="Above the graphs.")
def plot(files: tuple[str, ...], out: str | None, graphs: tuple[str, ...], linear: bool, title: str | None) -> None:
    """Draw result files: NetPIPE's throughput and signature graphs; several files are overlaid."""
    from viakit.measure import plot as plotting
    from viakit.measure import result

    if out is None:
        out = str(Path(files[0]).with_suffix(".png"))
    plotting.check_format(out)
    result.check_writable(out)
    documents = [result.load(name) for name in files]
    names = [Path(name).stem for name in files]
    if any("algorithm" in one for document in documents for one in document["series"]):
        save_picture(documents, out, title)
        click.echo(f"wrote {out}")
        return
    plotting.save(
        documents, out, names=names, graphs=graphs or ("throughput", "signature"), log_y=not linear, title=title
    )
    click.echo(f"wrote {out}")


@cli.command()
@click.argument("file", metavar="F")
@click.option("--against", metavar="PROTOCOL", help="Protocol that ratios are against.  [default: the first]")
def show(file: str, against: str | None) -> None:
    """Show a result file as tables."""
    from viakit.measure import result, table

    document = result.load(file)
    console = _console()
    machine = document["environment"]
    console.print(
        f"{machine['date']}  {machine['cpu']}, {machine['cores']} cores, {machine['kernel']}, "
        f"viakit {machine['viakit']}",
        style="dim",
    )
    console.print(document["command"], style="dim", markup=False)
    if any("algorithm" in one for one in document["series"]):
        from viakit import barrier as barriers

        barriers.show(document, console)
        return
    table.show(document, console, against)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def protocols(as_json: bool) -> None:
    """List what can be measured."""
    from viakit.measure import endpoints

    found = endpoints.protocols()
    if as_json:
        import json

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
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("protocol", "link", "loop in", "needs", "what it is"):
        table.add_column(head, no_wrap=head == "protocol")
    for one in found.values():
        table.add_row(one.name, one.link, ", ".join(one.levels), ", ".join(sorted(one.needs)) or "-", one.description)
    _console().print(table)


# ------------------------------------------------------------------------------------------------ the machine


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def doctor(as_json: bool) -> None:
    """Say what this machine can and cannot do, and how to remedy it.

    The exit status is 0 whatever is found: a machine without something is no failure.
    """
    from viakit import doctor as doctoring

    findings = doctoring.examine()
    if as_json:
        import json

        click.echo(json.dumps(doctoring.to_dict(findings), indent=1))
    else:
        doctoring.render(findings, _console())


@cli.command()
@click.option(
    "--seconds",
    type=float,
    default=25.0,
    show_default=True,
    help="Time for measuring; starting and drawing take some more.",
)
@click.option(
    "--out", default="viakit-demo", show_default=True, metavar="DIR", help="Where the results and pictures go."
)
@click.option("--seed", type=int, help="Of the order in which points are measured.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def demo(seconds: float, out: str, seed: int | None, quiet: bool) -> None:
    """VIA beside TCP, UDP, ZeroMQ and MPI on this machine, in under a minute.

    Leaves DIR/results.json, DIR/throughput.png and DIR/report.html, which says in words what is to be seen.
    """
    from viakit import demo as demonstration
    from viakit.measure import table

    with progress_bar("viakit demo", quiet) as on_progress:
        finished = demonstration.run(out, seconds=seconds, seed=seed, on_progress=on_progress)
    if not quiet:
        console = _console()
        table.show(finished.document, console)
        console.print()
        for sentence in finished.words:
            console.print(f"- {sentence}", markup=False)
        for path in finished.files:
            click.echo(f"wrote {path}")
    if finished.interrupted:
        click.echo("viakit: interrupted; what had been measured is kept, nothing is left running", err=True)
        raise click.exceptions.Exit(INTERRUPTED)
    if finished.error is not None:
        raise Failure(f"{finished.error} (what had been measured by then is kept)")


@cli.command()
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Time for measuring.")
@click.option(
    "--json", "json_file", is_flag=False, flag_value="-", metavar="[F]", help="JSON, to F or to standard output."
)
@click.option("--seed", type=int, help="Of the order in which points are measured.")
@click.option("--quiet", "-q", is_flag=True, help="No progress and no table.")
def bench(seconds: float, json_file: str | None, seed: int | None, quiet: bool) -> None:
    """Measure the figures that viakit has set itself as goals, each beside its peer.

    The exit status is 0 whether they are reached or not: a busy machine is no failure.
    """
    from viakit.measure import goals, result

    if json_file not in (None, "-"):
        result.check_writable(json_file)
    with progress_bar("goals", quiet) as on_progress:
        judged = goals.run(seconds=seconds, seed=seed, on_progress=on_progress)
    if json_file == "-":
        click.echo(goals.to_json(judged))
    else:
        if not quiet:
            goals.render(judged, _console())
        if json_file is not None:
            result.write_file(json_file, (goals.to_json(judged) + "\n").encode())
            if not quiet:
                click.echo(f"wrote {json_file}")
    if judged.interrupted:
        raise click.exceptions.Exit(INTERRUPTED)


@cli.command("inspect")
@click.argument("pid", type=int, required=False)
@click.option("--json", "as_json", is_flag=True, help="The answer as it came (docs/inspect.md), one line.")
@click.option("--watch", is_flag=True, help="Again and again, with rates, until the process ends or Ctrl-C.")
@click.option("--interval", type=float, default=1.0, show_default=True, help="Seconds between two looks of --watch.")
def inspect_command(pid: int | None, as_json: bool, watch: bool, interval: float) -> None:
    """Show what the NICs of a running process are doing: VIs, queues, memory, connections, counters.

    The process need not be prepared for it and is not stopped. Without PID, the processes that use viakit are listed.
    """
    import json

    from viakit import inspect

    if interval <= 0:
        raise Failure(f"--interval {interval:g}: give a time of more than 0 seconds", 2)
    if pid is None:
        for number, command in inspect.processes().items():
            click.echo(f"{number:8} {command[:100]}")
        return
    if as_json:
        for answer in inspect.watch(pid, interval) if watch else [inspect.inspect(pid)]:
            click.echo(json.dumps(answer))
        return
    if not watch:
        _console().print(inspect.tables(inspect.inspect(pid)))
        return
    from rich.live import Live

    console, before = _console(), None
    with Live(console=console, auto_refresh=False) if console.is_terminal else contextlib.nullcontext() as live:
        for answer in inspect.watch(pid, interval):
            shown = inspect.tables(answer, before)
            if live is None:
                console.print(shown)
            else:
                live.update(shown, refresh=True)
            before = answer
    click.echo(f"process {pid} has ended or closed its last NIC")


# ------------------------------------------------------------------------------------------------ C programs


# ------------------------------------------------------------------------------------------------ seeing


class _TracedCommand(click.Command):
    """Options up to the command that is to be traced; the rest is its own."""

    allow_interspersed_args = False


@cli.command(cls=_TracedCommand, context_settings={"ignore_unknown_options": True})
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="COMMAND...")
@click.option("--out", metavar="F", help="Write the timeline as JSON, for https://ui.perfetto.dev.")
@click.option("--capture", metavar="F", help="Write the frames and events as pcapng, for Wireshark.")
@click.option("--picture", metavar="F", help="Draw the last messages: .png, .svg or .pdf.")
@click.option("--from", "sources", metavar="F", multiple=True, help="Read captures instead of running a command.")
@click.option("--snap", type=_Size(), default="176", show_default=True, help="Bytes of each frame to keep; 0: all.")
@click.option("--limit", type=_Size(), default="8M", show_default=True, help="Most that each process may write.")
@click.option("--dissector", is_flag=True, help="Only print where the dissector for Wireshark is.")
@click.option("--install-dissector", is_flag=True, help="Only put it into Wireshark's folder for plugins.")
@click.option("--quiet", "-q", is_flag=True, help="No table.")
def trace(
    command: tuple[str, ...],
    out: str | None,
    capture: str | None,
    picture: str | None,
    sources: tuple[str, ...],
    snap: int,
    limit: int,
    dissector: bool,
    install_dissector: bool,
    quiet: bool,
) -> None:
    r"""Run a command and show what its NICs did: each message from the post to the peer's reap.

    \b
    viakit trace --out trace.json viakit sweep via-shm --sizes 8 --seconds 1
    viakit trace --capture both.pcapng ./my-program
    viakit trace --from both.pcapng --picture both.png

    The exit status is the command's.
    """
    from viakit import trace as tracing
    from viakit.measure import result

    if dissector or install_dissector:
        click.echo(tracing.install_dissector() if install_dissector else tracing.dissector())
        return
    if bool(command) == bool(sources):
        raise Failure("give a command to run, or --from with captures that are there", 2)
    for name in (out, capture, picture):
        if name is not None:
            result.check_writable(name)
    status = 0
    if sources:
        taken = tracing.read(sources)
    else:
        with tracing.recording(snap_bytes=snap or None, file_bytes=limit or None) as recording:
            status = _run(command)
        taken = recording.capture()
    seen = tracing.build(taken)
    if not quiet:
        tracing.render(seen, _console(stderr=bool(command)))
    if not seen.nics:
        click.echo("viakit: no NIC was opened by the command: is it linked to this libvipl.so?", err=True)
    for name, write in (
        (out, lambda name: tracing.chrome.save(seen, name)),
        (capture, lambda name: tracing.merge(taken, name)),
        (picture, lambda name: tracing.picture.save(seen, name)),
    ):
        if name is not None:
            write(name)
            if not quiet:
                click.echo(f"wrote {name}", err=bool(command))
    raise click.exceptions.Exit(status)


def _run(command: Sequence[str]) -> int:
    """Run a command to its end; its exit status. What interrupts us interrupts it, too: it ends, and is waited for."""
    import subprocess

    try:
        child = subprocess.Popen(command)
    except OSError as error:
        raise Failure(
            f"{command[0]}: {error.strerror}", 127 if isinstance(error, FileNotFoundError) else 126
        ) from error
    with child:
        try:
            status = child.wait()
        except KeyboardInterrupt:
            child.send_signal(signal.SIGINT)
            status = child.wait()
    return status if status >= 0 else 128 - status


@cli.command("config")
@click.option("--cflags", "wanted", flag_value="cflags", multiple=True, help="Arguments for the compiler.")
@click.option("--libs", "wanted", flag_value="libs", multiple=True, help="Arguments for the linker.")
@click.option("--static", is_flag=True, help="With --libs: put the library into the program.")
@click.option("--prefix", "wanted", flag_value="prefix", multiple=True, help="The folder that holds include and lib.")
@click.option("--library", "wanted", flag_value="library", multiple=True, help="The shared library, for ctypes.")
@click.option("--pkg-config-dir", "wanted", flag_value="pkg_config_dir", multiple=True, help="The folder of vipl.pc.")
@click.option("--examples", "wanted", flag_value="example_dir", multiple=True, help="The folder of the C examples.")
@click.option("--version", "wanted", flag_value="version", multiple=True, help="The library's version.")
def config_command(wanted: tuple[str, ...], static: bool) -> None:
    r"""Say what a compiler needs for C programs that use VIPL.

    \b
    cc pingpong.c $(viakit config --cflags --libs) -o pingpong
    cc pingpong.c $(viakit config --cflags --libs --static) -o pingpong
    PKG_CONFIG_PATH=$(viakit config --pkg-config-dir) pkg-config --cflags --libs vipl
    """
    from viakit import config

    if not wanted:
        raise Failure("say what is wanted: viakit config --cflags --libs (viakit config --help has the rest)", 2)
    if static and "libs" not in wanted:
        raise Failure("--static goes with --libs", 2)
    flags: list[str] = []
    for name in wanted:
        if name == "libs":
            flags += config.libs(static=static)
        elif name == "cflags":
            flags += config.cflags()
        else:
            click.echo(str(getattr(config, name)()))
    if flags:
        click.echo(config.quote(flags))


# ------------------------------------------------------------------------------------------------ the process


def _interrupt(_number: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def main() -> None:
    """Run the command: the entry point ``viakit``, and ``python -m viakit``."""
    # Asked to end politely, or left by its terminal: put everything away as after Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _interrupt)
    # A shell that started us in the background has SIGINT ignored; then it stays so.
    try:
        cli.main(prog_name="viakit")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
