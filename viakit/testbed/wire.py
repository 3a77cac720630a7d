"""Properties of a testbed's wire that make it like a real one: no offloads or TCP options, a rate, a bucket, a delay.

The papers' cards sent one frame per segment. Here the kernel passes up to 64 KiB through a wire at once, which none of
them could (TSO, GSO, GRO). TCP of Linux 2.2 and 2.4 ran without window scaling and without time stamps where both sides
had them switched off. A :class:`Wire` states what a testbed has of these. ``VIAKIT_WIRE`` gives the values for the
testbeds of a command and of the processes that it starts; arguments of :class:`viakit.testbed.Testbed` have precedence.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MAX_DELAY_S", "SWITCHES", "VARIABLE", "Wire", "parse_delay", "parse_rate"]

VARIABLE = "VIAKIT_WIRE"
SWITCHES = ("on", "off")
_ACCEPTED = "offload=on|off, tcp_options=on|off, burst=BYTES|min, delay=TIME, rate=BITS"
MAX_DELAY_S = 1.0
_TIME = re.compile(r"([0-9]*\.?[0-9]+)(us|ms|s)|0")


def parse_delay(delay: float | str) -> float:
    """Return seconds for a number of them, or for text with a unit such as "200us", "1.5ms" or "0.01s".

    Raises
    ------
    ValueError
        If the delay is not a time from 0 to 1 s.
    """
    seconds = -1.0
    if isinstance(delay, str):
        if match := _TIME.fullmatch(delay.strip()):
            seconds = float(match[1] or 0) / {"us": 1e6, "ms": 1e3}.get(match[2], 1.0)
    elif not isinstance(delay, bool) and isinstance(delay, (int, float)):
        seconds = float(delay)
    if not 0 <= seconds <= MAX_DELAY_S:  # true for nan too
        raise ValueError(f"delay is {delay!r}; expected a time from 0 to 1 s with its unit, such as 200us or 1ms")
    return seconds


def parse_rate(rate: float | str) -> int:
    """Return bits per second for a number, or for text such as "1gbit", "100 Mbit/s" or "2.5G" (decimal prefixes).

    Raises
    ------
    ValueError
        If the rate is not a number of at least 8 bit/s in one of these units. "bps" is refused because it is ambiguous:
        for ``tc`` it means bytes, elsewhere bits.
    """
    right = 'expected bits per second, at least 8: 1e9, "1gbit", "100 Mbit/s" or "2.5G"'
    if isinstance(rate, str):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?)(?:bit(?:/s)?)?\s*", rate.lower())
        try:
            value = float(match[1]) * 1000.0 ** " kmgt".index(match[2] or " ") if match else math.nan
        except ValueError:
            value = math.nan
    elif isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise ValueError(f"rate is {rate!r}; {right}")
    else:
        value = float(rate)
    if not 8 <= value <= 1e13:  # false for nan too
        raise ValueError(f"rate is {rate!r}; {right}")
    return round(value)


def _rate_text(bps: int) -> str:
    """Return a rate as :func:`parse_rate` reads it, with the largest prefix that leaves at least 1."""
    power = next(i for i in (4, 3, 2, 1, 0) if bps >= 1000**i)
    return f"{bps / 1000**power:.14g}{' kmgt'[power].strip()}bit"


@dataclass(frozen=True)
class Wire:
    """Properties of a wire.

    Attributes
    ----------
    offload : {"on", "off"}
        "off": no segmentation by interfaces and no merging of received frames (TSO, GSO, UDP segmentation, GRO).
    tcp_options : {"on", "off"}
        "off": TCP without window scaling and time stamps, so its window is at most 64 KiB.
    burst : int, "min" or None
        Bucket of `rate` in bytes; "min": one frame, the smallest that the kernel accepts. None: the usual one.
    delay : float, str or None
        Delay of every frame in seconds, or text such as "200us". 0: a relay that adds no delay. None: no relay.
    rate : float, str or None
        Limit of each direction in bit/s, or text such as "1gbit". None: no limit.
    """

    offload: str = "on"
    tcp_options: str = "on"
    burst: int | str | None = None
    delay: float | str | None = None
    rate: float | str | None = None

    def __post_init__(self) -> None:
        for name in ("offload", "tcp_options"):
            if getattr(self, name) not in SWITCHES:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected on or off")
        if self.rate is not None:
            object.__setattr__(self, "rate", parse_rate(self.rate))
        if isinstance(self.burst, str) and self.burst != "min":
            raise ValueError(f"burst is {self.burst!r}; expected a number of bytes, or min")
        if self.delay is not None:
            object.__setattr__(self, "delay", parse_delay(self.delay))

    @property
    def rate_bps(self) -> int | None:
        """The limit in bit/s; None without one."""
        return None if self.rate is None else int(self.rate)

    @property
    def delay_s(self) -> float | None:
        """The delay in seconds; None without a relay."""
        return None if self.delay is None else float(self.delay)

    @classmethod
    def chosen(cls, environment: Mapping[str, str] = os.environ, **given: float | str | None) -> Wire:
        """Return the wire of *given* values, of ``VIAKIT_WIRE`` for those that are None, and of defaults for the rest.

        Raises
        ------
        ValueError
            If a value or the variable is invalid.
        """
        found: dict[str, float | str] = {}
        for item in filter(None, environment.get(VARIABLE, "").split(",")):
            name, _, value = item.partition("=")
            if name not in cls.__dataclass_fields__ or not value:
                raise ValueError(f"{VARIABLE} has {item!r}; expected {_ACCEPTED}, separated by commas")
            found[name] = int(value) if name == "burst" and value.isdigit() else value
        found |= {name: value for name, value in given.items() if value is not None}
        return cls(**found)  # type: ignore[arg-type]

    def text(self) -> str:
        """Return the value of ``VIAKIT_WIRE`` for this wire: only what differs from the default; "" for a usual one."""
        usual = Wire()
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        if self.rate_bps is not None:
            parts["rate"] = _rate_text(self.rate_bps)
        if self.delay_s is not None:
            ms = self.delay_s >= 1e-3
            parts["delay"] = f"{self.delay_s * (1e3 if ms else 1e6):.9g}{'ms' if ms else 'us'}"
        return ",".join(f"{name}={value}" for name, value in parts.items() if value != getattr(usual, name))
