"""The command ``viakit sweep``: message times of protocols, in turns."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from viakit.cli.base import Delay, Failure, Several, Size, deliver, memory_options, progress_bar, wire_options
from viakit.cli.job import two_sides
from viakit.measure import ladder, plot, result

if TYPE_CHECKING:
    from viakit.measure.sweep import Outcome

__all__ = ["sweep"]

_LEAST_INTERVAL_S = 0.2  # between two drawings
_MOST_SHARE = 0.2  # largest share of the time for drawing
_DRAWN_WITHIN_S = 0.5  # limit of the wait for a reader that is busy
_LIVE_KEY = ("protocol", "link", "hosts", "mtu", "mode", "wait", "level", "memory", "buffers")
_LIVE_MORE = ("sockbuf", "wire")  # only of some series


@click.command()
@click.argument("protocols", nargs=-1, required=True, metavar="PROTOCOL...")
@click.option(
    "--hosts",
    metavar="auto|local|testbed|ssh:A,B|job",
    default="auto",
    show_default=True,
    callback=two_sides,
    help="Run on this host, on two testbed hosts in network namespaces (no root needed), or on two machines that ssh "
    "reaches (ssh:B: this one and B); auto: the testbed if a protocol needs it. job: on the two hosts of the "
    "job of mpirun or srun, the default there.",
)
@click.option("--python", metavar="PATH", help="Interpreter with viakit on the machines of --hosts ssh:.")
@click.option(
    "--machine",
    metavar="NAME|FILE",
    help="Run via, bip, msg-via, msg-bip on a described machine, in virtual time: `viakit machines` lists them.",
)
@click.option(
    "--mtu",
    type=Several(click.INT),
    metavar="LIST",
    help="MTU of the testbed's wire, bytes; several, 1500,9000, make a grid.  [default: 1500]",
)
@click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")
@click.option(
    "--interface", help="Interface of this host, or two (IF0,IF1), for via-eth and via-verbs with --hosts local."
)
@click.option(
    "--sockbuf",
    type=Several(Size("auto")),
    metavar="LIST",
    help="Socket buffers of tcp, udp, unix, zmq and msg-tcp, bytes; several, 64K,128K, make a grid; auto: of tcp the "
    "best, tried first.",
)
@functools.partial(wire_options, sweep=True)
@click.option(
    "--delay",
    type=Several(Delay()),
    metavar="LIST",
    help="One-way delay of every frame between testbed hosts, for each protocol: 50us, 1ms; several, 0,1ms,10ms, make "
    "a grid.  [default: none]",
)
@memory_options
@click.option(
    "--offset", type=click.IntRange(0, 4095), default=0, show_default=True, help="Offset of each message in its page."
)
@click.option(
    "--mode",
    type=click.Choice(["pingpong", "stream", "bidir", "overlap", "rate"]),
    default="pingpong",
    show_default=True,
    help="Half the round trip; a stream's bandwidth; both directions; the time that computing beside a message cannot "
    "use; messages per second.",
)
@click.option(
    "--wait",
    type=click.Choice(["poll", "block", "hybrid"]),
    default="poll",
    show_default=True,
    help="Wait by polling, by sleeping in the kernel, or by polling for 50 µs before sleeping (hybrid).",
)
@click.option(
    "--level",
    type=click.Choice(["c", "python", "both"]),
    help="Language of the measuring loop.  [default: C where available]",
)
@click.option(
    "--form",
    type=click.Choice(["plain", "udp", "auto"]),
    help="Frames of via-eth: with a separate EtherType, encapsulated in UDP, or chosen automatically.",
)
@click.option(
    "--reliability",
    type=click.Choice(["unreliable", "delivery", "reception"]),
    help="Reliability level of via-*; bip-* has unreliable and delivery.",
)
@click.option(
    "--fault",
    metavar="LIST",
    help="Faults injected by both sides of via-*, bip-*, msg-via and msg-bip into frames they send: loss=1%,dup=1%,"
    "reorder=1%,corrupt=1%,delay=200us,jitter=50us,stall=10ms/100ms,seed=7.",
)
@click.option(
    "--retransmission", type=click.Choice(["selective", "go_back_n"]), help="Retransmission of lost frames by via-*."
)
@click.option(
    "--checksum",
    type=click.Choice(["auto", "crc"]),
    help="Checksum of via-eth and via-udp: crc: CRC32C over every byte; auto: UDP's checksum for long messages' data.",
)
@click.option(
    "--policy",
    metavar="NAME",
    help="Policy of msg-* that name none: mpich-p4, lam-c2c, mvich-rget ..., or with changes: via,eager_limit=64K,"
    "credits=16.",
)
@click.option(
    "--network",
    metavar="LINK",
    help="Link of msg-via and msg-bip between two hosts of the testbed: eth or udp. With --hosts ssh: the data's wire, "
    "eth:IF, udp:ADDRESS (or a network: udp:10.0.0.0/24) or verbs:DEVICE.  [default there: a network that both have]",
)
@click.option(
    "--sizes",
    default="1:4M",
    show_default=True,
    metavar="LIST",
    help="Message sizes in bytes: 64 | 1,64,4K | 1:4M (a range is NetPIPE's ladder).",
)
@click.option(
    "--perturb", type=int, default=3, show_default=True, help="Bytes around each step of the ladder; 0: none."
)
@click.option("--seconds", type=float, default=10.0, show_default=True, help="Time for the whole sweep.")
@click.option("--validate", is_flag=True, help="Check every byte of every message.")
@click.option("--seed", type=int, help="Seed for the order of the points.  [default: random, recorded in the result]")
@click.option("--against", metavar="PROTOCOL", help="Reference protocol for the ratios.  [default: the first]")
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
    "--live", is_flag=True, help="Print each point as a line of JSON when it is measured or refined, and no table."
)
@click.option(
    "--tap",
    "tap_file",
    metavar="F",
    help="Capture the frames of via-* (pcapng, for Wireshark), at most 256 MiB per process. This slows them down.",
)
@click.option("--quiet", "-q", is_flag=True, help="Show neither progress nor table.")
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
    """Measure protocols over a range of message sizes, interleaved point by point.

    \b
    viakit sweep via-eth tcp --sizes 64              latency on one wire, two hosts
    viakit sweep via-eth tcp --mode stream --sizes 4M
    viakit sweep tcp msg-tcp:mpich-p4 msg-tcp:lam-c2c msg-via:mvich-rput --hosts testbed
    viakit sweep tcp --mtu 1500,9000 --sockbuf 64K,128K --sizes 64,4M
    viakit sweep tcp via-eth --delay 0,1ms,10ms --wait block --sizes 64,1M
    viakit sweep via-shm mpi:openmpi mpi:mpich --sizes 1:4M --json shm.json --plot shm.png

    `viakit protocols` lists what can be measured. A protocol of the message engine may name its policy after a colon.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    from viakit.measure import sweep as sweeping  # start-up time

    result.check_writable(*(one for one in (json_file, csv_file, tap_file, *plot_files) if one not in (None, "-")))
    for name in plot_files:
        plot.check_format(name)
    if against is not None and against not in protocols:
        raise Failure(f"--against {against}: expected one of the protocols to measure ({', '.join(protocols)})", 2)
    config = sweeping.Config(protocols=list(protocols), sizes=ladder.parse_sizes(sizes, perturb), **options)
    to_stdout = live or "-" in (json_file, csv_file)
    with _tapped(tap_file), progress_bar(f"sweep of {', '.join(protocols)}", quiet) as on_progress:
        outcome = sweeping.run(config, on_progress=on_progress, on_point=_Printer() if live else None)
    _finish(outcome, json_file, csv_file, plot_files, quiet=quiet or to_stdout, against=against)


