"""NetPIPE's programs over MPI as protocols of a sweep. A stand-in takes their place in most tests.

Debian's packages of the programs bring MPI libraries of their own, on which other tests would then run. So the tests of
the programs themselves are skipped where they are not installed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import needs
import numpy as np
import pytest
import waiting
from launch_job import VIAKIT

from viakit.base.marks import marked
from viakit.launch import mpi_library as mpi
from viakit.measure import plan, result, sweep, table
from viakit.measure.endpoints import MeasureError
from viakit.measure.mpi_runs import MpiRuns
from viakit.measure.pair import Pair

PROGRAMS = {"openmpi": "NPopenmpi", "mpich": "NPmpich2"}
LIMIT_S = 120.0
pytestmark = pytest.mark.timeout(300)

# It writes its rank, host, core and arguments, and as rank 0 a np.out of 100 us for each message.
STAND_IN = """#!/bin/sh
rank=${PMI_RANK-$OMPI_COMM_WORLD_RANK}
core=$(taskset -cp $$)
echo "$rank $(uname -n) ${core##* } $LD_LIBRARY_PATH $*" >>"$STAND_IN_LOG"
[ -z "$STAND_IN_HANGS" ] || exec sleep 100
[ -z "$STAND_IN_FAILS" ] || { echo "it cannot, for a reason" >&2; exit 3; }
size=$2
while [ "$1" != -o ]; do shift; done
[ "$rank" = 1 ] || echo "$size $(echo "$size 0.0001" | awk '{print $1 * 8 / $2 / 1048576}') 0.0001" >"$2"
"""
OWNER = """
import sys
from viakit.measure.pair import Pair
with Pair(sys.argv[1], buffers="same", timeout_s=100) as pair:
    print(pair._mpi_runs.scratch, flush=True)
    pair.run(8, count=7)
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Put a program in place of NetPIPE's into PATH, and return a function that reads its log."""
    folder, log = tmp_path / "bin", tmp_path / "log"
    folder.mkdir()
    for name in PROGRAMS.values():
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_LOG", str(log))
    return lambda: [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def program(flavour: str) -> None:
    """Skip a test without NetPIPE's program for this MPI."""
    needs.mpi_library(f"mpi:{flavour}")
    if shutil.which(PROGRAMS[flavour]) is None:
        pytest.skip(f"this machine has no {PROGRAMS[flavour]}: its package would bring another MPI library")


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_the_program_itself(flavour):
    program(flavour)
    names = [f"mpi:{flavour}", f"netpipe:{flavour}"]
    document = sweep.run(sweep.Config(names, [64, 65536], seconds=4.0, buffers="same", hosts="local")).document
    result.validate(document)
    ours, theirs = document["series"]
    assert theirs["info"]["library"].startswith("NetPIPE")
    assert theirs["info"]["libmpi"] == ours["info"]["libmpi"]
    for point in ours["points"]:
        assert len(point["bursts_best_s"]) == len(point["bursts_s"])
    for point in theirs["points"]:
        assert 1e-8 < point["one_way_s"]["median"] < 1
        assert set(point["counters"]) == {"messages"}
    (text,) = table.agreement(document)
    assert text.startswith(f"netpipe:{flavour} and mpi:{flavour} agree within 10 % at ")


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_the_program_itself_between_hosts(flavour):
    program(flavour)
    with needs.hosts() as bed, Pair(f"netpipe:{flavour}", testbed=bed, buffers="cold", timeout_s=LIMIT_S) as pair:
        before = sent_by(bed.hosts[0])
        assert np.size(pair.run(100_000, count=70).one_way_s) == 1
        assert sent_by(bed.hosts[0]) - before > 70 * 100_000


def sent_by(host) -> int:
    """Return the bytes that the interface of a host has sent."""
    lines = host.run(["cat", "/proc/net/dev"]).stdout.splitlines()
    return next(int(line.split()[9]) for line in lines if line.strip().startswith("eth0:"))


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_each_rank_runs_on_the_host_and_the_core_of_its_side(flavour, stand_in):
    library = needs.mpi_library(f"mpi:{flavour}")
    with needs.hosts() as bed, Pair(f"netpipe:{flavour}", testbed=bed, buffers="cold", timeout_s=LIMIT_S) as pair:
        hosts = [host.run(["uname", "-n"]).stdout.strip() for host in bed.hosts]
        cores = [str(core) for core in pair._cores]
        for nbytes, offset in ((1, 0), (4096, 3)):
            assert pair.run(nbytes, count=15, offset=offset).one_way_s == pytest.approx([1e-4], rel=1e-3)
        assert "TCP" in pair.info["transport"] or "btl self,tcp" in pair.info["transport"]
        assert pair.info["hosts"] == "testbed"
    runs = sorted(stand_in())
    assert len(runs) == 4
    for rank, host, core, libraries, *words in runs:
        assert (host, core) == (hosts[int(rank)], cores[int(rank)])
        assert os.path.dirname(library.libmpi) in libraries.split(":")
        offset = ["-O", "3,3"] if "4096" in words else []
        assert words[: words.index("-o")] == ["-l", words[1], "-u", words[1], "-p", "0", "-n", "3", *offset, "-I"]


def test_the_start_of_a_run_is_not_the_time_of_its_messages(stand_in):
    """A burst lasts as long as that of another protocol, although its program takes longer to start."""
    needs.mpi_library("mpi:openmpi")
    config = sweep.Config(["netpipe:openmpi"], [64], seconds=60.0, buffers="same", hosts="local")
    (series,) = sweep.run(config).document["series"]
    assert series["points"][0]["one_way_s"]["median"] == pytest.approx(1e-4, rel=1e-3)
    counts = [int(words[words.index("-n") + 1]) for words in stand_in()]
    assert counts[-1] in (7, 8)  # 10 ms in seven trials; the time in np.out is rounded


def test_a_missing_program(monkeypatch, tmp_path):
    needs.mpi_library("mpi:openmpi")
    for name in ("taskset", "sh"):
        (tmp_path / name).symlink_to(shutil.which(name))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeasureError, match=r"no NPopenmpi in PATH\. Remedy: sudo apt-get install netpipe-openmpi"):
        Pair("netpipe:openmpi", buffers="same")


