"""The numbers that `make mpi4py` compares with: tools/mpi4py_suite.py, tools/mpi4py_counts.json."""

import importlib.util
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "mpi4py_suite.py"
spec = importlib.util.spec_from_file_location("mpi4py_suite", TOOL)
assert spec is not None
assert spec.loader is not None
suite = importlib.util.module_from_spec(spec)
spec.loader.exec_module(suite)


def test_the_stored_numbers_are_of_the_suite_that_ci_runs():
    step = re.search(r'mpi4py ARGS="([^"]*)"', (ROOT / ".ci" / "run").read_text())
    assert step is not None
    words = step[1].split()
    assert "--counts" in words
    ranks, floor = (int(words[words.index(option) + 1]) for option in ("-n", "--floor"))
    found = suite.stored(ranks, ["test_win", "test_msgspec", "no_such_module"])
    assert floor >= 97
    assert found.counts["test_win"] > 50
    assert found.counts["no_such_module"] == 0
    saved = json.loads(suite.COUNTS.read_text())["passed"]
    assert sum(saved[str(ranks)].values()) > 1800
    for other in (1, 2, 3, 4):  # the numbers of ranks that docs/comm.md has
        assert sum(suite.stored(other, list(saved["1"])).counts.values()) > 1700
    with pytest.raises(SystemExit, match="repeat without --counts"):
        suite.stored(1023, [])


def test_tests_that_pass_on_both():
    names, counts = suite.Peer({"m": {"a", "b", "c"}}, {"m": 3}), suite.Peer(None, {"m": 3})
    assert (names.both("m", {"a", "x"}), counts.both("m", {"a", "x"})) == (1, 2)
    assert counts.both("m", {"a", "b", "c", "d"}) == 3  # no more than pass on Open MPI


def test_the_outcome_of_a_test_is_the_worst_of_all_ranks(tmp_path):
    passed, failed = '{"outcome": "passed", "detail": ""}', '{"outcome": "failed", "detail": "why"}'
    (tmp_path / "log.0").write_text(f"run m.A.x\nend m.A.x {passed}\nrun m.A.y\nend m.A.y {passed}\nrun m.A.z\n")
    (tmp_path / "log.1").write_text(f"run m.A.x\nend m.A.x {failed}\nrun m.A.y\nTimeout (0:01:00)!\n")
    tests, trouble = suite.read_logs(tmp_path, 97, 2)
    assert trouble == ""
    assert {name: (test["outcome"], test["rank"]) for name, test in tests.items()} == {
        "m.A.x": ("failed", 1),
        "m.A.y": ("hung", 1),
        "m.A.z": ("crashed", 0),
    }


def test_a_slow_module_is_no_crash_of_the_test_that_it_was_in(tmp_path):
    """A test that was running when the module was ended is repeated; it hangs if the run did not get beyond it."""
    passed, stack = '{"outcome": "passed", "detail": ""}', "Current thread 0x1\n"
    for rank in (0, 1):
        (tmp_path / f"log.{rank}").write_text(f"run m.A.x\nend m.A.x {passed}\nrun m.A.y\n{stack}")
    slow, _ = suite.read_logs(tmp_path, suite.CUT, 2)
    assert {name: test["outcome"] for name, test in slow.items()} == {"m.A.x": "passed", "m.A.y": "hung"}
    assert list(suite._without_cut(slow)) == ["m.A.x"]
    for rank in (0, 1):
        (tmp_path / f"log.{rank}").write_text(f"run m.A.y\n{stack}")
    stuck, _ = suite.read_logs(tmp_path, suite.CUT, 2)
    assert {name: test["outcome"] for name, test in suite._without_cut(stuck).items()} == {"m.A.y": "hung"}


def test_a_module_that_is_ended_keeps_its_crashes_and_its_hung_tests(tmp_path):
    for text, outcome in (("Fatal Python error: Segmentation fault", "crashed"), ("Timeout (0:01:00)!", "hung")):
        (tmp_path / "log.0").write_text(f"run m.A.x\nrun m.A.y\n{text}\n")
        (tmp_path / "log.1").write_text("run m.A.y\nCurrent thread 0x1\nrun m.A.z\n")
        found, _ = suite.read_logs(tmp_path, suite.CUT, 2)
        assert found["m.A.y"]["outcome"] == outcome
        assert list(suite._without_cut(found)) == ["m.A.y"]


def test_each_test_that_is_left_out_has_a_reason():
    assert all(len(reason) > 20 for reason in suite.left_out().values())
    assert "test_io.*" in suite.left_out()


def test_programs_of_packages_are_driven_by_files(monkeypatch):
    """The list names files that exist, each of which imports a package that is installed for it."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    programs = importlib.import_module("mpi4py_programs")
    chosen = programs.programs("schwimmbad,mpipool,dask")
    assert len(chosen) == 3
    packages = [name.replace("-", "_") for name in (*programs.WITHOUT_DEPENDENCIES, *programs.WITH_DEPENDENCIES)]
    for one in chosen:
        text = one.path.read_text()
        compile(text, str(one.path), "exec")
        assert any(f"import {name}" in text or f"from {name} " in text for name in packages)
