#!/usr/bin/env python3
"""Run one test many times, beside load, and keep the seed, the output and the trace of each run that fails.

    tools/repeat.py 'faults eth-auto' late_alone --times 10000      a C test by its name in meson, and cases of it
    tools/repeat.py 'barriers eth' death-inside --jobs 8
    tools/repeat.py python/test_ranks.py::test_ctrl_c_stops_ranks_that_wait_for_a_message --times 100

`tools/ctest plain --list` prints the names of the C tests, which this command runs as they were built last. Each run
has a seed of its own, in VIAKIT_TEST_SEED and VIAKIT_SEED: --seed is the first one, and the others follow it. NICs of
C tests record their frames (VIAKIT_TAP); the capture of a run that passes is deleted. Failures are folders in
build/repeat. A run that takes a quarter of its time limit leaves the stacks of its threads there, if it fails.
Exit status: 0 if all runs passed, 1 if one failed, 2 if there is no such test.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
KEPT = CHECKOUT / "build" / "repeat"
SKIPPED = 77
TAP = "events,snap=96,limit=4194304"  # of each process: headers only, and at most 4 MiB


@dataclass
class Case:
    """A test that can be run: its command, its folder, and the seconds after which a run counts as hanging."""

    command: list[str]
    folder: Path
    timeout_s: float
    environment: dict[str, str] = field(default_factory=dict)
    in_c: bool = True


def of_meson(name: str, cases: list[str], build: Path) -> Case | None:
    """Return the C test of this name, or None if meson has no such test in *build*. *cases* replace meson's own."""
    meson = CHECKOUT / ".venv" / "bin" / "meson"
    listed = subprocess.run([str(meson), "introspect", "--tests", str(build)], capture_output=True, text=True)
    if listed.returncode:
        raise SystemExit(f"{build} is not configured: run `tools/ctest plain --list` first")
    for test in json.loads(listed.stdout):
        if test["name"] == name:
            program_and_link = test["cmd"][:2]
            return Case([*(program_and_link if cases else test["cmd"]), *cases], build, test["timeout"], test["env"])
    return None


def of_pytest(name: str) -> Case:
    """Return the Python test of this id, which is relative to tests/."""
    pytest = CHECKOUT / ".venv" / "bin" / "pytest"
    command = [str(pytest), "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", name]
    return Case(command, CHECKOUT / "tests", 600, in_c=False)


def burn() -> None:
    """Compute until the parent ends this process."""
    while True:
        sum(range(100000))


def stacks(session: int) -> str:
    """Return the state of each thread of a session's processes, and their stacks if gdb is installed."""
    found = []
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            state = (process / "stat").read_text().rpartition(")")[2].split()
            if int(state[3]) != session or state[0] == "Z":
                continue
            found.append(f"process {process.name}: {(process / 'cmdline').read_text().replace(chr(0), ' ')}")
            for thread in sorted((process / "task").iterdir()):
                about = [(thread / name).read_text().strip() for name in ("comm", "wchan", "syscall")]
                found.append(f"  thread {thread.name}: " + "  ".join(about))
            if gdb := shutil.which("gdb"):
                command = [gdb, "-batch", "-p", process.name, "-ex", "thread apply all backtrace"]
                found.append(subprocess.run(command, capture_output=True, text=True, timeout=60).stdout)
    return "\n".join(found) + "\n"


