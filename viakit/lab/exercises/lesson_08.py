"""Exercises of lesson 8, When frames get lost."""

from __future__ import annotations

from typing import Any

from viakit import via
from viakit.lab.tutor import Exercise, Names, Wrong, close_to

__all__ = ["EXERCISES"]


def _lost(names: Names) -> str:
    original, calls = names.run, []

    def run(level: Any, loss: float, *more: Any, **others: Any) -> Any:
        found = original(level, loss, *more, **others)
        calls.append((level, loss, found[1]))
        return found

    names.run = run
    try:
        answer = names.lost_frames()
    finally:
        names.run = original
    if not calls:
        raise Wrong("lost_frames() does not call run(...): count the frames instead of guessing them")
    level, loss, cost = calls[-1]
    if level != via.Reliability.RELIABLE_DELIVERY or abs(loss - 0.05) > 1e-9:
        raise Wrong(f"it ran with {level!s} and loss {loss:g}; expected RELIABLE_DELIVERY and 0.05")
    if answer != cost["fault_dropped"]:
        raise Wrong(f"it returned {answer!r}; in this run the wire dropped another number of frames")
    return f"{answer} frames: the fault dropped data frames and acknowledgements."


def _level(names: Names) -> str:
    given = names.level
    if not isinstance(given, via.Reliability):
        raise Wrong(f"level is {given!r}; expected a member of via.Reliability")
    if given != via.Reliability.RELIABLE_RECEPTION:
        raise Wrong(f"with {given.name} a send completes earlier: see the table of levels")
    return "So the sender waits for an acknowledgement each time."


def _factor(names: Names) -> str:
    if not names.again["selective"]:
        raise Wrong(
            "selective repeat retransmitted no frame in this run, so there is no ratio: "
            "increase `seconds` in the first cell, and run that cell and the measurement again"
        )
    expected = names.again["go_back_n"] / names.again["selective"]
    close_to(names, "times_more", expected, 0.02, "Divide the share of go_back_n by that of selective, both in `again`")
    return "Go-back-N drops frames that it could have kept, and retransmits them."


EXERCISES = (
    Exercise(
        ("lost_frames",),
        _lost,
        (
            "run(...) returns the arrived numbers, and the counters.",
            "The table above has a counter of dropped frames. The cell that makes the table has its name.",
        ),
        """
def lost_frames():
    _, cost = run(via.Reliability.RELIABLE_DELIVERY, loss=0.05)
    return cost["fault_dropped"]
""",
    ),
    Exercise(
        ("level",),
        _level,
        ("Read the second column of the table of levels.", "Where must the data be when a send completes?"),
        "level = via.Reliability.RELIABLE_RECEPTION",
    ),
    Exercise(
        ("times_more",),
        _factor,
        ("`again` has the share of retransmitted frames by way.", "Which share must be the dividend?"),
        """
share = again["selective"]
times_more = again["go_back_n"] / share if share else float("nan")  # no frame was lost: there is no ratio
""",
    ),
)
