"""Measure where the message engine's thresholds belong on a link, and keep them, for ``viakit calibrate``.

Three questions, each answered by measuring the candidates one after the other, forth and back:

* which way is best for long messages: the receiver's buffer written (RPUT), the sender's read (RGET), or copied (R3)?
* up to which length is a message that is sent at once faster than one that is announced first?
* how many eager buffers does a stream of short messages need?
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import _calibration_file, _core
from viakit._words import counted

if TYPE_CHECKING:
    from viakit.testbed import Testbed

__all__ = ["LINKS", "Thresholds", "calibrate_messages", "choose"]

LINKS = ("shm", "eth", "udp", "tcp")
SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
LONG = (262144, 1 << 20)
CREDITS = (16, 32, 64, 128)
STREAM_BYTES = 1024
_MOST = max(SIZES)
_TIE = 1.03  # what is no slower than this is as fast, and the simpler wins
_TIE_CREDITS = 1.05


@dataclass
class Thresholds:
    """What was measured on one link, and what follows.

    ``times`` are median one-way times in seconds by (way, message bytes), ways "eager", "rput", "rget", "r3";
    ``gaps`` seconds per message of a stream by the number of credits (empty on tcp, which has none). The file says
    ``eager_limit``, ``rendezvous`` and ``credits``.
    """

    link: str
    times: dict[tuple[str, int], float]
    gaps: dict[int, float]
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def choice(self) -> dict[str, str]:
        """The fields of the policy and their values."""
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
        """Write the file where the engine looks for it, or to *path*; return its name. Raises OSError if that fails."""
        return _calibration_file.save(self.text(), path or _core.message_calibration_path(self.link))


def choose(times: dict[tuple[str, int], float], gaps: dict[int, float]) -> dict[str, str]:
    """Return the thresholds that follow from measured times.

    Parameters
    ----------
    times : dict
        One-way times in seconds by (way, message bytes).
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
    for way in ways[1:]:  # the mean of the logarithms of the ratios
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


def calibrate_messages(
    link: str, *, testbed: Testbed | None = None, seconds: float = 10.0, say: Callable[[str], None] = lambda _: None
) -> Thresholds:
    """Measure the message engine on a link.

    Parameters
    ----------
    link : str
        "shm", "eth", "udp" or "tcp"; "eth" needs a *testbed*; where there is one, the others are measured on it, too.
    seconds : float
        Time for measuring, about.
    say : callable
        Is told what is being measured.
    """
    from viakit.measure.environment import environment
    from viakit.measure.pair import Pair

    name = "msg-tcp" if link == "tcp" else "msg-via"
    options = {"network": link} if link in ("eth", "udp") else {}
    suffix = "_local" if link == "shm" else ""
    ways = {"eager": f"eager_limit{suffix}={_MOST}"}
    for way in ("r3",) if link == "tcp" else ("rput", "rget", "r3"):
        ways[way] = f"eager_limit{suffix}=512,rendezvous={way}"
    slice_s = seconds / (2 * (len(SIZES) + len(LONG)) * len(ways) + 2 * len(CREDITS))
    samples: dict[tuple[str, int], list[float]] = {}
    for turn in (1, -1):
        for way in list(ways)[::turn]:
            say(f"{link}: messages, {'sent at once' if way == 'eager' else way}")
            with Pair(name, testbed=testbed, options={**options, "policy": ways[way]}) as pair:
                for n in SIZES + (() if way == "eager" else LONG):
                    first = float(np.median(pair.run(n, count=5).one_way_s))
                    count = int(min(3000, max(10, slice_s / (2 * first))))
                    samples.setdefault((way, n), []).append(float(np.median(pair.run(n, count=count).one_way_s)))
    gaps: dict[int, float] = {}
    for credits in () if link == "tcp" else CREDITS:
        say(f"{link}: {credits} eager buffers")
        with Pair(name, testbed=testbed, options={**options, "policy": f"credits={credits}"}) as pair:
            run = pair.run(STREAM_BYTES, "stream", count=2000, repeats=9)
            gaps[credits] = float(np.median(run.one_way_s))
    times = {key: min(found) for key, found in samples.items()}
    return Thresholds(link, times, gaps, environment())
