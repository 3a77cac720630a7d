"""`viakit demo`: the files that it leaves, and that it leaves nothing when it is interrupted."""

import json
import os
import re
import signal
from html import escape
from pathlib import Path

import needs
import pytest
from leftovers import marked, namespaces, segments
from synthetic import SyntheticPair, SyntheticTestbed
from test_cli import Started
from waiting import until

from viakit import demo
from viakit.measure import result
from viakit.measure.endpoints import MeasureError
from viakit.measure.result import ResultError


@pytest.fixture(autouse=True)
def machine():
    SyntheticPair.reset()
    SyntheticTestbed.refuse = None
    yield SyntheticPair
    SyntheticPair.reset()
    SyntheticTestbed.refuse = None


def run(out, **kw):
    return demo.run(out, seconds=1, pair_class=SyntheticPair, testbed_class=SyntheticTestbed, **kw)


def test_it_leaves_results_picture_and_report(tmp_path):
    finished = run(tmp_path / "out")
    assert [path.name for path in finished.files] == ["results.json", "throughput.png", "report.html"]
    document = result.load(tmp_path / "out" / "results.json")
    where = {(one["protocol"], one["hosts"]) for one in document["series"] if one["mode"] == "pingpong"}
    assert {(name, "testbed") for name in ("via-eth", "tcp", "tcp:default", "udp", "zmq")} <= where
    assert {("via-shm", "local"), ("mpi", "local")} <= where
    assert document["floor"]
    text = "\n".join(finished.words)
    best = r"TCP with its best socket buffers"
    assert re.search(rf"64 B in 1\.1\d µs one way \(half the round trip, polled\), {best} in 3\.4\d µs: 0\.32", text)
    bandwidths = re.findall(r"of 4 MiB .* by (TCP.*), MTU 1500: (\S+) times the bandwidth", text)
    assert [name for name, _ in bandwidths] == ["TCP with its best socket buffers", "TCP as it comes"], "tuned first"
    assert float(bandwidths[0][1]) < float(bandwidths[1][1])
    page = (tmp_path / "out" / "report.html").read_text()
    for sentence in finished.words:
        assert escape(sentence) in page


def test_without_namespaces_the_local_part_is_measured_and_the_rest_is_named(tmp_path):
    SyntheticTestbed.refuse = PermissionError(
        "user namespaces are refused by kernel.apparmor_restrict_unprivileged_userns"
    )
    finished = run(tmp_path)
    assert {one["hosts"] for one in finished.document["series"]} == {"local"}
    assert {one["protocol"] for one in finished.document["skipped"]} >= {"via-eth", "tcp", "udp", "zmq"}
    assert "apparmor" in (tmp_path / "report.html").read_text()
    assert finished.document["complete"]


def test_without_mpi_the_rest_is_measured(tmp_path, machine):
    missing = MeasureError("no MPI. Remedy: pip install 'viakit[mpich]'")
    machine.missing = {"mpi": missing, "mpi:mpich": missing, "mpi:openmpi": missing}
    finished = run(tmp_path)
    assert any("Not measured: mpi. no MPI" in sentence for sentence in finished.words)
    assert "via-shm" in {one["protocol"] for one in finished.document["series"]}


def test_where_nothing_works_it_says_so(tmp_path, machine):
    SyntheticTestbed.refuse = PermissionError("refused")
    machine.missing = {name: MeasureError("no") for name in ("via-shm", "mpi", "mpi:mpich", "mpi:openmpi", "floor")}
    with pytest.raises(MeasureError, match="doctor"):
        run(tmp_path)
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_made():
    with pytest.raises(ResultError, match="--out"):
        run("/dev/null/demo")


@pytest.mark.parametrize("after", [1, 20, 150, 400])
def test_interrupted_in_every_part(tmp_path, machine, after):
    machine.interrupt_after = after
    try:
        finished = run(tmp_path)
    except KeyboardInterrupt:
        assert after == 1
        return
    assert finished.interrupted
    assert machine.open_pairs == 0
    if finished.files:
        document = json.loads((tmp_path / "results.json").read_text())
        result.validate(document)
        assert not document["complete"]


