"""The command `viakit`: its output, its errors, its exit statuses, and the files that it leaves."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import types
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner
from leftovers import marked
from rich.console import Console
from synthetic import SyntheticPair, SyntheticTestbed
from waiting import until

import viakit
from viakit import _core, cli
from viakit.bench import goals, judging
from viakit.launch.handshake import introduce
from viakit.measure import result, sides_msg
from viakit.measure.endpoints import MeasureError, protocols

VIAKIT = [sys.executable, "-m", "viakit"]


@pytest.fixture
def machine(monkeypatch):
    """Commands of this process measure a machine that never existed."""
    import viakit.measure.pair
    import viakit.testbed

    SyntheticPair.reset()
    SyntheticTestbed.refuse = None
    monkeypatch.setattr(viakit.measure.pair, "Pair", SyntheticPair)
    monkeypatch.setattr(viakit.testbed, "Testbed", SyntheticTestbed)
    yield SyntheticPair
    assert SyntheticPair.open_pairs == 0


def invoke(*arguments):
    return CliRunner().invoke(cli.cli, list(arguments), prog_name="viakit")


def say(done):
    """Everything that a command said, for the message of a failed assertion."""
    return f"status {done.exit_code}\n{done.output}\n{done.exception!r}"


# ---------------------------------------------------------------- what it does


def test_help_and_version_are_quick_and_load_nothing_heavy():
    heavy = ("numpy", "matplotlib", "plotly", "viakit._core")
    code = f"import sys, viakit.cli; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert invoke("--version").output.strip() == f"viakit, version {viakit.__version__}"
    for command in cli.cli.commands:
        done = invoke(command, "--help")
        assert done.exit_code == 0
        assert len(cli.cli.commands[command].help) > 20, command


def test_a_sweep_with_every_kind_of_file(machine, tmp_path):
    files = {name: str(tmp_path / name) for name in ("a.json", "a.csv", "a.png", "a.html")}
    done = invoke(
        *("sweep", "via-eth", "tcp", "--sizes", "1:64", "--seconds", "0.5", "--seed", "4"),
        *("--json", files["a.json"], "--csv", files["a.csv"], "--plot", files["a.png"], "--plot", files["a.html"]),
    )
    assert done.exit_code == 0, say(done)
    assert "One-way time, half the round trip" in done.output
    assert "polled" in done.output
    document = result.load(files["a.json"])
    assert document["seed"] == 4
    assert sorted(os.listdir(tmp_path)) == sorted(files)
    assert all(os.path.getsize(name) > 500 for name in files.values())


def test_json_on_standard_output_is_json_and_nothing_else(machine):
    done = invoke("sweep", "tcp", "--sizes", "64", "--seconds", "0.2", "--json", "-")
    assert done.exit_code == 0, say(done)
    result.validate(json.loads(done.stdout))


def test_live_points_come_as_lines(machine):
    done = invoke("sweep", "tcp", "udp", "--sizes", "8,64", "--seconds", "0.2", "--live")
    assert done.exit_code == 0, say(done)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(row["protocol"], row["nbytes"]) for row in rows} == {(p, n) for p in ("tcp", "udp") for n in (8, 64)}


def test_quiet_is_quiet(machine):
    done = invoke("sweep", "tcp", "--sizes", "64", "--seconds", "0.2", "--quiet")
    assert (done.exit_code, done.output) == (0, "")


def test_every_option_reaches_the_pairs(machine, tmp_path):
    out = str(tmp_path / "a.json")
    done = invoke(
        *("sweep", "via-eth", "--hosts", "testbed", "--mtu", "9000", "--rate", "1gbit", "--form", "plain"),
        *("--reliability", "reception", "--wait", "block", "--level", "python", "--sizes", "64", "--seconds", "0.2"),
        *("--validate", "--perturb", "0", "--json", out),
    )
    assert done.exit_code == 0, say(done)
    document = result.load(out)
    assert document["validated"]
    series = document["series"][0]
    assert (series["mtu"], series["wait"], series["level"], series["hosts"]) == (9000, "block", "python", "testbed")
    assert series["info"]["options"] == {"form": "plain", "reliability": "reception"}


def test_compare_says_what_became_slower_by_its_status(machine, tmp_path):
    before, after = str(tmp_path / "before.json"), str(tmp_path / "after.json")
    invoke("sweep", "via-eth", "--sizes", "64", "--seconds", "0.3", "--json", before)
    document = json.loads(Path(before).read_text())
    point = document["series"][0]["points"][0]
    point["bursts_s"] = [1e-6 * (1 + i % 3 / 100) for i in range(40)]
    Path(before).write_text(json.dumps(document))
    for factor, status, words in ((1.5, 3, "slower"), (0.5, 0, "faster"), (1.0, 0, "no evidence of change")):
        point["bursts_s"] = [factor * 1e-6 * (1 + i % 3 / 100) for i in range(40)]
        Path(after).write_text(json.dumps(document))
        done = invoke("compare", before, after)
        assert done.exit_code == status, say(done)
        assert words in done.output
    point["bursts_s"] = [1e-6, 2e-6]
    Path(after).write_text(json.dumps(document))
    done = invoke("compare", before, after, "--quiet")
    assert done.exit_code == 4, say(done)
    assert "too few bursts" in done.output
    assert invoke("compare", before, str(tmp_path / "none.json")).exit_code == 1


def test_show_and_plot(machine, tmp_path, monkeypatch):
    out = str(tmp_path / "a.json")
    invoke("sweep", "via-eth", "tcp", "--sizes", "64,4K", "--seconds", "0.3", "--json", out)
    shown = invoke("show", out, "--against", "tcp")
    assert shown.exit_code == 0, say(shown)
    assert "4 KiB" in shown.output
    drawn = invoke("plot", out)
    assert drawn.exit_code == 0, say(drawn)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    (tmp_path / "a.png").write_text("precious")
    refused = invoke("plot", out)
    assert refused.exit_code == 2, say(refused)
    assert "a.png exists" in say(refused)
    assert "--force" in say(refused)
    assert (tmp_path / "a.png").read_text() == "precious"
    assert invoke("plot", out, "--force").exit_code == 0
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    drawn = invoke("plot", out, out, "-o", str(tmp_path / "b.svg"), "--graph", "time", "--linear", "--title", "two")
    assert drawn.exit_code == 0, say(drawn)
    assert b"<svg" in (tmp_path / "b.svg").read_bytes()


def _group(name, operation, folder):
    """A result of ranks, as `viakit barrier` and `viakit collectives` write it."""
    times = dict.fromkeys(("median", "p5", "p50", "p90", "p99", "p999", "min", "max"), 1e-6) | {"ci95": [1e-6, 1e-6]}
    series = {
        "protocol": "via", "operation": operation, "algorithm": "flat", "ranks": 2, "hosts": 1, "link": "shm",
        "level": "c", "skew_s": 0.0, "info": {},
        "points": [{"nbytes": 0 if operation == "barrier" else 8, "time_s": times, "samples": 1}],
    }  # fmt: skip
    machine = dict.fromkeys(("viakit", "date", "cpu", "kernel", "python"), "") | dict.fromkeys(
        ("cores", "seed", "governor", "virtualisation")
    )
    document = {"schema": result.SCHEMA, "command": "", "environment": machine, "series": [series]}
    result.save(document, folder / f"{name}.json")
    return str(folder / f"{name}.json")


def test_results_of_several_kinds_are_not_drawn_into_one_picture(machine, tmp_path):
    sweep, out = str(tmp_path / "a.json"), tmp_path / "both.png"
    invoke("sweep", "tcp", "--sizes", "64", "--seconds", "0.2", "--json", sweep)
    barrier, bcast = _group("b", "barrier", tmp_path), _group("c", "bcast", tmp_path)
    for files, words in (
        ([bcast, sweep], ("c.json holds collectives", "a.json holds transfers")),
        ([sweep, barrier], ("a.json holds transfers", "b.json holds barriers")),
        ([barrier, bcast], ("b.json holds barriers", "c.json holds collectives")),
    ):
        done = invoke("plot", *files, "-o", str(out))
        assert done.exit_code == 1, say(done)
        assert all(word in done.output for word in words)
        assert not out.exists()
    for file in (barrier, bcast):
        assert invoke("plot", file, file, "-o", str(out), "--graph", "time", "--force").exit_code == 0


@pytest.mark.parametrize("operation", ["barrier", "bcast"])
@pytest.mark.parametrize(
    "words", [["show", "--against", "tcp"], ["plot", "--linear"], ["plot", "--graph", "throughput"]]
)
def test_options_of_sweeps_are_refused_for_other_kinds(tmp_path, operation, words):
    done = invoke(words[0], _group("b", operation, tmp_path), *words[1:])
    assert done.exit_code == 2, say(done)
    assert f"{words[1]}" in done.output
    assert "applies to sweeps only" in done.output


def test_a_title_is_plain_text(machine, tmp_path):
    sweep = str(tmp_path / "a$_^{$.json")
    invoke("sweep", "tcp", "--sizes", "64", "--seconds", "0.2", "--json", sweep)
    for files in ([sweep, sweep], [_group("b", "barrier", tmp_path)], [_group("c", "bcast", tmp_path)]):
        done = invoke("plot", *files, "-o", str(tmp_path / "x.svg"), "--force", "--title", "from 5 $_^{ to 10 $")
        assert done.exit_code == 0, say(done)


def test_protocols_are_listed():
    assert all(name in invoke("protocols").output for name in protocols())
    rows = json.loads(invoke("protocols", "--json").output)
    assert {row["name"] for row in rows} == set(protocols())


def test_doctor(machine):
    done = invoke("doctor", "--json")
    assert done.exit_code == 0, say(done)
    assert json.loads(done.stdout)


def test_goals_are_printed_as_they_are(capsys):
    """A goal's text may have square brackets, and a job that ran once has a value without an interval."""
    once = judging.Goal("start [of a job]", 30.0, unit="s", value=12.5, detail="88 s [of both]", conditions="n [256]")
    often = judging.Goal("Send of [array, datatype]", 0.5, value=0.25, interval=(0.125, 0.375), detail="1 against 4")
    goals.render(judging.Judged([once, often, judging.Goal("c", 1.0, reason="no [MPI]")], None), Console(width=200))
    rows = capsys.readouterr().out.splitlines()
    texts = ("start [of a job]", "[array, datatype]", "n [256]", "no [MPI]")
    first, second, *_ = (next(row for row in rows if words in row) for words in texts)
    assert re.search(r"12\.5 s +holds +88 s \[of both\]", first)
    assert re.search(r"0\.25 \[0\.12, 0\.38\] +holds +1 against 4", second)


