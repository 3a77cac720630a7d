"""The commands ``viakit sweep`` and ``viakit calibrate``: measuring."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viakit._cli_base import Failure, Size, deliver, progress_bar
from viakit._cli_group import check_outputs

if TYPE_CHECKING:
    from viakit.measure.sweep import Outcome

__all__ = ["calibrate", "sweep"]


@click.command()
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
@click.option("--sockbuf", type=Size(), help="Socket buffers of tcp, udp and unix, bytes.")
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
    help="What both sides of via-*, bip-*, msg-via and msg-bip do to the frames that they send: loss=1%,dup=1%,"
    "reorder=1%,corrupt=1%,delay=200us,jitter=50us,stall=10ms/100ms,seed=7.",
)
@click.option(
    "--retransmission", type=click.Choice(["selective", "go_back_n"]), help="How via-* repeats what was lost."
)
@click.option(
    "--checksum",
    type=click.Choice(["auto", "crc"]),
    help="Of via-eth and via-udp: CRC32C over every byte, or long messages' data left to UDP's, as TCP does.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Policy of msg-*: mpich-p4, lam-c2c, mvich-rget ..., or fields of it: via,eager_limit=64K,credits=16.",
)
@click.option("--network", type=click.Choice(["eth", "udp"]), help="What msg-via and msg-bip take between two hosts.")
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
    """Measure protocols over message sizes, interleaved point by point.

    \b
    viakit sweep via-eth tcp --sizes 64              latency on one wire, two hosts
    viakit sweep via-eth tcp --mode stream --sizes 4M
    viakit sweep via-shm mpi:openmpi mpi:mpich --sizes 1:4M --json shm.json --plot shm.png

    `viakit protocols` lists what can be measured.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.measure import ladder, plot, result
    from viakit.measure import sweep as sweeping

    result.check_writable(*(one for one in (json_file, csv_file, tap_file, *plot_files) if one not in (None, "-")))
    for name in plot_files:
        plot.check_format(name)
    if against is not None and against not in protocols:
        raise Failure(f"--against {against}: not among the protocols to measure ({', '.join(protocols)})", 2)
    config = sweeping.Config(protocols=list(protocols), sizes=ladder.parse_sizes(sizes, perturb), **options)
    to_stdout = live or "-" in (json_file, csv_file)
    with _tapped(tap_file), progress_bar(f"sweep of {', '.join(protocols)}", quiet) as on_progress:
        outcome = sweeping.run(config, on_progress=on_progress, on_point=_print_point if live else None)
    _finish(outcome, json_file, csv_file, plot_files, quiet=quiet or to_stdout, against=against)


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
    outcome: Outcome,
    json_file: str | None,
    csv_file: str | None,
    plot_files: Sequence[str],
    *,
    quiet: bool,
    against: str | None,
) -> None:
    """Write and print what was asked for, and end with the status that the outcome deserves."""
    from viakit.measure import plot, result, table

    document = outcome.document
    has_points = any(one["points"] for one in document["series"])
    result.validate(document)
    error = None if outcome.error is None else f"{outcome.error} (what had been measured by then is kept)"
    deliver(
        [(json_file, lambda: result.to_bytes(document)), (csv_file, lambda: result.to_csv(document).encode())],
        [(name, lambda name: plot.save([document], name)) for name in (plot_files if has_points else ())],
        show=lambda console: table.show(document, console, against),
        quiet=quiet,
        interrupted=outcome.interrupted,
        error=error,
    )


@click.command()
@click.argument("links", nargs=-1, metavar="[shm|eth|udp|tcp]...")
@click.option(
    "--what",
    type=click.Choice(["all", "bip", "messages"]),
    default="all",
    show_default=True,
    help="BIP's pipeline, or the thresholds of the message engine.",
)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Time for each measurement, about.")
@click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")
@click.option(
    "--plot", "picture", metavar="P", help="Draw model and measurement; several links: P with the link's name."
)
@click.option("--dry-run", is_flag=True, help="Show the calibration and do not keep it.")
def calibrate(
    links: tuple[str, ...], what: str, seconds: float, rate: str | None, picture: str | None, dry_run: bool
) -> None:
    """Measure BIP's pipeline and the engine's thresholds; keep what follows. Default: all links, wires on a testbed."""
    from viakit import calibrate as calibration
    from viakit._calibrate_messages import LINKS, calibrate_messages
    from viakit.testbed import Testbed, parse_rate

    for link in links:
        if link not in LINKS:
            raise click.UsageError(f"{link!r} is no link that can be calibrated: give shm, eth, udp or tcp")
    if rate is not None:
        parse_rate(rate)  # before anything is measured
    if not 0 < seconds <= 1e6:
        raise Failure(f"--seconds is {seconds:g}: give the time that a measurement may take, for instance 10", 2)
    pipelines = [link for link in links or LINKS if what != "messages" and link != "tcp"]
    if not pipelines and (picture is not None or what == "bip"):
        asked = "--what bip measures" if what == "bip" else "--plot draws"
        raise Failure(f"{asked} BIP's pipeline, for which there are shm, eth and udp, without --what messages", 2)
    pictures = {}
    if picture is not None:
        one = Path(picture)
        pictures = {link: one if len(links) == 1 else one.with_stem(f"{one.stem}-{link}") for link in pipelines}
        check_outputs(None, [str(place) for place in pictures.values()])
    for link in links or LINKS:
        with contextlib.ExitStack() as stack:
            testbed = None if link == "shm" else stack.enter_context(Testbed(hosts=2, rate=rate))
            options: dict[str, Any] = {"testbed": testbed, "seconds": seconds}
            options["say"] = lambda text: click.echo(text, err=True)
            pipeline = calibration.calibrate(link, **options) if link in pipelines else None
            thresholds = calibrate_messages(link, **options) if what != "bip" else None
        if pipeline is not None:
            click.echo(pipeline.text(), nl=False)
            click.echo(f"# model against measurement: {pipeline.error:.0%} apart (median)")
        if thresholds is not None:
            click.echo(thresholds.text(), nl=False)
        for found in (pipeline, thresholds):
            if found is not None and not dry_run:
                click.echo(f"wrote {found.save()}")
        if pipeline is not None and link in pictures:
            calibration.save_picture(pipeline, str(pictures[link]))
            click.echo(f"wrote {pictures[link]}")
