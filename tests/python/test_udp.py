"""Properties of the link udp: device names, stations shared by processes, unknown peers, and changing networks."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest
from ports import free_port

from viakit import via
from viakit.errors import InvalidParameterError, NameServiceError, NoMatchError, NotReachableError, ResourceError
from viakit.testbed import Testbed, TestbedError

LIMIT_S = 30.0
HEADER = struct.Struct("<BBHHHHHIIIII")  # csrc/link/frame_format.h
CONNECT = struct.Struct("<IIIIQIHHBBBBBBH")
CALL = 0xF0  # the first byte of what links of udp say to each other
WHO, HERE, CHALLENGE = 1, 2, 3
REQUEST = 9


def own_port() -> int:
    """A station's port that no test running at the same time has."""
    return free_port(socket.SOCK_DGRAM)


@pytest.fixture
def station():
    return f"udp:127.0.0.1:{own_port()}"


@pytest.fixture(scope="module")
def testbed():
    try:
        bed = Testbed(hosts=2).open()
    except TestbedError as error:
        pytest.skip(f"no testbed on this machine: {error}")
    with bed:
        yield bed


def join(server: via.Nic, client: via.Nic, word: str, host: via.Address | None = None) -> tuple[via.Vi, via.Vi]:
    """Connect a VI of each NIC; the caller closes them."""
    serving, asking = server.create_vi(), client.create_vi()
    thread = threading.Thread(target=lambda: server.connect_wait(word, timeout_s=LIMIT_S).accept(serving))
    thread.start()
    asking.connect((host or server.address) / word, timeout_s=LIMIT_S, retry=True)
    thread.join(LIMIT_S)
    return serving, asking


# ---------------------------------------------------------------- names


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("udp:no-such", ["neither an address nor an interface", "127.0.0.1 (lo)"]),
        ("udp:192.0.2.7", ["192.0.2.7 is not an address of this host", "127.0.0.1 (lo)"]),
        ("udp:127.0.0.1:0", ["1 to 65535"]),
        ("udp:127.0.0.1:70000", ["1 to 65535"]),
        ("udp:[::1", ["in brackets"]),
    ],
)
def test_a_device_that_cannot_be_is_explained(device, words):
    with pytest.raises(InvalidParameterError) as caught:
        via.Nic(device)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_port_that_another_program_has_is_explained():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with pytest.raises(ResourceError, match="belongs to another program"):
            via.Nic(f"udp:127.0.0.1:{other.getsockname()[1]}")


def test_an_mtu_that_the_interface_lacks_is_explained(station):
    with pytest.raises(InvalidParameterError, match="MTU 100000 requested"):
        via.Nic(station, mtu=100_000)
    with via.Nic(station, mtu=1500) as nic:
        assert nic.info.mtu == 1500
        assert nic.info.max_payload == 1500 - 28 - 32
        assert nic.info.interface == "lo"


def test_an_address_holds_host_and_port(station):
    port = int(station.rpartition(":")[2])
    with via.Nic(station) as nic:
        assert nic.address.host == socket.inet_aton("127.0.0.1") + struct.pack("!H", port)
        assert nic.resolve(f"127.0.0.1:{port}") == nic.address
        assert nic.resolve("127.0.0.1").host[4:] == struct.pack("!H", 34997)
        assert nic.resolve("localhost") == nic.address
        with pytest.raises(NameServiceError, match=r"no host 'no-such-host.invalid'"):
            nic.resolve("no-such-host.invalid")


def test_ipv6_needs_the_name_service():
    port = own_port()
    with via.Nic(f"udp:[::1]:{port}") as nic, nic.create_vi() as vi:
        assert nic.address.host[0] >= 0xF0
        assert nic.resolve(f"[::1]:{port}") == nic.address
        with pytest.raises(NotReachableError):
            vi.connect(via.Address(bytes([0xF1, 2, 3, 4]) + struct.pack("!H", port), b"x"), timeout_s=LIMIT_S)


# ---------------------------------------------------------------- stations


def test_an_absent_host_is_reported_at_once(station):
    with via.Nic(station) as nic, nic.create_vi() as vi:
        nowhere = via.Address(socket.inet_aton("127.0.0.1") + struct.pack("!H", own_port()), b"x")
        with pytest.raises(NoMatchError):  # the host is up: a server may open its NIC there later
            vi.connect(nowhere, timeout_s=LIMIT_S)
        with pytest.raises(NoMatchError):
            vi.connect(nic.address / "nobody waits", timeout_s=LIMIT_S)


def test_a_network_without_a_route_is_not_reachable(station):
    with via.Nic(station) as nic, nic.create_vi() as vi:
        elsewhere = via.Address(socket.inet_aton("192.0.2.1") + struct.pack("!H", own_port()), b"x")
        with pytest.raises(NotReachableError):  # no way leads there from 127.0.0.1
            vi.connect(elsewhere, timeout_s=LIMIT_S)


