"""The figure that ``%viakit sweep`` draws while it measures."""

import io
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from IPython.core import formatters
from kernel import notebook, shown

from viakit.lab import live, magics
from viakit.lab._live import LiveFigure
from viakit.measure import look

SERIES = {
    "protocol": "unix", "link": "unix", "hosts": "local", "mtu": None, "mode": "pingpong", "wait": "poll",
    "level": "c", "memory": "user", "buffers": "touched",
}  # fmt: skip


class FakeHandle:
    """The display of a cell: keeps the pages that replace each other."""

    def __init__(self, pages):
        self.pages = pages

    def update(self, page):
        """Keep a page."""
        self.pages.append(page.data)


SWEEP = "%viakit sweep unix via-shm --sizes 8,64,4K --seconds 3"


@pytest.mark.timeout(300)
def test_a_sweep_draws_while_it_measures_and_the_result_replaces_the_figure():
    count = "from viakit.lab import _live\nprint(drawn[0].n_drawn, 'drawings', type(r).__name__, len(r['series']))"
    spy = (
        "%load_ext viakit\nfrom viakit.lab import _live\ndrawn = []\nmake = _live.LiveFigure\n"
        "_live.LiveFigure = lambda command: drawn.append(make(command)) or drawn[-1]"
    )
    made = notebook(spy, f"r = {SWEEP}", count, f"r = {SWEEP}\nr", mode="widgets")
    assert len(shown(made[1], "text/html")) == 1, "one figure, replaced in place"
    assert "<!-- 2\N{NO-BREAK SPACE}KiB -->" in shown(made[1], "text/html")[0], "it stopped in the middle of the sweep"
    assert "<svg" in shown(made[1], "text/html")[0]
    assert "currentColor" in shown(made[1], "text/html")[0], "it does not follow the theme"
    n = int("".join(one["text"] for one in made[2]).split()[0])
    assert n >= 2, "it was drawn once, and not while it measured"
    assert "ShownResult 2" in made[2][0]["text"]
    pages = shown(made[3], "text/html")
    assert [page.count("<svg") for page in pages if "<svg" in page] == [1], "the figure is there twice"
    assert "<table" in pages[-1]


def test_bars_appear_one_after_the_other_and_are_readable_in_each_theme():
    bars = (
        "from viakit.lab import live\nwith live.Bars('time, %', 'shares') as drawing:\n"
        "    for name, n in (('EP', 97), ('IS', 4)):\n"
        "        drawing.add(name, {'computing': n, 'communicating': 100 - n})"
    )
    (outputs,) = notebook(bars, mode="widgets")
    (page,) = shown(outputs, "text/html")
    assert 'aria-label="shares"' in page
    assert "currentColor" in page
    for word in ("EP", "IS", "computing", "communicating", "97", "96", "time, %"):
        assert f"<!-- {word} -->" in page, word
    assert "<!-- 3 -->" not in page, "a number that is wider than its part"
    assert look.ON_DARK in page, "the hatch, by which the parts differ in grey, has no colour"


def test_a_figure_of_bars_has_them_in_the_order_of_their_measurement():
    drawing = live.Bars("seconds")
    widths = []
    for name, parts in (("SOR", {"a": 1.0, "b": 2.0}), ("IS", {"b": 1.0, "c": 4.0}), ("SOR", {"a": 3.0})):
        drawing.add(name, parts)
        (axes,) = drawing.figure().axes
        widths.append([bar.get_width() for bar in axes.patches])
    assert widths == [[1, 2], [1, 0, 2, 1, 0, 4], [3, 0, 0, 1, 0, 4]]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["SOR", "IS"]
    assert axes.yaxis_inverted()


def test_the_command_waits_for_its_reader_and_does_not_hang_without_one():
    command = [sys.executable, "-m", "viakit", "sweep", "unix", "--sizes", "8", "--seconds", "1", "--live"]
    paced = {**os.environ, "VIAKIT_LIVE_PACED": "1"}
    for environment, draws in ((paced, True), (os.environ, False)):
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        assert any("one_way_s" in one for one in lines)
        assert any(one.get("draw") for one in lines) == draws


def test_a_single_size_has_a_table_and_no_graph_of_one_point(monkeypatch):
    pages = []
    monkeypatch.setattr("IPython.display.display", lambda page, **kw: pages.append(page.data) or FakeHandle(pages))
    figure, reply = LiveFigure("viakit sweep"), io.StringIO()
    for nbytes, drawn in ((64, "<table"), (4096, "<svg")):
        times = dict.fromkeys(("median", "p5", "p50", "p90", "p99", "p999", "min", "max"), 2e-6)
        point = {"nbytes": nbytes, "one_way_s": times, "bandwidth_Bps": nbytes / 2e-6, **SERIES}
        assert figure.line(json.dumps(point), reply)
        assert figure.line('{"draw": true}', reply)
        assert drawn in pages[-1]
    assert "One-way time, half the round trip" in pages[0]
    assert "2.00\xa0µs" in pages[0]  # one word: a table that wraps keeps number and unit together
    assert "<svg" not in pages[0]


def test_the_figure_is_complete_when_the_cell_ends(monkeypatch):
    pages = []
    monkeypatch.setattr("IPython.display.display", lambda page, **kw: pages.append(page.data) or FakeHandle(pages))
    figure, reply = LiveFigure("viakit sweep"), io.StringIO()
    points = []
    for nbytes in (64, 4096):
        times = dict.fromkeys(("median", "p5", "p50", "p90", "p99", "p999", "min", "max"), nbytes * 1e-9)
        points.append({"nbytes": nbytes, "one_way_s": times, "bandwidth_Bps": 1e9})
    document = {"series": [{**SERIES, "points": points}, {**SERIES, "protocol": "tcp", "points": []}]}
    figure.finish(document)
    assert not pages, "a sweep that drew nothing has no figure to complete"
    figure.line(json.dumps({**points[0], **SERIES}), reply)
    figure.line('{"draw": true}', reply)
    assert "<svg" not in pages[-1]
    figure.finish(document)
    assert "<svg" in pages[-1], "the last drawing was in the middle of the sweep"
    figure.remove()
    figure.finish(document)
    assert not pages[-1], "the result is displayed in its place"


def test_lines_that_are_no_points_are_the_commands_output():
    figure, reply = LiveFigure("viakit sweep"), io.StringIO()
    for text in ("unix: refused\n", "{broken\n", "{}\n"):
        assert not figure.line(text, reply)
    assert figure.line('{"draw": true}\n', reply), "no point yet, so nothing is drawn"
    assert reply.getvalue() == "drawn\n"
    assert figure.n_drawn == 0


def test_a_figure_is_displayed_as_a_picture_also_if_pyplot_was_not_imported():
    from matplotlib import pyplot
    from matplotlib.figure import Figure

    shell = SimpleNamespace(display_formatter=formatters.DisplayFormatter(), register_magics=lambda magics: None)
    magics.load(shell)
    figure = Figure()
    figure.subplots().plot([1, 2], label="the curve")
    data, _ = shell.display_formatter.format(figure)
    assert data["text/html"].startswith("<svg")
    assert "currentColor" in data["text/html"], "it does not follow the theme"
    of_pyplot = pyplot.figure()
    try:
        assert "text/html" not in shell.display_formatter.format(of_pyplot)[0], "it would be displayed twice"
    finally:
        pyplot.close(of_pyplot)
