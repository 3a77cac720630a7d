"""Pairs of processes: every protocol, mode and wait, with every byte checked; and everything that can go wrong.

No test asserts a time: what is asserted is that data arrives, is counted, and that a run that cannot go on ends with a
clear error, leaving nothing behind.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import leftovers
import needs
import numpy as np
import pytest
import waiting

from viakit.launch import mpi_library as mpi
from viakit.measure import endpoints
from viakit.measure import pair as pair_module
from viakit.measure.endpoints import MeasureError, UnknownProtocol
from viakit.measure.pair import Pair

SIZES = (0, 1, 64, 4096, 100_000, 1 << 20)
# Every protocol that carries data, but plain mpi, which is one of the two, and programs of other projects: these make
# messages of their own, which cannot be checked here (test_foreign). via-verbs needs RDMA: tests/vm.
CARRIES = {
    name: one
    for name, one in endpoints.protocols().items()
    if one.link not in ("null", "cache", "verbs") and not name.startswith("netpipe:")
}
LOCAL = [name for name, one in CARRIES.items() if not one.apart and name != "mpi"]
WIRED = [name for name, one in CARRIES.items() if one.wired]
DEADLINE_S = 60.0
wait_for = functools.partial(waiting.until, limit_s=DEADLINE_S)


def cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def exists(pid: int) -> bool:
    """Whether a process runs. A zombie that was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(autouse=True)
def _no_file_of_mpi_left():
    """Neither Open MPI's scratch nor MPICH's segments, however its processes ended."""
    with leftovers.mpi_files() as left:
        yield
        wait_for(lambda: not left(), "no file of an MPI library is left")


@pytest.fixture(scope="module")
def testbed():
    with needs.hosts(mtu=1500) as bed:
        yield bed


