"""Models of a curve: Hockney, LogGP, half-bandwidth size, and knees with their probable causes.

Hockney (Parallel Computing 20, 1994)
    t(n) = t0 + n / r, with a start-up time and an asymptotic bandwidth: one line over all sizes. At n_half = t0 * r
    half of the bandwidth is reached.
LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995)
    t(n) = L + 2 o + (n - 1) G. One-way times cannot separate L from o, so their sum is given. G is that of long
    messages, beyond the last knee. A stream gives g, the gap between short messages.
Knees
    Real curves consist of several lines: another protocol above a threshold, another frame above the MTU. Dynamic
    programming finds the best division into lines. A penalty per line (the Bayesian information criterion) prevents
    knees that are only noise. A cause is named if a limit of the endpoint or of the machine lies at the knee.

All fits minimise the squares of *relative* errors; otherwise the longest message would dominate. Intervals are
bootstrapped, with bursts as the sample (:mod:`viakit.measure.stats`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viakit.measure import endpoints, stats
from viakit.measure.kinds import TRANSFERS, kind_of
from viakit.measure.ladder import format_size
from viakit.measure.table import format_bandwidth, format_time

__all__ = ["Estimate", "Fit", "Fits", "Knee", "fit"]

N_RESAMPLES = 400
LEAST_POINTS = 3  # smallest number of points of a line, because two points always lie on one
LEAST_STEP = 0.10  # smallest relative change of time or of time per byte at a knee
LEAST_ERROR = 0.03  # lower limit of a point's relative error, because sizes differ by more than noise

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """Value with its 95 % interval, in *unit* ("s", "B", "B/s", "s/B")."""

    value: float
    low: float
    high: float
    unit: str

    def _text(self, value: float) -> str:
        if not math.isfinite(value):
            return "unlimited"
        if self.unit == "s":
            return format_time(value)
        if self.unit == "B/s":
            return format_bandwidth(value)
        if self.unit == "s/B":
            return f"{value * 1e9:.3g} ns/B"
        return format_size(round(value)) if value < 1024 else f"{value / 1024:.3g} KiB"

    def __str__(self) -> str:
        return f"{self._text(self.value)} [{self._text(self.low)}, {self._text(self.high)}]"


@dataclass(frozen=True)
class Knee:
    """Place at which the curve changes from one line to another.

    Attributes
    ----------
    after, before : int
        The knee lies above *after* bytes and at or below *before*, which are neighbouring measured sizes.
    jump : float
        Ratio of the times just above and just below the knee, according to the two lines.
    slope : float
        Ratio of the times per byte above and below the knee.
    cause : {"threshold", "MTU", "super-frame", "socket buffer", "window", "cache"} or None
        None if no known limit of this endpoint lies at the knee.
    why : str
        The cause in words.
    """

    after: int
    before: int
    jump: float
    slope: float
    cause: str | None
    why: str

    def __str__(self) -> str:
        return (
            f"between {format_size(self.after)} and {format_size(self.before)}: time x {self.jump:.2f}, "
            f"time per byte x {self.slope:.2f}; {self.why}"
        )


@dataclass(frozen=True)
class Fit:
    """Models of one series.

    Attributes
    ----------
    protocol, mode : str
        Protocol and mode of the series.
    t0, bandwidth, n_half : Estimate or None
        Hockney's parameters; None with fewer than two sizes.
    error : float
        Root mean square of Hockney's relative errors: with 0.05 the curve is close to a line, with 0.5 it is not.
    L_plus_2o, G, g : Estimate or None
        LogGP's parameters. The first exists for ping-pong only, g for a stream only.
    half_bandwidth : Estimate or None
        Size at which the curve reaches half of its largest measured bandwidth.
    knees : tuple of Knee
        Knees of the curve.
    notes : tuple of str
        Parameters that could not be determined, with the reason.
    """

    protocol: str
    mode: str
    t0: Estimate | None = None
    bandwidth: Estimate | None = None
    n_half: Estimate | None = None
    error: float = float("nan")
    L_plus_2o: Estimate | None = None
    G: Estimate | None = None
    g: Estimate | None = None
    half_bandwidth: Estimate | None = None
    knees: tuple[Knee, ...] = ()
    notes: tuple[str, ...] = ()

    def rows(self) -> list[tuple[str, str]]:
        """Return the parameters as pairs of text: name, and value with interval."""
        named = (
            ("t0 (Hockney)", self.t0),
            ("r∞ (Hockney)", self.bandwidth),
            ("n½ = t0·r∞", self.n_half),
            ("L + 2o (LogGP)", self.L_plus_2o),
            ("G (LogGP)", self.G),
            ("g (LogGP)", self.g),
            ("half bandwidth at", self.half_bandwidth),
        )
        rows = [(name, str(value)) for name, value in named if value is not None]
        rows += [("error of Hockney's line", f"{self.error:.0%}")] if math.isfinite(self.error) else []
        rows += [("knee", str(one)) for one in self.knees]
        return rows + [("note", one) for one in self.notes]


@dataclass(frozen=True)
class Fits:
    """Fits of a result, one per series; indexed by protocol or by number."""

    fits: tuple[Fit, ...] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[Fit]:
        return iter(self.fits)

    def __len__(self) -> int:
        return len(self.fits)

    def __getitem__(self, key: str | int) -> Fit:
        """Return the fit of a protocol (the first of several), or the fit with this number."""
        if isinstance(key, int):
            return self.fits[key]
        for one in self.fits:
            if one.protocol == key:
                return one
        raise KeyError(f"no fit of {key!r}; the result has {', '.join(one.protocol for one in self.fits)}")

    def __str__(self) -> str:
        lines = []
        for one in self.fits:
            lines.append(f"{one.protocol}, {one.mode}")
            lines += [f"  {name:24} {value}" for name, value in one.rows()]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from viakit.measure.report import html_table  # start-up time

        return "".join(
            html_table(f"{one.protocol}, {one.mode}", ["", "value [95 % interval]"], [list(row) for row in one.rows()])
            for one in self.fits
        )


# ------------------------------------------------------------------------------------------------ lines


def _line(n: _Floats, t: _Floats) -> tuple[float, float, float]:
    """Fit t = a + b n by relative errors, with a and b not negative; return a, b and the sum of squares."""
    x, one = n / t, 1.0 / t
    sums: Any = x @ x, x @ one, one @ one, x.sum(), one.sum()
    xx, xo, oo, sum_x, sum_o = sums
    det = xx * oo - xo * xo
    best = (1.0 / (oo / sum_o) if oo else 0.0, 0.0)
    if det > 1e-12 * xx * oo:
        a, b = (xx * sum_o - xo * sum_x) / det, (oo * sum_x - xo * sum_o) / det
        if a >= 0.0 and b >= 0.0:
            best = (a, b)
        elif a < 0.0:
            best = (0.0, sum_x / xx)
    a, b = best
    return a, b, float((((a + b * n) / t - 1.0) ** 2).sum())


def _divide(n: _Floats, t: _Floats, error: _Floats) -> list[tuple[int, int]]:
    """Divide points, in order of size, into lines; return [first, end) of each line."""
    count = n.size
    weight = float(np.median(error)) ** 2
    cost = np.full((count + 1, count + 1), np.inf)
    for i in range(count):
        for j in range(i + LEAST_POINTS, count + 1):
            cost[i, j] = _line(n[i:j], t[i:j])[2] / weight
    penalty = 3.0 * math.log(max(count, 2))  # each line has two parameters and a place
    best, came = np.full(count + 1, np.inf), np.zeros(count + 1, dtype=int)
    best[0] = 0.0
    for j in range(1, count + 1):
        total = best[:j] + cost[:j, j] + penalty
        came[j] = int(np.argmin(total))
        best[j] = total[came[j]]
    if not math.isfinite(best[count]):
        return [(0, count)]
    pieces, end = [], count
    while end:
        pieces.append((int(came[end]), end))
        end = int(came[end])
    return pieces[::-1]


def _half(n: _Floats, t: _Floats) -> float:
    """Return the smallest size that reaches half the largest bandwidth, by linear interpolation of logarithms."""
    keep = n > 0
    n, rate = n[keep], n[keep] / t[keep]
    wanted = rate.max() / 2.0
    i = int(np.argmax(rate >= wanted))
    if i == 0:
        return float(n[0])
    x = np.log(rate[i - 1 : i + 1])
    part = (math.log(wanted) - x[0]) / (x[1] - x[0])
    return float(np.exp(np.log(n[i - 1]) * (1 - part) + np.log(n[i]) * part))


def _estimate(value: float, samples: Sequence[float], unit: str) -> Estimate:
    low, high = (float(q) for q in np.quantile(np.asarray(samples), (0.025, 0.975)))
    return Estimate(value, min(low, value), max(high, value), unit)


# ------------------------------------------------------------------------------------------------ causes


def _limits(series: Mapping[str, Any], environment: Mapping[str, Any]) -> list[tuple[str, float, str]]:
    """Return the limits of this endpoint and machine as (kind, bytes, text), the more likely causes first."""
    info = series.get("info") or {}
    found: list[tuple[str, float, str]] = []
    for key, words in (("eager_limit", "the eager limit"), ("small_bytes", "the largest short message")):
        if info.get(key):
            found.append(("threshold", float(info[key]), f"{words}, {format_size(int(info[key]))}"))
    if info.get("max_payload"):
        payload = int(info["max_payload"])
        kind = "MTU" if series.get("mtu") else "frame"
        found.append((kind, float(payload), f"the payload of one frame, {payload} B"))
    elif series.get("mtu"):
        protocol = endpoints.known(series["protocol"])
        payload = int(series["mtu"]) - (protocol.headers if protocol is not None else 0)
        found.append(("MTU", float(payload), f"the payload of one frame at MTU {series['mtu']}, about {payload} B"))
    if info.get("super_payload"):
        size = int(info["super_payload"])
        found.append(("super-frame", float(size), f"the payload of one super-frame, {format_size(size)}"))
        if info.get("nic_window"):
            total = size * int(info["nic_window"])
            found.append(("window", float(total), f"a window of {info['nic_window']} super-frames"))
    for key in ("sndbuf", "rcvbuf"):
        if info.get(key):
            found.append(
                ("socket buffer", float(info[key]), f"the socket buffer ({key} {format_size(int(info[key]))})")
            )
    for i, size in enumerate(environment.get("caches") or []):
        # A message occupies the sender's and the receiver's buffer, so a cache shared by both is full at half its size.
        found.append(("cache", float(size), f"the level {i + 1} cache, {format_size(int(size))}"))
        found.append(("cache", size / 2.0, f"half the level {i + 1} cache, {format_size(int(size))}"))
    return found


def _cause(sizes: Sequence[float], place: int, limits: Sequence[tuple[str, float, str]]) -> tuple[str | None, str]:
    """Return the limit between sizes *place* - 1 and *place*, or else one size further on either side.

    The wider range is needed because a noisy point is easily assigned to the wrong line.
    """
    for reach, sure in ((0, "probably"), (1, "perhaps")):
        after, before = sizes[max(place - 1 - reach, 0)], sizes[min(place + reach, len(sizes) - 1)]
        near = [one for one in limits if after * 0.95 <= one[1] <= before * 1.05]
        if near:
            kind, _, words = near[0]
            more = [one[2] for one in near[1:] if one[0] != kind]
            return kind, f"{sure} {words}" + (f" (or {more[0]})" if more else "")
    return None, "no known limit of this endpoint lies there"


# ------------------------------------------------------------------------------------------------ a series


def _points(series: Mapping[str, Any]) -> tuple[_Floats, _Floats, list[_Floats]]:
    points = sorted(series["points"], key=lambda one: one["nbytes"])
    points = [one for one in points if one["one_way_s"]["median"] > 0]
    n = np.array([one["nbytes"] for one in points], dtype=np.float64)
    t = np.array([one["one_way_s"]["median"] for one in points], dtype=np.float64)
    bursts = [np.asarray(one.get("bursts_s") or [one["one_way_s"]["median"]], dtype=np.float64) for one in points]
    return n, t, bursts


def _knees(n: _Floats, t: _Floats, pieces: Sequence[tuple[int, int]], limits: Any) -> tuple[Knee, ...]:
    knees = []
    for (i, j), (_, end) in itertools.pairwise(pieces):
        below, above = _line(n[i:j], t[i:j]), _line(n[j:end], t[j:end])
        middle = math.sqrt(max(n[j - 1], 1.0) * n[j])
        jump = (above[0] + above[1] * middle) / max(below[0] + below[1] * middle, 1e-15)
        slope = above[1] / below[1] if below[1] > 0 else math.inf
        if abs(jump - 1.0) < LEAST_STEP and abs(slope - 1.0) < LEAST_STEP:
            continue
        cause, why = _cause(n.tolist(), j, limits)
        knees.append(Knee(int(n[j - 1]), int(n[j]), jump, slope, cause, why))
    return tuple(knees)


def _fit_series(series: Mapping[str, Any], environment: Mapping[str, Any], rng: np.random.Generator) -> Fit:
    n, t, bursts = _points(series)
    name, mode = str(series["protocol"]), str(series["mode"])
    if n.size < 2:
        return Fit(name, mode, notes=("a line needs two sizes; measure more sizes",))
    error = np.array([_relative_error(values, middle) for values, middle in zip(bursts, t, strict=True)])
    pieces = _divide(n, t, np.maximum(error, LEAST_ERROR))
    first, last = slice(*pieces[0]), slice(*pieces[-1])

    def models(times: _Floats) -> tuple[float, ...]:
        a, b, _ = _line(n, times)
        short, long = _line(n[first], times[first]), _line(n[last], times[last])
        rate = 1.0 / b if b > 0 else math.inf
        return a, rate, a * rate, short[0] + short[1], long[1], _half(n, times) if (n > 0).any() else 0.0

    value = models(t)
    samples = [
        models(np.array([np.median(rng.choice(values, values.size)) for values in bursts])) for _ in range(N_RESAMPLES)
    ]
    units = ("s", "B/s", "B", "s", "s/B", "B")
    with np.errstate(invalid="ignore"):
        estimates = [
            _estimate(value[i], [one[i] for one in samples if math.isfinite(one[i])] or [value[i]], units[i])
            for i in range(len(units))
        ]
    notes = []
    if any(values.size < stats.MIN_BURSTS for values in bursts):
        notes.append("intervals are too narrow, because some sizes have too few bursts; measure for more seconds")
    if n.size < 2 * LEAST_POINTS:
        notes.append(f"{n.size} sizes are too few to find knees; measure at least {2 * LEAST_POINTS}")
    if mode == "pingpong":
        notes.append("one-way times do not separate L from 2o; a stream gives g")
    times = _line(n, t)
    return Fit(
        name,
        mode,
        t0=estimates[0],
        bandwidth=estimates[1],
        n_half=estimates[2],
        error=math.sqrt(times[2] / n.size),
        L_plus_2o=estimates[3] if mode == "pingpong" else None,
        G=estimates[4],
        g=estimates[3] if mode != "pingpong" else None,
        half_bandwidth=estimates[5] if (n > 0).any() else None,
        knees=_knees(n, t, pieces, _limits(series, environment)),
        notes=tuple(notes),
    )


def _relative_error(bursts: _Floats, middle: float) -> float:
    low, high = stats.median_interval(bursts)
    return (high - low) / 4.0 / middle  # A 95 % interval is four standard errors wide.


def fit(document: Mapping[str, Any], seed: int = 0) -> Fits:
    """Fit the models to every series of one-way times of *document*; *seed* is the seed of the bootstrap.

    Raises
    ------
    ValueError
        If the document has no such series. Barriers have no sizes, and applications are not transfers.
    """
    rng = np.random.default_rng(seed)
    every = [one for one in document["series"] if one["points"] and kind_of(one) == TRANSFERS]
    every = [one for one in every if one["mode"] != "overlap"]  # the models are of whole messages
    if not every:
        raise ValueError("the result has no one-way times over sizes; models can be fitted to sweeps only")
    return Fits(tuple(_fit_series(one, document.get("environment") or {}, rng) for one in every))
