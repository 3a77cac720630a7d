"""LAM/MPI itself as a protocol of a sweep. The tests that all protocols have in common are in test_pairs.py."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import needs
import pytest
import waiting
from daemon_cases import daemons, datagrams, folders_of, kill_a_side, kill_on_ssh
from ssh_hosts import ssh_hosts

from viakit.launch import mpi_library
from viakit.measure import plan
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair
from viakit.measure.sides_lam import _COMMAND, LamSide
from viakit.remote import Remote
from viakit.testbed import Testbed

REQUEST = {"protocol": "lam", "side": 0, "wait": "poll", "level": "c", "secret": "00" * 32, "hosts": "testbed"}


@pytest.fixture
def bed():
    needs.lam()
    with Testbed() as found:
        yield found


def test_routes_are_those_of_lam(bed):
    """The daemons exchange datagrams, processes that are client to client do not."""
    moved = {}
    for protocol in ("lam", "lam:lamd"):
        with Pair(protocol, testbed=bed, wait="block") as pair:
            assert pair.info["library"].startswith("LAM/MPI 7.")
            assert ("sndbuf" in pair.info) == (protocol == "lam")
            pair.run(1000, count=5, validate=True)
            before = datagrams(bed)
            pair.run(1000, count=50, validate=True)
            moved[protocol] = datagrams(bed) - before
    assert moved["lam:lamd"] > 50
    assert moved["lam"] < 20


@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("buffers", ["touched", "same", "cold"])
def test_messages_of_several_packets_pass_the_daemons(bed, buffers, wait):
    """LAM acknowledges the first packet with an address that it has not set, which the kernel may reject."""
    with Pair("lam:lamd", testbed=bed, wait=wait, buffers=buffers) as pair:
        for nbytes in (8193, 65536, 300_000):
            pair.run(nbytes, count=10)


def test_another_lam_in_the_environment_is_not_used(bed, monkeypatch):
    monkeypatch.setenv("LAM_MPI_SESSION_SUFFIX", "other")
    monkeypatch.setenv("LAM_MPI_SSI_rpi", "unknown")
    monkeypatch.setenv("LAMRANK", "3")
    with Pair("lam", testbed=bed, wait="block") as pair:
        pair.run(64, count=3, validate=True)


def test_nothing_is_left(bed):
    with Pair("lam", testbed=bed, wait="block") as pair:
        pair.run(64, count=3)
        folders = folders_of(pair, bed.hosts)
        assert len(folders) == 2
        assert len(daemons("lamd", folders)) == 2
    waiting.until(lambda: not daemons("lamd", folders), "no daemon is left", 10)
    assert not any(one.exists() for one in folders)


@pytest.mark.parametrize("protocol", ["lam", "lam:lamd"])
def test_a_side_that_is_killed(bed, protocol):
    kill_a_side(protocol, bed)


def test_a_killed_daemon_ends_the_run(bed):
    """The processes notice it, or the run ends at its time limit."""
    with Pair("lam:lamd", testbed=bed, wait="block", timeout_s=3.0) as pair:
        pair.run(64, count=3)
        folders = folders_of(pair, bed.hosts)
        for pid in daemons("lamd", folders):
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(MeasureError):
            pair.run(64, count=3)
    waiting.until(lambda: not daemons("lamd", folders), "no daemon is left", 10)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("killed", ["worker", "agent"])
def test_what_is_killed_on_a_host_of_ssh_leaves_no_daemon(tmp_path, killed, side):
    """Its folder is removed, too, although no other measurement follows on that host."""
    needs.lam()
    with ssh_hosts(tmp_path), Remote("ssh:h0,h1") as remote:
        # A user without root has the number 0 in the user namespace of these hosts.
        user = subprocess.run([*os.environ["VIAKIT_SSH"].split(), "h0", "id -u"], capture_output=True, text=True)
        if user.stdout.strip() == "0":
            with pytest.raises(MeasureError, match=r"refuses to run as root\. Remedy: --hosts ssh:USER@A,USER@B"):
                Pair("lam", testbed=remote, wait="block")
            return
        kill_on_ssh("lam", remote, killed, side, command="lamd")


def test_what_it_cannot_do():
    with pytest.raises(MeasureError, match=r"LAM has one daemon on each host\. Remedy: --hosts testbed"):
        Pair("lam")
    assert plan.plan(plan.Config(["lam"], [8]))[1], "hosts auto is the testbed"
    with pytest.raises(plan.UsageError, match="stream"):
        plan.plan(plan.Config(["lam:lamd"], [8], mode="stream", wait="block"))


def test_without_lam(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeasureError, match=r"there is no lamboot in PATH\. Remedy: sudo apt-get install lam-runtime"):
        LamSide(REQUEST).open()


def test_without_its_library(monkeypatch):
    needs.lam()
    monkeypatch.setattr(LamSide, "soname", "liblam.so.0")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    with pytest.raises(MeasureError, match=r"liblam\.so\.0: .*Remedy: sudo apt-get install lam-runtime"):
        LamSide(REQUEST).open()


def test_it_starts_once_in_a_process(monkeypatch):
    needs.lam()
    monkeypatch.setattr(LamSide, "initialised", True)
    with pytest.raises(MeasureError, match="once in a process"):
        LamSide(REQUEST).open()


def test_a_program_that_fails_and_one_that_hangs(tmp_path, monkeypatch):
    """The error has what it has written."""
    bin = tmp_path / "bin"
    bin.mkdir()
    (bin / "lamboot").write_text('#!/bin/sh\necho; echo ------; echo "It seems that"; echo "it cannot"; exit $CODE\n')
    (bin / "hboot").write_text("#!/bin/sh\nexec sleep 100\n")
    for path in bin.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin}:/usr/bin:/bin")
    monkeypatch.setenv("CODE", "5")
    side = LamSide(REQUEST)
    side.folder = str(tmp_path)
    with pytest.raises(MeasureError, match="lam: lamboot failed with exit status 5: It seems that it cannot"):
        side._run("lamboot", deadline=time.monotonic() + 20)
    with pytest.raises(TimeoutError, match="lam: hboot did not end in time"):
        side._run("hboot", deadline=0)


@pytest.mark.parametrize(
    ("command", "accepted"),
    [
        ('hboot -t -c lam-conf.lamd -s -I "-H 10.77.0.1 -P 57933 -n 1 -o 0"', True),
        ("hboot -t -c lam-conf.lamd -s -I -H 10.77.0.1 -P 57933 -n 1 -o 0", True),
        ('hboot -t -c lam-conf.lamd -s -I "-H 10.77.0.1 -P 57933 -n 1 -o 0; id"', False),
        ('hboot -t -c /tmp/other -s -I "-H 10.77.0.1 -P 57933 -n 1 -o 0"', False),
        ("echo $SHELL", False),
        ("", False),
    ],
)
def test_only_the_command_of_a_daemon_is_executed(command, accepted):
    assert bool(_COMMAND.fullmatch(command)) == accepted


def test_the_mpiexec_of_lam_starts_no_ranks_of_another_mpi(monkeypatch, tmp_path):
    """Debian's alternatives may make it the mpiexec in PATH."""
    (tmp_path / "mpiexec.lam").touch(0o755)
    (tmp_path / "mpiexec").symlink_to("mpiexec.lam")
    (tmp_path / "lib").mkdir()
    monkeypatch.setenv("MPI4PY_LIBMPI", str(tmp_path / "lib" / "libmpi.so.12"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mpi_library.launcher_in_path() is None
    assert mpi_library._chosen() is None
    (tmp_path / "mpiexec").unlink()
    (tmp_path / "mpiexec").touch(0o755)
    assert mpi_library.launcher_in_path() == str(tmp_path / "mpiexec")
