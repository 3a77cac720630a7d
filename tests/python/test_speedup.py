"""Speed-ups: the paper's values, results from measured times, their report, and a small run."""

from __future__ import annotations

import csv
import json
import subprocess
import sys

import apps_job
import needs
import pytest
from click.testing import CliRunner

from viakit import cli
from viakit.apps import profile, reporting, results, speedup
from viakit.apps import speedup_report as report
from viakit.bench import application_goals as app_goals
from viakit.bench.goals import Goal
from viakit.launch import LaunchError
from viakit.measure import result, turns

TITLES = {one.title: label for label, one in speedup.PROBLEMS.items()} | {"SOR-NZ": "sor-nonzero"}
COLUMNS = {
    "MPICH Ethernet": "MPICH Eth",
    "MVICH Ethernet (M-VIA)": "MVICH Eth",
    "MVICH Ethernet RDMA": "MVICH Eth RDMA",
    "MVICH Giganet": "MVICH Gig",
    "MVICH Giganet RDMA": "MVICH Gig RDMA",
}


SMALL = {
    "standard deviation of sequential time": "deviation_percent",
    "mean message size": "mean_kilobytes",
    "bandwidth per CPU": "megabytes_per_s",
}


def invoke(*arguments):
    return CliRunner().invoke(cli.cli, list(arguments), prog_name="viakit")


# --------------------------------------------------------------------------------------------------- the paper


def test_the_tables_of_the_paper_are_those_of_the_claims():
    if not apps_job.CLAIMS.is_file():
        pytest.skip(f"the papers' figures are not here: {apps_job.CLAIMS.name}")
    with apps_job.CLAIMS.open(encoding="utf-8", newline="") as file:
        claims = [row for row in csv.DictReader(file) if row["seed_file"].startswith("002")]
    said, seen = speedup.paper(), set()
    for claim in claims:
        where, system, value = claim["section_or_table"], claim["system"], claim["value"]
        if where == "Table III":
            title, _, column = system.partition("; ")
            expected = said["problems"][TITLES[title]]["speedups"][said["columns"].index(COLUMNS[column])]
            assert expected == (None if value == "NA" else float(value)), claim
        elif (where, claim["quantity"]) == ("Table I", "sequential time"):
            assert said["problems"][TITLES[system]]["sequential_ms"] == float(value)
        elif where in ("Table I", "Table II") and claim["quantity"] in SMALL:
            assert said["problems"][TITLES[system]][SMALL[claim["quantity"]]] == float(value)
        elif (where, claim["quantity"]) == ("Table II", "number of messages"):
            assert said["problems"][TITLES[system]]["messages"] == int(value)
        elif (where, claim["quantity"]) == ("Table II", "total transfers"):
            assert said["problems"][TITLES[system]]["kilobytes"] == float(value)
        else:
            continue
        seen.add((where, system, claim["quantity"]))
    assert len(seen) == 7 * (5 + 2 + 4)
    assert set(said["problems"]) == set(speedup.PROBLEMS)


def test_names_stand_for_problems():
    assert speedup.labels_of([]) == list(speedup.PROBLEMS)
    assert speedup.labels_of(["sor", "ep"]) == ["sor-zero", "sor-nonzero", "ep"]
    assert speedup.labels_of(["water-288", "water"]) == ["water-288", "water-1728"]
    assert speedup.labels_of(["ft"]) == ["fft"]
    with pytest.raises(ValueError, match="nothing to measure is called 'lu'; there are sor, is, fft, water, ep"):
        speedup.labels_of(["lu"])


# --------------------------------------------------------------------------------------------- times made up


