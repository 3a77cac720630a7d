"""Ping-pong curves of libraries on machines, as NetPIPE draws them, and what the papers read from them."""

from __future__ import annotations

from functools import cache

from viakit.machines import Machine
from viakit.replay.model import Library

__all__ = ["Curve", "curve", "loss_percent"]

MBIT = 8e-6
LONGEST = 8 << 20


def ladder() -> list[int]:
    """Return NetPIPE's sizes: powers of two, the steps between them, and one byte more and less."""
    found = {1, 2, 3}
    power = 4
    while power <= LONGEST:
        found |= {power - 1, power, power + 1, power * 5 // 4, power * 3 // 2}
        power *= 2
    return sorted(n for n in found if n <= LONGEST)


class Curve:
    """Throughput of a library on a machine by the size of the message.

    Attributes
    ----------
    sizes : list of int
        Bytes.
    times_s : list of float
        Half of a round trip.
    """

    def __init__(self, machine: Machine, library: Library, longest: int = LONGEST) -> None:
        self.machine, self.library = machine, library
        self.sizes = [n for n in ladder() if n <= longest]
        limit = library.eager_limit
        self.sizes = sorted({*self.sizes, *({int(limit), int(limit) + 1} if limit < longest else ())})
        self.times_s = [library.message_s(machine, n) for n in self.sizes]

    def mbit_s(self, nbytes: float | None = None) -> float:
        """Return the throughput at a size, or the greatest."""
        if nbytes is not None:
            return nbytes * MBIT / self.library.message_s(self.machine, nbytes)
        return max(n * MBIT / t for n, t in zip(self.sizes, self.times_s, strict=True))

    @property
    def latency_us(self) -> float:
        """Time of one byte."""
        return self.library.message_s(self.machine, 1) * 1e6

    def reaches(self, share: float) -> int:
        """Return the smallest size whose throughput is this share of the greatest."""
        goal = share * self.mbit_s()
        return next(n for n, t in zip(self.sizes, self.times_s, strict=True) if n * MBIT / t >= goal)

    def dip(self) -> int:
        """Return the largest size before the throughput falls the most from one size to the next."""
        rates = [n * MBIT / t for n, t in zip(self.sizes, self.times_s, strict=True)]
        falls = [(after / before, n) for before, after, n in zip(rates, rates[1:], self.sizes, strict=False) if n > 64]
        return min(falls)[1]

    def points(self) -> list[tuple[int, float]]:
        """Return sizes and throughputs."""
        return [(n, n * MBIT / t) for n, t in zip(self.sizes, self.times_s, strict=True)]


_CURVES: dict[tuple[object, ...], Curve] = {}


def curve(machine: Machine, library: Library, longest: int = LONGEST) -> Curve:
    """Return a curve; equal ones are computed once."""
    key = (machine.text(), library, longest)
    if key not in _CURVES:
        _CURVES[key] = Curve(machine, library, longest)
    return _CURVES[key]


def loss_percent(slower: float, faster: float) -> float:
    """Return by how many percent one rate is below another."""
    return 100 * (1 - slower / faster)


@cache
def tcp(sockbuf: float | None = None) -> Library:
    """Return raw TCP with socket buffers of a size; None: the system's own."""
    return Library("raw TCP", "tcp", sockbuf=sockbuf)
