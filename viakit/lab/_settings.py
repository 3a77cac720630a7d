"""Rules for the settings of laboratory calls: they convert each value, or refuse it before a measurement starts.

In a notebook, numbers may be typed as text, be computed by NumPy, or be missing. A wrong setting that is detected only
at the end would cost the whole measurement. Each value is therefore checked when it is given, and the error states what
is accepted.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Mapping
from typing import Any

from viakit import machines
from viakit.measure.ladder import SizeError, parse_size
from viakit.testbed import parse_rate
from viakit.testbed.wire import parse_delay

__all__ = [
    "MTU",
    "SECONDS",
    "SEED",
    "Rule",
    "checked",
    "choice",
    "delay",
    "flag",
    "machine",
    "maybe",
    "names",
    "number",
    "numbers",
    "rate",
    "size",
    "whole",
    "wholes",
]

Rule = Callable[[str, Any], Any]  # maps a setting's name and the given value to the converted value, or raises


def _refuse(name: str, given: Any, accepted: str) -> ValueError:
    return ValueError(f"{name} is {given!r}; expected {accepted}")


def checked(settings: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return *settings* as converted by the rules for their names. Settings without a rule are unchanged.

    Raises
    ------
    ValueError
        If a value is invalid; the message states what is accepted.
    """
    return {name: rules[name](name, given) if name in rules else given for name, given in settings.items()}


def maybe(rule: Rule) -> Rule:
    """Return a rule that also accepts None."""
    return lambda name, given: None if given is None else rule(name, given)


def whole(least: int, most: int) -> Rule:
    """Return the rule for an integer of Python or NumPy; it refuses 1.5 and True."""

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
    """Return the rule for a finite number from *least* (or *above* it) to *most*."""

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


def size(least: int, most: int, *words: str) -> Rule:
    """Return the rule for a number of bytes, which may be text such as "64K", or one of *words*."""

    def rule(name: str, given: Any) -> int | str:
        if isinstance(given, str) and given in words:
            return given
        if isinstance(given, str):
            try:
                given = parse_size(given)
            except SizeError:
                raise _refuse(name, given, f"bytes from {least} to {most}, optionally with K, M or G") from None
        return int(whole(least, most)(name, given))

    return rule


def choice(*options: str) -> Rule:
    """Return the rule for one of several words."""

    def rule(name: str, given: Any) -> str:
        if given not in options:
            raise _refuse(name, given, f"one of {', '.join(options)}")
        return str(given)

    return rule


def machine(name: str, given: Any) -> str:
    """Accept the name or the file of a machine; the error for others, a ValueError, lists what there is."""
    if not isinstance(given, (str, os.PathLike)):
        raise _refuse(name, given, 'the name or the file of a machine, such as "barrier-cluster-1"')
    machines.load(given)
    return os.fspath(given)


def flag(name: str, given: Any) -> bool:
    """Accept only True and False, because other true values mislead: "no" would count as yes."""
    if type(given).__name__ not in ("bool", "bool_"):  # NumPy's too
        raise _refuse(name, given, "True or False")
    return bool(given)


def rate(name: str, given: Any) -> str | float:
    """Accept a rate of a testbed's wire: "1gbit", 1e9."""
    parse_rate(given)
    return given if isinstance(given, str) else float(given)


def delay(name: str, given: Any) -> str:
    """Accept a delay of a testbed's wire: "1ms", 0.001. Return it as text, as the command line has it."""
    return given if parse_delay(given) >= 0 and isinstance(given, str) else f"{1e6 * float(given):.9g}us"


def _parts(name: str, given: Any, accepted: str) -> list[Any]:
    """Return the given value as a list. It may also be a single item, or comma-separated text."""
    if isinstance(given, str):
        return [word.strip() for word in given.split(",")]
    if isinstance(given, (bytes, Mapping, os.PathLike)):
        raise _refuse(name, given, accepted)
    try:
        return list(given)
    except TypeError:
        return [given]


def _several(one: Rule, kind: Callable[[str], Any], accepted: str) -> Rule:
    """Return the rule for a list whose items conform to the rule *one*; *kind* converts items that are text."""

    def rule(name: str, given: Any) -> list[Any]:
        found = []
        for part in _parts(name, given, accepted):
            try:
                found.append(one(name, kind(part) if isinstance(part, str) else part))
            except ValueError:
                raise ValueError(f"{name} are {given!r}; expected {accepted}") from None
        if not found:
            raise ValueError(f"{name} are {given!r}; expected {accepted}")
        return list(dict.fromkeys(found))

    return rule


def wholes(least: int, most: int) -> Rule:
    """Return the rule for one integer or several: 4, [2, 4], "2,4"."""
    return _several(whole(least, most), int, f"numbers from {least} to {most}, for instance [2, 4]")


def numbers(least: float, most: float, example: str) -> Rule:
    """Return the rule for one finite number or several."""
    accepted = f"fractions from {least:g} to {most:g}, for instance {example}"
    return _several(number(least, most, example), float, accepted)


def names(example: str) -> Rule:
    """Return the rule for one name or several: "via", ["via", "tcp"], "via,tcp"."""

    def rule(name: str, given: Any) -> list[str]:
        found = _parts(name, given, f"names, for instance {example}")
        if not found or not all(isinstance(part, str) and part for part in found):
            raise ValueError(f"{name} are {given!r}; expected names, for instance {example}")
        twice = next((part for part in found if found.count(part) > 1), None)
        if twice is not None:
            raise ValueError(f"{name} are {given!r}; {twice} is named twice, expected each name once")
        return found

    return rule


MTU = size(68, 65535)
SECONDS = number(0.0, 1e9, "10", above=True)
SEED = maybe(whole(0, 2**63 - 1))
