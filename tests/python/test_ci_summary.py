"""The last lines of CI: tools/ci_summary.py."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def summary(folder, *steps):
    command = [sys.executable, ROOT / "tools" / "ci_summary.py", *steps]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture
def results(tmp_path):
    build = tmp_path / "build"
    for step in ("tsan", "ctest", "mpi4py"):
        (build / step / "meson-logs").mkdir(parents=True)
    race = "WARNING: a race\nSUMMARY: ThreadSanitizer: data race a.h:41\n=====\n"
    check = '../tests/c/test_link.c:57: [udp] kind is 14, expected 1\n    last error of this thread: ""\n'
    tests = [
        {"name": "unit - errors", "result": "FAIL", "stdout": "", "stderr": race},
        {"name": "link", "result": "FAIL", "stdout": "", "stderr": check},
        {"name": "corners shm", "result": "TIMEOUT", "stdout": "case a\ncase b\n", "stderr": ""},
        {"name": "unit - mem", "result": "OK", "stdout": "", "stderr": ""},
    ]
    (build / "tsan/meson-logs/testlog.json").write_text("\n".join(json.dumps(test) for test in tests))
    (build / "pytest.xml").write_text(
        '<testsuites><testsuite tests="2" failures="1"><testcase classname="python.test_x" name="test_y">'
        '<failure message="AssertionError: assert 1 == 2">text</failure></testcase>'
        '<testcase classname="python.test_x" name="test_z"/></testsuite></testsuites>'
    )
    hung = {"outcome": "hung", "rank": 1, "detail": "Timeout (0:04:00)!\n  File x.py, line 7 in Barrier\n"}
    modules = {"test_rma": {"tests": {"test_rma.A.x": hung, "test_rma.A.y": {**hung, "outcome": "failed"}}}}
    (build / "mpi4py/via-2.json").write_text(json.dumps({"modules": modules}))
    return tmp_path


def test_each_failure_is_named_in_the_last_lines(results):
    ended = summary(results, "lint=0", "tsan=1", "test=2", "mpi4py=1", "docs=1")
    assert ended.returncode == 1
    assert ended.stdout.splitlines() == [
        "failed in tsan: unit - errors (FAIL): SUMMARY: ThreadSanitizer: data race a.h:41",
        "failed in tsan: link (FAIL): ../tests/c/test_link.c:57: [udp] kind is 14, expected 1",
        "failed in tsan: corners shm (TIMEOUT): case b",
        "failed in test: python.test_x::test_y: AssertionError: assert 1 == 2",
        "failed in mpi4py: test_rma.A.x (hung, rank 1): File x.py, line 7 in Barrier",
        "failed steps: tsan, test, mpi4py, docs",
        "3 passed, 6 failed, 0 skipped",
    ]


def test_a_step_that_succeeds_names_nothing(results):
    (results / "build/tsan/meson-logs/testlog.json").write_text(json.dumps({"name": "a", "result": "OK"}))
    ended = summary(results, "tsan=0", "lint=0")
    assert (ended.returncode, ended.stdout) == (0, "2 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize(("late", "status"), [(2, 0), (3, 1)])
def test_tests_without_time_are_counted_and_fail_if_they_are_many(results, late, status):
    skipped = '<testcase name="late"><skipped message="not run: the time was over"/></testcase>'
    cases = "<testcase/>" * (3 - late) + skipped * late
    text = f'<testsuites><testsuite tests="3" skipped="{late}">{cases}</testsuite></testsuites>'
    (results / "build/pytest.xml").write_text(text)
    ended = summary(results, "test=0", "lint=0")
    assert ended.returncode == status
    assert ended.stdout.splitlines()[0] == f"not run: {late} of 3 Python tests, for which this machine was too slow"


@pytest.mark.parametrize(("seconds", "outcome"), [(600, "1 passed"), (-1, "1 skipped")])
def test_tests_that_start_too_late_are_skipped(seconds, outcome):
    until = str(time.time() + seconds)
    command = [sys.executable, "-m", "pytest", "-q", "--until", until, __file__, "-k", "succeeds_names_nothing"]
    ended = subprocess.run(command, cwd=ROOT / "tests", capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert outcome in ended.stdout
