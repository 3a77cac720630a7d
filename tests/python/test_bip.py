"""BIP from Python: messages, errors, and buffers in use, in ranks started by `viakit run`."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import needs
import pytest
from click.testing import CliRunner
from ports import free_port

from viakit import _core, bip
from viakit.cli import cli
from viakit.measure import calibrate

PRELUDE = """
import os
import numpy as np
from viakit import bip
"""


def run(program: str, ranks: int = 2, **environment: str) -> str:
    """Run *program* on some ranks and return its output."""
    done = subprocess.run(
        [sys.executable, "-m", "viakit", "run", "-n", str(ranks), "--timeout", "60", "--", sys.executable, "-c",
         PRELUDE + textwrap.dedent(program)],
        capture_output=True, text=True, timeout=90, check=False, cwd="/", env=os.environ | environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_alone() -> None:
    """A job of one rank has no peer, and the error reports it."""
    with bip.Job(0, 1, "alone") as job:
        job.connect([job.card()])
        assert (job.rank, job.size) == (0, 1)
        with pytest.raises(bip.BipArgumentError, match="to itself"):
            job.send(0, b"x")
        for id in (0, 1, 12345):
            with pytest.raises(bip.BipArgumentError, match=f"no send {id}"):
                bip.SendRequest(job._core, id).test()
            with pytest.raises(bip.BipArgumentError, match=f"no send {id}"):
                bip.SendRequest(job._core, id).wait(5)
        with pytest.raises(bip.BipPeerError, match="one rank only"):
            job.recv(bytearray(1))
        with pytest.raises(ValueError, match="cards"):
            job.connect([])
    assert "closed" in repr(job)
    with pytest.raises(ValueError, match="closed"):
        job.send(0, b"x")
    job.close()


def test_messages() -> None:
    """Short and long, tags, both forms, any contiguous buffer."""
    run("""
        with bip.open() as job:
            other = 1 - job.rank
            big = np.arange(100000, dtype=np.float64) + job.rank
            room = np.zeros_like(big)
            request = job.irecv(room, tag=3)
            assert request.test() is None or job.rank >= 0
            job.send(other, big, tag=3)
            assert request.wait() == (big.nbytes, other)
            assert request.test().source == other
            assert (room == np.arange(100000) + other).all()
            job.send(other, b"hello", tag=1)
            job.send(other, None, tag=2)
            small = bytearray(10)
            assert job.recv(None, tag=2) == (0, other)
            assert job.recv(small, tag=1).nbytes == 5 and small[:5] == b"hello"
            job.tag_queue(5, 10, 100)
            send = job.isend(other, b"abc", tag=5)
            send.wait()
            assert send.test()
            assert job.get(5) == (b"abc", other)
            assert job.get(5, timeout_s=0) is None
            counters = job.counters
            assert counters["long_sent"] == counters["long_received"] == 1
            assert counters["short_sent"] == 3 and counters["packets_sent"] >= 1
            assert job.small_bytes(other) >= 252 and job.packet_bytes(other, 1 << 20) > 1024
            assert job.memory_bytes > 0
    """)


def test_errors() -> None:
    """Errors are reported, and the job continues if possible."""
    run("""
        with bip.open(slots=2) as job:
            other = 1 - job.rank
            room = bytearray(100)
            def fails(kind, call, *arguments, **named):
                try:
                    call(*arguments, **named)
                except kind as error:
                    return error
                raise AssertionError(f"{kind} was not raised")
            assert fails(bip.BipArgumentError, job.send, 9, b"").name == "ARGUMENT"
            assert fails(ValueError, job.send, job.rank, b"").name == "SELF"
            request = job.irecv(room, tag=8)
            assert fails(bip.BipArgumentError, job.irecv, room, tag=8).name == "BUSY"
            fails(BufferError, room.append, 1)      # C writes into it
            request.cancel()
            room.append(1)
            fails(TimeoutError, job.recv, room, tag=8, timeout_s=0.01)
            fails(ValueError, job.recv, room, tag=8, timeout_s=-1)
            fails((BufferError, TypeError), job.recv, b"read only")
            fails((BufferError, TypeError, ValueError), job.send, other, np.zeros(10)[::2])
            if job.rank == 0:
                job.send(other, b"1234567890")
                assert fails(bip.BipTooLongError, job.send, other, bytes(100000)).name == "TOO_LONG"
            else:
                fails(ValueError, job.recv, bytearray(9))
                fails(ValueError, job.recv, bytearray(9))
            if job.rank == 0:
                job.recv(None, tag=99)
                fails(bip.BipPeerError, job.recv, room)   # the other has left
            else:
                job.send(0, None, tag=99)
    """)


def test_environment() -> None:
    """A variable without a valid number is refused, because the default would be measured in its place."""
    run(
        """
        import os
        with bip.open() as job:
            assert job.packet_bytes(1 - job.rank, 1 << 20) == 4096
        wrong = {"PACKET": "4K", "SMALL": "-1", "SLOTS": "4294967297", "STRICT": "yes", "CHECKSUM": "2"}
        for name, value in wrong.items():
            os.environ["VIAKIT_BIP_" + name] = value
            try:
                bip.Job(0, 2, "environment")
            except bip.BipArgumentError as error:
                assert f"VIAKIT_BIP_{name}={value}: a whole number, 0 to " in str(error), error
            else:
                raise AssertionError(f"VIAKIT_BIP_{name}={value} was taken")
            os.environ["VIAKIT_BIP_" + name] = ""
        """,
        VIAKIT_BIP_PACKET="4096",
    )


def test_loss_is_detected_and_not_repaired() -> None:
    """Unreliable: a lost message ends the waits of both ranks with errors. Everything that arrived is right."""
    run("""
        from itertools import count
        other, n = None, 0
        job = bip.open(reliability="unreliable", faults="loss=2%,seed=1")
        room = bytearray(100)
        try:
            for n in count():
                if n % 2 == job.rank:
                    job.send(1 - job.rank, bytes([n % 256]) * 100)
                else:
                    assert job.recv(room, timeout_s=30) == (100, 1 - job.rank)
                    assert room == bytes([n % 256]) * 100
        except bip.BipTimeoutError:
            raise
        except bip.BipError as error:
            assert error.name in ("DAMAGED", "PEER", "LEFT"), error
        job.close()
        assert 0 < n < 10000
        try:
            bip.Job(0, 1, "levels", reliability="reception")
        except ValueError as error:
            assert "expected delivery or unreliable" in str(error), error
        else:
            raise AssertionError("a level that BIP does not have was taken")
    """)


def test_a_sweep_at_the_unreliable_level_ends_with_the_loss_that_it_detected() -> None:
    """The run ends at once, with the reason, and does not wait for a message that was lost."""
    options = ["--reliability", "unreliable", "--seconds", "0.5", "-q"]
    done = CliRunner().invoke(cli, ["sweep", "bip-shm", "--sizes", "8,64K", *options])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["sweep", "bip-shm", "--sizes", "8", "--fault", "loss=2%", *options])
    assert done.exit_code == 1
    assert "damaged or lost on the way" in done.output or "has left" in done.output or "died" in done.output


def test_closed_before_sent() -> None:
    """Closing before sent messages were received is an error on both sides."""
    run("""
        import warnings
        job = bip.open()
        if job.rank == 0:
            request = job.isend(1, bytes(1000000))
            try:
                request.wait(0.01)
            except bip.BipTimeoutError as error:
                assert "1000000 bytes with tag 0 to rank 1: no receive for it in the time given" in str(error), error
            with warnings.catch_warnings(record=True) as seen:
                warnings.simplefilter("always")
                job.close()
            assert [str(w.message) for w in seen] == ["the job was closed before all messages had been delivered"], seen
        else:
            try:
                job.recv(bytearray(10), tag=1)
            except bip.BipPeerError as error:
                assert "have left" in str(error), error
            job.close()
    """)


def test_peer_killed() -> None:
    """When a rank dies, the waits of the others end with their own errors."""
    done = subprocess.run(
        [sys.executable, "-m", "viakit", "run", "-n", "2", "--timeout", "60", "--", sys.executable, "-c", PRELUDE + """
