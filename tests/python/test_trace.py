"""Taps and their output: captures, timelines, JSON for Perfetto, and the command `viakit trace`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path

import pytest
import via_pair
from click.testing import CliRunner
from test_dissector import tshark
from waiting import LIMIT_S

from viakit import cli, errors, trace, via

PLAYER = """
import multiprocessing
import sys
from viakit import via

def player(device, serves, turns, nbytes):
    with via.Nic(device) as nic, nic.create_vi() as vi, nic.create_region(2 * nbytes) as ball:
        catch = via.Descriptor.recv(ball[nbytes:])
        vi.post_recv(catch)
        if serves:
            vi.connect(nic.address / "table", timeout_s=20, retry=True)
        else:
            nic.connect_wait("table", timeout_s=20).accept(vi)
        for turn in range(2 * turns):
            if (turn % 2 == 0) == serves:
                vi.send(ball[:nbytes], timeout_s=20)
            else:
                vi.spin_recv(timeout_s=20)
                vi.post_recv(catch)

if __name__ == "__main__":
    device, turns, nbytes, status = sys.argv[1], *map(int, sys.argv[2:])
    other = multiprocessing.Process(target=player, args=(device, False, turns, nbytes))
    other.start()
    player(device, True, turns, nbytes)
    other.join()
    sys.exit(status)
