"""The secret of a measurement: its listeners accept only processes of the measurement."""

from __future__ import annotations

import os
import socket
import sys
import time
from pathlib import Path

import needs
import pytest
from launch_job import DEADLINE_S
from secret_job import AS_ANOTHER_USER, SECRET, closed_by_the_other_end, connected, end, in_thread, start

# ---- measurement's own listeners


@pytest.mark.parametrize("protocol", ["tcp", "unix", "msg-tcp"])
def test_a_measurement_takes_its_own_side_only(protocol):
    from viakit.measure.sides import make_side

    request = {"protocol": protocol, "level": "c", "wait": "poll", "secret": SECRET.hex(), "core": None}
    request |= {"address": "127.0.0.1", "interface": "lo", "options": {}}
    b, a = make_side(request | {"side": 1}), make_side(request | {"side": 0})
    try:
        offers = [a.open(), b.open()]
        where = offers[1]["address"]
        address = where if isinstance(where, str) else tuple(where)
        with connected(address) as other, connected(address) as silent:
            other.sendall(b"I am the other side, believe me. " * 3)
            deadline = time.monotonic() + DEADLINE_S
            waits = in_thread(b.connect, offers[0], deadline)
            assert closed_by_the_other_end(other)
            a.connect(offers[1], deadline)
            waits.result(DEADLINE_S)
            assert closed_by_the_other_end(silent)
        assert SECRET.hex()[:12] not in Path("/proc/net/unix").read_text()
    finally:
        for side in (a, b):
            side.close()


@pytest.mark.parametrize("level", ["c", "python"])
def test_a_measurement_over_via_takes_its_own_side_only(level):
    """Another process may see the discriminator on the wire, request it first, and wait for it in the peer's place."""
    from viakit import errors, via
    from viakit.measure.sides import make_side

    request = {
        "protocol": "via-udp",
        "level": level,
        "wait": "poll",
        "secret": SECRET.hex(),
        "core": None,
        "options": {},
    }
    a = make_side(request | {"side": 0, "address": "127.0.0.1", "interface": "lo"})
    b = make_side(request | {"side": 1, "address": "127.0.0.2", "interface": "lo"})
    with via.Nic("udp:127.0.0.3") as nic:
        try:
            offers = [a.open(), b.open()]
            deadline = time.monotonic() + DEADLINE_S
            waits = in_thread(b.connect, offers[0], deadline)
            for secret in (None, bytes(32)):
                vi = nic.create_vi(secret=secret)
                with pytest.raises(errors.RejectedError):
                    vi.connect(via.Address(bytes.fromhex(offers[1]["address"]), b.token), DEADLINE_S, retry=True)
                vi.close()
            assert not waits.done()
            a.connect(offers[1], deadline)
            assert waits.exception(DEADLINE_S) is None
        finally:
            waits.exception(2 * DEADLINE_S)  # it uses the endpoint
            for side in (a, b):
                side.close()


def test_messages_of_a_pair_are_keyed_by_its_secret():
    from viakit import _core

    def opened(secrets, timeout_s):
        pair = socket.socketpair()
        sides = [
            in_thread(
                lambda i=i: _core.BenchEndpoint.msg("tcp", pair[i], i, True, timeout_s=timeout_s, secret=secrets[i])
            )
            for i in range(2)
        ]
        problems = [side.exception(DEADLINE_S) for side in sides]
        for end_of_pair in pair:
            end_of_pair.close()
        closing = [in_thread(side.result().close) for side, problem in zip(sides, problems, strict=True) if not problem]
        for closed in closing:
            closed.result(DEADLINE_S)
        return problems

    assert opened([SECRET, SECRET], DEADLINE_S) == [None, None]
    assert all(isinstance(problem, RuntimeError) for problem in opened([SECRET, bytes(32)], 1.0))
    assert all(isinstance(problem, ValueError) for problem in opened([None, None], 1.0))


def test_a_measurement_over_zeromq_takes_its_own_side_only():
    import zmq
    from zmq.utils.monitor import recv_monitor_message

    from viakit.measure.sides import make_side

    request = {"protocol": "zmq", "level": "python", "wait": "block", "secret": SECRET.hex(), "core": None}
    request |= {"address": "127.0.0.1", "interface": "lo", "options": {}}
    b, a = make_side(request | {"side": 1}), make_side(request | {"side": 0})
    context = zmq.Context()
    try:
        offers = [a.open(), b.open()]
        host, port = offers[1]["address"]
        other = context.socket(zmq.PAIR)
        other.linger = 0
        monitor = other.get_monitor_socket()
        other.connect(f"tcp://{host}:{port}")
        failed = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_DISCONNECTED
        while True:
            assert monitor.poll(1000 * DEADLINE_S)
            event = recv_monitor_message(monitor)["event"]
            assert event != zmq.EVENT_HANDSHAKE_SUCCEEDED
            if event & failed:
                break
        a.sock.sndtimeo = b.sock.rcvtimeo = round(1000 * DEADLINE_S)
        a.connect(offers[1], time.monotonic() + DEADLINE_S)
        a.sock.send(b"of the pair")
        assert b.sock.recv() == b"of the pair"
        other.disable_monitor()
        monitor.close(0)
        other.close(0)
    finally:
        for side in (a, b):
            side.close()
        context.term()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_measured_ranks_are_of_the_same_user(tmp_path):
    from viakit.base.channel import Channel
    from viakit.measure.ranks import Ranks, call_back

    names: list[str] = []

    def program(name: str) -> list[str]:
        names.append(name)
        return [sys.executable, "-c", "import sys; sys.stdin.read(); import time; time.sleep(60)"]

    library = needs.mpi_library("mpi:mpich")
    with open(tmp_path / "output", "wb") as output:
        ranks = Ranks(library, program, 1, output)
        ranks.start()
    try:
        waits = in_thread(ranks.accept, time.monotonic() + DEADLINE_S)
        code = f"s = socket.socket(socket.AF_UNIX)\ns.connect('\\0{names[0]}')\nprint(s.recv(100))"
        assert end(start(AS_ANOTHER_USER + code, {}))[:2] == (0, "b''\n")
        rank = call_back(names[0])
        assert isinstance(rank, Channel)
        rank.send({"hello": 1})
        channel = waits.result(DEADLINE_S)
        assert channel.recv(DEADLINE_S)[0] == {"hello": 1}
        channel.close()
        rank.close()
    finally:
        ranks.kill()
