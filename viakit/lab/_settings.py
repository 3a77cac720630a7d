"""What people write into a laboratory's calls, made into what instruments take, or refused before anything starts.

In a notebook numbers come from everywhere: typed as text, computed as NumPy's, or not there yet. A setting that only
the end of a measurement stumbles over costs the measurement; so each is looked at when it is given, and its error says
what would be right.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "MTU",
    "SECONDS",
    "SEED",
    "Rule",
    "checked",
    "choice",
    "flag",
    "maybe",
    "names",
    "number",
    "numbers",
    "rate",
    "size",
    "whole",
    "wholes",
]

Rule = Callable[[str, Any], Any]  # from a setting's name and what was given for it to what is meant; or ValueError


def _refuse(name: str, given: Any, right: str) -> ValueError:
    return ValueError(f"{name} is {given!r}; right would be {right}")


def checked(settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return *settings* as the rules of their names want them; those without a rule stay as they are.

    Raises
    ------
    ValueError
        If one makes no sense; the message says which would.
    """
    return {name: rules[name](name, given) if name in rules else given for name, given in settings.items()}


def maybe(rule: Rule) -> Rule:
    """Return a rule that takes None as well: not given."""
    return lambda name, given: None if given is None else rule(name, given)


def whole(least: int, most: int) -> Rule:
    """Return the rule of a whole number: Python's or NumPy's, but neither 1.5 nor True."""

    def rule(name: str, given: Any) -> int:
        try:
            value = operator.index(given)
        except TypeError:
            value = least - 1
        if isinstance(given, bool) or not least <= value <= most:
            raise _refuse(name, given, f"a whole number from {least} to {most}")
        return value

    return rule


def number(least: float, most: float, example: str, *, above: bool = False) -> Rule:
    """Return the rule of a finite number from *least* (or *above* it) to *most*."""

    def rule(name: str, given: Any) -> float:
        try:
            value = math.nan if isinstance(given, (bool, str, bytes)) else float(given)
        except (TypeError, ValueError):
            value = math.nan
        if not least <= value <= most or (above and value == least):
            limits = f"above {least:g}" if above else f"from {least:g}"
            limits += f" to {most:g}" if most < math.inf else ""
            raise _refuse(name, given, f"a number {limits}, for instance {example}")
        return value

    return rule


def size(least: int, most: int) -> Rule:
    """Return the rule of a number of bytes, which may be text: "64K"."""

    def rule(name: str, given: Any) -> int:
        from viakit.measure.ladder import SizeError, parse_size

        if isinstance(given, str):
            try:
                given = parse_size(given)
            except SizeError:
                raise _refuse(name, given, f"bytes from {least} to {most}, with K, M or G if you like") from None
        return int(whole(least, most)(name, given))

    return rule


def choice(*options: str) -> Rule:
    """Return the rule of one word out of several."""

    def rule(name: str, given: Any) -> str:
        if given not in options:
            raise _refuse(name, given, f"one of {', '.join(options)}")
        return str(given)

    return rule


def flag(name: str, given: Any) -> bool:
    """Take True or False, and nothing that merely counts as such: "no" would be yes."""
    if type(given).__name__ not in ("bool", "bool_"):  # NumPy's too
        raise _refuse(name, given, "True or False")
    return bool(given)


def rate(name: str, given: Any) -> str | float:
    """Take what a testbed's wire takes: "1gbit", 1e9."""
    from viakit.testbed import parse_rate

    parse_rate(given)
    return given if isinstance(given, str) else float(given)


def _parts(name: str, given: Any, right: str) -> list[Any]:
    """Return what was given as a list: one of them alone, or text with commas, will do."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(",")]
    if isinstance(given, (bytes, Mapping, os.PathLike)):
        raise _refuse(name, given, right)
    try:
        return list(given)
    except TypeError:
        return [given]


def _several(one: Rule, kind: Callable[[str], Any], right: str) -> Rule:
    """Return the rule of one or several that each obey the rule *one*; words become what *kind* makes of them."""

    def rule(name: str, given: Any) -> list[Any]:
        found = []
        for part in _parts(name, given, right):
            try:
                found.append(one(name, kind(part) if isinstance(part, str) else part))
            except ValueError:
                raise ValueError(f"{name} are {given!r}; right would be {right}") from None
        if not found:
            raise ValueError(f"{name} are {given!r}; right would be {right}")
        return list(dict.fromkeys(found))

    return rule


def wholes(least: int, most: int) -> Rule:
    """Return the rule of one whole number or several: 4, [2, 4], "2,4"."""
    return _several(whole(least, most), int, f"numbers from {least} to {most}, for instance [2, 4]")


def numbers(least: float, most: float, example: str) -> Rule:
    """Return the rule of one finite number or several."""
    return _several(number(least, most, example), float, f"parts from {least:g} to {most:g}, for instance {example}")


def names(example: str) -> Rule:
    """Return the rule of one name or several: "via", ["via", "tcp"], "via,tcp"."""

    def rule(name: str, given: Any) -> list[str]:
        found = _parts(name, given, f"names, for instance {example}")
        if not found or not all(isinstance(part, str) and part for part in found):
            raise ValueError(f"{name} are {given!r}; right would be names, for instance {example}")
        twice = next((part for part in found if found.count(part) > 1), None)
        if twice is not None:
            raise ValueError(f"{name} are {given!r}: {twice} is named twice; right would be once")
        return found

    return rule


MTU = size(68, 65535)
SECONDS = number(0.0, 1e9, "10", above=True)
SEED = maybe(whole(0, 2**63 - 1))