@contextlib.contextmanager
def _tapped(file: str | None) -> Iterator[None]:
    """Capture the frames of the NICs in the meantime into one file; None: no capture."""
    if file is None:
        yield
        return
    from viakit import trace  # start-up time

    with trace.recording(events=False, snap_bytes=None, file_bytes=256 << 20) as taken:
        yield
    trace.merge(taken.capture(), file)


class _Printer:
    """Prints each point as one line of JSON, at once, for programs that follow a sweep.

    With VIAKIT_LIVE_PACED=1 it prints {"draw": true} from time to time, and then waits for a line on standard input, so
    that a reader can draw before the next burst.
    """

    def __init__(self) -> None:
        self._paced = os.environ.get("VIAKIT_LIVE_PACED") == "1"
        self._next = 0.0

    def __call__(self, series: Mapping[str, Any], point: dict[str, Any]) -> None:
        """Print a point."""
        key = {name: series[name] for name in _LIVE_KEY} | {name: series[name] for name in _LIVE_MORE if name in series}
        names = ("nbytes", "one_way_s", "bandwidth_Bps", "samples", "touch_s")
        short = {name: point[name] for name in names if name in point}
        click.echo(json.dumps({**key, **short}))
        began = time.monotonic()
        if not self._paced or began < self._next:
            return
        click.echo('{"draw": true}')
        ready, _, _ = select.select([0], [], [], _DRAWN_WITHIN_S)
        if ready and not os.read(0, 4096):
            self._paced = False  # the reader has ended
        now = time.monotonic()
        self._next = now + max(_LEAST_INTERVAL_S, (now - began) * (1 / _MOST_SHARE - 1))


def _finish(
    outcome: Outcome,
    json_file: str | None,
    csv_file: str | None,
    plot_files: Sequence[str],
    *,
    quiet: bool,
    against: str | None,
) -> None:
    """Write and print the requested results, and exit with the status of the outcome."""
    from viakit.measure import table  # start-up time

    document = outcome.document
    has_points = any(one["points"] for one in document["series"])
    result.validate(document)
    error = None if outcome.error is None else f"{outcome.error} (the measurements so far are kept)"
    deliver(
        [(json_file, lambda: result.to_bytes(document)), (csv_file, lambda: result.to_csv(document).encode())],
        [(name, lambda name: plot.save([document], name)) for name in (plot_files if has_points else ())],
        show=lambda console: table.show(document, console, against),
        quiet=quiet,
        interrupted=outcome.interrupted,
        error=error,
    )
