"""Two results beside each other: what has changed, and what only looks so.

For each point that both have, the ratio of the medians gets a bootstrap interval. Two things make such
intervals honest:

- **Many points are many chances to be fooled.** With 20 points compared at 95 % each, one changes by chance. The
  intervals are therefore made wider (Šidák), so that all of them together hold with 95 %.
- **Bursts of one run are not independent of each other**: a noisy second hits several. How much less a run's bursts
  say is estimated from their autocorrelation, and the intervals are resampled in blocks of that length.

What no statistics of two runs can see is what differs *between* runs for the whole of each: another layout of memory,
another placement by the kernel, a warmer machine. To tell such a thing from a change, repeat runs; bursts of several
runs may be compared together. *indifferent* (1 % if not given) is how small a change is that nobody needs to hear of.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viakit._words import counted
from viakit.measure import stats
from viakit.measure.ladder import format_size
from viakit.measure.table import format_ratio, format_time

__all__ = ["Change", "Comparison", "compare"]

VERDICTS = ("faster", "slower", "no evidence of change", "too few bursts")
_KEY = (
    *("protocol", "link", "hosts", "mtu", "mode", "wait", "level"),
    *("algorithm", "ranks", "operation", "skew_s", "label", "application", "loss", "retransmission"),
)


@dataclass(frozen=True)
class Change:
    """One point of two results.

    Attributes
    ----------
    label : str
        The protocol, and what tells the series from others.
    nbytes : int
    before_s, after_s : float
        Medians.
    ratio, low, high : float
        after / before, with its interval; all intervals of a comparison together hold with 95 %.
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
    """What :func:`compare` found. ``str()`` of it is the verdict in words; in a notebook it is a table.

    Attributes
    ----------
    changes : tuple of Change
        Every point that both results have.
    differences : tuple of str
        What else differs between the two: machine, kernel, version. A change may be due to it.
    unmatched : tuple of str
        Series that only one of the two has.
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
        """One sentence."""
        count = Counter(one.verdict for one in self.changes)
        n = len(self.changes)
        if not n:
            return "nothing to compare: no point was measured in both"
        if count["too few bursts"] == n:
            return "no verdict: too few bursts; give both more seconds"
        if not self.changed:
            return f"no evidence of change at {n - count['too few bursts']} of {n} points"
        parts = []
        for kind in ("faster", "slower"):
            found = [one for one in self.changes if one.verdict == kind]
            if found:
                far = max(found, key=lambda one: abs(math.log(one.ratio)))
                parts.append(
                    f"{kind} at {len(found)} of {n} points, most at {far.label} {format_size(far.nbytes)}: "
                    f"{format_ratio(far.ratio)} of the time [{far.low:.3g}, {far.high:.3g}]"
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
        notes = [f"the two differ in {one}" for one in self.differences]
        return notes + [f"only in one of the two: {one}" for one in self.unmatched]

    def __str__(self) -> str:
        rows = [f"  {a:24} {b:>8} {c:>9} -> {d:>9}  {e:24} {f}" for a, b, c, d, e, f in self._rows()]
        return "\n".join([self.verdict, *rows, *self._notes()])

    def _repr_html_(self) -> str:
        from html import escape

        from viakit.measure.report import html_table

        head = ["", "message", "before", "after", "after / before [joint 95 % interval]", "verdict"]
        notes = "".join(f"<p>{escape(one)}</p>" for one in self._notes())
        return f"<p><b>{escape(self.verdict)}</b></p>{html_table('', head, self._rows())}{notes}"


def _series(documents: Sequence[Mapping[str, Any]]) -> dict[tuple[Any, ...], dict[int, list[float]]]:
    """Return the burst medians of each series and size, of several runs one after the other."""
    found: dict[tuple[Any, ...], dict[int, list[float]]] = {}
    for document in documents:
        for one in document["series"]:
            sizes = found.setdefault(tuple(one.get(name) for name in _KEY), {})
            for point in one["points"]:
                sizes.setdefault(point["nbytes"], []).extend(point.get("bursts_s") or [])
    return found


def _block(values: NDArray[np.float64]) -> int:
    """Return how many neighbouring bursts are worth one: 1 if they know nothing of each other.

    From the ranks' lag-one autocorrelation r: a chain with it has (1 + r) / (1 - r) bursts to an independent one.
    """
    if values.size < 2 * stats.MIN_BURSTS:
        return 1
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    ranks -= ranks.mean()
    r = float((ranks[1:] @ ranks[:-1]) / (ranks @ ranks))
    return max(1, min(round((1 + r) / (1 - r)) if r < 0.9 else 19, values.size // stats.MIN_BURSTS))


def _resample(values: NDArray[np.float64], rng: np.random.Generator, times: int) -> NDArray[np.float64]:
    """Return medians of resamples, drawn in blocks of neighbours around the circle."""
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
    """Tell what has changed from *before* to *after*.

    Parameters
    ----------
    before, after : result, or sequence of results
        Several runs of one side are taken together.
    confidence : float
        Of all intervals together.
    indifferent : float
        A change has to be larger than this part to be called one; the whole interval has to be beyond it.
    seed : int
        Of the bootstrap.
    """
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence is {confidence}: it has to lie between 0 and 1, for instance 0.95")
    if not 0.0 <= indifferent < 1.0:
        raise ValueError(f"indifferent is {indifferent}: give a part from 0 to 1, for instance 0.01")
    sides = [[one] if isinstance(one, Mapping) else list(one) for one in (before, after)]
    old, new = (_series(side) for side in sides)
    common = [(key, n) for key in old if key in new for n in sorted(old[key]) if n in new[key]]
    each = confidence ** (1.0 / max(len(common), 1))
    names = Counter(key[0] for key in old)
    changes = []
    for i, (key, nbytes) in enumerate(common):
        label = key[0] if names[key[0]] == 1 else " ".join(str(part) for part in key[:7] if part is not None)
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
    unmatched = tuple(sorted({str(key[0]) for key in old.keys() ^ new.keys()}))
    return Comparison(tuple(changes), differences, unmatched)
