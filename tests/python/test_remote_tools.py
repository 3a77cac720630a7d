"""Instruments on machines that ssh reaches: captures of several machines on one clock, the goals on a wire,
and ranks of a notebook."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import needs
import pytest
import waiting
from click.testing import CliRunner
from rich.console import Console
from ssh_hosts import ssh_hosts
from test_trace import PLAYER

from viakit import cli, trace
from viakit.bench import application_goals, goals, judging
from viakit.measure import loss
from viakit.remote import Remote
from viakit.remote.mux import Kind, Mux
from viakit.trace.hosts import _align, _Machine
from viakit.trace.pcapng import ETHERNET, Capture, HostClock, Interface, Packet

VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 200.0  # a command that needs longer is stuck, also on a busy machine
pytestmark = pytest.mark.timeout(600)
PROGRAM = """
import viakit
comm = viakit.world()
for turn in range(20):
    comm.sendrecv(bytes(100), dest=1 - comm.rank, source=1 - comm.rank)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    with ssh_hosts(tmp_path_factory.mktemp("ssh"), 3) as testbed:
        yield testbed


def viakit(*words):
    return subprocess.run([VIAKIT, *map(str, words)], capture_output=True, text=True, timeout=LIMIT_S)


# ---- captures


OFFSET_NS = 7_000_000_123  # of the clock of the other machine


@pytest.fixture(scope="module")
def two_machines(tmp_path_factory):
    """A folder as a recording of two machines leaves it: the clock of one of two processes is set forward."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "player.py").write_text(PLAYER)
    taps = folder / "taps"
    taps.mkdir()
    command = [sys.executable, str(folder / "player.py"), "shm:machines", "20", "100", "0"]
    with trace.recording() as taken:
        subprocess.run(command, check=True, timeout=LIMIT_S)
        for file in taken.files:
            shutil.copy(file, taps)
    one = sorted(taps.iterdir())[1]
    its = taps / "beta-1"
    its.mkdir()
    set_forward = re.sub(
        rb"(?<=clock_offset_ns=)\d+", lambda found: b"%d" % (int(found[0]) - OFFSET_NS), one.read_bytes(), count=1
    )
    (its / one.name).write_bytes(set_forward)
    one.unlink()
    clock = {"host": "beta", "low_ns": OFFSET_NS - 10**9, "high_ns": OFFSET_NS + 10**9, "problem": ""}
    (its / "clock.json").write_text(json.dumps(clock))
    return taps


def test_frames_between_machines_give_the_offset_of_their_clocks(two_machines, tmp_path):
    capture = trace.read([two_machines])
    (clock,) = capture.clocks
    assert (clock.host, clock.source) == ("beta", "frames")
    assert abs(clock.offset_ns - OFFSET_NS) <= clock.error_ns < 10**9
    seen = trace.build(capture)
    assert {nic.host for nic in seen.nics} == {"", "beta"}
    assert len(seen.messages) == 40
    for message in seen.messages:
        way = [message.posted, message.doorbell, message.sent, message.arrived, message.placed]
        way += [message.recv_completed, message.recv_reaped]
        assert way == sorted(way)
    trace.merge(capture, tmp_path / "both.pcapng")
    again = trace.read([tmp_path / "both.pcapng"])
    assert [(one.time_ns, one.data) for one in again.packets] == [(one.time_ns, one.data) for one in capture.packets]
    assert {one.words.get("host", "") for one in again.interfaces} == {"", "beta"}
    assert {nic.process.rpartition(" ")[2] for nic in trace.build(again).nics if nic.host} == {"beta"}


def test_without_frames_here_the_first_machine_is_the_reference(two_machines, tmp_path):
    folder = tmp_path / "taps"
    shutil.copytree(two_machines, folder)
    first = folder / "alpha-1"
    first.mkdir()
    for file in folder.glob("*.pcapng"):
        file.rename(first / file.name)
    (first / "clock.json").write_text(json.dumps({"host": "alpha", "low_ns": -5000, "high_ns": 7000, "problem": ""}))
    capture = trace.read([folder])
    assert [(clock.host, clock.source) for clock in capture.clocks] == [("alpha", "reference"), ("beta", "frames")]
    assert abs(capture.clocks[1].offset_ns - (OFFSET_NS + capture.clocks[0].offset_ns)) <= capture.clocks[1].error_ns
    assert len(trace.build(capture).messages) == 40


def test_processes_of_two_machines_may_have_one_number(two_machines):
    capture = trace.read([two_machines])
    for one in capture.interfaces:
        one.words["pid"] = "77"
    seen = trace.build(capture)
    assert len(seen.nics) == 2
    events = trace.chrome.to_trace_events(seen)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert sorted(name.partition(" ")[2] for name in names.values()) == ["(77)", "(77) on beta"]
    assert len(trace.to_schedule(seen).ranks) == 2


def test_clocks_that_drift_and_captures_that_are_missing_are_reported(two_machines, tmp_path):
    folder = tmp_path / "taps"
    shutil.copytree(two_machines, folder)
    file = folder / "beta-1" / "clock.json"
    about = json.loads(file.read_text())
    file.write_text(json.dumps({**about, "low_ns": OFFSET_NS + 10**8, "high_ns": OFFSET_NS + 10**8}))
    (folder / "gamma-1").mkdir()
    (folder / "gamma-1" / "clock.json").write_text(
        json.dumps({"host": "gamma", "low_ns": 0, "high_ns": 1, "problem": "host gamma: lost the connection"})
    )
    merged = tmp_path / "t.pcapng"
    done = CliRunner().invoke(cli.cli, ["trace", "--from", str(folder), "--capture", str(merged)])
    assert done.exit_code == 0, done.output
    assert "beta: its clock drifted during the run" in done.output
    assert "gamma: captures are missing: host gamma: lost the connection" in done.output
    assert merged.stat().st_size


def test_trace_records_both_machines(hosts, tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    merged = tmp_path / "both.pcapng"
    done = viakit("trace", "--hosts", "ssh:h0,h1", "--capture", merged, tmp_path / "prog.py")
    assert done.returncode == 0, done.stderr
    assert "h0: its clock is the reference" in done.stderr
    assert re.search(r"h1: its clock is known to ± [\d.]+ µs, by frames in both directions", done.stderr)
    seen = trace.build(trace.read([merged]))
    assert {nic.host for nic in seen.nics} == {"h0", "h1"}
    assert {one.receiver.host for one in seen.messages if one.receiver} == {"h0", "h1"}
    assert all(one.sent <= one.arrived for one in seen.messages if one.sent and one.arrived)


# A line of machines: neighbours exchange messages, the machines at its ends do not.
LINE = """
import viakit
comm = viakit.world()
for turn in range(20):
    for other in {0: [2], 1: [2], 2: [0, 1]}[comm.rank]:
        comm.sendrecv(bytes(100), dest=other, source=other)
