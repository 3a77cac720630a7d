"""Sweeps: several protocols over many sizes, compared fairly.

A machine drifts: its clock warms up, its neighbours wake and sleep. Whoever measures one protocol after the other
measures the drift. So a sweep keeps a pair of processes open per protocol and goes around in rounds::

    round 0:   size 4096: tcp, via-eth, udp     size 1: udp, tcp, via-eth     size 64: ...
    round 1:   size 64:   via-eth, udp, tcp     size 4096: ...

In each round every size is visited once, in a random order of its own, and at each size every protocol takes one burst
of a few milliseconds, again in random order; the seed stands in the result. Bursts of one round and size are neighbours
in time, so a ratio between two protocols is computed round by round and drift falls out of it (:mod:`.stats`).

A size is finished when the 95 % interval of every protocol's median is tight there; the sweep ends when all are, or
when the time is out. The first round is always finished, so that each point has at least one burst.

While a burst runs, this process sleeps: no progress bar is drawn and no statistics are computed on the cores that are
being measured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viakit.measure import ladder, stats
from viakit.measure.environment import command_line, environment
from viakit.measure.result import SCHEMA, Document

__all__ = ["Config", "Outcome", "Progress", "UsageError", "check", "needs_testbed", "run", "shielded"]

MODES = ("pingpong", "stream", "bidir")
WAITS = ("poll", "block")
LEVELS = ("c", "python")
FORMS = ("plain", "udp", "auto")
CHECKSUMS = ("auto", "crc")
RETRANSMISSIONS = ("selective", "go_back_n")
NETWORKS = ("eth", "udp")
RELIABILITIES = ("unreliable", "delivery", "reception")

MIN_ROUNDS = 11  # bursts of a point before its interval may end it
LONGEST_BURST_S = 0.010
SHORTEST_BURST_S = 0.000_5
STREAM_BURST_S = 0.020  # a stream needs to fill its window first
MAX_COUNT = 10_000
FIRST_COUNT = 20  # messages of a series' very first burst, ...
FIRST_NBYTES = 1 << 20  # ... and no more bytes than this: nobody knows yet how slow the wire is
ROUNDS_TO_ADAPT = 3
MOST_SAMPLES = 1 << 20  # of a point that are kept for its percentiles
FLOOR_NBYTES = 8  # the floor is a cache line that carries this much

ONE_WAY = {
    "pingpong": "half the round trip",
    "stream": "time per message, many in flight",
    "bidir": "time per message and direction, both directions at once",
}


class UsageError(ValueError):
    """A sweep that makes no sense as asked for: found before anything is started."""


@dataclass
class Config:
    """What to measure. Anything that makes no sense is a :class:`UsageError` from :func:`run`, before anything starts.

    Attributes
    ----------
    protocols : sequence of str
        Names as ``viakit protocols`` lists them. Ratios are against the first.
    sizes : sequence of int
        Message sizes in bytes (:func:`viakit.measure.ladder.parse_sizes`).
    hosts : {"auto", "local", "testbed"}
        Where protocols that use a wire run: on this host, or on two hosts of :class:`viakit.testbed.Testbed`. ``auto``
        takes the testbed if a protocol needs it. Protocols of shared memory are always local.
    mtu : int, optional
        Of the testbed's wire, bytes; 1500 if not given.
    rate : str or float, optional
        Limit of the testbed's wire in bit/s, for instance ``"1gbit"``.
    interface : str, optional
        The Ethernet interface of this host, or two with a comma between (one for each side), for ``via-eth`` with
        ``hosts="local"``.
    sockbuf : int, optional
        Socket buffer of tcp, udp and unix, bytes.
    mode : {"pingpong", "stream", "bidir"}
    wait : {"poll", "block"}
    level : {"c", "python", "both"}, optional
        The language of the measuring loop; by default C wherever the library can be driven from it.
    seconds : float
        Time for the whole sweep, starting and stopping not included.
    validate : bool
        Check the content of every message.
    form : {"plain", "udp", "auto"}, optional
        Of via-eth's frames.
    reliability : {"unreliable", "delivery", "reception"}, optional
        Of a VI.
    fault : str, optional
        What both sides of ``via-*``, ``bip-*``, ``msg-via`` and ``msg-bip`` do to the frames that they send:
        ``"loss=1%,delay=200us,seed=7"``, as :class:`viakit.via.Faults` reads it. All others are measured without.
    retransmission : {"selective", "go_back_n"}, optional
        What receivers of ``via-*`` do with frames that come before a lost one.
    checksum : {"auto", "crc"}, optional
        Of the frames of via-eth and via-udp: see :class:`viakit.via.Checksum`.
    policy : str, optional
        Of the message engine, for ``msg-*``: a name of its table (``"mpich-p4"``), a name and fields
        (``"via,eager_limit=64K"``), or fields alone, on top of the channel's own policy.
    network : {"eth", "udp"}, optional
        What msg-via and msg-bip take between the hosts of a testbed; eth if not given.
    seed : int, optional
        Of the order; drawn if not given.
    skip_unavailable : bool
        True: a protocol that cannot run here is skipped and named in the result. False: it is an error.
    """

    protocols: Sequence[str]
    sizes: Sequence[int]
    hosts: str = "auto"
    mtu: int | None = None
    rate: str | float | None = None
    interface: str | None = None
    sockbuf: int | None = None
    mode: str = "pingpong"
    wait: str = "poll"
    level: str | None = None
    seconds: float = 10.0
    validate: bool = False
    form: str | None = None
    reliability: str | None = None
    fault: str | None = None
    retransmission: str | None = None
    checksum: str | None = None
    policy: str | None = None
    network: str | None = None
    seed: int | None = None
    skip_unavailable: bool = False
    timeout_s: float = 30.0


@dataclass(frozen=True)
class Progress:
    """Where a sweep stands: *fraction* in [0, 1], *left_s* seconds at most, and what it does in words."""

    fraction: float
    left_s: float
    text: str


@dataclass
class Outcome:
    """What a sweep came to.

    ``document`` is a valid result whatever happened; ``interrupted`` after Ctrl-C; ``error`` if a protocol failed.
    """

    document: Document
    interrupted: bool = False
    error: Exception | None = None

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for was measured."""
        return bool(self.document["complete"])


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Hold back Ctrl-C, SIGTERM and SIGHUP while things are put away: a second one must not leave half of them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last comes twice when a terminal is closed
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ------------------------------------------------------------------------------------------------ what is asked for


