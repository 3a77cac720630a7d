"""Captures of several machines, with all times on one clock.

Each machine has a CLOCK_MONOTONIC of its own. :mod:`viakit.remote.captures` reads it over ssh, and writes limits of its
offset that are some hundred microseconds apart. Frames between the machines narrow them, because a frame arrives after
it was sent. Each frame from the machine of reference gives an upper limit of the other clock's offset. Each frame to it
gives a lower one. The tightest limits are those of the fastest frames. One offset holds for the whole run.

A frame is found on both sides by its bytes. A frame that was sent twice is not used.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple

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
    done = [_Aligned(capture.packets, 0)] if capture.packets else []
    for path in map(Path, paths):
        for file in sorted(path.glob(f"*/{_CLOCK_FILE}")) if path.is_dir() else []:
            about = json.loads(file.read_text(encoding="utf-8"))
            clock = HostClock(about["host"], about["low_ns"], about["high_ns"], problem=about["problem"])
            its = pcapng.read([file.parent])
            for one in its.interfaces:
                one.set_host(clock.host)
            if done:
                clock = _narrowed(clock, its.packets, done)
            elif its.packets:
                clock = replace(clock, source="reference")
            _shift(its, clock.offset_ns)
            if its.packets:
                done.append(_Aligned(its.packets, clock.error_ns))
            capture.clocks.append(clock)
            capture.interfaces += its.interfaces
    capture.packets = sorted((packet for one in done for packet in one.packets), key=lambda packet: packet.time_ns)
    return capture


class _Aligned(NamedTuple):
    """Packets of a machine, on the clock of this machine, and the largest error of their times."""

    packets: list[Packet]
    error_ns: int


def _shift(capture: Capture, offset_ns: int) -> None:
    """Express all times by a clock that is *offset_ns* behind."""
    for one in capture.interfaces:
        one.clock_offset_ns += offset_ns
    for packet in capture.packets:
        packet.time_ns -= offset_ns


def _narrowed(clock: HostClock, theirs: list[Packet], others: Sequence[_Aligned]) -> HostClock:
    """Return *clock* with the limits that frames between *theirs* and *others* give."""
    sent, received = _unique(theirs, out=True), _unique(theirs, out=False)
    # The first of the others has the clock of reference, so its error has no effect on times between machines.
    reference_ns = others[0].error_ns
    lows, highs = [clock.low_ns - reference_ns], [clock.high_ns + reference_ns]
    for i, one in enumerate(others):
        error_ns = one.error_ns if i else 0
        to_them, from_us = _unique(one.packets, out=True), _unique(one.packets, out=False)
        highs += [time_ns - to_them[data] + error_ns for data, time_ns in received.items() if data in to_them]
        lows += [time_ns - from_us[data] - error_ns for data, time_ns in sent.items() if data in from_us]
    both = len(lows) > 1 and len(highs) > 1
    return replace(clock, low_ns=max(lows), high_ns=min(highs), source="frames" if both else "ssh")


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
