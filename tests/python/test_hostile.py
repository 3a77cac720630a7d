"""Programs with their own code for the links' protocols send invalid frames; a good connection is not affected."""

from __future__ import annotations

import fcntl
import itertools
import mmap
import os
import random
import resource
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from hostile_eth import CONNECT, HEADER, REQUEST
from waiting import LIMIT_S, until

from viakit import via

MAGIC = 0x56696153686D3032
WIRE_VERSION = 1
RINGS = 2 * (64 + 1024 * 64)
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


@contextmanager
def pair(device: str) -> Iterator[tuple[via.Nic, Callable[[], None]]]:
    """A NIC with a connection to another one, and what sends a message over it."""
    with (
        via.Nic(device) as victim,
        via.Nic(device) as partner,
        victim.create_vi() as here,
        partner.create_vi() as there,
        victim.create_region(64) as inbox,
        partner.create_region(64) as outbox,
    ):

        def serve() -> None:
            victim.connect_wait("hostile", timeout_s=LIMIT_S).accept(here)

        def talk() -> None:
            here.post_recv(via.Descriptor.recv(inbox[:64]))
            there.send(outbox[:64], timeout_s=LIMIT_S)
            assert here.recv_wait(timeout_s=LIMIT_S).length == 64

        server = threading.Thread(target=serve)
        server.start()
        there.connect(victim.address / "hostile", timeout_s=LIMIT_S, retry=True)
        server.join()
        talk()
        yield victim, talk
        talk()


# ---------------------------------------------------------------- shared memory


def memory(nbytes: int, content: bytes = b"", seals: int = SEALS) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(fd, nbytes)
    if content:
        os.pwrite(fd, content, 0)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def segment(nbytes: int = 8192 + 64 * 16384, **other: int) -> int:
    return memory(nbytes, **other)


def huge_segment() -> int:
    """Sealed, and of the right length; but no page of it exists unless the machine has set some aside."""
    try:
        fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | os.MFD_HUGETLB)
    except OSError:
        pytest.skip("this kernel has no huge pages")
    os.ftruncate(fd, 4 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
    return fd


def doorbell() -> int:
    return os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)


