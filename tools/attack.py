#!/usr/bin/env python3
"""Attack viakit with hostile neighbours, and print a table of what was tried and held.

    make attack SECONDS=300                        minutes; 7200 for hours
    make attack ARGS='--only shm,handles --seed 7'
    make attack ARGS='--markdown docs/security.md' writes the table between the page's markers

Every attack has a victim that checks each byte of its messages, or is a test that does so. An attack is tried again and
again, in turns with the others, each time with another seed, until the time is over. Three lines of a failure are
printed; its output is in build/attack. Attacks that this machine cannot make are named with the reason. Exit status: 0
if everything held, 1 if something broke.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ATTACKERS = CHECKOUT / "tests" / "attack"
KEPT = CHECKOUT / "build" / "attack"
VENV = CHECKOUT / ".venv" / "bin"
NOBODY = 65534
SKIPPED = 77
VICTIM_S = 4.0  # how long a victim exchanges messages
LIMIT_S = 120.0  # then it hangs
BEGIN, END = "<!-- attack: begin -->", "<!-- attack: end -->"


@dataclass
class Outcome:
    """The result of one attack: the number of tries within it, and why it broke or was left out."""

    tries: int = 0
    broken: str = ""
    left_out: str = ""
    output: str = ""


@dataclass
class Attack:
    """An attack: its name, the links and launchers that it is made against, and the function that makes it."""

    name: str
    against: str
    what: str
    make: Callable[[int], Outcome]
    runs: int = 0
    tries: int = 0
    broken: list[int] = field(default_factory=list)  # seeds
    left_out: str = ""

    def row(self) -> list[str]:
        """Return the cells of the attack's line."""
        result = f"broken: seed {', '.join(map(str, self.broken))}" if self.broken else "held"
        if not self.tries and not self.broken:
            result = "not tried: the attacker found no target"
        if not self.runs:
            result = f"left out: {self.left_out}" if self.left_out else "not tried"
        return [self.name, self.against, self.what, str(self.runs), str(self.tries), result]


def ended(process: subprocess.Popen, limit_s: float) -> str | None:
    """Wait for a process in a session of its own. Returns its output, or None if it had to be killed."""
    try:
        return process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return None


def started(command: list[str], seed: int, folder: Path = CHECKOUT, **more: str) -> subprocess.Popen:
    """Start a command in a session of its own, with a seed, *more* environment, and one stream for all output."""
    environment = {**os.environ, "VIAKIT_TEST_SEED": str(seed), "VIAKIT_SEED": str(seed), **more}
    return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)  # fmt: skip


# ---------------------------------------------------------------- jobs with an attacker beside them


def crashed(status: int, output: str) -> bool:
    """Return whether a process of the job ended by a signal that only a fault sends."""
    faults = "SIGSEGV|SIGBUS|SIGABRT|SIGILL|SIGFPE|Segmentation fault|Bus error|signal (?:4|6|7|8|11)\\b"
    return -status in (4, 6, 7, 8, 11) or re.search(faults, output) is not None


def beside(attacker: list[str], *words: str, may_fail: bool = False) -> Callable[[int], Outcome]:
    """Return an attack: a job with an attacker, whose arguments PID and SEED are filled in.

    The job has to end in time, without a crash, and, unless it *may_fail*, without an error.
    """

    def make(seed: int) -> Outcome:
        with tempfile.TemporaryDirectory(prefix="viakit-attack-") as folder:
            mark = {"VIAKIT_ATTACK_MARK": f"{folder}/called"} if attacker[0] == "neighbour.py" else {}
            victim = [str(ATTACKERS / "oracle.py"), str(VICTIM_S), str(seed)]
            job = started([str(VENV / "viakit"), "run", *words, *victim], seed, **mark)
            filled = [{"PID": str(job.pid), "SEED": str(seed)}.get(word, word) for word in attacker]
            hostile = started([str(VENV / "python"), str(ATTACKERS / filled[0]), *filled[1:]], seed, **mark)
            output = ended(job, LIMIT_S)
            hostile.terminate()
        result = Outcome(output=f"{output}\n--- attacker\n{ended(hostile, 20)}")
        if found := re.search(r"^calls (\d+)", result.output, re.M):
            result.tries = int(found[1])
        else:
            result.broken = "the attacker failed"
        if output is None:
            result.broken = "the job hangs"
        elif crashed(job.returncode, output):
            result.broken = "a process of the job crashed"
        elif not may_fail and (job.returncode or not re.search(r"^(?:\[?0\S* )?messages \d+", output, re.M)):
            result.broken = f"the job failed with status {job.returncode}"
        return result

    return make


