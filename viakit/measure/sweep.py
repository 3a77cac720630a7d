"""Sweeps: a fair comparison of several protocols over many sizes.

A sweep keeps a pair of processes open for each protocol, and measures in turns (:mod:`.turns`)::

    round 0:   size 4096: tcp, via-eth, udp     size 1: udp, tcp, via-eth     size 64: ...
    round 1:   size 64:   via-eth, udp, tcp     size 4096: ...

Each round visits every size once, in random order. At each size every protocol gets one burst of a few milliseconds,
again in random order; the result records the seed. Bursts of one round and size are neighbours in time. The ratio of
two protocols is computed round by round, so that drift cancels (:mod:`.stats`).

A size is finished when the 95 % interval of every protocol's median is tight. The sweep ends when all sizes are
finished, or when the time is over. The first round is always completed, so that each point has at least one burst.

During a burst this process sleeps. It draws no progress bar and computes no statistics on the cores under measurement.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from viakit import machines
from viakit import testbed as testbeds
from viakit.measure import ladder, sockbuf, stats
from viakit.measure import pair as pairs
from viakit.measure.endpoints import MeasureError
from viakit.measure.environment import of_machines
from viakit.measure.foreign import NETPIPE_PEERS, best_of_trials
from viakit.measure.plan import (
    FLOOR_NBYTES,
    ONE_WAY,
    Config,
    Series,
    UsageError,
    check,
    is_remote,
    plan,
    remote_hosts,
    wire_of,
)
from viakit.measure.result import Document
from viakit.measure.turns import Bursts, Turns, count_for, shielded

__all__ = ["Config", "Outcome", "Point", "Progress", "UsageError", "check", "describe", "run", "two_hosts"]

MIN_ROUNDS = 11  # bursts of a point before its interval may end it
LONGEST_BURST_S = 0.010
SHORTEST_BURST_S = 0.000_5
STREAM_BURST_S = 0.050
# The time of a stream includes the transit of the first message and of the last. Over eth at 4 MiB each takes about as
# long as one message: a third of the time of a burst of two messages, a twentieth of one of 16.
STREAM_MESSAGES = 16  # messages of a burst of a stream at least, ...
STREAM_NBYTES = 64 << 20  # ... or as many as have this number of bytes, ...
STREAM_LEAST_S = 0.020  # ... unless they take longer than this and than the burst's share of the sweep
MAX_COUNT = 10_000
FIRST_COUNT = 20  # limit of the messages in the very first burst of a series, ...
FIRST_NBYTES = 1 << 20  # ... and of their bytes, because the speed of the wire is not yet measured
ROUNDS_TO_ADAPT = 3
VIRTUAL_COUNT = 10  # round trips in virtual time, where all are equal once buffers and queues are in use
VIRTUAL_STREAM = 64  # messages of a stream there; so the first message's way and the reply are a small part

OnPoint = Callable[[Mapping[str, Any], dict[str, Any]], None]


@dataclass(frozen=True)
class Progress:
    """Progress of a sweep: *fraction* in [0, 1], *left_s* (upper limit in seconds), and a text."""

    fraction: float  #: Finished part, 0 to 1.
    left_s: float  #: Upper limit of the time that remains, in seconds.
    text: str  #: The endpoint and the size that are measured now.


@dataclass
class Outcome:
    """Outcome of a sweep.

    ``document`` is always a valid result. ``interrupted`` is true after Ctrl-C, and ``error`` is set if a protocol
    failed.
    """

    document: Document  #: The result, valid in each case.
    interrupted: bool = False  #: Whether Ctrl-C ended the sweep.
    error: Exception | None = None  #: Failure of a protocol that ended the sweep.

    @property
    def complete(self) -> bool:
        """Whether the sweep was neither interrupted nor ended by an error."""
        return bool(self.document["complete"])


# ------------------------------------------------------------------------------------------------ points


class Point(Bursts):
    """A protocol at one size, with all its bursts."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes
        self.counters: Counter[str] = Counter()
        self.messages = self.lost = 0
        self.alone: list[float] = []  # overlap: medians of the bursts' times without computing
        self.touch_s: float | None = None
        self.bests: list[float] | None = None  # beside NetPIPE: of each burst the best time, as NetPIPE reports it

    def take(self, samples: Any, number: int) -> None:
        """Add a run of a :class:`viakit.measure.pair.Pair`."""
        self.add(samples.one_way_s, number)
        counters = dict(samples.counters)
        self.messages += int(counters.pop("messages"))  # includes the warm-up, as the counters do
        self.counters.update({key: int(value) for key, value in counters.items()})
        self.lost += int(samples.lost)
        self.touch_s = samples.touch_s
        if self.bests is not None:
            self.bests.append(best_of_trials(samples.one_way_s))
        if getattr(samples, "alone_s", None) is not None:
            self.alone.append(float(np.median(samples.alone_s)))

    @property
    def paces(self) -> list[float]:
        """The one-way time of each burst, by which the next one's length is chosen."""
        return self.alone or self.medians

    def as_dict(self, mode: str) -> dict[str, Any]:
        """Return the point as in a result file."""
        times = self.times("one_way_s")
        factor = 2 if mode == "bidir" else 1
        return {
            "nbytes": self.nbytes,
            **times,
            "bandwidth_Bps": factor * self.nbytes / max(times["one_way_s"]["median"], 1e-12),
            "counters": {**dict(sorted(self.counters.items())), "messages": self.messages},
            **({"lost": self.lost} if self.lost else {}),
            **({"bursts_best_s": list(self.bests)} if self.bests else {}),
            **({"touch_s": self.touch_s} if self.touch_s is not None else {}),
            **(self._overlap() if self.alone else {}),
        }

    def _overlap(self) -> dict[str, Any]:
        """Return the fields of mode overlap: the time alone, and the share of it that computing could use."""
        alone_s = float(np.median(self.alone))
        found: dict[str, Any] = {"median": 1.0 - float(np.median(self.medians)) / alone_s}
        if len(self.alone) >= stats.MIN_BURSTS:
            ratio = stats.ratio_of_medians(self.medians, self.alone, paired=True)
            ends = (1.0 - ratio.high, 1.0 - ratio.low)
            found["ci95"] = [min(ends[0], found["median"]), max(ends[1], found["median"])]
        return {"alone_s": alone_s, "bursts_alone_s": list(self.alone), "overlap": found}


