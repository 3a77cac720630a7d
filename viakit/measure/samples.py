"""The times of one run of a pair (:mod:`viakit.measure.pair`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from viakit.measure.endpoints import Protocol

__all__ = ["Samples", "samples_of"]

# Counters of protocols that send frames or datagrams of their own.
_FRAME_COUNTERS = ("timeouts", "frames_retransmitted", "acks_sent", "frames_dropped")


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


def samples_of(protocol: Protocol, plan: dict[str, Any], answers: Sequence[tuple[dict[str, Any], bytes]]) -> Samples:
    """Return the samples of a run of *plan* from the answers of both sides to the request "go"."""
    times = np.frombuffer(answers[0][1], dtype=np.float64) * 1e-9
    counters: dict[str, int] = {}
    for answer, _ in answers:
        for key, value in answer["counters"].items():
            counters[key] = counters.get(key, 0) + value
    # A counter that the protocol does not count is left out, because 0 would be a claim.
    uncounted = ("system_calls",) * (not protocol.counts_calls)
    uncounted += _FRAME_COUNTERS * (not protocol.counts_frames)
    counters = {key: value for key, value in counters.items() if key not in uncounted}
    in_turns = plan["mode"] in ("pingpong", "overlap")
    n = plan["warmup"] + plan["count"] * (1 if in_turns else plan["repeats"])
    counters["messages"] = n if plan["mode"] == "stream" else 2 * n
    rate = alone = None
    if plan["mode"] == "overlap":
        alone, times = times[::2], times[1::2]
    if not in_turns:
        rate = (2 if plan["mode"] == "bidir" else 1) * plan["nbytes"] / times
    lost, touch_s = counters.get("frames_retransmitted", 0), answers[0][0].get("touch_s")
    return Samples(times, rate, counters, lost, plan["nbytes"], plan["mode"], touch_s, alone)