def test_bench_judges_only_what_it_measured(machine, tmp_path, monkeypatch):
    monkeypatch.setattr("viakit.bench.goals.BARRIERS", ())  # barriers need real ranks: test_barrier.py
    monkeypatch.setattr("viakit.bench.goals.OTHERS", ())
    machine.missing = {"mpi:mpich": MeasureError("MPICH is not there")}
    out = tmp_path / "goals.json"
    done = invoke("bench", "--seconds", "3", "--no-apps", "--json", str(out))
    assert done.exit_code == 0, say(done)
    judged = {goal["what"]: goal for goal in json.loads(out.read_text())["goals"]}
    result.validate(json.loads(out.read_text())["result"])
    latency = judged["VIA on eth / TCP, 64 B, one-way time, polled, MTU 1500"]
    assert latency["status"] == "holds"
    assert latency["ci95"][0] <= latency["value"] <= latency["ci95"][1] < 0.4
    stream = judged["VIA on eth / the better of tuned and default TCP, stream of 4 MiB, bandwidth, polled, MTU 1500"]
    assert re.search(r"against (\S+ GB/s) \(tuned \1, socket buffers 256 KiB; default 1\.\d+ GB/s\)$", stream["detail"])
    for series in json.loads(out.read_text())["result"]["series"]:
        assert series["buffers"] == ("same" if series["level"] == "python" else "touched")
        assert series["memory"] in ("user", "viakit")
    against_mpi = [goal for what, goal in judged.items() if "better MPI" in what]
    assert len(against_mpi) == 3
    for goal in against_mpi:
        assert goal["status"] == "not measured", "half the comparison is no comparison"
        assert "MPICH is not there" in goal["reason"]
    assert "not measured" in done.output
    tails = judged["VIA on eth / TCP, 64 B, 99th percentile over median of the one-way time, polled, MTU 1500"]
    assert tails["ci95"][0] <= tails["value"] <= tails["ci95"][1]
    assert tails["value"] == pytest.approx(1.0, rel=0.1)  # the synthetic machine's tails are alike
    assert re.search(r"of all samples; \S+ against \S+ in the median burst, ratio \d", tails["detail"])
    assert tails["conditions"] == "half the round trip, polled, C, ordinary memory, buffers touched"
    from_python = [goal for what, goal in judged.items() if what.startswith("Python: ")]
    assert len(from_python) == 9
    assert sum("Put and Flush" in goal["what"] and goal["status"] == "holds" for goal in from_python) == 1
    for goal in from_python:
        assert "MPICH is not there" in (goal["reason"] or "") or "Put and Flush" in goal["what"], goal
        assert "polled, Python, ordinary memory, buffers untouched" in goal["conditions"]
        assert goal["what"].endswith(", buffers untouched")
    added, kept = (goal for what, goal in judged.items() if "messages over VIA" in what)
    assert added["unit"] == "s"
    assert kept["unit"] == "ratio"
    lossy = [goal for what, goal in judged.items() if "1 % loss / none" in what]
    assert len(lossy) == 2
    for goal in (added, kept, *lossy):
        assert goal["status"] != "not measured", goal["reason"]
        assert goal["ci95"][0] <= goal["value"] <= goal["ci95"][1]
    assert all("; go-back-N " in goal["detail"] for goal in lossy)