def test_the_nics_of_a_station_are_found_whoever_keeps_the_door(station):
    with contextlib.ExitStack() as stack:
        nics = [stack.enter_context(via.Nic(station)) for _ in range(4)]
        assert len({nic.info.port for nic in nics}) == 4
        assert len({nic.address for nic in nics}) == 1
        # One of the first three has the door, whichever: each is closed in turn, and the next found through the rest.
        for i in range(3):
            serving, asking = join(nics[i], nics[3], f"nic {i}")
            asking.disconnect()
            serving.disconnect()
            with pytest.raises(NoMatchError):
                asking.connect(nics[i].address / "no such word", timeout_s=LIMIT_S)
            asking.close()
            serving.close()
            nics[i].close()


def test_a_process_that_goes_away_is_refused_by_its_host(station):
    program = (
        "import sys; from viakit import via\n"
        f"nic = via.Nic({station!r}); vi = nic.create_vi()\n"
        "nic.connect_wait('x', timeout_s=20).accept(vi); print('on', flush=True); sys.stdin.read()"
    )
    with via.Nic(station) as nic, nic.create_vi() as vi:
        other = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        try:
            vi.connect(nic.address / "x", timeout_s=LIMIT_S, retry=True)
            assert other.stdout.readline() == b"on\n"
            other.kill()
            other.wait(LIMIT_S)
            region = nic.create_region(64)
            lost = threading.Event()
            nic.on_error = lambda error: lost.set()
            with contextlib.suppress(Exception):  # the completion, or the state, says that it is over
                vi.send(region[:8], timeout_s=LIMIT_S)
            assert vi.state is not via.ViState.CONNECTED or lost.wait(LIMIT_S)
        finally:
            other.kill()
            other.communicate()
            nic.on_error = None
            vi.disconnect()


# ---------------------------------------------------------------- unknown peers


def who(nonce: int, room: int) -> bytes:
    return struct.pack("<BBHHHQQQ", CALL, WHO, room, 0, 0, nonce, 0, 0) + bytes(room)


def request(port: int, number: int, trailer: bytes) -> bytes:
    body = CONNECT.pack(number, 77, 1, 1 << 20, 0, 0, 2, 1440, 0, 0, 0, 0, 1, 0, 0) + b"x"
    return HEADER.pack(0x10 | REQUEST, 0, len(body), port, 0, 1234, 1, 0, 0, 0, 0, 0) + body + trailer


@pytest.fixture
def unknown():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.settimeout(LIMIT_S)
        yield sock


