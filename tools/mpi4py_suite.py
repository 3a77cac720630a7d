"""Run mpi4py's own test suite on viakit, module by module, and compare it with the same run on Open MPI.

Examples::

    make mpi4py                                   3 ranks over via
    make mpi4py ARGS='-n 1,2,3,4 --protocol via,tcp'
    make mpi4py ARGS='-n 4 --hosts testbed:2'     hosts in network namespaces, over eth
    make mpi4py ARGS='--only test_msgspec,test_rma --show'
    make mpi4py ARGS='-n 3 --counts --floor 97'   without a run on Open MPI, as CI does

The suite is the source distribution of mpi4py, from PyPI, in build/mpi4py. Each run writes a JSON file there: the
outcome of every test, on all ranks. A test passes if it passes on every rank. Tests that hang or crash are left out
and the rest of their module is run again. A module that takes longer than four limits is ended, and the rest of it is
run again with the test that it was in. tools/mpi4py_left_out.txt lists the tests that are never run, with reasons.
tools/mpi4py_counts.json has the numbers of tests that pass on Open MPI, by module and number of ranks (--store).
Exit status: 0 if at least --floor percent of the tests that pass on Open MPI pass, and no test hangs or crashes. With
--budget the modules for which the time does not suffice are named, and do not count; at least half must have run.
"""

import argparse
import concurrent.futures
import fnmatch
import json
import math
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from pathlib import Path

VERSION = "4.1.2"
CHECKOUT = Path(__file__).resolve().parents[1]
BUILD = CHECKOUT / "build" / "mpi4py"
SUITE = BUILD / f"mpi4py-{VERSION}"
RANK = CHECKOUT / "tools" / "mpi4py_rank.py"
LEFT_OUT = CHECKOUT / "tools" / "mpi4py_left_out.txt"
COUNTS = CHECKOUT / "tools" / "mpi4py_counts.json"
VIAKIT = CHECKOUT / ".venv" / "bin" / "viakit"
CUT = 124  # status of a run that took longer than its module may
WAS_CUT = "the time of the module was over"
AGAIN = 5  # runs of one module at most, each without the tests at which the one before ended


def download() -> None:
    """Download the source distribution, and unpack it, unless that has been done."""
    if (SUITE / "test").is_dir():
        return
    BUILD.mkdir(parents=True, exist_ok=True)
    archive = BUILD / f"mpi4py-{VERSION}.tar.gz"
    if not archive.is_file():
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "-q",
            "--no-deps",
            "--no-binary",
            "mpi4py",
            "-d",
            str(BUILD),
        ]
        if subprocess.run([*command, f"mpi4py=={VERSION}"]).returncode:
            raise SystemExit(f"mpi4py {VERSION} could not be downloaded; put {archive.name} into {BUILD} and repeat")
    with tarfile.open(archive) as opened:
        # The names are checked here because Python 3.10 may lack tarfile's filters.
        wanted = [
            m for m in opened.getmembers() if m.isreg() and ".." not in m.name and m.name.startswith(SUITE.name + "/")
        ]
        opened.extractall(BUILD, members=wanted)


def left_out() -> dict[str, str]:
    """Return the patterns of the tests that are never run, with the reason for each."""
    lines = [line for line in LEFT_OUT.read_text().splitlines() if line.strip() and not line.startswith("#")]
    return {pattern: reason.strip() for pattern, reason in (line.split(None, 1) for line in lines)}


def modules(only: str) -> list[str]:
    """Return the names of the test modules, or those among them that the option --only names."""
    every = sorted(path.stem for path in (SUITE / "test").glob("test_*.py"))
    wanted = [name.strip() for name in only.split(",") if name.strip()]
    unknown = [name for name in wanted if not fnmatch.filter(every, name)]
    if unknown:
        raise SystemExit(f"the suite has no module {', '.join(unknown)}; it has {', '.join(every)}")
    return [m for m in every if not wanted or any(fnmatch.fnmatchcase(m, name) for name in wanted)]


class Setting:
    """Where the ranks of a run are and how they communicate."""

    def __init__(self, ranks: int, protocol: str, hosts: str, limit: float) -> None:
        self.ranks, self.protocol, self.hosts, self.limit = ranks, protocol, hosts, limit

    @property
    def name(self) -> str:
        """Name for tables and files."""
        where = "" if self.hosts == "local" else "-" + self.hosts.replace(":", "")
        return f"{self.protocol.replace('mpi:', '')}{where}-{self.ranks}"

    def command(self, module: str, log: Path) -> list[str]:
        """Return the command that runs one test module."""
        command = [str(VIAKIT), "run", "-n", str(self.ranks), "--protocol", self.protocol, "--hosts", self.hosts]
        # The switch also holds for the processes that tests spawn.
        command += [] if self.protocol.startswith("mpi") else ["--as-mpi4py"]
        return [*command, str(RANK), str(SUITE), module, str(log), str(self.limit)]