def describe(one: Series, config: Config, info: dict[str, Any]) -> dict[str, Any]:
    """Return a series as in a result file, without its points. *info* is that of its pair."""
    mtu = info.get("mtu")
    if mtu is None and one.hosts == "testbed":
        mtu = one.mtu or 1500
    overhead = info.get("loop_overhead_s")
    return {
        "protocol": one.name,
        "link": one.protocol.link,
        "hosts": one.hosts,
        "mtu": int(mtu) if mtu else None,
        "mode": config.mode,
        "wait": config.wait,
        "level": one.level,
        "memory": memory_of(one, config),
        "buffers": _buffers(one, config),
        **({"sockbuf": one.sockbuf} if isinstance(one.sockbuf, int) else {}),
        **({"offset": config.offset} if config.offset else {}),
        **({"wire": wire} if (wire := _wire(config, one)) else {}),
        **({"delay_s": one.delay} if one.delay is not None else {}),
        "one_way": ONE_WAY[config.mode],
        "loop_overhead_s": float(overhead) if overhead is not None else None,
        "info": info,
    }


def _wire(config: Config, one: Series) -> str:
    """Return the unusual properties of a series' wire as text; "" for a usual one."""
    if one.hosts != "testbed":
        return ""
    return wire_of(config, one.delay).text()


def _buffers(one: Series, config: Config) -> str:
    """Return the use of the buffers of a series.

    The floor measures the machine's limit: no bytes but its own counter. In virtual time touching takes no time.
    """
    if one.is_floor or config.machine is not None:
        return "same"
    return config.buffers if config.buffers in one.protocol.buffers else one.protocol.buffers[0]


def memory_of(one: Series, config: Config) -> str:
    """Return the source of the buffers of a series."""
    return config.memory if one.protocol.allocates else "user"


class _Point(Point):
    """A series at one size, and the number of messages of its next burst."""

    def __init__(self, series: Series, nbytes: int) -> None:
        super().__init__(nbytes)
        self.series = series
        self.count: int | None = None


