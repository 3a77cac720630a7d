"""Display capabilities of the notebook.

``widgets``
    JupyterLab, Notebook 7, VS Code: controls, and curves that grow. The call returns at once.
``static``
    A kernel without widgets, or without a viewer (nbconvert, papermill): the call measures, then shows a picture and a
    table.
``text``
    Plain Python: the call measures with a line of progress, then prints the table.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["MODES", "display", "mode", "why_not_widgets"]

MODES = ("widgets", "static", "text")
_SIGNS = ("JPY_SESSION_NAME", "VSCODE_PID", "VSCODE_CWD", "VSCODE_IPC_HOOK_CLI")  # set by servers with a viewer


def _kernel() -> Any:
    """Return the shell of the Jupyter kernel of this process, or None."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = get_ipython() if get_ipython is not None else None
    return shell if shell is not None and getattr(shell, "kernel", None) is not None else None


def why_not_widgets() -> str | None:
    """Return the missing packages for live plots, with the remedy, or None."""
    missing = []
    for name in ("ipywidgets", "anywidget"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        return f"live plots need {' and '.join(missing)}; pip install 'viakit[lab]', then restart the kernel"
    return None


def mode() -> str:
    """Return the mode of display, one of :data:`MODES`. ``VIAKIT_LAB`` in the environment selects it, if set.

    Raises
    ------
    ValueError
        If ``VIAKIT_LAB`` is not one of the modes.
    """
    wanted = os.environ.get("VIAKIT_LAB", "")
    if wanted and wanted not in MODES:
        raise ValueError(f"VIAKIT_LAB is {wanted!r}; expected one of {', '.join(MODES)}")
    if wanted:
        return wanted
    shell = _kernel()
    if shell is None:
        return "text"
    watched = any(name in os.environ for name in _SIGNS) or "__vsc_ipynb_file__" in shell.user_ns
    return "widgets" if watched and why_not_widgets() is None else "static"


def display(thing: Any) -> None:
    """Display *thing* below the running cell."""
    from IPython.display import display as show  # optional package

    show(thing)


def html(text: str) -> None:
    """Display HTML below the running cell."""
    from IPython.display import HTML  # optional package

    display(HTML(text))


def cell() -> int | None:
    """Return the number of the running cell, or None."""
    shell = _kernel()
    return shell.execution_count if shell is not None else None


class Line:
    """Line of progress on standard error, if that is a terminal; updated at most ten times a second."""

    def __init__(self, title: str) -> None:
        self.title, self._on, self._drawn = title, sys.stderr.isatty(), False

    def __call__(self, progress: dict[str, Any]) -> None:
        """Draw the line."""
        if self._on:
            left = f", {progress['left_s']:.0f} s left" if progress["left_s"] == progress["left_s"] else ""
            print(f"\r\033[K{progress['fraction']:4.0%}{left}  {progress['text']}", end="", file=sys.stderr, flush=True)
            self._drawn = True

    def close(self) -> None:
        """Erase the line."""
        if self._drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


Update = Callable[[Any], None]
