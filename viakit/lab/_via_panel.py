"""The buttons and tables of ``lab.via()``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ipywidgets as widgets

if TYPE_CHECKING:
    from viakit.lab._via import Stepper

__all__ = ["ViaPanel"]


class ViaPanel:
    """One button that goes on, one that begins again, and the stage as it now stands."""

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
        """Show the stage that has been reached, with what has changed marked."""
        stages = self.stepper.stages
        self.table.value = stages[-1].html(stages[-2] if len(stages) > 1 else None)
        self.next.disabled = not self.stepper.left

    def _on_next(self) -> None:
        if self.stepper.left:  # a click may come before the browser has heard that there are none
            self.stepper.step()

    def _on_again(self) -> None:
        self.stepper.restart()
        self.show()
