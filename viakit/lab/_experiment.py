"""What all experiments of the laboratory have in common: start, watch, stop, wait, look, keep."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from viakit.lab import _front
from viakit.lab._job import Busy, Job, LabError
from viakit.measure.analysis import Result

__all__ = ["Experiment"]


class Experiment:
    """Something that is measured by a process of its own, and shown while it is.

    Where the notebook has widgets, the call that makes one returns at once, and curves grow below the cell. Elsewhere
    it returns when the measurement is over, and has shown a picture and a table, or printed the table.

    Attributes
    ----------
    job : viakit.lab._job.Job or None
        The measurement, running or over; None before the first.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.panel: Any = None
        self._shown: int | None = None
        self._mode = _front.mode()

    # ------------------------------------------------------------------------------------ for the kinds

    @property
    def title(self) -> str:
        """What is measured, for people."""
        raise NotImplementedError

    def _request(self) -> tuple[str, dict[str, Any]]:
        """Return the worker's operation and its arguments. Raises ValueError if they make no sense."""
        raise NotImplementedError

    def _make_panel(self) -> Any:
        """Return the widgets: an object with ``widget``, ``update(job)`` and ``say(text)``."""
        raise NotImplementedError

    def _note(self, extra: Mapping[str, Any]) -> None:
        """Take what came beside the result."""

    def _html(self, result: Result) -> str:
        """Return the static picture and table."""
        return result._repr_html_()

    def _print(self, result: Result) -> None:
        """Print the table."""
        from rich.console import Console

        result.show(Console(width=None if sys.stdout.isatty() else 120, force_jupyter=False))

    # ------------------------------------------------------------------------------------ running

    def _begin(self, start: bool) -> None:
        """Show it, as far as this front end can, and start it."""
        if self._mode == "widgets":
            self.panel = self._make_panel()
            if start:
                self.start()  # first: what cannot be started is an error, and not a panel
            self._ipython_display_()
        elif start:
            self._run_and_show()

    def start(self) -> None:
        """Start measuring, again if it has been measured before; returns at once.

        Raises
        ------
        Busy
            If something is being measured already.
        ValueError
            If the settings make no sense.
        """
        what, request = self._request()
        self.job = Job(what, request, title=self.title, on_update=self._update)

    def _update(self, job: Job) -> None:
        """Draw, in the job's thread."""
        self._note(job.extra)
        if self.panel is not None:
            self.panel.update(job)

    def _run_and_show(self) -> None:
        line = _front.Line(self.title) if self._mode == "text" else None
        what, request = self._request()

        def on_update(job: Job) -> None:
            self._note(job.extra)
            if line is not None and job.running:
                line(job.progress)

        self.job = Job(what, request, title=self.title, on_update=on_update)
        try:
            self.job.wait()
        finally:
            if line is not None:
                line.close()
            if not self.job.running and self.job.document is not None:
                self._show_still()
        self._raise_if_failed()

    def _show_still(self) -> None:
        result = self.result
        if not any(one["points"] for one in result["series"]):
            return
        if self._mode == "text":
            self._print(result)
        else:
            _front.html(self._html(result))
            self._shown = _front.cell()

    def stop(self) -> None:
        """End the measurement, with all its ranks and hosts. What has been measured stays in :attr:`result`."""
        if self.job is not None:
            self.job.stop()

    def wait(self, timeout_s: float | None = None) -> Result:
        """Wait until the measurement is over, and return its result. Interrupting the wait stops the measurement.

        Raises
        ------
        LabError
            If it failed; the message says why and what to do.
        TimeoutError
            After *timeout_s* seconds; the measurement goes on.
        """
        self._started().wait(timeout_s)
        self._raise_if_failed()
        return self.result

    def __await__(self) -> Generator[Any, None, Result]:
        """``result = await run``: as :meth:`wait`, and the kernel answers buttons meanwhile."""
        yield from self._started().__await__()
        self._raise_if_failed()
        return self.result

    def _started(self) -> Job:
        if self.job is None:
            raise LabError("nothing has been started: press Start, or call start()")
        return self.job

    def _raise_if_failed(self) -> None:
        job = self._started()
        if job.state == "failed":
            raise (Busy if job.kind == "busy" else LabError)(job.error)

    # ------------------------------------------------------------------------------------ looking

    @property
    def state(self) -> str:
        """``"ready"``, ``"running"``, ``"done"``, ``"stopped"`` or ``"failed"``."""
        return self.job.state if self.job is not None else "ready"

    @property
    def progress(self) -> Mapping[str, Any]:
        """Where it stands: ``fraction`` in [0, 1], ``left_s`` seconds at most, ``text``."""
        return dict(self._started().progress)

    @property
    def result(self) -> Result:
        """What has been measured by now: the whole of it when it is over.

        Raises
        ------
        LabError
            If nothing has been measured.
        """
        job = self._started()
        if job.document is not None:
            return Result(job.document)
        series = job.series()
        if not series:
            raise LabError(job.error or f"nothing has been measured yet ({job.progress['text']})")
        return Result(_unfinished(series, job))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result (.json, .csv) or its picture (.png, .svg, .pdf, .html) to *path*."""
        return self.result.save(path)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.state}>"

    def _ipython_display_(self) -> None:
        """Show it below a cell; once is enough for the cell that made it."""
        cell = _front.cell()
        if cell is not None and cell == self._shown:
            return
        self._shown = cell
        if self.panel is not None:
            _front.display(self.panel.widget)
        elif self.job is not None and (self.job.document or self.job.series()):
            _front.html(self._html(self.result))
        else:
            print(repr(self))


def _unfinished(series: list[dict[str, Any]], job: Job) -> dict[str, Any]:
    """Return a document of what has been measured so far."""
    from viakit.measure.environment import environment
    from viakit.measure.result import SCHEMA

    command, elapsed_s = f"{job.title}, not finished", round(max(time.monotonic() - job.began, 0.001), 3)
    return {
        "schema": SCHEMA,
        "command": command,
        "complete": False,
        "errors": [],
        "skipped": [],
        "seed": 0,
        "seconds": elapsed_s,
        "elapsed_s": elapsed_s,
        "environment": environment(seed=0, command=command, infos=[one.get("info", {}) for one in series]),
        "floor": None,
        "series": series,
    }