"""


def test_trace_records_three_machines(hosts, tmp_path):
    (tmp_path / "prog.py").write_text(LINE)
    merged = tmp_path / "all.pcapng"
    done = viakit("trace", "--hosts", "ssh:h0,h1,h2", "--capture", merged, tmp_path / "prog.py")
    assert done.returncode == 0, done.stderr
    assert "h0: its clock is the reference" in done.stderr
    for name in ("h1", "h2"):
        assert re.search(rf"{name}: its clock is known to ± [\d.]+ µs, by frames in both directions", done.stderr)
    seen = trace.build(trace.read([merged]))
    assert {nic.host for nic in seen.nics} == {"h0", "h1", "h2"}
    assert {one.receiver.host for one in seen.messages if one.receiver} == {"h0", "h1", "h2"}
    assert all(one.sent <= one.arrived for one in seen.messages if one.sent and one.arrived)
    assert len(trace.to_schedule(seen).ranks) == 3


def packet(time_ns, data, out):
    interface = Interface(ETHERNET, "", {}, 0, b"")
    return Packet(time_ns, interface, bytes(14) + data, 14 + len(data), out, "", 0, b"")


def test_a_machine_in_the_middle_gives_the_clock_of_one_without_frames_to_the_reference():
    """Frames take 1000 ns from alpha to gamma and from gamma to beta, and back. Beta precedes gamma in the list."""
    at = {"alpha": 0, "beta": 50_000_000, "gamma": -20_000_000}
    packets = {name: [] for name in at}
    frames = [("alpha", "gamma"), ("gamma", "alpha"), ("gamma", "beta"), ("beta", "gamma")]
    for i, (sender, receiver) in enumerate(frames):
        packets[sender].append(packet(10_000 * i + at[sender], bytes([i]), True))
        packets[receiver].append(packet(10_000 * i + 1000 + at[receiver], bytes([i]), False))
    machines = []
    for name, offset_ns in at.items():
        wide = 0 if name == "alpha" else 10**8
        clock = HostClock(name, offset_ns - wide, offset_ns + wide // 2)
        machines.append(_Machine(clock, Capture(packets=packets[name])))
    _align(machines, None)
    assert [one.clock.source for one in machines] == ["reference", "frames", "frames"]
    for one in machines:
        assert abs(one.clock.offset_ns - at[one.clock.host]) <= one.clock.error_ns <= 2000
    arrivals = {one.data: one.time_ns for machine in machines for one in machine.capture.packets if not one.out}
    for machine in machines:
        assert all(one.time_ns <= arrivals[one.data] for one in machine.capture.packets if one.out)


def test_limits_of_a_clock_contain_its_offset(hosts):
    """Both hosts have the clock of this machine: the true offset is 0. The connection to one of them is lost."""
    with trace.recording() as taken:
        with Remote("ssh:h0,h1") as remote:
            remote.hosts[1].kill()
        clocks = {clock.host: clock for clock in taken.capture().clocks}
    assert clocks["h0"].low_ns <= 0 <= clocks["h0"].high_ns
    assert clocks["h0"].problem == ""
    assert "h1" in clocks["h1"].problem


def test_folders_on_a_machine_are_removed_with_the_connection(hosts):
    with Remote("ssh:h0") as remote:
        folder = Path(remote.hosts[0].folder())
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").touch()
    waiting.until(lambda: not folder.exists(), limit_s=LIMIT_S)


@pytest.fixture
def host_name_of_its_own(hosts):
    """Give h0 a name that no host of another test has, because agents clean up for all hosts of their host's name."""
    rename = [sys.executable, "-c", "import socket, sys; socket.sethostname(sys.argv[1])"]
    assert hosts.hosts[0].run([*rename, f"h0-{os.getpid()}"], timeout=LIMIT_S).returncode == 0
    yield
    assert hosts.hosts[0].run([*rename, "h0"], timeout=LIMIT_S).returncode == 0


