"""Sockets of described machines: `viakit sweep tcp --machine`, beside the predictions of `viakit papers`."""

from __future__ import annotations

import subprocess
import sys
from importlib import resources

import pytest

from viakit import machines
from viakit.measure import plan, result, sweep
from viakit.papers.curves import tcp
from viakit.replay.model import library

VIAKIT = [sys.executable, "-m", "viakit"]
GA620 = "pentium4-1800-ga620"


def _times(protocols, sizes, machine=GA620, **options):
    """Return the one-way times of the points, in the order of the protocols, by size of the socket buffers."""
    document = sweep.run(plan.Config(protocols, sizes, machine=machine, **options)).document
    result.validate(document)
    assert document["complete"], document["errors"]
    return [[point["one_way_s"]["median"] for point in one["points"]] for one in document["series"]]


@pytest.mark.parametrize(
    ("name", "sockbuf"),
    [
        (GA620, 512 << 10),
        (GA620, 8192),  # a window of 8 segments, which closes
        ("pentium4-1800-trendnet", None),
        ("ds20-syskonnect-9000", None),  # jumbo frames: 4 to 5 segments in 64 KiB
        ("pentium3-650-fasteth-tcp", None),  # a switch that stores frames
    ],
)
def test_tcp_has_the_predicted_times(name, sockbuf):
    """One cost model: the stream on the simulated link, segment by segment, and the path of viakit.machines.cost."""
    sizes = [1, 1460, 1461, 20000, 300000]
    (live,) = _times(["tcp"], sizes, name, sockbuf=sockbuf)
    predicted = [tcp(sockbuf).message_s(machines.load(name), n) for n in sizes]
    # Live an acknowledgement takes the line's time, and may delay a frame. The prediction leaves that out.
    assert live == pytest.approx(predicted, rel=0.005)
    assert live[0] == pytest.approx(predicted[0], rel=1e-6)


def test_small_socket_buffers_close_the_window():
    small, large = _times(["tcp"], [1, 300000], sockbuf=[8192, 512 << 10])
    assert small[0] == large[0], "one segment needs no window"
    assert small[1] > 1.5 * large[1]


def test_acknowledgements_have_the_delays_of_the_machine(tmp_path):
    """With a window of one segment, each segment but the first waits for the receiver's timer; others never do."""
    sizes, one_segment, many = [1, 1024, 1025, 20000], 1024, 256 << 10
    slow = tmp_path / "slow.toml"
    text = resources.files("viakit.machines").joinpath(GA620 + ".toml").read_text()
    delays = 'ack_us = { is = 7, from = "a test" }\ndelayed_ack_us = { is = 200, from = "a test" }\n'
    slow.write_text(text.replace("[tcp]\n", "[tcp]\n" + delays))
    names = [GA620, str(slow)]
    waits = [_times(["tcp"], sizes, name, sockbuf=one_segment)[0] for name in names]
    flows = [_times(["tcp"], sizes, name, sockbuf=many)[0] for name in names]
    frames = [1, 1, 2, 20]
    late_s = 200e-6 + 2 * (7e-6 - 4.8e-6)  # an acknowledgement takes tcp.segment_us, 4.8 us, in a processor otherwise
    assert waits[1] == pytest.approx([t + (n - 1) * late_s for t, n in zip(waits[0], frames, strict=True)], rel=1e-6)
    assert flows[1] == pytest.approx(flows[0], rel=1e-3)
    predicted = [tcp(one_segment).message_s(machines.load(slow), n) for n in sizes]
    assert waits[1] == pytest.approx(predicted, rel=0.005)
    (daemons,) = _times(["msg-tcp:pvm"], sizes, str(slow))
    assert daemons == pytest.approx([library("pvm").message_s(machines.load(slow), n + 16) for n in sizes], rel=0.02)


