"""Name what has failed in CI, print "N passed, N failed, N skipped" as the last line, and fail if anything failed.

Usage: ci_summary.py STEP=STATUS...

STATUS is the step's exit status. The results of the tests that a step ran are read from build/. A step that fails
without a failed test (a linter complains, a build stops) counts as one failure, and one without tests that succeeds
as one pass. Each failed test has a line with its step, its name and the last line of its reason, because the middle of
a long output may be cut. On a slow machine the step "test" skips the tests that its time does not suffice for. A line
says how many; they are a failure if they are more than two thirds.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

BUILD = Path("build")
WIDTH, LINES = 300, 60  # of what is printed about failures: characters of a reason, lines of a step
NOT_RUN = "not run: the time was over"  # tests/conftest.py
MOST_NOT_RUN = 2 / 3
MESON_RESULTS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped", "IGNORED": "skipped"}


def c_tests(log: Path) -> Counter[str]:
    """Results of the last `meson test` in the log it leaves, one JSON object per line."""
    lines = log.read_text().splitlines() if log.exists() else []
    return Counter(MESON_RESULTS.get(json.loads(line)["result"], "failed") for line in lines)


def python_tests(report: Path) -> Counter[str]:
    """Results in a JUnit file of pytest."""
    counts: Counter[str] = Counter()
    for suite in ElementTree.parse(report).iter("testsuite") if report.exists() else ():
        failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped = int(suite.get("skipped", 0))
        counts.update(failed=failed, skipped=skipped, passed=int(suite.get("tests", 0)) - failed - skipped)
    return counts


def not_run(report: Path) -> tuple[int, int]:
    """Return how many tests of a JUnit file were not run because the time was over, and how many there are."""
    cases = list(ElementTree.parse(report).iter("testcase")) if report.exists() else []
    skipped = [case for case in cases if any(NOT_RUN in s.get("message", "") for s in case.iter("skipped"))]
    return len(skipped), len(cases)


def _last_line(text: str) -> str:
    """Return the line that explains best: a sanitizer's summary, a failed check in C, else the last one."""
    lines = [line.strip() for line in text.splitlines() if any(c.isalnum() for c in line)]
    summaries = [line for line in lines if line.startswith("SUMMARY:")]
    checks = [line for line in lines if re.match(r"\S+\.[ch]:\d+: ", line)]
    return (summaries or checks[-1:] or lines[-1:] or [""])[0][:WIDTH]


def c_failures(log: Path) -> list[str]:
    """Return a line for each failed test in a log of meson."""
    found = []
    for line in log.read_text().splitlines() if log.exists() else []:
        test = json.loads(line)
        if MESON_RESULTS.get(test["result"], "failed") == "failed":
            reason = _last_line(test.get("stderr", "")) or _last_line(test.get("stdout", ""))
            found.append(f"{test['name']} ({test['result']}): {reason}")
    return found


def python_failures(report: Path) -> list[str]:
    """Return a line for each failed test in a JUnit file of pytest."""
    found = []
    for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
        for problem in (*case.iter("failure"), *case.iter("error")):
            found.append(f"{case.get('classname')}::{case.get('name')}: {_last_line(problem.get('message', ''))}")
    return found


def _innermost(stack: str) -> str:
    """Return the innermost call of a stack that faulthandler has written, or its last line."""
    calls = [line.strip() for line in stack.splitlines() if line.strip().startswith("File ")]
    return calls[0][:WIDTH] if calls else _last_line(stack)


def mpi4py_failures(folder: Path) -> list[str]:
    """Return a line for each of mpi4py's tests that hung or crashed."""
    return [
        f"{name} ({test['outcome']}, rank {test['rank']}): {_innermost(test['detail'])}"
        for path in sorted(folder.glob("via-*.json"))
        for module in json.loads(path.read_text())["modules"].values()
        for name, test in module["tests"].items()
        if test["outcome"] in ("hung", "crashed")
    ]


def failures_of(step: str) -> list[str]:
    """Return a line for each test of *step* that failed."""
    if step == "test":
        return c_failures(BUILD / "ctest/meson-logs/testlog.json") + python_failures(BUILD / "pytest.xml")
    if step == "mpi4py":
        return mpi4py_failures(BUILD / "mpi4py")
    return c_failures(BUILD / step / "meson-logs/testlog.json")


def results_of(step: str) -> Counter[str]:
    """Results of all tests that *step* ran."""
    if step == "test":
        return c_tests(BUILD / "ctest/meson-logs/testlog.json") + python_tests(BUILD / "pytest.xml")
    return c_tests(BUILD / step / "meson-logs/testlog.json")


def main(steps: list[str]) -> int:
    """Print the steps that failed and the sum; return the exit status."""
    total: Counter[str] = Counter()
    broken = []
    for step in steps:
        name, _, status = step.rpartition("=")
        counts = results_of(name)
        if status != "0":
            broken.append(name)
            counts["failed"] = max(counts["failed"], 1)
        elif not counts:
            counts["passed"] = 1
        total.update(counts)
    late, tests = not_run(BUILD / "pytest.xml")
    if late:
        print(f"not run: {late} of {tests} Python tests, for which this machine was too slow")
    total["failed"] += late > MOST_NOT_RUN * tests
    for name in broken:
        failures = failures_of(name)
        for line in failures[:LINES]:
            print(f"failed in {name}: {line}")
        if len(failures) > LINES:
            print(f"failed in {name}: {len(failures) - LINES} more")
    if broken:
        print("failed steps:", ", ".join(broken))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
