"""Add up what CI has run, print "N passed, N failed, N skipped" as the last line, and fail if anything failed.

Usage: ci_summary.py STEP=STATUS...

STATUS is the step's exit status. The results of the tests that a step ran are read from build/. A step that fails
without a failed test (a linter complains, a build stops) counts as one failure, and one without tests that succeeds
as one pass.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

BUILD = Path("build")
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
    if broken:
        print("failed steps:", ", ".join(broken))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return 1 if total["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
