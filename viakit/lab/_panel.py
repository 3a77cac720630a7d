"""Common parts of all experiments' panels: buttons, progress, saving. The panels are made of ipywidgets.

The job's thread calls :meth:`Panel.update` after each batch, and continues the measurement when it returns. The
kernel's main thread handles the buttons.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets

from viakit.lab._figure import Shown
from viakit.measure import interactive
from viakit.measure.result import ResultError

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from viakit.lab._experiment import Experiment
    from viakit.lab._job import Job

__all__ = ["SMALL", "Panel", "Progress", "choice", "grid", "numbers", "text"]

SMALL = widgets.Layout(width="14em")


def choice(description: str, options: Any, value: Any, **kw: Any) -> Any:
    """Return a menu."""
    return widgets.Dropdown(description=description, options=options, value=value, layout=SMALL, **kw)


def text(description: str, value: Any, placeholder: str) -> Any:
    """Return a text field; None gives an empty one."""
    value = "" if value is None else str(value)
    return widgets.Text(
        description=description, value=value, placeholder=placeholder, layout=SMALL, continuous_update=False
    )


def numbers(field: Any) -> list[int]:
    """Return the numbers of a comma-separated field, whose placeholder is an example. Raises ValueError."""
    try:
        return [int(word) for word in field.value.split(",")]
    except ValueError:
        raise ValueError(
            f"{field.description} are {field.value!r}; expected comma-separated numbers such as {field.placeholder}"
        ) from None


def grid(fields: Sequence[Any]) -> Any:
    """Return fields in three columns, or fewer in a narrow window."""
    layout = widgets.Layout(grid_template_columns="repeat(auto-fill, 15em)", flex="1 1 0%", max_width="46em")
    return widgets.GridBox(list(fields), layout=layout)


class Progress:
    """Progress bar with the remaining time and the current activity."""

    def __init__(self) -> None:
        self.bar = widgets.FloatProgress(min=0.0, max=1.0, layout=widgets.Layout(width="16em"))
        self.text = widgets.HTML()
        self.widget = widgets.HBox([self.bar, self.text])

    def update(self, job: Job) -> None:
        """Show the progress of *job*."""
        progress = job.progress
        self.bar.value = progress["fraction"] if job.running else 1.0
        self.bar.bar_style = {"running": "", "done": "success", "stopped": "warning", "failed": "danger"}[job.state]
        left = progress["left_s"]
        if job.state == "failed":
            self.message(job.error or "failed", "error")
        elif job.state == "running":
            self.message((f"{left:.0f} s left: " if left == left else "") + progress["text"])
        else:
            self.message(job.state)

    def message(self, text: str, kind: str = "") -> None:
        """Show one message; *kind* "error" in red."""
        colour = "#b00020" if kind == "error" else "inherit"
        self.text.value = f'<span class="viakit-status" style="color:{colour}">{escape(text)}</span>'


class Panel:
    """Controls, Start, Stop, progress, a picture, and a field for saving.

    Each kind of experiment implements :meth:`_controls`, :meth:`chosen`, :meth:`_figure` and :meth:`_draw`.

    Attributes
    ----------
    widget : ipywidgets.VBox
        The complete panel.
    figure : plotly.graph_objects.Figure
        The curves.
    """

    file = "result.json"

    def __init__(self, experiment: Experiment) -> None:
        self.experiment: Any = experiment
        self.progress = Progress()
        self.controls = self._controls()
        self.figure = self._figure()
        self.picture = Shown(self.figure)
        self.start = widgets.Button(description="Start", button_style="primary", icon="play")
        self.stop = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.start.on_click(lambda _: self._on_start())
        self.stop.on_click(lambda _: self._on_stop())
        self.name = widgets.Text(value=self.file, description="file", tooltip=".json .csv .png .svg .pdf .html")
        self.save = widgets.Button(description="Save", icon="save", disabled=True)
        self.save.on_click(lambda _: self._on_save())
        wrapped = widgets.Layout(flex_flow="row wrap")
        self.top = widgets.HBox([self.start, self.stop, self.progress.widget], layout=wrapped)
        self.bottom = widgets.HBox([self.name, self.save], layout=wrapped)
        theme = widgets.HTML(interactive.CSS, layout=widgets.Layout(height="0", margin="0"))
        # The picture is above the controls, so that it is in view while the measurement runs.
        self.widget = widgets.VBox([self.top, self.picture, self.controls, self.bottom, theme])
        self.widget.add_class("viakit-lab")

    # ------------------------------------------------------------------------------------ to be implemented

    def _controls(self) -> Any:
        """Return the widgets of the settings."""
        raise NotImplementedError

    def chosen(self) -> dict[str, Any]:
        """Return the settings of the controls. Raises ValueError for invalid text."""
        raise NotImplementedError

    def _figure(self) -> go.Figure:
        """Return the empty figure."""
        raise NotImplementedError

    def _draw(self, series: list[dict[str, Any]]) -> None:
        """Update the figure."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------ events

    def update(self, job: Job) -> None:
        """Draw the measurements of *job* so far. Called in the job's thread."""
        self.start.disabled, self.stop.disabled = job.running, not job.running
        self.progress.update(job)
        series = job.series()
        self.save.disabled = not series
        if series:
            self._redraw(series)

    def _redraw(self, series: list[dict[str, Any]]) -> None:
        """Update the figure, and give it to the page."""
        self._draw(series)
        self.picture.send()

    def _on_start(self) -> None:
        try:
            self.experiment.configure(**self.chosen())
            self.experiment.start()
        except (ValueError, TypeError, OSError, RuntimeError) as error:
            self.progress.message(str(error), "error")

    def _on_stop(self) -> None:
        if self.experiment.job is not None:
            self.experiment.job.stop(wait=False)  # The button must not block the kernel.

    def _on_save(self) -> None:
        try:
            self.progress.message(f"written: {self.experiment.save(self.name.value).resolve()}")
        except (ResultError, RuntimeError, OSError) as error:
            self.progress.message(str(error), "error")