def run_once(setting: Setting, module: str, skip: list[str], folder: Path) -> tuple[int, str, float]:
    """Run one module; return the exit status, the end of its output, and the seconds."""
    environment = dict(os.environ, LEFT_OUT="\n".join(skip), PYTHONDONTWRITEBYTECODE="1")
    environment["PYTHONPATH"] = str(SUITE / "test")  # for the processes that tests spawn, as the next line is
    environment["PRTE_MCA_rmaps_default_mapping_policy"] = ":oversubscribe"
    began = time.monotonic()
    with (folder / "output").open("wb") as output:
        child = subprocess.Popen(
            setting.command(module, folder / "log"), stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=environment, cwd=folder, start_new_session=True,
        )  # fmt: skip
        try:
            status = child.wait(timeout=setting.limit * 4)
        except subprocess.TimeoutExpired:
            status = CUT
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    os.killpg(child.pid, signal.SIGKILL)
                    child.wait()
    text = (folder / "output").read_bytes()[-4000:].decode(errors="replace")
    return status, text, time.monotonic() - began


def read_logs(folder: Path, status: int, ranks: int) -> tuple[dict[str, dict], str]:
    """Merge the logs of the ranks. Return the tests, and the text of a failed import."""
    tests: dict[str, dict] = {}
    trouble = ""
    for path in sorted(folder.glob("log.*"), key=lambda p: int(p.suffix[1:])):
        rank, open_test, rest = int(path.suffix[1:]), "", []
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("run "):
                open_test, rest = line[4:], []
            elif line.startswith("end "):
                name, _, said = line[4:].partition(" {")
                _merge(tests, name, rank, **json.loads("{" + said))
                open_test = ""
            elif line.startswith("import "):
                trouble = trouble or json.loads(line[7:])["detail"]
            else:
                rest.append(line)
        if open_test:  # The rank ended in this test: by its own watchdog or crash, or because another rank had ended.
            text = "\n".join(rest)
            if "Timeout" in text:
                _merge(tests, open_test, rank, "hung", text)
            elif status == CUT and "Fatal Python error" not in text:
                _merge(tests, open_test, rank, "hung", f"{WAS_CUT}\n{text}")
            elif "Fatal Python error" in text or status not in (0, 1):
                _merge(tests, open_test, rank, "crashed", text or f"exit status {status}")
            else:
                _merge(tests, open_test, rank, "crashed", f"the job ended with status {status}")
    # The ranks are at different places when one of them ends: tests that were not run on all ranks are run again.
    unfinished = [n for n, test in tests.items() if test["ranks"] < ranks and test["outcome"] in ("passed", "skipped")]
    for name in unfinished:
        del tests[name]
    return tests, trouble


_ORDER = ("skipped", "passed", "failed", "error", "crashed", "hung")


def _merge(tests: dict[str, dict], name: str, rank: int, outcome: str, detail: str) -> None:
    before = tests.setdefault(name, {"outcome": "skipped", "rank": rank, "detail": detail, "ranks": 0})
    before["ranks"] += 1
    if {outcome, before["outcome"]} <= {"hung", "crashed"}:
        before["detail"] += f"\nrank {rank}, {outcome}:\n{detail}"
    if _ORDER.index(outcome) > _ORDER.index(before["outcome"]):
        both = before["detail"] if before["outcome"] in ("hung", "crashed") else detail
        before.update(outcome=outcome, rank=rank, detail="" if outcome == "passed" else both)


def _without_cut(found: dict[str, dict]) -> dict[str, dict]:
    """Return the tests of a run that was cut, without the ones to repeat.

    A test that was cut has not exceeded its own limit: the module was slow. It is repeated, unless no other test has
    ended in this run.
    """
    stop = ("Timeout", "Fatal Python error")
    cut = [n for n, test in found.items() if WAS_CUT in test["detail"] and not any(s in test["detail"] for s in stop)]
    return {name: test for name, test in found.items() if name not in cut} or found


def run_module(setting: Setting, module: str) -> dict:
    """Run one module until every test has an outcome; return them."""
    skip = list(left_out())
    done: dict[str, dict] = {}
    seconds, status, output, trouble = 0.0, 0, "", ""
    for again in reversed(range(AGAIN)):
        with tempfile.TemporaryDirectory(prefix="mpi4py-suite-") as folder:
            status, output, took = run_once(setting, module, skip, Path(folder))
            found, trouble = read_logs(Path(folder), status, setting.ranks)
        seconds += took
        ended_at = [name for name, test in found.items() if test["outcome"] in ("hung", "crashed")]
        if status == CUT and again:
            found = _without_cut(found)
        done.update(found)
        if trouble or not ended_at:
            break
        skip += found  # the rest is still to be run
    return {"status": status, "seconds": round(seconds, 1), "import": trouble, "output": output, "tests": done}


