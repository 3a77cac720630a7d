"""The secret of a job at the meeting point: which processes become ranks."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future

import needs
import pytest
from launch_job import DEADLINE_S
from ports import free_port
from secret_job import AS_ANOTHER_USER, SECRET, closed_by_the_other_end, connected, end, in_thread, start
from test_secret import RANK

from viakit import launch
from viakit.base import secret as _secret
from viakit.launch import handshake as _handshake
from viakit.launch import rendezvous as _rendezvous
from viakit.launch.handshake import Reception, Refused, introduce
from viakit.launch.rendezvous import RendezvousError, Sealed

# ---- the meeting point


def rank_by_hand(rank: int, address: str, secret: bytes | None) -> dict[str, str]:
    given = {} if secret is None else {"VIAKIT_SECRET": secret.hex()}
    return {"VIAKIT_RANK": str(rank), "VIAKIT_SIZE": "2", "VIAKIT_RENDEZVOUS": address, "VIAKIT_JOB": "x", **given}


def test_a_meeting_that_is_ended_twice_closes_its_own_files_only():
    stop = _rendezvous.listen_for(f"unix:@viakit-test-{os.getpid()}-twice", 2, SECRET)
    stop()
    files = [fd for _ in range(8) for fd in os.pipe()]  # among them those numbers that are free again
    stop()
    for fd in files:
        os.close(fd)


def test_silent_and_garbled_callers_do_not_lock_ranks_out():
    where = ("127.0.0.1", free_port())
    address = f"tcp:127.0.0.1:{where[1]}"
    first = start(RANK, rank_by_hand(0, address, SECRET))
    hello = b"VKH2" + (1).to_bytes(4, "little") + (2).to_bytes(4, "little")
    said = [b"", b"GET / HTTP/1.1\r\n\r\n", hello, hello + bytes(48), b"VKH1" + hello[4:] + b"\1\0\0\0x", b"\0" * 5000]
    callers = [connected(where) for _ in range(60)]
    try:
        for i, caller in enumerate(callers):
            with contextlib.suppress(OSError):  # it may have been dropped already
                caller.sendall(said[i % len(said)] if i >= 30 else b"")  # many that stay silent, and others
        assert end(start(RANK, rank_by_hand(1, address, SECRET)))[:2] == (0, "got thanks\n")
        assert end(first)[:2] == (0, "got hello\n")
    finally:
        first.kill()
        first.wait()
        for caller in callers:
            caller.close()


@pytest.fixture
def reception():
    """A reception of at most four callers, and its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    with contextlib.closing(Reception(listener, SECRET, most_waiting=4)) as made:
        yield made, listener.getsockname()


def test_if_too_many_callers_wait_the_one_that_has_waited_longest_goes(reception):
    made, where = reception
    waits = in_thread(made.first, time.monotonic() + DEADLINE_S)
    callers = [connected(where) for _ in range(9)]
    for caller in callers[:5]:
        assert closed_by_the_other_end(caller)
    last = connected(where)
    assert introduce(last, SECRET, 1, 2, time.monotonic() + DEADLINE_S) == SECRET
    admitted = waits.result(DEADLINE_S)
    admitted.sendall(b"hello")
    assert last.recv(5) == b"hello"
    for one in (*callers, last, admitted):
        one.close()


def test_a_caller_that_stays_silent_is_dropped(reception, monkeypatch):
    monkeypatch.setattr(_handshake, "_TO_ANSWER_S", 0.01)
    made, where = reception
    waits = in_thread(made.first, time.monotonic() + DEADLINE_S)
    with connected(where) as silent:
        assert closed_by_the_other_end(silent)
    monkeypatch.setattr(_handshake, "_TO_ANSWER_S", DEADLINE_S)
    with connected(where) as right:
        introduce(right, SECRET, 1, 2, time.monotonic() + DEADLINE_S)
        waits.result(DEADLINE_S).close()


@pytest.mark.parametrize("what", ["secret", "replayed", "reflected"])
def test_proofs_that_are_refused(reception, what):
    made, where = reception
    waits = in_thread(made.first, time.monotonic() + DEADLINE_S)
    who, mine = (1).to_bytes(4, "little") + (2).to_bytes(4, "little"), bytes(16)
    nonce = b""
    for _ in range(2 if what == "replayed" else 1):  # a proof for an earlier challenge
        with connected(where) as caller:
            greeting = caller.recv(20, socket.MSG_WAITALL)
            assert greeting[:4] == b"VKC2"
            assert greeting[4:] != nonce
            nonce = nonce or greeting[4:]
            key = b"another" if what == "secret" else SECRET
            text = b"viakit meeting point" if what == "reflected" else b"viakit meeting rank"
            proof = hashlib.blake2s(text + nonce + mine + who, key=key).digest()
            if what == "replayed" and nonce == greeting[4:]:
                continue
            caller.sendall(b"VKH2" + who + mine + proof)
            assert closed_by_the_other_end(caller)
    assert not waits.done()
    with connected(where) as right:
        introduce(right, SECRET, 1, 2, time.monotonic() + DEADLINE_S)
        waits.result(DEADLINE_S).close()


