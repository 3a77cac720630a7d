"""The secret of a job: how ranks receive it, and that it is nowhere visible."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import os
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import needs
import pytest
from launch_job import DEADLINE_S, VIAKIT, viakit_run
from ports import free_port
from secret_job import AS_ANOTHER_USER, NOBODY, SECRET, connected, end, free_job, srun, start

from viakit import launch
from viakit.base import secret as _secret
from viakit.launch import mpi_library as mpi
from viakit.launch.agent import mpi_agent
from viakit.launch.runner import Options

# ---- srun


RANK = """
    import viakit
    comm = viakit.world("tcp")
    if comm.rank == 0:
        print("got", comm.recv(source=1))
        comm.send("thanks", 1)
    else:
        comm.send("hello", 0)
        print("got", comm.recv(source=0))
"""
INTRUDER = """
class Planted:
    def __reduce__(self):
        return os.mkdir, (os.environ["MARKER"],)
comm = viakit.world("tcp", timeout_s=20)
comm.send(Planted(), 0)
"""


def test_a_foreign_process_does_not_become_a_rank_under_srun(tmp_path):
    job, mine, marker = free_job(), _secret.new().hex(), tmp_path / "unpickled"
    first = start(RANK, srun(0, job) | {"VIAKIT_SECRET": mine})
    try:
        connected(("127.0.0.1", 20000 + job)).close()  # rank 0 listens
        guess = {"VIAKIT_SECRET": _secret.new().hex(), "MARKER": str(marker), "HOME": "/"}
        status, _, err = end(start(AS_ANOTHER_USER + INTRUDER, srun(1, job) | guess))
        assert not marker.exists()
        assert status != 0
        assert "not let in" in err, err
        second = start(RANK, srun(1, job) | {"VIAKIT_SECRET": mine})
        assert end(second)[:2] == (0, "got thanks\n")
    finally:
        found = end(first)
    assert found[:2] == (0, "got hello\n"), found
    assert not marker.exists()


BOOTSTRAP = """
    from viakit.launch import bootstrap
    job = bootstrap()
    print(job.way, job.launcher, len(job.secret))