"""


@pytest.fixture
def player(tmp_path):
    """A program of two processes that throw a message back and forth: DEVICE TURNS BYTES STATUS."""
    path = tmp_path / "player.py"
    path.write_text(PLAYER)
    return [sys.executable, str(path)]


KEPT: list[via.Vi] = []  # until their NIC is closed, which closes them


@pytest.fixture
def nic():
    with via.Nic("loop:trace") as nic:
        yield nic
    KEPT.clear()


def connected(nic, other=None):
    KEPT.extend(via_pair.connected(nic, other))
    return KEPT[-2:]


def exchange(nic, a, b, n, nbytes=64):
    """n messages from a to b."""
    memory = bytearray(2 * nbytes)
    with nic.register(memory) as region:
        for i in range(n):
            b.post_recv(via.Descriptor.recv(region[nbytes:]))
            memory[:nbytes] = bytes([i & 255]) * nbytes
            a.send(region[:nbytes], timeout_s=LIMIT_S)
            b.spin_recv(timeout_s=LIMIT_S)


# ---------------------------------------------------------------- the tap


def test_a_tap_writes_every_frame_that_the_counters_count(nic, tmp_path):
    file = tmp_path / "frames.pcapng"
    before = nic.counters
    with nic.tap(file) as tap:
        a, b = connected(nic)
        exchange(nic, a, b, 20)
        info = tap.info
        since = nic.counters - before
    assert tap.closed
    assert info.file == str(file)
    capture = trace.read([file])
    out = [packet for packet in capture.packets if packet.out]
    assert len(out) == info.frames_sent == since["frames_sent"]
    assert len(capture.packets) - len(out) == info.frames_received == since["frames_received"]
    assert info.lost == 0
    assert info.events == 0
    assert capture.interfaces[0].received == len(capture.packets)
    assert all(packet.comment == "" for packet in out)


def test_tshark_shows_what_was_sent(nic, tmp_path):
    file = tmp_path / "sent.pcapng"
    with nic.tap(file, events=True):
        a, b = connected(nic)
        exchange(nic, a, b, 5, 32)
    rows = tshark(
        file, "viakit.payload viakit.psn frame.packet_flags_direction viakit.arrived_in frame.number", "-2",
        "-Y", "viakit.kind == 1",
    )  # fmt: skip
    out = [row for row in rows if int(row["frame.packet_flags_direction"], 0) == 2]
    assert [row["viakit.payload"] for row in out] == [(bytes([i]) * 32).hex() for i in range(5)]
    psns = [int(row["viakit.psn"]) for row in out]
    assert [(psn - psns[0]) & 0xFFFFFFFF for psn in psns] == list(range(5))
    arrived = {row["frame.number"] for row in rows} - {row["frame.number"] for row in out}
    assert {row["viakit.arrived_in"] for row in out} == arrived
    events = tshark(file, "viakit.event.kind viakit.event.queue viakit.event.len", "-Y", "viakit_event")
    kinds = Counter(row["viakit.event.kind"] for row in events)
    assert kinds == {"1": 10, "2": 5, "3": 5, "5": 10, "6": 10}


def test_a_tap_without_a_file_is_read(nic, tmp_path):
    with nic.tap(events=True) as tap:
        assert tap.file is None
        a, b = connected(nic)
        exchange(nic, a, b, 3)
        whole = tap.read()
        assert tap.read() == b""
        exchange(nic, a, b, 1)
        whole += tap.read()
    (tmp_path / "read.pcapng").write_bytes(whole)
    seen = trace.build(trace.read([tmp_path / "read.pcapng"]))
    assert len(seen.messages) == 4
    with nic.tap(tmp_path / "file.pcapng") as tap, pytest.raises(errors.InvalidStateError, match="this tap writes"):
        tap.read()


def test_a_nic_has_one_tap_at_a_time(nic, tmp_path):
    tap = nic.tap(tmp_path / "one.pcapng")
    with pytest.raises(errors.InvalidStateError, match="has a tap already"):
        nic.tap()
    tap.close()
    tap.close()
    with pytest.raises(errors.ClosedError):
        tap.flush()
    nic.tap().close()


def test_two_nics_share_a_file(tmp_path):
    file = tmp_path / "both.pcapng"
    with via.Nic("loop:share") as one, via.Nic("loop:share") as two:
        with one.tap(file, events=True), two.tap(file, events=True):
            a, b = connected(one, two)
            with two.create_region(64) as there, one.create_region(64) as here:
                for _ in range(50):
                    b.post_recv(via.Descriptor.recv(there[:]))
                    a.send(here[:], timeout_s=LIMIT_S)
                    b.spin_recv(timeout_s=LIMIT_S)
        capture = trace.read([file])
        assert len(capture.interfaces) == 4
        seen = trace.build(capture)
        assert len(seen.messages) == 50
        assert {message.receiver.port for message in seen.messages} == {two.info.port}
    KEPT.clear()


def test_a_full_ring_loses_records_and_counts_them(nic):
    a, b = connected(nic)
    with nic.tap(ring_bytes=4096) as tap:  # no reader
        exchange(nic, a, b, 200)
        info = tap.info
        assert info.lost > 0
        assert info.frames_sent + info.frames_received + info.lost == 400
        assert b"records before this one were lost" not in tap.read()
        exchange(nic, a, b, 1)
        assert b"%d records before this one were lost" % info.lost in tap.read()


def test_a_file_has_a_bound(nic, tmp_path):
    file = tmp_path / "bound.pcapng"
    a, b = connected(nic)
    with nic.tap(file, file_bytes=10_000) as tap:
        exchange(nic, a, b, 500)
        tap.flush()
        assert tap.info.lost > 0
    assert file.stat().st_size < 12_000
    capture = trace.read([file])
    assert capture.interfaces[0].dropped + len(capture.packets) == 1000


def test_frames_can_be_cut_off(nic, tmp_path):
    a, b = connected(nic)
    with nic.tap(tmp_path / "snap.pcapng", snap_bytes=64):
        exchange(nic, a, b, 1, 4000)
    sent = next(packet for packet in trace.read([tmp_path / "snap.pcapng"]).packets if packet.length > 4000)
    assert len(sent.data) == 14 + 64
    assert sent.length == 14 + 32 + 4000


def test_a_disk_that_is_full_is_said_when_the_tap_is_closed(nic):
    tap = nic.tap("/dev/full")
    a, b = connected(nic)
    exchange(nic, a, b, 1)
    with pytest.raises(errors.ResourceError, match="No space left"):
        tap.close()
    assert tap.closed
    exchange(nic, a, b, 1)


def test_a_file_that_cannot_be_made(nic, tmp_path):
    with pytest.raises(errors.ResourceError, match="No such file or directory"):
        nic.tap(tmp_path / "nowhere" / "x.pcapng")
    nic.tap().close()


def test_names_of_files(nic, tmp_path):
    with nic.tap(tmp_path / "p%p.pcapng") as tap:
        assert Path(tap.file).name == f"p{os.getpid()}.pcapng"
    with nic.tap(tmp_path) as tap:
        assert Path(tap.file).parent == tmp_path
        assert str(os.getpid()) in tap.file


def test_two_processes_never_write_one_file(nic, tmp_path):
    file = tmp_path / "x.pcapng"
    with nic.tap(file) as tap:
        code = "import sys; from viakit import via\nwith via.Nic('loop') as n, n.tap(sys.argv[1]) as t: print(t.file)"
        done = subprocess.run(
            [sys.executable, "-c", code, str(file)], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() != tap.file
        assert done.stdout.startswith(str(tmp_path / "x-"))
    assert len(trace.read([tmp_path]).interfaces) == 2


def test_the_environment_opens_taps(tmp_path, player):
    environment = {**os.environ, "VIAKIT_TAP": f"{tmp_path}/,events,snap=100"}
    (tmp_path / "other").mkdir()
    subprocess.run([*player, "shm:tap-env", "5", "100", "0"], env=environment, check=True, timeout=60)
    assert len(trace.Recording(tmp_path).files) == 2
    assert len(trace.build(trace.read([tmp_path])).messages) == 10


@pytest.mark.parametrize("words", ["what=3", "snap=-1", "ring=9999999999", "events=1"])
def test_words_in_the_environment_that_mean_nothing(tmp_path, words):
    environment = {**os.environ, "VIAKIT_TAP": f"{tmp_path}/x,{words}"}
    code = "from viakit import via; via.Nic('loop')"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"VIAKIT_TAP: '{words}' is none of events, noframes" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_nic_opened_again_goes_on_in_the_same_file(tmp_path):
    environment = {**os.environ, "VIAKIT_TAP": f"{tmp_path}/again.pcapng"}
    code = "from viakit import via\nfor _ in range(3):\n    with via.Nic('loop') as n: pass"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=60)
    assert len(trace.read([tmp_path / "again.pcapng"]).interfaces) == 3


def test_a_program_that_closes_nothing_or_is_killed_leaves_a_capture(tmp_path):
    code = """
        import os, signal, sys, threading
        from viakit import via
        n = via.Nic("loop")
        a, b = n.create_vi(), n.create_vi()
        t = threading.Thread(target=lambda: a.connect(n.address / "x", 20, retry=True)); t.start()
        n.connect_wait("x", 20).accept(b); t.join()
        if sys.argv[1] == "kill":
            from viakit import trace
            while 11 not in [packet.data[14] & 15 for packet in trace.read([os.environ["VIAKIT_TAP"]]).packets]:
                pass  # until the acceptance is in the file
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(0)
    """
    for how, status in (("end", 0), ("kill", -signal.SIGKILL)):
        file = tmp_path / f"{how}.pcapng"
        environment = {**os.environ, "VIAKIT_TAP": str(file)}
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), how]
        assert subprocess.run(command, env=environment, timeout=60).returncode == status
        kinds = [packet.data[14] & 15 for packet in trace.read([file]).packets]
        assert 9 in kinds  # the request
        assert 11 in kinds  # and its acceptance


def test_the_child_of_a_fork_has_no_tap(nic, tmp_path):
    file = tmp_path / "fork.pcapng"
    with nic.tap(file):
        a, b = connected(nic)
        child = os.fork()
        if child == 0:
            with via.Nic("loop:trace") as other, other.tap(tmp_path / "child.pcapng"):
                pass
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        exchange(nic, a, b, 2)
    assert len([p for p in trace.read([file]).packets if p.out and p.data[14] & 15 == 1]) == 2
    assert (tmp_path / "child.pcapng").stat().st_size > 0


# ---------------------------------------------------------------- what was lost, and why


def test_frames_lost_on_purpose_are_shown_and_dropped_ones_say_why(tmp_path):
    code = """
        import threading
        from viakit import via
        with via.Nic("loop", rto_us=2000) as n, n.create_region(64) as r:
            a, b = n.create_vi(), n.create_vi()
            t = threading.Thread(target=lambda: a.connect(n.address / "x", 20, retry=True)); t.start()
            n.connect_wait("x", 20).accept(b); t.join()
            for _ in range(300):
                b.post_recv(via.Descriptor.recv(r[32:]))
                a.send(r[:32], timeout_s=20)
                b.spin_recv(timeout_s=20)
    """
    faults = "loss=0.05,dup=0.05,corrupt=0.05,seed=3"
    environment = {**os.environ, "VIAKIT_TAP": f"{tmp_path}/f.pcapng,events", "VIAKIT_FAULT": faults}
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=environment, check=True, timeout=100)
    seen = trace.build(trace.read([tmp_path / "f.pcapng"]))
    notes = Counter(frame.note for frame in seen.frames)
    assert notes["lost on purpose"] > 0
    assert notes["corrupted on purpose"] > 0
    # some of the bits that were turned over are those of a length or a version
    assert 0 < notes["frames dropped: CRC32C wrong"] <= notes["corrupted on purpose"]
    assert notes["frames dropped: seen before"] > 0
    counts = seen.counts()
    assert counts["again"]["SEND"] > 0
    assert counts["lost"].total() == notes["lost on purpose"]
    assert len(seen.messages) == 300
    assert all(message.recv_reaped for message in seen.messages)


# ---------------------------------------------------------------- the timeline


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of two processes over shm, recorded: 20 messages of 100 bytes each way."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "player.py").write_text(PLAYER)
    with trace.recording() as taken:
        command = [sys.executable, str(folder / "player.py"), "shm:timeline", "20", "100", "0"]
        subprocess.run(command, check=True, timeout=60)
    return taken.capture()


def test_each_message_is_followed_from_post_to_reap(run):
    seen = trace.build(run)
    assert len({nic.pid for nic in seen.nics}) == 2
    assert len(seen.messages) == 40
    assert {message.length for message in seen.messages} == {100}
    for message in seen.messages:
        assert message.receiver is not message.nic
        way = [message.posted, message.doorbell, message.sent, message.arrived, message.placed]
        way += [message.recv_completed, message.recv_reaped]
        assert None not in way
        assert way == sorted(way)
        assert message.posted <= message.completed <= message.reaped
    medians = seen.medians_ns()
    assert medians["post to reap at the receiver"][0] == 40
    assert all(value >= 0 for _, value in medians.values())
    indices = [message.recv_index for message in seen.messages if message.nic is seen.nics[0]]
    assert indices == list(range(20))


def check_trace_events(document):
    """Check the keys that Perfetto needs, and those that the format's description requires of each phase."""
    assert set(document) >= {"traceEvents", "displayTimeUnit"}
    open_spans: dict[tuple, dict] = {}
    flows: dict[tuple, list[dict]] = {}
    slices: dict[tuple, list[tuple[float, float]]] = {}
    names = set()
    last = 0.0
    for event in document["traceEvents"]:
        assert event["ph"] in "MXbestf"
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["ts"], (int, float))
        assert event["name"]
        if event["ph"] == "M":
            names.add((event["name"], event["pid"], event["tid"]))
            continue
        assert event["ts"] >= last >= 0
        last = event["ts"]
        assert ("thread_name", event["pid"], event["tid"]) in names
        assert ("process_name", event["pid"], 0) in names
        assert event["cat"]
        key = (event["cat"], event.get("id"))
        if event["ph"] == "X":
            assert event["dur"] >= 0
            slices.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "b":
            assert key not in open_spans
            open_spans[key] = event
        elif event["ph"] == "e":
            assert open_spans.pop(key)["name"] == event["name"]
        else:
            flows.setdefault(key, []).append(event)
    assert not open_spans
    for steps in flows.values():
        phases = "".join(step["ph"] for step in steps)
        assert phases == "s" + "t" * (len(phases) - 2) + "f"
        assert steps[-1]["bp"] == "e"
        for step in steps:  # an arrow ends at a slice, not in the void
            row = slices[step["pid"], step["tid"]]
            assert any(abs(begin - step["ts"]) < 1e-6 for begin, _ in row)
    for row in slices.values():
        for (_, end), (begin, _) in zip(sorted(row), sorted(row)[1:], strict=False):
            assert end <= begin + 1e-6
    return flows


