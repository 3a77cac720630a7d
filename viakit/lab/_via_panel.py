"""Buttons and tables of ``lab.via()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

if TYPE_CHECKING:
    from viakit.lab._via import Stepper

__all__ = ["ViaPanel"]


class ViaPanel:
    """Buttons for the next step and for a new start, and the present stage."""

    def __init__(self, stepper: Stepper) -> None:
        self.stepper = stepper
        self.next = widgets.Button(description="Next step", button_style="primary", icon="step-forward")
        self.again = widgets.Button(description="Again", icon="undo")
        self.next.on_click(lambda _: self._on_next())
        self.again.on_click(lambda _: self._on_again())
        self.table = widgets.HTML()
        self.widget = widgets.VBox([widgets.HBox([self.next, self.again]), self.table])
        self.widget.add_class("viakit-lab")
        self.show()

    def show(self) -> None:
        """Show the present stage, with the changes marked."""
        stages = self.stepper.stages
        self.table.value = stages[-1].html(stages[-2] if len(stages) > 1 else None)
        self.next.disabled = not self.stepper.left

    def _on_next(self) -> None:
        if self.stepper.left:  # A click may arrive before the browser has disabled the button.
            self.stepper.step()

    def _on_again(self) -> None:
        self.stepper.restart()
        self.show()