def exercise(pair: Pair, sizes=SIZES) -> None:
    """Every mode, checked and unchecked."""
    protocol = pair.protocol
    modes = [mode for mode in protocol.modes if mode not in endpoints.IN_C or pair.level == "c"]
    if protocol.new_ranks:  # each run starts processes: one second
        sizes = sizes[1::3]
    for nbytes in sizes:
        if not protocol.min_bytes <= nbytes <= protocol.max_bytes:
            with pytest.raises(ValueError, match="takes messages of"):
                pair.run(nbytes)
            continue
        for mode in modes:
            for validate in (True,) if protocol.new_ranks else (True, False):
                count = 10 if nbytes < 100_000 else 2 if mode == "overlap" else 3
                samples = pair.run(nbytes, mode, count, warmup=1, repeats=2, validate=validate, offset=nbytes % 8)
                assert samples.one_way_s.dtype == np.float64
                assert samples.one_way_s.shape == {"pingpong": (count,), "overlap": (count // 2,)}.get(mode, (2,))
                assert (samples.one_way_s > 0).all()
                in_turns, one_way = 2 * (1 + count), 1 + 2 * count
                due = {"pingpong": in_turns, "overlap": in_turns, "stream": one_way, "rate": one_way}
                assert samples.counters["messages"] == due.get(mode, 2 * (1 + 2 * count))
                assert samples.counters["messages_sent"] >= samples.counters["messages"]
                if mode in ("pingpong", "overlap"):
                    assert samples.bandwidth_Bps is None
                else:
                    factor = 2 if mode == "bidir" else 1
                    np.testing.assert_allclose(samples.bandwidth_Bps * samples.one_way_s, factor * nbytes)


# ---------------------------------------------------------------- every protocol


@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("protocol", [name for name in LOCAL if "c" in endpoints.lookup(name).levels])
def test_local_in_c(protocol, wait):
    needs.protocol(protocol)
    if wait not in endpoints.lookup(protocol).waits:
        with pytest.raises(MeasureError, match=r"none of them sleeps.*Remedy: wait poll"):
            Pair(protocol, wait=wait)
        return
    with Pair(protocol, wait=wait) as pair:
        assert pair.info["protocol"] == protocol
        assert pair.info["hosts"] == "local"
        assert pair.info["loop_overhead_s"] > 0
        assert pair.info["library"]
        assert pair.info["transport"]
        exercise(pair)


@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("protocol", [name for name in LOCAL if "python" in endpoints.lookup(name).levels])
def test_local_in_python(protocol, wait):
    needs.protocol(protocol)
    if wait not in endpoints.lookup(protocol).waits:
        with pytest.raises(MeasureError, match=r"Remedy: wait poll"):
            Pair(protocol, wait=wait, level="python")
        return
    with Pair(protocol, wait=wait, level="python") as pair:
        assert pair.info["clock"] == "perf_counter_ns"
        exercise(pair, (0, 1, 64, 100_000))
        if pair.protocol.name == "tcp":
            with pytest.raises(MeasureError, match="bidir is measured by the loop in C"):
                pair.run(64, "bidir")
            exercise(pair, (64,))  # a refused run leaves the pair as it was


@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("protocol", WIRED)
def test_between_two_hosts(protocol, wait, testbed):
    needs.protocol(protocol)
    level = endpoints.lookup(protocol).levels[0]
    if wait not in endpoints.lookup(protocol).waits:
        return  # test_local_in_c and test_local_in_python check the refusal
    with Pair(protocol, testbed=testbed, wait=wait, level=level) as pair:
        assert pair.info["hosts"] == "testbed"
        assert pair.info["interface"] == "eth0"
        assert pair.info["mtu"] == 1500
        assert "gso" in pair.info["offloads"]
        exercise(pair, [nbytes for nbytes in SIZES if protocol != "frames" or fits_frames(nbytes)])


def fits_frames(nbytes: int) -> bool:
    """Whether a stream of messages fits the queue of a packet socket: root may have any, others what is allowed."""
    allowed = 2 * int(Path("/proc/sys/net/core/rmem_max").read_text(encoding="ascii"))
    return os.geteuid() == 0 or nbytes <= 64 or 4 * (nbytes * 5 // 4 + 4096) <= allowed


def test_frames_that_do_not_fit_are_refused_before_they_are_lost(testbed):
    """... and only they: short ones need no queue, and a user without privileges may send them."""
    if fits_frames(8 << 20):
        pytest.skip("this user may have a queue for messages of every size")
    with Pair("frames", testbed=testbed) as pair:
        exercise(pair, (1, 64))
        with pytest.raises(MeasureError, match=r"do not fit the queue .*sysctl -w net.core.rmem_max"):
            pair.run(8 << 20, "stream")


@pytest.mark.parametrize("form", ["plain", "udp"])
def test_forms_of_ethernet(form, testbed):
    with Pair("via-eth", testbed=testbed, options={"form": form, "reliability": "reception"}) as pair:
        assert pair.info["form"] == form
        assert pair.info["reliability"] == "reception"
        exercise(pair, (0, 64, 100_000))


@pytest.mark.parametrize("protocol", ["via-eth", "via-udp"])
def test_checksum_over_every_byte(protocol, testbed):
    with Pair(protocol, testbed=testbed, options={"checksum": "crc"}) as pair:
        exercise(pair, (64, 100_000))
    with pytest.raises(MeasureError, match="expected auto, crc"):
        Pair(protocol, testbed=testbed, options={"checksum": "md5"})


def test_via_from_python_between_two_hosts(testbed):
    with Pair("via-eth", testbed=testbed, wait="block", level="python") as pair:
        exercise(pair, (0, 64, 100_000))


@pytest.mark.parametrize("spec", endpoints.SPECS)
def test_what_the_loop_in_python_sends(spec):
    with Pair("msg-via", level="python", options={"spec": spec}) as pair:
        exercise(pair, (0, 1, 64, 100_000))


@pytest.mark.parametrize("protocol", ["put-via", "get-via"])
def test_one_sided_calls_are_rdma(protocol):
    """Each message is an RDMA operation of one side, and the counter of messages is another one."""
    with Pair(protocol, level="python") as pair:
        counters = pair.run(4096, count=10, warmup=1).counters
        assert counters["msg_puts"] == (44 if protocol == "put-via" else 22)
        assert counters["msg_gets"] == (0 if protocol == "put-via" else 22)
        assert counters["msg_active_sent"] == counters["msg_received"] == 0
        assert counters["msg_bytes_copied"] == 22 * 8, "of each message only its flag, which is a short write"
        assert counters["bytes_copied"] >= 22 * 4096, "a NIC stores each byte"


@pytest.mark.parametrize(
    ("protocol", "spec"),
    [
        ("via-shm", None),
        ("tcp", None),
        ("get-via", None),
        ("put-via", None),
        *(("msg-via", s) for s in endpoints.SPECS),
    ],
)
def test_the_loop_in_python_without_touching(protocol, spec):
    """Every call is made, in the stream more often than the window is wide, and no bytes are written or read."""
    with Pair(protocol, level="python", buffers="same", options={"spec": spec} if spec else {}) as pair:
        exercise(pair, (0, 64) if protocol != "via-shm" else (0, 64, 100_000))
        for mode in {"pingpong", "stream"}.intersection(pair.protocol.modes):
            counters = pair.run(64, mode, count=300, warmup=1, repeats=1).counters
            assert counters["messages"] == (602 if mode == "pingpong" else 301)
            assert counters["bytes_written"] == counters["bytes_read"] == 0
        if protocol == "put-via":
            counters = pair.run(4096, count=10, warmup=1).counters
            assert (counters["msg_puts"], counters["msg_gets"]) == (44, 0)


def test_null_and_floor():
    with Pair("null") as null, Pair("floor") as floor:
        assert (null.run(8, count=500).one_way_s > 0).all()
        samples = floor.run(8, count=500)
        assert samples.one_way_s.shape == (500,)
        with pytest.raises(ValueError, match="8 to 8 bytes"):
            floor.run(64)
        with pytest.raises(MeasureError, match="has no mode 'stream'"):
            floor.run(8, "stream")


def test_default_mpi():
    needs.protocol("mpi")
    with Pair("mpi") as pair:
        name = {"mpich": "MPICH", "openmpi": "Open MPI"}[endpoints.default_mpi()]
        assert pair.info["library"].startswith(name)
        assert "shared memory" in pair.info["transport"]
        assert "not shared memory" not in pair.info["transport"]
        exercise(pair, (64,))


def test_many_pairs_stay_open_and_take_turns():
    with contextlib.ExitStack() as stack:
        pairs = [stack.enter_context(Pair(name, wait="block")) for name in ("tcp", "via-shm", "udp", "via-shm")]
        for _ in range(3):
            for pair in pairs:
                exercise(pair, (64,))


@pytest.mark.parametrize(
    ("protocol", "several"),
    [
        ("bip-shm", [{"packet": 4096, "small": 252}, {"packet": 65536, "small": 252}, {"small": 65536}]),
        ("bip-udp", [{"packet": 4096, "small": 252}, {"small": 1024}]),
        ("msg-via", [{"policy": "credits=16"}, {"policy": "eager_limit_local=512,rendezvous=r3"}, {}]),
        ("msg-tcp", [{"policy": "tcp,eager_limit=512"}, {}]),
        ("via-eth", [{"reliability": "reception"}, {"reliability": "unreliable"}]),
    ],
)
def test_a_pair_is_opened_again_in_the_same_processes(protocol, several, testbed):
    with Pair(protocol, testbed=testbed) as pair:
        pids = pair.pids
        for options in several:
            pair.reopen(options)
            assert pair.info.get("options", {}) == options
            assert pair.run(20000, count=5, validate=True).one_way_s.size == 5
        assert pair.pids == pids


def test_ranks_of_an_mpi_library_are_not_opened_again():
    with Pair("mpi") as pair, pytest.raises(MeasureError, match="mpi cannot be opened again"):
        pair.reopen({})


def test_counters_tell_polled_from_blocking():
    with Pair("tcp", wait="block") as pair:
        samples = pair.run(64, count=200, warmup=1)
        # Asleep until the data is there: one call to send and one to receive, and a few time slices at most.
        assert (
            samples.counters["messages"] * 2
            <= samples.counters["system_calls"]
            <= samples.counters["messages"] * 2 + 40
        )
        assert samples.counters["voluntary_switches"] > 0


def test_sockbuf_is_set():
    with Pair("tcp", sockbuf=65536, wait="block") as pair:
        assert pair.info["sndbuf"] == 131072  # the kernel doubles what it is given, for its own bookkeeping
        exercise(pair, (1 << 20,))


def test_one_core():
    """Both sides on one core: polling yields it, and the pair reports that."""
    program = textwrap.dedent("""
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from viakit.measure.pair import Pair
        for name in ("tcp", "via-shm", "unix"):
            with Pair(name) as pair:
                assert "share core" in pair.info["cores"], pair.info["cores"]
                assert len(pair.run(64, count=50, validate=True).one_way_s) == 50
    """)
    subprocess.run([sys.executable, "-c", program], check=True, timeout=100)


# ---------------------------------------------------------------- what cannot be


def test_unknown_protocol():
    with pytest.raises(UnknownProtocol, match=r"did you mean via-eth\? There are: via-eth, "):
        Pair("via-ehh")
    with pytest.raises(ValueError, match="unknown protocol 'x'"):
        endpoints.lookup("x")
    assert set(endpoints.protocols()) >= {*LOCAL, *WIRED, "floor", "null", "mpi"}
    for name, protocol in endpoints.protocols().items():
        assert protocol.name == name
        assert protocol.description
        assert set(protocol.levels) <= set(endpoints.LEVELS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"wait": "sleep"}, "wait is 'sleep'; expected"),
        ({"level": "rust"}, "level is 'rust'; expected"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"sockbuf": -1}, "sockbuf is -1"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Pair("tcp", **arguments)


def test_level_that_a_protocol_lacks():
    with pytest.raises(MeasureError, match=r"udp has no level 'python'.*Remedy: level c"):
        Pair("udp", level="python")


def test_bad_runs_leave_the_pair_usable():
    with Pair("unix") as pair:
        for bad in ({"count": 0}, {"repeats": 0}, {"offset": 4096}, {"offset": -1}, {"timeout_s": 0}, {"mode": "ring"}):
            with pytest.raises(ValueError, match=r"expected|must be at least"):
                pair.run(64, **bad)
        with pytest.raises(ValueError, match=r"takes messages of 1 to"):
            pair.run(-1)
        exercise(pair, (64,))
    with pytest.raises(MeasureError, match=r"is closed.*Remedy: open a new one"):
        pair.run(64)
    pair.close()


def test_no_such_interface(testbed):
    with pytest.raises(MeasureError, match=r"Remedy: --hosts testbed"):
        Pair("via-eth")
    with pytest.raises(MeasureError, match=r"interface no-such-if does not exist on this host; it has .*lo"):
        Pair("via-eth", options={"interface": "no-such-if"})


def test_no_permission():
    """Raw sockets without a testbed, by a user who may not: says what to do instead."""
    program = textwrap.dedent("""
        import ctypes, os, sys
        from viakit.measure.pair import MeasureError, Pair
        if os.geteuid() == 0:
            # CAP_NET_RAW leaves the bounding set, and with the next program the process
            ctypes.CDLL(None).prctl(24, 13, 0, 0, 0)
        try:
            Pair("via-eth", options={"interface": "lo"})
        except MeasureError as error:
            print(error.reason, error)
    """)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert result.stdout.startswith("refused "), result.stdout + result.stderr
    assert "--hosts testbed" in result.stdout


@pytest.mark.parametrize("options", [{"form": "round"}, {"reliability": "some"}])
def test_bad_options(options):
    with pytest.raises(MeasureError, match="expected"):
        Pair("via-shm", options=options)


def test_missing_mpi(monkeypatch):
    monkeypatch.setattr(mpi, "_candidates", lambda: iter(()))
    with pytest.raises(MeasureError, match=r"no MPICH in .*pip install 'viakit\[mpich\]'") as caught:
        Pair("mpi:mpich")
    assert caught.value.reason == "missing"
    assert endpoints.default_mpi() is None
    monkeypatch.setattr(mpi.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MeasureError, match=r"mpi4py is not installed.*pip install 'viakit\[openmpi\]'"):
        Pair("mpi:openmpi")


def test_broken_mpiexec(monkeypatch, tmp_path):
    """A launcher that fails: its own words are in the message."""
    needs.protocol("mpi")
    launcher = tmp_path / "mpiexec"
    launcher.write_text("#!/bin/sh\necho no ranks today >&2\nexit 7\n", encoding="ascii")
    launcher.chmod(0o755)
    library = mpi.find("mpi")
    monkeypatch.setattr(mpi, "find", lambda name: mpi.Library(library.flavour, library.libmpi, str(launcher)))
    with pytest.raises(MeasureError, match=r"(?s)exit status 7.*no ranks today"):
        Pair("mpi")
    monkeypatch.setattr(mpi, "find", lambda name: mpi.Library(library.flavour, library.libmpi, str(tmp_path / "none")))
    with pytest.raises(MeasureError, match="cannot be started"):
        Pair("mpi")


def test_other_version(monkeypatch):
    monkeypatch.setattr(pair_module.children, "CONTROL_VERSION", 99)
    with pytest.raises(MeasureError, match="Remedy: install one version") as caught:
        Pair("tcp")
    assert caught.value.reason == "version"


def test_worker_that_does_not_start(monkeypatch):
    monkeypatch.setattr(pair_module.children, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(9)"])
    with pytest.raises(MeasureError, match=r"the peer went away.*exit status 9"):
        Pair("tcp")


# ---------------------------------------------------------------- what goes wrong in the middle


def run_until_error(pair: Pair, strike) -> MeasureError:
    """Start a run that would take minutes, strike while it runs, and return its error."""
    caught = []

    def measure():
        try:
            pair.run(64, count=3_000_000, timeout_s=600)
        except MeasureError as error:
            caught.append(error)

    thread = threading.Thread(target=measure)
    before = [cpu_ticks(pid) for pid in pair.pids]
    thread.start()
    wait_for(lambda: all(cpu_ticks(pid) > n + 1 for pid, n in zip(pair.pids, before, strict=True)), "both sides work")
    strike()
    thread.join(DEADLINE_S)
    assert not thread.is_alive(), "the run did not end"
    assert caught, "the run ended without an error"
    return caught[0]


@pytest.mark.parametrize("level", ["c", "python"])
@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("protocol", ["tcp", "via-shm", "zmq", "mpi:openmpi", "mpi:mpich"])
def test_peer_killed_in_the_middle(protocol, wait, level):
    needs.protocol(protocol)
    if wait not in endpoints.lookup(protocol).waits:
        return
    with Pair(protocol, wait=wait, level=level) as pair:
        error = run_until_error(pair, lambda: os.kill(pair.pids[1], signal.SIGKILL))
        assert "the peer went away" in str(error)
        assert error.reason == "gone"
        with pytest.raises(MeasureError, match="Remedy: open a new one"):
            pair.run(64)
    wait_for(lambda: not any(map(exists, pair.pids)), "both workers have gone")


@pytest.mark.parametrize("protocol", ["tcp", "udp", "floor"])
def test_a_side_that_stops_answering(protocol):
    """No process dies, but no message arrives any more: the workers' own deadline ends the run."""
    with Pair(protocol) as pair:
        os.kill(pair.pids[1], signal.SIGSTOP)
        try:
            with pytest.raises(MeasureError) as caught:
                pair.run(8, count=100, timeout_s=0.5)
        finally:
            for pid in filter(exists, pair.pids):
                os.kill(pid, signal.SIGCONT)
    assert caught.value.reason == "timeout"


def test_run_that_takes_too_long():
    with Pair("tcp") as pair:
        with pytest.raises(MeasureError, match=r"was not over after 0.3 s|no answer") as caught:
            pair.run(64, count=3_000_000, timeout_s=0.3)
        assert caught.value.reason == "timeout"


def test_interrupt():
    """Ctrl-C in the middle of a run: KeyboardInterrupt, and the workers go."""
    program = textwrap.dedent("""
        import sys
        from viakit.measure.pair import Pair
        pair = Pair(sys.argv[1], wait="block")
        print(*pair.pids, flush=True)
        try:
            pair.run(64, count=3_000_000, timeout_s=600)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
    """)
    for name in ("tcp", "via-shm"):
        with subprocess.Popen([sys.executable, "-c", program, name], stdout=subprocess.PIPE, text=True) as child:
            pids = [int(word) for word in child.stdout.readline().split()]
            before = [cpu_ticks(pid) for pid in pids]
            wait_for(lambda pids=pids, before=before: cpu_ticks(pids[0]) > before[0] + 1, "the run is under way")
            child.send_signal(signal.SIGINT)
            assert child.communicate(timeout=DEADLINE_S)[0] == "interrupted\n"
        wait_for(lambda pids=pids: not any(map(exists, pids)), "the workers have gone")


@pytest.mark.parametrize("busy", [False, True])
def test_coordinator_killed(busy):
    """kill -9 of the process that made the pairs: the workers notice and go, idle or not."""
    names = ["tcp", "via-shm", "via-loop"] + [f"mpi:{flavour}" for flavour in mpi.find_all()]
    program = textwrap.dedent("""
        import sys, threading
        from viakit.measure.pair import Pair
        pairs = [Pair(name, wait="poll") for name in sys.argv[2:]]
        print(*[pid for pair in pairs for pid in [*pair.pids, *[p.pid for p in pair._processes]]], flush=True)
        if sys.argv[1] == "True":
            for pair in pairs:
                threading.Thread(target=pair.run, args=(64,), kwargs={"count": 3_000_000, "timeout_s": 600}).start()
        sys.stdin.read()
    """)
    command = [sys.executable, "-c", program, str(busy), *names]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        pids = sorted({int(word) for word in child.stdout.readline().split()})
        assert len(pids) >= 5
        if busy:
            before = {pid: cpu_ticks(pid) for pid in pids[:2]}
            wait_for(lambda: all(cpu_ticks(pid) > n + 1 for pid, n in before.items()), "the runs are under way")
        child.kill()
    wait_for(lambda: not any(map(exists, pids)), "all workers and launchers have gone")


def test_forgotten_pair_is_ended():
    pair = Pair("unix")
    pids = pair.pids
    with pytest.warns(ResourceWarning, match="unclosed <Pair unix"):
        del pair
    wait_for(lambda: not any(map(exists, pids)), "the workers have gone")


def test_wrong_data_is_noticed():
    """The Python loop's own check; that of C is tested in C."""
    from viakit.measure.pyloop import NullTransport, PythonEndpoint

    endpoint = PythonEndpoint(NullTransport())
    endpoint.prepare(100, "pingpong", 0, 10, validate=True)
    with pytest.raises(MeasureError, match="message 0 of 100 bytes: byte") as caught:
        endpoint.run()
    assert caught.value.reason == "mismatch"


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("protocol", "policy"),
    [("msg-via", "mvich-rget"), ("msg-via", "mvich-r3,credits=8"), ("msg-tcp", "mpich-p4"), ("msg-tcp", "tcgmsg")],
)
def test_policies_of_messages(protocol, policy):
    with Pair(protocol, options={"policy": policy}) as pair:
        exercise(pair, (0, 64, 100_000))
        assert pair.info["policy"] == policy.partition(",")[0]
        assert pair.run(200_000, count=4, warmup=1).counters["msg_sent"] == 10


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [
        ("msg-via", {"policy": "mpich-p4"}, "measure it as msg-tcp"),
        ("msg-tcp", {"policy": "nonsense"}, "expected the name of a policy"),
        ("msg-via", {"network": "pigeon"}, "expected eth, udp"),
    ],
)
def test_policies_that_make_no_sense(protocol, options, words):
    with pytest.raises(MeasureError, match=words) as raised:
        Pair(protocol, options=options)
    assert raised.value.reason == "usage"


@pytest.mark.parametrize("network", ["eth", "udp"])
def test_messages_say_how_they_went(testbed, network):
    with Pair("msg-via", testbed=testbed, options={"network": network}) as pair:
        exercise(pair, (64, 100_000))
        assert pair.info["route"].startswith(f"{network}:")
        assert pair.info["mtu"] == 1500
    with Pair("msg-via") as pair:
        assert pair.info["route"].startswith("shm:")