def test_perfetto_gets_slices_spans_and_arrows(run, tmp_path):
    seen = trace.build(run)
    trace.chrome.save(seen, tmp_path / "trace.json")
    flows = check_trace_events(json.loads((tmp_path / "trace.json").read_text()))
    arrows = Counter(category for category, _ in flows)
    assert arrows == {"message": 40, "completion": 40}
    crossing = [steps for (category, _), steps in flows.items() if category == "message"]
    assert all(steps[0]["pid"] != steps[-1]["pid"] for steps in crossing)


def test_nothing_seen_is_no_error(tmp_path):
    empty = trace.build(trace.pcapng.Capture())
    check_trace_events(trace.chrome.to_trace_events(empty))
    assert trace.picture.save(empty, tmp_path / "empty.png") == 0


def test_captures_are_joined_in_order(run, tmp_path):
    trace.merge(run, tmp_path / "joined.pcapng")
    again = trace.read([tmp_path / "joined.pcapng"])
    assert [(p.time_ns, p.data, p.out, p.comment) for p in again.packets] == [
        (p.time_ns, p.data, p.out, p.comment) for p in run.packets
    ]
    rows = tshark(tmp_path / "joined.pcapng", "frame.time_delta frame.interface_id _ws.malformed")
    assert len(rows) == len(run.packets)
    assert all(float(row["frame.time_delta"]) >= 0 for row in rows)
    assert {row["frame.interface_id"] for row in rows} == {"0", "1", "2", "3"}
    assert not any(row["_ws.malformed"] for row in rows)
    assert len(trace.build(again).messages) == 40


