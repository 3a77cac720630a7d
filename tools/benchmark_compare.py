"""Compare two runs of the benchmarks, and report which became slower or faster.

    make benchmark                              time every hot path; the run is kept in build/benchmarks
    make benchmark-compare                      time them again, and compare with the run before
    tools/benchmark_compare.py OLD.json NEW.json

The runs are files of pytest-benchmark with the times of all rounds (--benchmark-save-data). For each benchmark the tool
prints the ratio of the two medians with a 95 % bootstrap interval, and the p-value of the Mann-Whitney test: the
probability of such a difference in rank between two samples of one distribution. A benchmark is slower or faster if its
p-value is below 1 % after Holm's correction for the number of benchmarks, and its interval does not contain 1.

The rounds of one run share the state of the machine. Save runs on a quiet machine, and repeat a comparison whose result
matters: a difference that stays is one of the program.

Exit status: 1 if a benchmark became slower, otherwise 0.
"""

import argparse
import json
import math
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from viakit.measure.stats import ratio_of_medians
from viakit.measure.table import format_time

LEVEL = 0.01


def load(path: Path) -> dict[str, list[float]]:
    """Return the times of all rounds in seconds, by benchmark."""
    every = json.loads(path.read_text())["benchmarks"]
    found = {one["fullname"].rpartition("/")[2]: one["stats"].get("data") for one in every}
    without = [name for name, data in found.items() if not data]
    if without:
        raise SystemExit(f"{path} has no times of rounds ({without[0]}); save runs with --benchmark-save-data")
    return found


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the two-sided p-value of the Mann-Whitney test, by the normal approximation with ties.

    H. B. Mann and D. R. Whitney, "On a test of whether one of two random variables is stochastically larger than the
    other", 1947. The approximation is good from about ten values in each sample on.
    """
    n, m = len(a), len(b)
    counts = Counter([*a, *b])
    ranks, below = {}, 0
    for value in sorted(counts):
        ranks[value] = below + (counts[value] + 1) / 2  # equal values share their mean rank
        below += counts[value]
    u = sum(ranks[value] for value in a) - n * (n + 1) / 2
    ties = sum(count**3 - count for count in counts.values())
    variance = n * m / 12 * ((n + m + 1) - ties / ((n + m) * (n + m - 1)))
    if variance <= 0:
        return 1.0
    distance = max(abs(u - n * m / 2) - 0.5, 0.0)
    return math.erfc(distance / math.sqrt(2 * variance))


def verdicts(old: dict[str, list[float]], new: dict[str, list[float]]) -> list[dict]:
    """Return a row for each benchmark that both runs have, the largest ratio first."""
    rows = []
    for name in old.keys() & new.keys():
        ratio = ratio_of_medians(new[name], old[name], paired=False)
        rows.append({"name": name, "ratio": ratio, "p": mann_whitney(old[name], new[name]), "verdict": "same"})
    differs = True
    for i, row in enumerate(sorted(rows, key=lambda row: row["p"])):
        differs = differs and row["p"] * (len(rows) - i) < LEVEL  # Holm: all later ones have larger p-values
        if differs and row["ratio"].low > 1:
            row["verdict"] = "slower"
        elif differs and row["ratio"].high < 1:
            row["verdict"] = "faster"
    return sorted(rows, key=lambda row: -row["ratio"].value)


def main(arguments: list[str] | None = None) -> int:
    """Compare two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="the older run, and the newer one")
    parser.add_argument("--last", type=Path, metavar="FOLDER", help="compare the last two runs in a folder")
    options = parser.parse_args(arguments)
    files = options.files
    if options.last is not None:
        files = sorted(options.last.rglob("*.json"), key=lambda path: path.stat().st_mtime)[-2:]
    if len(files) != 2:
        raise SystemExit(f"two runs are needed, found {len(files)}; `make benchmark` makes one")
    old, new = (load(path) for path in files)
    rows = verdicts(old, new)
    width = max((len(row["name"]) for row in rows), default=0)
    print(f"{files[0]} -> {files[1]}\n{'':{width}}  ratio [95 % interval]      p        median")
    for row in rows:
        ratio, name = row["ratio"], row["name"]
        median = format_time(sorted(new[name])[len(new[name]) // 2])
        interval = f"{ratio.value:5.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
        verdict = "" if row["verdict"] == "same" else f"  {row['verdict']}"
        print(f"{name:{width}}  {interval:24}{row['p']:8.1e}  {median:>9}{verdict}")
    for only, where in ((old.keys() - new.keys(), files[0]), (new.keys() - old.keys(), files[1])):
        print(*(f"{name:{width}}  only in {where}" for name in sorted(only)), sep="\n", end="\n" if only else "")
    slower = sum(row["verdict"] == "slower" for row in rows)
    print(f"{slower} of {len(rows)} slower, {sum(row['verdict'] == 'faster' for row in rows)} faster")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