def needs_testbed(protocol: Any) -> bool:
    """Tell whether a protocol's description says that it wants hosts joined by a wire."""
    return "testbed" in protocol.needs


def is_local(protocol: Any) -> bool:
    """Tell whether a protocol stays on one host whatever is asked: it has no wire."""
    return protocol.link in ("shm", "loop", "mpi", "unix", "null", "cache")


@dataclass(frozen=True, eq=False)
class _Series:
    """One curve: a protocol at one level."""

    name: str
    protocol: Any
    level: str
    hosts: str
    sizes: tuple[int, ...]
    is_floor: bool = False


def _one_of(what: str, given: str, allowed: Sequence[str]) -> None:
    if given not in allowed:
        raise UsageError(f"{what} is {given!r}: it has to be one of {', '.join(allowed)}")


def _check(config: Config) -> None:
    """Raise :class:`UsageError` for values that make no sense whatever the protocols are."""
    if not config.protocols:
        raise UsageError("name at least one protocol; `viakit protocols` lists them")
    twice = [name for name, times in Counter(config.protocols).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]} is named twice; name each protocol once")
    if not config.sizes:
        raise UsageError("name at least one size, for instance 64 or 1:4M")
    _one_of("--mode", config.mode, MODES)
    _one_of("--wait", config.wait, WAITS)
    _one_of("--hosts", config.hosts, ("auto", "local", "testbed"))
    if config.level is not None:
        _one_of("--level", config.level, (*LEVELS, "both"))
    if config.form is not None:
        _one_of("--form", config.form, FORMS)
    if config.reliability is not None:
        _one_of("--reliability", config.reliability, RELIABILITIES)
    if config.retransmission is not None:
        _one_of("--retransmission", config.retransmission, RETRANSMISSIONS)
    if config.checksum is not None:
        _one_of("--checksum", config.checksum, CHECKSUMS)
    if config.network is not None:
        _one_of("--network", config.network, NETWORKS)
    for option, given in (("--policy", config.policy), ("--network", config.network)):
        if given is not None and not any(name.startswith("msg-") for name in config.protocols):
            raise UsageError(f"{option} is for the message engine: name msg-via, msg-bip or msg-tcp")
    if config.fault is not None:
        _check_faults(config)
    if not config.seconds > 0 or config.seconds > 1e6:
        raise UsageError(f"--seconds is {config.seconds:g}: give the time that the sweep may take, for instance 10")
    if config.sockbuf is not None and config.sockbuf <= 0:
        raise UsageError(f"--sockbuf is {config.sockbuf}: give a number of bytes, for instance 128K")
    if config.seed is not None and config.seed < 0:
        raise UsageError(f"--seed is {config.seed}: give 0 or a positive number")


