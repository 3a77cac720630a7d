"""Captures of several machines, with all times on one clock.

Each machine has a CLOCK_MONOTONIC of its own. :mod:`viakit.remote.captures` reads it over ssh, and writes limits of its
offset that are some hundred microseconds apart. Frames between the machines narrow them, because a frame arrives after
it was sent. Each frame from the machine of reference gives an upper limit of the other clock's offset. Each frame to it
gives a lower one. The tightest limits are those of the fastest frames. One offset holds for the whole run. A machine
that has been adjusted serves as a reference for the others, with its error added.

A frame is found on both sides by its bytes. A frame that was sent twice is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path

from viakit.trace import pcapng
from viakit.trace.pcapng import ETHERNET, Capture, HostClock, Packet

__all__ = ["read"]

_CLOCK_FILE = "clock.json"
_ETHER_LEN = 14  # addresses may differ between the two sides of a wire


def read(paths: Sequence[str | PathLike[str]]) -> Capture:
    """Read captures, and those of other machines in folders of a folder; all times are on one clock.

    The machine of reference is this one if it has frames, otherwise the first one that has.

    Parameters
    ----------
    paths : sequence of path-like
        pcapng files, or folders of them as :func:`viakit.trace.recording` writes them.

    Returns
    -------
    Capture
        ``clocks`` has the other machines.

    Raises
    ------
    viakit.trace.pcapng.CaptureError
        If a file is not a capture in this machine's byte order.
    OSError
        If a file cannot be read.
    """
    capture = pcapng.read(paths)
    machines = []
    for path in map(Path, paths):
        for file in sorted(path.glob(f"*/{_CLOCK_FILE}")) if path.is_dir() else []:
            about = json.loads(file.read_text(encoding="utf-8"))
            clock = HostClock(about["host"], about["low_ns"], about["high_ns"], problem=about["problem"])
            its = pcapng.read([file.parent])
            for one in its.interfaces:
                one.set_host(clock.host)
            machines.append(_Machine(clock, its))
    _align(machines, _Machine(HostClock("", 0, 0), capture) if capture.packets else None)
    for machine in machines:
        capture.clocks.append(machine.clock)
        capture.interfaces += machine.capture.interfaces
        capture.packets += machine.capture.packets
    capture.packets.sort(key=lambda packet: packet.time_ns)
    return capture


class _Machine:
    """A machine: its clock, its capture, and the times of its frames on its own clock."""

    def __init__(self, clock: HostClock, capture: Capture) -> None:
        self.clock, self.capture = clock, capture
        self.sent, self.received = _unique(capture.packets, out=True), _unique(capture.packets, out=False)
        self.lows, self.highs = [clock.low_ns], [clock.high_ns]

    def narrow(self, other: _Machine, error_ns: int) -> None:
        """Take limits from the frames between this machine and an adjusted one, whose times have this error."""
        back, error = other.clock.offset_ns, error_ns
        highs = [at - other.sent[data] + back + error for data, at in self.received.items() if data in other.sent]
        lows = [at - other.received[data] + back - error for data, at in self.sent.items() if data in other.received]
        self.highs += [min(highs)] if highs else []
        self.lows += [max(lows)] if lows else []
        source = "frames" if len(self.lows) > 1 and len(self.highs) > 1 else "ssh"
        self.clock = replace(self.clock, low_ns=max(self.lows), high_ns=min(self.highs), source=source)


def _align(machines: Sequence[_Machine], here: _Machine | None) -> None:
    """Determine the clocks of all machines, and adjust the times of their packets.

    The reference is the machine *here*, or the first that has packets. The machine whose clock is known best is next.
    So frames also determine the clock of a machine that has exchanged none with the reference, but some with another.
    """
    rest = [*machines]
    reference = here or next((one for one in rest if one.capture.packets), None)
    if reference is None:
        return
    if here is None:
        rest.remove(reference)
        reference.clock = replace(reference.clock, source="reference")
        _shift(reference.capture, reference.clock.offset_ns)
    for one in rest:
        # Times between machines do not depend on the error of the reference.
        one.lows[0] -= reference.clock.error_ns
        one.highs[0] += reference.clock.error_ns
        one.narrow(reference, 0)
    while rest:
        best = min(rest, key=lambda one: (one.clock.source != "frames", one.clock.error_ns))
        rest.remove(best)
        _shift(best.capture, best.clock.offset_ns)
        for one in rest:
            one.narrow(best, best.clock.error_ns)


def _shift(capture: Capture, offset_ns: int) -> None:
    """Express all times by a clock that is *offset_ns* behind."""
    for one in capture.interfaces:
        one.clock_offset_ns += offset_ns
    for packet in capture.packets:
        packet.time_ns -= offset_ns


def _unique(packets: Iterable[Packet], *, out: bool) -> dict[bytes, int]:
    """Return the times of the frames in one direction whose bytes occur once."""
    found: dict[bytes, int] = {}
    twice: set[bytes] = set()
    for packet in packets:
        if packet.interface.link_type == ETHERNET and packet.out is out:
            data = packet.data[_ETHER_LEN:]
            twice.update([data] if data in found else [])
            found[data] = packet.time_ns
    for data in twice:
        del found[data]
    return found
