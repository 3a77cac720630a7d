"""The times of one run of a pair (:mod:`viakit.measure.pair`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

__all__ = ["Samples"]


@dataclass
class Samples:
    """Measured times of one run.

    Attributes
    ----------
    one_way_s : ndarray of float64, shape (n,)
        Times in seconds. Ping-pong: half of each of `count` round trips. Stream and bidir: time per message, one for
        each repeat. Overlap: of each second round trip, half of the time that computing beside it could not use.
    bandwidth_Bps : ndarray of float64, shape (n,), or None
        Stream: bytes per second. Bidir: sum of both directions. Ping-pong: None.
    counters : dict of str to int
        Increments of both sides' counters during the run and its warm-up; "messages" counts its messages in both
        directions.
    lost : int
        Datagrams that were retransmitted (udp, via-eth, via-udp); the samples include their delay.
    nbytes, mode : int, str
        Message size in bytes, and mode.
    touch_s : float or None
        With touched buffers: time in seconds to write one message and to read one, in the same buffers and without
        sending. It is part of *one_way_s*.
    alone_s : ndarray of float64, shape (n,), or None
        Overlap: half of the round trip before, without computing, for each time of *one_way_s*.
    """

    one_way_s: NDArray[np.float64]
    bandwidth_Bps: NDArray[np.float64] | None  # noqa: N815 - the unit is part of the name
    counters: dict[str, int] = field(default_factory=dict)
    lost: int = 0
    nbytes: int = 0
    mode: str = "pingpong"
    touch_s: float | None = None
    alone_s: NDArray[np.float64] | None = None