class Runs:
    """All runs of one test, and what they have come to."""

    def __init__(self, case: Case, seed: int, name: str, tap: bool) -> None:
        self.case, self.seed, self.tap = case, seed, tap and case.in_c
        self.kept = KEPT / re.sub(r"[^\w.-]+", "_", name)
        self.passed = self.failed = self.skipped = 0

    def one(self, number: int) -> int:
        """Run the test once. Returns its exit status, -1 if it did not end in time. A failure leaves a folder."""
        folder = self.kept / f"{self.seed + number}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        seed = str(self.seed + number)
        environment = {**os.environ, **self.case.environment, "VIAKIT_TEST_SEED": seed, "VIAKIT_SEED": seed}
        if self.case.in_c:  # as Meson does: tests that count leftovers of the machine leave out those of C tests
            environment["MESON_TEST_ITERATION"] = str(number + 1)
        if self.tap:
            environment["VIAKIT_TAP"] = f"{folder}/,{TAP}"
        with (folder / "output.txt").open("wb") as output:
            process = subprocess.Popen(
                self.case.command,
                cwd=self.case.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status = self.wait(process, folder)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        if status in (0, SKIPPED):
            shutil.rmtree(folder)
        else:
            command = " ".join(self.case.command)
            (folder / "command.txt").write_text(
                f"VIAKIT_TEST_SEED={seed} VIAKIT_SEED={seed} {command}\n# status {status}\n"
            )
        return status

    def wait(self, process: subprocess.Popen, folder: Path) -> int:
        """Return the exit status, or -1 at the time limit. After a quarter of that time record all stacks."""
        begin = time.monotonic()
        try:
            return process.wait(self.case.timeout_s / 4)
        except subprocess.TimeoutExpired:
            (folder / "stacks.txt").write_text(stacks(process.pid), encoding="utf-8")
        try:
            return process.wait(max(0.0, begin + self.case.timeout_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            return -1

    def count(self, status: int) -> None:
        """Count a run by its exit status."""
        self.passed += status == 0
        self.skipped += status == SKIPPED
        self.failed += status not in (0, SKIPPED)

    @property
    def total(self) -> int:
        """Runs that have ended."""
        return self.passed + self.failed + self.skipped

    def line(self) -> str:
        """Return the figures in one line."""
        return f"{self.total} runs, {self.passed} passed, {self.failed} failed, {self.skipped} skipped"

    def go(self, times: int, jobs: int, end: float) -> None:
        """Run the test *times* times, *jobs* at once, until the time *end*. Print a line every minute."""
        said = begin = time.monotonic()
        left, under_way = iter(range(times)), set()
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            while True:
                while len(under_way) < jobs and time.monotonic() < end and (number := next(left, None)) is not None:
                    under_way.add(pool.submit(self.one, number))
                if not under_way:
                    break
                done, under_way = concurrent.futures.wait(under_way, return_when=concurrent.futures.FIRST_COMPLETED)
                for future in done:
                    self.count(future.result())
                if time.monotonic() - said > 60:
                    said = time.monotonic()
                    print(f"{said - begin:7.0f} s: {self.line()}", flush=True)


def arguments(argv: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="a C test as meson names it, or a pytest id with ::")
    parser.add_argument("cases", nargs="*", help="cases of the C test; default: all")
    parser.add_argument("--times", type=int, default=1000, help="number of runs (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no run after this time")
    parser.add_argument("--load", type=int, default=0, help="processes that compute meanwhile (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, which are load for each other (default: 1)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31), help="first seed")
    parser.add_argument("--build", default="build/ctest", help="the build of the C tests (default: %(default)s)")
    parser.add_argument("--no-tap", action="store_true", help="do not record frames, which costs time")
    options = parser.parse_args(argv)
    if options.times < 1 or options.jobs < 1 or options.load < 0:
        parser.error("--times and --jobs are 1 or more, --load is 0 or more")
    return options


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    options = arguments(argv)
    case = (
        of_pytest(options.name)
        if "::" in options.name
        else of_meson(options.name, options.cases, CHECKOUT / options.build)
    )
    if case is None:
        print(f"no C test is called {options.name!r}; `tools/ctest plain --list` prints the names", file=sys.stderr)
        return 2
    name = " ".join([options.name, *options.cases])
    runs = Runs(case, options.seed, name, not options.no_tap)
    print(f"{name}: --seed {options.seed}, {options.jobs} at once, {options.load} processes of load", flush=True)
    load = [multiprocessing.Process(target=burn, daemon=True) for _ in range(options.load)]
    begin = time.monotonic()
    for process in load:
        process.start()
    try:
        runs.go(options.times, options.jobs, begin + options.seconds)
    finally:
        for process in load:
            process.kill()
            process.join()
    print(f"{name}: {runs.line()} in {time.monotonic() - begin:.0f} s")
    if runs.failed:
        print(f"output, seed and trace of each failure: {runs.kept}")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
