"""Measurement in turns: its order, its time, its end, and its result.

The speed of a machine drifts: its clock frequency changes, and other processes come and go. Measuring one protocol
after the other would include this drift in the comparison. So everything that is compared is measured in rounds: each
round gives every entry one turn, in random order. ::

    with Turns(10.0, seed, kept=lambda: finished) as turns:
        for number, order in turns.rounds([entries]):
            for one in order:
                turns.doing(one.protocol, "barrier, message")
                one.take(number)
    document = turns.document([one.series() for one in entries])

Entries of one group are neighbours within a round. A group may be finished before the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from viakit.measure import stats
from viakit.measure.endpoints import MeasureError
from viakit.measure.environment import command_line, environment
from viakit.measure.result import SCHEMA, Document

__all__ = ["Bursts", "Clock", "Turns", "count_for", "document_of", "shielded"]

Entry = TypeVar("Entry")

MOST_SAMPLES = 1 << 20  # samples of a point that are kept for its percentiles


@contextlib.contextmanager
def shielded() -> Iterator[None]:
    """Defer Ctrl-C, SIGTERM and SIGHUP during clean-up, so that a second signal does not interrupt it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # closing a terminal sends SIGHUP twice
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def count_for(burst_s: float, each_s: float, least: int, most: int) -> int:
    """Return how many messages of *each_s* seconds make a burst of about *burst_s* seconds, within both limits."""
    return int(min(max(burst_s / max(each_s, 1e-9), least), most))


class Shares:
    """A limited time for a number of points. Each point gets an equal share of the time that is left at its turn.

    So the start of processes, which takes time before the first point, makes the measurement of each point shorter.
    """

    def __init__(self, seconds: float, n_points: int) -> None:
        self._clock, self._n_left = Clock(seconds), n_points

    def next_s(self) -> float:
        """Return the share of the next point in seconds."""
        share_s = self._clock.left_s / max(1, self._n_left)
        self._n_left -= 1
        return share_s


class Clock:
    """A limited time, which begins when the clock is made or restarted. All times are seconds."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.restart()

    def restart(self) -> None:
        """Begin the time again."""
        self._began = time.monotonic()

    @property
    def passed_s(self) -> float:
        """Time since the beginning."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Time until the end, or 0."""
        return max(self.seconds - self.passed_s, 0.0)

    @property
    def fraction(self) -> float:
        """Part of the time that has passed, at most 1."""
        return min(self.passed_s / self.seconds, 1.0)

    @property
    def over(self) -> bool:
        """Whether the time has passed."""
        return self.passed_s >= self.seconds


