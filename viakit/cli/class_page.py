"""The page of ``viakit doctor --class``: the lessons that work on this machine."""

from __future__ import annotations

import platform
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from viakit.doctor import Finding

__all__ = ["class_page"]

# By lessons: findings that must be ok, and the consequence without them.
_BASE = ("viakit's compiled extension", "notebooks")
_WIRE = ("network namespaces", "veth interfaces")
_LESSONS = (
    ((0, 2, 4, 9, 10, 12, 13), _BASE, "do not run"),
    ((1, 5, 8, 11), (*_BASE, *_WIRE), "measure on this host, without a wire"),
    ((3,), (*_BASE, *_WIRE, "raw sockets"), "measures VIA over UDP instead of raw frames"),
    ((6, 7), (*_BASE, "cores"), "run, but the scheduler decides their times: use counters"),
)


def _one_line(ready: list[int], others: list[int]) -> str:
    """Return the line of this machine in the list of a class."""
    if not others:
        return f"{platform.node()}: all {len(ready)} lessons are ready"
    words = f"ready {', '.join(map(str, ready)) or 'none'}"
    return f"{platform.node()}: {words}; see below {', '.join(map(str, others))}"


def class_page(findings: list[Finding]) -> str:
    """Return one page of plain text for a class: the lessons that work on this machine, and remedies.

    Parameters
    ----------
    findings : list of Finding
        Result of :func:`viakit.doctor.examine`.

    Returns
    -------
    str
        At most 80 columns, for a printer or a terminal; the first line sums up the machine.
    """
    by_name = {one.name: one for one in findings}
    lines = [f"{'lessons':22} {'ready':6} note", "-" * 79]
    ready: list[int] = []
    for numbers, needed, otherwise in _LESSONS:
        missing = [name for name in needed if name not in by_name or by_name[name].ok is not True]
        ready += [] if missing else numbers
        without = "do not run" if set(missing) & set(_BASE) else otherwise
        note = f"{without} ({', '.join(missing)})" if missing else ""
        lessons = ", ".join(map(str, numbers))
        lines += textwrap.wrap(
            f"{lessons:22} {'no' if missing else 'yes':6} {note}".rstrip(), 79, subsequent_indent=" " * 30
        )
    others = [one for numbers, _, _ in _LESSONS for one in numbers if one not in ready]
    lines = [_one_line(sorted(ready), sorted(others)), "", *lines]
    remedies = {one.name: one.remedy for one in findings if one.remedy and one.ok is not True}
    lines += ["", "Remedies" if remedies else "Nothing is missing."]
    for name, remedy in remedies.items():
        lines += textwrap.wrap(f"{name}: {remedy}", 79, initial_indent="  ", subsequent_indent="    ")
    lines += ["", f"{platform.system()} {platform.release()}. A class collects the first line of each laptop."]
    lines += ["VIAKIT_QUICK=1 viakit lab   makes every measurement short."]
    return "\n".join(lines)
