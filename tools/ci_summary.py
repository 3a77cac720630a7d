"""Add up what CI has run, print one line "N passed, N failed, N skipped", and fail if anything failed.

Usage: ci_summary.py STEP=STATUS... -- each step's exit status; the tests' own results are read from build/.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

MESON_RESULTS = {"OK": "passed", "EXPECTEDFAIL": "passed", "SKIP": "skipped", "IGNORED": "skipped"}


def c_tests(build: Path) -> Counter[str]:
    """Results of every `meson test` below *build*; a folder's log holds its last run."""
    counts: Counter[str] = Counter()
    for log in build.glob("*/meson-logs/testlog.json"):
        for line in log.read_text().splitlines():
            counts[MESON_RESULTS.get(json.loads(line)["result"], "failed")] += 1
    return counts


def python_tests(report: Path) -> Counter[str]:
    """Results in a JUnit file of pytest."""
    counts: Counter[str] = Counter()
    if report.exists():
        for suite in ElementTree.parse(report).iter("testsuite"):
            failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped = int(suite.get("skipped", 0))
            counts.update(failed=failed, skipped=skipped, passed=int(suite.get("tests", 0)) - failed - skipped)
    return counts


def main(steps: list[str]) -> int:
    """Print the steps that failed and the sum; return the exit status."""
    counts = c_tests(Path("build")) + python_tests(Path("build/pytest.xml"))
    statuses = dict(step.rsplit("=", 1) for step in steps)
    broken = [name for name, status in statuses.items() if status != "0"]
    if broken:
        print("failed steps:", ", ".join(broken))
        # A step can fail without a failed test: a linter's complaint, a build that stops.
        counts["failed"] = max(counts["failed"], len(broken))
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
