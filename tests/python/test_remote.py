"""Real machines over ssh: hosts of a testbed, each with a network of its own, that OpenSSH reaches without a port."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from ssh_hosts import ssh_hosts

from viakit import doctor_hosts
from viakit.base import hardware
from viakit.doctor_hosts import _judge_card
from viakit.launch.options import Options
from viakit.measure import Config, calibration_store
from viakit.measure.calibrate_messages import Thresholds
from viakit.measure.crews import Placement
from viakit.remote import Remote, RemoteError, parse
from viakit.remote.facts import common
from viakit.remote.mux import Lost, Mux
from viakit.remote.spec import chosen_hosts, network_of_first
from viakit.testbed import TestbedError

VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 60.0  # what takes longer is stuck, also on a busy machine
PROGRAM = """
import os, socket, sys, time
import viakit
comm = viakit.world()
names = comm.allgather((socket.gethostname(), os.environ["VIAKIT_NETWORK"]))
if comm.rank == 0:
    print(*(":".join(one) for one in names), flush=True)
if "die" in sys.argv and comm.rank == 1:
    os.kill(os.getpid(), 9)
if "wait" in sys.argv:
    time.sleep(100)
"""


# ---- the text that names hosts


def test_hosts_are_parsed_with_their_slots():
    spec = parse("ssh:alpha,me@beta*3")
    assert spec.names == ("alpha", "me@beta")
    assert spec.slots == (1, 3)
    assert [spec.host_of(rank, 8) for rank in range(8)] == [0, 1, 1, 1, 0, 1, 1, 1]
    assert [spec.host_of(rank, 4, "cyclic") for rank in range(4)] == [0, 1, 1, 1]
    equal = parse("ssh:a,b")
    assert [equal.host_of(rank, 4) for rank in range(4)] == [0, 0, 1, 1]
    assert str(spec) == "ssh:alpha*1,me@beta*3"
    assert str(parse(str(spec))) == str(spec)


def test_hosts_are_read_from_a_file(tmp_path):
    (tmp_path / "hosts").write_text("# the lab\nalpha\nbeta slots=2  # two ranks\n\ngamma 4\n")
    spec = parse(f"ssh:@{tmp_path}/hosts")
    assert spec.names == ("alpha", "beta", "gamma")
    assert spec.slots == (1, 2, 4)


@pytest.mark.parametrize(
    "text", ["ssh:", "ssh:a,,b", "ssh:a*0", "ssh:a*x", "a,b", "ssh:-oProxyCommand=x", "ssh:a b", "ssh:a,a"]
)
def test_malformed_hosts_are_refused(text):
    with pytest.raises(ValueError, match=r"expected ssh:HOST|more than once"):
        parse(text)


def test_hosts_have_one_meaning():
    for text, number in (("local", 0), ("testbed", 2), ("testbed:2", 2), ("testbed:64", 64)):
        assert chosen_hosts(text) == number
        assert Options(64, hosts=text).n_hosts == number
        assert Placement(hosts=text).n_hosts == max(1, number)
    assert chosen_hosts(7) == 7
    assert chosen_hosts("ssh:a*2,b") == "ssh:a*2,b*1"
    assert Config(["tcp"], [8], hosts="testbed:2").hosts == "testbed"
    for text in ("testbed:0", "testbed:65", "testbed:", "testbed:x", "remote", "", "ssh:"):
        with pytest.raises(ValueError, match=r"expected local, testbed:N|expected ssh:HOST"):
            Options(64, hosts=text)


def test_a_network_of_several_interfaces_for_fewer_hosts():
    assert network_of_first("eth:a,b,c", 2) == "eth:a,b"
    assert network_of_first("udp:10.0.0.0/24", 1) == "udp:10.0.0.0/24"
    assert network_of_first(None, 1) is None


@pytest.mark.parametrize("words", [["barrier"], ["collectives"]])
def test_a_network_of_ranks_on_this_host_is_refused(words):
    for option in (["--network", "udp:10.77.0.0/24"], ["--python", "/usr/bin/python3"]):
        done = viakit(*words, *option)
        assert done.returncode == 2
        assert "network and python are for machines that ssh reaches" in done.stderr


def test_a_file_of_hosts_of_an_editor_of_windows(tmp_path):
    (tmp_path / "hosts").write_bytes(b"\xef\xbb\xbfalpha\r\nbeta 4\r\n")
    assert parse(f"ssh:@{tmp_path}/hosts").names == ("alpha", "beta")


def test_a_file_of_hosts_that_cannot_be_used_is_named_with_what_it_must_contain(tmp_path):
    (tmp_path / "empty").write_text("# no host\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    for name, why in (
        ("missing", "cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
        ("binary", "cannot be read: it is no text in UTF-8"),
        ("empty", "names no host"),
    ):
        with pytest.raises(ValueError, match="must contain a host on each line") as caught:
            parse(f"ssh:@{tmp_path}/{name}")
        assert f"ssh:@{tmp_path}/{name}: " in str(caught.value)
        assert why in str(caught.value)
    with pytest.raises(ValueError, match="ssh:@ names no file"):
        parse("ssh:@")
    done = viakit("app", "ep", "--hosts", f"ssh:@{tmp_path}/missing")
    assert done.returncode == 2
    assert "must contain a host on each line" in done.stderr


def _interfaces(*addresses):
    return [{"address": address, "loopback": address.startswith("127.")} for address in addresses]


@pytest.mark.parametrize(
    ("hosts", "chosen"),
    [
        ([["127.0.0.1/8", "10.0.0.1/24"], ["127.0.0.1/8", "10.0.0.2/24"]], ["10.0.0.1/24", "10.0.0.2/24"]),
        # a bridge with the same address on each host, as Docker's, joins nothing
        ([["172.17.0.1/16", "10.0.0.1/24"], ["172.17.0.1/16", "10.0.0.2/24"]], ["10.0.0.1/24", "10.0.0.2/24"]),
        ([["10.1.0.1/24", "10.0.0.1/24"], ["10.0.0.2/24"], ["10.0.0.3/24"]], [f"10.0.0.{n}/24" for n in (1, 2, 3)]),
        ([["127.0.0.1/8"], ["127.0.0.1/8"]], None),
        ([["10.0.0.1/24"], ["10.0.1.1/24"]], None),
    ],
)
def test_the_network_in_common(hosts, chosen):
    found = common([_interfaces(*addresses) for addresses in hosts], loopback=False)
    assert (found and [one["address"] for one in found]) == chosen
    both = common([_interfaces("127.0.0.1/8")] * 2, loopback=True)
    assert both == _interfaces("127.0.0.1/8") * 2


# ---- the connection


def test_an_unread_stream_delays_no_other():
    """One of two streams is not read: the other one passes 4 MB, and a window of the first one waits."""
    near, far = socket.socketpair()
    ends = [Mux(sock.fileno(), sock.fileno(), lambda *_: None) for sock in (near, far)]
    pairs = {}
    for end, mux in enumerate(ends):
        for number in (3, 4):
            mine, its = socket.socketpair()
            mux.add(1, number, its.detach(), reads=True, writes=True)
            pairs[end, number] = mine
    stop = threading.Event()

    def loop(mux):
        while not stop.is_set():
            mux.turn({}, 0.05)

    threads = [threading.Thread(target=loop, args=(mux,)) for mux in ends]
    for thread in threads:
        thread.start()
    data = os.urandom(1 << 22)
    writer = threading.Thread(target=pairs[0, 4].sendall, args=(data,))
    try:
        pairs[0, 3].settimeout(1.0)
        with pytest.raises(TimeoutError):  # once the window and all buffers of stream 3 are full
            pairs[0, 3].sendall(b"x" * (1 << 24))
        writer.start()
        got = bytearray()
        pairs[1, 4].settimeout(LIMIT_S)
        while len(got) < len(data):
            got += pairs[1, 4].recv(1 << 16)
        writer.join(LIMIT_S)
        assert got == data
    finally:
        stop.set()
        for thread in threads:
            thread.join(LIMIT_S)
        for item in (*ends, *pairs.values(), near, far):
            item.close()


@pytest.mark.parametrize("junk", [b"Welcome to Debian\r\n" * 4, b"\xff" * 64])
def test_a_peer_that_is_no_agent_is_refused(junk):
    near, far = socket.socketpair()
    mux = Mux(near.fileno(), near.fileno(), lambda *_: None)
    far.sendall(junk)
    try:
        with pytest.raises(Lost, match="no agent"):
            mux.turn({}, 5.0)
    finally:
        for item in (mux, near, far):
            item.close()


# ---- hosts


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


def test_both_hosts_have_their_own_network(remote):
    assert [host.address for host in remote.hosts] == ["10.77.0.1", "10.77.0.2"]
    assert [host.interface for host in remote.hosts] == ["eth0", "eth0"]
    names = [host.run(["hostname"], timeout=LIMIT_S).stdout.strip() for host in remote.hosts]
    assert names == ["h0", "h1"]


def test_processes_have_streams_status_and_signals(remote):
    host = remote.hosts[0]
    done = host.run(["sh", "-c", "cat; echo bad >&2; exit 3"], input="some words", timeout=LIMIT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (3, "some words", "bad\n")
    with pytest.raises(FileNotFoundError, match="h0"):
        host.popen(["/nonexistent"])
    process = host.popen(["sleep", "100"])
    process.kill()
    assert process.wait(LIMIT_S) == -signal.SIGKILL


def test_processes_end_with_the_connection(hosts):
    word = uuid.uuid4().hex  # in the command line, and in that of no other test
    with Remote("ssh:h1") as remote:
        process = remote.hosts[0].popen(["sh", "-c", f"echo {word}; sleep 98765; true"])
    assert process.wait(LIMIT_S) != 0
    deadline = time.monotonic() + LIMIT_S
    while subprocess.run(["pgrep", "-f", f"echo {word};"], capture_output=True).returncode == 0:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("refusing", "refusing cannot be reached.*Permission denied.*ssh-copy-id refusing"),
        ("newhost", "newhost cannot be reached.*Host key verification failed.*by hand"),
    ],
)
def test_a_host_that_cannot_be_reached_is_named(hosts, name, says):
    with pytest.raises(RemoteError, match=f"(?s){says}"):
        Remote(f"ssh:h0,{name}").open()


def test_a_host_without_viakit_is_told_how_to_install_it(hosts):
    with pytest.raises(RemoteError, match=r"h0: viakit is not installed for /usr/bin/python3.*pip install viakit=="):
        Remote("ssh:h0", python="/usr/bin/python3").open()  # Debian's own, which the tests do not install into


@pytest.mark.parametrize(
    ("python", "says"),
    [
        ("/nowhere/python", "h0: /nowhere/python is no program there.*ssh h0 'ls /usr/bin/python3[*]'.*--python PATH"),
        ("/tmp", "h0: /tmp is no program there"),
        ("/bin/false", "h0: /bin/false ended there with exit status 1: .*ssh h0 /bin/false -c 'import viakit'"),
    ],
)
def test_a_wrong_interpreter_is_named_with_its_host(hosts, python, says):
    with pytest.raises(RemoteError, match=f"(?s){says}"):
        Remote("ssh:h0,h1", python=python).open()


def test_networks_are_chosen_and_refused(hosts):
    with Remote("ssh:h0,h1", network="eth:eth0") as remote:
        assert [host.device for host in remote.hosts] == ["eth:eth0", "eth:eth0"]
    with Remote("ssh:h0,h1", network="udp:10.77.0.0/24") as remote:
        assert [host.device for host in remote.hosts] == ["udp:10.77.0.1", "udp:10.77.0.2"]
    for wrong, says in (
        ("eth:eth7", "no interface eth7"),
        ("udp:10.1.0.0/16", "no address"),
        ("ib:0", "expected eth:IF"),
        ("eth:lo", "lo is the loopback of h0, which leads to no other host; h0 has lo 127.0.0.1/8, eth0 10.77.0.1/24"),
        ("udp:127.0.0.1", "lo is the loopback of h0"),
    ):
        with pytest.raises(RemoteError, match=says):
            Remote("ssh:h0,h1", network=wrong).open()


def test_a_network_with_one_address_on_both_hosts_is_refused(hosts):
    """As that of Docker's bridge, which each host has for itself."""
    commands = ("link add same0 type bridge", "address add 172.17.0.1/16 dev same0", "link set same0 up")
    for host in hosts.hosts:
        for words in commands:
            host.run(["ip", *words.split()], timeout=LIMIT_S, check=True)
    try:
        with pytest.raises(RemoteError, match=r"h0 and h1 have the same address 172\.17\.0\.1 \(same0\)"):
            Remote("ssh:h0,h1", network="udp:172.17.0.0/16").open()
    finally:
        for host in hosts.hosts:
            host.run(["ip", "link", "del", "same0"], timeout=LIMIT_S, check=True)