def wire_of_any_mtu(seed: int) -> Outcome:
    """Attack the frames of a job on hosts whose interfaces have an unusual MTU."""
    mtu = random.Random(seed).choice([576, 1280, 1492, 1500, 4000, 9000])
    return beside(["wire.py", "PID", "SEED"], "-n", "3", "--hosts", "testbed:2", "--mtu", str(mtu))(seed)


def limited(seed: int) -> Outcome:
    """Run a job whose ranks have few resources: it works, or ends with an error, and never crashes or hangs."""
    rng = random.Random(seed)
    limit = rng.choice(
        [
            f"nofile={rng.randrange(3, 40)}",
            f"as={rng.randrange(150, 900) << 20}",
            f"memlock={rng.choice([0, 4096, 65536])}",
            f"fsize={rng.choice([0, 4096, 1 << 20])}",
            f"nproc={rng.randrange(1, 20)}",
            f"stack={rng.randrange(64, 1024) << 10}",
        ]
    )
    words = ["-n", str(rng.randrange(1, 4)), "--protocol", rng.choice(["via", "bip", "tcp"])]
    program = [str(ATTACKERS / "oracle.py"), "0.5", str(seed), limit]
    job = started([str(VENV / "viakit"), "run", *words, *program], seed)
    output = ended(job, LIMIT_S)
    result = Outcome(1, output=f"{' '.join(words)} {limit}\n{output}")
    if output is None:
        result.broken = f"hangs with {limit}"
    elif crashed(job.returncode, output) or "WRONG" in output:
        result.broken = f"crashes with {limit}"
    elif job.returncode and not re.search(r"Error|error|cannot|could not|unable|refus", output):
        result.broken = f"ends with status {job.returncode} and without an error, with {limit}"
    return result


# ---------------------------------------------------------------- tests as attacks


def c_test(name: str, *cases: str, **environment: str) -> Callable[[int], Outcome]:
    """Return an attack that is a C test, by meson's name."""

    def make(seed: int) -> Outcome:
        listed = subprocess.run([str(VENV / "meson"), "introspect", "--tests", str(CHECKOUT / "build" / "ctest")],
                                capture_output=True, text=True)  # fmt: skip
        test = next((one for one in json.loads(listed.stdout or "[]") if one["name"] == name), None)
        if test is None:
            return Outcome(left_out="the C tests are not built: tools/ctest plain --list")
        process = started(["env", *(f"{k}={v}" for k, v in environment.items()), *test["cmd"], *cases], seed)
        output = ended(process, test["timeout"] * 2)
        if process.returncode == SKIPPED:
            return Outcome(left_out=(output or "").strip().splitlines()[-1])
        tries = len(re.findall(r"^ok ", output or "", re.M))
        if counted := re.search(r"^(\d+) (?:calls|inputs)", output or "", re.M):
            tries = int(counted[1])
        broken = "" if process.returncode == 0 else f"status {process.returncode}"
        return Outcome(max(tries, 1), broken, output=str(output))

    return make