def run(setting: Setting, names: list[str], jobs: int, budget: float, quiet: bool = False) -> dict[str, dict]:
    """Run the modules, several at a time, and save the outcomes as they come; start none after *budget* seconds."""
    found = {}
    deadline = time.monotonic() + budget

    def run_in_time(name: str) -> dict | None:
        return run_module(setting, name) if time.monotonic() < deadline else None

    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        futures = {pool.submit(run_in_time, name): name for name in names}
        for future in concurrent.futures.as_completed(futures):
            name = futures[future]
            result = future.result()
            if result is None:
                continue
            found[name] = result
            save(BUILD / f"{setting.name}.json", setting, {name: found[name]})
            if not quiet and sys.stderr.isatty():
                print(f"\r{setting.name}: {len(found)}/{len(names)} {name:30}", end="", file=sys.stderr)
    if not quiet and sys.stderr.isatty():
        print("\r" + " " * 70 + "\r", end="", file=sys.stderr)
    return found


def save(path: Path, setting: Setting, found: dict[str, dict]) -> None:
    """Write a run to a JSON file; modules that were not run now keep their outcomes."""
    before = json.loads(path.read_text())["modules"] if path.is_file() else {}
    what = {"suite": f"mpi4py {VERSION}", "setting": vars(setting), "modules": {**before, **found}}
    path.write_text(json.dumps(what, indent=1, sort_keys=True))


class Peer:
    """The tests that pass on Open MPI: their names, or only their numbers by module."""

    def __init__(self, names: dict[str, set[str]] | None, counts: dict[str, int]) -> None:
        self.names, self.counts = names, counts

    def both(self, module: str, ours: set[str]) -> int:
        """Return how many tests pass on both. With numbers alone: as many as pass here, but no more than there."""
        return min(len(ours), self.counts[module]) if self.names is None else len(ours & self.names[module])


def stored(ranks: int, names: list[str]) -> Peer:
    """Return the numbers of tests that pass on Open MPI from the file in the repository."""
    saved = json.loads(COUNTS.read_text())
    if saved["suite"] != f"mpi4py {VERSION}" or str(ranks) not in saved["passed"]:
        raise SystemExit(f"{COUNTS} has no numbers of mpi4py {VERSION} on {ranks} ranks; repeat without --counts")
    return Peer(None, {name: saved["passed"][str(ranks)].get(name, 0) for name in names})


def measured(ranks: int, names: list[str], jobs: int, limit: float, again: bool) -> Peer:
    """Return the tests that pass on Open MPI, from the file of an earlier run where possible."""
    setting = Setting(ranks, "mpi:openmpi", "local", limit)
    path = BUILD / f"{setting.name}.json"
    cached = json.loads(path.read_text())["modules"] if path.is_file() and not again else {}
    missing = [name for name in names if name not in cached]
    if missing:
        cached.update(run(setting, missing, jobs, math.inf))
    found = {name: passed(cached[name]) for name in names}
    return Peer(found, {name: len(tests) for name, tests in found.items()})


def store(ranks: int, peer: Peer) -> None:
    """Write the numbers of tests that pass on Open MPI to the file in the repository."""
    saved = json.loads(COUNTS.read_text()) if COUNTS.is_file() else {}
    before = saved.get("passed", {}) if saved.get("suite") == f"mpi4py {VERSION}" else {}
    before[str(ranks)] = {**before.get(str(ranks), {}), **peer.counts}
    COUNTS.write_text(json.dumps({"suite": f"mpi4py {VERSION}", "passed": before}, indent=1, sort_keys=True) + "\n")


def passed(module: dict) -> set[str]:
    """Return the names of the tests that passed and are not left out."""
    patterns = list(left_out())
    return {
        name for name, test in module["tests"].items()
        if test["outcome"] == "passed" and not any(fnmatch.fnmatchcase(name, p) for p in patterns)
    }  # fmt: skip


def table(setting: Setting, ours: dict[str, dict], theirs: Peer) -> tuple[int, int, int]:
    """Print one line per module; return how many tests pass on both, on Open MPI, and how many hang or crash here."""
    kinds = {"passed": 8, "failed": 8, "error": 7, "skipped": 9, "hung": 6, "crashed": 9}  # outcome: width
    print(f"\nmpi4py {VERSION}, {setting.name}: tests that pass, of those that pass on Open MPI")
    heads = "".join(f"{kind:>{width}}" for kind, width in kinds.items())
    print(f"{'module':24}{'Open MPI':>9}{'both':>6}{'%':>6}{heads}{'s':>7}")
    total: Counter = Counter()
    for name, module in sorted(ours.items()):
        counts = Counter(test["outcome"] for test in module["tests"].values())
        counts.update(goal=theirs.counts[name], both=theirs.both(name, passed(module)))
        total.update(counts, seconds=module["seconds"])
        note = "  does not import" if module["import"] else ""
        _line(name, counts, kinds, module["seconds"], note)
    _line("total", total, kinds, total["seconds"], "")
    return total["both"], total["goal"], total["hung"] + total["crashed"]


