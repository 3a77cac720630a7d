"""The page of ``viakit doctor --class``: the lessons that work on this machine."""

from __future__ import annotations

import platform
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from viakit.doctor import Finding

__all__ = ["class_page"]

# By lessons: findings that must be ok, and the consequence without them.
_LESSONS = (
    ("0, 2, 4, 9, 10", ("viakit's compiled extension",), "do not run"),
    ("1, 3, 5, 8", ("network namespaces", "veth interfaces"), "measure on this host by UDP, without a wire"),
    ("3", ("raw sockets",), "measures VIA over UDP instead of raw frames"),
    ("6, 7", ("cores",), "run, but the scheduler decides their times: use counters"),
)


def class_page(findings: list[Finding]) -> str:
    """Return one page of plain text for a class: the lessons that work on this machine, and remedies.

    Parameters
    ----------
    findings : list of Finding
        Result of :func:`viakit.doctor.examine`.

    Returns
    -------
    str
        At most 80 columns, for a printer or a terminal.
    """
    by_name = {one.name: one for one in findings}
    lines = [f"viakit on {platform.node()}: {platform.system()} {platform.release()}", ""]
    lines += [f"{'lessons':16} {'ready':6} note", "-" * 79]
    for lessons, needed, otherwise in _LESSONS:
        missing = [name for name in needed if name not in by_name or by_name[name].ok is not True]
        note = f"{otherwise} ({', '.join(missing)})" if missing else ""
        lines += textwrap.wrap(
            f"{lessons:16} {'no' if missing else 'yes':6} {note}".rstrip(), 79, subsequent_indent=" " * 24
        )
    remedies = {one.name: one.remedy for one in findings if one.remedy and one.ok is not True}
    lines += ["", "Remedies" if remedies else "Nothing is missing."]
    for name, remedy in remedies.items():
        lines += textwrap.wrap(f"{name}: {remedy}", 79, initial_indent="  ", subsequent_indent="    ")
    lines += ["", "For thirty laptops: run `viakit doctor --class` on each, before the class."]
    lines += ["VIAKIT_QUICK=1 viakit lab   makes every measurement short."]
    return "\n".join(lines)
