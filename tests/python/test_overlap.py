"""Modes overlap and rate of a sweep: how much computing fits beside a message, and messages per second."""

import io
import json

import needs
import numpy as np
import pytest
from rich.console import Console
from synthetic import COSTS, SyntheticPair

from viakit.measure import fit, grid, interactive, plan, plot, report, result, sweep, table
from viakit.measure.pair import MeasureError, Pair
from viakit.measure.result import ResultError

MACHINE = "pentium3-650-giganet"


class Computing(SyntheticPair):
    """A pair whose overlap is three quarters."""

    def run(self, nbytes, mode="pingpong", **kw):
        done = super().run(nbytes, "pingpong" if mode == "overlap" else mode, **kw)
        if mode == "overlap":
            assert kw["count"] % 2 == 0
            done.alone_s = done.one_way_s[::2]
            done.one_way_s = done.alone_s / 4
        return done


def shown(document):
    console = Console(file=io.StringIO(), width=160)
    table.show(document, console)
    return console.file.getvalue()


def measured(mode, protocols=("unix", "udp"), sizes=(8, 4096), pair=Computing):
    SyntheticPair.reset()
    config = plan.Config(list(protocols), list(sizes), mode=mode, seconds=0.5, seed=3)
    return sweep.run(config, pair_class=pair).document


@pytest.mark.parametrize("name", ["unix", "tcp", "udp", "via-shm", "bip-shm", "msg-via", "msg-tcp:mpich-p4"])
def test_every_protocol_has_it(name):
    with Pair(name) as pair:
        samples = pair.run(1000, "overlap", count=20, validate=True)
        assert samples.one_way_s.shape == samples.alone_s.shape == (10,)
        assert (samples.one_way_s > 0).all()
        assert (samples.alone_s > 0).all()
        assert samples.counters["messages"] == 2 * (20 + 2)
        with pytest.raises(ValueError, match="count is 3; overlap needs an even number"):
            pair.run(8, "overlap", count=3)


def test_only_the_loop_in_c_has_it():
    with Pair("unix", level="python") as pair, pytest.raises(MeasureError, match="overlap is measured by the loop in"):
        pair.run(8, "overlap", count=2)
    with pytest.raises(plan.UsageError, match="at level python in overlap, only at c"):
        plan.plan(plan.Config(["unix"], [8], mode="overlap", level="python"))


def on_machine():
    config = plan.Config(["via", "msg-via"], [1024, 1 << 16], mode="overlap", machine=MACHINE)
    series = sweep.run(config).document["series"]
    keys = ("nbytes", "one_way_s", "bursts_s", "alone_s", "overlap")
    return {one["protocol"]: [{key: point[key] for key in keys} for point in one["points"]] for one in series}


def test_on_a_described_machine():
    """VIA's card moves a message while the processor computes. The message layer's rendezvous needs the processor."""
    first, again = on_machine(), on_machine()
    assert json.dumps(first) == json.dumps(again), "virtual time repeats to the bit"
    via, engine = ([point["overlap"]["median"] for point in first[name]] for name in ("via-sim", "msg-via"))
    assert 0.5 < via[0] < via[1] < 1, "a longer message is longer in the card and on the wire"
    assert engine[0] > 0.5, "eager"
    assert 0 <= engine[1] < 0.1, "the announcement of the reply waits while its receiver computes"
    for point in first["via-sim"]:
        assert point["overlap"]["median"] == pytest.approx(1 - point["one_way_s"]["median"] / point["alone_s"])


def test_the_result_and_its_tables():
    document = measured("overlap")
    result.validate(document)
    for series in document["series"]:
        assert series["one_way"].startswith("half of the round trip's time that computing")
        for point in series["points"]:
            assert point["overlap"]["median"] == pytest.approx(0.75)
            low, high = point["overlap"]["ci95"]
            assert low <= point["overlap"]["median"] <= high
            assert len(point["bursts_alone_s"]) == len(point["bursts_s"])
            assert point["alone_s"] == pytest.approx(4 * point["one_way_s"]["median"], rel=0.1)
    text = shown(document)
    assert "Time of a message that computing beside it could not use, one way" in text
    assert f"75 % of {COSTS['unix'][0] * 1e6:.1f}" in text
    assert "overlap 75 % of" in report.html(document)
    assert grid.grids(document) == []
    with pytest.raises(ValueError, match="no one-way times over sizes"):
        fit.fit(document)