def series(label, protocol, ranks, walls, *, waiting=0.0, ok=True):
    """Runs with these wall times, of which each rank spends a part waiting."""
    runs = [
        {
            "wall_s": wall,
            "ok": ok,
            "round": i,
            "checks": [
                {"name": "sum", "got": 2, "expected": 1, "error": 1.0, "tolerance": 0.0, "ok": ok},
            ],
            "ranks": [
                {
                    "rank": rank,
                    "wall_s": wall,
                    "cpu_s": wall,
                    "work_s": wall * (1 - waiting),
                    "messages": ranks - 1,
                    "nbytes": 1024 * (ranks - 1),
                    "seconds": {"compute": wall * (1 - waiting), "wait": wall * waiting},
                }
                for rank in range(ranks)
            ],
        }
        for i, wall in enumerate(walls)
    ]
    return {
        "label": label, "application": speedup.PROBLEMS[label].application, "protocol": protocol, "ranks": ranks,
        "hosts": 1, "cores": 2, "level": "python", "problem": {"size": 1}, "info": {}, "runs": runs,
        "points": [reporting.point(walls)],
    }  # fmt: skip


def test_a_job_that_cannot_be_started_costs_what_it_would_have_measured_and_no_more():
    needs.mpi_library("mpi:mpich")
    taken = speedup._Rounds([("ep", "ep", ["--class", "S"])], {"hosts": 2, "mtu": 1500}, True)
    with pytest.raises(LaunchError, match="every host has equally many"):
        taken.take(speedup._Job("mpi:mpich", 3), 0)
    taken.take(speedup._Job(None, 1), 0)
    taken.take(speedup._Job("mpi:mpich", 3), 0)
    assert [one["protocol"] for one in taken.finished()] == ["serial"]
    (error,) = taken.errors
    assert error["message"].startswith("mpi:mpich, 3 ranks: ")


@pytest.fixture
def document():
    """Make a document: serial 8 s, VIA 4 and 2.5 s on 2 and 8 ranks, TCP 5 and 4 s, MPI on 2 ranks 4.4 and 4.2 s."""
    made = []
    for label in speedup.PROBLEMS:
        made += [
            series(label, "serial", 1, [8.0, 8.2, 7.9]),
            series(label, "via", 2, [4.1, 4.0, 4.0], waiting=0.1),
            series(label, "via", 8, [2.5, 2.5, 2.6], waiting=0.2),
            series(label, "tcp", 2, [5.0, 5.0, 5.0], waiting=0.3),
            series(label, "tcp", 8, [4.0, 4.0, 4.0], waiting=0.5),
            series(label, "mpi:openmpi", 2, [4.4, 4.4, 4.4]),
            series(label, "mpi:mpich", 2, [4.2, 4.2, 4.2]),
        ]
    return turns.document_of(made, command="viakit speedup --paper", complete=True, errors=[], elapsed_s=1.0, seed=1)


def test_what_follows_from_times(document):
    result.validate(document)
    found = {(one.label, one.protocol, one.ranks): one for one in speedup.rows(document)}
    assert len(found) == 6 * len(speedup.PROBLEMS)
    one = found["ep", "via", 8]
    assert one.speedup == pytest.approx(8.0 / 2.5)
    assert (one.low, one.high) == (pytest.approx(7.9 / 2.6), pytest.approx(8.2 / 2.5))
    assert one.efficiency == pytest.approx(3.2 / 8)
    assert one.karp_flatt == pytest.approx((1 / 3.2 - 1 / 8) / (1 - 1 / 8))
    assert one.communication == pytest.approx(0.2)
    assert one.work == pytest.approx(2.0 * 8 / 8.0)
    assert (one.messages, one.nbytes) == (56, 57344)
    assert one.crowded
    assert not found["ep", "via", 2].crowded


