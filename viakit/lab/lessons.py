"""Code shared by the lessons in ``notebooks/``: duration and place of measurements, results as tables, exercises.

A lesson's times depend on the machine, so checks do not use them. Checks use counters, which are exact, or ratios of
values measured in one run. ``VIAKIT_QUICK=1`` makes all measurements short, for a first look or for tests. The
exercises (:func:`check`, :func:`hint`, :func:`reveal`) and predictions are in :mod:`viakit.lab.tutor`.
"""

from __future__ import annotations

import html
import math
import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from viakit import via as _via
from viakit.base.words import counted
from viakit.lab.tutor import Verdict, begin, check, hand_in, hint, measured, predict, reveal
from viakit.testbed import Testbed, TestbedError

__all__ = [
    "Verdict",
    "Wire",
    "begin",
    "check",
    "hand_in",
    "hint",
    "measured",
    "median_us",
    "per_message",
    "point",
    "predict",
    "quick",
    "rates",
    "ratio",
    "reveal",
    "table",
    "wire",
]


def quick() -> bool:
    """Return whether measurements are to be short: ``VIAKIT_QUICK=1``."""
    return os.environ.get("VIAKIT_QUICK") == "1"


class Wire:
    """Place of a lesson's measurements: two hosts of a testbed, or this host if namespaces are not permitted.

    Attributes
    ----------
    hosts : str
        "testbed" or "local".
    via : str
        Protocol that carries VIA between the hosts: "via-eth" or "via-udp".
    reason : str
        Why there is no testbed; empty if there is one.
    """

    def __init__(self, hosts: str, via: str, reason: str = "") -> None:
        self.hosts, self.via, self.reason = hosts, via, reason

    def __repr__(self) -> str:
        if self.hosts == "testbed":
            return "two hosts made of network namespaces, joined by a virtual cable; VIA runs on raw Ethernet frames"
        return (
            f"this host only, because it does not permit testbed hosts ({self.reason}). VIA runs on UDP sockets "
            "instead of raw frames. `viakit doctor` gives the remedy"
        )


@lru_cache(maxsize=1)
def wire() -> Wire:
    """Return the place of measurements. The first call tries to create two hosts, and the result is cached."""
    try:
        with Testbed(hosts=2):
            return Wire("testbed", "via-eth")
    except (TestbedError, OSError) as error:
        return Wire("local", "via-udp", str(error).partition("\n")[0])


# ------------------------------------------------------------------------------------------------ reading results


def _document(result: Any) -> Mapping[str, Any]:
    """Return the ``viakit.result/1`` of a result object or of an outcome."""
    return result if isinstance(result, Mapping) else result.document


def point(result: Any, protocol: str, nbytes: int | None = None) -> Mapping[str, Any]:
    """Return the measured point of a protocol at a size, as described in docs/results.md.

    Parameters
    ----------
    result
        A result object, an outcome of a sweep, or its document.
    protocol : str
        Name of the protocol, for instance "tcp".
    nbytes : int, optional
        Message size. Default: the only or the largest size.

    Raises
    ------
    LookupError
        If there is no such point; the message lists the measured ones.
    """
    series = [one for one in _document(result)["series"] if one["protocol"] == protocol]
    if not series:
        there = ", ".join(one["protocol"] for one in _document(result)["series"])
        raise LookupError(f"{protocol!r} was not measured; measured protocols: {there}")
    points = {one["nbytes"]: one for one in series[0]["points"]}
    if not points:
        raise LookupError(f"{protocol} has no measured point: its run stopped early, and printed the reason")
    nbytes = max(points) if nbytes is None else nbytes
    if nbytes not in points:
        raise LookupError(f"{protocol} was not measured at {counted(nbytes, 'byte')}; measured sizes: {sorted(points)}")
    return points[nbytes]


def median_us(result: Any, protocol: str, nbytes: int | None = None) -> float:
    """Return the median one-way time in microseconds."""
    return 1e6 * float(point(result, protocol, nbytes)["one_way_s"]["median"])


def ratio(result: Any, protocol: str, other: str, nbytes: int | None = None) -> float:
    """Return the ratio of the median times of `protocol` and `other`, both measured in this run."""
    return median_us(result, protocol, nbytes) / median_us(result, other, nbytes)


def per_message(result: Any, protocol: str, counter: str, nbytes: int | None = None) -> float:
    """Return a counter (``viakit.via.counters_help``) per message, as the sum of both sides.

    A counter that the protocol does not count is NaN, because 0 would be a claim: the copies of a socket, for instance,
    happen in the kernel.

    Raises
    ------
    LookupError
        If there is no such point, or no protocol has such a counter; the message lists the counters of this one.
    """
    counters = point(result, protocol, nbytes)["counters"]
    if counter not in counters:
        others = {name for one in _document(result)["series"] for each in one["points"] for name in each["counters"]}
        if counter not in {"system_calls", *others, *_via.counters_help}:
            raise LookupError(f"no counter is called {counter!r}; {protocol} counts {', '.join(sorted(counters))}")
        return float("nan")
    return float(counters[counter]) / max(counters["messages"], 1)


def rates(result: Any) -> dict[str, dict[int, float]]:
    """Return throughput in Mbit/s by protocol and size."""
    return {
        one["protocol"]: {point["nbytes"]: point["bandwidth_Bps"] * 8e-6 for point in one["points"]}
        for one in _document(result)["series"]
    }


class table:  # noqa: N801 - used as a function whose result shows itself
    """Rows of figures for reading: a plain text table, and an HTML one in a notebook.

    Parameters
    ----------
    rows : sequence of mappings
        All with the same keys, which become the head. Floats are shown with three significant figures.
    caption : str, optional
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], caption: str = "") -> None:
        self.rows, self.caption = [dict(row) for row in rows], caption

    def _cells(self) -> list[list[str]]:
        head = list(self.rows[0]) if self.rows else []
        return [head, *[[_word(row.get(name, "")) for name in head] for row in self.rows]]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = ["  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)) for row in cells]
        return "\n".join([self.caption, *lines] if self.caption else lines)

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        top = "".join(f"<th>{html.escape(word)}</th>" for word in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(word)}</td>" for word in row) + "</tr>" for row in rows)
        caption = f"<caption>{html.escape(self.caption)}</caption>" if self.caption else ""
        return f"<table>{caption}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _word(value: Any) -> str:
    if isinstance(value, float) and math.isnan(value):
        return "not counted"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