def test_daemons_agree_with_the_predictions():
    """Within 2 %: packets of 4 KiB one by one, or of 8 KiB in a window, with copies and switches of processes."""
    policies = ["pvm", "lam-lamd"]
    sizes = [1, 4000, 4096, 8192, 20000, 61440, 70000, 1000000]
    for name in (GA620, "ds20-syskonnect-9000"):
        live = _times([f"msg-tcp:{policy}" for policy in policies], sizes, name)
        for policy, times in zip(policies, live, strict=True):
            machine = machines.load(name)
            extra_s = 2e-6 * machine["message.overhead_us"]
            # The engine's head of 16 bytes may need a packet more.
            predicted = [library(policy).message_s(machine, n + 16) + extra_s for n in sizes]
            assert times == pytest.approx(predicted, rel=0.02), (name, policy)


def test_policies_agree_with_the_predictions():
    """Within 2 %: the engine's heads of 16 or 64 bytes, and no other copies than those of the library."""
    policies = [
        "mpich-p4",
        "lam-c2c",
        "lam-c2c-convert",
        "mpi-pro-tuned",
        "mp_lite",
        "pvm-direct",
        "pvm-direct-inplace",
    ]
    sizes = [1, 1000, 20000, 200000]
    lives = _times([f"msg-tcp:{one}" for one in policies], sizes)
    for policy, live in zip(policies, lives, strict=True):
        predicted = [library(policy).message_s(machines.load(GA620), n) for n in sizes]
        assert live == pytest.approx(predicted, rel=0.02), policy


def test_the_message_layer_of_a_machine_counts():
    """Lobosco et al. measured MPI on TCP: the machine has message.overhead_us, which `viakit papers` adds for them.

    On Fast Ethernet the engine's head of 16 bytes takes 2 % of the latency.
    """
    name = "pentium3-650-fasteth-tcp"
    (live,) = _times(["msg-tcp"], [1, 20000], name)
    thin = library("tcp", overhead_us=None, sockbuf=None)
    assert live == pytest.approx([thin.message_s(machines.load(name), n) for n in (1, 20000)], rel=0.025)


def test_an_acknowledged_message_costs_more_than_predicted():
    """TCGMSG's send waits for the receive. Live the acknowledging message takes both processors' time, too."""
    (live,) = _times(["msg-tcp:tcgmsg"], [1])
    predicted = library("tcgmsg").message_s(machines.load(GA620), 1)
    assert 1.02 * predicted < live[0] < 1.2 * predicted


@pytest.mark.parametrize("options", [{}, {"mode": "stream"}, {"mode": "bidir"}, {"wait": "block"}, {"validate": True}])
def test_runs_repeat_to_the_bit(options):
    first, again = (_times(["tcp", "msg-tcp:mpich-p4"], [1, 5000, 60000], **options) for _ in range(2))
    assert first == again


def test_a_stream_reaches_the_rate_of_the_ping_pong():
    ((live,),) = _times(["tcp"], [200000], mode="stream")
    predicted = tcp().message_s(machines.load(GA620), 4 << 20)
    assert 200000 / live == pytest.approx((4 << 20) / predicted, rel=0.02)


@pytest.mark.parametrize(
    ("protocol", "options", "words"),
    [
        ("tcp:default", {}, "cannot run on a described machine; expected via, bip, tcp"),
        ("tcp:fresh", {}, "cannot run on a described machine"),
        ("netpipe:tcp", {}, "cannot run on a described machine"),
        ("tcp", {"sockbuf": "auto"}, "larger socket buffers are never slower"),
        ("tcp", {"machine": "barrier-cluster-1"}, r"no section \[tcp\], so it has no sockets"),
        ("via", {"sockbuf": 65536, "machine": "pentium4-1800-giganet"}, "no socket buffers to set"),
        ("msg-via", {}, r"has no section \[via\] and no \[bip\], so it has no NICs"),
    ],
)
def test_what_cannot_run_is_refused(protocol, options, words):
    with pytest.raises(ValueError, match=words):
        sweep.check(plan.Config([protocol], [8], **{"machine": GA620, **options}))