def test_a_picture_is_drawn(run, tmp_path):
    assert trace.picture.save(trace.build(run), tmp_path / "run.png", messages=7) == 7
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG")


def test_files_that_are_no_captures(tmp_path):
    bad = tmp_path / "bad.pcapng"
    bad.write_bytes(b"#!/bin/sh\necho no capture\n")
    with pytest.raises(trace.pcapng.CaptureError, match="not a pcapng file"):
        trace.read([bad])
    bad.write_bytes(b"")
    assert trace.read([bad]).packets == []


@pytest.mark.parametrize("seed", range(3))
def test_a_damaged_capture_is_refused_or_read_in_part(run, tmp_path, rng, seed):
    trace.merge(run, tmp_path / "whole.pcapng")
    whole = (tmp_path / "whole.pcapng").read_bytes()
    for _ in range(60):
        damaged = bytearray(whole)
        damaged[int(rng.integers(len(damaged)))] = int(rng.integers(256))
        (tmp_path / "cut.pcapng").write_bytes(damaged[: int(rng.integers(len(damaged)))])
        try:
            trace.build(trace.read([tmp_path / "cut.pcapng"]))
        except trace.pcapng.CaptureError:
            pass


# ---------------------------------------------------------------- the command


def invoke(*arguments):
    return CliRunner().invoke(cli.cli, ["trace", *map(str, arguments)], prog_name="viakit")