@pytest.mark.usefixtures("host_name_of_its_own")
def test_the_next_agent_removes_the_folders_of_one_that_was_killed(hosts):
    """It leaves those of agents that run, and those of other hosts."""
    with Remote("ssh:h0") as running:
        kept = Path(running.hosts[0].folder())
        with Remote("ssh:h0") as remote:
            left = Path(remote.hosts[0].folder())
            (left / "file").touch()
            agent = int(remote.hosts[0].run(["sh", "-c", "echo $PPID"], timeout=LIMIT_S).stdout)
            os.kill(agent, signal.SIGKILL)
            waiting.until(lambda: remote.hosts[0].trouble, limit_s=LIMIT_S)
        assert left.exists()
        with Remote("ssh:h1"):
            assert left.exists()
        with Remote("ssh:h0"):
            assert not left.exists()
            assert kept.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hosts", "ssh:a,b", "viakit", "sweep", "tcp"], "give it to that command"),
        (["--hosts", "ssh:a,b", "--from", "x.pcapng"], "--hosts is for a command to run"),
        (["--network", "eth:eth0", "true"], "--network and --python are for --hosts"),
        (["--hosts", "a,b", "true"], "expected local, testbed:N"),
    ],
)
def test_trace_refuses_hosts_that_do_not_apply(words, says):
    done = CliRunner().invoke(cli.cli, ["trace", *words])
    assert done.exit_code == 2
    assert says in done.output


# ---- goals


def test_goals_on_a_wire_are_measured_between_machines(hosts):
    """The figures are not judged here: a few bursts on a busy machine give none."""
    every = (*goals.GOALS, *goals.BARRIERS, *goals.OTHERS)
    wire = goals._sweep(0.1, ("via-udp", "tcp"), (64,), hosts="testbed", mtu=1500)
    latency = goals.Entry("latency, {wire}", 1.0, wire, judging.against("via-udp", "tcp", 64))
    texts = ("BIP on eth, 4 MiB", "VIA on shm / core", "RDMA barrier (default)")
    chosen = [latency, *(one for one in every if one.what.startswith(texts))]
    how = goals.Settings(hosts="ssh:h0,h1", wire_only=True)
    (measured, *others), (document,), interrupted = goals.take(chosen, how, 1.0)
    assert not interrupted
    assert measured.what == "latency, between two machines"
    assert measured.value is not None or "too few bursts" in measured.reason
    assert len(others) >= 3
    assert all(goal.reason.startswith("left out: ") and goal.value is None for goal in others)
    assert any("needs 8 hosts of a testbed" in goal.reason for goal in others)
    assert {(one["protocol"], one["hosts"]) for one in document["series"]} == {("via-udp", "ssh"), ("tcp", "ssh")}
    assert [one["name"] for one in document["environment"]["hosts"]] == ["h0", "h1"]


