"""The cost of loss: goodput, retransmissions and acknowledgements of a stream over a wire that loses frames.

::

    document = measure("via-udp", losses=[0, 0.01, 0.05])
    figure(document)

Two methods are compared. Selective retransmission sends only the missing frames again. Go-back-N also retransmits all
frames after the missing one. Both methods are measured at every loss, in rounds: in each round every combination gets
one burst, in random order. The ratio to the lossless stream is therefore formed from bursts that are neighbours in
time, and drift cancels. The faults are those of :class:`viakit.via.Faults`, which the sender injects; the machine needs
no configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import testbed as testbeds
from viakit.base.sheet import sheet
from viakit.measure import endpoints, plot
from viakit.measure import pair as pairs
from viakit.measure.environment import of_machines
from viakit.measure.look import looks
from viakit.measure.plan import Config, Series, is_remote
from viakit.measure.plan import check as sweep_check
from viakit.measure.result import Document, ResultError
from viakit.measure.sweep import OnPoint, Point, describe, two_hosts
from viakit.measure.table import format_bandwidth
from viakit.measure.turns import Turns, count_for

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console

__all__ = ["LOSSES", "check", "figure", "measure", "show"]

LOSSES = (0.0, 0.001, 0.01, 0.02, 0.05)
MOST = 0.5  # With higher loss a stream makes almost no progress.
BURST_S = 0.03
MAX_COUNT = 2000
COUNTED = ("frames_sent", "frames_retransmitted", "acks_sent")
OnProgress = Callable[[float, float, str], "float | None"]
RETRANSMISSIONS = tuple(endpoints.VIA_CHOICES["retransmission"])


class _Stream(Point):
    """One method at one loss: its pair while that is open, and all its bursts."""

    def __init__(self, config: Config, hosts: str, retransmission: str, loss: float) -> None:
        super().__init__(config.sizes[0])
        (name,) = config.protocols
        self.config, self.of = config, Series(name, endpoints.lookup(name), "c", hosts)
        self.retransmission, self.loss = retransmission, loss
        self.pair: Any = None
        self.info: dict[str, Any] = {}
        self.since_s: list[float] = []
        self.per_message: dict[str, list[float]] = {key: [] for key in COUNTED}
        self.count = 4

    def options(self, seed: int) -> dict[str, Any]:
        """Return the options of the pair."""
        return {"retransmission": self.retransmission} | (
            {"fault": f"loss={self.loss:g},seed={seed}"} if self.loss else {}
        )

    def announce(self, turns: Turns) -> None:
        """Make this stream the current subject."""
        turns.doing(self.of.name, f"{self.retransmission}, {self.loss:.2%} of frames lost", self.nbytes)

    def burst(self, number: int, turns: Turns) -> None:
        """Run one burst."""
        self.announce(turns)
        done = self.pair.run(self.nbytes, mode="stream", count=self.count, warmup=1)
        self.take(done, number)
        self.since_s.append(round(turns.clock.passed_s, 3))
        for key in COUNTED:
            self.per_message[key].append(done.counters.get(key, 0) / max(done.counters["messages"], 1))
        self.count = count_for(BURST_S, float(np.median(done.one_way_s)), 4, MAX_COUNT)

    def series(self) -> dict[str, Any]:
        """Return the series for the result, without its point."""
        which = {"loss": self.loss, "retransmission": self.retransmission}
        return {**describe(self.of, self.config, self.info), **which}

    def point(self) -> dict[str, Any]:
        """Return the current state of the point."""
        per_message = {key: list(values) for key, values in self.per_message.items()}
        return {**self.as_dict("stream"), "since_s": list(self.since_s), "per_message": per_message}


class _Run:
    """State of a measurement: all streams, and the number of rounds."""

    def __init__(
        self,
        config: Config,
        hosts: str,
        ways: list[str],
        on_progress: OnProgress | None,
        on_point: OnPoint | None,
        pair_class: Any,
    ) -> None:
        self.config, self.hosts, self.ways = config, hosts, ways
        self.on_progress, self.on_point, self.pair_class = on_progress, on_point, pair_class
        self.streams: dict[tuple[float, str], _Stream] = {}
        self.number = 0

    def measured(self) -> list[_Stream]:
        """Return the streams with at least one burst."""
        return [one for one in self.streams.values() if one.bursts]

    def measure(self, losses: list[float], turns: Turns, testbed: Any, follow: bool) -> None:
        """Measure all losses in turns, or with *follow* one after the other."""
        wish = self._together(losses[:1] if follow else losses, turns, testbed, follow)
        while wish is not None:
            wish = self._together([wish], turns, testbed, follow)

    def _together(self, losses: list[float], turns: Turns, testbed: Any, follow: bool) -> float | None:
        """Measure streams at these losses in turns; with *follow* until ``on_progress`` returns another loss."""
        words = f"{losses[0]:.2%} of frames lost" if len(losses) == 1 else f"{len(losses)} losses in turns"
        with contextlib.ExitStack() as stack:
            group = []
            for loss, way in ((loss, way) for loss in losses for way in self.ways):
                one = self.streams.setdefault((loss, way), _Stream(self.config, self.hosts, way, loss))
                one.announce(turns)
                name, options = one.of.name, one.options(turns.seed)
                one.pair = stack.enter_context(self.pair_class(name, testbed=testbed, options=options))
                one.info = dict(one.pair.info)
                group.append(one)
            if not self.number:
                turns.clock.restart()
            for _, order in turns.rounds([group]):
                for one in order:
                    one.burst(self.number, turns)
                    if self.on_point is not None:
                        self.on_point(one.series(), one.point())
                self.number += 1
                clock, wish = turns.clock, None
                if self.on_progress is not None:
                    wish = self.on_progress(clock.fraction, clock.left_s, f"{words}, round {self.number}")
                if follow and wish is not None and wish != losses[0] and 0.0 <= wish <= MOST:
                    return float(wish)
        return None


def check(protocol: str, nbytes: int, losses: Sequence[float], retransmissions: Sequence[str], seconds: float) -> None:
    """Raise ValueError for invalid arguments of :func:`measure`, without starting anything."""
    known = endpoints.lookup(protocol)
    if "retransmission" not in known.options or known.in_one_process:
        raise ValueError(f"{protocol} does not support faults; expected via-udp, via-eth, via-shm, or bip-*")
    if not 1 <= nbytes <= known.max_bytes:
        raise ValueError(f"nbytes is {nbytes}; expected a size from 1 to {known.max_bytes}")
    if not losses or any(not 0.0 <= one <= MOST for one in losses):
        raise ValueError(f"losses are {list(losses)}; expected fractions from 0 to {MOST}, for instance 0.01")
    wrong = [one for one in retransmissions if one not in RETRANSMISSIONS]
    if wrong or not retransmissions:
        raise ValueError(f"retransmissions are {list(retransmissions)}; expected some of {RETRANSMISSIONS}")
    if not seconds > 0:
        raise ValueError(f"seconds is {seconds}; expected the time for measurements, for instance 10")


def _where(config: Config) -> str:
    """Return the kind of hosts of a measurement, as a series has it. Refuses options that do not fit two machines."""
    if is_remote(config.hosts):
        sweep_check(config)
        return "ssh"
    (name,) = config.protocols
    wire = config.mtu is not None or "testbed" in endpoints.lookup(name).needs
    return config.hosts if config.hosts != "auto" else "testbed" if wire else "local"


def measure(
    protocol: str = "via-udp",
    *,
    nbytes: int = 65536,
    losses: Sequence[float] = LOSSES,
    retransmissions: Sequence[str] = RETRANSMISSIONS,
    seconds: float = 10.0,
    hosts: str = "auto",
    mtu: int | None = None,
    network: str | None = None,
    python: str | None = None,
    seed: int | None = None,
    follow: bool = False,
    command: str | None = None,
    on_progress: OnProgress | None = None,
    on_point: OnPoint | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Document:
    """Measure streams over a wire that loses frames.

    Parameters
    ----------
    protocol : str
        One of via-* and bip-*.
    nbytes : int
        Size of each message in bytes.
    losses : sequence of float
        Fractions of lost frames, in both directions; measured in turns. 0 is the reference for the others.
    retransmissions : sequence of {"selective", "go_back_n"}
        Methods of retransmission.
    seconds : float
        Time for measurements, without start and stop. The first round is always completed.
    hosts, mtu, network, python
        As for a sweep.
    seed : int, optional
        Seed of the losses and of the order.
    follow : bool
        Measure one loss at a time: begin with the first one, and continue with each loss that *on_progress* returns,
        until the time is over.
    command : str, optional
        Command line for the result. Default: that of this process.
    on_progress : callable, optional
        Called between rounds with the completed fraction, the seconds left and a text. With *follow* it returns the
        next loss, or None. A KeyboardInterrupt from it ends the run.
    on_point : callable, optional
        Called after each burst with its series (without points) and the current state of its point.
    pair_class, testbed_class : type, optional
        Classes to use instead of :class:`viakit.measure.pair.Pair` and :class:`viakit.testbed.Testbed`.

    Returns
    -------
    dict
        A ``viakit.result/1``. Its series have ``loss`` and ``retransmission``. Its points also have, for each burst,
        ``since_s`` (the time of its end, from the start) and ``per_message``: frames sent, retransmitted frames, and
        acknowledgements. After Ctrl-C or a failure, which ``errors`` names, it has the measurements so far.

    Raises
    ------
    ValueError
        If an argument is invalid.
    MeasureError, OSError, RuntimeError
        If the pair or the testbed cannot be started, or fails before the first measurement.
    """
    check(protocol, nbytes, losses, retransmissions, seconds)
    config = Config([protocol], [nbytes], hosts, mtu, mode="stream", seconds=seconds, network=network, python=python)
    where = _where(config)
    this = _Run(config, where, list(dict.fromkeys(retransmissions)), on_progress, on_point, pair_class or pairs.Pair)
    turns = Turns(seconds, seed, command=command, kept=this.measured)
    with turns, contextlib.ExitStack() as around:
        testbed = None
        if where in ("testbed", "ssh"):
            testbed = around.enter_context(two_hosts(config, testbed_class or testbeds.Testbed, mtu))
            turns.machines = of_machines(testbed) if where == "ssh" else {}
        this.measure(list(dict.fromkeys(losses)), turns, testbed, follow)
    found = [{**one.series(), "points": [one.point()]} for one in this.measured()]
    return turns.document(sorted(found, key=lambda one: (one["retransmission"], one["loss"])))


# ------------------------------------------------------------------------------------------------ display


def per_message(point: Mapping[str, Any], key: str) -> float:
    """Return a counter of a point per message."""
    return point["counters"].get(key, 0) / max(point["counters"]["messages"], 1)


def show(document: Mapping[str, Any], console: Console) -> None:
    """Print a result as a table with one row for each method and loss."""
    heads = ("protocol", "method", ">loss", ">goodput", ">of lossless", ">frames", ">retransmitted")
    table = sheet(*heads, ">acknowledgements", title="[bold]Loss[/bold]")
    last = None
    for one in document["series"]:
        point = one["points"][0]
        clean = next(
            (
                other["points"][0]["bandwidth_Bps"]
                for other in document["series"]
                if other["loss"] == 0 and other["retransmission"] == one["retransmission"]
            ),
            None,
        )
        if last not in (None, one["retransmission"]):
            table.add_section()
        last = one["retransmission"]
        part = f"{point['bandwidth_Bps'] / clean:.2f}" if clean else "-"
        counts = [f"{per_message(point, key):.2f}" for key in COUNTED]
        table.add_row(
            one["protocol"], last.replace("_", "-"), f"{one['loss']:.2%}", format_bandwidth(point["bandwidth_Bps"]),
            part, *counts,
        )  # fmt: skip
    console.print(table)
    console.print("frames, retransmitted, acknowledgements: per message, sum of both sides")


def figure(document: Mapping[str, Any], *, title: str | None = None) -> Figure:
    """Draw goodput, retransmissions and acknowledgements over loss.

    Raises
    ------
    ResultError
        If the result has no points.
    """
    from matplotlib.figure import Figure  # start-up time

    if not any(one["points"] for one in document["series"]):
        raise ResultError("the result has no points to draw")
    drawing = Figure(figsize=(12, 4), layout="constrained", dpi=110)
    left, middle, right = drawing.subplots(1, 3)
    chosen = looks(one["retransmission"] for one in document["series"])
    for way in chosen:
        mine = sorted((one for one in document["series"] if one["retransmission"] == way), key=lambda one: one["loss"])
        percent = [100 * one["loss"] for one in mine]
        points = [one["points"][0] for one in mine]
        style = {**chosen[way].line(), "label": way.replace("_", "-")}
        left.plot(percent, [point["bandwidth_Bps"] for point in points], **style)
        middle.plot(percent, [per_message(point, "frames_retransmitted") for point in points], **style)
        right.plot(percent, [per_message(point, "acks_sent") for point in points], **style)
    for axes, words in ((left, "goodput"), (middle, "retransmitted frames per message"),
                        (right, "acknowledgements per message")):  # fmt: skip
        axes.set_xlabel("frames lost, %")
        axes.set_ylabel(words)
        axes.set_ylim(bottom=0)
        axes.grid(True, alpha=0.3)
    plot.rates(left.yaxis)
    plot.names_at_lines(right)
    drawing.suptitle(title or f"{document['series'][0]['protocol']}: the cost of loss", parse_math=False)
    return drawing
