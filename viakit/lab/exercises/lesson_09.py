"""Exercises of lesson 9, Measuring honestly."""

from __future__ import annotations

import numpy as np

from viakit.lab.tutor import Exercise, Names, Wrong, close_to, number_of

__all__ = ["EXERCISES"]

_CASES = {
    (0.7, 0.8): "faster",
    (1.1, 1.3): "slower",
    (0.95, 1.02): "no evidence",
    (1.0, 1.2): "no evidence",
    (0.9, 1.0): "no evidence",
}


def _bursts(names: Names) -> str:
    found = number_of(names, "at_least")
    if found == 5:
        raise Wrong("with 5 bursts the probability is 2 / 32, more than 5 %")
    close_to(names, "at_least", 6, 0.001, "It is the first n with 2 * 0.5**n <= 0.05")
    return "Six: 2 / 64 is the first value below 5 %."


def _ratios(names: Names) -> str:
    for answer, figure in (("mean_ratio", np.mean), ("median_ratio", np.median)):
        expected = float(figure(names.disturbed) / figure(names.typical))
        close_to(names, answer, expected, 0.01, f"Divide np.{figure.__name__} of disturbed by that of typical")
    return "Ten messages of two thousand change the mean, but not the median."


def _evidence(names: Names) -> str:
    for (low, high), expected in _CASES.items():
        given = names.evidence(low, high)
        if given != expected:
            raise Wrong(f"evidence({low}, {high}) is {given!r}; expected {expected!r}")
    return "An interval that contains 1 is a result, too."


EXERCISES = (
    Exercise(
        ("at_least",),
        _bursts,
        (
            "The median lies above all n values with probability 0.5**n. Where else can it lie outside their range?",
            "Find the first n for which the probability is 5 % or less.",
        ),
        "at_least = next(n for n in range(1, 100) if 2 * 0.5**n <= 0.05)",
    ),
    Exercise(
        ("mean_ratio", "median_ratio"),
        _ratios,
        ("NumPy has a function for each of the two figures.", "Which of the two runs must be the dividend?"),
        "mean_ratio, median_ratio = (\n"
        "    np.mean(disturbed) / np.mean(typical), np.median(disturbed) / np.median(typical))",
    ),
    Exercise(
        ("evidence",),
        _evidence,
        ("Does the interval lie below 1, above 1, or around it?", "An end that equals 1 is not evidence."),
        """
def evidence(ratio_low, ratio_high):
    if ratio_high < 1:
        return "faster"
    return "slower" if ratio_low > 1 else "no evidence"
""",
    ),
)