def test_loss_is_measured_between_machines(hosts):
    document = loss.measure("via-udp", nbytes=4096, losses=(0.0, 0.01), seconds=0.5, hosts="ssh:h0,h1")
    assert document["complete"], document["errors"]
    assert {(one["hosts"], one["loss"]) for one in document["series"]} == {("ssh", 0.0), ("ssh", 0.01)}
    assert [one["name"] for one in document["environment"]["hosts"]] == ["h0", "h1"]
    with pytest.raises(ValueError, match="--mtu sets the testbed's wire"):
        loss.measure("via-udp", hosts="ssh:h0,h1", mtu=1500)


@pytest.mark.parametrize(("given", "left_out"), [("local", False), ("testbed", True), ("ssh:h0,h1", True)])
def test_hosts_of_bench_choose_its_goals(monkeypatch, given, left_out):
    """local: all goals, those on a wire on a testbed. Other hosts: those on a wire alone."""
    settings = []
    monkeypatch.setattr(goals, "take", lambda entries, how, *_: settings.append(how) or ([], [], False))
    goals.run(hosts=given)
    assert settings[0].wire_only == left_out
    assert settings[0].hosts == (given if given.startswith("ssh:") else None)


def test_goals_that_need_one_host_are_left_out_of_a_testbed():
    one = next(one for one in goals.GOALS if one.measurement.left_out == goals._ONE_HOST)
    (goal,), documents, _ = goals.take([one], goals.Settings(wire_only=True), 1.0)
    assert goal.reason.startswith("left out: ")
    assert not documents


def test_goals_of_a_testbed_are_left_out_between_machines_only():
    every = [one.measurement for one in (*goals.GOALS, *goals.BARRIERS, *goals.OTHERS)]
    of_testbed = [one for one in every if "testbed" in one.left_out]
    assert any("1 Gbit/s" in one.left_out for one in of_testbed)
    assert not any(goals.Settings(wire_only=True).leaves_out(one) for one in of_testbed)
    assert all(goals.Settings(hosts="ssh:a,b", wire_only=True).leaves_out(one) for one in of_testbed)


def test_left_out_goals_are_listed_by_reason(capsys):
    judged = judging.Judged([judging.Goal("a wire", 1.0, reason="too few bursts")], None)
    application_goals.add(judged, left_out="one host [is] enough")
    assert len(judged.goals) > 3
    goals.render(judged, Console(width=200))
    table, _, listed = capsys.readouterr().out.partition("left out: one host [is] enough:\n")
    assert "a wire" in table
    assert "kernel" not in table
    assert len(listed.splitlines()) == len(judged.goals) - 1


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--hosts", "testbed:3"], "expected local, testbed, two machines as ssh:A,B"),
        (["--hosts", "ssh:a,b,c"], "a sweep has two sides"),
        (["--network", "eth:eth0"], "--network and --python are for --hosts ssh:A,B"),
    ],
)
def test_bench_refuses_hosts(words, says):
    done = CliRunner().invoke(cli.cli, ["bench", *words], prog_name="viakit")
    assert done.exit_code == 2
    assert says in done.output


# ---- ranks of a notebook


def traces_of(ranks):
    """Return the folders of the engines, one on each of two machines, and their processes in /proc."""
    folders = [Path(text.strip("'")) for text in ranks.run("os.environ['IPYTHONDIR']")]
    assert len({*folders}) == 2
    return folders, [Path(f"/proc/{pid}") for pid in ranks.pids.values()]