def test_bandwidth_under_loss_is_judged_within_one_run(machine):
    """A machine of two states, another one in each run: what is compared across runs differs by a factor of 3."""
    testbeds = []

    class Moody(SyntheticTestbed):
        def __enter__(self):
            testbeds.append(self)
            return super().__enter__()

    class Pair(SyntheticPair):
        def run(self, *args, **kw):
            done = super().run(*args, **kw)
            done.one_way_s *= 3 ** (len(testbeds) % 2)
            return done

    judged = goals.run(seconds=3.0, seed=5, pair_class=Pair, testbed_class=Moody)
    lossy = [goal for goal in judged.goals if "1 % loss / none" in goal.what]
    assert [goal.value for goal in lossy] == pytest.approx([1.0, 1.0], rel=0.2), lossy


@pytest.mark.parametrize(
    ("lines", "said"), [("100\n102\n101", ""), ("many", "could not convert"), (None, "No such file")]
)
def test_what_taps_cost_is_judged_from_two_programs(tmp_path, lines, said):
    goal = goals.Goal("taps", 1.03)
    judging.taps(goal, judging.Found())
    assert "make bench" in goal.reason
    goal.reason = ""
    for name, text in zip(judging.PATH_COST, ("101\n101\n101", lines), strict=True):
        if text is not None:
            (tmp_path / name).write_text(f"#!/bin/sh\necho '{text}'\n")
            (tmp_path / name).chmod(0o755)
    judging.taps(goal, judging.Found(value=tmp_path), rounds=3, turns=2)
    assert said in goal.reason
    assert (goal.value == pytest.approx(1.01)) if not said else goal.value is None