# ---- commands


def viakit(*words, timeout=100, **how):
    return subprocess.run([VIAKIT, *words], capture_output=True, text=True, timeout=timeout, **how)


def test_sweep_measures_between_machines(hosts, tmp_path):
    file = tmp_path / "s.json"
    words = ["sweep", "via-udp", "tcp", "msg-via", "--sizes", "64,4K", "--seconds", "2", "--validate"]
    done = viakit(*words, "--hosts", "ssh:h0,h1", "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {one["hosts"] for one in document["series"]} == {"ssh"}
    assert document["validated"]
    assert all(len(one["points"]) == 2 for one in document["series"])
    environment = document["environment"]
    assert "10.77.0.1 (eth0), 10.77.0.2 (eth0)" in environment["network"]
    assert [one["environment"]["host"] for one in environment["hosts"]] == ["h0", "h1"]
    assert all(one["environment"]["kernel"] for one in environment["hosts"])
    for one in (one["environment"] for one in environment["hosts"]):
        assert (one["interface"], one["mtu"], one["card"]["driver"]) == ("eth0", 1500, "veth")
        assert one["offloads"]["tso"]
        assert one["clock_source"] == hardware.clock_source()
        assert "command" not in one


def test_a_file_of_hosts_with_numbers_of_ranks_serves_a_sweep(hosts, tmp_path):
    (tmp_path / "hosts").write_text("h0 2\nh1 4\n")
    words = ["sweep", "tcp", "--sizes", "64", "--seconds", "1", "--hosts", f"ssh:@{tmp_path}/hosts"]
    done = viakit(*words, "--json", tmp_path / "s.json")
    assert done.returncode == 0, done.stderr
    hosts = json.loads((tmp_path / "s.json").read_text())["environment"]["hosts"]
    assert [one["name"] for one in hosts] == ["h0", "h1"]


def test_a_sweep_whose_wire_is_cut_names_both_machines_and_keeps_its_points(hosts, tmp_path):
    """The connections of ssh do not use the wire. The sweep ends long before its time."""
    words = ["sweep", "via-udp", "--sizes", "64,4K", "--seconds", "1000", "--hosts", "ssh:h0,h1"]
    with subprocess.Popen(
        [VIAKIT, *words, "--live", "--json", tmp_path / "cut.json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert json.loads(process.stdout.readline())["protocol"] == "via-udp"
            hosts.hosts[1].run(["ip", "link", "set", "eth0", "down"], timeout=LIMIT_S)
            _, errors = process.communicate(timeout=2 * LIMIT_S)
        finally:
            process.kill()
            hosts.hosts[1].run(["ip", "link", "set", "eth0", "up"], timeout=LIMIT_S)
    assert process.returncode == 1
    assert "between h0 (10.77.0.1) and h1 (10.77.0.2)" in errors
    document = json.loads((tmp_path / "cut.json").read_text())
    assert not document["complete"]
    assert document["series"][0]["points"]
    assert "between h0" in document["errors"][0]["message"]


def test_sweep_refuses_what_is_for_a_testbed(hosts):
    for words, says in (
        (["--mtu", "9000"], "--mtu sets the testbed's wire"),
        (["--interface", "eth0"], "--network eth:IF0,IF1"),
    ):
        done = viakit("sweep", "tcp", "--hosts", "ssh:h0,h1", *words)
        assert done.returncode == 2
        assert says in done.stderr
    for wrong in ("ssh:a,b,c", "ssh:."):
        done = viakit("sweep", "tcp", "--hosts", wrong)
        assert done.returncode == 2
        assert "two sides" in done.stderr


def test_doctor_examines_both_hosts_and_the_way_between_them(hosts):
    done = viakit("doctor", "--hosts", "ssh:h0,h1", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [host["name"] for host in report["hosts"]] == ["h0", "h1"]
    assert all({"cores", "kernel"} <= {one["name"] for one in host["findings"]} for host in report["hosts"])
    assert [(way["from"], way["to"]) for way in report["ways"]] == [("h0", "h1"), ("h1", "h0")]
    for way in report["ways"]:
        checks = {one["name"]: one for one in way["checks"]}
        assert way["ok"]
        assert "MTU 1500" in checks["interface"]["value"]
        assert "veth" in checks["card"]["value"]
        assert "tso" in checks["offloads"]["value"].partition("off ")[0]
        assert checks["frames of 1500 bytes"]["ok"] is True
        assert checks["jumbo frames"]["ok"] is None
        assert "mtu 9000" in checks["jumbo frames"]["remedy"]
    done = viakit("doctor", "--hosts", "ssh:h0,h1")
    assert "h0 -> h1" in done.stdout


def test_a_doctor_that_fails_on_a_host_is_named(hosts, monkeypatch):
    monkeypatch.setattr(doctor_hosts.children, "command", lambda *_: [sys.executable, "-c", "exit('no disk left')"])
    with pytest.raises(RemoteError, match=r"host h[01]: viakit doctor ended there with status 1: no disk left"):
        doctor_hosts.examine("ssh:h0,h1")


def test_bench_fails_if_a_host_cannot_be_reached(hosts):
    done = viakit("bench", "--hosts", "ssh:h0,nosuch", "--seconds", "1", "--quiet", "--no-apps")
    assert done.returncode == 1
    assert "nothing was measured" in done.stderr
    assert "nosuch" in done.stderr


def test_doctor_notes_offloads_that_are_off():
    """Without them, the sender's processor cuts long messages into frames."""
    offloads = {"tx-checksum": True, "sg": True, "tso": False, "gso": False, "gro": False}
    card, found = _judge_card({"interface": "eth3", "driver": "e1000", "speed_mbit_s": 2500, "offloads": offloads})
    assert card["value"] == "e1000, 2.5 Gbit/s"
    assert (found["ok"], found["value"]) == (None, "on tx-checksum, sg; off tso, gso, gro")
    assert found["remedy"].endswith("sudo ethtool -K eth3 tso on gso on")
    assert [one["value"] for one in _judge_card({"interface": "eth3"})] == ["not reported by the kernel"] * 2


def test_calibrations_are_saved_on_both_machines(hosts, folder, tmp_path):
    words = ["calibrate", "tcp", "--hosts", "ssh:h0,h1", "--seconds", "1"]
    done = viakit(*words, env={**os.environ, "XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    places = [folder / f"cache_h{i}" / "viakit" / "msg-tcp.txt" for i in range(2)]
    said = [line for line in done.stdout.splitlines() if line.startswith("wrote ")]
    assert said == [f"wrote h{i}:{place}" for i, place in enumerate(places)]
    texts = [place.read_text() for place in places]
    assert texts[0] == texts[1]
    assert "eager_limit " in texts[0]
    assert not list(tmp_path.iterdir())


def test_a_calibration_that_cannot_be_saved_names_the_machine(remote, folder, monkeypatch):
    place = folder / "cache_h1" / "viakit"
    shutil.rmtree(place, ignore_errors=True)
    place.parent.mkdir(exist_ok=True)
    place.touch()  # a file where the folder has to be
    found = Thresholds("udp", {}, {})
    monkeypatch.setattr(found, "text", lambda: "credits 16\n")
    with pytest.raises(TestbedError, match=f"h1 did not save the calibration: {place}: File exists"):
        calibration_store.save_on(remote, [found])
    place.unlink()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["shm"], "shm stays within a host"),
        (["eth"], "eth needs the interface of the wire: --network eth:IF"),
        (["--rate", "1gbit"], "--rate sets the testbed's wire"),
        (["--network", "verbs:mlx5_0"], "calibrated are eth:IF and udp:ADDRESS"),
        (["--hosts", "ssh:a,b,c"], "a wire has two ends"),
        (["--hosts", "testbed", "--network", "eth:eth0"], "are for --hosts ssh:"),
        (["--hosts", "local", "tcp"], "tcp is for two hosts; with --hosts local expected shm"),
        (["--hosts", "testbed:3"], "expected local, testbed, ssh:HOST,HOST or job"),
        (["--hosts", "ssh:."], "a wire has two ends"),
    ],
)
def test_calibrate_refuses_hosts_and_wires(words, says):
    done = viakit("calibrate", "--hosts", "ssh:h0,h1", *words)
    assert done.returncode == 2
    assert says in done.stderr


@pytest.mark.parametrize("words", [["barrier"], ["collectives", "--operations", "bcast", "--sizes", "8"]])
def test_barriers_and_collectives_run_on_machines(hosts, tmp_path, words):
    file = tmp_path / "b.json"
    done = viakit(*words, "--hosts", "ssh:h0,h1", "--ranks", "2,3", "--no-mpi", "--seconds", "2", "--json", file)
    assert done.returncode == 0, done.stderr
    document = json.loads(file.read_text())
    assert {(one["ranks"], one["hosts"]) for one in document["series"]} == {(2, 2), (3, 2)}
    assert [one["name"] for one in document["environment"]["hosts"]] == ["h0", "h1"]


@pytest.mark.parametrize("words", [[], ["--protocol", "tcp"]])
def test_ranks_run_on_machines(hosts, tmp_path, words):
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = viakit("run", "--hosts", "ssh:h0*2,h1", *words, tmp_path / "prog.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["h0:udp:10.77.0.1", "h0:udp:10.77.0.1", "h1:udp:10.77.0.2"]


def test_an_application_takes_the_network_of_its_machines(hosts):
    words = ["app", "ep", "--hosts", "ssh:h0,h1", "--class", "S"]
    done = viakit(*words, "--network", "eth:eth0", "--report", "counts")
    assert done.returncode == 0, done.stderr
    assert "right: " in done.stdout
    done = viakit(*words, "--network", "eth:eth7")
    assert done.returncode == 1
    assert "h0 has no interface eth7 that is up; it has " in done.stderr


def test_a_speedup_has_the_network_and_the_machines_in_its_result(hosts, tmp_path):
    """The job of one rank has the first interface only; two are named."""
    words = ["speedup", "ep", "--quick", "--rounds", "1", "--protocols", "via", "--ranks", "1,2"]
    done = viakit(
        *words, "--hosts", "ssh:h0,h1", "--network", "eth:eth0,eth0", "--json", tmp_path / "s.json", timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    about = json.loads((tmp_path / "s.json").read_text())["environment"]
    assert about["network"] == "eth 10.77.0.1 (eth0), 10.77.0.2 (eth0)"
    assert [one["name"] for one in about["hosts"]] == ["h0", "h1"]
    assert all("kernel" in one["environment"] for one in about["hosts"])


@pytest.mark.parametrize("words", [["app", "ep", "-n", "2"], ["app", "ep"], ["speedup", "ep"], ["run", "true"]])
def test_a_network_without_hosts_is_refused(words):
    done = viakit(words[0], "--network", "udp:10.77.0.0/24", *words[1:])
    assert done.returncode == 2
    assert "--network is the wire between hosts; add --hosts ssh:A,B" in done.stderr


@pytest.mark.parametrize("words", [["run", "true"], ["app", "ep", "-n", "2"], ["sweep", "tcp"]])
def test_an_interpreter_without_machines_is_refused(words):
    for hosts in ("local", "testbed"):
        done = viakit(words[0], "--hosts", hosts, "--python", "/usr/bin/python3", *words[1:])
        assert done.returncode == 2
        assert "python is the interpreter on machines that ssh reaches" in done.stderr


def test_a_rank_that_dies_ends_the_job_on_all_machines(hosts, tmp_path):
    (tmp_path / "prog.py").write_text(PROGRAM)
    done = viakit("run", "--hosts", "ssh:h0,h1", tmp_path / "prog.py", "die", "wait")
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 1 ended by SIGKILL on h1" in done.stderr
    assert not _running(tmp_path)


def test_a_job_that_loses_a_machine_names_it(hosts, tmp_path):
    """The ssh process of one host ends: the error names the host, and the ranks on both hosts end."""
    (tmp_path / "prog.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [VIAKIT, "run", "--hosts", "ssh:h0,h1", tmp_path / "prog.py", "wait"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline().startswith("h0:")
        clients = subprocess.run(
            ["pgrep", "-P", str(process.pid), "-f", "BatchMode=yes.* -- h1 "], capture_output=True, text=True
        )
        os.kill(int(clients.stdout), signal.SIGKILL)
        _, errors = process.communicate(timeout=100)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 128 + signal.SIGKILL
    assert "host h1: lost the connection" in errors
    assert "rank 1 was there" in errors
    deadline = time.monotonic() + 60
    while _running(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_launcher_that_ends_leaves_nothing_on_the_machines(hosts, tmp_path, number):
    (tmp_path / "prog.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [VIAKIT, "run", "--hosts", "ssh:h0,h1", tmp_path / "prog.py", "wait"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline().startswith("h0:")
    process.send_signal(number)
    process.communicate(timeout=LIMIT_S)
    deadline = time.monotonic() + LIMIT_S
    while _running(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _running(folder):
    """Return whether a process has a file of *folder* in its command line."""
    return subprocess.run(["pgrep", "-f", str(folder / "prog.py")], capture_output=True).returncode == 0