def test_the_picture(tmp_path):
    document = measured("overlap")
    assert plot.usual_graphs([document]) == ("overlap", "time", "ratio")
    first = plot.figure([document]).axes[0]
    assert first.get_title() == "Overlap"
    assert np.allclose([value for line in first.lines[:2] for value in line.get_ydata()], 75)
    assert "overlap, % of the one-way time" in str(interactive.figure([document]).to_json())
    plain = measured("pingpong")
    for draw in (plot.figure, interactive.figure):
        with pytest.raises(ResultError, match="has no overlap to draw; measure it with"):
            draw([plain], graphs=["overlap"])


@pytest.mark.parametrize(
    ("mode", "graphs"),
    [
        ("pingpong", ("throughput", "signature", "ratio")),
        ("overlap", ("overlap", "time", "ratio")),
        ("rate", ("rate", "throughput", "ratio")),
    ],
)
def test_the_panel_has_the_graphs_of_its_mode(mode, graphs):
    needs.module("ipywidgets", "lab")
    needs.module("anywidget", "lab")
    from viakit.lab import _compare, _compare_panel

    panel = _compare_panel.ComparePanel(_compare.Compare(["unix", "udp"], "8,4K", (), {"mode": mode}))

    def titles():
        return [one.text for one in panel.figure.layout.annotations if one.name != "end"]

    assert titles() == [plot.HEADINGS[graph] for graph in graphs]
    assert len({trace.xaxis for trace in panel.figure.data}) == 3, "an empty field would not be drawn"
    document = measured(mode)
    panel._draw(document["series"])
    assert titles() == [plot.HEADINGS[graph] for graph in graphs]
    drawn = plot.curves([document])
    lines = [trace for trace in panel.figure.data if trace.name == drawn[0]["label"]]
    for graph, line in zip(graphs, lines, strict=True):
        x, y = plot.lines_of(drawn[0], graph)[:2]
        assert (list(line.x), list(line.y)) == (list(x), list(y))
    bands = [trace for trace in panel.figure.data if trace.fill == "toself" and trace.x]
    assert {trace.xaxis for trace in bands} == {"x", "x2"}, "ratios have no band, because their intervals take long"
    first = panel.figure.layout.yaxis
    assert first.title.text == plot.axis_words(graphs[0], "", "")[1]
    assert first.type == ("linear" if mode == "overlap" else "log")
    if mode != "pingpong":  # beside curves of another mode, all have the usual graphs
        panel._earlier, panel._names = [measured("pingpong")], ["earlier"]
        panel._draw(document["series"])
        assert titles() == [plot.HEADINGS[graph] for graph in ("throughput", "signature", "ratio")]
        assert panel.figure.layout.yaxis.ticksuffix == "B/s"


def test_the_message_rate():
    document = measured("rate")
    point = table.point_at(table.find_series(document, "unix", mode="rate"), 8)
    text = shown(document)
    assert "Message rate of a stream" in text
    assert table.format_rate(1 / point["one_way_s"]["median"]) in text
    assert plot.usual_graphs([document])[0] == "rate"
    line = plot.figure([document]).axes[0].lines[0]
    assert line.get_ydata()[0] == pytest.approx(1 / point["one_way_s"]["median"])
    assert interactive.figure([document]) is not None
    assert [table.format_rate(one) for one in (2.5e6, 1234.0, 7.0)] == ["2.50 M/s", "1.23 k/s", "7.00 /s"]


def test_a_rate_is_that_of_a_stream():
    with Pair("unix") as pair:
        samples = pair.run(64, "rate", count=30, repeats=4)
        assert samples.one_way_s.shape == (4,)
        assert samples.counters["messages"] == pair.run(64, "stream", count=30, repeats=4).counters["messages"]