def test_ranks_of_a_notebook_run_on_machines(hosts, tmp_path):
    """Output arrives while a cell runs, an interrupt leaves the ranks alive, and nothing remains on the machines."""
    needs.module("ipyparallel", "lab")
    from viakit.lab.ranks import Ranks

    seen = tmp_path / "seen"
    code = f"""
import os, time
print("started on", os.uname().nodename, flush=True)
deadline = time.monotonic() + {LIMIT_S}
while not os.path.exists({str(seen)!r}):
    assert time.monotonic() < deadline, "the output did not arrive"
"""
    lines = set()

    def take(rank, stream, text):
        lines.add((rank, text))
        if len(lines) == 2:
            seen.touch()

    with Ranks(2, hosts="ssh:h0,h1") as ranks:
        assert "2 ranks on ssh:h0,h1" in repr(ranks)
        ranks.run(code, on_text=take, timeout_s=LIMIT_S)
        assert lines == {(0, "started on h0\n"), (1, "started on h1\n")}
        assert ranks.run("comm.allreduce(rank + 1)") == ["3", "3"]
        with pytest.raises(TimeoutError):
            ranks.run("comm.recv(source=1 - rank, tag=5)", timeout_s=0.3)
        assert ranks.run("rank") == ["0", "1"]
        folders, processes = traces_of(ranks)
        assert all(folder.is_dir() and folder.name.startswith("viakit-host-") for folder in folders)
    waiting.until(lambda: not any(path.exists() for path in (*folders, *processes)), limit_s=LIMIT_S)


@pytest.mark.parametrize(
    ("options", "library"),
    [
        ({"protocol": "mpi:mpich"}, "mpi:mpich"),
        ({"protocol": "mpi:openmpi"}, "mpi:openmpi"),
        ({"launcher": "mpi:mpich", "protocol": "tcp"}, "mpi:mpich"),
    ],
    ids=lambda one: one if isinstance(one, str) else "launched" if "launcher" in one else "ranks",
)
def test_ranks_of_a_notebook_run_on_machines_under_an_mpi(hosts, options, library):
    """An interrupt leaves the ranks alive, on both machines, and nothing remains there."""
    needs.module("ipyparallel", "lab")
    needs.mpi_library(library)
    from viakit.lab.ranks import Ranks

    with Ranks(2, hosts="ssh:h0,h1", **options) as ranks:
        assert ranks.run("import os; os.uname().nodename") == ["'h0'", "'h1'"]
        assert ranks.run("comm.allreduce(rank + 1)") == ["3", "3"]
        with pytest.raises(TimeoutError):
            ranks.run("import time; time.sleep(1000)", timeout_s=0.3)
        assert ranks.run("rank") == ["0", "1"]
        folders, processes = traces_of(ranks)
    waiting.until(lambda: not any(path.exists() for path in (*folders, *processes)), limit_s=LIMIT_S)


def test_ranks_on_machines_end_with_their_kernel(hosts):
    needs.module("ipyparallel", "lab")
    program = (
        "from viakit.lab.ranks import Ranks\nimport sys\nranks = Ranks(2, hosts='ssh:h0,h1')\n"
        'folders = [text.strip("\'") for text in ranks.run(\'import os; os.environ["IPYTHONDIR"]\')]\n'
        "print(ranks._host.pid, *ranks.pids.values(), ranks._folder, *folders, flush=True)\nsys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], text=True, **pipes) as process:
        words = process.stdout.readline().split()
        process.kill()
    assert len(words) == 6
    remains = [*(Path("/proc", pid) for pid in words[:3]), *map(Path, words[3:])]
    waiting.until(lambda: not any(one.exists() for one in remains), limit_s=LIMIT_S)


def test_ranks_on_machines_without_ipyparallel_name_the_remedy(tmp_path, monkeypatch):
    """The relay's end on the other machine, without the package."""
    from viakit.lab import _relay

    monkeypatch.setattr(_relay.importlib.util, "find_spec", lambda name: None)
    near, far = socket.socketpair()
    server = _relay._Server(far.detach(), tmp_path)
    said = []
    mux = Mux(near.fileno(), near.fileno(), lambda kind, ident, number, payload: said.append(json.loads(payload)))
    mux.send(Kind.HELLO, payload=b'{"names": []}')
    mux.turn({}, 0.0)
    server._mux.turn({}, LIMIT_S)
    server._mux.turn({}, 0.0)
    mux.turn({}, LIMIT_S)
    assert "need ipyparallel there: " in said[0]["error"]
    assert "-m pip install 'viakit[lab]'" in said[0]["error"]
    for item in (mux, server._mux, server._connection, near):
        item.close()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hosts": "ssh:h0,,h1"}, "expected ssh:HOST"),
        ({"hosts": "ssh:@/nowhere"}, "must contain a host on each line"),
        ({"hosts": "ssh:a,b,c"}, "expected a rank for each host"),
    ],
)
def test_ranks_refuse_hosts_before_anything_starts(options, says):
    from viakit.lab import ranks

    with pytest.raises(ValueError, match=says):
        ranks.check(2, **options)