def test_the_tables_have_the_paper_beside_them(document):
    from rich.console import Console

    console = Console(width=200, record=True, file=open("/dev/null", "w", encoding="utf-8"))  # noqa: SIM115
    with console.file:
        report.show(document, console)
    text = console.export_text()
    assert "3.20 (3.04 to 3.28)" in text
    assert "MVICH Eth RDMA 9.04" in text
    line = next(line for line in text.splitlines() if line.strip().startswith("IS Class A") and "0.94" in line)
    assert line.split()[3:] == ["3.20", "2.00", "-", "-", "0.94", "3.18", "NA", "3.22", "4.89"]
    line = next(line for line in text.splitlines() if "15102.5" in line)
    assert line.split()[-4:] == ["8033.3", "1.90", "15102.5", "0.13"]
    line = next(line for line in text.splitlines() if line.strip().startswith("3-D FFT") and "39424" in line)
    # 56 messages of 1 KB, in 2.5 and 4 s by 8 ranks
    assert line.split()[2:] == ["56", "56.0", "1.00", "0.00273", "0.00171", "-", "-", "686", "39424", "57.47", "1.28"]
    assert (
        "EP: with 8 ranks the speed-up over TCP is 62% of that over VIA (in the paper 88% on the same Ethernet)."
        in text
    )
    assert "More ranks than the 2 cores" in text


def test_nothing_is_claimed_from_ranges_that_overlap(document):
    at = document["series"].index(speedup.find(document, "ep", "tcp", 8))
    document["series"][at] = series("ep", "tcp", 8, [4.0, 2.5, 4.0])
    said = report.words(document)
    assert "EP: with 8 ranks there is no evidence of a difference" in said[0]
    assert "is 62% of that over VIA" in said[1]


def test_nothing_is_claimed_from_one_round(document):
    for one in document["series"]:
        one["runs"] = one["runs"][:1]
    said = report.words(document)
    assert not any("speed-up over TCP is" in sentence for sentence in said)
    assert said[0].startswith("EP: one round has no range")


def test_pictures_and_a_page(document):
    drawing = report.figure(document)
    drawn = [axes for axes in drawing.axes if axes.get_title()]
    assert [axes.get_title() for axes in drawn][:2] == ["EP (figure 6)", "SOR-Zero (figure 4)"]
    assert len(drawn) == 7
    assert report.picture(document, ".svg").startswith(b"<?xml")
    page = report.html(document)
    assert page.count("<table") == 7 + 4  # Tables I to III, and the machine
    assert page.index('<svg role="img"') < page.index("<h2>Summary")
    assert "http" not in page.replace("http://www.w3.org", "")
    with pytest.raises(result.ResultError, match="nothing to draw"):
        report.figure({**document, "series": []})


def test_a_result_is_shown_and_drawn_from_its_file(document, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    result.save(document, tmp_path / "s.json")
    shown = invoke("show", str(tmp_path / "s.json"))
    assert shown.exit_code == 0, shown.output
    assert "3.20 (3.04 to 3.28)" in shown.output
    for out, options in (("speed.svg", []), ("times.svg", ["--graph", "time"])):
        drawn = invoke("plot", str(tmp_path / "s.json"), "-o", str(tmp_path / out), "--title", "all $5 of $6", *options)
        assert drawn.exit_code == 0, drawn.output
        assert (tmp_path / out).read_bytes().startswith(b"<?xml")
    drawn = results.figure([document], times=True)
    assert len([axes for axes in drawn.axes if axes.get_visible()]) == len(speedup.PROBLEMS)
    assert [text.get_text() for text in drawn.axes[0].texts] != []
    assert {axes.get_ylabel() for axes in drawn.axes if axes.get_visible()} == {"wall time, s"}


def test_results_of_an_application_are_shown_and_drawn(tmp_path, monkeypatch):
    """... as the application printed them; files with other numbers of ranks make one curve."""
    monkeypatch.setenv("COLUMNS", "160")
    files = []
    for n in (1, 2):
        files.append(str(tmp_path / f"{n}.json"))
        done = invoke("app", "sor", "--size", "64", "--json", files[-1], "-n", str(n))
        assert done.exit_code == 0, done.output
    shown = invoke("show", files[1])
    assert shown.exit_code == 0, shown.output
    assert "2 ranks over via" in shown.output
    assert "communication" in shown.output
    assert "right:" in shown.output
    drawn = invoke("plot", *files, "--title", "50 $ to 60 $")
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "1.png").read_bytes().startswith(b"\x89PNG")
    curves = [text.get_text() for text in _names(files)]
    assert curves == ["serial", "via"]
    curves = [text.get_text() for text in _names([files[1], files[1]])]
    assert curves == ["via [0]", "via [1]"]
    for option in (["--linear"], ["--graph", "signature"]):
        refused = invoke("plot", files[0], *option)
        assert refused.exit_code == 2, refused.output
        assert " ".join(option) in refused.output


