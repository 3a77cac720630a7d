"""The laboratory's other experiments: barriers, applications, wires that lose frames."""

from __future__ import annotations

import csv
import functools
import html
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import waiting
from kernel import notebook, printed, shown
from leftovers import marked
from synthetic import SyntheticPair

from viakit import cli, lab
from viakit.lab._apps import App
from viakit.lab._apps_panel import AppPanel
from viakit.lab._barrier import Barrier
from viakit.lab._barrier_panel import BarrierPanel
from viakit.lab._compare import _FIELDS
from viakit.lab._faults_panel import FaultsPanel
from viakit.lab._job import socket_folder
from viakit.measure import Result, barrier, collectives, kinds, look, loss, result

until = functools.partial(waiting.until, limit_s=60.0)

pytestmark = pytest.mark.usefixtures("lab_text")


def kept(found: Result, folder: Path) -> list[dict[str, str]]:
    """Save a result as each kind of file, and load it again; returns the lines of its CSV."""
    assert Result.load(found.save(folder / "zurück.json")) == found
    assert found.save(folder / "bild.svg").read_bytes().startswith(b"<?xml")
    with found.save(folder / "zeilen.csv").open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == sum(len(one["points"]) for one in found["series"]) > 0
    for line, row in zip(lines, found.rows(), strict=True):
        assert None not in (*line, *line.values())
        assert float(line.get("median_s") or line["one_way_median_s"]) == row["median_s"]
        assert (line["protocol"], line["nbytes"]) == (row["protocol"], str(row["nbytes"]))
    return lines


def test_collectives_are_not_taken_for_barriers(tmp_path):
    made = collectives.measure(
        ["bcast", "allreduce"], ranks=[2], sizes=[8], algorithms=["flat"], with_mpi=False, seconds=0.1
    )
    found = Result(made)
    assert found.kind == "collective"
    assert {line["operation"] for line in kept(found, tmp_path)} == {"bcast", "allreduce"}
    assert found.plot().get_axes()[0].get_title() == "bcast, 2 ranks"
    shown = found._repr_html_()
    assert "allreduce</span>" in shown
    assert "Barrier" not in shown
    assert "via bcast flat, 2 ranks" in {one.label for one in found.compare(made)}


def test_several_kinds_in_one_file_are_shown_each_by_itself(tmp_path):
    def of(series, *points):
        return {**series, "points": list(points)}

    times = dict.fromkeys(("median", "p5", "p50", "p90", "p99", "p999", "min", "max"), 1e-6) | {"ci95": [1e-6, 1e-6]}
    side = {
        "protocol": "tcp",
        "link": "ip",
        "hosts": "local",
        "mtu": None,
        "mode": "pingpong",
        "wait": "poll",
        "level": "c",
    }
    one_way = {"nbytes": 8, "one_way_s": times, "bandwidth_Bps": 8e6, "samples": 9, "counters": {}, "bursts_s": []}
    group = {"operation": "barrier", "algorithm": "message", "protocol": "via", "link": "shm"}
    group |= {"ranks": 2, "hosts": 1, "level": "c", "info": {}}
    barrier = {"nbytes": 0, "time_s": times, "samples": 9}
    barriers = [of(group, barrier), of(group | {"ranks": 4}, barrier)]
    both = Result(series=[of(side, one_way, one_way | {"nbytes": 64}), *barriers], command="x")
    both["environment"] = {"cpu": "one", "kernel": "Linux"}
    assert list(kinds.split(both)) == [kinds.TRANSFERS, kinds.BARRIERS]
    shown = both._repr_html_()
    assert shown.count('<svg role="img"') == 2
    assert "One-way time" in shown
    assert "Barrier" in shown
    single = Result({**both, "series": [of(side, one_way), *barriers]})._repr_html_()
    assert single.count('<svg role="img"') == 1, "a curve of one point; its table has all of it"
    assert "One-way time" in single
    for write in (lambda: both.save(tmp_path / "a.csv"), both.plot, lambda: both.save(tmp_path / "a.png")):
        with pytest.raises(result.ResultError, match=r"(this result|result 1) holds transfers and barriers"):
            write()
    assert not os.listdir(tmp_path)