@pytest.mark.parametrize("room", [0, 1, 2, 7, 64, 512])
def test_a_station_tells_no_more_than_was_sent(station, unknown, room):
    door = ("127.0.0.1", int(station.rpartition(":")[2]))
    with via.Nic(station) as first, via.Nic(station) as second:
        unknown.sendto(who(0x1234567890, room), door)
        answer = unknown.recv(2048)
        assert len(answer) <= 32 + room
        _, what, length, told, n, nonce = struct.unpack("<BBHHHQ", answer[:16])
        assert (what, nonce, told, length) == (HERE, 0x1234567890, door[1], 2 * n)
        ports = set(struct.unpack(f"<{n}H", answer[32 : 32 + 2 * n]))
        assert ports <= {first.info.port, second.info.port}
        assert n == min(2, room // 2)


def test_a_request_without_a_cookie_is_only_given_one(station, unknown):
    with via.Nic(station) as nic:
        nic_name = ("127.0.0.1", nic.info.port)
        waiting = threading.Thread(target=wait_in_vain, args=(nic,))
        waiting.start()
        asked = request(0, 4711, struct.pack("<HHQ", 1, 0, 0xBAD))
        answers = []
        for _ in range(20):
            unknown.sendto(asked, nic_name)
            answers.append(unknown.recv(2048))
        assert {len(answer) for answer in answers} == {32}, "shorter than the question, and never a connection's frame"
        assert {answer[1] for answer in answers} == {CHALLENGE}
        cookies = {answer[16:24] for answer in answers}
        assert len(cookies) == 1
        assert b"\x00" * 8 not in cookies
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as another:
            another.settimeout(LIMIT_S)
            another.sendto(asked, nic_name)
            assert another.recv(2048)[16:24] not in cookies, "a cookie is good for one address only"
            another.sendto(request(0, 4711, struct.pack("<HH", 1, 0) + cookies.pop()), nic_name)
            assert another.recv(2048)[1] == CHALLENGE
        waiting.join(LIMIT_S)


def wait_in_vain(nic: via.Nic) -> None:
    with contextlib.suppress(Exception):
        nic.connect_wait(b"never", timeout_s=0.3)


def test_noise_is_dropped_and_counted(station, unknown):
    with via.Nic(station) as server, via.Nic(station) as client:
        serving, asking = join(server, client, "noise")
        before = server.counters
        for k in range(200):
            junk = os.urandom(k % 90)
            unknown.sendto(junk, ("127.0.0.1", server.info.port))
            unknown.sendto(junk, ("127.0.0.1", int(station.rpartition(":")[2])))
            forged = HEADER.pack(0x11, 3, 4, server.info.port, 0, client.info.port, 0, k, k, 0, 0, 0) + b"evil"
            unknown.sendto(forged, ("127.0.0.1", server.info.port))
        room = server.create_region(64)
        serving.post_recv(via.Descriptor.recv(room[:64]))
        asking.send(b"still here", timeout_s=LIMIT_S)
        assert bytes(room[: serving.recv_wait(timeout_s=LIMIT_S).length]) == b"still here"
        told = server.counters - before
        assert told["dropped_unknown_peer"] >= 200
        assert told["messages_received"] == 1
        for vi in (asking, serving):
            vi.disconnect()
            vi.close()
        room.close()


# ---------------------------------------------------------------- networks that change

PLAYER = """
import json, sys
from viakit import via
role, device, peer = sys.argv[1:4]
options = {"keepalive_ms": 200, "max_retries": int(sys.argv[4])}
with via.Nic(device, **options) as nic, nic.create_vi() as vi, nic.create_region(1 << 17) as memory:
    half, view = 1 << 16, memoryview(memory)
    vi.post_recv(via.Descriptor.recv(memory[half:]))
    if role == "ask":
        vi.connect(nic.resolve(peer, "udp"), timeout_s=60, retry=True)
    else:
        nic.connect_wait("udp", timeout_s=60).accept(vi)
    try:
        while role == "echo":
            got = vi.recv_wait(timeout_s=60)
            n = got.length
            view[:n] = view[half : half + n]
            vi.post_recv(via.Descriptor.recv(memory[half:]))
            vi.post_send(via.Descriptor.send(memory[:n]))
            vi.send_wait(timeout_s=60)
        for line in sys.stdin if role == "ask" else ():
            times, n = map(int, line.split())
            before = nic.counters
            for k in range(times):
                word = bytes((k + i) % 251 for i in range(n))
                view[:n] = word
                vi.post_send(via.Descriptor.send(memory[:n]))
                vi.send_wait(timeout_s=60)
                got = vi.recv_wait(timeout_s=60)
                assert got.length == n and bytes(view[half : half + n]) == word
                vi.post_recv(via.Descriptor.recv(memory[half:]))
            told = dict((nic.counters - before).nonzero(), max_payload=nic.info.max_payload)
            print(json.dumps(told), flush=True)
    except via.ViaError as error:
        print(json.dumps({"error": type(error).__name__}), flush=True)
    view.release()
    vi.disconnect()
    vi.drain()
"""


class Exchange:
    """Two players on the hosts of a testbed; `turns` exchanges messages."""

    def __init__(self, testbed: Testbed, max_retries: int = 10) -> None:
        self.workers = []
        for i, role in enumerate(("ask", "echo")):
            command = [sys.executable, "-c", PLAYER, role, "udp:eth0", testbed.hosts[1].address, str(max_retries)]
            self.workers.append(testbed.hosts[i].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))

    def turns(self, times: int, nbytes: int) -> dict:
        self.start(times, nbytes)
        return self.finish()

    def start(self, times: int, nbytes: int) -> None:
        self.workers[0].stdin.write(f"{times} {nbytes}\n".encode())
        self.workers[0].stdin.flush()

    def finish(self) -> dict:
        line = self.workers[0].stdout.readline()
        assert line, "the asking side has ended"
        return json.loads(line)

    def close(self) -> None:
        for worker in self.workers:
            with worker:  # closes its pipes and waits
                worker.kill()


@pytest.fixture
def exchange(testbed):
    with contextlib.ExitStack() as stack:
        one = Exchange(testbed)
        stack.callback(one.close)
        yield one
    on_both(testbed, "mtu", "1500")


def on_both(testbed: Testbed, *what: str) -> None:
    for host in testbed.hosts:
        done = host.run(["ip", "link", "set", "eth0", *what])
        assert done.returncode == 0, done.stderr


def test_an_mtu_that_shrinks_under_way_is_coped_with(testbed, exchange):
    wide = exchange.turns(5, 60_000)
    assert "error" not in wide
    assert wide["max_payload"] == 1500 - 28 - 32
    assert wide["super_frames_sent"] > 0
    on_both(testbed, "mtu", "1000")
    narrow = exchange.turns(5, 60_000)
    assert "error" not in narrow, "frames longer than the wire is wide are cut by IP"
    on_both(testbed, "mtu", "1500")
    assert "error" not in exchange.turns(5, 60_000)


