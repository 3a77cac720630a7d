"""Properties of a testbed's wire that make it like the papers' machines: no offloads, no TCP options, a small bucket.

The papers' cards sent one frame per segment. Here the kernel passes up to 64 KiB through a wire at once, which none of
them could (TSO, GSO, GRO). TCP of Linux 2.2 and 2.4 ran without window scaling and without time stamps where both sides
had them switched off. A :class:`Wire` states what a testbed has of these. ``VIAKIT_WIRE`` gives the values for the
testbeds of a command and of the processes that it starts; arguments of :class:`viakit.testbed.Testbed` have precedence.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["SWITCHES", "VARIABLE", "Wire"]

VARIABLE = "VIAKIT_WIRE"
SWITCHES = ("on", "off")
_ACCEPTED = "offload=on|off, tcp_options=on|off, burst=BYTES|min"


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
    """

    offload: str = "on"
    tcp_options: str = "on"
    burst: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("offload", "tcp_options"):
            if getattr(self, name) not in SWITCHES:
                raise ValueError(f"{name} is {getattr(self, name)!r}; expected on or off")
        if isinstance(self.burst, str) and self.burst != "min":
            raise ValueError(f"burst is {self.burst!r}; expected a number of bytes, or min")

    @classmethod
    def chosen(cls, environment: Mapping[str, str] = os.environ, **given: int | str | None) -> Wire:
        """Return the wire of *given* values, of ``VIAKIT_WIRE`` for those that are None, and of defaults for the rest.

        Raises
        ------
        ValueError
            If a value or the variable is invalid.
        """
        found: dict[str, int | str] = {}
        for item in filter(None, environment.get(VARIABLE, "").split(",")):
            name, _, value = item.partition("=")
            if name not in cls.__dataclass_fields__ or not value:
                raise ValueError(f"{VARIABLE} has {item!r}; expected {_ACCEPTED}, separated by commas")
            found[name] = int(value) if value.isdigit() else value
        found |= {name: value for name, value in given.items() if value is not None}
        return cls(**found)  # type: ignore[arg-type]

    def text(self) -> str:
        """Return the value of ``VIAKIT_WIRE`` for this wire: only what differs from the default; "" for a usual one."""
        usual = Wire()
        parts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ",".join(f"{name}={value}" for name, value in parts.items() if value != getattr(usual, name))