def py_tests(file: str, words: str = "") -> Callable[[int], Outcome]:
    """Return an attack that is a file of Python tests, or those of its tests that *words* selects."""

    def make(seed: int) -> Outcome:
        command = [str(VENV / "pytest"), "-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"python/{file}"]
        process = started([*command, *(["-k", words] if words else [])], seed, CHECKOUT / "tests")
        output = ended(process, 600) or ""
        passed = re.search(r"(\d+) passed", output)
        if process.returncode == 0 and not passed:
            return Outcome(left_out=(re.search(r"(\d+ skipped.*)", output) or [output])[0])
        return Outcome(
            int(passed[1]) if passed else 0, "" if process.returncode == 0 else "tests failed", output=output
        )

    return make


def fuzzed(target: str) -> Callable[[int], Outcome]:
    """Return an attack that changes the inputs of a fuzz target's corpus at random."""

    def make(seed: int) -> Outcome:
        program = CHECKOUT / "build" / "ctest" / "tests" / "fuzz" / f"fuzz_{target}"
        if not program.exists():
            return Outcome(left_out="the fuzz targets are not built: tools/ctest plain --list")
        corpus = CHECKOUT / "tests" / "fuzz" / "corpus" / f"{target}.hex"
        process = started([str(program), "-r", str(seed), "-t", str(int(VICTIM_S)), str(corpus)], seed)
        output = ended(process, LIMIT_S)
        made = re.search(r"(\d+) inputs replayed, (\d+) made", output or "")
        return Outcome(int(made[1]) + int(made[2]) if made else 0, "" if process.returncode == 0 else "a finding",
                       output=str(output)[-4000:])  # fmt: skip

    return make


def attacks() -> list[Attack]:
    """Return all attacks that this machine can make. Another user needs root."""
    neighbour = ["neighbour.py", "PID", "SEED"]
    another = [*neighbour, str(NOBODY)]
    wide = ["-n", "3", "--hosts", "testbed:2"]
    user = "another user" if os.geteuid() == 0 else "the same user"
    caller = another if os.geteuid() == 0 else neighbour
    callers = f"silent, slow, garbled and vanishing callers of {user} on every socket"
    made = [
        Attack("callers shm", "shm, viakit run", callers, beside(caller, "-n", "3")),
        Attack("callers bip", "shm, viakit run", callers, beside(caller, "-n", "3", "--protocol", "bip")),
        Attack("callers tcp", "channel tcp, viakit run", callers, beside(caller, "-n", "3", "--protocol", "tcp")),
        Attack("callers hosts", "eth, viakit run on a testbed", callers, beside(caller, *wide)),
        Attack("callers tcp on hosts", "channel tcp, testbed", callers, beside(caller, *wide, "--protocol", "tcp")),
        Attack("wire eth", "eth, testbed", "frames repeated, damaged, cut, from other stations",
               beside(["wire.py", "PID", "SEED"], *wide)),
        Attack("wire MTU", "eth, testbed", "the same, with an MTU from 576 to 9000", wire_of_any_mtu),
        Attack("scribbler shm", "shm, viakit run", "random writes into all shared memory",
               beside(["scribble.py", "PID", "SEED"], "-n", "3", may_fail=True)),
        Attack("limits", "viakit run", "few files, little memory, few processes, small stacks", limited),
        Attack("handles", "C API", "random calls on closed, invented and foreign handles", c_test("test_chaos")),
        Attack("hostile peers shm", "shm", "invalid greetings, rings, doorbells; names of another user",
               py_tests("test_hostile.py")),
        Attack("hostile peers eth", "eth", "forged control frames, no grants, replays, floods",
               py_tests("test_hostile_eth.py")),
        Attack("forged eth", "eth", "forged acceptances, confirmations, lists", c_test("forged eth-plain")),
        Attack("takeover udp", "udp", "another user's NIC takes a rank's place", c_test("takeover")),
        Attack("secret", "channel tcp, via, bip", "processes outside the job, replays", c_test("secret of a job")),
        Attack("users shm", "shm", "users, and users of other namespaces", c_test("test_users")),
        Attack("offered memory", "shm", "memory that must not be mapped", c_test("offered memory")),
        Attack("stations udp", "udp", "noise, requests without cookies", py_tests("test_udp.py", "unknown or noise")),
        Attack("offload MTU", "eth", "interfaces with and without offload, of many MTUs", c_test("super eth-auto")),
        Attack("meeting point", "srun, tcp:, mpirun", "squatters, silent callers, replays, other users",
               py_tests("test_secret_meeting.py")),
        Attack("launchers", "srun, mpirun, viakit run", "foreign processes, secrets in sight",
               py_tests("test_secret.py")),
        Attack("measurements", "viakit sweep", "foreign sides", py_tests("test_secret_measuring.py")),
        Attack("objects", "eth, udp, tcp", "forged and changed pickles", py_tests("test_sealed_objects.py")),
        Attack("agents", "ssh", "peers that are no agents", py_tests("test_remote.py", "agent or malformed")),
        Attack("laboratory", "notebooks", "locks, workers and kernels that die",
               py_tests("test_lab.py", "lock or dies")),
    ]  # fmt: skip
    made += [
        Attack(f"fuzzed {target}", "parsers", "random changes of a corpus", fuzzed(target))
        for target in ("frames", "connect", "eth", "udp", "shm", "text")
    ]
    return made


# ---------------------------------------------------------------- the siege


def siege(chosen: list[Attack], seconds: float, seed: int) -> None:
    """Make all attacks in turns, in a random order, until the time is over."""
    rng, end = random.Random(seed), time.monotonic() + seconds
    KEPT.mkdir(parents=True, exist_ok=True)
    while True:
        for attack in rng.sample(chosen, len(chosen)):
            if time.monotonic() >= end:
                return
            if attack.left_out:
                continue
            number = rng.randrange(1, 2**31)
            outcome = attack.make(number)
            if outcome.left_out and not outcome.broken:
                attack.left_out = outcome.left_out
                continue
            attack.runs += 1
            attack.tries += outcome.tries
            if outcome.broken:
                attack.broken.append(number)
                kept = KEPT / f"{attack.name.replace(' ', '_')}-{number}.txt"
                kept.write_text(outcome.output, encoding="utf-8")
                print(f"BROKEN {attack.name}, seed {number}: {outcome.broken}; {kept}", flush=True)
                print("\n".join(outcome.output.strip().splitlines()[-3:]), flush=True)
        if all(attack.left_out for attack in chosen):
            return


HEAD = ["attack", "against", "what", "runs", "tries", "result"]


def markdown(rows: list[list[str]], seconds: float, seed: int) -> str:
    """Return the table for the documentation."""
    lines = [
        "| " + " | ".join(HEAD) + " |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
    return "\n".join([f"`make attack SECONDS={seconds:.0f} ARGS='--seed {seed}'`:", "", *lines])


def put(path: Path, text: str) -> None:
    """Write the table into a page, between its markers, or into a file of its own."""
    if path.exists() and BEGIN in (page := path.read_text(encoding="utf-8")):
        text = page[: page.index(BEGIN) + len(BEGIN)] + f"\n\n{text}\n\n" + page[page.index(END) :]
    else:
        text += "\n"
    path.write_text(text, encoding="utf-8")


def main(argv: list[str] | None = None) -> int:
    """Run the command. Returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300, help="begin no attack after this time (default: 300)")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1, 2**31), help="repeats a siege")
    parser.add_argument("--only", default="", help="attacks whose names contain one of these words, with commas")
    parser.add_argument("--again", type=int, help="make each chosen attack once, with this seed of a failure")
    parser.add_argument("--markdown", type=Path, help="write the table into this file")
    parser.add_argument("--list", action="store_true", help="print the attacks")
    options = parser.parse_args(argv)
    words = [word.strip() for word in options.only.split(",") if word.strip()]
    chosen = [one for one in attacks() if not words or any(word in one.name for word in words)]
    if not chosen:
        parser.error(f"no attack is called {options.only!r}; --list prints the names")
    if options.list:
        print("\n".join(f"{one.name:24}{one.against:34}{one.what}" for one in chosen))
        return 0
    print(f"{len(chosen)} attacks, {options.seconds:.0f} s, --seed {options.seed}", flush=True)
    if options.again is not None:
        for attack in chosen:
            outcome = attack.make(options.again)
            print(f"{attack.name}: {outcome.broken or outcome.left_out or 'held'}\n{outcome.output}")
            attack.broken += [options.again] * bool(outcome.broken)
        return any(attack.broken for attack in chosen)
    siege(chosen, options.seconds, options.seed)
    rows = [one.row() for one in chosen]
    for name, against, _, runs, tries, result in [HEAD, *rows]:
        print(f"{name:24}{against:30}{runs:>6}{tries:>12}  {result}")
    if options.markdown:
        put(options.markdown, markdown(rows, options.seconds, options.seed))
    return any(one.broken for one in chosen)


if __name__ == "__main__":
    sys.exit(main())
