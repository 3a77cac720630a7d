"""A victim, its partner and an attacker on one Ethernet.

Victim and partner are programs on two hosts of a testbed, and have a connection. The attacker is the test's process. It
has a raw socket on the partner's host, so that its frames come from the partner's station, and it builds every frame
itself: as an unknown peer, or as a peer with a connection of its own.

    python hostile_eth.py obey             a program that performs the requests on its standard input
    python hostile_eth.py hand_over FD     opens a raw socket, and sends its descriptor over the socket FD
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import random
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from waiting import LIMIT_S, until

from viakit import via

ETHERTYPE = struct.pack(">H", 0x88B5)
VERSION = 1
(
    READ,
    SEND,
    WRITE,
    ACK,
    NAK,
    ERROR,
    PROBE,
    DISCONNECT,
    RESET,
    REQUEST,
    PENDING,
    ACCEPT,
    CONFIRM,
    REJECT,
    NOMATCH,
    CANCEL,
) = range(16)
FIRST, LAST, ACK_NOW, CRC = 1, 2, 8, 0x40
HEADER = struct.Struct("<BBHHHHHIIIII")
CONNECT = struct.Struct("<IIIIQIHHBBBBBBBB")
MAX_TRANSFER = 4096
PAGE = mmap.PAGESIZE
FILL = b"\x3c"


# ---------------------------------------------------------------- the programs under attack


class Program:
    """Victim and partner: run the methods that lines of JSON request, as [method, arguments...]."""

    def __init__(self) -> None:
        self.nic = via.Nic("eth:eth0")
        self.tag = self.nic.create_tag()
        self.vis: dict[str, via.Vi] = {}
        self.memory = mmap.mmap(-1, 8 * PAGE)
        self.memory[:] = FILL * len(self.memory)
        self.regions: dict[str, via.MemoryRegion] = {}
        self.box = self.nic.create_region(MAX_TRANSFER)
        self.inbox = self.nic.create_region(64, self.tag)
        self.waiting: list[threading.Thread] = []

    def where(self) -> list[Any]:
        return [self.nic.address.host.hex(), self.nic.info.port]

    def areas(self) -> dict[str, list[int]]:
        """Pages with a guard page around each: name to handle and address."""
        view = memoryview(self.memory)
        plan = {"granted": (self.tag, 1, 1), "other tag": (self.nic.create_tag(), 1, 1), "no right": (self.tag, 0, 0)}
        plan["stale"] = (self.tag, 1, 1)
        where = {}
        for i, (name, (tag, write, read)) in enumerate(plan.items()):
            page = view[(2 * i + 1) * PAGE : (2 * i + 2) * PAGE]
            self.regions[name] = region = self.nic.register(page, tag, rdma_write=bool(write), rdma_read=bool(read))
            where[name] = [region.handle, region.address]
        self.regions.pop("stale").deregister()
        return where

    def lend(self) -> list[int]:
        """A page that is granted until it is taken back."""
        page = memoryview(self.memory)[7 * PAGE : 8 * PAGE]
        self.regions["lent"] = region = self.nic.register(page, self.tag, rdma_read=True)
        return [region.handle, region.address]

    def take_back(self) -> None:
        self.regions.pop("lent").deregister()

    def changed(self) -> list[int]:
        """The pages in which a byte is not as it was."""
        return [i for i in range(8) if self.memory[i * PAGE : (i + 1) * PAGE] != FILL * PAGE]

    def clean(self) -> None:
        self.memory[:] = FILL * len(self.memory)

    def create(self, name: str, right: bool, n_receives: int) -> None:
        old = self.vis.pop(name, None)
        if old is not None:
            old.disconnect()
            old.drain()
            old.close()
        tag = self.tag
        self.vis[name] = vi = self.nic.create_vi(
            max_transfer_size=MAX_TRANSFER, tag=None if name == "good" else tag, rdma_write=right, rdma_read=right
        )
        for _ in range(n_receives):
            vi.post_recv(via.Descriptor.recv(self.box[:0], owner=vi))

    def accept(self, name: str) -> None:
        vi = self.vis[name]

        def serve() -> None:
            self.nic.connect_wait(name, timeout_s=LIMIT_S).accept(vi)

        self.waiting.append(threading.Thread(target=serve))
        self.waiting[-1].start()

    def connect(self, name: str, host: str) -> None:
        self.vis[name].connect(via.Address(bytes.fromhex(host)) / name, timeout_s=LIMIT_S, retry=True)

    def accepted(self) -> None:
        while self.waiting:
            self.waiting.pop().join(LIMIT_S)

    def say(self, text: str) -> None:
        self.vis["good"].send(text.encode(), timeout_s=LIMIT_S)

    def listen(self) -> None:
        self.vis["good"].post_recv(via.Descriptor.recv(self.box[:256]))

    def hear(self) -> str:
        done = self.vis["good"].recv_wait(timeout_s=LIMIT_S)
        return bytes(memoryview(self.box)[: done.length]).decode()

    def ask(self, name: str) -> None:
        vi = self.vis[name]
        vi.post_send(via.Descriptor.rdma_read(self.inbox[:64], 0x10000, 7))

    def got(self, name: str) -> str:
        self.vis[name].send_wait(timeout_s=LIMIT_S)
        return bytes(memoryview(self.inbox)[:64]).hex()

    def look(self) -> dict[str, Any]:
        return {
            "counters": {k: v for k, v in self.nic.counters.items() if k.startswith("dropped_")},
            "states": {name: vi.state.name for name, vi in self.vis.items()},
            "undone": {name: vi.n_recvs_posted for name, vi in self.vis.items()},
            "frames": self.nic.counters["frames_received"],
            "alive": via.live_objects(),
        }

    def end(self) -> None:
        for vi in self.vis.values():
            vi.disconnect()
            vi.drain()
            vi.close()
        for region in [self.box, self.inbox, *self.regions.values()]:
            region.deregister()
        self.nic.close()


def obey() -> None:
    """Does what the lines on standard input say, and answers each by a line."""
    program = Program()
    print("ready", flush=True)
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        print(json.dumps(getattr(program, method)(*arguments)), flush=True)
        if method == "end":
            break


def hand_over(fd: int) -> None:
    """Opens a raw socket on this host's network and hands it to who waits at the other end of descriptor fd."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003)) as wire:
        wire.bind(("eth0", 0))
        with socket.socket(fileno=fd) as channel:
            socket.send_fds(channel, [b"."], [wire.fileno()])