@pytest.mark.parametrize("way", ["selective", "go_back_n"])
def test_sweep_under_faults_repeats_what_was_lost(tmp_path, way):
    out = tmp_path / "a.json"
    arguments = ["--mode", "stream", "--sizes", "64K", "--perturb", "0", "--seconds", "1", "--json", str(out)]
    done = invoke("sweep", "via-shm", *arguments, "--fault", "loss=2%,seed=7", "--retransmission", way)
    assert done.exit_code == 0, say(done)
    (series,) = json.loads(out.read_text())["series"]
    assert series["info"]["options"] == {"fault": "loss=2%,seed=7", "retransmission": way}
    counters = series["points"][0]["counters"]
    assert counters["fault_dropped"] > 0
    assert counters["frames_retransmitted"] > 0
    assert (counters["frames_kept_out_of_order"] > 0) is (way == "selective")
    assert "frames were lost and retransmitted" in done.output


def test_sweep_says_what_is_measured_under_faults_and_what_without(tmp_path):
    out = tmp_path / "a.json"
    arguments = ["--sizes", "8", "--perturb", "0", "--seconds", "1", "--json", str(out), "--fault", "dup=2%"]
    done = invoke("sweep", "msg-via", "tcp", "bip-shm", *arguments)
    assert done.exit_code == 0, say(done)
    assert "Faults (dup=2%) in what is sent by msg-via, bip-shm. Without: tcp." in done.output
    asked = {one["protocol"]: one["info"].get("options", {}) for one in json.loads(out.read_text())["series"]}
    assert asked == {"msg-via": {"fault": "dup=2%"}, "tcp": {}, "bip-shm": {"fault": "dup=2%"}}


