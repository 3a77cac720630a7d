"""Disturbance of a measurement by its display: the same pair with and without drawing, burst by burst.

In random order a burst follows directly after a drawing of the whole panel, or after none. This is the worst case. An
experiment has at most ten drawings a second, and about as many bursts between two of them. The browser is not included,
because it is a separate program and in a classroom often runs on another computer.
"""

from __future__ import annotations

from typing import Any

from viakit.lab import _front
from viakit.lab._compare import Compare
from viakit.lab._job import Job, LabError
from viakit.measure import stats

__all__ = ["measure"]


def measure(seconds: float = 5.0, *, protocol: str = "via-shm", nbytes: int = 8, seed: int = 1) -> dict[str, Any]:
    """Measure the disturbance of a median.

    Parameters
    ----------
    seconds : float
        Time for the bursts.
    protocol, nbytes : str, int
        Protocol and message size of the ping-pong, which polls.
    seed : int
        Seed of the order.

    Returns
    -------
    dict
        ``ratio``: a :class:`viakit.measure.stats.Ratio` of watched and unwatched time. ``alone_s``, ``watched_s``:
        medians of the bursts. ``drawings``: number of drawings.

    Raises
    ------
    LabError
        If ipywidgets or anywidget is missing, or the measurement failed.
    """
    missing = _front.why_not_widgets()
    if missing:
        raise LabError(missing)
    from viakit.lab._compare_panel import ComparePanel  # optional package

    panel = ComparePanel(Compare(["via-eth", "tcp"], "1:1M", (), {}))
    drawings = 0

    def draw(job: Job) -> None:
        nonlocal drawings
        panel.update(job)
        drawings += 1

    settings = {"seconds": seconds, "protocol": protocol, "nbytes": nbytes, "seed": seed}
    job = Job("disturbance", {"settings": settings}, title="what watching costs", on_update=draw)
    job.wait()
    if job.error or job.drawing_failed:
        raise LabError(job.error or str(job.drawing_failed))
    alone, watched = job.extra["alone_s"], job.extra["watched_s"]
    ratio = stats.ratio_of_medians(watched, alone, paired=True)
    return {"ratio": ratio, "alone_s": alone, "watched_s": watched, "drawings": drawings}
