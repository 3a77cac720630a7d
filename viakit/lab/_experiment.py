"""Common interface of all laboratory experiments: start, display, stop, wait, result, save."""

from __future__ import annotations

import copy
import os
import sys
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from viakit.lab import _front, _settings
from viakit.lab._job import Busy, Job, LabError
from viakit.measure.analysis import Result
from viakit.measure.environment import environment
from viakit.measure.result import SCHEMA

__all__ = ["Experiment", "SettingsExperiment"]


class Experiment:
    """Measurement in a separate process that is displayed while it runs.

    If the notebook has widgets, the call that creates an experiment returns at once, and curves grow below the cell.
    Otherwise the call returns when the measurement is over. It has then shown a picture and a table, or printed the
    table.

    Attributes
    ----------
    job : viakit.lab._job.Job or None
        The measurement, running or over; None before the first one.
    """

    def __init__(self) -> None:
        self.job: Job | None = None
        self.panel: Any = None
        self._shown: int | None = None
        self._mode = _front.mode()

    # ------------------------------------------------------------------------------------ to be implemented

    @property
    def title(self) -> str:
        """Description of the measurement."""
        raise NotImplementedError

    def _request(self) -> tuple[str, dict[str, Any]]:
        """Return the worker's operation and its arguments. Raises ValueError for invalid settings."""
        raise NotImplementedError

    def _make_panel(self) -> Any:
        """Return the panel: an object with ``widget`` and ``update(job)``."""
        raise NotImplementedError

    def _note(self, extra: Mapping[str, Any]) -> None:
        """Store data that belongs to the result."""

    def _html(self, result: Result) -> str:
        """Return the static picture and table."""
        return result._repr_html_()

    def _print(self, result: Result) -> None:
        """Print the table."""
        from rich.console import Console  # start-up time

        result.show(Console(width=None if sys.stdout.isatty() else 120, force_jupyter=False))

    # ------------------------------------------------------------------------------------ start and stop

    def _begin(self, start: bool) -> None:
        """Display the experiment as far as this front end can, and start it."""
        if self._mode == "widgets":
            self.panel = self._make_panel()
            if start:
                self.start()  # Start it before the display, so that an error appears instead of a panel.
            self._ipython_display_()
        elif start:
            self._run_and_show()

    def start(self) -> None:
        """Start the measurement and return at once. A measurement that is over can be started again.

        Raises
        ------
        Busy
            If another measurement is running.
        ValueError
            If the settings are invalid.
        """
        what, request = self._request()
        self.job = Job(what, request, title=self.title, on_update=self._update)

    def _update(self, job: Job) -> None:
        """Draw the present state. Called in the job's thread."""
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
        """Stop the measurement, with all its ranks and hosts. The measurements so far are kept in :attr:`result`."""
        if self.job is not None:
            self.job.stop()

    def wait(self, timeout_s: float | None = None) -> Result:
        """Wait until the measurement is over, and return its result. Interrupting the wait stops the measurement.

        Parameters
        ----------
        timeout_s : float, optional
            Timeout in seconds. Default: no limit.

        Returns
        -------
        viakit.measure.Result

        Raises
        ------
        LabError
            If the measurement failed; the message gives the reason and a remedy.
        TimeoutError
            After *timeout_s* seconds. The measurement continues.
        """
        self._started().wait(timeout_s)
        self._raise_if_failed()
        return self.result

    def __await__(self) -> Generator[Any, None, Result]:
        """Wait as :meth:`wait` does, while the kernel keeps handling buttons: ``result = await run``."""
        yield from self._started().__await__()
        self._raise_if_failed()
        return self.result

    def _started(self) -> Job:
        if self.job is None:
            raise LabError("the measurement has not been started; press Start, or call start()")
        return self.job

    def _raise_if_failed(self) -> None:
        job = self._started()
        if job.state == "failed":
            raise (Busy if job.kind == "busy" else LabError)(job.error)

    # ------------------------------------------------------------------------------------ state and result

    @property
    def state(self) -> str:
        """State of the measurement: ``"ready"``, ``"running"``, ``"done"``, ``"stopped"`` or ``"failed"``."""
        return self.job.state if self.job is not None else "ready"

    @property
    def progress(self) -> Mapping[str, Any]:
        """Progress of the measurement: ``fraction`` in [0, 1], ``left_s`` (at most so many seconds), ``text``."""
        return dict(self._started().progress)

    @property
    def result(self) -> Result:
        """Measurements so far; after the end of the measurement, the complete result.

        Raises
        ------
        LabError
            If there are no measurements yet.
        """
        job = self._started()
        if job.document is not None:
            return Result(job.document)
        series = job.series()
        if not series:
            raise LabError(job.error or f"nothing has been measured yet ({job.progress['text']})")
        return Result(_unfinished(series, job))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result (.json, .csv) or its picture (.png, .svg, .pdf, .html) to *path*, and return the path."""
        return self.result.save(path)

    def __repr__(self) -> str:
        return f"<{self.title}: {self.state}>"

    def _ipython_display_(self) -> None:
        """Display the experiment below a cell, but only once for the cell that created it."""
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


class SettingsExperiment(Experiment):
    """Experiment whose settings are a dictionary.

    A subclass defines the name of its function in :mod:`viakit.lab`, the default settings, and a rule for each setting
    that must be converted or checked.
    """

    _function: ClassVar[str]
    _defaults: ClassVar[Mapping[str, Any]]
    _rules: ClassVar[Mapping[str, _settings.Rule]]

    def __init__(self, settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.settings: dict[str, Any] = copy.deepcopy(dict(self._defaults))
        self.configure(**settings)

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start; they are those of the function in :mod:`viakit.lab`.

        Raises
        ------
        TypeError
            If there is no such setting.
        ValueError
            If a value is invalid; the message states what is accepted.
        """
        unknown = sorted(set(settings) - set(self.settings))
        if unknown:
            raise TypeError(
                f"{self._function}() has no setting {unknown[0]!r}; it has {', '.join(sorted(self.settings))}"
            )
        self.settings |= _settings.checked(settings, self._rules)


def _unfinished(series: list[dict[str, Any]], job: Job) -> dict[str, Any]:
    """Return a document of the measurements so far."""
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