@pytest.mark.parametrize("before", [None, "loss=1%"])
def test_the_nics_of_messages_are_spoilt(monkeypatch, before):
    def msg(*arguments, **options):
        seen.append(os.environ.get("VIAKIT_FAULT"))

    seen: list[str | None] = []
    monkeypatch.delenv("VIAKIT_FAULT", raising=False)
    if before:
        monkeypatch.setenv("VIAKIT_FAULT", before)
    fake = types.SimpleNamespace(BenchEndpoint=types.SimpleNamespace(msg=msg), links=_core.links)
    monkeypatch.setattr(sides_msg.MsgSide, "core_module", fake)
    request = {"protocol": "msg-via", "side": 1, "level": "c", "wait": "poll", "secret": "01" * 32, "core": None}
    request |= {"address": "127.0.0.1", "interface": "lo", "options": {"fault": "dup=2%,seed=7"}}
    side = sides_msg.MsgSide(request)
    with socket.create_connection(side.open()["address"]) as peer:
        deadline = time.monotonic() + 30.0
        with ThreadPoolExecutor(1) as pool:
            proof = pool.submit(introduce, peer, b"\1" * 32, 0, 2, deadline)
            side.connect({}, deadline)
            proof.result()
    assert seen == ["dup=0.02,seed=8"]  # of side B
    assert os.environ.get("VIAKIT_FAULT") == before


# ---------------------------------------------------------------- how it fails


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["sweep"], 2, "PROTOCOL"),
        (["sweep", "tpc"], 2, "did you mean tcp"),
        (["sweep", "tcp", "tcp"], 2, "twice"),
        (["sweep", "tcp", "--sizes", "4M:1"], 2, "descends"),
        (["sweep", "tcp", "--sizes", "-5"], 2, "negative"),
        (["sweep", "tcp", "--sizes", "big"], 2, "not a message size"),
        (["sweep", "tcp", "--sizes", "0"], 2, "smallest is 1"),
        (["sweep", "via-shm", "--sizes", "128M"], 2, "largest is 67108864"),
        (["sweep", "tcp", "--perturb", "-1"], 2, "perturbation"),
        (["sweep", "tcp", "--seconds", "0"], 2, "--seconds"),
        (["sweep", "tcp", "--sockbuf", "x"], 2, "--sockbuf"),
        (["sweep", "tcp", "--hosts", "local", "--mtu", "9000"], 2, "--hosts testbed"),
        (["sweep", "tcp", "--against", "udp"], 2, "--against"),
        (["sweep", "tcp", "--fault", "loss=1%"], 2, "name at least one"),
        (["sweep", "msg-tcp", "--fault", "loss=1%"], 2, "msg-via and msg-bip"),
        (["sweep", "via-eth", "--fault", "lost=1%"], 2, "--fault"),
        (["sweep", "via-eth", "--fault", "loss=1%", "--reliability", "unreliable"], 2, "waited for in vain"),
        (["sweep", "via-eth", "--retransmission", "twice"], 2, "go_back_n"),
        (["sweep", "mpi", "--wait", "block"], 2, "only with poll"),
        (["sweep", "udp", "--level", "python"], 2, "only at c"),
        (["sweep", "tcp", "--plot", "a.jpeg"], 1, ".png"),
        (["sweep", "tcp", "--json", "/nowhere/a.json"], 1, "mkdir -p /nowhere"),
        (["show", "/nowhere/a.json"], 1, "No such file"),
        (["plot", "/nowhere/a.json", "-o", "x.png"], 1, "No such file"),
        (["demo", "--seconds", "-1"], 2, "--seconds"),
        (["demo", "--out", "/dev/null/x"], 1, "--out"),
        (["bench", "--seconds", "0"], 2, "--seconds"),
        (["swep"], 2, "swep"),
        (["calibrate", "wire"], 2, "cannot be calibrated"),
        (["calibrate", "shm", "--seconds", "-1"], 2, "--seconds"),
        (["calibrate", "shm", "--seconds", "nan"], 2, "--seconds"),
        (["calibrate", "tcp", "--what", "bip"], 2, "shm, eth or udp"),
        (["calibrate", "shm", "--what", "messages", "--plot", "a.png"], 2, "shm, eth or udp"),
        (["calibrate", "shm", "--plot", "/nowhere/a.png"], 1, "mkdir -p /nowhere"),
        (["calibrate", "shm", "--plot", "a.jpeg"], 1, "end the name with one of .png, .svg, .pdf\n"),
        (["calibrate", "shm", "--rate", "foo"], 2, "rate is 'foo'"),
    ],
)
def test_mistakes_are_told_in_one_message_and_start_nothing(machine, arguments, status, words):
    done = invoke(*arguments)
    assert done.exit_code == status, say(done)
    assert words in done.output
    assert "Traceback" not in done.output
    assert machine.runs == 0