def takes_faults(protocol: str) -> bool:
    """Whether a protocol sends through NICs of viakit's, which can be told to spoil frames."""
    return protocol.startswith(("via-", "bip-")) or protocol in ("msg-via", "msg-bip")


def _check_faults(config: Config) -> None:
    """Raise :class:`UsageError` for faults that are not understood, or that would leave nothing to measure."""
    from viakit import via

    try:
        faults = via.Faults.parse(config.fault or "")
    except ValueError as error:
        raise UsageError(f"--fault: {error}") from None
    if not any(takes_faults(name) for name in config.protocols):
        raise UsageError("--fault spoils what via-*, bip-*, msg-via and msg-bip send: name at least one of them")
    if config.reliability == "unreliable" and faults.loses:
        raise UsageError("--fault with loss and --reliability unreliable: a lost message would be waited for in vain")


def _levels(protocol: Any, name: str, wanted: str | None, mode: str) -> list[str]:
    """Return the levels at which a protocol is to be measured."""
    # Both directions at once are more than the loop in Python does.
    there = [level for level in LEVELS if level in protocol.levels and (level == "c" or mode != "bidir")]
    if wanted is None:
        return there[:1]
    if wanted == "both":
        return there
    if wanted not in there:
        words = " in bidir" if mode == "bidir" else ""
        raise UsageError(f"{name} cannot be measured at level {wanted}{words}, only at {', '.join(there)}")
    return [wanted]


def _plan(config: Config) -> tuple[list[_Series], bool]:
    """Resolve *config* into series; second, whether a testbed is wanted.

    Raises
    ------
    UsageError
        (or ``ValueError`` of the endpoints, for an unknown protocol) naming what was wrong.
    """
    from viakit.measure import endpoints

    _check(config)
    found = {name: endpoints.lookup(name) for name in config.protocols}
    hosts = config.hosts
    if hosts == "auto":
        wire = config.mtu is not None or config.rate is not None or any(map(needs_testbed, found.values()))
        hosts = "testbed" if wire and not config.interface else "local"
    if hosts == "local" and (config.mtu is not None or config.rate is not None):
        option = "--mtu" if config.mtu is not None else "--rate"
        raise UsageError(f"{option} sets the testbed's wire: add --hosts testbed, or leave {option} away")
    series: list[_Series] = []
    for name, protocol in found.items():
        ladder.check_limits(config.sizes, name, protocol.min_bytes, protocol.max_bytes)
        for option, given, allowed in (("mode", config.mode, protocol.modes), ("wait", config.wait, protocol.waits)):
            if given not in allowed:
                raise UsageError(f"{name} cannot be measured with --{option} {given}, only with {', '.join(allowed)}")
        where = "local" if is_local(protocol) else hosts
        for level in _levels(protocol, name, config.level, config.mode):
            series.append(_Series(name, protocol, level, where, tuple(config.sizes)))
    # Whoever measures shared memory wants to know how far it is from what the machine can do at all.
    shared = any(one.protocol.link == "shm" for one in series)
    if shared and config.mode == "pingpong" and config.wait == "poll" and "floor" not in found:
        series.append(_Series("floor", endpoints.lookup("floor"), "c", "local", (FLOOR_NBYTES,), is_floor=True))
    return series, any(one.hosts == "testbed" for one in series)


def check(config: Config) -> None:
    """Raise what :func:`run` would for a *config* that makes no sense, without starting anything."""
    _plan(config)


# ------------------------------------------------------------------------------------------------ points