def _names(files):
    documents = [result.load(file) for file in files]
    return results.figure(documents, names=["0", "1"]).axes[0].texts


def test_a_wrong_result_is_told(document):
    document["series"].append(series("ep", "bip", 2, [1.0, 1.0], ok=False))
    assert speedup.wrong(document) == ["ep over bip, 2 ranks: sum is 2; expected exactly 1"]
    assert "WRONG RESULT: ep over bip, 2 ranks" in report.html(document)


def test_goals_are_judged_by_the_worst_case(document):
    good, bad = (Goal("efficiency", least, at_most=False) for least in (0.9, 1.1))
    for goal in (good, bad):
        app_goals._efficiency(goal, document, ["sor-zero", "sor-nonzero"])
        assert goal.value == pytest.approx(1.0)
        assert goal.interval[0] <= goal.value <= goal.interval[1]
    assert (good.status, bad.status) == ("holds", "falls short")
    against = Goal("against", 1.0)
    app_goals._against_mpi(against, document)
    assert against.value == pytest.approx(4.0 / 4.2)
    assert "of mpi:mpich" in against.detail
    assert len(against.points) == 7
    document["series"] = [one for one in document["series"] if one["protocol"] != "mpi:mpich"]
    document["skipped"] = [{"protocol": "mpi:mpich", "reason": "not installed"}]
    missing = Goal("against", 1.0)
    app_goals._against_mpi(missing, document)
    assert (missing.status, missing.reason) == ("not measured", "mpi:mpich: not installed")


def test_no_goal_is_reached_by_a_wrong_result(document):
    """... however quick it was."""
    at = document["series"].index(speedup.find(document, "sor-zero", "via", 2))
    document["series"][at] = series("sor-zero", "via", 2, [1.0, 1.0, 1.0], ok=False)
    efficient, against = Goal("efficiency", 0.9, at_most=False), Goal("against", 1.0)
    app_goals._efficiency(efficient, document, ["sor-zero", "sor-nonzero"])
    app_goals._against_mpi(against, document)
    for goal in (efficient, against):
        assert (goal.status, goal.value, goal.points) == ("not measured", None, [])
        assert goal.reason == "wrong result: sor-zero over via, 2 ranks: sum is 2; expected exactly 1"


# ------------------------------------------------------------------------------------------------- measuring


def test_a_small_run(tmp_path):
    files = [str(tmp_path / name) for name in ("s.json", "s.png", "s.html")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "viakit", "speedup", "sor-zero", "--quick", "--rounds", "2", "--ranks", "3"),
            *("--protocols", "via,tcp,copies", "--json", files[0], "--png", files[1], "--html", files[2]),
            *("--programs", "paper", "--profile"),
        ],
        capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("wrote") == 3
    document = result.load(files[0])
    assert {(one["protocol"], one["ranks"], len(one["runs"])) for one in document["series"]} == {
        ("serial", 1, 2), ("via", 3, 2), ("tcp", 3, 2), ("copies", 3, 2),
    }  # fmt: skip
    assert all(run["ok"] and run["checks"] for one in document["series"] for run in one["runs"])
    found = {one.protocol: one for one in speedup.rows(document)}
    assert {name: one.messages for name, one in found.items()} == {"via": 4 * 2 * 49, "tcp": 4 * 2 * 49, "copies": 0}
    for one in document["series"]:
        assert one["problem"]["variant"] == "paper"
        calls = profile.of_runs(one["runs"])
        if one["protocol"] in ("via", "tcp"):  # 4 rows are sent in each of 98 half-sweeps
            assert (calls["Start, send"].count, calls["Wait, receive"].count) == (4 * 98, 4 * 98)
            assert calls["Start, send"].nbytes == found[one["protocol"]].nbytes
            assert all(0 <= each.waiting_s <= each.seconds for each in calls.values())
        else:
            assert calls == {}
    assert "SOR-Zero, small, 3 ranks: mean time of a call / without its waiting" in " ".join(done.stdout.split())
    assert done.stdout.count("Wait, receive") == 1
    copies = found["copies"]
    assert copies.speedup == pytest.approx(3 * copies.serial_s / copies.wall_s)
    assert "copies: the serial program on every rank at once" in done.stdout
    assert document["command"].startswith("viakit speedup sor-zero")