@pytest.mark.parametrize(
    "answer", [b"VKS2" + bytes(32), b"VKC2" + bytes(16) + b"VKW2" + bytes(32), b"VKW2" + bytes(48)]
)
def test_a_rank_does_not_stay_where_the_secret_is_not_known(answer):
    near, far = socket.socketpair()
    with near, far:
        far.sendall(answer)
        far.shutdown(socket.SHUT_WR)
        with pytest.raises(Refused):
            introduce(near, SECRET, 0, 2, time.monotonic() + DEADLINE_S)
        near.close()
        with contextlib.suppress(ConnectionResetError):  # it did not even read all of the answer
            assert SECRET not in far.recv(1 << 16)


def test_a_meeting_point_that_does_not_know_the_secret_is_no_meeting_point():
    address = f"unix:@viakit-test-{os.getpid()}-other"
    stop = _rendezvous.listen_for(address, 2, _secret.new())
    try:
        with pytest.raises(RendezvousError, match="not let in") as caught:
            _rendezvous.connect(address, 1, 2, SECRET, DEADLINE_S)
        assert SECRET.hex() not in str(caught.value)
    finally:
        stop()


def test_on_one_host_the_meeting_point_hands_out_the_secret():
    address = f"unix:@viakit-test-{os.getpid()}-given"
    stop = _rendezvous.listen_for(address, 2, SECRET, gives=True)
    try:
        clients = [_rendezvous.connect(address, rank, 2, None, DEADLINE_S, takes=True) for rank in range(2)]
        assert [secret for _, secret in clients] == [SECRET, SECRET]
        knows = in_thread(clients[1][0].exchange, b"b", DEADLINE_S)
        assert clients[0][0].exchange(b"a", DEADLINE_S) == [b"a", b"b"] == knows.result(DEADLINE_S)
        for client, _ in clients:
            client.close()
    finally:
        stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_not_given_the_secret():
    address = f"viakit-test-{os.getpid()}-user"
    stop = _rendezvous.listen_for(f"unix:@{address}", 2, SECRET, gives=True)
    code = f"s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{address}')\nprint(s.recv(100))"
    try:
        assert end(start(AS_ANOTHER_USER + code, {}))[:2] == (0, "b''\n")
        client, given = _rendezvous.connect(f"unix:@{address}", 1, 2, None, DEADLINE_S, takes=True)
        client.close()
        assert given == SECRET
    finally:
        stop()


