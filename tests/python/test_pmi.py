"""PMI in both versions: against the test's own server, like that of `srun --mpi=pmi2`, and against Hydra."""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import threading

import needs
import pytest
from launch_job import DEADLINE_S

from viakit.launch import pmi as _pmi
from viakit.launch.rendezvous import RendezvousError

RANK = """
import hashlib, sys
from viakit.launch import pmi as _pmi
if len(sys.argv) > 1:
    _pmi._VERSIONS = ((int(sys.argv[1]), 0),)
from viakit.launch import bootstrap
job = bootstrap()
assert job.way == "pmi"
blobs = job.exchange(bytes([job.rank]) * 5000 * job.rank)
assert blobs == [bytes([rank]) * 5000 * rank for rank in range(job.size)]
assert len(set(job.exchange(job.secret))) == 1 and len(job.secret) == 32
print(hashlib.sha256(job.secret).hexdigest() + "\\n", end="", flush=True)
"""


class Server:
    """A launcher's side of PMI, one version of it, for ranks that are connected by socket pairs."""

    def __init__(self, version: int, n_ranks: int) -> None:
        self.version, self.n_ranks = version, n_ranks
        self.space: dict[str, str] = {}
        self.fence = threading.Barrier(n_ranks)
        self.problems: list[str] = []

    def serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rwb", buffering=0) as file:
            version = 0
            while True:
                if version == 2:
                    length = file.read(6)
                    text = self.whole(file, int(length)).decode() if length else ""
                    words = dict(word.partition("=")[::2] for word in text.split(";") if word)
                else:
                    text = file.readline().decode()
                    words = dict(word.partition("=")[::2] for word in text.split())
                if not words:
                    return
                command = words["cmd"]
                if command == "init":
                    good = words["pmi_version"] == str(self.version)
                    file.write(f"cmd=response_to_init pmi_version={self.version} rc={0 if good else -1}\n".encode())
                    version = self.version if good else 0
                    continue
                if len(words.get("value", "")) > 1024 or len(words.get("key", "")) > 64:
                    self.problems.append(text)
                answer = self.answer(command, words)
                if version == 2:
                    answer = ";".join(answer.split()) + ";"
                    file.write(f"{len(answer):6d}{answer}".encode())
                else:
                    file.write(f"{answer}\n".encode())

    @staticmethod
    def whole(file, n: int) -> bytes:
        data = b""
        while len(data) < n:
            data += file.read(n - len(data))
        return data

    def answer(self, command: str, words: dict[str, str]) -> str:
        if command in ("put", "kvs-put"):
            self.space[words["key"]] = words["value"]
            return "cmd=put_result rc=0" if command == "put" else "cmd=kvs-put-response rc=0"
        if command in ("barrier_in", "kvs-fence"):
            self.fence.wait(DEADLINE_S)
            return "cmd=barrier_out rc=0" if command == "barrier_in" else "cmd=kvs-fence-response rc=0"
        if command in ("get", "kvs-get"):
            value = self.space[words["key"]]
            if command == "get":
                return f"cmd=get_result rc=0 value={value}"
            return f"cmd=kvs-get-response flag=TRUE value={value} rc=0"
        return {
            "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=256 vallen_max=1024",
            "get_my_kvsname": "cmd=my_kvsname kvsname=space",
            "finalize": "cmd=finalize_ack" if self.version == 1 else "cmd=finalize-response rc=0",
            "fullinit": "cmd=fullinit-response pmi-version=2 pmijobid=1.0 rank=0 size=2 appnum=0 rc=0",
        }[command]


def run_ranks(path: str, server: Server, given: list[dict[str, str]]) -> list[tuple[int, str, str]]:
    """Start a rank for each of the environments `given`; return status, output and errors of each."""
    pairs = [socket.socketpair() for _ in given]
    threads = [threading.Thread(target=server.serve, args=(near,), daemon=True) for near, _ in pairs]
    ranks = []
    for number, (_, far) in enumerate(pairs):
        fd = far.fileno()
        environment = os.environ | {"PMI_FD": str(fd), "PMI_RANK": str(number), "PMI_SIZE": str(len(given))}
        environment |= {"PMI_JOBID": "1.0", "VIAKIT_BOOTSTRAP": "pmi"} | given[number]
        ranks.append(
            subprocess.Popen(
                [sys.executable, path],
                env=environment,
                pass_fds=[fd],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        far.close()
    for thread in threads:
        thread.start()
    try:
        found = [rank.communicate(timeout=DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
        for thread in threads:
            thread.join(DEADLINE_S)
    return [(rank.returncode, out, err) for rank, (out, err) in zip(ranks, found, strict=True)]


@pytest.mark.parametrize("version", [1, 2])
def test_ranks_meet_over_pmi(script, version):
    n = 3
    server = Server(version, n)
    found = run_ranks(script(RANK), server, [{}] * n)
    assert [status for status, _, _ in found] == [0] * n, found
    assert len({out for _, out, _ in found}) == 1
    assert not server.problems
    assert hashlib.sha256(b"").hexdigest() not in found[0][1]


def test_a_secret_that_the_user_gives_is_used(script):
    secret = "5a" * 32
    server = Server(2, 2)
    found = run_ranks(script(RANK), server, [{"VIAKIT_SECRET": secret}] * 2)
    digest = hashlib.sha256(bytes.fromhex(secret)).hexdigest()
    assert [(status, out.strip()) for status, out, _ in found] == [(0, digest)] * 2, found
    assert not server.problems


@pytest.mark.parametrize("given", [0, 1])
def test_a_secret_on_some_ranks_only_is_refused(script, given):
    environments = [{"VIAKIT_SECRET": "5a" * 32} if rank == given else {} for rank in range(2)]
    for status, _, err in run_ranks(script(RANK), Server(2, 2), environments):
        assert status != 0
        assert f"on some ranks only, not on rank {1 - given}" in err, err


@pytest.mark.parametrize("version", ["1", "2"])
def test_against_mpichs_launcher(script, tmp_path, version):
    found = needs.mpi_library("mpi:mpich")
    environment = {**os.environ, **found.environment(str(tmp_path)), "VIAKIT_BOOTSTRAP": "pmi"}
    command = found.command([sys.executable, script(RANK), version], 3)
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 1
    assert len(done.stdout.split()) == 3


def test_a_launcher_that_accepts_no_version(monkeypatch):
    near, far = socket.socketpair()
    with near, far:
        far.sendall(b"cmd=response_to_init rc=-1\n" * 2)
        with pytest.raises(RendezvousError, match="neither version 1 nor 2"):
            _pmi.Pmi(near.fileno(), 2)


def test_errors_do_not_show_values():
    assert "c2VjcmV0" not in _pmi._shown("cmd=put key=k value=1:c2VjcmV0")