def _line(name: str, counts: Counter, kinds: dict[str, int], seconds: float, note: str) -> None:
    share = f"{100 * counts['both'] / counts['goal']:.1f}" if counts["goal"] else "-"
    cells = "".join(f"{counts[kind]:>{width}}" for kind, width in kinds.items())
    print(f"{name:24}{counts['goal']:>9}{counts['both']:>6}{share:>6}{cells}{seconds:>7.0f}{note}")


def show_stopped(ours: dict[str, dict], most: int = 60) -> None:
    """Print the tests that hung or crashed, with what their ranks logged: the innermost calls of each thread first."""
    for module in ours.values():
        for name, test in sorted(module["tests"].items()):
            if test["outcome"] in ("hung", "crashed"):
                print(f"\n{name} {test['outcome']}, rank {test['rank']}:")
                print("\n".join(f"    {line}" for line in test["detail"].splitlines()[:most]))


def show(ours: dict[str, dict], theirs: Peer, long: bool) -> None:
    """Print the tests that pass on Open MPI and not here: the last line of each error, or all of it."""
    for name, module in sorted(ours.items()):
        if module["import"]:
            print(f"\n{name} does not import:\n{module['import']}")
            continue
        skipped = {test for test, found in module["tests"].items() if found["outcome"] == "skipped"}
        goal = theirs.names[name] if theirs.names is not None else set(module["tests"]) - skipped
        for test in sorted(goal - passed(module)):
            found = module["tests"].get(test, {"outcome": "not run", "rank": 0, "detail": module["output"]})
            lines = [line for line in found["detail"].splitlines() if line.strip(" ~^")]
            text = "\n    " + "\n    ".join(lines) if long else (lines[-1] if lines else "")
            print(f"{found['outcome']:8} {test} (rank {found['rank']}): {text}")


def main() -> int:
    """Run the suite as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--ranks", default="3", help="numbers of ranks, such as 1,2,3,4 (3)")
    parser.add_argument("--protocol", default="via", help="protocols, such as via,bip,tcp (via)")
    parser.add_argument("--hosts", default="local", help="local, or testbed:N (local)")
    parser.add_argument("--only", default="", metavar="MODULES", help="test modules, such as test_msgspec,test_cco_*")
    parser.add_argument("--jobs", type=int, default=2, help="modules that run at the same time (2)")
    parser.add_argument("--limit", type=float, default=60, metavar="S", help="seconds for one test (60)")
    parser.add_argument("--budget", type=float, default=math.inf, metavar="S", help="start no module later than this")
    parser.add_argument("--floor", type=float, default=0, metavar="PERCENT", help="share of tests that must pass (0)")
    parser.add_argument("--show", action="store_true", help="list the tests that pass on Open MPI only, with the error")
    parser.add_argument("--long", action="store_true", help="as --show, with tracebacks")
    parser.add_argument("--saved", action="store_true", help="do not run: print what the last run saved")
    parser.add_argument("--fresh", action="store_true", help="run on Open MPI again")
    parser.add_argument("--counts", action="store_true", help="compare with the numbers stored for Open MPI")
    parser.add_argument("--store", action="store_true", help="run on Open MPI only, and store its numbers")
    options = parser.parse_args()
    download()
    names = modules(options.only)
    good = True
    for protocol in options.protocol.split(","):
        for ranks in options.ranks.split(","):
            setting = Setting(int(ranks), protocol, options.hosts, options.limit)
            path = BUILD / f"{setting.name}.json"
            if options.counts:
                theirs = stored(setting.ranks, names)
            else:
                theirs = measured(setting.ranks, names, options.jobs, options.limit, options.fresh)
            if options.store:
                store(setting.ranks, theirs)
                continue
            if options.saved:
                saved = json.loads(path.read_text())["modules"]
                ours = {name: saved[name] for name in names if name in saved}
            else:
                ours = run(setting, names, options.jobs, options.budget)
            both, goal, stopped = table(setting, ours, theirs)
            print(f"every test: {path.relative_to(CHECKOUT)}")
            if late := [name for name in names if name not in ours]:
                print(f"not run: {len(late)} of {len(names)} modules: {', '.join(late)}")
            show_stopped(ours)
            if options.show or options.long:
                show(ours, theirs, options.long)
            good &= stopped == 0 and 100 * both >= options.floor * goal and 2 * len(ours) >= len(names)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
