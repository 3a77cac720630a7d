"""Calibration of the message engine's thresholds on a link, for ``viakit calibrate``.

Each threshold is determined by measuring the candidates one after the other, forwards and backwards:

* the best method for long messages: write to the receiver's buffer (RPUT), read from the sender's (RGET), or copy (R3)
* the length up to which an eager message is faster than a rendezvous
* the number of eager buffers that a stream of short messages needs
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import _core
from viakit.base import calibration_file as _calibration_file
from viakit.base.words import counted
from viakit.measure.calibrate import typical_s
from viakit.measure.endpoints import lookup
from viakit.measure.environment import environment
from viakit.measure.pair import Pair
from viakit.measure.turns import Shares

if TYPE_CHECKING:
    from viakit.remote import Remote
    from viakit.testbed import Testbed

__all__ = ["LINKS", "Thresholds", "calibrate_messages", "choose", "leaves_host"]

LINKS = {"shm": "msg-via", "eth": "msg-via", "udp": "msg-via", "tcp": "msg-tcp"}  # and the protocol that is measured
SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
LONG = (262144, 1 << 20)
SHORT_S = 5.0  # in less time, each method has one turn, and two numbers of credits are measured
CREDITS = (16, 32, 64, 128)
STREAM_BYTES = 1024
_MOST = max(SIZES)
_TIE = 1.03  # largest ratio of times that counts as equal; the simpler method is then chosen
_TIE_CREDITS = 1.05


@dataclass
class Thresholds:
    """Measurements of one link, and the resulting thresholds.

    ``times`` are median one-way times in seconds by (method, message bytes), with the methods "eager", "rput", "rget"
    and "r3". ``gaps`` are seconds per message of a stream by the number of credits; it is empty on tcp, which has no
    credits. The file contains ``eager_limit``, ``rendezvous`` and ``credits``.
    """

    link: str
    times: dict[tuple[str, int], float]
    gaps: dict[int, float]
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> dict[str, str]:
        """Fields of the policy and their values."""
        return choose(self.times, self.gaps)

    def text(self) -> str:
        """Return the calibration file, which the engine reads when a world is opened."""
        lines = [
            *(f"# {way} {counted(n, 'byte')}: {1e6 * s:.2f} us" for (way, n), s in sorted(self.times.items())),
            *(f"# credits {n}, {STREAM_BYTES} bytes: {1e6 * s:.3f} us each" for n, s in sorted(self.gaps.items())),
            *(f"{name} {value}" for name, value in self.choice.items()),
        ]
        return _calibration_file.text(f"messages on {self.link}", self.environment, lines)

    def save(self, path: str | None = None) -> str:
        """Write the file to the engine's calibration folder, or to *path*, and return its name.

        Raises OSError if the file cannot be written.
        """
        return _calibration_file.save(self.text(), path or _core.message_calibration_path(self.link))


def choose(times: dict[tuple[str, int], float], gaps: dict[int, float]) -> dict[str, str]:
    """Return the thresholds that result from measured times.

    Parameters
    ----------
    times : dict
        One-way times in seconds by (method, message bytes).
    gaps : dict
        Seconds per message of a stream, by credits; may be empty.

    Returns
    -------
    dict
        "eager_limit", "rendezvous" and, if there are gaps, "credits".
    """
    ways = [way for way in ("rput", "rget", "r3") if any(w == way for w, _ in times)]
    long = [n for n in LONG if all((way, n) in times for way in ways)]
    best = ways[0]
    for way in ways[1:]:  # Compare by the mean of the logarithms of the ratios.
        if np.mean([np.log(times[way, n] / times[best, n]) for n in long]) < -np.log(_TIE):
            best = way
    limit = 512
    for n in SIZES:
        if times["eager", n] > _TIE * times[best, n]:
            break
        limit = n
    found = {"eager_limit": str(limit), "rendezvous": best}
    if gaps:
        least = min(gaps.values())
        found["credits"] = str(min(n for n, gap in gaps.items() if gap <= _TIE_CREDITS * least))
    return found


def leaves_host(link: str) -> bool:
    """Return whether a link of :data:`LINKS` can connect hosts, so that it is measured between two."""
    return not lookup(LINKS[link]).takes_faults or _core.link_of(link).leaves_host


def calibrate_messages(
    link: str,
    *,
    testbed: Testbed | Remote | None = None,
    seconds: float = 10.0,
    say: Callable[[str], None] = lambda _: None,
) -> Thresholds:
    """Measure the message engine on a link.

    Parameters
    ----------
    link : str
        "shm", "eth", "udp" or "tcp"; "eth" needs a *testbed*, and the other links are measured on it if there is one.
    testbed : Testbed or viakit.remote.Remote, optional
        Two hosts for links between hosts.
    seconds : float
        Approximate time, with the start of the two processes.
    say : callable
        Called with a description of each measurement.

    Returns
    -------
    Thresholds
    """
    name = LINKS[link]
    by_via = lookup(name).takes_faults  # through NICs, so that RDMA and credits exist
    # These are the times of the protocols alone: memory is mapped where possible, and buffers are not touched.
    conditions: dict[str, Any] = {"memory": "viakit" if by_via else "user", "buffers": "same"}
    between_hosts = leaves_host(link)
    options = {"network": link} if between_hosts and by_via else {}
    suffix = "" if between_hosts else "_local"
    ways = {"eager": f"eager_limit{suffix}={_MOST}"}
    for way in ("rput", "rget", "r3") if by_via else ("r3",):
        ways[way] = f"eager_limit{suffix}=512,rendezvous={way}"
    turns = (1, -1) if seconds >= SHORT_S else (1,)
    credits_of = (CREDITS if seconds >= SHORT_S else CREDITS[::3]) if by_via else ()
    n_points = len(turns) * ((len(SIZES) + len(LONG)) * len(ways) - len(LONG)) + len(credits_of)
    shares = Shares(seconds, n_points)
    samples: dict[tuple[str, int], list[float]] = {}
    gaps: dict[int, float] = {}
    with Pair(name, testbed=testbed, **conditions, options={**options, "policy": ways["eager"]}) as pair:
        for turn in turns:
            for way in list(ways)[::turn]:
                say(f"{link}: messages, {'sent at once' if way == 'eager' else way}")
                pair.reopen({**options, "policy": ways[way]})
                for n in SIZES + (() if way == "eager" else LONG):
                    samples.setdefault((way, n), []).append(typical_s(pair, n, shares.next_s(), 10, 3000))
        for credits in credits_of:
            say(f"{link}: {credits} eager buffers")
            pair.reopen({**options, "policy": f"credits={credits}"})
            run = pair.run(STREAM_BYTES, "stream", count=2000, repeats=9 if seconds >= SHORT_S else 3)
            gaps[credits] = float(np.median(run.one_way_s))
    times = {key: min(found) for key, found in samples.items()}
    return Thresholds(link, times, gaps, environment())
