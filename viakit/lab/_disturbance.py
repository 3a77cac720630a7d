"""What watching costs what is watched: the same pair, burst by burst, with and without somebody who draws.

In random turns a burst follows directly upon a drawing of the whole panel, or upon nothing. That is the worst case: in
an experiment there are ten drawings a second at most, and about as many bursts between two of them. The browser is not
part of it: it is another program, on a classroom's machine often another computer.
"""

from __future__ import annotations

from typing import Any

from viakit.lab._job import Job, LabError
from viakit.measure import stats

__all__ = ["measure"]


def measure(seconds: float = 5.0, *, protocol: str = "via-shm", nbytes: int = 8, seed: int = 1) -> dict[str, Any]:
    """Measure the disturbance of a median.

    Parameters
    ----------
    seconds : float
        For the bursts.
    protocol, nbytes
        Of the ping-pong that is watched, polled.
    seed : int
        Of the order of turns.

    Returns
    -------
    dict
        ``ratio``: a :class:`viakit.measure.stats.Ratio`, time watched / time alone. ``alone_s``, ``watched_s``: medians
        of the bursts. ``drawings``: how often was drawn.

    Raises
    ------
    LabError
        If ipywidgets or anywidget are missing, or the measurement failed.
    """
    from viakit.lab import _front
    from viakit.lab._compare import Compare

    missing = _front.why_not_widgets()
    if missing:
        raise LabError(missing)
    from viakit.lab._compare_panel import ComparePanel

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