# ---------------------------------------------------------------- the real one


@pytest.mark.slow
def test_the_real_demo(tmp_path):
    started = Started("demo", "--seconds", "5", cwd=tmp_path)
    status, out, err = started.end()
    assert status == 0, err
    document = result.load(tmp_path / "viakit-demo" / "results.json")
    measured = {(one["protocol"], one["hosts"]) for one in document["series"] if one["points"]}
    skipped = {one["protocol"] for one in document["skipped"]}
    for protocol, hosts in (
        *((name, "testbed") for name in ("via-eth", "tcp", "tcp:default", "udp", "zmq")),
        *((name, "local") for name in ("via-shm", "mpi")),
    ):
        assert (protocol, hosts) in measured or protocol in skipped, (
            f"{protocol} is neither measured nor named as skipped"
        )
    assert ("via-shm", "local") in measured
    assert "half the round trip" in out
    assert (tmp_path / "viakit-demo" / "throughput.png").read_bytes().startswith(b"\x89PNG")
    assert "<h2>Summary</h2>" in (tmp_path / "viakit-demo" / "report.html").read_text()


def shared_memory():
    """Files in /dev/shm that no living process maps: others may be measuring on this machine."""
    names = {path.name for path in Path("/dev/shm").iterdir()}
    maps = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            maps.append((process / "maps").read_text())
        except OSError:
            continue
    return {name for name in names if not any(f"/dev/shm/{name}" in text for text in maps)}


def started_mpi(mark, ranks):
    """Whether the demo has come to MPI: its launcher runs, with *ranks* workers of its own."""
    every = marked(mark).values()
    launchers = sum("mpiexec" in command for command in every)
    return launchers and len(every) >= 4 + ranks


MOMENTS = {f"{n} processes": (lambda mark, n=n: len(marked(mark)) >= n) for n in (1, 2, 4, 6, 9)}
MOMENTS |= {f"mpi with {n} ranks": (lambda mark, n=n: started_mpi(mark, n)) for n in (0, 2, 4)}


def demo_at(moment, cwd):
    """Start the demo, and return when it has come to this moment.

    A busy machine may miss the moment between two checks; then the demo has ended, and is started again for longer.
    """
    for seconds in ("2", "10", "30") if moment.startswith("mpi") else ("60", "120"):
        started = Started("demo", "--seconds", seconds, cwd=cwd)
        try:
            until(lambda s=started: MOMENTS[moment](s.mark) or s.process.poll() is not None, moment, 250)
        except BaseException:
            started.signal(signal.SIGKILL, group=True)
            raise
        if started.process.poll() is None:
            return started
        started.end()
    raise AssertionError(f"the demo has ended each time before the moment {moment}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("moment", MOMENTS)
def test_interrupting_the_real_demo_leaves_nothing(tmp_path, moment):
    """The more processes it has started, the further it has come; MPI comes last."""
    if moment.startswith("mpi"):
        needs.mpi_library("mpi")
    spaces, files = namespaces(), shared_memory()
    started = demo_at(moment, tmp_path)
    own = {path.name for path in segments(started.mark)}
    started.signal(signal.SIGINT, group=True)
    status, _, err = started.end()
    # Before code of viakit runs: Python has no handler of the signal yet, or is importing its own modules.
    of_python = ("Could not import runpy module", "Fatal Python error: init_")
    early = status == -signal.SIGINT or (status == 1 and err.startswith(of_python))
    assert status == 130 or early, err
    until(lambda: namespaces() <= spaces, "no network namespace is left")

    def left():
        """New files, but not the segments of other MPI jobs, which tests beside this one may kill."""
        return {
            name
            for name in shared_memory() - files
            if name in own or not name.startswith(("mpich_shm_", "sm_segment."))
        }

    until(lambda: not left(), "nothing is left in /dev/shm")
