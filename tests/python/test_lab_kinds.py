"""The laboratory's other experiments: barriers, applications, wires that lose."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

import pytest
from kernel import notebook, printed, shown

from viakit import lab
from viakit.measure import Result, loss, result


@pytest.fixture(autouse=True)
def text_mode(monkeypatch):
    """Plain Python's way, and nothing is left running by any test."""
    monkeypatch.setenv("VIAKIT_LAB", "text")
    yield
    lab.stop()
    assert lab.running() is None


def test_barriers(capsys, tmp_path):
    run = lab.barrier("default", "message", ranks=[2, 3], seconds=0.2)
    assert "message" in capsys.readouterr().out
    found = run.result
    result.validate(found)
    assert found.kind == "barrier"
    assert {(one["algorithm"], one["ranks"]) for one in found["series"]} == {
        (name, n) for name in ("default", "message") for n in (2, 3)
    }
    words = "viakit barrier --ranks 2,3 --protocol via --algorithms default,message --no-mpi --seconds 0.2"
    assert found["command"] == words
    assert run.save(tmp_path / "barrier.png").stat().st_size > 1000
    with pytest.raises(result.ResultError, match=r"\.png, \.svg or \.pdf"):
        run.save(tmp_path / "barrier.html")
    assert {one.label for one in found.compare(dict(found))} == {
        f"via {name}, {n} ranks" for name in ("default", "message") for n in (2, 3)
    }
    for wrong, words in (
        ({"ranks": [0]}, "numbers from 1"),
        ({"hosts": 9}, "one rank on each host"),
        ({"protocol": "smoke"}, "one of via"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.barrier(**wrong)
    with pytest.raises(ValueError, match="no barrier is called"):
        lab.barrier("hope")
    with pytest.raises(TypeError, match="no setting 'rank'; there are"):
        lab.barrier(rank=2)


def test_an_application_with_its_timeline(capsys):
    run = lab.app("sor-zero", protocols="via", ranks=[2], rounds=1)
    assert "SOR-Zero" in capsys.readouterr().out
    found = run.result
    result.validate(found)
    assert found.kind == "application"
    assert {(one["protocol"], one["ranks"]) for one in found["series"]} == {("serial", 1), ("via", 2)}
    assert run.timelines["via"].startswith(b"\x89PNG")
    assert run.timelines_html() in run._html(found)
    with pytest.raises(ValueError, match="nothing to measure is called"):
        lab.app("tetris")
    with pytest.raises(ValueError, match="right would be some of via"):
        lab.app(protocols=["smoke"])
    with pytest.raises(ValueError, match="numbers from 1"):
        lab.app(ranks=[0])
    with pytest.raises(TypeError, match="no setting"):
        lab.app(rank=2)


def test_loss_is_repaired_and_counted(capsys):
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
    assert "data:image/png" in found._repr_html_()
    assert isinstance(found, Result)
    for wrong, words in (
        ({"losses": 2}, "parts from 0"),
        ({"protocol": "tcp"}, "takes no faults"),
        ({"retransmissions": "hope"}, "right would be some of"),
        ({"nbytes": 0}, "right would be a size"),
    ):
        with pytest.raises(ValueError, match=words):
            lab.faults(**wrong)
    with pytest.raises(ValueError, match="a part from 0"):
        run.loss = 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: lab.app("sor-nonzero", quick=False, ranks=[2], rounds=50, start=False),
        lambda: lab.barrier(ranks=[4], seconds=600, start=False),
        lambda: lab.faults(seconds=600, start=False),
    ],
    ids=["app", "barrier", "faults"],
)
def test_stopped_in_the_middle_they_leave_nothing(make, monkeypatch):
    word = uuid.uuid4().hex
    monkeypatch.setenv("VIAKIT_TEST_MARK", word)
    run = make()
    run.start()
    deadline = time.monotonic() + 60
    while len(processes(word)) < 3 and run.job.running:  # the worker, and what it has started
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert run.state == "running"
    run.stop()
    assert run.state == "stopped"
    assert processes(word) == set()


def processes(word: str) -> set[int]:
    """Processes other than this one that have *word* in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if word.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
    return found


def test_their_panels_start_follow_and_stop():
    barrier, app, faults = notebook(
        "from viakit import lab\nb = lab.barrier('default', ranks=[2], seconds=0.2); b.wait()\n"
        "print(b.state, [t.name for t in b.panel.figure.data], b.panel.save.disabled)\n"
        "b.panel.ranks.value = 'two'; b.panel.start.click(); print(b.panel.progress.text.value)",
        "a = lab.app('ep', protocols=['via'], ranks=[1], rounds=1, start=False)\nprint(a.state)\n"
        "a.panel.application.value = 'sor-zero'\na.panel.start.click(); a.wait()\n"
        "print(a.state, [t.name for t in a.panel.figure.data], 'base64' in a.panel.timelines.value)",
        "import time\nf = lab.faults(start=False); f.panel.seconds.value = 600; f.panel.start.click()\n"
        "def losses(): return {s['loss'] for s in f.job.series()}\n"
        "end = time.monotonic() + 50\n"
        "while not losses() and time.monotonic() < end: time.sleep(0.01)\n"
        "f.panel.loss.value = 10\n"
        "while 0.1 not in losses() and time.monotonic() < end: time.sleep(0.01)\n"
        "f.panel.stop.click(); f.job.wait()\n"
        "print(f.state, sorted(losses()), sorted({t.name for t in f.panel.figure.data}))",
        mode="widgets",
    )
    lines = printed(barrier).splitlines()
    assert lines[0] == "done ['default'] False"
    assert "give numbers with commas" in lines[1]
    assert printed(app) == "ready\ndone ['via', 'via'] True\n"
    assert printed(faults) == ("stopped [0.0, 0.1] ['go-back-n', 'go-back-n, acks', 'selective', 'selective, acks']\n")
    for outputs in (barrier, app, faults):
        assert shown(outputs, "application/vnd.jupyter.widget-view+json")