@pytest.mark.parametrize("rpath", [False, True])
def test_a_program_that_would_run_with_another_library(stand_in, tmp_path, rpath):
    """Or without any: the dynamic linker finds it where the program wants it, or not at all."""
    needs.mpi_library("mpi:mpich")
    compiler = needs.compiler()
    (tmp_path / "lib.c").write_text("void MPI_Init(void) {}\n")
    (tmp_path / "main.c").write_text("void MPI_Init(void);\nint main(void) { MPI_Init(); return 0; }\n")
    library, built = tmp_path / "libmpich.so.12", tmp_path / "bin" / "NPmpich2"
    name = "-Wl,-soname,libmpich.so.12" if rpath else "-Wl,-soname,libother.so.12"
    subprocess.run([*compiler, "-shared", "-fPIC", name, "-o", library, tmp_path / "lib.c"], check=True)
    place = ["-Wl,--disable-new-dtags", f"-Wl,-rpath,{tmp_path}"] if rpath else []
    subprocess.run([*compiler, "-o", built, tmp_path / "main.c", library, *place], check=True)
    if rpath:
        with pytest.raises(MeasureError, match=f"runs with {library} instead of .*MPI4PY_LIBMPI={library}"):
            Pair("netpipe:mpich", buffers="same")
    else:
        with pytest.raises(MeasureError, match=r"does not find libother\.so\.12\. Remedy"):
            Pair("netpipe:mpich", buffers="same")


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_a_run_that_fails_names_what_was_printed(flavour, stand_in, monkeypatch):
    needs.mpi_library(f"mpi:{flavour}")
    monkeypatch.setenv("STAND_IN_FAILS", "1")
    with Pair(f"netpipe:{flavour}", buffers="same", timeout_s=LIMIT_S) as pair:
        with pytest.raises(MeasureError, match=f"{PROGRAMS[flavour]} failed .*it cannot, for a reason"):
            pair.run(8, count=7)
        scratch = pair._mpi_runs.scratch
    assert not os.path.exists(scratch)


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
def test_a_run_that_hangs_ends_at_its_limit(flavour, stand_in, monkeypatch):
    needs.mpi_library(f"mpi:{flavour}")
    monkeypatch.setenv("STAND_IN_HANGS", "1")
    with Pair(f"netpipe:{flavour}", buffers="same") as pair:
        scratch = pair._mpi_runs.scratch
        with pytest.raises(MeasureError, match="a run was not over after 2 s") as caught:
            pair.run(8, count=7, timeout_s=2.0)
    assert caught.value.reason == "timeout"
    assert not marked("VIAKIT_RANKS", scratch)
    assert not os.path.exists(scratch)


