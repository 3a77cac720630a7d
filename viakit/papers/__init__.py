"""The five papers: each published figure, its prediction on the paper's machine, and a verdict by rule.

:func:`verdicts` judges all lines of claims.csv. The predictions come from the modules of the papers, which compute them
from machine files and from schedules in virtual time. No figure is entered by hand but the published ones. Nothing but
ping-pong figures is fitted: a figure that was fitted is an input, and no prediction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from viakit.papers.claims import PAPERS, Claim, claims, find_paper
from viakit.papers.rules import VERDICTS, Prediction, judge

__all__ = ["PAPERS", "VERDICTS", "claims", "find_paper", "module_of", "summary", "verdicts"]

# Lines that contradict another place of the same paper, and the two places.
CONTRADICTIONS = {
    80: "section 4.2 gives 2330 us and says that the latency did not increase; at MTU 1500 it is 239 us",
    292: "section III.C.1 gives both MVICH and MPICH near 2 on 4 processors, and MPICH 2.2 in the same sentence",
    297: "section III.C.2 gives 59 percent, Table III 5.33 / 6.21 = 86 or, with RDMA, 5.33 / 8.42 = 63",
    298: "section III.C.2 gives 63 percent, Table III 5.33 / 5.42 = 98",
    365: "section 5.2 gives more than 96 percent, and 126 of 132 MB/s, which is 95.5",
}
# Reasons of lines without a prediction, by the lines from .. to.
REASONS = (
    (18, 21, "a property of the Ethernet standards"),
    (47, 47, "an input: the socket buffers of the machine file"),
    (50, 50, "a limit of one implementation"),
    (81, 84, "an input: a parameter of the library's policy"),
    (88, 88, "a limit of one implementation"),
    (100, 101, "describes the experiment"),
    (121, 121, "names no library and no machine"),
    (122, 124, "an input: a parameter of the library's policy or of the system"),
    (145, 146, "an input: a parameter of the library's policy"),
    (161, 161, "describes the experiment"),
    (165, 165, "an input: a parameter of the library's policy"),
    (168, 168, "names no card with 32 us; section 4 gives 48 to 200 us"),
    (169, 171, "an input: a parameter of the library's policy"),
    (192, 193, "names neither libraries nor machines"),
    (210, 210, "results that the paper does not report"),
    (211, 224, "an input: the computing of the replay, and its deviation"),
    (285, 285, "did not run in the paper"),
    (308, 310, "describes the experiment"),
    (318, 319, "describes the experiment"),
    (322, 322, "describes the implementation"),
    (345, 348, "about other networks and stacks"),
    (349, 349, "an input: a parameter of BIP"),
    (350, 352, "an input: the machine's memory and link"),
    (355, 357, "an input: the machine's buses and switch"),
    (358, 360, "describes the implementation and the experiment"),
    (362, 362, "describes the experiment"),
    (366, 366, "an input: a parameter of BIP"),
    (369, 398, "other machines, which the paper does not describe"),
    (405, 405, "the program's sequential speed on this machine is not published"),
    (406, 407, "other machines, which the paper does not describe"),
    (408, 413, "the programs SP and LU are not part of viakit"),
)


def module_of(paper: str) -> Any:
    """Return the module of a paper: ``predict`` and its figures."""
    return import_module(f"viakit.papers.{paper.replace('-', '_')}")


def _reason(claim: Claim) -> str:
    """Return why a figure without a prediction is untestable."""
    if claim.unit == "version" or claim.system == "software":
        return "a version"
    if claim.unit.startswith("USD"):
        return "a price"
    if claim.system == "platform":
        return "an input: describes the machine"
    for first, last, reason in REASONS:
        if first <= claim.line <= last:
            return reason
    raise KeyError(f"line {claim.line} of claims.csv has neither a prediction nor a reason: {claim.quantity}")


def _entry(claim: Claim, verdict: str, reason: str, one: Prediction | None) -> dict[str, Any]:
    predicted = None if one is None else float(f"{one.value:.6g}")
    measured = None if one is None or one.measured is None else float(f"{one.measured:.6g}")
    kind = "none" if one is None else "fitted" if one.fitted else "here" if one.here else "predicted"
    return {
        "line": claim.line,
        "paper": claim.paper,
        "where": claim.where,
        "system": claim.system,
        "quantity": claim.quantity,
        "conditions": claim.conditions,
        "published": claim.value,
        "unit": claim.unit,
        "predicted": predicted,
        "measured": measured,
        "kind": kind,
        "verdict": verdict,
        "reason": reason,
    }


def _own() -> dict[int, Prediction]:
    """Return the figures that viakit's own provider shows on any machine."""
    from viakit import via  # start-up time

    with via.Nic("loop") as nic:
        longest = nic.attributes.max_transfer_size
    how = "MaxTransferSize of viakit's provider, at least as much"
    return {51: Prediction(longest / 1024, how=how, here=True, measured=longest / 1024)}


def verdicts(
    papers: Iterable[str] = tuple(PAPERS), progress: Callable[[str], None] = lambda _: None
) -> list[dict[str, Any]]:
    """Judge all published figures of the papers.

    Parameters
    ----------
    papers : iterable of str
        Keys of :data:`PAPERS`.
    progress : callable
        Called with the key of each paper before its predictions are computed.

    Returns
    -------
    list of dict
        One entry for each line of claims.csv of these papers, in their order: line, paper, where, quantity, published,
        unit, predicted, measured, verdict, reason, and system, conditions and kind ("predicted", "fitted", "here",
        "none").
    """
    wanted = list(papers)
    predictions: dict[int, Prediction] = {}
    for paper in wanted:
        progress(paper)
        predictions |= module_of(paper).predict()
        if paper == "ong-farrell":
            predictions |= _own()
    found = []
    for line, claim in claims().items():
        if claim.paper not in wanted:
            continue
        one = predictions.get(line)
        if line in CONTRADICTIONS:
            found.append(_entry(claim, "inconsistent in the source", CONTRADICTIONS[line], one))
        elif one is None:
            found.append(_entry(claim, "untestable", _reason(claim), None))
        else:
            others = [
                (number, other)
                for at, other in predictions.items()
                if at != line and one.group and other.group == one.group
                and (number := claims()[at].number if claims()[at].number is not None else other.published) is not None
            ]  # fmt: skip
            found.append(_entry(claim, *judge(claim, one, others), one))
    return found


def summary(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of entries, of each verdict, and among predictions the shares of the two good verdicts."""
    entries = list(entries)
    counts = Counter(one["verdict"] for one in entries)
    # Contradictory figures are none to predict.
    judged = [one for one in entries if one["kind"] == "predicted" and one["verdict"] != "inconsistent in the source"]
    good = sum(one["verdict"] == "reproduced" for one in judged)
    shape = good + sum(one["verdict"] == "in shape" for one in judged)
    return {
        "figures": len(entries),
        "verdicts": {name: counts[name] for name in VERDICTS},
        "predicted": len(judged),
        "reproduced_percent": round(100 * good / len(judged), 1) if judged else None,
        "at_least_in_shape_percent": round(100 * shape / len(judged), 1) if judged else None,
    }
