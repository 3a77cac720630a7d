"""Properties of a testbed's wire that make it like a real one: no offloads, no TCP options, a small bucket, a delay.

The papers' cards sent one frame per segment. Here the kernel passes up to 64 KiB through a wire at once, which none of
them could (TSO, GSO, GRO). TCP of Linux 2.2 and 2.4 ran without window scaling and without time stamps where both sides
had them switched off. A :class:`Wire` states what a testbed has of these. ``VIAKIT_WIRE`` gives the values for the
testbeds of a command and of the processes that it starts; arguments of :class:`viakit.testbed.Testbed` have precedence.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["MAX_DELAY_S", "SWITCHES", "VARIABLE", "Wire", "parse_delay"]

VARIABLE = "VIAKIT_WIRE"
SWITCHES = ("on", "off")
_ACCEPTED = "offload=on|off, tcp_options=on|off, burst=BYTES|min, delay=TIME"
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
        Bucket of a rate limit in bytes; "min": one frame, the smallest that the kernel accepts. None: the usual one.
    delay : float, str or None
        Delay of every frame in seconds, or text such as "200us". 0: a relay that adds no delay. None: no relay.
    """

    offload: str = "on"
    tcp_options: str = "on"
    burst: int | str | None = None
    delay: float | str | None = None

    def __post_init__(self) -> None:
        for name in ("offload", "tcp_options"):
            if getattr(self, name) not in SWITCHES:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected on or off")
        if isinstance(self.burst, str) and self.burst != "min":
            raise ValueError(f"burst is {self.burst!r}; expected a number of bytes, or min")
        if self.delay is not None:
            object.__setattr__(self, "delay", parse_delay(self.delay))

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
        if self.delay_s is not None:
            ms = self.delay_s >= 1e-3
            parts["delay"] = f"{self.delay_s * (1e3 if ms else 1e6):.9g}{'ms' if ms else 'us'}"
        return ",".join(f"{name}={value}" for name, value in parts.items() if value != getattr(usual, name))