def full_pipe() -> int:
    """Make a pipe whose writers wait for ever."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    try:
        while True:
            os.write(writing, bytes(65536))
    except BlockingIOError:
        pass
    os.set_blocking(writing, True)
    keep_open.append(reading)
    return writing


keep_open: list[int] = []
keep_listening: list[socket.socket] = []


def greeting(offset: int = 4096 + 64 * 16384, length: int = 4096) -> bytes:
    """Return a greeting with the place of the arena in the segment."""
    return struct.pack("<QIIQQQQ", MAGIC, 40000, WIRE_VERSION, 0, offset, length, 0x10000)


GREETING = greeting()
BAD = {
    "truncated": (GREETING[:-1], [lambda: memory(RINGS), doorbell, segment]),
    "another magic": (bytes(8) + GREETING[8:], [lambda: memory(RINGS), doorbell, segment]),
    "another version": (GREETING[:12] + b"\xff" + GREETING[13:], [lambda: memory(RINGS), doorbell, segment]),
    "no descriptors": (GREETING, []),
    "too few": (GREETING, [lambda: memory(RINGS), doorbell]),
    "too many": (GREETING, [lambda: memory(RINGS), doorbell, segment, doorbell, doorbell]),
    "rings that can shrink": (GREETING, [lambda: memory(RINGS, seals=0), doorbell, segment]),
    "rings too small": (GREETING, [lambda: memory(RINGS - 4096), doorbell, segment]),
    "rings are no memory": (GREETING, [doorbell, doorbell, segment]),
    "a segment that can shrink": (GREETING, [lambda: memory(RINGS), doorbell, lambda: segment(seals=0)]),
    "a segment of huge pages": (GREETING, [lambda: memory(RINGS), doorbell, huge_segment]),
    "an arena past the end": (greeting(length=1 << 40), [lambda: memory(RINGS), doorbell, segment]),
    "an arena that wraps": (greeting(offset=2**64 - 4096), [lambda: memory(RINGS), doorbell, segment]),
    "a segment without a table": (GREETING, [lambda: memory(RINGS), doorbell, lambda: segment(nbytes=4096)]),
    "a doorbell that blocks": (GREETING, [lambda: memory(RINGS), full_pipe, segment]),
    "a doorbell that may block": (GREETING, [lambda: memory(RINGS), lambda: os.eventfd(0), segment]),
}


def call(victim: via.Nic) -> socket.socket:
    name = victim.device.partition(":")[2]
    caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    caller.settimeout(LIMIT_S)
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            caller.connect(f"\0viakit/shm/{os.getuid()}/{name}/{victim.info.port}")
            return caller
        except BlockingIOError:  # more call than are let in at a time
            assert time.monotonic() < end
            time.sleep(0.001)


def greet(caller: socket.socket, greeting: bytes, makers: list[Callable[[], int]]) -> list[int]:
    fds = [make() for make in makers]
    socket.send_fds(caller, [greeting], fds)
    return fds


@pytest.mark.parametrize("what", BAD)
def test_bad_greeting(what: str) -> None:
    greeting, makers = BAD[what]
    with pair(f"shm:hostile-{os.getpid()}") as (victim, talk), closing(call(victim)) as caller:
        fds = greet(caller, greeting, makers)
        try:
            assert caller.recv(4096) == b"", "it was welcomed"
        except ConnectionResetError:
            pass
        for fd in [*fds, *keep_open]:
            os.close(fd)
        keep_open.clear()
        talk()


def test_callers_who_say_nothing() -> None:
    """They are few; who comes after them is sent away, and the connection that stands is as before."""
    with pair(f"shm:silent-{os.getpid()}") as (victim, talk), ExitStack() as callers:
        for _ in range(140):
            last = callers.enter_context(closing(call(victim)))
        assert last.recv(1) == b""
        talk()


def test_a_peer_who_goes_on_talking_is_dropped() -> None:
    """Unread messages would end every sleep of the victim at once."""
    with pair(f"shm:talker-{os.getpid()}") as (victim, talk), closing(call(victim)) as caller:
        fds = greet(caller, GREETING, [lambda: memory(RINGS), doorbell, segment])
        _, theirs, _, _ = socket.recv_fds(caller, 4096, 3)
        caller.send(b"and by the way")
        assert caller.recv(1) == b"", "it is still connected"
        talk()
        for fd in [*fds, *theirs]:
            os.close(fd)


def test_a_doorbell_that_is_made_blocking_after_the_greeting() -> None:
    """Its counter is full, so a write to it would not return. The victim rings it for the reply to a request."""
    body = CONNECT.pack(1, 77, 1, 1 << 20, 0, 0, 2, 1440, 0, 0, 0, 0, 1, 0, 0, 0) + b"x"
    with pair(f"shm:blocking-{os.getpid()}") as (victim, talk), closing(call(victim)) as caller:
        frame = HEADER.pack(0x10 | REQUEST, 0, len(body), victim.info.port, 0, 40000, 1, 0, 0, 0, 0, 0) + body
        fds = greet(caller, GREETING, [lambda: memory(RINGS), doorbell, segment])
        _, theirs, _, _ = socket.recv_fds(caller, 4096, 3)
        os.set_blocking(fds[1], True)
        os.eventfd_write(fds[1], 2**64 - 2)
        with mmap.mmap(fds[0], RINGS) as rings, mmap.mmap(fds[2], 4096) as station:
            station[64] = 1  # the hostile NIC seems to sleep
            rings[72 : 72 + len(frame)] = frame
            struct.pack_into("<Q", rings, 64, len(frame) << 2 | 1)
            os.eventfd_write(theirs[0], 1)
            until(lambda: rings[RINGS // 2 + 64] != 0)  # the reply
            assert station[64] == 0
            talk()
        for fd in [*fds, *theirs]:
            os.close(fd)


def test_a_nic_connects_to_one_whose_segment_was_overwritten() -> None:
    """Another peer of the victim wrote into its segment before the new one has read it."""
    with pair(f"shm:late-{os.getpid()}") as (victim, talk), closing(call(victim)) as caller, ExitStack() as late:
        fds = greet(caller, GREETING, [lambda: memory(RINGS), doorbell, segment])
        _, theirs, _, _ = socket.recv_fds(caller, 4096, 3)
        with mmap.mmap(theirs[1], 4096) as station:
            station[:64] = random.Random(2).randbytes(64)
        nic = late.enter_context(via.Nic(victim.device))
        here, there = late.enter_context(victim.create_vi()), late.enter_context(nic.create_vi())
        inbox, outbox = (late.enter_context(one.create_region(4096)) for one in (nic, victim))
        server = threading.Thread(target=lambda: victim.connect_wait("late", timeout_s=LIMIT_S).accept(here))
        server.start()
        there.connect(victim.address / "late", timeout_s=LIMIT_S, retry=True)
        server.join()

        def copies_from_the_segment() -> bool:
            there.post_recv(via.Descriptor.recv(inbox[:4096]))
            here.send(outbox[:4096], timeout_s=LIMIT_S)
            assert there.recv_wait(timeout_s=LIMIT_S).length == 4096
            return nic.counters["copies_mapped"] > 0

        until(copies_from_the_segment)
        talk()
        for fd in [*fds, *theirs]:
            os.close(fd)


def test_nonsense_in_shared_memory() -> None:
    """A welcome peer writes at random into rings and segments, ours included, rings, and tries to pull memory away."""
    rng = random.Random(1)
    for turn in range(2):  # each takes two seconds: who seems to be writing is waited for, a second per region
        with pair(f"shm:nonsense-{os.getpid()}") as (victim, talk), closing(call(victim)) as caller:
            fds = greet(caller, GREETING, [lambda: memory(RINGS), doorbell, segment])
            _, theirs, _, _ = socket.recv_fds(caller, 4096, 3)
            bell, their_segment = theirs
            for fd in (fds[0], fds[2], their_segment):
                with pytest.raises(PermissionError):
                    os.ftruncate(fd, 0)
            with mmap.mmap(fds[0], RINGS) as rings, mmap.mmap(their_segment, 4096 + 64 * 64) as table:
                table[4096:] = rng.randbytes(64 * 64)  # their table of regions, as they show it
                struct.pack_into("<QQQ", table, 8, rng.getrandbits(64), rng.getrandbits(64), rng.getrandbits(64))
                for _ in range(200):
                    at = 64 + 64 * rng.randrange(1024)
                    length = rng.choice([0, 31, 32, 56, 72, 200, 65536, rng.getrandbits(62)])
                    frame = rng.randbytes(200)
                    if turn % 2:
                        frame = bytes([0x10 | rng.randrange(16), rng.randrange(256)]) + frame[2:]
                    rings[at + 8 : at + 8 + 48] = frame[:48]
                    struct.pack_into("<Q", rings, at, (length << 2 | rng.choice([1, 1, 1, 2, 3])) & (2**64 - 1))
                    struct.pack_into("<Q", rings, 64, length << 2 | 1)  # where it looks first
                    os.eventfd_write(bell, 1)
                talk()
            for fd in [*fds, *theirs]:
                os.close(fd)


def squat(prefix: str, count: int) -> None:
    """Bind names of ports as another user, for the rest of this process."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    for i in range(count):
        keep_listening.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        keep_listening[-1].bind(f"{prefix}/{1 + 21 * i}")
        keep_listening[-1].listen()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_names_that_another_user_has_bound_hide_no_nic() -> None:
    """A request goes to all NICs of the name, of which a limited number are read from the kernel's list."""
    device = f"shm:squatted-{os.getpid()}"
    reading, writing = os.pipe()
    squatter = os.fork()
    if squatter == 0:
        try:
            squat(f"\0viakit/shm/0/{device.partition(':')[2]}", 3000)
            os.write(writing, b"x")
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    try:
        assert os.read(reading, 1) == b"x"
        for _ in range(3):
            with pair(device) as (_, talk):
                talk()
    finally:
        os.kill(squatter, signal.SIGKILL)
        os.waitpid(squatter, 0)
        os.close(reading)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_sent_away() -> None:
    with pair(f"shm:user-{os.getpid()}") as (victim, talk):
        address = f"\0viakit/shm/0/{victim.device.partition(':')[2]}/{victim.info.port}"
        child = os.fork()
        if child == 0:
            status = 2
            try:
                os.setuid(65534)
                caller = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                caller.settimeout(LIMIT_S)
                caller.connect(address)
                status = 0 if caller.recv(4096) == b"" else 1
            except ConnectionError:
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        talk()


