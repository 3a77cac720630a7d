"""Calibration of BIP's pipeline on a link, and of the packet sizes that result: ``viakit calibrate``.

The model is that of ``csrc/bip/model.h``: a message of n bytes in packets of p bytes takes
``start + (k - 1) (packet + p byte) + p fill`` seconds, with k = n / p. Its four parameters are fitted to measured
one-way times with fixed packet sizes, by least squares of relative errors, with no parameter below zero. The limit
between short and long messages is the last length at which the queue was as fast as the rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from viakit import _core
from viakit.base import calibration_file as _calibration_file
from viakit.measure.environment import environment
from viakit.measure.look import PALETTE, SYMBOLS
from viakit.measure.pair import Pair
from viakit.measure.turns import Shares, count_for

if TYPE_CHECKING:
    from viakit.remote import Remote
    from viakit.testbed import Testbed

__all__ = ["Calibration", "calibrate", "fit", "save_picture"]

LINKS = ("shm", "eth", "udp")
SHAPES = list(SYMBOLS)
WHOLE = 16 << 20  # "one packet"
PACKETS = (4096, 16384, 65536, 262144, WHOLE)
LENGTHS = (32768, 131072, 524288, 2 << 20, 8 << 20)
SHORT_S = 5.0
SHORTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


@dataclass
class Calibration:
    """Measurements of one link, and the resulting parameters.

    ``start``, ``packet`` (seconds), ``byte`` and ``fill`` (seconds per byte) are the parameters of the model. ``times``
    are measured one-way times in seconds by (message bytes, packet bytes). ``small_bytes`` is the length of the longest
    short message. ``rows`` are pairs (largest message, packet) in bytes.
    """

    link: str
    start: float
    packet: float
    byte: float
    fill: float
    small_bytes: int
    times: dict[tuple[int, int], float]
    environment: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """Packet sizes by length of the message."""
        model = (self.start, self.packet, self.byte, self.fill)
        return [(1 << i, _core.bip_best(*model, 1 << i, WHOLE)) for i in range(12, 31)]

    def predict(self, nbytes: int, packet_bytes: int) -> float:
        """Return the model's time for a message, in seconds."""
        return _core.bip_time(self.start, self.packet, self.byte, self.fill, nbytes, packet_bytes)

    @property
    def error(self) -> float:
        """Median relative difference between model and measurement."""
        return float(np.median([abs(self.predict(*key) / value - 1) for key, value in self.times.items()]))

    def text(self) -> str:
        """Return the calibration file, which C and Python programs read."""
        lines = [
            f"model {self.start:.9g} {self.packet:.9g} {self.byte:.9g} {self.fill:.9g}",
            f"small {self.small_bytes}",
            *(f"row {upto} {packet}" for upto, packet in self.rows),
        ]
        return _calibration_file.text(self.link, self.environment, lines)

    def save(self, path: str | None = None) -> str:
        """Write the file to BIP's calibration folder, or to *path*; return its name. Raises OSError if it fails."""
        return _calibration_file.save(self.text(), path or _core.bip_calibration_path(self.link))


