"""From a published and a predicted figure to a verdict, by rule.

=========================== ====================================================================================
verdict                     rule
=========================== ====================================================================================
reproduced                  the prediction is within 15 % of the published number, or within the bounds of its
                            words ("within 5 percent", "less than"), or in a published range widened by 15 %; a
                            predicted range has both of its ends within 15 %
in shape                    not reproduced, but the prediction has the published order in its group, or the same
                            sign or winner, or a knee or threshold within a factor of 2
not reproduced              a prediction, and none of these
measured here today         viakit's own protocols or programs show the figure on this machine
inconsistent in the source  two places of the paper contradict each other
untestable                  an input of a machine file, a description of the experiment, a price or a version
=========================== ====================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from viakit.papers.claims import Claim

__all__ = ["TOLERANCE", "VERDICTS", "Prediction", "judge"]

TOLERANCE = 0.15
TIE = 0.03  # published figures that differ by less have no order
VERDICTS = (
    "reproduced",
    "in shape",
    "not reproduced",
    "measured here today",
    "inconsistent in the source",
    "untestable",
)
UPPER = re.compile(r"\b(less than|within|not more than|only)\b")
LOWER = re.compile(r"\b(more than|at least|real Gigabit)\b")
FEW = 10.0  # "within a few percent"


@dataclass(frozen=True)
class Prediction:
    """A figure that a model computed.

    Attributes
    ----------
    value : float
        The figure, in the published unit.
    shape : str
        Rule for "in shape": "order" within the group, "sign", "below" (a share in percent, of which one is the winner:
        below or above 100 as published), "ratio" (the same for 1), "knee", or "" for none.
    group : str
        Figures that are compared with each other for the order.
    how : str
        How it was computed.
    cause : str
        Likely cause of a difference.
    fitted : bool
        The machine's numbers were fitted to this figure: it is an input and no prediction.
    here : bool
        The figure is of viakit's own protocols on this machine, and not of a model.
    measured : float or None
        The figure of viakit's own programs, if they show it.
    published : float or None
        The published number, if the claim gives it in words.
    low : float or None
        For a published range: the least predicted value, of which `value` is the greatest.
    """

    value: float
    shape: str = ""
    group: str = ""
    how: str = ""
    cause: str = ""
    fitted: bool = False
    here: bool = False
    measured: float | None = None
    published: float | None = None
    low: float | None = None


def _within(claim: Claim, one: Prediction) -> bool:
    """Return True if the prediction has the published value, within the tolerance or the bounds of its words."""
    words = f"{claim.value} {claim.conditions}"
    if "few" in claim.value:
        return one.value <= FEW
    bounds = claim.bounds or (None if one.published is None else (one.published, one.published))
    if bounds is None:
        return False
    low, high = sorted((bounds[0], bounds[1]))
    if one.low is not None:
        return abs(one.low - low) <= TOLERANCE * abs(low) and abs(one.value - high) <= TOLERANCE * abs(high)
    slack_low, slack_high = TOLERANCE * abs(low), TOLERANCE * abs(high)
    if UPPER.search(words):
        return one.value <= high + slack_high
    if LOWER.search(words):
        return one.value >= low - slack_low
    # Rounding: a published 0 or 0.07 means anything that rounds to it.
    digits = len(claim.value.partition(".")[2]) if re.fullmatch(r"[\d.]+", claim.value) else 0
    if claim.bounds and low == high and digits and round(one.value, digits) == low:
        return True
    if low == high == 0:
        return abs(one.value) < 0.05
    return low - slack_low <= one.value <= high + slack_high


def _has_order(published: float, one: Prediction, others: list[tuple[float, Prediction]]) -> bool:
    """Return True if the prediction stands to all others of its group as the published figure does."""
    compared = 0
    for number, other in others:
        scale = max(abs(published), abs(number)) or 1.0
        if abs(published - number) <= TIE * scale:
            continue
        compared += 1
        if (one.value - other.value) * (published - number) <= 0:
            return False
    return compared > 0


def judge(claim: Claim, one: Prediction, others: list[tuple[float, Prediction]]) -> tuple[str, str]:
    """Return verdict and reason.

    Parameters
    ----------
    claim : Claim
        The published figure.
    one : Prediction
        Its prediction.
    others : list of (float, Prediction)
        Published numbers and predictions of the rest of its group.
    """
    number = claim.number if claim.number is not None else one.published
    if one.low is not None and claim.bounds:
        number = claim.bounds[1]
    how = f"{one.how}: " if one.how else ""
    if one.fitted:
        return "untestable", f"an input: the machine file was fitted to it, and gives {one.value:.4g}"
    if one.here:
        number = one.published if number is None else number
        return (
            ("measured here today", one.how)
            if number is not None and one.value >= number
            else ("not reproduced", one.how)
        )
    if _within(claim, one):
        return "reproduced", how.rstrip(": ") or "within 15 %"
    difference = f"{100 * (one.value / number - 1):+.0f} %" if number else f"{one.value:.3g}"
    why = f"{how}{difference}" + (f". Likely cause: {one.cause}" if one.cause else "")
    if number is not None and one.shape == "sign" and one.value * number > 0:
        return "in shape", f"same sign, {why}"
    if number is not None and one.shape == "ratio" and (one.value - 1) * (number - 1) > 0:
        return "in shape", f"same winner, {why}"
    if number and one.shape == "below" and (one.value - 100) * (number - 100) > 0:
        return "in shape", f"same winner, {why}"
    if number and one.shape == "knee" and 0.5 <= one.value / number <= 2:
        return "in shape", f"within a factor of 2, {why}"
    if number is not None and one.shape == "order" and _has_order(number, one, others):
        return "in shape", f"same order, {why}"
    return "not reproduced", why
