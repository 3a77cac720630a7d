"""The page of ``viakit doctor --class``: the lessons that work on this machine."""

from __future__ import annotations

import pkgutil
import platform
import textwrap
from typing import TYPE_CHECKING

from viakit.lab import exercises

if TYPE_CHECKING:
    from viakit.doctor import Finding

__all__ = ["class_page"]

# By lessons: findings that must be ok, and the consequence without them. All other lessons need no more than _BASE.
_BASE = ("viakit's compiled extension", "notebooks")
_WIRE = ("network namespaces", "veth interfaces")
_LESSONS = (
    ((1, 5, 8, 11), (*_BASE, *_WIRE), "measure on this host, without a wire"),
    ((3,), (*_BASE, *_WIRE, "raw sockets"), "measures VIA over UDP instead of raw frames"),
    ((6, 7), (*_BASE, "cores"), "run, but the scheduler decides their times: use counters"),
)


def _rows() -> list[tuple[tuple[int, ...], tuple[str, ...], str]]:
    """Return all lessons, as rows of :data:`_LESSONS`; those that it does not name come first."""
    named = {one for numbers, _, _ in _LESSONS for one in numbers}
    modules = (module.name for module in pkgutil.iter_modules(exercises.__path__))
    every = (int(name.removeprefix("lesson_")) for name in modules if name.startswith("lesson_"))
    return [(tuple(sorted(set(every) - named)), _BASE, "do not run"), *_LESSONS]


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
    rows = _rows()
    for numbers, needed, otherwise in rows:
        missing = [name for name in needed if name not in by_name or by_name[name].ok is not True]
        ready += [] if missing else numbers
        without = "do not run" if set(missing) & set(_BASE) else otherwise
        note = f"{without} ({', '.join(missing)})" if missing else ""
        lessons = ", ".join(map(str, numbers))
        lines += textwrap.wrap(
            f"{lessons:22} {'no' if missing else 'yes':6} {note}".rstrip(), 79, subsequent_indent=" " * 30
        )
    others = [one for numbers, _, _ in rows for one in numbers if one not in ready]
    lines = [_one_line(sorted(ready), sorted(others)), "", *lines]
    remedies = {one.name: one.remedy for one in findings if one.remedy and one.ok is not True}
    lines += ["", "Remedies" if remedies else "Nothing is missing."]
    for name, remedy in remedies.items():
        lines += textwrap.wrap(f"{name}: {remedy}", 79, initial_indent="  ", subsequent_indent="    ")
    lines += ["", f"{platform.system()} {platform.release()}. A class collects the first line of each laptop."]
    lines += ["VIAKIT_QUICK=1 viakit lab   makes every measurement short."]
    return "\n".join(lines)
