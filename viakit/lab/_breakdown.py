"""``lab.breakdown()``: the parts of one message as stacked bars, drawn step by step."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

from viakit.lab import _front
from viakit.lab._job import LabError
from viakit.measure.breakdown import PROTOCOLS, Breakdown, check

__all__ = ["run"]


class _Shown:
    """The figure below the cell, which is replaced after each step."""

    def __init__(self) -> None:
        self._handle = None
        self._mode = _front.mode()

    def draw(self, found: Breakdown, step: str) -> None:
        """Draw the parts so far, with the step that follows."""
        if self._mode == "text":
            if found.complete:
                print(found)
            return
        from IPython.display import HTML, display  # optional package

        page = HTML((found._repr_html_() if found.messages else "") + (f"<p>{step} ...</p>" if step else ""))
        if self._handle is None:
            self._handle = display(page, display_id=True)
        else:
            self._handle.update(page)


def run(protocols: Sequence[str], nbytes: int, seconds: float, seed: int | None) -> Breakdown:
    """Measure in a process of its own, and draw after each step. Arguments as for :func:`viakit.lab.breakdown`."""
    protocols = list(protocols or PROTOCOLS)
    check(protocols, nbytes, seconds)
    words = ["breakdown", *protocols, "--size", str(nbytes), "--seconds", str(seconds), "--live"]
    words += [] if seed is None else ["--seed", str(seed)]
    process = subprocess.Popen(
        [sys.executable, "-m", "viakit", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    shown, found = _Shown(), None
    try:
        assert process.stdout is not None
        for line in process.stdout:
            document = json.loads(line)
            found = Breakdown.from_dict(document)
            shown.draw(found, document["step"])
        _, error = process.communicate()
    finally:
        if process.poll() is None:  # the cell was interrupted
            process.terminate()
            process.communicate()
    if process.returncode or found is None:
        raise LabError(error.strip() or f"viakit breakdown ended with status {process.returncode}")
    return found