def test_what_cannot_be_is_told():
    for words, status, text in (
        (("lu",), 2, "nothing to measure is called 'lu'"),
        (("sor", "--protocols", "pigeon"), 2, "protocol 'pigeon'"),
        (("sor", "--ranks", "0"), 2, "expected numbers from 1"),
        (("sor", "--paper"), 2, "leave out the names and --quick"),
        (("sor", "--json", "/nowhere/s.json"), 1, "folder /nowhere does not exist"),
        (("sor", "--png", "s.txt"), None, "s.txt"),
        (("sor", "--json", "s.json", "--html", "./s.json"), 1, "is named for two different outputs"),
    ):
        done = invoke("speedup", *words)
        assert done.exit_code in ((status,) if status is not None else (1, 2)), done.output
        assert text in done.output


def test_a_job_that_fails_is_told_and_not_started_again(tmp_path):
    """A grid of two columns does not exist. Every job reports that."""
    taken = speedup._Rounds([("sor-zero", "sor", ["--size", "2"])], {}, True)
    job = speedup._Job(None, 1)
    taken.take(job, 0)
    assert job in taken.failed
    assert "serial: status" in taken.errors[0]["message"]
    assert "a grid has 3 rows" in taken.errors[0]["message"]
    assert json.dumps(taken.finished()) == "[]"


# --------------------------------------------------------------------------------------------------- a machine


def test_speedups_on_a_described_machine(tmp_path):
    """The parallel programs are in virtual time; the serial one's computing is multiplied by the machine's factor."""
    path = tmp_path / "f.json"
    words = ["--protocols", "via:mvich-rput", "--ranks", "1,2", "--machine", "pentium3-650-giganet", "--rounds", "1"]
    done = invoke("speedup", "ep", "--quick", *words, "--computing", "20", "--json", str(path))
    assert done.exit_code == 0, done.output
    document = result.load(path)
    (row,) = speedup.rows(document)
    assert (row.protocol, row.ranks) == ("via:mvich-rput", 2)
    assert all(one["info"] == {"machine": "pentium3-650-giganet", "time": "virtual"} for one in document["series"])
    (serial,) = speedup.find(document, "ep", "serial", 1)["runs"]
    assert serial["wall_s"] == pytest.approx(20 * serial["ranks"][0]["work_s"])
    (parallel,) = speedup.find(document, "ep", "via:mvich-rput", 2)["runs"]
    # EP sends 44 bytes, so nothing but its computing counts.
    assert parallel["wall_s"] == pytest.approx(20 * max(rank["work_s"] for rank in parallel["ranks"]), rel=0.2)
    for extra, problem in (
        (["--computing", "20", "--hosts", "testbed:2"], "leave out hosts"),
        (["--computing", "20", "--protocols", "mpi"], "expected via, bip or tcp"),
        (["--computing", "20", "--protocols", "tcp"], "no section [tcp]"),
        ([], "has no compute.factor"),
    ):
        done = invoke("speedup", "ep", "--quick", *words, *extra)
        assert done.exit_code == 2, done.output
        assert problem in done.output