def test_trace_runs_a_command_and_ends_as_it_does(tmp_path, player):
    out, capture, picture = (tmp_path / name for name in ("t.json", "t.pcapng", "t.png"))
    done = invoke("--out", out, "--capture", capture, "--picture", picture, *player, "shm:cmd", "10", "64", "3")
    assert done.exit_code == 3, done.output
    assert "20 messages on 2 NICs" in done.output
    assert "post to reap at the receiver" in done.output
    check_trace_events(json.loads(out.read_text()))
    assert picture.stat().st_size > 0
    assert "VIAKIT_TAP" not in os.environ
    again = invoke("--from", capture, "--out", tmp_path / "again.json")
    assert again.exit_code == 0
    assert json.loads((tmp_path / "again.json").read_text()) == json.loads(out.read_text())


def test_trace_says_what_is_wrong():
    assert invoke("no-such-program").exit_code == 127
    assert invoke().exit_code == 2
    assert invoke("--from", "a", "b").exit_code == 2
    done = invoke("true")
    assert done.exit_code == 0
    assert "the command opened no NIC" in done.output
    assert invoke("sh", "-c", "kill -TERM $$").exit_code == 128 + signal.SIGTERM


def test_a_command_that_is_not_there_is_told_from_one_that_cannot_be_run(tmp_path, monkeypatch):
    (tmp_path / "mine").write_text("#!/bin/sh\n", encoding="utf-8")
    (tmp_path / "binary").write_bytes(b"\0")
    (tmp_path / "binary").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    # A folder of PATH that may not be searched; to root, who may, a name there that is no program is refused alike.
    closed = tmp_path / "closed"
    closed.mkdir()
    (closed / "nosuch").write_text("", encoding="utf-8")
    closed.chmod(0)
    monkeypatch.setenv("PATH", f"{closed}:{os.environ['PATH']}")
    for word, status, said in (
        ("nosuch", 127, "nosuch: no such program, neither here nor in PATH"),
        ("./nosuch", 127, "./nosuch: no such program"),
        ("mine", 127, "./mine: is there, but not executable: chmod +x ./mine"),
        ("./mine", 126, "./mine: is there, but not executable: chmod +x ./mine"),
        ("./closed", 126, "./closed: is a folder"),
        ("./binary", 126, "./binary: Exec format error"),
    ):
        done = invoke(word)
        assert done.exit_code == status, done.output
        assert done.output.startswith(f"viakit: {said}"), done.output
        assert "NIC" not in done.output
    closed.chmod(0o700)


def test_trace_finds_and_installs_the_dissector(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    path = Path(invoke("--dissector").output.strip())
    assert path.name == "viakit.lua"
    installed = Path(invoke("--install-dissector").output.strip())
    assert installed.is_relative_to(tmp_path)
    assert installed.read_bytes() == path.read_bytes()


def test_sweep_captures_both_hosts(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("no unshare here")
    file = tmp_path / "sweep.pcapng"
    command = [
        sys.executable,
        "-m",
        "viakit",
        "sweep",
        "via-shm",
        "--sizes",
        "8",
        "--seconds",
        "0.5",
        "--tap",
        file,
        "-q",
    ]
    subprocess.run(list(map(str, command)), check=True, timeout=100)
    capture = trace.read([file])
    assert len(capture.interfaces) == 2
    assert len({one.words["pid"] for one in capture.interfaces}) == 2
    assert capture.packets