def test_what_cannot_start_is_an_error(machine):
    machine.missing = {"mpi": MeasureError("mpi: no MPI library. Remedy: pip install 'viakit[mpich]'")}
    done = invoke("sweep", "via-shm", "mpi", "--sizes", "8")
    assert done.exit_code == 1
    assert "pip install" in done.output
    assert machine.runs == 0


def test_a_fault_of_our_own_shows_no_traceback_unless_asked(machine, monkeypatch):
    machine.missing = {"tcp": KeyError("oops")}
    done = invoke("sweep", "tcp", "--sizes", "8")
    assert done.exit_code == 1
    assert "internal error" in done.output
    assert "VIAKIT_DEBUG=1" in done.output
    monkeypatch.setenv("VIAKIT_DEBUG", "1")
    assert isinstance(invoke("sweep", "tcp", "--sizes", "8").exception, KeyError)


def test_a_peer_that_goes_away_ends_with_1_and_keeps_the_points(machine, tmp_path):
    out = str(tmp_path / "a.json")
    machine.fail_after = {"tcp": (9, MeasureError("tcp: the peer went away; run it again"))}
    done = invoke("sweep", "tcp", "--sizes", "64", "--json", out)
    assert done.exit_code == 1, say(done)
    assert "went away" in done.output
    document = result.load(out)
    assert not document["complete"]
    assert document["series"][0]["points"]


def test_ctrl_c_ends_with_130_and_keeps_the_points(machine, tmp_path):
    out = str(tmp_path / "a.json")
    machine.interrupt_after = 30
    done = invoke("sweep", "tcp", "udp", "--sizes", "1,64", "--seconds", "60", "--json", out)
    assert done.exit_code == 130, say(done)
    assert not result.load(out)["complete"]


def test_ctrl_c_before_anything_was_measured(machine):
    machine.missing = {"tcp": KeyboardInterrupt()}
    done = invoke("sweep", "tcp", "--sizes", "64")
    assert done.exit_code == 130, say(done)
    assert "interrupted" in done.output


@pytest.mark.parametrize("option", ["--json", "--csv"])
def test_a_full_disk_says_so_and_the_result_is_kept_elsewhere(machine, tmp_path, monkeypatch, option):
    monkeypatch.chdir(tmp_path)
    done = invoke("sweep", "tcp", "--sizes", "64", "--seconds", "0.2", option, "/dev/full")
    assert done.exit_code == 1, say(done)
    assert "/dev/full: no room" in done.output
    (kept,) = tmp_path.iterdir()
    assert kept.name in done.output
    assert result.load(kept)["complete"]


# ---------------------------------------------------------------- real processes