class Remote:
    """A Program on a host."""

    def __init__(self, host: Any) -> None:
        self.process = host.popen(
            [sys.executable, __file__, "obey"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout.readline() == "ready\n"

    def __call__(self, method: str, *arguments: Any) -> Any:
        self.process.stdin.write(json.dumps([method, *arguments]) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the program ended in {method}{arguments}"
        return json.loads(line)

    def finish(self) -> None:
        try:
            if self.process.poll() is None:
                self("end")
            assert self.process.wait(LIMIT_S) == 0
        finally:
            if self.process.poll() is None:
                self.process.kill()
            self.process.stdin.close()
            self.process.stdout.close()


def raw_socket(host: Any) -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        command = [sys.executable, __file__, "hand_over", str(theirs.fileno())]
        with host.popen(command, pass_fds=[theirs.fileno()]) as process:
            ours.settimeout(LIMIT_S)
            _, fds, _, _ = socket.recv_fds(ours, 16, 1)
            process.wait(LIMIT_S)
    wire = socket.socket(fileno=fds[0])
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    wire.settimeout(LIMIT_S)
    return wire


# ---------------------------------------------------------------- the attacker

CRC_TABLE = []
for _byte in range(256):
    _crc = _byte
    for _ in range(8):
        _crc = _crc >> 1 ^ (0x82F63B78 if _crc & 1 else 0)
    CRC_TABLE.append(_crc)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ CRC_TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


class Peer:
    """The other end of a connection, by hand, or with arbitrary numbers an unknown peer."""

    def __init__(self, scene: Scene, port: int, vi: int) -> None:
        self.scene, self.port, self.vi = scene, port, vi
        self.key = scene.rng.getrandbits(32) | 1  # the victim puts it into frames for us
        self.their_vi = self.their_key = self.psn = self.ack = 0

    def frame(self, kind: int, payload: bytes = b"", flags: int = 0, **other: int) -> bytes:
        """Right in everything but what `other` says."""
        f = {
            "version": VERSION,
            "len": len(payload),
            "dst_port": self.scene.port,
            "dst_vi": self.their_vi,
            "src_port": self.port,
            "src_vi": self.vi,
            "key": self.their_key,
            "psn": self.psn,
            "ack": self.ack,
            "immediate": 0,
            "crc_flag": CRC,
            "spoil": 0,
            **other,
        }
        fields = [f["version"] << 4 | kind, flags | f["crc_flag"]]
        fields += [f[name] for name in ("len", "dst_port", "dst_vi", "src_port", "src_vi")]
        fields += [f[name] & 0xFFFFFFFF for name in ("key", "psn", "ack", "immediate")]
        crc = crc32c(HEADER.pack(*fields, 0) + payload) ^ f["spoil"]
        return HEADER.pack(*fields, crc) + payload

    def send(self, kind: int, payload: bytes = b"", flags: int = 0, **other: int) -> None:
        self.scene.put(self.frame(kind, payload, flags, **other))

    def connect_block(self, request: int, name: bytes = b"", **other: int) -> bytes:
        c = {
            "reliability": int(via.Reliability.RELIABLE_DELIVERY),
            "max_payload": 1400,
            "wanted": len(name),
            "mode": 0,
            **other,
        }
        sizes = (c["reliability"], c["max_payload"], 1, 1, 0, 0, c["wanted"], 0, c["mode"], 0)
        return CONNECT.pack(request, self.key, self.psn, MAX_TRANSFER, 0, 0, *sizes) + name

    def connect(self, name: str) -> None:
        """Connect by the rules: a request (repeated until a VI waits), the acceptance, its confirmation."""
        self.psn = self.scene.rng.getrandbits(32)
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            request = self.scene.rng.getrandbits(32)
            self.send(REQUEST, self.connect_block(request, name.encode()), dst_port=0, dst_vi=0, key=0)
            while (answer := self.receive({ACCEPT, NOMATCH})) is not None:
                kind, header, payload = answer
                if kind == ACCEPT:
                    body = CONNECT.unpack_from(payload)
                    self.their_vi, self.their_key, self.ack = header[6], body[1], body[2]
                    self.send(CONFIRM, self.connect_block(request))
                    return
                break
        raise AssertionError("the victim did not accept")

    def receive(self, kinds: set[int]) -> tuple[int, tuple[int, ...], bytes] | None:
        """The next frame for us of one of these kinds; None when the deadline is over."""
        end = time.monotonic() + LIMIT_S
        while time.monotonic() < end:
            try:
                data, origin = self.scene.wire.recvfrom(65536)
            except TimeoutError:
                return None
            if origin[2] == socket.PACKET_OUTGOING or data[12:14] != ETHERTYPE or len(data) < 14 + HEADER.size:
                continue
            header = HEADER.unpack_from(data, 14)
            if header[0] & 15 in kinds and header[3] == self.port and header[4] == self.vi:
                return header[0] & 15, header, data[14 + HEADER.size :]
        return None

    def write(self, handle: int, address: int, data: bytes, length: int | None = None, **other: int) -> None:
        block = struct.pack("<QII", address & (1 << 64) - 1, handle, len(data) if length is None else length)
        self.send(WRITE, block + data, FIRST | LAST, **other)

    def read(
        self,
        handle: int,
        address: int,
        length: int,
        next_psn: int | None = None,
        wanted: int = 1,
        piece: int = 1024,
        **other: int,
    ) -> None:
        behind = self.psn if next_psn is None else next_psn & 0xFFFFFFFF
        block = struct.pack("<QQIIII", address & (1 << 64) - 1, wanted, handle, length, behind, piece)
        self.send(READ, block, FIRST | LAST, **{"psn": 0, "immediate": 1, **other})


class Scene:
    """Two hosts, the programs on them, and the attacker's socket."""

    def __init__(self, testbed: Any, stack: ExitStack) -> None:
        a, b = testbed.hosts
        self.rng = random.Random(7)
        self.victim, self.partner = Remote(a), Remote(b)
        stack.callback(self.partner.finish)
        stack.callback(self.victim.finish)
        self.wire = stack.enter_context(raw_socket(b))
        self.tap = stack.enter_context(raw_socket(a))  # what the victim's interface receives
        host, self.port = self.victim("where")
        self.host, self.station = bytes.fromhex(host), bytes.fromhex(self.partner("where")[0])
        self.partner_port = self.partner("where")[1]
        self.areas = self.victim("areas")
        self.ports = itertools.count(50000)
        self.n = 0
        self.reconnect()

    def reconnect(self) -> None:
        for program in (self.victim, self.partner):
            program("create", "good", False, 0)
        self.victim("accept", "good")
        self.partner("connect", "good", self.host.hex())
        self.victim("accepted")
        self.talk()

    def talk(self) -> None:
        """A message each way over the good connection: that one and no other arrives."""
        for sender, receiver in ((self.partner, self.victim), (self.victim, self.partner)):
            self.n += 1
            receiver("listen")
            sender("say", f"message {self.n}")
            assert receiver("hear") == f"message {self.n}"

    def put(self, frame: bytes, station: bytes | None = None) -> None:
        self.wire.send(self.host + (station or self.station) + ETHERTYPE + frame)

    def peer(self, name: str, right: bool = True) -> Peer:
        """A connection with the attacker, whose VI may or may not be written to."""
        self.victim("create", name, right, 2)
        self.victim("accept", name)
        peer = Peer(self, next(self.ports), 5)
        peer.connect(name)
        self.victim("accepted")
        return peer

    @contextmanager
    def dropped(self, reason: str, n: int = 1, changed: tuple[int, ...] = ()) -> Iterator[None]:
        """Check that n frames of the block are dropped for this reason, and none for another, without harm."""
        before = self.victim("look")["counters"]
        yield
        until(lambda: self.victim("look")["counters"][reason] >= before[reason] + n, f"not counted as {reason}")
        self.unharmed(changed)
        after = self.victim("look")["counters"]
        # an acknowledgement that was late makes the partner send something twice
        others = {k for k in after if k not in (reason, "dropped_duplicate") and after[k] != before[k]}
        assert not others, {k: after[k] - before[k] for k in others}
        assert after[reason] - before[reason] == n or reason == "dropped_duplicate"

    def unharmed(self, changed: tuple[int, ...] = ()) -> None:
        self.talk()
        assert tuple(self.victim("changed")) == changed
        self.victim("clean")
        assert self.victim("look")["states"]["good"] == "CONNECTED"

    def overheard(self, kinds: set[int]) -> list[bytes]:
        """The partner's frames that the victim's interface has received since the last call."""
        frames = []
        self.tap.setblocking(False)
        try:
            while True:
                data, origin = self.tap.recvfrom(65536)
                mine = origin[2] != socket.PACKET_OUTGOING and data[6:14] == self.station + ETHERTYPE
                if (
                    mine
                    and len(data) >= 14 + HEADER.size
                    and data[14] & 15 in kinds
                    and HEADER.unpack_from(data, 14)[5] == self.partner_port
                ):
                    frames.append(data[14:])
        except BlockingIOError:
            return frames

    def as_partner(self) -> Peer:
        """All numbers of the good connection, overheard: what the partner itself would send next."""
        self.overheard(set())
        self.talk()
        header = HEADER.unpack_from(self.overheard({SEND})[-1])
        peer = Peer(self, header[5], header[6])
        peer.their_vi, peer.their_key, peer.psn, peer.ack = header[4], header[7], header[8] + 1, header[9]
        return peer


if __name__ == "__main__":
    if sys.argv[1] == "obey":
        obey()
    else:
        hand_over(int(sys.argv[2]))
        os._exit(0)