def fits_a_notebook(found) -> bool:
    """Whether the rows of the tables in a result's page have at most 80 columns."""
    (table,) = re.findall(r"<pre.*?</pre>", found._repr_html_(), re.DOTALL)
    assert "white-space:pre;" in table, "the notebook would break long rows"
    return max(map(len, html.unescape(re.sub(r"<[^>]*>", "", table)).splitlines())) <= 80


def test_barriers(capsys, tmp_path):
    run = lab.barrier("default", "message", ranks=[2, 3], seconds=0.2)
    assert "message" in capsys.readouterr().out
    found = run.result
    result.validate(found)
    assert found.kind == "barrier"
    assert fits_a_notebook(found)
    assert {(one["algorithm"], one["ranks"]) for one in found["series"] if one["protocol"] == "via"} == {
        (name, n) for name in ("default", "message") for n in (2, 3)
    }
    words = "viakit barrier --ranks 2,3 --protocol via --algorithms default,message --no-mpi --seconds 0.2"
    assert found["command"] == words
    assert {(line["algorithm"], line["ranks"]) for line in kept(found, tmp_path)} >= {("message", "3")}
    with pytest.raises(result.ResultError, match=r"\.png, \.svg or \.pdf"):
        run.save(tmp_path / "barrier.html")
    assert {one.label for one in found.compare(dict(found)) if one.label.startswith("via")} == {
        f"via {name}, {n} ranks" for name in ("default", "message") for n in (2, 3)
    }
    for wrong, words in (
        ({"ranks": [0]}, "numbers from 1"),
        ({"hosts": 9}, "one rank on each host"),
        ({"protocol": "smoke"}, "one of via"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.barrier(**wrong)
    with pytest.raises(ValueError, match="unknown barrier"):
        lab.barrier("hope")
    with pytest.raises(TypeError, match="no setting 'rank'; it has"):
        lab.barrier(rank=2)


def test_a_side_that_fails_costs_what_it_has_not_measured_and_no_more():
    killed = []

    def kill(part: float, left_s: float, words: str) -> None:
        if not killed:
            killed.append(int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[-1]))
            os.kill(killed[0], signal.SIGKILL)

    document = loss.measure("via-shm", losses=[0.01, 0.02], seconds=60.0, on_progress=kill)
    result.validate(document)
    assert {one["loss"] for one in document["series"]} == {0.01, 0.02}
    assert document["complete"] is False
    (error,) = document["errors"]
    assert error["protocol"] == "via-shm"
    assert "2.00% of frames lost: via-shm: the peer went away" in error["message"]
    least, most = (extreme(one["points"][0]["samples"] for one in document["series"]) for extreme in (min, max))
    assert 1 <= least <= most <= 2, "it went on when a side was gone"


def test_losses_are_measured_in_turns_and_not_one_after_the_other():
    runs = []

    class Recorded(SyntheticPair):
        def run(self, *args, **kw):
            runs.append(tuple(sorted(self.info["options"].items())))
            return super().run(*args, **kw)

    def enough(part: float, left_s: float, words: str) -> None:
        if len(runs) >= 80:
            raise KeyboardInterrupt

    found = loss.measure("via-shm", losses=[0.0, 0.01], seconds=600.0, seed=3, on_progress=enough, pair_class=Recorded)
    rounds = [runs[i : i + 4] for i in range(0, len(runs), 4)]
    assert all(len(set(one)) == 4 for one in rounds), "a round is every loss and every way, once"
    assert len({tuple(one) for one in rounds}) > 1, "rounds are all in the same order"
    assert {tuple(one["points"][0]["rounds"]) for one in found["series"]} == {tuple(range(20))}


@pytest.mark.parametrize(
    ("experiment", "set_there"),
    [
        (Barrier, {"hosts": 0, "mtu": 9000, "seed": 0, "protocol": "udp", "skew_s": 5e-5}),
        (App, {"hosts": 2, "mtu": 9000, "seed": 0, "rate": "1gbit", "rounds": 2}),
        (App, {"machine": "veth", "computing": 2.5}),
    ],
)
def test_the_command_line_repeats_what_was_set(experiment, set_there, monkeypatch):
    monkeypatch.setenv("VIAKIT_WIRE", "")  # where the command puts a rate
    made = experiment("sor", set_there) if experiment is App else experiment([], set_there)
    _, name, *words = shlex.split(made.command())
    said = cli.cli.commands[name].make_context(name, words).params
    said["rate"] = os.environ["VIAKIT_WIRE"].removeprefix("rate=") or None
    names = {"skew_s": "skew"}
    assert {key: said[names.get(key, key)] for key in set_there} == pytest.approx(set_there)


def test_an_application_with_its_timeline(capsys, tmp_path):
    run = lab.app("sor-zero", protocols="via", ranks=[2], rounds=1)
    assert "SOR-Zero" in capsys.readouterr().out
    found = run.result
    result.validate(found)
    assert found.kind == "application"
    assert fits_a_notebook(found)
    assert {(one["protocol"], one["ranks"]) for one in found["series"]} == {("serial", 1), ("via", 2)}
    assert {line["label"] for line in kept(found, tmp_path)} == {"sor-zero"}
    assert [one.label for one in found.compare(found)] == ["sor-zero serial, 1 rank", "sor-zero via, 2 ranks"]
    with pytest.raises(ValueError, match="models can be fitted to sweeps only"):
        found.fit()
    assert run.timelines["via"].startswith(b"\x89PNG")
    assert run.timelines_html() in run._html(found)
    with pytest.raises(ValueError, match="nothing to measure is called"):
        lab.app("tetris")
    with pytest.raises(ValueError, match="expected one of via"):
        lab.app(protocols=["smoke"])
    with pytest.raises(ValueError, match="numbers from 1"):
        lab.app(ranks=[0])
    with pytest.raises(TypeError, match="no setting"):
        lab.app(rank=2)


def test_loss_is_repaired_and_counted(capsys, tmp_path):
    run = lab.faults(losses=[0.0, 0.05], seconds=1.0, seed=7)
    assert "go-back-n" in capsys.readouterr().out
    found = run.result
    result.validate(found)
    assert found.kind == "faults"
    counted = {(one["loss"], one["retransmission"]): one["points"][0]["counters"] for one in found["series"]}
    assert set(counted) == {(part, way) for part in (0.0, 0.05) for way in ("selective", "go_back_n")}
    for way in ("selective", "go_back_n"):
        assert counted[0.0, way]["fault_dropped"] == 0
        assert counted[0.05, way]["fault_dropped"] > 0
        assert counted[0.05, way]["frames_retransmitted"] > 0
    assert loss.per_message(found["series"][-1]["points"][0], "acks_sent") > 0
    assert '<svg role="img"' in found._repr_html_()
    curves = FaultsPanel._curves(SimpleNamespace(experiment=run), found["series"])
    names = {one.label for one in curves if one.column == 0}
    assert names == {f"{way}, {part} lost" for way in ("selective", "go-back-n") for part in ("0.0%", "5.0%")}
    assert isinstance(found, Result)
    assert {(line["loss"], line["retransmission"]) for line in kept(found, tmp_path)} >= {("0.05", "selective")}
    with pytest.raises(result.ResultError, match="cannot be overlaid"):
        found.plot(found)
    assert "via-udp go-back-n, 5.00% lost" in {one.label for one in found.compare(found)}
    for wrong, words in (
        ({"losses": 2}, "fractions from 0"),
        ({"protocol": "tcp"}, "does not support faults"),
        ({"retransmissions": "hope"}, "expected some of"),
        ({"nbytes": 0}, "expected a size"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.faults(**wrong)
    for part in (3, "x", None, float("nan")):
        with pytest.raises(ValueError, match=r"from 0 to 0\.5"):
            run.loss = part


NAN, INF = float("nan"), float("inf")
NONSENSE = {  # by setting: values that are always invalid
    "seconds": (None, 0, -1, NAN, INF, "1", [1], True),
    "seed": (-1, "x", 1.5, 1 << 70),
    "mtu": (0, -1, "x", 1500.5, NAN, 1 << 20),
    "ranks": (None, [], "", "x", [1.5], [-1], [None], 1 << 20, NAN, b"2", {2: 3}),
    "hosts": (-1, "x", 1.5, NAN, 100),
    "protocols": (None, [], "", [None], 3, ["via", "via"], [["via"]]),
    "algorithms": ([], [None], 3, ["message", "message"], "smoke"),
    "rounds": (None, 0, 1.5, "3"),
    "rate": ("x", 0, -1, NAN),
    "skew_s": (None, -1, NAN, 1e9, "5us"),
    "losses": (None, [], [NAN], [-0.1], "x", 1, [None]),
    "retransmissions": (None, [], [None], "hope"),
    "nbytes": (None, -1, 0, 1.5, "x", 1 << 60),
    **dict.fromkeys(("with_mpi", "quick", "timeline", "follow", "validate"), (None, "no", 1)),
    "sockbuf": (-1, 0, "x", 1.5),
    "delay": (-1, 2, "x", "1", NAN, True),
    "sizes": ("", "x", [], [-1], [None], 1.5, NAN, 1 << 50),
}


@pytest.mark.parametrize("make", [lab.compare, lab.barrier, lab.app, lab.faults], ids=lambda make: make.__name__)
def test_senseless_arguments_are_refused_before_anything_starts(make):
    """Else it costs a whole measurement: a result with the seed "x" cannot be saved."""
    known = set(make(start=False).settings if make is not lab.compare else ("sizes", *_FIELDS))
    tried = 0
    for name in sorted(known & set(NONSENSE)):
        for given in NONSENSE[name]:
            with pytest.raises(ValueError, match=r"expected|give |name at|there are|has to be|its largest|not a whole"):
                make(**{name: given}, start=True)
            tried += 1
    assert tried > 20
    assert lab.running() is None


def test_barriers_of_a_described_machine():
    run = lab.barrier("rdma", ranks=[2], machine="barrier-cluster-1")
    (one,) = run.result["series"]
    assert one["info"]["machine"] == "barrier-cluster-1"
    assert one["points"][0]["time_s"]["median"] == pytest.approx(10.77e-6, rel=0.01)  # virtual, so it can be asserted
    assert "--machine barrier-cluster-1" in run.command()
    with pytest.raises(ValueError, match="no machine is called 'nowhere'"):
        lab.barrier(machine="nowhere")
    with pytest.raises(ValueError, match="name or the file of a machine"):
        lab.barrier(machine=7)


def test_an_application_on_a_described_machine():
    machine = "pentium3-650-giganet"
    run = lab.app("ep", protocols="via", ranks=[1, 2], rounds=1, machine=machine, computing=20)
    found = {(one["protocol"], one["ranks"]): one for one in run.result["series"]}
    assert set(found) == {("serial", 1), ("via", 2)}
    assert {one["info"]["machine"] for one in found.values()} == {machine}
    assert run.timelines["via"].startswith(b"\x89PNG")
    assert run.command().endswith(f"--machine {machine} --computing 20")
    assert "ep over via on pentium3-650-giganet" in run.title
    for wrong, words in (
        ({"protocols": "mpi"}, "protocol 'mpi' on a described machine; expected via, bip or tcp"),
        ({"protocols": "via", "ranks": [1]}, "at least 2, expected numbers from 2 on"),
        ({"protocols": "via", "hosts": 2}, "all ranks run on this host; leave out hosts"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.app("ep", machine=machine, **wrong)
    with pytest.raises(ValueError, match="no machine is called 'nowhere'"):
        lab.app(machine="nowhere")


def test_what_is_meant_is_understood():
    import numpy as np

    made = lab.barrier(ranks="2, 4", algorithms="flags,message", seconds=np.float32(2), seed=np.int64(3), start=False)
    assert made.settings["ranks"] == [2, 4]
    assert made.settings["algorithms"] == ["flags", "message"]
    assert [type(made.settings[name]) for name in ("seconds", "seed")] == [float, int]
    assert lab.faults(nbytes="64K", losses=0.02, start=False).settings["nbytes"] == 65536
    assert lab.compare("unix", sizes=np.arange(8, 11), sockbuf="128K", start=False).config.sizes == [8, 9, 10]
    late = lab.compare("tcp", hosts="testbed", delay=0.001, start=False)
    assert late.config.delay == "1000us"
    assert "--delay 1000us" in late.command()
    with pytest.raises(ValueError, match="protocols are"):
        lab.compare(["unix", "tcp"])
    with pytest.raises(TypeError, match="expected bytes"):
        lab.via("text")


@pytest.mark.parametrize(
    "make",
    [
        lambda: lab.app("sor-nonzero", quick=False, ranks=[2], rounds=50, start=False),
        lambda: lab.barrier(ranks=[4], seconds=600, start=False),
        lambda: lab.faults(seconds=600, start=False),
    ],
    ids=["app", "barrier", "faults"],
)
def test_stopped_in_the_middle_they_leave_nothing(make, mark):
    run = make()
    run.start()
    until(lambda: len(marked(mark)) >= 3 or not run.job.running, "the worker, and what it starts")
    assert run.state == "running"
    run.stop()
    assert run.state == "stopped"
    until(lambda: not marked(mark), "nothing is left")  # a process that was just starting ends when it finds no parent


KILLED = """
from viakit.lab import magics
magics.ViakitMagics(None).viakit("barrier --algorithms flat --ranks 2 --no-mpi --seconds 600")
"""


def test_a_command_of_a_notebook_goes_with_the_kernel(mark, monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    kernel = subprocess.Popen([sys.executable, "-c", KILLED], cwd=tmp_path)
    try:
        # It, the folder's cleaner, the command, and its ranks.
        until(lambda: len(marked(mark)) >= 5 or kernel.poll() is not None, "all five run")
        assert kernel.poll() is None
        assert any(path.name.startswith("viakit-lab-") for path in tmp_path.iterdir())
    finally:
        kernel.kill()
        kernel.wait()
    until(lambda: not marked(mark), "no process is left")
    until(lambda: not list(tmp_path.iterdir()), "no file is left")


def test_a_folder_for_sockets_has_a_short_name(monkeypatch, tmp_path):
    (tmp_path / ("x" * 80)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 80)))
    folder = socket_folder("viakit-lab-")
    os.rmdir(folder)
    assert len(folder) < 60
    assert not os.listdir(tmp_path / ("x" * 80))


def test_a_page_gets_the_whole_figure_whenever_it_draws_it():
    """A page draws the text of a widget, which has the newest state from the first one on."""
    (found,) = notebook(
        "import json, time\nfrom viakit import lab\n"
        "c = lab.compare('via-loop', sizes='8', seconds=600, hosts='local', start=False)\n"
        "def now(): return json.loads(c.panel.picture.text.value)\n"
        "def points(): return [n for t in now()['data'] for n in t.get('x') or ()]\n"
        "print(now()['layout']['xaxis']['type'], set(points()) - {None})\n"
        "c.start()\nend = time.monotonic() + 150\n"
        "while 8 not in points() and time.monotonic() < end: time.sleep(0.01)\n"
        "print(8 in points(), c.panel.picture.figure_id == c.panel.picture.text.model_id)\nc.stop()",
        mode="widgets",
    )
    assert printed(found).split() == ["log", "set()", "True", "True"]


def test_their_panels_start_follow_and_stop():
    barrier, app, faults = notebook(
        "from viakit import lab\nb = lab.barrier('default', ranks=[2], seconds=0.2); b.wait()._repr_html_()\n"
        "print(b.state, [t.name for t in b.panel.figure.data if t.name], b.panel.save.disabled,"
        " b.panel.figure.layout.xaxis.tickvals)\n"
        "import json; state = json.loads(b.panel.picture.text.value)\n"  # for a page that is loaded again
        "later = [t['name'] for t in state['data'] if t.get('name') and len(t['x'])]\n"
        "print(later, state['layout']['xaxis']['title']['text'])\n"
        "b.panel.ranks.value = 'two'; b.panel.start.click(); print(b.panel.progress.text.value)",
        "a = lab.app('ep', protocols=['via'], ranks=[1], rounds=1, start=False)\nprint(a.state)\n"
        "a.panel.application.value = 'sor-zero'\na.panel.start.click(); a.wait()\n"
        "print(a.state, [t.name for t in a.panel.figure.data if t.name], 'base64' in a.panel.timelines.value)",
        "import time\nf = lab.faults(start=False); f.panel.seconds.value = 600; f.panel.start.click()\n"
        "def losses(): return {s['loss'] for s in f.job.series()}\n"
        "end = time.monotonic() + 150\n"
        "while not losses() and time.monotonic() < end: time.sleep(0.01)\n"
        "f.panel.loss.value = 10\n"
        "while 0.1 not in losses() and time.monotonic() < end: time.sleep(0.01)\n"
        "f.panel.stop.click(); f.job.wait()\n"
        "print(f.state, sorted(losses()), sorted({t.name for t in f.panel.figure.data if t.name}))",
        mode="widgets",
    )
    assert not shown(barrier, "text/html"), "a table was shown by itself, and not only returned"
    lines = printed(barrier).splitlines()
    assert lines[0] == "done ['default'] False (2,)"
    assert lines[1] == "['default'] ranks"
    assert "expected comma-separated numbers" in lines[2]
    assert printed(app) == "ready\ndone ['via', 'via'] True\n"
    assert printed(faults) == ("stopped [0.0, 0.1] ['go-back-n', 'go-back-n, acks', 'selective', 'selective, acks']\n")
    for outputs in (barrier, app, faults):
        assert shown(outputs, "application/vnd.jupyter.widget-view+json")


def test_labels_of_a_growing_panel_have_the_looks_of_their_curves():
    panel = BarrierPanel(lab.barrier("message", ranks=[2], start=False))
    times = {"median": 2e-6, "p5": 1e-6, "p90": 3e-6}
    series = []
    for algorithm in ("rdma", "message", "flags", "counter", "my-own", barrier.TURN, "a third", "flat", "gather"):
        series.append({"protocol": "via", "algorithm": algorithm, "ranks": 2, "points": [{"time_s": times}]})
        panel._draw(series)
        lines = {line.name: line for line in panel.figure.data if line.name}
        ends = [one for one in panel.figure.layout.annotations if one.name == "end"]
        assert len(ends) == len(lines) == len(series)
        for one in ends:
            colour, sign, name = re.fullmatch('<span style="color:(#[0-9A-F]{6})">(.)</span> (.+)', one.text).groups()
            assert colour == lines[name].line.color, name
            assert look.SYMBOLS[{each[0]: marker for marker, each in look.SIGNS.items()}[sign]] == (
                lines[name].marker.symbol
            ), name


def test_names_of_curves_in_a_panel_are_apart_also_if_other_points_stretch_the_axis():
    panel = BarrierPanel(lab.barrier("message", ranks=[2], start=False))
    last = {"rdma": 1.0e-6, "message": 1.2e-6}
    panel._draw(
        [
            {
                "protocol": "via",
                "algorithm": name,
                "ranks": ranks,
                "points": [{"time_s": dict.fromkeys(("median", "p5", "p90"), time)}],
            }
            for name, at_end in last.items()
            for ranks, time in ((2, 4e-4), (4, at_end))
        ]
    )
    one, other = (each for each in panel.figure.layout.annotations if each.name == "end")
    per_decade = 210 / math.log10(400)  # the field is at least so many pixels high
    apart = (other["y"] - one["y"]) * per_decade + other["yshift"] - one["yshift"]
    assert apart >= 15, "the names overlap"


def test_the_panel_of_applications_has_the_split_above_its_controls_and_whole_ranks():
    panel = AppPanel(lab.app("ep", protocols=["via"], ranks=[1], start=False))
    order = list(panel.widget.children)
    assert order.index(panel.picture) < order.index(panel.split) < order.index(panel.controls)
    assert len(set(map(id, order))) == len(order) == 7
    assert all(one.whole_x for one in panel.fields)


@pytest.mark.parametrize(("panel", "make"), [(FaultsPanel, lab.faults), (BarrierPanel, lab.barrier)])
def test_axes_of_an_empty_panel_begin_at_zero(panel, make):
    figure = panel(make(start=False)).figure
    for axis in (*figure.select_xaxes(), *figure.select_yaxes()):
        assert axis.range[0] >= 0
        assert axis.autorange
        assert axis.rangemode == "nonnegative"