@dataclass
class _Point:
    """A series at one size, with all bursts so far."""

    series: _Series
    nbytes: int
    bursts: list[NDArray[np.float64]] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)  # of each burst
    samples: int = 0
    stride: int = 1  # every so many-th sample is kept
    smallest: float = float("inf")
    largest: float = 0.0
    rounds: list[int] = field(default_factory=list)
    counters: Counter[str] = field(default_factory=Counter)
    messages: int = 0
    lost: int = 0
    count: int | None = None

    def add(self, times: NDArray[np.float64], number: int) -> None:
        """Add a burst taken in round *number*; samples beyond :data:`MOST_SAMPLES` are thinned evenly."""
        self.medians.append(float(np.median(times)))
        self.rounds.append(number)
        self.samples += times.size
        self.smallest = min(self.smallest, float(times.min()))
        self.largest = max(self.largest, float(times.max()))
        self.bursts.append(times[:: self.stride])
        if self.samples > MOST_SAMPLES * self.stride:
            self.stride *= 2
            self.bursts = [burst[::2].copy() for burst in self.bursts]

    def as_dict(self, mode: str) -> dict[str, Any]:
        """Return the point of a result file."""
        summary = dataclasses.replace(stats.summarise(self.bursts), min=self.smallest, max=self.largest)
        factor = 2 if mode == "bidir" else 1
        point = {
            "nbytes": self.nbytes,
            "one_way_s": summary.as_dict(),
            "bandwidth_Bps": factor * self.nbytes / max(summary.median, 1e-12),
            "samples": self.samples,
            "bursts_s": list(self.medians),
            "rounds": list(self.rounds),
            "counters": {
                **{key: int(value) for key, value in sorted(self.counters.items())},
                "messages": self.messages,
            },
        }
        if self.lost:
            point["lost"] = self.lost
        return point


