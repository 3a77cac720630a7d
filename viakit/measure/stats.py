"""Statistics of measured times.

Times of messages have long tails and several modes (an interrupt, a timer tick, a busy core), so that means and
standard deviations are not informative. All methods here are distribution-free: medians, percentiles, and an interval
of the median from order statistics.

Samples of one burst are not independent: they share the clock frequency, the contents of the caches, and the load of
the other core. An interval computed from 10 000 such samples would be far too narrow. A sweep therefore visits each
point in many short bursts, far apart in time, and **the burst is the unit**: the interval is that of the bursts'
medians. With fewer than :data:`MIN_BURSTS` bursts there is no such interval. The observed range is used instead, and
the result records this (``ci_of``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["MIN_BURSTS", "Ratio", "Summary", "is_tight", "median_interval", "ratio_of_medians", "summarise"]

MIN_BURSTS = 6  # With fewer, not even [min, max] covers the median with 95 %: 1 - 2 * 0.5**6 = 0.969.
TIGHT = 0.02  # Repetition of a point ends when half the interval is at most this fraction of the median.
_EXACT_UP_TO = 400  # Above, the normal approximation of the binomial is off by less than one rank.


def _lower_rank(n: int, confidence: float) -> int:
    """Return the rank (from 1) of the interval's lower end: the largest k with P(Binomial(n, 1/2) < k) <= alpha / 2.

    Returns 0 if n is too small for the confidence.
    """
    alpha = 1.0 - confidence
    if n > _EXACT_UP_TO:
        return max(0, math.floor((n - NormalDist().inv_cdf(1.0 - alpha / 2.0) * math.sqrt(n) - 1.0) / 2.0))
    limit = alpha / 2.0 * 2.0**n
    tail, k = 1, 0  # tail = sum of C(n, i) for i <= k
    while tail <= limit and k < n:
        k += 1
        tail += math.comb(n, k)
    return k


def median_interval(samples: ArrayLike, confidence: float = 0.95) -> tuple[float, float]:
    """Return a distribution-free confidence interval of the median.

    The interval reaches from the k-th smallest to the k-th largest sample, where k comes from the binomial distribution
    (Conover, Practical Nonparametric Statistics, 3.2). For independent samples of any distribution the interval covers
    the true median with at least the given confidence.

    Parameters
    ----------
    samples : array_like, shape (n,)
        Samples in any unit.
    confidence : float
        Between 0 and 1.

    Returns
    -------
    low, high : float
        In the samples' unit. With fewer than 6 samples (at 95 %) no interval has the required coverage. In this case
        the smallest and the largest sample are returned.

    Raises
    ------
    ValueError
        If there are no samples, or *confidence* is not between 0 and 1.
    """
    values = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if values.size == 0:
        raise ValueError("the median of no samples has no interval; give at least one sample")
    if not 0.0 < confidence < 1.0:
        raise ValueError(f"confidence must be between 0 and 1, for instance 0.95; got {confidence}")
    cut = max(_lower_rank(values.size, confidence) - 1, 0)
    return float(values[cut]), float(values[values.size - 1 - cut])


@dataclass(frozen=True)
class Summary:
    """Summary of a point's samples, in the samples' unit.

    ``ci95`` is the interval of the median; ``ci_of`` is its basis, ``"bursts"`` or ``"samples"``.
    """

    n: int  #: Number of samples.
    median: float  #: Median of all samples.
    p5: float  #: 5th percentile of the samples.
    p50: float  #: The median again, under its name as a percentile.
    p90: float  #: 90th percentile of the samples.
    p99: float  #: 99th percentile of the samples.
    p999: float  #: 99.9th percentile of the samples.
    min: float  #: Smallest sample.
    max: float  #: Largest sample.
    ci95: tuple[float, float]  #: 95 % interval of the median.
    ci_of: str  #: Basis of the interval: ``"bursts"`` or ``"samples"``.

    def as_dict(self) -> dict[str, object]:
        """Return the ``one_way_s`` object of a result file."""
        names = ("median", "p5", "p50", "p90", "p99", "p999", "min", "max")
        return {**{name: getattr(self, name) for name in names}, "ci95": list(self.ci95), "ci_of": self.ci_of}


def summarise(bursts: Sequence[ArrayLike]) -> Summary:
    """Summarise a point that was measured in several bursts.

    Parameters
    ----------
    bursts : sequence of array_like, shapes (n_i,)
        Samples of each burst.

    Returns
    -------
    Summary

    Raises
    ------
    ValueError
        If there are no samples, or one of them is not a finite number.
    """
    arrays = [np.asarray(burst, dtype=np.float64).ravel() for burst in bursts]
    arrays = [array for array in arrays if array.size]
    if not arrays:
        raise ValueError("no samples to summarise")
    values = np.concatenate(arrays)
    if not np.isfinite(values).all():
        raise ValueError("a sample is not a finite number: the measuring loop's clock failed")
    p5, p50, p90, p99, p999 = (float(q) for q in np.percentile(values, (5, 50, 90, 99, 99.9)))
    medians = [float(np.median(array)) for array in arrays]
    if len(arrays) >= MIN_BURSTS:
        low, high = median_interval(medians)
        ci_of = "bursts"
    else:
        low, high = median_interval(values)
        low, high = min(low, *medians), max(high, *medians)
        ci_of = "samples"
    # Bursts of different lengths have different weights in the pooled median. Widen the interval to contain it.
    return Summary(
        n=int(values.size),
        median=p50,
        p5=p5,
        p50=p50,
        p90=p90,
        p99=p99,
        p999=p999,
        min=float(values.min()),
        max=float(values.max()),
        ci95=(min(low, p50), max(high, p50)),
        ci_of=ci_of,
    )


def is_tight(burst_medians: ArrayLike, relative: float = TIGHT) -> bool:
    """Return whether a point needs no more bursts: half its 95 % interval is at most *relative* of the median."""
    values = np.asarray(burst_medians, dtype=np.float64).ravel()
    if values.size < MIN_BURSTS:
        return False
    low, high = median_interval(values)
    return bool(high - low <= 2.0 * relative * abs(float(np.median(values))))


@dataclass(frozen=True)
class Ratio:
    """Ratio of two medians with its 95 % interval; ``paired`` if the bursts of both were taken in the same rounds."""

    value: float  #: The ratio.
    low: float  #: Lower end of its interval.
    high: float  #: Upper end of its interval.
    paired: bool  #: Whether the bursts of both were taken in the same rounds.

    @property
    def interval(self) -> tuple[float, float]:
        """The interval as a pair (low, high)."""
        return self.low, self.high

    def __str__(self) -> str:
        return f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


def ratio_of_medians(
    numerator: ArrayLike,
    denominator: ArrayLike,
    *,
    paired: bool | None = None,
    confidence: float = 0.95,
    n_resamples: int = 2000,
    seed: int = 0,
) -> Ratio:
    """Return the ratio of two medians with a bootstrap interval.

    Parameters
    ----------
    numerator, denominator : array_like, shapes (n,) and (m,)
        Burst medians of the two, in the order of the rounds and in one unit.
    paired : bool, optional
        True: burst i of both was taken in the same round; rounds are resampled, and drift cancels. False: each side is
        resampled separately. Default: paired if the lengths are equal.
    confidence : float
        Confidence of the interval.
    n_resamples : int
        Number of resamples of the percentile bootstrap (Efron).
    seed : int
        Seed of the bootstrap.

    Returns
    -------
    Ratio

    Raises
    ------
    ValueError
        If one side is empty, the denominator's median is 0, or *paired* lengths differ.
    """
    top = np.asarray(numerator, dtype=np.float64).ravel()
    bottom = np.asarray(denominator, dtype=np.float64).ravel()
    if top.size == 0 or bottom.size == 0:
        raise ValueError("a ratio needs samples on both sides, and one side has none")
    if paired is None:
        paired = top.size == bottom.size
    if paired and top.size != bottom.size:
        raise ValueError(f"paired sides need equal numbers of bursts, got {top.size} and {bottom.size}")
    middle = float(np.median(bottom))
    if middle == 0.0:
        raise ValueError("the median of the denominator is 0, so that the ratio is undefined")
    value = float(np.median(top)) / middle
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, top.size, (n_resamples, top.size))
    columns = rows if paired else rng.integers(0, bottom.size, (n_resamples, bottom.size))
    below = np.median(bottom[columns], axis=1)
    ratios: NDArray[np.float64] = np.median(top[rows], axis=1)[below != 0.0] / below[below != 0.0]
    tail = (1.0 - confidence) / 2.0
    low, high = (float(q) for q in np.quantile(ratios, (tail, 1.0 - tail)))
    return Ratio(value=value, low=min(low, value), high=max(high, value), paired=paired)
