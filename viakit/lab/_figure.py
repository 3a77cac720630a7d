"""Plotly's figure of a panel in the page: the page always draws the newest state of the figure.

``FigureWidget`` of Plotly sends changes, and a page loses those that come while it loads Plotly's code. These 5 MB take
many seconds on a busy machine. anywidget even drops all later updates of a widget whose code was not loaded within two
seconds (class ``Runtime`` of 0.9 to 0.11). The figure then stays as it was created.

Here the figure is the text of another widget, to which anywidget's limit does not apply. The page draws this text when
it has loaded Plotly, and again after each change::

    kernel                           page
    go.Figure --send()--> Text.value ~~~~> Text.value --Plotly.react()--> drawing in the view of Shown
"""

from __future__ import annotations

import anywidget
import ipywidgets as widgets
import plotly.graph_objects as go
import traitlets
from plotly.offline import get_plotlyjs

__all__ = ["Shown"]

_VIEW = """
const loaded = (globalThis.viakitPlotly ??= new Map());  // source of Plotly: promise of its object

async function load(source) {
    const before = globalThis.Plotly;
    const address = URL.createObjectURL(new Blob([source], {type: "text/javascript"}));
    try {
        await import(address);
        return globalThis.Plotly;
    } catch (error) {
        loaded.delete(source);  // the next view tries again
        throw error;
    } finally {
        URL.revokeObjectURL(address);
        globalThis.Plotly = before ?? globalThis.Plotly;  // the page's own one stays
    }
}

async function render({model, el}) {
    const text = await model.widget_manager.get_model(model.get("figure_id"));
    const source = model.get("source");
    if (!loaded.has(source)) loaded.set(source, load(source));
    const plotly = await loaded.get(source);
    const place = el.appendChild(document.createElement("div"));
    const draw = () => {
        const {data, layout} = JSON.parse(text.get("value"));
        return plotly.react(place, data, layout, {displaylogo: false});
    };
    let pending = false;
    const redraw = () => {  // once for all changes since the last picture of the screen
        if (pending) return;
        pending = true;
        requestAnimationFrame(() => {
            pending = false;
            if (place.isConnected) draw();
        });
    };
    await draw();
    text.on("change:value", redraw);
    const fit = new ResizeObserver(redraw);  // also when the view comes into the page
    fit.observe(el);
    return () => {
        fit.disconnect();
        text.off("change:value", redraw);
        plotly.purge(place);
    };
}

export default {render};
"""


class Shown(anywidget.AnyWidget):
    """The widget that shows a figure.

    Parameters
    ----------
    figure : plotly.graph_objects.Figure
        Its changes are in the page after the next call of :meth:`send`.
    """

    _esm = _VIEW
    source = traitlets.Unicode().tag(sync=True)
    figure_id = traitlets.Unicode().tag(sync=True)

    def __init__(self, figure: go.Figure) -> None:
        self._figure = figure
        self.text = widgets.Text(figure.to_json())
        super().__init__(source=get_plotlyjs(), figure_id=self.text.model_id)

    def send(self) -> None:
        """Give the figure as it is now to all pages, also to those that are loaded later."""
        self.text.value = self._figure.to_json()