PROGRAM = """
import numpy as np
from viakit import virtual
from viakit.mpi import MPI

comm = MPI.COMM_WORLD
assert virtual.is_on()
mine, sums = np.full(50000, comm.rank, "d"), np.empty(50000)
before = MPI.Wtime()
comm.Allreduce(mine, sums)
assert (sums == sum(range(comm.size))).all()
virtual.compute(0.25 if comm.rank else 0.125)
comm.Barrier()
print(f"{comm.rank} {MPI.Wtime() - before:.9f}", flush=True)
"""


def test_a_job_runs_on_the_machines_sockets(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    def run(protocol, machine=GA620):
        command = [*VIAKIT, "run", "-n", "4", "--machine", machine, "--protocol", protocol, str(program)]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    first, again = run("tcp"), run("tcp")
    assert first.returncode == 0, first.stderr
    assert sorted(first.stdout.splitlines()) == sorted(again.stdout.splitlines())
    took = float(first.stdout.split()[1])
    assert 0.25 < took < 0.35
    daemons = run("tcp:pvm")
    assert daemons.returncode == 0, daemons.stderr
    assert float(daemons.stdout.split()[1]) > took, "packets of 4 KiB, one by one"
    nic = run("via")
    assert nic.returncode == 2
    assert f"machine {GA620} has no section [via] and no [bip], so it has no NICs; use tcp" in nic.stderr
    none = run("tcp", "barrier-cluster-1")
    assert none.returncode != 0
    assert "has no section [tcp]" in none.stderr


@pytest.mark.parametrize(
    ("words", "protocol"),
    [
        (["--machine", "ethernet-100g", "--policy", "mpich-p4"], "tcp"),  # has both sections
        (["--machine", "ethernet-100g"], "via"),
        (["--machine", "ethernet-100g", "--env", "VIAKIT_POLICY=pvm"], "tcp"),
        (["--machine", "ppro200-myrinet-bip", "--policy", "bip"], "bip"),
        (["--machine", GA620, "--protocol", "tcp:pvm"], "tcp"),
        (["--machine", "ethernet-100g", "--env", "VIAKIT_PROTOCOL=tcp", "--policy", "pvm"], "tcp"),
        (["--machine", GA620, "--policy", "mvich-rput"], "via: machine pentium4-1800-ga620 has no section [via]"),
        (["--machine", GA620, "--env", "VIAKIT_PROTOCOL=bip"], "bip: machine pentium4-1800-ga620 has no section [via]"),
        (["--machine", "ethernet-100g", "--env", "VIAKIT_PROTOCOL=mpi"], "mpi cannot"),
        (["--machine", "ethernet-100g", "--hosts", "testbed:2"], "remove --hosts"),
    ],
)
def test_the_protocol_of_a_job_on_a_machine(words, protocol, tmp_path):
    """The requested one, else that of the policy, else the machine's. The machine refuses others."""
    program = tmp_path / "program.py"
    program.write_text(
        "from viakit.comm import dynamic, world\nw = world()\nw.Barrier()\nprint(dynamic.protocol_of(w), flush=True)\n"
    )
    command = [*VIAKIT, "run", "-n", "2", *words, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if protocol in ("via", "bip", "tcp"):
        assert (done.returncode, done.stdout) == (0, f"{protocol}\n" * 2), done.stderr
    else:
        assert done.returncode == 2
        assert protocol in done.stderr


def test_jobs_use_sockets_where_the_machine_has_no_nics(tmp_path):
    """Without a protocol, `viakit run` and `viakit app` use tcp there. A program that opens a NIC gets an error."""
    program = tmp_path / "program.py"
    program.write_text("import os\nprint(os.environ['VIAKIT_PROTOCOL'])\n")
    command = [*VIAKIT, "run", "-n", "2", "--machine", GA620, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "tcp\ntcp\n"), done.stderr
    program.write_text("from viakit import via\nvia.Nic('sim:mine')\n")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert f"machine {GA620} has no section [via] and no [bip]" in done.stderr
    command = [*VIAKIT, "app", "ep", "-n", "2", "--machine", GA620, "--class", "S", "--computing", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "2 ranks over tcp" in done.stdout
