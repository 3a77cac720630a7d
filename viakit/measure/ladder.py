"""Message sizes: NetPIPE's ladder, and the notation of sizes.

Powers of two alone are a poor choice of sizes (Snell, Mikler and Gustafson, NetPIPE, 1997): they are aligned, they fill
cache lines and pages exactly, and every implementation is tuned for them. Each step of the ladder is therefore measured
together with its neighbours, a few bytes below and above. The steps are the powers of two, and one and a half times
each of them::

    1  2  3  4  6  8  12  [13 16 19]  [21 24 27]  [29 32 35]  [45 48 51]  [61 64 67] ...

A step has neighbours only if they do not overlap with those of the next step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from viakit.base.words import counted

__all__ = ["DEFAULT_PERTURBATION", "SizeError", "check_limits", "format_size", "ladder", "parse_size", "parse_sizes"]

DEFAULT_PERTURBATION = 3
LARGEST = 1 << 40  # a terabyte; larger sizes are taken for typing errors

_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([KMG]?)(?:i?B)?\s*", re.IGNORECASE)


class SizeError(ValueError):
    """The sizes are invalid; the message gives the value and what is accepted."""


def parse_size(text: str) -> int:
    """Return the number of bytes that *text* specifies.

    Parameters
    ----------
    text : str
        A whole number of bytes with an optional binary suffix: ``64``, ``4K`` (4096), ``1.5M``, ``4MiB``.

    Raises
    ------
    SizeError
        If the size is not in this form, is negative or fractional, or is above a terabyte.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SizeError(f"{text.strip()!r} is not a message size; give bytes, optionally with K, M or G (64, 4K, 1M)")
    number, suffix = match.groups()
    nbytes = float(number) * _SUFFIXES[suffix.upper()] if "." in number else int(number) * _SUFFIXES[suffix.upper()]
    if nbytes < 0:
        raise SizeError(f"{text.strip()!r} is negative; a message has 0 bytes or more")
    if nbytes != int(nbytes):
        raise SizeError(f"{text.strip()!r} is not a whole number of bytes; give one, such as 1536 or 1.5K")
    if nbytes > LARGEST:
        raise SizeError(f"{text.strip()!r} is above a terabyte; the largest message size is {format_size(LARGEST)}")
    return int(nbytes)


def format_size(nbytes: int) -> str:
    """Format a size: ``64 B``, ``4 KiB``, ``1.5 MiB``. Sizes that are not multiples of half a unit stay in bytes."""
    for suffix, unit in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= unit and nbytes * 2 % unit == 0:
            whole, half = divmod(nbytes * 2 // unit, 2)
            return f"{whole}{'.5' if half else ''} {suffix}"
    return f"{nbytes} B"


def _steps(end: int) -> Iterable[tuple[int, int]]:
    """Yield the ladder's steps up to *end*, each with its distance to the next step."""
    power = 1
    while power <= end:
        if power == 1:
            yield 1, 1
        else:
            yield power, power // 2
            if power + power // 2 <= end:
                yield power + power // 2, power // 2
        power *= 2


def ladder(start: int, end: int, perturbation: int = DEFAULT_PERTURBATION) -> list[int]:
    """Return NetPIPE's sizes from *start* to *end* (both included) in ascending order.

    Parameters
    ----------
    start, end : int
        First and last size in bytes.
    perturbation : int
        Distance in bytes of the neighbours below and above each step; 0 for none.

    Raises
    ------
    SizeError
        If *start* is negative, *end* is below *start*, or *perturbation* is negative.
    """
    if start < 0:
        raise SizeError(f"the first size is {start}; a message has 0 bytes or more")
    if end < start:
        raise SizeError(f"the sizes descend from {start} to {end}; write {end}:{start}")
    if perturbation < 0:
        raise SizeError(f"the perturbation is {perturbation}; give a number of bytes, or 0 for none")
    sizes = {start, end}
    for step, gap in _steps(end + perturbation):
        sizes.add(step)
        if perturbation and gap > perturbation + 1:
            sizes.update((step - perturbation, step + perturbation))
    return sorted(size for size in sizes if start <= size <= end)


def parse_sizes(text: str, perturbation: int = DEFAULT_PERTURBATION) -> list[int]:
    """Return the sizes that *text* specifies, in ascending order and without repetitions.

    Parameters
    ----------
    text : str
        Comma-separated sizes and ranges: ``64``, ``1,64,4K``, ``1:4M``, ``8,1K:64K``. A range becomes NetPIPE's ladder
        with *perturbation*; a single size is used unchanged.
    perturbation : int
        See :func:`ladder`.

    Raises
    ------
    SizeError
        If a part of *text* is neither a size nor a range.
    """
    if perturbation < 0:
        raise SizeError(f"the perturbation is {perturbation}; give a number of bytes, or 0 for none")
    sizes: set[int] = set()
    for part in text.split(","):
        if not part.strip():
            raise SizeError(f"{text!r} has an empty part; give sizes (1,64,4K) or a range (1:4M)")
        ends = part.split(":")
        if len(ends) == 1:
            sizes.add(parse_size(part))
        elif len(ends) == 2:
            start, end = (parse_size(one) for one in ends)
            if end < start:
                raise SizeError(f"the range {part.strip()!r} descends; write {ends[1].strip()}:{ends[0].strip()}")
            sizes.update(ladder(start, end, perturbation))
        else:
            raise SizeError(f"{part.strip()!r} is not a range; write FIRST:LAST, for instance 1:4M")
    return sorted(sizes)


def check_limits(sizes: Iterable[int], protocol: str, smallest: int = 0, largest: int | None = None) -> None:
    """Raise SizeError unless *protocol* can carry each of *sizes* as one message.

    Parameters
    ----------
    sizes : iterable of int
        Sizes in bytes.
    protocol : str
        Name of the protocol, for the error message.
    smallest, largest : int
        Limits of the protocol in bytes; None for *largest* means no limit.

    Raises
    ------
    SizeError
        Naming the first size outside the limits, and the limit.
    """
    for size in sizes:
        if size < smallest:
            raise SizeError(
                f"{protocol} cannot measure a message of {counted(size, 'byte')}; its smallest is {smallest}, "
                "start --sizes there"
            )
        if largest is not None and size > largest:
            raise SizeError(
                f"{protocol} cannot carry a message of {size} bytes ({format_size(size)}); its largest is {largest} "
                f"({format_size(largest)}), end --sizes there"
            )