import signal
job = bip.open()
if job.rank:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    job.recv(bytearray(1))
except ConnectionError as error:
    print("told:", error, flush=True)
"""],
        capture_output=True, text=True, timeout=90, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 128 + 9


def test_interrupt() -> None:
    """Ctrl-C ends a wait, and the buffer is free again."""
    run("""
        import signal
        with bip.open() as job:
            room = bytearray(4)
            signal.signal(signal.SIGALRM, signal.default_int_handler)
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                job.recv(room, tag=1)
            except KeyboardInterrupt:
                room.append(1)
            else:
                raise AssertionError("not interrupted")
            other = 1 - job.rank
            job.send(other, b"on", tag=2)
            assert job.recv(room, tag=2).nbytes == 2
    """)


def test_fork() -> None:
    """A job belongs to the process that opened it."""
    job = bip.Job(0, 1, "forked")
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            job.card()
        except Exception as error:
            status = 0 if "before a fork" in str(error) else 2
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    job.close()


def test_model() -> None:
    """The best packet size is optimal, and grows with the message."""
    numbers = (50e-6, 2e-6, 1e-9, 3e-9)
    best = _core.bip_best(*numbers, 1 << 20, 1 << 24)
    least = _core.bip_time(*numbers, 1 << 20, best)
    assert all(_core.bip_time(*numbers, 1 << 20, p) >= least * 0.999 for p in range(1024, 1 << 20, 1000))
    assert best < _core.bip_best(*numbers, 1 << 24, 1 << 24)
    assert _core.bip_equal(10000, 4096) == 3392


def test_calibration(tmp_path: Path) -> None:
    """The fit finds the parameters of the times, and with the file C uses the same packet sizes."""
    truth = (2e-5, 3e-6, 4e-10, 9e-10)
    times = {
        (n, p): _core.bip_time(*truth, n, p) for n in calibrate.LENGTHS for p in calibrate.PACKETS if p <= n or p >> 24
    }
    found = calibrate.Calibration("shm", *calibrate.fit(times), small_bytes=8192, times=times, environment={"a": 1})
    assert (found.start, found.packet, found.byte, found.fill) == pytest.approx(truth, rel=1e-3)
    assert found.error < 1e-3
    path = found.save(str(tmp_path / "new" / "bip-shm.txt"))
    program = """
        with bip.open() as job:
            print(job.small_bytes(1 - job.rank), job.packet_bytes(1 - job.rank, 1 << 20))
    """
    said = run(program, VIAKIT_BIP_TABLE=path).split()
    assert said[0] == "8192"
    assert int(said[1]) == _core.bip_equal(1 << 20, dict(found.rows)[1 << 20])
    calibrate.save_picture(found, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").stat().st_size > 1000


# ---------------------------------------------------------------- bip.h, from the installed package

RING = """
#include <bip.h>
#include <stdio.h>
#include <stdlib.h>

