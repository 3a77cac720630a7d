"""MPI libraries between machines that ssh reaches: measured on the wire, refused with reasons, and gone at the end."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import needs
import pytest
from leftovers import marked
from ssh_hosts import ssh_hosts

from viakit.base.channel import Channel
from viakit.base.marks import environment_of
from viakit.base.process import command
from viakit.launch import mpi_library as mpi
from viakit.launch.far_mpi import FarMpi, taken
from viakit.measure import MeasureError, Pair
from viakit.remote import Remote

VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 200.0  # a command that needs longer is stuck, also on a busy machine
FLAVOURS = ["mpich", "openmpi"]
pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("ssh")


@pytest.fixture(scope="module")
def hosts(folder):
    with ssh_hosts(folder) as testbed:
        yield testbed


@pytest.fixture(scope="module")
def remote(hosts):
    with Remote("ssh:h0,h1") as remote:
        yield remote


@pytest.fixture
def on_hosts(hosts, remote, folder):
    """Return a function for the processes that ssh has started on the hosts since the test began; none may be left."""
    mark = f"XDG_CACHE_HOME={folder}/cache_".encode()
    before = set(marked(mark))

    def found():
        return {pid: command for pid, command in marked(mark).items() if pid not in before}

    yield found
    deadline = time.monotonic() + LIMIT_S
    while left := found():
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_sweep_has_an_mpi_on_the_wire(hosts, tmp_path, flavour):
    needs.mpi_library(f"mpi:{flavour}")
    file = tmp_path / "s.json"
    words = ["--hosts", "ssh:h0,h1", "--sizes", "64,64K", "--seconds", "2", "--validate", "--json", file]
    done = subprocess.run(
        [VIAKIT, "sweep", "tcp", f"mpi:{flavour}", *words], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    series = {one["protocol"]: one for one in document["series"]}
    assert document["validated"]
    assert {one["hosts"] for one in series.values()} == {"ssh"}
    assert {one["mtu"] for one in series.values()} == {1500}
    assert [point["nbytes"] for point in series[f"mpi:{flavour}"]["points"]] == [64, 65536]
    assert "tcp" in series[f"mpi:{flavour}"]["info"]["transport"].lower()
    assert series[f"mpi:{flavour}"]["info"]["interface"] == "eth0"


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_frames_of_an_mpi_cross_the_wire(remote, flavour):
    """The counters of the hosts' interfaces grow by the bytes of the messages."""
    needs.mpi_library(f"mpi:{flavour}")
    count = "awk '/eth0:/ { print $10 }' /proc/net/dev"  # sent bytes
    with Pair(f"mpi:{flavour}", testbed=remote) as pair:
        before = [int(host.run(["sh", "-c", count], timeout=LIMIT_S).stdout) for host in remote.hosts]
        pair.run(1 << 16, count=100)
        after = [int(host.run(["sh", "-c", count], timeout=LIMIT_S).stdout) for host in remote.hosts]
    assert all(end - begin > 100 << 16 for begin, end in zip(before, after, strict=True))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_each_burst_of_a_fresh_pair_has_processes_of_its_own(remote, on_hosts, flavour):
    needs.mpi_library(f"mpi:{flavour}")
    with Pair(f"mpi:{flavour}:fresh", testbed=remote, timeout_s=LIMIT_S) as pair:
        used = []
        for nbytes in (64, 1 << 16):
            assert pair.run(nbytes, count=20, validate=True).one_way_s.size == 20
            used += pair.pids
            ranks = [one for one in on_hosts().values() if re.search(r"^\S*python\S* .*--take", one)]
            assert len(ranks) == 2, ranks  # The processes of the burst before have gone.
        assert len(set(used)) == 4
        assert pair.info["hosts"] == "ssh"


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("side", [0, 1])
def test_a_killed_rank_ends_the_pair(remote, on_hosts, flavour, side):
    needs.mpi_library(f"mpi:{flavour}")
    with Pair(f"mpi:{flavour}", testbed=remote, timeout_s=LIMIT_S) as pair:
        files = {file for pid in pair.pids for file in mpi.shared_files(pid)}
        assert files or flavour == "openmpi"
        remote.hosts[side].run(["kill", "-9", str(pair.pids[side])], timeout=LIMIT_S)
        with pytest.raises(MeasureError) as caught:
            pair.run(64, count=1000)
    assert caught.value.reason in ("died", "gone")
    assert not [file for file in files if os.path.exists(file)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("flavour", FLAVOURS)
def test_nothing_is_left_of_a_sweep_that_is_stopped(on_hosts, flavour, number):
    needs.mpi_library(f"mpi:{flavour}")
    words = ["--hosts", "ssh:h0,h1", "--sizes", "64", "--seconds", "1000"]
    process = subprocess.Popen(
        [VIAKIT, "sweep", f"mpi:{flavour}", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + LIMIT_S
        while len([command for command in on_hosts().values() if re.search(r"^\S*python\S* .*--take", command)]) < 2:
            assert process.poll() is None, process.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(number)
        process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode != 0


def test_a_library_that_a_host_lacks_is_named_with_the_host(remote):
    with contextlib.suppress(MeasureError):
        mpi.find("mpi:openmpi+oshmem")
        pytest.skip("this machine has an Open MPI with OpenSHMEM; no library is missing")
    with pytest.raises(MeasureError, match="host h0: shmem: no Open MPI here"):
        FarMpi("mpi:openmpi+oshmem", remote, [0, 1]).open()


def test_the_network_of_hosts_with_interfaces_without_address():
    far = FarMpi("mpi:openmpi", None, [0, 1])
    for address in ("10.0.0.1", "10.0.0.2"):
        facts = {"interfaces": [{"address": None}, {"address": f"{address}/24"}]}
        far.places.append(SimpleNamespace(host=SimpleNamespace(address=address, facts=facts)))
    assert far._network() == "10.0.0.0/24"


def test_different_versions_are_refused():
    far = FarMpi("mpi:openmpi", None, [0, 1])
    for name, version in (("alpha", "libmpi.so.40.40.7"), ("beta", "libmpi.so.40.30.4")):
        far.places.append(SimpleNamespace(host=SimpleNamespace(name=name), version=version))
    with pytest.raises(MeasureError, match=r"alpha has libmpi.so.40.40.7, host beta has libmpi.so.40.30.4"):
        far._check_versions()


def test_a_rank_whose_owner_has_ended_takes_nothing(tmp_path):
    assert taken(str(tmp_path / "absent")) is None
    assert not os.listdir(tmp_path)


@pytest.fixture
def helper(tmp_path):
    """A helper for two ranks, a socket and an agent on this machine: its process, control channel, folder, far ends."""
    library = needs.mpi_library("mpi")
    pairs = [socket.socketpair() for _ in range(3)]
    fds = [far.fileno() for _, far in pairs]
    options = [f"--control={fds[0]}", f"--ranks={fds[1]}", f"--starts={fds[2]}", "--here=2"]
    options += [str(tmp_path), "x" * 24, "mpi"]
    process = subprocess.Popen(command("viakit.launch.far_mpi", options), pass_fds=fds)
    for _, far in pairs:
        far.close()
    channels = [Channel(near) for near, _ in pairs]
    try:
        found, _ = channels[0].recv(LIMIT_S)
        assert found["mpiexec"] == library.mpiexec
        yield process, channels, tmp_path
    finally:
        for channel in channels:
            channel.close()
        assert process.wait(LIMIT_S) == 0


def test_a_helper_serves_each_rank_once(helper):
    _, (_, rank, _), folder = helper
    channel = taken(str(folder / "ranks"))
    channel.send({"hello": 1})
    assert rank.recv(LIMIT_S)[0] == {"hello": 1}
    assert taken(str(folder / "ranks")) is None
    channel.close()


@pytest.mark.parametrize("first", ["ends before the second starts", "ends last"])
def test_a_helper_notices_the_end_of_the_last_rank(helper, first):
    _, (control, _, _), folder = helper
    one = subprocess.Popen([folder / "rank", "cat"], stdin=subprocess.PIPE)
    if first == "ends before the second starts":
        one.communicate(timeout=LIMIT_S)
    # 9 is the descriptor of this rank's library.
    words = ["sh", "-c", 'exec 9< /dev/null; exec "$0" sh -c "cat <&9 && exit 3"', folder / "rank"]
    assert subprocess.run(words, timeout=LIMIT_S).returncode == 3
    if first == "ends last":
        with pytest.raises(TimeoutError):
            control.recv(0.2)
        one.communicate(timeout=LIMIT_S)
    assert control.recv(LIMIT_S)[0] == {"ranks": "ended"}


def test_the_agent_takes_the_place_of_ssh(helper):
    """Options are ignored; the command, its output and its status pass through."""
    _, (_, _, start), folder = helper
    agent = subprocess.Popen([folder / "agent", "-x", "beta", "echo", "'two words'"], stdout=subprocess.PIPE)
    assert start.recv(LIMIT_S)[0] == {"host": "beta", "command": "echo 'two words'"}
    start.send({"output": 4}, b"one\n")
    start.send({"status": 7})
    assert agent.communicate(timeout=LIMIT_S)[0] == b"one\n"
    assert agent.returncode == 7
    again = subprocess.run([folder / "agent", "beta", "true"], capture_output=True, timeout=LIMIT_S)
    assert again.returncode == 255
    assert b"has ended" in again.stderr


def test_a_process_that_begins_is_found_by_its_environment():
    """Popen returns while the kernel still shows an empty environment, nearly always if both share a processor."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        for _ in range(10):
            with subprocess.Popen(["sleep", "1000"], env={**os.environ, "VIAKIT_RANKS": "y" * 24}) as process:
                found = environment_of(process.pid)
                process.kill()
            assert b"VIAKIT_RANKS=" in found
    finally:
        os.sched_setaffinity(0, before)


def test_a_helper_ends_with_its_owner_and_kills_what_is_left(helper):
    process, (control, _, _), _ = helper
    stray = subprocess.Popen(["sleep", "1000"], env={**os.environ, "VIAKIT_RANKS": "x" * 24})
    control.close()
    assert stray.wait(LIMIT_S) == -signal.SIGKILL
    assert process.wait(LIMIT_S) == 0