@pytest.mark.parametrize("flavour", mpi.FLAVOURS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_owner_that_ends_within_a_run_leaves_nothing(flavour, number, stand_in, monkeypatch):
    needs.mpi_library(f"mpi:{flavour}")
    monkeypatch.setenv("STAND_IN_HANGS", "1")
    words = [sys.executable, "-c", OWNER, f"netpipe:{flavour}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as owner:
        assert owner.stdout is not None
        scratch = owner.stdout.readline().strip()
        waiting.until(lambda: len(stand_in()) == 2, "both ranks run", LIMIT_S)
        assert marked("VIAKIT_RANKS", scratch)
        os.kill(owner.pid, number)
        owner.wait(LIMIT_S)
    waiting.until(lambda: not marked("VIAKIT_RANKS", scratch), "no process of the run is left", LIMIT_S)
    waiting.until(lambda: not os.path.exists(scratch), "its folder is removed", LIMIT_S)


def test_an_interrupted_sweep_between_hosts_leaves_nothing(stand_in, monkeypatch, tmp_path):
    needs.mpi_library("mpi:mpich")
    needs.hosts().close()
    monkeypatch.setenv("STAND_IN_HANGS", "1")
    monkeypatch.setenv("STAND_IN_MARK", str(tmp_path))
    words = [*VIAKIT, "sweep", "netpipe:mpich", "--hosts", "testbed", "--buffers", "same", "--sizes", "64", "-q"]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as owner:
        waiting.until(lambda: len(stand_in()) == 2, "both ranks run", LIMIT_S)
        owner.send_signal(signal.SIGINT)
        said = owner.communicate(timeout=LIMIT_S)[1]
        assert owner.returncode == 130, said
    waiting.until(lambda: not marked("STAND_IN_MARK", str(tmp_path)), "no process is left", LIMIT_S)


def test_what_it_cannot_do():
    with pytest.raises(plan.UsageError, match="--wait block, only with poll"):
        plan.plan(plan.Config(["netpipe:mpich"], [8], wait="block"))
    with pytest.raises(MeasureError, match="buffers 'touched'"):
        Pair("netpipe:openmpi")
    library = mpi.Library("mpich", "/nowhere/libmpi.so.12", "/nowhere/mpiexec")
    with pytest.raises(MeasureError, match=r"or on those of a testbed\. Remedy: --hosts testbed"):
        MpiRuns("netpipe:mpich", library, [0, 1], SimpleNamespace(kind="ssh"))


def test_touched_buffers_have_no_verdict_but_a_remedy():
    series = [
        {"protocol": "mpi:mpich", "buffers": "touched", "points": []},
        {"protocol": "netpipe:mpich", "buffers": "same", "points": []},
    ]
    assert table.agreement({"series": series}) == [
        "netpipe:mpich and mpi:mpich cannot be compared: only mpi:mpich touches its buffers. Add --buffers same."
    ]
    assert table.agreement({"series": series[:1]}) == []


def test_the_script_of_a_rank_names_the_library_first(stand_in, tmp_path):
    """LD_LIBRARY_PATH of the user comes last, so another MPI in it is not used."""
    library = needs.mpi_library("mpi:openmpi")
    with Pair("netpipe:openmpi", buffers="same") as pair:
        text = Path(pair._mpi_runs.scratch, "rank").read_text()
        assert f"{pair._mpi_runs.scratch}:{os.path.dirname(library.libmpi)}:" in text
