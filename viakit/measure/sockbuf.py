"""A short calibration that finds the best socket buffers of TCP, so that TCP is measured at its best.

Linux adapts the buffers of a TCP connection ("automatic"), which suits long distances. On one host or one wire, buffers
of a fixed size that stay in the cache are often faster. The best size depends on the machine. :func:`tune` tries the
sizes in turns, each on a connection of its own, and selects the one with the lowest times.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from viakit.measure.ladder import format_size

if TYPE_CHECKING:
    from viakit.measure.turns import Turns

__all__ = ["AUTO", "CANDIDATES", "name_of", "tune", "words"]

AUTO = "auto"
CANDIDATES = (None, *(1 << i for i in range(16, 23)))  # bytes: 64 KiB to 4 MiB; None: automatic
ROUNDS = 3
BURST_S = 0.005
MOST_SIZES = 3  # message sizes that are tried: the smallest, the largest, and one between
MARGIN = 0.02  # relative improvement over automatic that a fixed size needs


def name_of(sockbuf: int | None) -> str:
    """Return a size of socket buffers as text."""
    return "automatic" if sockbuf is None else format_size(sockbuf)


def _burst(pair: Any, nbytes: int, mode: str, known_s: float | None) -> float:
    """Return the median time of a short burst. *known_s* is an estimate of the time of a message."""
    from viakit.measure.turns import count_for  # start-up time

    count = 4 if known_s is None else count_for(BURST_S, known_s, 4, 2000)
    samples = pair.run(nbytes, mode=mode, count=count, warmup=max(1, count // 4))
    return float(statistics.median(samples.one_way_s.tolist()))


def tune(pair: Any, sizes: Sequence[int], mode: str, turns: Turns) -> dict[str, Any]:
    """Try all candidates on *pair*, and leave it connected with the best one.

    Parameters
    ----------
    pair : Pair
        Pair of protocol tcp with automatic buffers.
    sizes : sequence of int
        Message sizes that will be measured.
    mode : str
        Mode of the sweep.
    turns : Turns
        The sweep, which gives the order within each round.

    Returns
    -------
    dict
        ``pair.info`` with ``sockbuf`` (bytes, or "automatic") and ``sockbuf_tried``: for each candidate the ratio of
        its time to that of the best, as geometric mean over the sizes.
    """
    ordered = sorted(set(sizes))
    picked = sorted({ordered[0], ordered[len(ordered) // 2], ordered[-1]})[:MOST_SIZES]
    times: dict[tuple[int | None, int], list[float]] = {}
    known: dict[int, float] = {}
    for _, order in turns.rounds([CANDIDATES], least=ROUNDS, most=ROUNDS):
        for candidate in order:
            pair.reconnect(candidate)
            for nbytes in picked:
                known[nbytes] = _burst(pair, nbytes, mode, known.get(nbytes))
                times.setdefault((candidate, nbytes), []).append(known[nbytes])
    score = {
        one: statistics.geometric_mean(statistics.median(times[one, nbytes]) for nbytes in picked) for one in CANDIDATES
    }
    best = min(CANDIDATES, key=score.__getitem__)
    if score[best] > (1 - MARGIN) * score[None]:
        best = None
    pair.reconnect(best)
    tried = {name_of(one): round(score[one] / score[best], 3) for one in CANDIDATES}
    return {**pair.info, "sockbuf": best or "automatic", "sockbuf_tried": tried}


def words(info: dict[str, Any]) -> str:
    """Return a sentence about the choice of :func:`tune`; "" for a series that was not tuned."""
    if "sockbuf_tried" not in info:
        return ""
    chosen = info["sockbuf"]
    name = name_of(chosen if isinstance(chosen, int) else None)
    return f"Socket buffers of tcp: {name}, the best of {', '.join(info['sockbuf_tried'])} in this run."