/* A word, and then more than fits a short message, once around all nodes. */
int main(void)
{
    enum { LONG = 300000 };
    int *words = malloc(LONG * sizeof *words), word, i, node;
    bip_init();
    if (bip_numnodes > 1) {
        int next = (bip_mynode + 1) % bip_numnodes;
        int id = bip_tirecv(7, &word, 1);
        int sent = 40 + bip_mynode;
        bip_tsend(next, 7, &sent, 1);
        if (bip_rwaitx(id, &node) != 1 || word != 40 + node || (node + 1) % bip_numnodes != bip_mynode)
            return 1;
        id = bip_tirecv(8, words, LONG);
        int *out = malloc(LONG * sizeof *out);
        for (i = 0; i < LONG; i++)
            out[i] = i ^ bip_mynode;
        int going = bip_tisend(next, 8, out, LONG);
        if (bip_rwait(id) != LONG)
            return 2;
        bip_swait(going);
        for (i = 0; i < LONG; i++)
            if (words[i] != (i ^ node))
                return 3;
    }
    printf("%d of %d\\n", bip_mynode, bip_numnodes);
    bip_end();
    return 0;
}
"""


@pytest.mark.parametrize("hosts", ["local", "testbed:2"])
def test_a_c_program_with_the_installed_library(tmp_path: Path, hosts: str) -> None:
    """The command of docs/bip.md: cc ring.c $(viakit config --cflags) -lbip $(viakit config --libs)."""
    if hosts != "local":
        needs.hosts().close()
    viakit = str(Path(sys.executable).parent / "viakit")
    words = [subprocess.check_output([viakit, "config", f"--{what}"], text=True).split() for what in ("cflags", "libs")]
    (tmp_path / "ring.c").write_text(RING, encoding="utf-8")
    compiler = needs.tool("cc")
    command = [compiler, "-Wall", "-Werror", "ring.c", *words[0], "-lbip", *words[1], "-o", "ring"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    for ranks in (1, 3) if hosts == "local" else (4,):
        done = subprocess.run(
            [viakit, "run", "-n", str(ranks), "--hosts", hosts, "--timeout", "60", "--", str(tmp_path / "ring")],
            capture_output=True, text=True, timeout=90, check=False, cwd="/",
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == [f"{rank} of {ranks}" for rank in range(ranks)]


MIXED = """
rank, libbip = int(os.environ["VIAKIT_RANK"]), sys.argv[1]
messages = b"12345678", bytes(range(256)) * 1024  # short and long
if rank == int(sys.argv[2]):
    c = ctypes.CDLL(libbip)
    c.bip_init()
    words = (ctypes.c_int * (len(messages[1]) // 4))()
    for data in messages:
        assert c.bip_trecv(5, words, len(words)) == len(data) // 4
        c.bip_tsend(1 - rank, 6, words, len(data) // 4)
    c.bip_end()
else:
    with bip.open(timeout_s=30) as job:
        for data in messages:
            job.send(1 - rank, data, 5, 30)
            room = bytearray(len(data))
            assert job.recv(room, 6, 30) == (len(data), 1 - rank)
            assert room == data
print("good", flush=True)
"""


@pytest.mark.parametrize("hosts", ["local", "testbed:2"])
@pytest.mark.parametrize("c_rank", [0, 1])
def test_ranks_in_c_and_in_python_in_one_job(c_rank: int, hosts: str) -> None:
    """Both agree on the job's name and on which ranks share a host, so they connect over BIP."""
    if hosts != "local":
        needs.hosts().close()
    libbip = str(Path(_core.__file__).parent / "lib" / "libbip.so.1")
    done = subprocess.run(
        [sys.executable, "-m", "viakit", "run", "-n", "2", "--hosts", hosts, "--timeout", "60", "--", sys.executable,
         "-c", "import ctypes, sys\n" + PRELUDE + MIXED, libbip, str(c_rank)],
        capture_output=True, text=True, timeout=90, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["good", "good"]


C_RANK = """
import ctypes, os, sys
libbip = ctypes.CDLL(sys.argv[1])
libbip.bip_init()
words = (ctypes.c_int * 2)()
if int(os.environ["VIAKIT_RANK"]):
    assert libbip.bip_trecv(5, words, 2) == 2
    assert list(words) == [7, 8], list(words)
    libbip.bip_tsend(0, 6, words, 2)
else:
    words[:] = [7, 8]
    libbip.bip_tsend(1, 5, words, 2)
    assert libbip.bip_trecv(6, words, 2) == 2
libbip.bip_end()
print("good", flush=True)
"""
PYTHON_RANK = """
from viakit.launch import bootstrap
place = bootstrap()
place.exchange(b"0" * 32)  # for the job's name
blobs = place.exchange(bytes(64))  # as long as a card of BIP, but none
assert [len(blob) for blob in blobs] == [64, 64] and any(blobs[1])
print("good", flush=True)
"""


@pytest.mark.parametrize("first", ["C", "Python"])
def test_c_ranks_meet_over_tcp_with_tags(tmp_path, first):
    """Ranks in C, and one in C with one in Python, at a meeting point in Python; the secret is in a file."""
    from concurrent.futures import ThreadPoolExecutor

    from viakit.base import secret as _secret
    from viakit.launch import rendezvous as _rendezvous

    file = tmp_path / "secret"
    file.write_bytes(os.urandom(40))
    file.chmod(0o600)
    libbip = str(Path(_core.__file__).parent / "lib" / "libbip.so.1")
    address = f"tcp:127.0.0.1:{free_port()}"
    clean = {name: text for name, text in os.environ.items() if not name.startswith("VIAKIT_")}
    given = {"VIAKIT_SECRET_FILE": str(file), "VIAKIT_RENDEZVOUS": address, "VIAKIT_SIZE": "2"}
    given["VIAKIT_JOB"] = f"mixed {os.getpid()} {first}"
    stop = None
    if first == "C":  # then nothing holds the meeting
        secret = _secret.of_environment(given)
        assert secret is not None
        stop = _rendezvous.listen_for(address, 2, secret)
    codes = [C_RANK if first == "C" else PYTHON_RANK, C_RANK]
    try:
        ranks = [
            subprocess.Popen(
                [sys.executable, "-c", code, libbip],
                env=clean | given | {"VIAKIT_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, code in enumerate(codes)
        ]
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda rank: rank.communicate(timeout=60), ranks))
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        if stop:
            stop()
    ended = [(rank.returncode, out) for rank, (out, _) in zip(ranks, found, strict=True)]
    if first == "C":
        assert ended == [(0, "good\n")] * 2, found
    else:  # The exchange succeeded, and so the rank in C finds out that rank 0 is no program of BIP.
        assert ended[0] == (0, "good\n"), found
        assert "card of rank 0" in found[1][1], found
