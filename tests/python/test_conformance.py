"""The conformance suite in Python on every link: via_cases.py has the cases, this file runs their two sides."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import subprocess
import sys
import threading
import traceback

import needs
import pytest
import via_cases as cases
from via_sides import LEVELS, LIMIT_S, Channel

LINKS = ("loop", "shm", "eth", "udp")
LIMIT_OF_BOTH_S = 3 * LIMIT_S
numbers = itertools.count(1)


def same_process(device: str, case: str, parameters: dict) -> None:
    """Both sides in this process, in a thread each."""
    said = {}
    sockets = socket.socketpair()

    def side(role: str, sock: socket.socket) -> None:
        try:
            cases.run(case, parameters, role == "a", device, Channel(sock))
        except BaseException:
            said[role] = f"side {role}:\n{traceback.format_exc()}"
            sock.close()  # the other side is not kept waiting

    threads = [threading.Thread(target=side, args=pair, daemon=True) for pair in zip("ab", sockets, strict=True)]
    with contextlib.ExitStack() as stack:
        for sock in sockets:
            stack.callback(sock.close)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_OF_BOTH_S)
        assert not any(thread.is_alive() for thread in threads), f"{case} is stuck"
    if said:
        pytest.fail("\n".join(said.values()), pytrace=False)


class Pair:
    """Two processes that work off cases, started anew when one of them has failed."""

    def __init__(self, device: str, start) -> None:
        self.device = device
        self.start = start  # start(role, command, pass_fds) -> Popen-like
        self.workers = []
        self.channels = []

    def open(self) -> None:
        self.close()
        peers = socket.socketpair()
        for role, peer in zip("ab", peers, strict=True):
            mine, its = socket.socketpair()
            fds = (peer.fileno(), its.fileno())
            command = [sys.executable, cases.__file__, role, self.device, *map(str, fds)]
            self.workers.append(self.start(role, command, fds))
            self.channels.append(Channel(mine))
            its.close()
        for peer in peers:
            peer.close()

    def close(self) -> None:
        for channel in self.channels:
            channel.sock.close()
        for worker in self.workers:
            try:
                worker.wait(timeout=5)
            except Exception:
                worker.kill()
                worker.wait(timeout=LIMIT_S)
        self.workers, self.channels = [], []

    def run(self, case: str, parameters: dict) -> None:
        if not self.workers:
            self.open()
        name = f"t{os.getpid()}-{next(numbers)}"
        for channel in self.channels:
            channel.write([name, case, parameters])
        answers = []
        for role, channel in zip("ab", self.channels, strict=True):
            try:
                answers.append(channel.read(LIMIT_OF_BOTH_S))
            except (EOFError, TimeoutError) as error:
                answers.append(f"side {role}: {error}")
        if case == "peer_killed" and answers[1].endswith("gone"):
            answers[1] = "ok"
            self.close()
        if answers != ["ok", "ok"]:
            self.close()
            pytest.fail("\n".join(answer for answer in answers if answer != "ok"), pytrace=False)


def start_here(role: str, command: list[str], fds: tuple[int, ...]) -> subprocess.Popen:
    return subprocess.Popen(command, pass_fds=fds)


@pytest.fixture(scope="module", params=LINKS)
def link(request):
    """A function that runs one case on both sides of a link."""
    if request.param == "loop":
        yield lambda case, **parameters: same_process(f"loop:t{next(numbers)}", case, parameters)
        return
    with contextlib.ExitStack() as stack:
        if request.param == "shm":
            pair = Pair("shm:{name}", start_here)
        else:
            testbed = stack.enter_context(needs.hosts())

            def start_there(role, command, fds):
                return testbed.hosts["ab".index(role)].popen(command, pass_fds=fds)

            pair = Pair(f"{request.param}:eth0", start_there)
        stack.callback(pair.close)
        yield lambda case, **parameters: pair.run(case, parameters)


levels = pytest.mark.parametrize("level", LEVELS)


@pytest.mark.parametrize("case", ["connect", "connection_tells_who_asks", "refuse", "no_match", "mismatch"])
def test_connecting(link, case):
    link(case)


@pytest.mark.parametrize("nbytes", [0, 1, 63, 64, 1448, 4096, 40000, 1000003])
@levels
def test_message(link, level, nbytes):
    link("message", level=level, nbytes=nbytes)


def test_longest_message(link):
    link("message", level="reliable_delivery", nbytes=64 << 20)


@pytest.mark.parametrize("case", ["too_long_for_the_vi", "too_long_for_the_receive", "order", "segments", "immediate"])
@levels
def test_messages(link, case, level):
    link(case, level=level)


@levels
def test_rdma_write(link, level):
    link("rdma_write", level=level)


@pytest.mark.parametrize("fault", ["outside", "across", "before", "region", "vi", "tag", "stale"])
@levels
def test_rdma_write_refused(link, level, fault):
    link("rdma_write_refused", level=level, fault=fault)


def test_rdma_write_while_the_target_computes(link):
    link("rdma_write_while_computing")


@pytest.mark.parametrize("level", ["reliable_delivery", "reliable_reception"])
def test_rdma_read(link, level):
    link("rdma_read", level=level)


def test_rdma_read_refused(link):
    link("rdma_read_refused")


@pytest.mark.parametrize("case", ["wrong_tag", "stale_handle", "deregister_while_posted"])
def test_local_error(link, case):
    link(case)


@pytest.mark.parametrize("case", ["receive_not_posted", "disconnect_with_descriptors_posted"])
@levels
def test_other_side_not_ready(link, case, level):
    link(case, level=level)


def test_many_vis(link):
    link("many_vis")


def test_waiting(link):
    link("wait_is_not_a_spin")


@pytest.mark.parametrize("link", ["shm", "eth", "udp"], indirect=True)
@pytest.mark.parametrize("write", [False, True])
def test_peer_killed(link, write):
    link("peer_killed", write=write)