class Started:
    """A `viakit` of its own, in a session of its own, whose descendants can be distinguished from all others."""

    def __init__(self, *arguments, cwd):
        self.mark = f"VIAKIT_TEST_MARK={uuid.uuid4().hex}".encode()
        name, _, value = self.mark.decode().partition("=")
        self.process = subprocess.Popen(
            [*VIAKIT, *arguments],
            cwd=cwd,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def signal(self, number, group):
        (os.killpg if group else os.kill)(self.process.pid, number)

    def end(self):
        """Its status and what it wrote, when it has ended and nothing is left of it."""
        out, err = self.process.communicate(timeout=200)
        until(lambda: not marked(self.mark), "all that it started has gone")
        return self.process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("group", [True, False], ids=["terminal", "process"])
def test_a_real_sweep_that_is_interrupted_leaves_its_points_and_nothing_else(tmp_path, number, group):
    started = Started(
        "sweep", "unix", "tcp", "--sizes", "8,64", "--seconds", "300", "--live", "--json", "a.json", cwd=tmp_path
    )
    line = started.process.stdout.readline()
    assert json.loads(line)["protocol"] in ("unix", "tcp")
    started.signal(number, group)
    status, _, err = started.end()
    assert "Traceback" not in err
    document = result.load(tmp_path / "a.json")
    # Two points may be tight, and the sweep over, before the signal arrives.
    assert (status, document["complete"]) in ((130, False), (0, True)), err
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_worker_that_is_killed_is_an_error_and_not_a_hang(tmp_path):
    started = Started("sweep", "tcp", "--sizes", "1:4M", "--seconds", "300", "--live", "--json", "a.json", cwd=tmp_path)
    started.process.stdout.readline()
    workers = [pid for pid in marked(started.mark) if pid != started.process.pid]
    assert workers
    os.kill(workers[-1], signal.SIGKILL)
    status, _, err = started.end()
    assert status == 1, err
    assert "Traceback" not in err
    assert not result.load(tmp_path / "a.json")["complete"]


def test_kill_9_takes_the_workers_along(tmp_path):
    started = Started("sweep", "tcp", "unix", "--sizes", "1:4M", "--seconds", "300", "--live", cwd=tmp_path)
    started.process.stdout.readline()
    assert len(marked(started.mark)) >= 5
    started.process.kill()
    started.end()


@pytest.mark.parametrize(
    "words",
    [
        "sweep unix --sizes 8 --seconds 0.1 --csv b.csv",
        "barrier --ranks 2 --algorithms flat --no-mpi --seconds 0.1 --plot a.svg",
        "speedup ep --quick --rounds 1 --ranks 1 --protocols via",
    ],
)
def test_files_are_written_though_the_table_is_not_read(tmp_path, words):
    mine, theirs = os.pipe()
    os.close(mine)  # as of `| head` that has seen enough
    with open(theirs, "wb") as closed:
        done = subprocess.run(
            [*VIAKIT, *words.split(), "--json", "a.json"],
            stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Broken" not in done.stderr
    assert result.load(tmp_path / "a.json")["complete"]
    for name in ("b.csv", "a.svg"):
        assert (tmp_path / name).exists() == (name in words)


def test_a_table_that_cannot_be_printed_for_another_reason_is_told_after_the_files(tmp_path):
    words = ["barrier", "--ranks", "2", "--algorithms", "flat", "--no-mpi", "--seconds", "0.1", "--json", "a.json"]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*VIAKIT, *words], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, cwd=tmp_path
        )
    assert done.returncode == 1, done.stderr
    assert "No space left" in done.stderr
    assert result.load(tmp_path / "a.json")["complete"]


@pytest.mark.parametrize(("encoding", "unit", "plus_minus"), [("ascii", "us", "+-"), ("utf-8", "µs", "±")])
def test_a_table_is_printed_in_the_encoding_of_the_output(machine, tmp_path, encoding, unit, plus_minus):
    done = invoke("sweep", "via-eth", "tcp", "--sizes", "64", "--seconds", "0.3", "--json", str(tmp_path / "a.json"))
    assert done.exit_code == 0, say(done)
    environment = {**os.environ, "PYTHONIOENCODING": encoding}
    words = [*VIAKIT, "show", "a.json"]
    done = subprocess.run(words, capture_output=True, timeout=60, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    table = done.stdout.decode(encoding)
    assert f" {unit} " in table
    assert plus_minus in table


def test_as_a_real_process_it_ends_with_2_for_nonsense(tmp_path):
    done = subprocess.run(
        [*VIAKIT, "sweep", "tcp", "--sizes", "9:1"], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1, "one message, one line"


def test_no_help_shows_a_mark_for_the_formatter():
    for name in cli.cli.commands:
        assert "\\b" not in invoke(name, "--help").output, name