# ---------------------------------------------------------------- handles


def test_handles_are_not_to_be_guessed() -> None:
    """The same memory again and again: no handle of the last few comes again, and they do not follow one another."""
    with via.Nic(f"loop:handles-{os.getpid()}") as nic:
        handles = []
        for _ in range(200):
            region = nic.create_region(64)
            handles.append(region.handle)
            region.deregister()
        for i in range(1, len(handles)):
            assert handles[i] not in handles[max(0, i - 4) : i]
        steps = {(b >> 16) - (a >> 16) for a, b in itertools.pairwise(handles)}
        assert len(steps) > 100, "generations follow a rule"


# ---------------------------------------------------------------- udp


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(kind: int, port: int, vi: int, key: int, psn: int, payload: bytes = b"", flags: int = 0) -> bytes:
    fields = [WIRE_VERSION << 4 | kind, flags | 0x40, len(payload), port, vi, 4711, 0, key, psn, 0, 0]
    head = struct.pack("<BBHHHHHIIII", *fields)
    return head + struct.pack("<I", crc32c(head + bytes(4) + payload)) + payload


def test_unknown_peer_on_udp() -> None:
    """Every kind of frame, with keys that are not ours: dropped, counted, and answered by no more than was sent."""
    rng = random.Random(2)
    with pair("udp:127.0.0.1") as (victim, talk), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unknown:
        unknown.bind(("127.0.0.1", 0))
        unknown.setblocking(False)

        def dropped() -> int:
            counters = victim.counters
            return sum(counters[name] for name in counters if name.startswith("dropped_"))

        port, before, sent, asked, answered = victim.info.port, dropped(), 0, 0, 0
        for kind, vi in itertools.product(range(16), range(4)):
            flags = rng.choice([0, 1, 2, 3])
            payload = rng.randbytes(rng.choice([0, 16, 40, 60]))
            data = frame(kind, port, vi, rng.getrandbits(32), rng.getrandbits(32), payload, flags)
            unknown.sendto(data, ("127.0.0.1", port))
            sent += 1
            asked += len(data)
        until(lambda: dropped() >= before + sent - 4)  # four connection requests: whole ones are given a cookie
        talk()
        try:
            while True:
                answered += len(unknown.recv(65536))
        except BlockingIOError:
            pass
        assert answered <= asked