def fit(times: dict[tuple[int, int], float]) -> tuple[float, float, float, float]:
    """Return start, packet, byte and fill for measured times in seconds, by (message bytes, packet bytes)."""
    rows: list[list[float]] = []
    weights: list[float] = []
    for (nbytes, packet_bytes), seconds in times.items():
        each = _core.bip_equal(nbytes, packet_bytes)
        more = -(-nbytes // each) - 1
        rows.append([1.0, more, more * each, each])
        weights.append(1.0 / seconds)
    weight = np.array(weights)
    matrix = np.array(rows) * weight[:, None]
    used = [0, 1, 2, 3]
    found = np.zeros(4)
    while used:  # A negative parameter is not visible in the times. Repeat the fit without it.
        scale = np.linalg.norm(matrix[:, used], axis=0)
        found[:] = 0
        found[used] = np.linalg.lstsq(matrix[:, used] / scale, np.ones(len(weight)), rcond=None)[0] / scale
        if found.min() >= 0:
            break
        used.remove(int(found.argmin()))
    start, packet, byte, fill = (float(value) for value in found)
    return start, packet, byte, max(fill, byte)


def typical_s(pair: Pair, nbytes: int, slice_s: float, least: int, most: int) -> float:
    """Return the median one-way time of as many messages as take about *slice_s* seconds, within both limits.

    Five messages estimate the number. If they took the whole time, they are the measurement.
    """
    first = float(np.median(pair.run(nbytes, count=5).one_way_s))
    if 2 * 5 * first >= slice_s:
        return first
    return float(np.median(pair.run(nbytes, count=count_for(slice_s, 2 * first, least, most)).one_way_s))


def calibrate(
    link: str,
    *,
    testbed: Testbed | Remote | None = None,
    seconds: float = 10.0,
    say: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure a link.

    Parameters
    ----------
    link : str
        "shm", "eth" or "udp"; "eth" needs a *testbed*, and "udp" is measured on it if there is one.
    testbed : Testbed or viakit.remote.Remote, optional
        Two hosts for links between hosts.
    seconds : float
        Approximate time, with the start of the two processes. Below 5 s three sizes of packets are measured in place
        of five.
    say : callable
        Called with a description of each measurement.

    Returns
    -------
    Calibration
    """
    packets = PACKETS if seconds >= SHORT_S else PACKETS[::2]
    shares = Shares(seconds, len(packets) * len(LENGTHS) + 2 * len(SHORTS))
    times: dict[tuple[int, int], float] = {}
    first = {"packet": packets[0], "small": 252}
    with Pair(f"bip-{link}", testbed=testbed, buffers="same", options=first) as pair:

        def measure(lengths: tuple[int, ...], **options: int) -> dict[int, float]:
            pair.reopen(options)
            return {nbytes: typical_s(pair, nbytes, shares.next_s(), 5, 2000) for nbytes in lengths}

        for packet in packets:
            say(f"{link}: packets of {packet} bytes" if packet < WHOLE else f"{link}: one packet")
            for nbytes, value in measure(LENGTHS, packet=packet, small=252).items():
                if packet <= nbytes or packet == WHOLE:
                    times[nbytes, packet] = value
        say(f"{link}: short messages")
        queue, rendezvous = measure(SHORTS, small=65536), measure(SHORTS, small=252, packet=WHOLE)
    faster = [nbytes for nbytes in SHORTS if queue[nbytes] <= rendezvous[nbytes]]
    return Calibration(link, *fit(times), small_bytes=max(faster, default=252), times=times, environment=environment())


def save_picture(found: Calibration, path: str) -> None:
    """Draw measured times (points) and the model (lines) for every packet size, and the adaptive choice."""
    from matplotlib.figure import Figure  # start-up time

    picture = Figure(figsize=(8, 5), layout="constrained")
    axes = picture.subplots()
    lengths = np.unique(np.logspace(np.log10(min(LENGTHS)), np.log10(max(LENGTHS)), 200).astype(int))
    for i, packet in enumerate(sorted({packet for _, packet in found.times})):
        points = [(n, value) for (n, p), value in found.times.items() if p == packet]
        label = f"packets of {packet // 1024} KiB" if packet < WHOLE else "one packet"
        axes.plot(
            *zip(*((n, 1e6 * t) for n, t in points), strict=True),
            SHAPES[i % len(SHAPES)],
            color=PALETTE[i % len(PALETTE)],
            label=label,
        )
        shown = [n for n in lengths if n >= points[0][0]]
        axes.plot(
            shown,
            [1e6 * found.predict(int(n), packet) for n in shown],
            "-",
            color=PALETTE[i % len(PALETTE)],
            linewidth=0.8,
        )
    table = found.rows
    best = [next((p for upto, p in table if n <= upto), table[-1][1]) for n in lengths]
    adaptive = [1e6 * found.predict(int(n), p) for n, p in zip(lengths, best, strict=True)]
    axes.plot(lengths, adaptive, "k--", label="model, adaptive packets")
    axes.set(xscale="log", yscale="log", xlabel="message, bytes", ylabel="one-way time, µs")
    axes.set_title(f"BIP's pipeline on {found.link}: measured (points) and modelled (lines)")
    axes.legend()
    picture.savefig(path)