class _Run:
    """State of a sweep: pairs, points and turns."""

    def __init__(
        self,
        config: Config,
        series: list[Series],
        turns: Turns,
        on_point: OnPoint | None,
        on_progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self.config, self.series, self.turns = config, series, turns
        self.on_point, self.on_progress, self.stop = on_point, on_progress, stop
        # By MTU and delay; machines that ssh reaches have neither.
        self.testbeds: dict[tuple[int | None, float | None], Any] = {}
        self.pairs: dict[Series, Any] = {}
        self.infos: dict[Series, dict[str, Any]] = {}
        self.points: list[_Point] = []
        self.burst_s = LONGEST_BURST_S
        self.in_turns = config.mode in ("pingpong", "overlap")

    # -------------------------------------------------------------------------------- starting

    def open(self, stack: contextlib.ExitStack, pair_class: Any, testbed_class: Any, wants_testbed: bool) -> None:
        """Open the testbed and a pair per series; *stack* closes them."""
        config = self.config
        machine = machines.load(config.machine) if config.machine is not None else None
        if wants_testbed:
            self._report_progress("connecting to both hosts" if is_remote(config.hosts) else "making two hosts")
            try:
                apart = [one for one in self.series if one.hosts not in ("local", "machine")]
                for mtu, delay in dict.fromkeys((one.mtu, one.delay) for one in apart):
                    testbed = stack.enter_context(two_hosts(config, testbed_class, mtu, delay))
                    self.testbeds[mtu, delay] = testbed
                    self.turns.machines = of_machines(testbed) if is_remote(config.hosts) else {}
            except (OSError, RuntimeError) as error:
                if not config.skip_unavailable:
                    raise
                self.turns.skipped |= {one.name: str(error) for one in self.series if one.hosts != "local"}
                self.series = [one for one in self.series if one.hosts == "local"]
        for one in list(self.series):
            self._report_progress(f"starting {one.name}")
            with self._skipping(one):
                pair = pair_class(
                    one.name,
                    testbed=self.testbeds[one.mtu, one.delay] if one.hosts not in ("local", "machine") else None,
                    wait="poll" if one.is_floor else config.wait,
                    level=one.level,
                    sockbuf=one.sockbuf if isinstance(one.sockbuf, int) else None,
                    memory=memory_of(one, config),
                    buffers=_buffers(one, config),
                    options=_options(one, config),
                    timeout_s=config.timeout_s,
                    **({"machine": machine} if machine is not None else {}),
                )
                self.pairs[one] = stack.enter_context(pair)
                self.infos[one] = dict(pair.info)

    @contextlib.contextmanager
    def _skipping(self, one: Series) -> Iterator[None]:
        """Leave out a series that cannot be measured on this machine, if the configuration allows it."""
        try:
            yield
        except MeasureError as error:
            # The user did not name the floor: the sweep continues without it.
            if not (self.config.skip_unavailable or one.is_floor):
                raise
            self.turns.skipped[one.name] = str(error).removeprefix(f"{one.name}: ")
            self.series.remove(one)

    def tune(self) -> None:
        """Find the best socket buffers of tcp, if the configuration requests it."""
        for one in [one for one in self.series if one.name == "tcp" and one.sockbuf == sockbuf.AUTO]:
            self._report_progress("tcp: finding the best socket buffers")
            with self._skipping(one):
                mode = "pingpong" if self.config.mode == "overlap" else self.config.mode
                self.infos[one] = sockbuf.tune(self.pairs[one], self.config.sizes, mode, self.turns)

    # -------------------------------------------------------------------------------- measuring

    def measure(self) -> None:
        """Measure in rounds until every size is finished or the time is over."""
        sizes = {one: (FLOOR_NBYTES,) if one.is_floor else self.config.sizes for one in self.series}
        self.points = [_Point(one, nbytes) for one, its in sizes.items() for nbytes in its]
        compared = {peer for one in self.series for peer in NETPIPE_PEERS.get(one.name, ())}
        for point in self.points:
            point.bests = [] if point.series.name in compared else None
        self.turns.clock.restart()
        longest = LONGEST_BURST_S if self.in_turns else STREAM_BURST_S
        share = self.config.seconds / max(len(self.points), 1) / MIN_ROUNDS
        self.burst_s = min(max(share, SHORTEST_BURST_S), longest)
        same_size: dict[int, list[_Point]] = {}
        for point in self.points:
            same_size.setdefault(point.nbytes, []).append(point)
        rounds = self.turns.rounds(same_size.values(), finished=_finished)
        if self.config.machine is not None:  # Once, and in one order: a later size may profit from an earlier one.
            rounds = iter([(0, self.points)])
        for number, order in rounds:
            for point in order:
                if self.stop is not None and self.stop.is_set():
                    raise KeyboardInterrupt
                if number and self.turns.clock.over:
                    break
                text = f"round {number + 1}: {point.series.name}, {ladder.format_size(point.nbytes)}"
                self._report_progress(text, number, point)
                self._burst(point, number)

    def _burst(self, point: _Point, number: int) -> None:
        """Measure one burst of *point* and call ``on_point``."""
        self.turns.doing(point.series.name, nbytes=point.nbytes)
        if self.config.machine is not None:
            point.count = VIRTUAL_COUNT if self.in_turns else VIRTUAL_STREAM
        elif point.count is None:
            point.count = self._first_count(point)
        before = time.monotonic()
        samples = self.pairs[point.series].run(
            point.nbytes,
            mode=self.config.mode,
            count=point.count,
            warmup=1 if point.count < 10 else min(point.count // 5, 500),
            validate=self.config.validate,
            **({"offset": self.config.offset} if self.config.offset else {}),
        )
        wall_s = time.monotonic() - before
        if not np.size(samples.one_way_s):
            return
        point.take(samples, number)
        if self.config.machine is None:
            # The start of processes is not the time of their messages.
            self._adapt(point, number, 0.0 if point.series.protocol.starts_in_bursts else wall_s)
        if self.on_point is not None and not point.series.is_floor:
            described = describe(point.series, self.config, self.infos[point.series])
            self.on_point(described, point.as_dict(self.config.mode))

    def _count_for(self, nbytes: int, one_way_s: float) -> int:
        """Return the number of messages of *nbytes* in a burst of about ``burst_s`` if each takes *one_way_s*."""
        if self.config.mode == "overlap":  # a pair is a round trip alone, and one of at most two beside computing
            return 2 * count_for(self.burst_s, 6 * one_way_s, 1, MAX_COUNT // 2)
        if self.in_turns:
            return count_for(self.burst_s, 2 * one_way_s, 1, MAX_COUNT)
        return count_for(self.burst_s, one_way_s, self._least_stream(nbytes, one_way_s), MAX_COUNT)

    def _least_stream(self, nbytes: int, one_way_s: float) -> int:
        """Return the least number of messages in a burst of a stream."""
        wanted = max(2, min(STREAM_MESSAGES, STREAM_NBYTES // (nbytes + 1)))
        return wanted if wanted * one_way_s <= max(self.burst_s, STREAM_LEAST_S) else 2

    def _first_count(self, point: _Point) -> int:
        """Estimate a count from the series' bursts at the nearest size, which saves the time of trial runs."""
        known = [
            (abs(np.log2((other.nbytes + 64) / (point.nbytes + 64))), other.nbytes, min(other.paces))
            for other in self.points
            if other.series is point.series and other.medians
        ]
        if not known:
            return max(2, min(FIRST_COUNT, FIRST_NBYTES // (point.nbytes + 1)) & ~1)
        _, nbytes, one_way_s = min(known)
        return self._count_for(point.nbytes, one_way_s * max(1.0, (point.nbytes + 64) / (nbytes + 64)))

    def _adapt(self, point: _Point, number: int, wall_s: float) -> None:
        """Correct a count that makes bursts far too long or too short, in the first rounds only.

        Later bursts of a point thus remain comparable. The fastest burst shows the time of the protocol; *wall_s* shows
        whether other processes have the cores at present.
        """
        if number >= ROUNDS_TO_ADAPT or point.count is None:
            return
        wanted = self._count_for(point.nbytes, min(point.paces))
        if wall_s > 8 * self.burst_s:
            wanted = min(wanted, max(int(point.count * 4 * self.burst_s / wall_s), 1))
        if not point.count / 2 <= wanted <= 2 * point.count:
            point.count = max(wanted, 1 if self.config.mode == "pingpong" else 2)
            point.count += point.count % 2 if self.config.mode == "overlap" else 0

    # -------------------------------------------------------------------------------- progress and result

    def _report_progress(self, text: str, number: int | None = None, point: _Point | None = None) -> None:
        """Call ``on_progress``; round *number* and *point* are None before the measurement."""
        if self.on_progress is None:
            return
        if point is None:
            self.on_progress(Progress(0.0, self.config.seconds, text))
            return
        clock = self.turns.clock
        fraction = clock.fraction
        if number == 0 and fraction >= 1:  # the first round is always completed
            fraction = sum(1 for one in self.points if one.bursts) / len(self.points)
        text += f", {point.medians[-1] * 1e6:.2f} µs" if point.medians else ""
        self.on_progress(Progress(fraction, clock.left_s, text))

    def _add_relays(self) -> None:
        """Add the counts of a delay's relay to the series on its wire, and a failure if it dropped a frame or died."""
        for (mtu, delay), testbed in self.testbeds.items():
            if delay is None:
                continue
            with contextlib.suppress(testbeds.TestbedError):  # its server process has ended, which the errors name
                relay = testbed.describe()["relay"]
                for one in self.infos:
                    if one.hosts == "testbed" and (one.mtu, one.delay) == (mtu, delay):
                        self.infos[one]["relay"] = relay
            if trouble := testbed.relay_trouble():
                self.turns.errors.append({"protocol": None, "nbytes": None, "message": trouble})

    def document(self) -> Document:
        """Return the measurements so far as a result document."""
        described = []
        floor = None
        self._add_relays()
        for one in self.series:
            mine = sorted((p for p in self.points if p.series is one and p.bursts), key=lambda point: point.nbytes)
            if not one.is_floor:
                points = [point.as_dict(self.config.mode) for point in mine]
                described.append({**describe(one, self.config, self.infos[one]), "points": points})
            elif mine:
                floor = mine[0].times("one_way_s")
        return self.turns.document(described, floor=floor, validated=self.config.validate)


def _finished(group: Sequence[Point], n: int) -> bool:
    """Return whether all points of one size need no more bursts."""
    return n >= MIN_ROUNDS and all(stats.is_tight(point.medians) for point in group)


def _options(one: Series, config: Config) -> dict[str, Any]:
    """Return the options of a pair that the configuration sets and the protocol has."""
    options = {name: given for name in one.protocol.options if (given := getattr(config, name)) is not None}
    if is_remote(config.hosts) and "network" in one.protocol.options:
        options["network"] = (config.network or "udp").partition(":")[0]
    return options


def two_hosts(config: Config, testbed_class: Any, mtu: int | None, delay: float | None = None) -> Any:
    """Return the two hosts of a sweep, not yet open: of a testbed with this MTU and this delay, or real machines."""
    if is_remote(config.hosts):
        from viakit.remote import Remote  # on use: most sweeps stay on this machine

        return Remote(remote_hosts(config), network=config.network, python=config.python)
    options = {name: getattr(config, name) for name in ("burst", "offload", "tcp_options")} | {"delay": delay}
    options = {name: given for name, given in options.items() if given is not None}
    return testbed_class(hosts=2, mtu=mtu or 1500, rate=config.rate, **options)


def run(
    config: Config,
    *,
    on_point: OnPoint | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    command: str | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Outcome:
    """Run the sweep of a configuration.

    Parameters
    ----------
    config : Config
        The configuration.
    on_point : callable, optional
        Called after each burst with the series (without points) and the current state of the point, both as in a result
        file, for live plots.
    on_progress : callable, optional
        Called between bursts with a :class:`Progress`.
    stop : threading.Event, optional
        Set it from another thread to end the sweep as Ctrl-C does.
    command : str, optional
        Command line for the result. Default: that of this process.
    pair_class, testbed_class : type, optional
        Classes to use instead of :class:`viakit.measure.pair.Pair` and :class:`viakit.testbed.Testbed`.

    Returns
    -------
    Outcome
        Its document is valid even if the sweep was interrupted or a protocol failed. The measurements so far are then
        kept, and ``complete`` is False.

    Raises
    ------
    UsageError, ValueError
        If *config* is invalid; nothing was started.
    MeasureError, OSError, RuntimeError
        If a protocol or the testbed could not be started; nothing was measured.
    KeyboardInterrupt
        If interrupted while the processes are started.
    """
    series, wants_testbed = plan(config)
    tuned = False
    turns = Turns(config.seconds, config.seed, command=command, kept=lambda: tuned)
    this = _Run(config, series, turns, on_point, on_progress, stop)
    stack = contextlib.ExitStack()
    try:
        this.open(stack, pair_class or pairs.Pair, testbed_class or testbeds.Testbed, wants_testbed)
        with turns:
            this.tune()
            tuned = True
            this.measure()
        document = this.document()
    finally:
        with shielded():
            stack.close()
    return Outcome(document, turns.interrupted, turns.error)
