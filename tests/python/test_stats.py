"""Statistics: intervals with the stated coverage, and ratios that cancel drift."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from viakit.measure import stats

times = st.lists(st.floats(1e-9, 1.0), min_size=1, max_size=300)


@given(times)
def test_the_interval_holds_the_median_and_lies_within_the_samples(samples):
    low, high = stats.median_interval(samples)
    assert min(samples) <= low <= np.median(samples) <= high <= max(samples)


@given(st.integers(6, 400))
def test_the_interval_has_the_binomial_coverage_and_is_the_narrowest_that_has(n):
    rank = stats._lower_rank(n, 0.95)

    def coverage(k):  # of [k-th smallest, k-th largest]
        return 1 - 2 * sum(math.comb(n, i) for i in range(k)) / 2**n

    assert rank >= 1
    assert coverage(rank) >= 0.95 - 1e-12
    assert coverage(rank + 1) < 0.95


@pytest.mark.parametrize("n", [401, 1000, 2001, 1_000_000])
def test_the_approximation_for_many_samples_is_within_one_rank(n):
    if n <= 2001:
        tail, k = 1, 0
        while tail * 40 <= 2**n:
            k += 1
            tail += math.comb(n, k)
        assert abs(stats._lower_rank(n, 0.95) - k) <= 1
        assert stats._lower_rank(n, 0.95) <= k, "an interval too wide is honest, one too narrow is not"
    assert 0 < stats._lower_rank(n, 0.95) < n // 2


def test_few_samples_give_all_there_is():
    assert stats.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)
    assert stats.median_interval([5.0]) == (5.0, 5.0)


def test_an_interval_covers_the_true_median_as_often_as_it_says(rng):
    hits = 0
    for _ in range(1000):
        low, high = stats.median_interval(rng.lognormal(0.0, 1.0, 15))
        hits += low <= 1.0 <= high
    assert hits / 1000 > 0.93


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95])
def test_a_confidence_lies_between_0_and_1(confidence):
    with pytest.raises(ValueError, match="between 0 and 1"):
        stats.median_interval([1.0], confidence)


def test_nothing_has_no_median():
    with pytest.raises(ValueError, match="no samples"):
        stats.median_interval([])
    with pytest.raises(ValueError, match="no samples"):
        stats.summarise([])
    with pytest.raises(ValueError, match="not a finite"):
        stats.summarise([[1.0, float("nan")]])


@given(st.lists(times, min_size=1, max_size=20))
def test_a_summary_is_in_order(bursts):
    summary = stats.summarise(bursts)
    every = [value for burst in bursts for value in burst]
    assert summary.n == len(every)
    ordered = [summary.min, summary.p5, summary.p50, summary.p90, summary.p99, summary.p999, summary.max]
    assert all(a <= b * (1 + 1e-12) for a, b in itertools.pairwise(ordered))
    assert summary.median == summary.p50
    assert summary.ci95[0] <= summary.median <= summary.ci95[1]
    assert summary.ci_of == ("bursts" if len(bursts) >= stats.MIN_BURSTS else "samples")


def test_the_burst_is_the_unit(rng):
    """Samples of a burst agree, bursts do not: the interval has to be as wide as the bursts differ.

    The number of bursts is odd: the median of an even number of them lies between two, and the naive interval, too,
    would be as wide as the gap.
    """
    levels = rng.lognormal(0.0, 0.2, 11)
    bursts = [level * rng.lognormal(0.0, 0.001, 5000) for level in levels]
    summary = stats.summarise(bursts)
    naive = stats.median_interval(np.concatenate(bursts))
    assert summary.ci95[1] - summary.ci95[0] > 3 * (naive[1] - naive[0])


def test_the_stop_rule():
    assert not stats.is_tight([1.0] * (stats.MIN_BURSTS - 1))
    assert stats.is_tight([1.0] * stats.MIN_BURSTS)
    assert stats.is_tight([1.0, 1.01, 0.99, 1.005, 0.995, 1.0, 1.002])
    assert not stats.is_tight([1.0, 1.5, 0.7, 1.2, 0.8, 1.0])


@given(st.floats(0.01, 100.0))
def test_a_ratio_is_found(true):
    bottom = np.linspace(1.0, 1.1, 20)
    ratio = stats.ratio_of_medians(true * bottom, bottom)
    assert ratio.paired
    assert math.isclose(ratio.value, true, rel_tol=1e-9)
    assert ratio.low <= ratio.value <= ratio.high


def test_pairing_cancels_drift(rng):
    drift = np.linspace(1.0, 3.0, 30)  # the machine slows down threefold during the sweep
    a, b = (level * drift * rng.lognormal(0, 0.01, 30) for level in (0.5, 1.0))
    paired = stats.ratio_of_medians(a, b, paired=True)
    apart = stats.ratio_of_medians(a, b, paired=False)
    assert paired.high - paired.low < 0.3 * (apart.high - apart.low)
    assert 0.45 < paired.low < paired.high < 0.55


def test_no_difference_is_an_answer(rng):
    # An interval of 95 % misses one time in twenty: what is promised is how often it holds, not that this one does.
    ratios = [stats.ratio_of_medians(*rng.lognormal(0, 0.1, (2, 25))) for _ in range(60)]
    assert sum(ratio.low < 1.0 < ratio.high for ratio in ratios) >= 48


def test_ratios_that_cannot_be():
    with pytest.raises(ValueError, match="both sides"):
        stats.ratio_of_medians([], [1.0])
    with pytest.raises(ValueError, match="denominator"):
        stats.ratio_of_medians([1.0], [0.0])
    with pytest.raises(ValueError, match="equal numbers"):
        stats.ratio_of_medians([1.0], [1.0, 2.0], paired=True)