class _Run:
    """One sweep while it runs: pairs, points and the clock."""

    def __init__(
        self,
        config: Config,
        series: list[_Series],
        on_point: Callable[[Mapping[str, Any], dict[str, Any]], None] | None,
        on_progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self.config = config
        self.series = series
        self.on_point = on_point
        self.on_progress = on_progress
        self.stop = stop
        self.seed = random.SystemRandom().getrandbits(32) if config.seed is None else config.seed
        self.rng = random.Random(self.seed)
        self.pairs: dict[_Series, Any] = {}
        self.infos: dict[_Series, dict[str, Any]] = {}
        self.points: dict[tuple[_Series, int], _Point] = {}
        self.skipped: list[dict[str, str]] = []
        self.errors: list[dict[str, Any]] = []
        self.started = time.monotonic()
        self.burst_s = LONGEST_BURST_S

    # -------------------------------------------------------------------------------- starting

    def open(self, stack: contextlib.ExitStack, pair_class: Any, testbed_class: Any, wants_testbed: bool) -> None:
        """Open the testbed and a pair per series; *stack* closes them."""
        from viakit.measure.endpoints import MeasureError

        config = self.config
        testbed = None
        if wants_testbed:
            self._say(Progress(0.0, config.seconds, "making two hosts"))
            try:
                testbed = stack.enter_context(testbed_class(hosts=2, mtu=config.mtu or 1500, rate=config.rate))
            except (OSError, RuntimeError) as error:
                if not config.skip_unavailable:
                    raise
                reason = str(error)
                self.skipped += [
                    {"protocol": one.name, "reason": reason} for one in self.series if one.hosts == "testbed"
                ]
                self.series = [one for one in self.series if one.hosts != "testbed"]
        chosen: dict[str, dict[str, Any]] = {
            "via": {
                "form": config.form,
                "reliability": config.reliability,
                "fault": config.fault,
                "retransmission": config.retransmission,
                "checksum": config.checksum,
                "interface": config.interface,
            },
            "msg": {"policy": config.policy, "network": config.network, "fault": config.fault},
        }
        chosen["bip"] = chosen["via"]
        for one in list(self.series):
            self._say(Progress(0.0, config.seconds, f"starting {one.name}"))
            try:
                pair = pair_class(
                    one.name,
                    testbed=testbed if one.hosts == "testbed" else None,
                    wait="poll" if one.is_floor else config.wait,
                    level=one.level,
                    sockbuf=config.sockbuf,
                    options={
                        k: v
                        for k, v in chosen.get(one.name.partition("-")[0], {}).items()
                        if v is not None and (k != "fault" or takes_faults(one.name))
                    },
                    timeout_s=config.timeout_s,
                )
                self.pairs[one] = stack.enter_context(pair)
                self.infos[one] = dict(pair.info)
            except MeasureError as error:
                # The floor was not asked for by name: without it, the rest is still worth measuring.
                if not (config.skip_unavailable or one.is_floor):
                    raise
                self.skipped.append({"protocol": one.name, "reason": str(error).removeprefix(f"{one.name}: ")})
                self.series.remove(one)
        for one in self.series:
            for nbytes in one.sizes:
                self.points[one, nbytes] = _Point(one, nbytes)

    # -------------------------------------------------------------------------------- measuring

    def measure(self) -> None:
        """Go around until every size is tight or the time is out."""
        self.started = time.monotonic()
        longest = STREAM_BURST_S if self.config.mode != "pingpong" else LONGEST_BURST_S
        share = self.config.seconds / max(len(self.points), 1) / MIN_ROUNDS
        self.burst_s = min(max(share, SHORTEST_BURST_S), longest)
        sizes = sorted({nbytes for _, nbytes in self.points})
        number = 0
        while sizes and (number == 0 or not self._out_of_time()):
            self.rng.shuffle(sizes)
            finished = set()
            for nbytes in sizes:
                here = [point for point in self.points.values() if point.nbytes == nbytes]
                self.rng.shuffle(here)
                for point in here:
                    self._check_stop()
                    if number and self._out_of_time():
                        return
                    self._say(self._progress(number, point))
                    self._burst(point, number)
                if number + 1 >= MIN_ROUNDS and all(stats.is_tight(point.medians) for point in here):
                    finished.add(nbytes)
            sizes = [nbytes for nbytes in sizes if nbytes not in finished]
            number += 1

    def _burst(self, point: _Point, number: int) -> None:
        """Take one burst of *point* and tell whoever listens."""
        try:
            if point.count is None:
                point.count = self._first_count(point)
            before = time.monotonic()
            samples = self._run(point, point.count)
            wall_s = time.monotonic() - before
        except Exception as error:
            self.errors.append({"protocol": point.series.name, "nbytes": point.nbytes, "message": str(error)})
            raise
        times = np.asarray(samples.one_way_s, dtype=np.float64).ravel()
        if not times.size:
            return
        point.add(times, number)
        self._adapt(point, number, wall_s)
        counters = dict(samples.counters)
        point.messages += int(counters.pop("messages"))  # the warm-up of the burst is counted too, here as there
        point.counters.update({key: int(value) for key, value in counters.items()})
        point.lost += int(samples.lost)
        if self.on_point is not None and not point.series.is_floor:
            self.on_point(self._describe(point.series), point.as_dict(self.config.mode))

    def _run(self, point: _Point, count: int) -> Any:
        warmup = 1 if count < 10 else min(count // 5, 500)
        return self.pairs[point.series].run(
            point.nbytes, mode=self.config.mode, count=count, warmup=warmup, validate=self.config.validate
        )

    def _count_for(self, one_way_s: float) -> int:
        """Return how many messages make a burst of about ``burst_s`` if each takes *one_way_s*."""
        ping_pong = self.config.mode == "pingpong"
        count = self.burst_s / max((2 if ping_pong else 1) * one_way_s, 1e-9)
        return int(min(max(count, 1 if ping_pong else 2), MAX_COUNT))

    def _first_count(self, point: _Point) -> int:
        """Guess a count from what the series has shown at the nearest size: no time is spent on trial runs."""
        known = [
            (abs(np.log2((other.nbytes + 64) / (point.nbytes + 64))), other.nbytes, min(other.medians))
            for (series, _), other in self.points.items()
            if series is point.series and other.medians
        ]
        if not known:
            return max(2, min(FIRST_COUNT, FIRST_NBYTES // (point.nbytes + 1)))
        _, nbytes, one_way_s = min(known)
        return self._count_for(one_way_s * max(1.0, (point.nbytes + 64) / (nbytes + 64)))

    def _adapt(self, point: _Point, number: int, wall_s: float) -> None:
        """Mend a count that makes bursts far too long or too short; only at first, so that bursts stay alike.

        The fastest burst says what the protocol takes; *wall_s* says whether other processes have the cores just now.
        """
        if number >= ROUNDS_TO_ADAPT or point.count is None:
            return
        wanted = self._count_for(min(point.medians))
        if wall_s > 8 * self.burst_s:
            wanted = min(wanted, max(int(point.count * 4 * self.burst_s / wall_s), 1))
        if not point.count / 2 <= wanted <= 2 * point.count:
            point.count = max(wanted, 1 if self.config.mode == "pingpong" else 2)

    # -------------------------------------------------------------------------------- the clock

    def _out_of_time(self) -> bool:
        return time.monotonic() - self.started >= self.config.seconds

    def _check_stop(self) -> None:
        if self.stop is not None and self.stop.is_set():
            raise KeyboardInterrupt

    def _progress(self, number: int, point: _Point) -> Progress:
        elapsed = time.monotonic() - self.started
        fraction = elapsed / self.config.seconds
        if number == 0:  # the first round is finished whatever it takes
            visited = sum(1 for one in self.points.values() if one.bursts) / max(len(self.points), 1)
            fraction = min(fraction, visited) if fraction >= 1 else fraction
        left = max(self.config.seconds - elapsed, 0.0)
        text = f"round {number + 1}: {point.series.name}, {ladder.format_size(point.nbytes)}"
        if point.bursts:
            text += f", {point.medians[-1] * 1e6:.2f} us"
        return Progress(min(fraction, 1.0), left, text)

    def _say(self, progress: Progress) -> None:
        if self.on_progress is not None:
            self.on_progress(progress)

    # -------------------------------------------------------------------------------- the result

    def _describe(self, one: _Series) -> dict[str, Any]:
        """Return a series of a result file without its points."""
        info = self.infos.get(one, {})
        mtu = info.get("mtu")
        if mtu is None and one.hosts == "testbed":
            mtu = self.config.mtu or 1500
        overhead = info.get("loop_overhead_s")
        return {
            "protocol": one.name,
            "link": one.protocol.link,
            "hosts": one.hosts,
            "mtu": int(mtu) if mtu else None,
            "mode": self.config.mode,
            "wait": self.config.wait,
            "level": one.level,
            "one_way": ONE_WAY[self.config.mode],
            "loop_overhead_s": float(overhead) if overhead is not None else None,
            "info": info,
        }

    def document(self, command: str, complete: bool) -> Document:
        """Return what was measured so far as a result document."""
        mode = self.config.mode
        described = []
        floor = None
        for one in self.series:
            points = [point for (series, _), point in self.points.items() if series is one and point.bursts]
            points.sort(key=lambda point: point.nbytes)
            if one.is_floor:
                if points:
                    as_dict = points[0].as_dict(mode)
                    floor = {key: as_dict[key] for key in ("one_way_s", "samples", "bursts_s", "rounds")}
            else:
                described.append({**self._describe(one), "points": [point.as_dict(mode) for point in points]})
        return {
            "schema": SCHEMA,
            "command": command,
            "complete": complete,
            "errors": self.errors,
            "skipped": self.skipped,
            "seed": self.seed,
            "seconds": float(self.config.seconds),
            "elapsed_s": round(time.monotonic() - self.started, 3),
            "validated": self.config.validate,
            "environment": environment(seed=self.seed, command=command, infos=self.infos.values()),
            "floor": floor,
            "series": described,
        }


def run(
    config: Config,
    *,
    on_point: Callable[[Mapping[str, Any], dict[str, Any]], None] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    command: str | None = None,
    pair_class: Any = None,
    testbed_class: Any = None,
) -> Outcome:
    """Measure what *config* asks for.

    Parameters
    ----------
    config : Config
        What to measure.
    on_point : callable, optional
        Called after each burst with the series (without points) and the point as it now stands, both as in a result
        file: for live plots.
    on_progress : callable, optional
        Called between bursts with a :class:`Progress`.
    stop : threading.Event, optional
        Set it (from another thread) to end the sweep as Ctrl-C would.
    command : str, optional
        For the result; by default the command line of this process.
    pair_class, testbed_class : optional
        What to open instead of :class:`viakit.measure.pair.Pair` and :class:`viakit.testbed.Testbed`.

    Returns
    -------
    Outcome
        With a valid document also when the sweep was interrupted, or a protocol failed in the middle: what had been
        measured by then is kept, and ``complete`` is False.

    Raises
    ------
    UsageError, ValueError
        If *config* makes no sense; nothing was started.
    MeasureError, OSError, RuntimeError
        If a protocol or the testbed could not be started; nothing was measured, nothing is left.
    KeyboardInterrupt
        If interrupted before anything was measured.
    """
    from viakit.measure.endpoints import MeasureError

    series, wants_testbed = _plan(config)
    if pair_class is None:
        from viakit.measure.pair import Pair

        pair_class = Pair
    if testbed_class is None and wants_testbed:
        from viakit.testbed import Testbed

        testbed_class = Testbed
    command = command_line() if command is None else command
    this = _Run(config, series, on_point, on_progress, stop)
    stack = contextlib.ExitStack()
    interrupted, error = False, None
    try:
        this.open(stack, pair_class, testbed_class, wants_testbed)
        try:
            this.measure()
        except KeyboardInterrupt:
            interrupted = True
        except (MeasureError, OSError) as failure:
            error = failure
        with shielded():
            document = this.document(command, complete=not interrupted and error is None)
    finally:
        with shielded():
            stack.close()
    return Outcome(document, interrupted, error)