"""


@pytest.mark.parametrize("rank", [0, 1])
def test_srun_on_several_nodes_without_a_secret_is_refused(rank):
    status, out, err = end(start(BOOTSTRAP, srun(rank, free_job())))
    assert (status, out) == (1, "")
    for words in ("LaunchError", "export VIAKIT_SECRET=$(python3 -c ", "VIAKIT_SECRET_FILE=PATH", "--mpi=pmi2"):
        assert words in err, err


def test_the_command_that_the_refusal_names_works():
    environment = srun(0, free_job()) | {"VIAKIT_NETWORK": "udp:127.0.0.1"}  # otherwise the ranks exchange addresses
    _, _, err = end(start(BOOTSTRAP, environment))
    line = next(line for line in err.splitlines() if "export VIAKIT_SECRET=" in line)
    done = subprocess.run(
        ["sh", "-c", f'{line}\nexec "$@"', "sh", sys.executable, "-c", textwrap.dedent(BOOTSTRAP)],
        env=os.environ | environment, capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "rendezvous srun 32\n"), done.stderr


def test_srun_on_one_node_needs_no_secret_of_the_users():
    job = free_job()
    code = (
        BOOTSTRAP
        + "    import hashlib\n    print(hashlib.sha256(job.exchange(job.secret)[0] + job.secret).hexdigest())"
    )
    found = [end(process) for process in [start(code, srun(rank, job, nodes=1)) for rank in range(2)]]
    assert [status for status, _, _ in found] == [0, 0], found
    assert found[0][1] == found[1][1]


def test_a_secret_by_file_serves_all_ranks(tmp_path):
    path = tmp_path / "secret"
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    job = free_job()
    ranks = [start(RANK, srun(rank, job) | {"VIAKIT_SECRET_FILE": str(path)}) for rank in range(2)]
    assert [end(rank)[:2] for rank in ranks] == [(0, "got hello\n"), (0, "got thanks\n")]


# ---- what is accepted as a secret


def a_file(path: Path, content: bytes = b"x" * 32, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_secret_file(tmp_path):
    path = a_file(tmp_path / "secret")
    expected = hashlib.blake2s(b"viakit secret file" + b"x" * 32).digest()
    assert _secret.of_environment({"VIAKIT_SECRET_FILE": str(path)}) == expected
    assert _secret.of_environment({"VIAKIT_SECRET_FILE": str(path), "VIAKIT_SECRET": SECRET.hex()}) == SECRET
    path.chmod(0o400)
    assert _secret.of_environment({"VIAKIT_SECRET_FILE": str(path)}) == expected
    assert _secret.of_environment({}) is None
    assert _secret.of_environment({"VIAKIT_SECRET": "", "VIAKIT_SECRET_FILE": ""}) is None


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: a_file(path, mode=0o640), "mode is 0640"),
        (lambda path: a_file(path, mode=0o604), "mode is 0604"),
        (lambda path: a_file(path, mode=0o620), "mode is 0620"),
        (lambda path: a_file(path, b"x" * 31), "it has 31 bytes"),
        (lambda path: a_file(path, b""), "it has 0 bytes"),
        (lambda path: a_file(path, b"x" * 4097), "more than 4096 bytes"),
        (lambda path: path.symlink_to(a_file(path.with_suffix(".real"))), "symbolic link"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: os.mkfifo(path, 0o600), "not a regular file"),
        (lambda path: None, "No such file"),
    ],
)
def test_secret_files_that_are_refused(tmp_path, make, words):
    make(tmp_path / "secret")
    with pytest.raises(_secret.SecretError, match=words) as caught:
        _secret.of_environment({"VIAKIT_SECRET_FILE": str(tmp_path / "secret")})
    assert "xxxx" not in str(caught.value)
    status, _, err = end(start(BOOTSTRAP, srun(0, free_job()) | {"VIAKIT_SECRET_FILE": str(tmp_path / "secret")}))
    assert status == 1
    assert "LaunchError" in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_secret_file_of_another_user_is_refused(tmp_path):
    os.chown(a_file(tmp_path / "secret"), NOBODY, NOBODY)
    with pytest.raises(_secret.SecretError, match=f"belongs to user {NOBODY}"):
        _secret.of_environment({"VIAKIT_SECRET_FILE": str(tmp_path / "secret")})


@pytest.mark.parametrize("text", ["guess", "0" * 63, "0" * 65, "g" * 64, " " + "0" * 63])
def test_what_is_no_secret_is_refused_and_not_repeated(text):
    with pytest.raises(_secret.SecretError, match="64 hexadecimal digits") as caught:
        _secret.of_environment({"VIAKIT_SECRET": text})
    assert text not in str(caught.value)


def test_the_command_line_is_no_place_for_a_secret():
    with pytest.raises(ValueError, match="VIAKIT_SECRET is not for the command line"):
        Options(ranks=1, environment={"VIAKIT_SECRET": SECRET.hex()}).check()


def test_a_program_that_removed_the_secret_from_the_environment_is_named(script):
    done = viakit_run("-n", "2", "env", "-u", "VIAKIT_SECRET", sys.executable, script(BOOTSTRAP))
    assert done.returncode == 1
    assert "has removed it from the environment" in done.stderr


# ---- every launcher


DIGESTS = """
import hashlib, os
from viakit.launch import bootstrap
job = bootstrap()
assert len(job.secret) == 32 and job.secret is job.secret
assert job.secret.hex() not in repr(job)
assert len(set(job.exchange(job.secret))) == 1
print(f"{job.way} {hashlib.sha256(job.secret).hexdigest()}\\n", end="", flush=True)
"""


def one_digest(out: str, ranks: int, way: str) -> str:
    lines = out.split("\n")[:-1]
    assert len(lines) == ranks
    assert len(set(lines)) == 1, lines
    assert lines[0].startswith(way)
    return lines[0]


def test_every_job_of_viakit_run_has_a_secret_of_its_own(script, monkeypatch):
    monkeypatch.setenv("VIAKIT_SECRET", SECRET.hex())  # of a job that this one is started in
    path = script(DIGESTS)
    found = {one_digest(viakit_run("-n", "3", path).stdout, 3, "rendezvous") for _ in range(2)}
    found.add(f"rendezvous {hashlib.sha256(SECRET).hexdigest()}")
    assert len(found) == 3


def test_on_hosts_of_a_testbed(script):
    needs.hosts().close()
    done = viakit_run("-n", "4", "--hosts", "testbed:2", script(DIGESTS))
    one_digest(done.stdout, 4, "rendezvous")


WAYS = [(flavour, way) for flavour in mpi.FLAVOURS for way in ("mpi4py", "rendezvous")]


@pytest.mark.parametrize(("flavour", "way"), [*WAYS, ("mpich", "pmi")])
def test_under_mpirun(script, tmp_path, flavour, way):
    found = needs.mpi_library(f"mpi:{flavour}")
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_BOOTSTRAP": way}
    command = found.command([sys.executable, script(DIGESTS)], 3)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    one_digest(done.stdout, 3, way)


def test_under_mpirun_over_tcp_it_has_to_be_given(script, tmp_path):
    found = needs.mpi_library("mpi:openmpi")
    address = f"tcp:127.0.0.1:{free_port()}"
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_RENDEZVOUS": address}
    environment.pop("VIAKIT_SECRET", None)
    command = found.command([sys.executable, script(DIGESTS)])
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode != 0
    assert "export VIAKIT_SECRET=" in done.stderr
    environment["VIAKIT_SECRET"] = SECRET.hex()
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert one_digest(done.stdout, 2, "rendezvous").endswith(hashlib.sha256(SECRET).hexdigest()), done.stderr


def test_mpirun_across_hosts(script, tmp_path):
    found = needs.mpi_library("mpi:mpich")
    environment = {**os.environ, **found.environment(str(tmp_path))}
    with needs.hosts() as hosts, mpi_agent(hosts) as agent:
        command = agent.command(found, 2, [sys.executable, script(DIGESTS)])
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    one_digest(done.stdout, 4, "mpi4py")


def test_alone():
    status, out, err = end(
        start("from viakit.launch import bootstrap as b\nprint(len(b().secret), b().secret == b().secret)", {})
    )
    assert (status, out) == (0, "32 True\n"), err


# ---- nowhere in sight


HOLDS = """
import os, sys
import viakit
from viakit.launch import bootstrap
comm = viakit.world(sys.argv[2])
print(bootstrap())
if comm.rank == 0:
    secret = os.open(sys.argv[1] + ".new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(secret, bootstrap().secret.hex().encode())
    os.rename(sys.argv[1] + ".new", sys.argv[1])
    sys.stdin.readline()
comm.barrier()
"""


@pytest.mark.parametrize("protocol", ["via", "bip", "tcp"])
def test_the_secret_stands_nowhere_in_sight(script, tmp_path, protocol):
    shown = tmp_path / "shown"
    process = subprocess.Popen(
        [*VIAKIT, "run", "-n", "2", script(HOLDS), str(shown), protocol],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + DEADLINE_S
        while not shown.exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            os.sched_yield()
        secret = shown.read_text()
        assert len(secret) == 64
        visible = subprocess.run([*VIAKIT, "inspect"], capture_output=True, text=True, timeout=DEADLINE_S).stdout
        visible += Path("/proc/net/unix").read_text() + "\n".join(os.listdir("/dev/shm"))
        for pattern in ("/proc/[0-9]*/cmdline", "/proc/[0-9]*/comm", "/proc/[0-9]*/maps"):
            for path in glob.glob(pattern):
                with contextlib.suppress(OSError):
                    visible += Path(path).read_bytes().decode(errors="replace")
        for path in glob.glob(f"/proc/{process.pid}/environ") + glob.glob("/proc/self/environ"):
            assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0  # what has the secret is its user's alone
        out, _ = process.communicate("\n", timeout=DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, out
    for text in (visible, out):
        assert secret[:12] not in text
        assert secret[-12:] not in text


def test_results_do_not_contain_it(monkeypatch):
    from viakit.measure import environment

    monkeypatch.setenv("VIAKIT_SECRET", SECRET.hex())
    assert SECRET.hex() not in repr(environment.environment(seed=1))


def test_a_job_keeps_it_out_of_sight():
    job = launch.Job("viakit", 0, 1, None, None, None, None, _secret=SECRET)
    assert job.secret == SECRET
    assert SECRET.hex() not in repr(job)
    assert repr(SECRET)[2:20] not in repr(job)