def test_where_users_look_alike_the_secret_is_not_handed_out():
    unshare = [needs.tool("unshare"), "-U", "--"]  # no user has a number there: all are 65534
    if subprocess.run([*unshare, "true"], capture_output=True).returncode != 0:
        pytest.skip("this machine refuses user namespaces")
    code = f"""
import os
from viakit.launch import rendezvous as _rendezvous
from viakit.base import secret as _secret
assert not _secret.users_can_be_told_apart()
try:
    _rendezvous.listen_for("unix:@viakit-test-{os.getpid()}-alike", 2, bytes(32), gives=True)
except _rendezvous.RendezvousError as error:
    print(error)
stop = _rendezvous.listen_for("unix:@viakit-test-{os.getpid()}-alike", 2, bytes(32))
try:
    _rendezvous.connect("unix:@viakit-test-{os.getpid()}-alike", 0, 2, None, 1.0, takes=True)
except _rendezvous.RendezvousError as error:
    print(error)
_rendezvous.connect("unix:@viakit-test-{os.getpid()}-alike", 0, 2, bytes(32), 10.0)[0].close()
stop()
"""
    done = subprocess.run([*unshare, sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("export VIAKIT_SECRET=") == 2


def test_changed_and_forged_blobs_of_a_tagged_exchange_are_refused():
    def forged(answer):
        """A meeting point of two ranks that returns `answer` of rank 0's blob; rank 0 believes that it is right."""
        return Sealed(lambda blob, timeout: answer(blob), 0, 2, SECRET)

    with pytest.raises(RendezvousError, match="own blob unchanged"):
        forged(lambda blob: [bytes(16), bytes(16)]).exchange(b"blob", 1.0)
    with pytest.raises(RendezvousError, match="own blob unchanged"):
        forged(lambda blob: [blob]).exchange(b"blob", 1.0)
    with pytest.raises(RendezvousError, match="rank 1 began the exchange with 4 bytes"):
        forged(lambda blob: [blob, b"card"]).exchange(b"blob", 1.0)
    with pytest.raises(RendezvousError, match="rank 1 gave to the exchange was changed or forged"):
        forged(lambda blob: [blob, blob]).exchange(b"blob", 1.0)  # the tag of rank 0 as rank 1's
    with pytest.raises(RendezvousError, match="own blob unchanged"):
        forged(lambda blob: [blob[:16], bytes(16)]).exchange(b"blob", 1.0)


def test_ranks_with_different_secrets_or_numbers_of_ranks_do_not_exchange():
    def pair(seals):
        meets, blobs = threading.Barrier(2), [b"", b""]

        def exchange(rank, blob):
            blobs[rank] = blob
            meets.wait(DEADLINE_S)
            both = list(blobs)
            meets.wait(DEADLINE_S)
            return both

        ranks = [Sealed(lambda blob, _, r=r: exchange(r, blob), r, 2, s) for r, s in enumerate(seals)]
        futures = [in_thread(lambda r=r, s=s: [s.exchange(bytes([r, k]), 1.0) for k in range(2)])
                   for r, s in enumerate(ranks)]  # fmt: skip
        return [future.exception(DEADLINE_S) or future.result() for future in futures]

    good = [[b"\0\0", b"\1\0"], [b"\0\1", b"\1\1"]]
    assert pair([SECRET, SECRET]) == [good, good]
    assert all(isinstance(found, RendezvousError) for found in pair([SECRET, bytes(32)]))


def recorded(upstream: int, replays: bytes) -> tuple[int, Future[bytes]]:
    """Listen between a rank and its meeting point; replace what the meeting point sends by `replays`, if not empty.

    Returns the port, and what the meeting point sent after the handshake.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    handshake = 20 + 36  # challenge, welcome

    def pump() -> bytes:
        seen = b""
        with listener, listener.accept()[0] as rank, connected(("127.0.0.1", upstream)) as point:
            while True:
                ready = select.select([rank, point], [], [], DEADLINE_S)[0]
                assert ready
                for source in ready:
                    try:
                        data = source.recv(1 << 16)
                    except ConnectionResetError:
                        data = b""
                    if not data:
                        return seen[handshake:]
                    if source is rank:
                        point.sendall(data)
                        continue
                    fresh = data if not replays else data[: max(0, handshake - len(seen))]
                    at_end = replays and len(seen) <= handshake < len(seen + data)
                    seen += data
                    rank.sendall(fresh + (replays if at_end else b""))

    return listener.getsockname()[1], in_thread(pump)


def test_the_exchange_of_an_earlier_job_with_the_same_secret_is_not_accepted(monkeypatch):
    """A process on the path replays the answers of a job's exchange to a rank of a later job."""
    monkeypatch.setenv("VIAKIT_SECRET", SECRET.hex())

    def job(replays: bytes) -> tuple[list[bytes] | BaseException, bytes]:
        port = free_port()
        between, record = recorded(port, replays)
        ranks = [launch.Job("srun", rank, 2, None, None, None, None) for rank in range(2)]

        def take_part(rank: int, at: int, timeout: float) -> list[bytes]:
            launch._by_rendezvous(ranks[rank], f"tcp:127.0.0.1:{at}", timeout)
            try:
                return ranks[rank].exchange(b"every host is this one", timeout)
            finally:
                if rank:
                    ranks[rank].close()

        first = in_thread(take_part, 0, port, 5.0 if replays else DEADLINE_S)
        second = in_thread(take_part, 1, between, DEADLINE_S)
        found = second.exception(DEADLINE_S) or second.result()
        with contextlib.suppress(RendezvousError):
            first.result(DEADLINE_S)
        ranks[0].close()
        return found, record.result(DEADLINE_S)

    found, record = job(b"")
    assert found == [b"every host is this one"] * 2
    found, _ = job(record)
    assert isinstance(found, RendezvousError), found
    assert "own blob unchanged" in str(found)


def test_a_socket_whose_listener_does_not_answer_is_left_alone(tmp_path):
    path = str(tmp_path / "meeting")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        waiting = []
        with contextlib.suppress(BlockingIOError):  # until the backlog is full
            for _ in range(10_000):
                waiting.append(socket.socket(socket.AF_UNIX))
                waiting[-1].setblocking(False)
                waiting[-1].connect(path)
        probe = in_thread(_rendezvous._remove_dead_socket, path)
        try:
            probe.result(DEADLINE_S)
            assert os.path.exists(path)
        finally:
            for connection in waiting:
                connection.close()
    _rendezvous._remove_dead_socket(path)  # Nothing listens any more.
    assert not os.path.exists(path)


def test_two_processes_that_are_the_same_rank_are_told_so():
    address = f"unix:@viakit-test-{os.getpid()}-twice"
    stop = _rendezvous.listen_for(address, 2, SECRET)
    try:
        clients = [_rendezvous.connect(address, 1, 2, SECRET, DEADLINE_S)[0] for _ in range(2)]
        for client in clients:
            with pytest.raises(RendezvousError, match="two processes were started as rank 1"):
                client.exchange(b"", DEADLINE_S)
            client.close()
    finally:
        stop()
