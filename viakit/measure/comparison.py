"""Comparison of two results: real changes, and differences that may be noise.

For each point that both results have, the ratio of the medians gets a bootstrap interval. Two corrections are needed:

- **Multiple comparisons.** With 20 points compared at 95 % each, one changes by chance. The intervals are therefore
  widened (Šidák), so that all of them together hold with 95 %.
- **Dependent bursts.** The bursts of one run are not independent: a noisy second affects several of them. The number
  of dependent neighbours is estimated from the autocorrelation, and the bootstrap resamples blocks of that length.

Two runs cannot reveal an effect that differs between runs but is constant within each: another memory layout, another
placement by the kernel, a warmer machine. To distinguish such an effect from a change, repeat the runs; bursts of
several runs can be compared together. *indifferent* (default 1 %) is the largest change that is treated as none.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viakit.base.words import counted
from viakit.measure import stats
from viakit.measure.ladder import format_size
from viakit.measure.result import conditions
from viakit.measure.table import format_ratio, format_time

__all__ = ["Change", "Comparison", "compare"]

_WIDTH = 80  # columns of the text
VERDICTS = ("faster", "slower", "no evidence of change", "too few bursts")
_KEY = (
    *("protocol", "link", "hosts", "mtu", "mode", "wait", "level"),
    *("algorithm", "ranks", "operation", "skew_s", "label", "application", "loss", "retransmission"),
    *("sockbuf", "wire", "offset", "memory", "buffers"),
)


@dataclass(frozen=True)
class Change:
    """Comparison of one point of two results.

    Attributes
    ----------
    label : str
        Protocol, and the fields that distinguish its series from others.
    nbytes : int
        Message size.
    before_s, after_s : float
        Medians in seconds.
    ratio, low, high : float
        after / before, with its interval. All intervals of a comparison together hold with 95 %.
    verdict : str
        "faster", "slower", "no evidence of change" or "too few bursts".
    """

    label: str
    nbytes: int
    before_s: float
    after_s: float
    ratio: float
    low: float
    high: float
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """Result of :func:`compare`. ``str()`` gives the verdict in words; a notebook displays a table.

    Attributes
    ----------
    changes : tuple of Change
        All points that both results have.
    differences : tuple of str
        Differences of machine, kernel and version, which may be the cause of a change.
    unmatched : tuple of str
        Series that only one of the results has.
    """

    changes: tuple[Change, ...]
    differences: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Change]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    @property
    def changed(self) -> bool:
        """Whether there is evidence of a change at any point."""
        return any(one.verdict in ("faster", "slower") for one in self.changes)

    @property
    def verdict(self) -> str:
        """Summary in one sentence."""
        count = Counter(one.verdict for one in self.changes)
        n = len(self.changes)
        if not n:
            return "nothing to compare: the results have no common point"
        if count["too few bursts"] == n:
            return "no verdict: too few bursts; measure both for more seconds"
        if not self.changed:
            return f"no evidence of change at {n - count['too few bursts']} of {n} points"
        parts = []
        for kind in ("faster", "slower"):
            found = [one for one in self.changes if one.verdict == kind]
            if found:
                far = max(found, key=lambda one: abs(math.log(one.ratio)))
                parts.append(
                    f"{kind} at {len(found)} of {n} points, most at {far.label} {format_size(far.nbytes)}: "
                    f"{format_ratio(far.ratio)} times as long [{far.low:.3g}, {far.high:.3g}]"
                )
        if count["no evidence of change"]:
            parts.append(f"no evidence of change at {count['no evidence of change']}")
        return "; ".join(parts)

    def _rows(self) -> list[list[str]]:
        return [
            [
                one.label,
                format_size(one.nbytes),
                format_time(one.before_s),
                format_time(one.after_s),
                f"{one.ratio:.3f} [{one.low:.3g}, {one.high:.3g}]",
                one.verdict,
            ]
            for one in self.changes
        ]

    def _notes(self) -> list[str]:
        notes = [f"the results differ in {one}" for one in self.differences]
        return notes + [f"only one of the results has {one}" for one in self.unmatched]

    def __str__(self) -> str:
        lines = textwrap.wrap(self.verdict, _WIDTH)
        last = ""
        for series, nbytes, before, after, ratio, verdict in self._rows():
            if series != last:
                lines.append(f"  {series}")
                last = series
            lines.append(f"    {nbytes:>8} {before:>8} -> {after:>8}  {ratio:20} {verdict}")
        for note in self._notes():
            lines += textwrap.wrap(note, _WIDTH, subsequent_indent="  ")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from viakit.measure.report import html_table  # start-up time

        head = ["", "message", "before", "after", "after / before [joint 95 % interval]", "verdict"]
        notes = "".join(f"<p>{escape(one)}</p>" for one in self._notes())
        return f"<p><b>{escape(self.verdict)}</b></p>{html_table('', head, self._rows())}{notes}"


def _series(documents: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[int, list[float]]]:
    """Return the burst medians of each series and size; several runs are concatenated."""
    found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for document in documents:
        for one in document["series"]:
            sizes = found.setdefault(tuple(one.get(name) for name in _KEY), {})
            for point in one["points"]:
                sizes.setdefault(point["nbytes"], []).extend(point.get("bursts_s") or [])
    return found


def _name(key: tuple[Any, ...], recorded: bool) -> str:
    """Return the protocol of a series; of transfers also memory and buffers, if one of the results records them."""
    if key[4] is None or not recorded:
        return str(key[0])
    return f"{key[0]} ({conditions([dict(zip(_KEY, key, strict=True))])})"


def _block(values: NDArray[np.float64]) -> int:
    """Return the number of neighbouring bursts that count as one independent burst.

    A chain with lag-one autocorrelation r of the ranks has (1 + r) / (1 - r) bursts for each independent one.
    """
    if values.size < 2 * stats.MIN_BURSTS:
        return 1
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    ranks -= ranks.mean()
    r = float((ranks[1:] @ ranks[:-1]) / (ranks @ ranks))
    return max(1, min(round((1 + r) / (1 - r)) if r < 0.9 else 19, values.size // stats.MIN_BURSTS))


def _resample(values: NDArray[np.float64], rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """Return medians of resamples. Blocks of neighbours are drawn, and the sequence wraps around."""
    length = _block(values)
    n = values.size
    starts = rng.integers(0, n, (times, -(-n // length)))
    places = (starts[:, :, None] + np.arange(length)).reshape(times, -1)[:, :n] % n
    return np.median(values[places], axis=1)


def _change(
    label: str, nbytes: int, before: list[float], after: list[float], confidence: float, indifferent: float, seed: int
) -> Change:
    a, b = (np.asarray(side, dtype=np.float64) for side in (before, after))
    middle = float(np.median(a)), float(np.median(b))
    ratio = middle[1] / middle[0] if middle[0] else math.inf
    if min(a.size, b.size) < stats.MIN_BURSTS:
        return Change(label, nbytes, *middle, ratio, 0.0, math.inf, "too few bursts")
    rng = np.random.default_rng(seed)
    times = int(min(max(1000, 12 / (1 - confidence)), 6000))
    ratios = _resample(b, rng, times) / _resample(a, rng, times)
    tail = (1.0 - confidence) / 2.0
    low, high = (float(q) for q in np.quantile(ratios, (tail, 1.0 - tail)))
    low, high = min(low, ratio), max(high, ratio)
    verdict = "no evidence of change"
    if low > 1.0 + indifferent:
        verdict = "slower"
    elif high < 1.0 - indifferent:
        verdict = "faster"
    return Change(label, nbytes, *middle, ratio, low, high, verdict)


def compare(
    before: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    after: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    *,
    confidence: float = 0.95,
    indifferent: float = 0.01,
    seed: int = 0,
) -> Comparison:
    """Compare *after* with *before*, point by point.

    Parameters
    ----------
    before, after : result, or sequence of results
        Several runs of one side are combined.
    confidence : float
        Joint confidence of all intervals.
    indifferent : float
        Smallest relative change that counts; the whole interval must exceed it.
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    Comparison

    Raises
    ------
    ValueError
        If `confidence` or `indifferent` is out of range.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, for instance 0.95; got {confidence}")
    if not 0.0 <= indifferent < 1.0:
        raise ValueError(f"indifferent must be from 0 to 1, for instance 0.01; got {indifferent}")
    sides = [[one] if isinstance(one, Mapping) else list(one) for one in (before, after)]
    old, new = (_series(side) for side in sides)
    common = [(key, n) for key in old if key in new for n in sorted(old[key]) if n in new[key]]
    each = confidence ** (1.0 / max(len(common), 1))
    names = Counter(key[0] for key in old)
    changes = []
    for i, (key, nbytes) in enumerate(common):
        label = key[0] if names[key[0]] == 1 else " ".join(str(part) for part in key[:7] + key[15:] if part is not None)
        if key[7] is not None:
            operation = "" if key[9] in (None, "barrier") else f"{key[9]} "
            label = f"{key[0]} {operation}{key[7]}, {counted(key[8], 'rank')}"
        elif key[12] is not None:
            label = f"{key[11] or key[12]} {key[0]}, {key[8]} rank{'s' * (key[8] > 1)}"
        elif key[13] is not None:
            label = f"{key[0]} {key[14].replace('_', '-')}, {key[13]:.2%} lost"
        changes.append(_change(label, nbytes, old[key][nbytes], new[key][nbytes], each, indifferent, seed + i))
    machines = [side[0].get("environment", {}) if side else {} for side in sides]
    differences = tuple(
        f"{name}: {machines[0].get(name)} and {machines[1].get(name)}"
        for name in ("viakit", "cpu", "cores", "kernel", "governor", "virtualisation")
        if machines[0].get(name) != machines[1].get(name)
    )
    recorded = any(part is not None for key in (*old, *new) for part in key[-2:])
    unmatched = tuple(sorted({_name(key, recorded) for key in old.keys() ^ new.keys()}))
    return Comparison(tuple(changes), differences, unmatched)