def test_an_interface_that_goes_down_and_comes_up(testbed):
    with contextlib.ExitStack() as stack:
        one = Exchange(testbed, max_retries=200)  # the connection outlives the commands, however long they take
        stack.callback(one.close)
        assert "error" not in one.turns(2, 10_000)
        one.start(200, 10_000)
        on_both(testbed, "down")
        on_both(testbed, "up")
        assert "error" not in one.finish()


def test_an_address_that_goes_away_ends_the_connection(testbed, exchange):
    host = testbed.hosts[0]
    assert "error" not in exchange.turns(2, 1000)
    try:
        assert host.run(["ip", "addr", "flush", "dev", "eth0"]).returncode == 0
        assert "error" in exchange.turns(1, 1000)
    finally:
        host.run(["ip", "addr", "add", f"{host.address}/24", "dev", "eth0"])


READER = """
import json, sys
from viakit import via
role, device, peer = sys.argv[1:4]
N = 300_000
word = lambda of: bytes((k * 7 + len(of)) % 251 for k in range(N))
with via.Nic(device) as nic, nic.create_tag() as tag:
    with nic.create_vi(tag=tag, rdma_read=True) as vi, nic.create_region(2 * N, tag=tag, rdma_read=True) as memory:
        view = memoryview(memory)
        view[:N] = word(role)
        vi.post_recv(via.Descriptor.recv(memory[N:]))
        if role == "client":
            vi.connect(nic.resolve(peer, "reads"), timeout_s=60, retry=True)
        else:
            nic.connect_wait("reads", timeout_s=60).accept(vi)
        view[N - 100 : N - 84] = memory.address.to_bytes(8, "little") + memory.handle.to_bytes(8, "little")
        vi.post_send(via.Descriptor.send(memory[N - 100 : N - 84]))
        vi.send_wait(timeout_s=60)
        vi.recv_wait(timeout_s=60)
        there, handle = (int.from_bytes(view[N + k : N + k + 8], "little") for k in (0, 8))
        view[N - 100 : N - 84] = word(role)[N - 100 : N - 84]
        before = nic.counters
        vi.post_send(via.Descriptor.rdma_read(memory[N:], there, handle))
        vi.send_wait(timeout_s=60)
        other = "server" if role == "client" else "client"
        same = bytes(view[N : 2 * N - 100]) == word(other)[: N - 100]
        print(json.dumps({"same": same, **dict((nic.counters - before).nonzero())}), flush=True)
        sys.stdin.read()
        view.release()
        vi.disconnect()
        vi.drain()
"""


@pytest.mark.parametrize("narrow", [0, 1])
def test_reads_where_one_direction_is_narrower_than_the_other(testbed, narrow):
    """The target reports the MTU of the path of the data, which the requester does not see, and gets pieces of it."""
    host, peer = testbed.hosts[narrow], testbed.hosts[1 - narrow]
    done = host.run(["ip", "route", "add", f"{peer.address}/32", "dev", "eth0", "mtu", "900"])
    assert done.returncode == 0, done.stderr
    with contextlib.ExitStack() as stack:
        stack.callback(host.run, ["ip", "route", "del", f"{peer.address}/32"])
        workers = []
        for i, role in enumerate(("client", "server")):
            command = [sys.executable, "-c", READER, role, "udp:eth0", testbed.hosts[1].address]
            workers.append(testbed.hosts[i].popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            stack.enter_context(workers[i])
            stack.callback(workers[i].kill)
        told = [json.loads(worker.stdout.readline() or "{}") for worker in workers]
        assert [one.get("same") for one in told] == [True, True]
        assert told[1 - narrow]["frames_received"] >= 300_000 / (900 - 28 - 32), "frames of the narrow path's size"


def test_a_path_that_is_narrower_than_the_wire(testbed):
    for host, peer in zip(testbed.hosts, reversed(testbed.hosts), strict=True):
        done = host.run(["ip", "route", "add", f"{peer.address}/32", "dev", "eth0", "mtu", "900"])
        assert done.returncode == 0, done.stderr
    with contextlib.ExitStack() as stack:
        one = Exchange(testbed)
        stack.callback(one.close)
        told = one.turns(5, 60_000)
        assert "error" not in told
        assert told["frames_sent"] >= 5 * 60_000 / (900 - 28 - 32), "frames of the path's size"
        assert told["super_frames_sent"] > 0, "so that no interface has to divide them"
    for host, peer in zip(testbed.hosts, reversed(testbed.hosts), strict=True):
        host.run(["ip", "route", "del", f"{peer.address}/32"])