class Bursts:
    """The bursts of one point, and the rounds in which they were taken."""

    def __init__(self) -> None:
        self.bursts: list[NDArray[np.float64]] = []
        self.medians: list[float] = []
        self.tails: list[float] = []  # the 99th percentile of each burst
        self.rounds: list[int] = []
        self.samples = 0
        self.stride = 1  # one sample in so many is kept
        self.smallest, self.largest = math.inf, 0.0

    def add(self, times: ArrayLike, number: int) -> None:
        """Add a burst of round *number*, in seconds. Samples beyond :data:`MOST_SAMPLES` are thinned evenly."""
        times = np.asarray(times, dtype=np.float64).ravel()
        self.medians.append(float(np.median(times)))
        self.tails.append(float(np.partition(times, last := 99 * times.size // 100)[last]))
        self.rounds.append(number)
        self.samples += times.size
        self.smallest = min(self.smallest, float(times.min()))
        self.largest = max(self.largest, float(times.max()))
        self.bursts.append(times[:: self.stride])
        if self.samples > MOST_SAMPLES * self.stride:
            self.stride *= 2
            self.bursts = [burst[::2].copy() for burst in self.bursts]

    def times(self, name: str) -> dict[str, Any]:
        """Return the part of a point in a result file that follows from the bursts; *name* is that of the times."""
        summary = dataclasses.replace(stats.summarise(self.bursts), min=self.smallest, max=self.largest)
        return {
            name: summary.as_dict(),
            "samples": self.samples,
            "bursts_s": list(self.medians),
            "bursts_p99_s": list(self.tails),
            "rounds": list(self.rounds),
        }


class Turns:
    """One measurement in turns. As a context it records an interruption or a failure for the result.

    Parameters
    ----------
    seconds : float
        Time for measurements.
    seed : int, optional
        Seed of the order. Default: random.
    command : str, optional
        Command line for the result. Default: that of this process.
    kept : callable
        Returns the measurements so far. Without one, a failure is raised, because no result could record it. An
        interruption is never raised.

    Attributes
    ----------
    kept : callable
        The parameter of the same name.
    seed, chance : int, random.Random
        Seed, and the source of the order.
    clock : Clock
        The time. Restart it when the measurement begins, so that starting processes does not count.
    complete, interrupted : bool
        Whether everything was measured, and whether Ctrl-C ended the measurement.
    error : Exception or None
        The failure that ended the measurement.
    errors : list of dict
        Failures, in the form of a ``viakit.result/1``. The caller adds those that end one entry only.
    skipped : dict
        By protocol the reason why it is not measured.
    """

    def __init__(
        self,
        seconds: float = math.inf,
        seed: int | None = None,
        *,
        command: str | None = None,
        kept: Callable[[], object] = lambda: None,
    ) -> None:
        self.seed = secrets.randbits(31) if seed is None else seed
        self.chance = random.Random(self.seed)
        self.command = command or command_line()
        self.clock = Clock(seconds)
        self.kept = kept
        self._subject: dict[str, Any] = {"protocol": None, "nbytes": None}
        self._what = ""
        self.complete, self.interrupted = True, False
        self.error: Exception | None = None
        self.errors: list[dict[str, Any]] = []
        self.skipped: dict[str, str] = {}
        self.machines: dict[str, Any] = {}  # of :func:`viakit.measure.environment.of_machines`, for real machines

    def doing(self, protocol: str | None = None, what: str = "", nbytes: int | None = None) -> None:
        """Set the current subject of the measurement, to which a failure is attributed."""
        self._subject, self._what = {"protocol": protocol, "nbytes": nbytes}, what

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        if error is None:
            return False
        self.complete = False
        if isinstance(error, KeyboardInterrupt):
            self.interrupted = True
            return True
        from viakit.testbed import TestbedError  # on use: most measurements need no testbed

        if not isinstance(error, (MeasureError, TestbedError, OSError)) or not self.kept():
            return False
        self.error = error
        self.errors.append({**self._subject, "message": f"{self._what}: {error}" if self._what else str(error)})
        return True

    def rounds(
        self,
        groups: Iterable[Iterable[Entry]],
        clock: Clock | None = None,
        *,
        least: int = 1,
        most: int = sys.maxsize,
        finished: Callable[[Sequence[Entry], int], bool] = lambda group, n: False,
    ) -> Iterator[tuple[int, list[Entry]]]:
        """Yield the number of each round, from 0, and its entries in random order.

        Parameters
        ----------
        groups : iterable of iterables
            Entries. Those of one group follow each other.
        clock : Clock, optional
            The time. It is checked between rounds only. Default: that of the measurement.
        least, most : int
            Number of rounds in any case, and at most.
        finished : callable
            Is given a group and the number of its rounds. Returns whether it needs no more.
        """
        clock = clock or self.clock
        left, n = [list(group) for group in groups], 0
        while left and n < most and (n < least or not clock.over):
            self.chance.shuffle(left)
            for group in left:
                self.chance.shuffle(group)
            yield n, [one for group in left for one in group]
            n += 1
            left = [group for group in left if not finished(group, n)]

    def document(self, series: list[dict[str, Any]], *, floor: dict[str, Any] | None = None, **fields: Any) -> Document:
        """Return the result of the measurement with these series, and with further *fields*."""
        if math.isfinite(self.clock.seconds):
            fields = {"seconds": float(self.clock.seconds), **fields}
        made = document_of(
            series,
            command=self.command,
            complete=self.complete and not self.errors,
            errors=self.errors,
            elapsed_s=self.clock.passed_s,
            seed=self.seed,
            floor=floor,
            **fields,
        )
        made["skipped"] = [{"protocol": name, "reason": why} for name, why in self.skipped.items()]
        made["environment"] |= self.machines
        return made


def document_of(
    series: list[dict[str, Any]],
    *,
    command: str,
    complete: bool,
    errors: list[dict[str, Any]],
    elapsed_s: float,
    seed: int | None = None,
    **fields: Any,
) -> Document:
    """Return a ``viakit.result/1`` with these series, the environment, and further *fields*."""
    infos = [{"protocol": one["protocol"], **one["info"]} for one in series]
    with shielded():
        machine = environment(seed=seed, command=command, infos=infos)
    return {
        "schema": SCHEMA,
        "command": command,
        "complete": complete,
        "errors": errors,
        "skipped": [],
        **({"seed": seed} if seed is not None else {}),
        "elapsed_s": round(elapsed_s, 3),
        "floor": None,
        **fields,
        "environment": machine,
        "series": series,
    }
