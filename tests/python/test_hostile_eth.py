"""Hostile frames on the Ethernet: from an unknown peer, and from a peer with a connection of its own (hostile_eth.py).

Each attack must be dropped and counted under its reason. It must not change a byte that was not granted, and the
connection between victim and partner must remain usable.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext

import needs
import pytest
from hostile_eth import (
    ACCEPT,
    ACK,
    CANCEL,
    CONFIRM,
    DISCONNECT,
    ERROR,
    FILL,
    FIRST,
    LAST,
    NAK,
    NOMATCH,
    PAGE,
    PENDING,
    PROBE,
    READ,
    REJECT,
    REQUEST,
    RESET,
    SEND,
    WRITE,
    Peer,
    Scene,
)
from waiting import until


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(stack.enter_context(needs.hosts()), stack)


# ---------------------------------------------------------------- a peer that goes too far

WRITES: dict[str, Callable[[dict[str, list[int]]], tuple[int, int, int | None]]] = {
    "the next generation of a handle": lambda a: ((a["granted"][0] + 0x10000) & 0xFFFFFFFF, a["granted"][1], None),
    "a handle of nothing": lambda a: (a["granted"][0] ^ 0x7FF, a["granted"][1], None),
    "a stale handle": lambda a: (a["stale"][0], a["stale"][1], None),
    "another tag's region": lambda a: (a["other tag"][0], a["other tag"][1], None),
    "a region without the right": lambda a: (a["no right"][0], a["no right"][1], None),
    "before the region": lambda a: (a["granted"][0], a["granted"][1] - 1, None),
    "past the end": lambda a: (a["granted"][0], a["granted"][1] + PAGE - 63, None),
    "an address that wraps": lambda a: (a["granted"][0], -32, None),
    "an end that wraps to within": lambda a: (a["granted"][0], a["granted"][1] + PAGE - (1 << 32) + 1, 0xFFFFFFFF),
    "a length beyond all": lambda a: (a["granted"][0], a["granted"][1], 0xFFFFFFFF),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("operation", ["write", "read"])
def test_no_grant(scene: Scene, what: str, operation: str) -> None:
    """Reported to the attacker, whose connection ends, and to no other peer."""
    handle, address, length = WRITES[what](scene.areas)
    if operation == "read" and length is not None:
        length = 64 * 1024  # a request for more pieces than possible is malformed, not forbidden
    peer = scene.peer("attacker")
    with scene.dropped("dropped_protection"):
        if operation == "write":
            peer.write(handle, address, bytes(64), length)
        else:
            peer.read(handle, address, length or 64)
        assert peer.receive({ERROR}) is not None
    assert scene.victim("look")["states"]["attacker"] == "ERROR"


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_vi_without_the_right(scene: Scene, operation: str) -> None:
    peer = scene.peer("attacker", right=False)
    handle, address = scene.areas["granted"]
    with scene.dropped("dropped_protection"):
        peer.write(handle, address, bytes(64)) if operation == "write" else peer.read(handle, address, 64)
        assert peer.receive({ERROR}) is not None


def test_what_is_granted_is_done(scene: Scene) -> None:
    """The attacker's tools are good ones: what it may do happens; and what it announced is not exceeded."""
    peer = scene.peer("attacker")
    handle, address = scene.areas["granted"]
    peer.write(handle, address + 8, b"granted.", psn=peer.psn)
    until(lambda: scene.victim("changed") == [1], "the write did not arrive")
    peer.psn += 1
    with scene.dropped("dropped_malformed", changed=(1,)):
        peer.write(handle, address, bytes(64), 8)
    peer.psn += 1
    with scene.dropped("dropped_malformed"):
        peer.send(WRITE, bytes(64), LAST)  # the rest of a write of which there is no beginning
    peer.psn += 1
    with scene.dropped("dropped_duplicate"):
        # As if it had been sent before those writes: the only reply is "request again".
        peer.read(handle, address, 64, next_psn=peer.psn - 3)
        _, header, payload = peer.receive({READ})
        assert (header[1] & LAST, header[2], payload) == (LAST, 0, b"")
    with scene.dropped("dropped_malformed", 5):
        for piece in (0, 8, 60, 1 << 16, 0xFFFFFFF8):  # no provider cuts memory like that
            peer.read(handle, address, 64, piece=piece)
    peer.read(handle, address, 64)
    kind, _, payload = peer.receive({READ})
    assert kind == READ
    assert payload[8:72] == FILL * 64
    assert scene.victim("look")["states"]["attacker"] == "CONNECTED"


def test_what_was_granted_is_denied_before_it_is_refused(scene: Scene) -> None:
    """A copy of a request that was granted once is no reason to end the connection when it is not granted any more.

    With anything in it changed it is, and so is the requester's word that it still needs the memory.
    """
    for insist in ({"wanted": 0}, {"length": 32}, {"address": 8}, {"handle": 1}, {"number": 1}):
        peer = scene.peer("attacker")
        handle, address = scene.victim("lend")
        with scene.dropped("dropped_malformed", changed=()):
            peer.read(handle, address, 64, wanted=0)  # on what was never denied
        peer.read(handle, address, 64)
        assert peer.receive({READ})[2][8:] == FILL * 64
        scene.victim("take_back")
        with scene.dropped("dropped_duplicate"):
            peer.read(handle, address, 64)
            _, header, payload = peer.receive({READ})
            assert (header[1] & LAST, payload) == (LAST, bytes(4))
        assert scene.victim("look")["states"]["attacker"] == "CONNECTED"
        with scene.dropped("dropped_protection"):
            peer.read(
                handle ^ insist.get("handle", 0),
                address + insist.get("address", 0),
                insist.get("length", 64),
                wanted=insist.get("wanted", 1),
                psn=insist.get("number", 0),
            )
            assert peer.receive({ERROR}) is not None
        assert scene.victim("look")["states"]["attacker"] == "ERROR"


def test_answers_to_what_was_not_asked(scene: Scene) -> None:
    """The victim reads the attacker's memory; only answers to a request that it has sent are taken."""
    peer = scene.peer("attacker")
    scene.victim("ask", "attacker")
    asked = peer.receive({READ})
    assert asked is not None
    _, header, _ = asked
    number, serial = header[8], header[10]
    right = {"psn": number, "immediate": serial, "ack": peer.ack}
    good = struct.pack("<II", 0, 64) + b"right..." * 8
    with scene.dropped("dropped_malformed", 5):
        peer.send(READ, good, **{**right, "immediate": serial + 1000})
        peer.send(READ, struct.pack("<II", 0, 64) + b"short", **right)
        peer.send(READ, struct.pack("<II", 8, 64) + bytes(56), **right)
        peer.send(READ, struct.pack("<II", 0xFFFFFFF8, 64) + bytes(64), **right)
        peer.send(READ, b"", **right)
    with scene.dropped("dropped_duplicate"):
        peer.send(READ, bytes(4), LAST, **{**right, "psn": number + 1})  # the denial of a request that was never made
    peer.send(READ, bytes(4), LAST, **right)
    # It insists. It may retransmit once more before that.
    until(lambda: struct.unpack("<QQIIII", peer.receive({READ})[2])[1] == 0, "it does not insist")
    peer.send(READ, good, **right)  # so it was granted after all
    assert bytes.fromhex(scene.victim("got", "attacker")) == b"right..." * 8


def test_numbers_of_another_vi(scene: Scene) -> None:
    """A peer with a key of its own and what it knows of the good connection: its VI, its numbers, or both."""
    peer, partner = scene.peer("attacker"), scene.as_partner()
    with scene.dropped("dropped_unknown_peer", 4):
        for kind in (SEND, WRITE, PROBE, READ):
            peer.send(kind, bytes(32), FIRST | LAST, dst_vi=partner.their_vi, psn=partner.psn, ack=partner.ack)
    if 4096 < (partner.psn - peer.psn) & 0xFFFFFFFF < 1 << 31:
        reason = "dropped_out_of_order"
    else:
        reason = "dropped_duplicate"
    with scene.dropped(reason):
        peer.send(SEND, b"x", FIRST | LAST, psn=partner.psn)


# ---------------------------------------------------------------- unknown peers

WRONG: dict[str, tuple[str, dict[str, int]]] = {
    "another version": ("dropped_version", {"version": 2}),
    "a wrong checksum": ("dropped_checksum", {"spoil": 1}),
    "no checksum": ("dropped_checksum", {"crc_flag": 0}),
    "longer than it is": ("dropped_malformed", {"len": 1000}),
    "another VI": ("dropped_unknown_peer", {"dst_vi": 1023}),
    "a VI there cannot be": ("dropped_unknown_peer", {"dst_vi": 0xFFFF}),
    "a wrong key": ("dropped_unknown_peer", {"key": 0}),
    "from another port": ("dropped_unknown_peer", {"src_port": 9}),
    "from another VI": ("dropped_unknown_peer", {"src_vi": 999}),
}


@pytest.mark.parametrize("what", WRONG)
def test_one_thing_wrong(scene: Scene, what: str) -> None:
    """A frame with the numbers of the good connection, of which one is wrong, is that of an unknown peer."""
    reason, wrong = WRONG[what]
    partner = scene.as_partner()
    with scene.dropped(reason, 2):
        partner.send(SEND, b"forged", FIRST | LAST, **wrong)
        partner.send(ACK, **wrong)


def test_to_another_port(scene: Scene) -> None:
    """The kernel's filter keeps it from us: nothing to count."""
    partner = scene.as_partner()
    before = scene.victim("look")["counters"]
    partner.send(SEND, b"forged", FIRST | LAST, dst_port=9)
    scene.unharmed()
    assert scene.victim("look")["counters"]["dropped_unknown_peer"] == before["dropped_unknown_peer"]


def test_from_another_station(scene: Scene) -> None:
    partner = scene.as_partner()
    with scene.dropped("dropped_unknown_peer", 20):
        for i in range(20):
            scene.put(partner.frame(SEND, b"forged", FIRST | LAST), bytes([2, 0x66, 0, 0, 0, i]))


@pytest.mark.parametrize("nbytes", [0, 1, 31])
def test_shorter_than_a_header(scene: Scene, nbytes: int) -> None:
    """One that is too short for a port is not let in by the kernel's filter; one that has it is counted."""
    partner = scene.as_partner()
    counted = scene.dropped("dropped_malformed") if nbytes > 8 else nullcontext()
    with counted:
        scene.put(partner.frame(SEND, b"forged")[:nbytes])
    scene.unharmed()


@pytest.mark.parametrize(
    "kind", [ACK, NAK, ERROR, PROBE, DISCONNECT, RESET, READ, PENDING, ACCEPT, CONFIRM, REJECT, NOMATCH, CANCEL]
)
def test_forged_control_frames(scene: Scene, kind: int) -> None:
    """Frames of each kind, from the partner's station, port and VI, with everything but the secret."""
    partner = scene.as_partner()
    n = 16
    with scene.dropped("dropped_unknown_peer", n):
        for _ in range(n):
            guess = scene.rng.getrandbits(32)
            payload = partner.connect_block(guess) if kind >= REQUEST else b""
            partner.send(kind, payload, key=guess, immediate=scene.rng.getrandbits(32))


def test_the_end_needs_more_than_the_key(scene: Scene) -> None:
    partner = scene.as_partner()
    with scene.dropped("dropped_unknown_peer", 2):
        for kind in (DISCONNECT, ERROR):
            partner.send(kind, ack=partner.ack - 0x40000000, immediate=1)


# ---------------------------------------------------------------- again


def test_replayed_frames(scene: Scene) -> None:
    """The partner's own frames, to the last bit: at once, and when their connection has been made anew."""
    scene.overheard(set())
    for _ in range(5):
        scene.talk()
    frames = scene.overheard({SEND})
    assert len(frames) >= 5
    with scene.dropped("dropped_duplicate", len(frames)):
        for frame in frames:
            scene.put(frame)
    scene.overheard(set())
    scene.reconnect()
    handshake = scene.overheard({REQUEST, CONFIRM})
    scene.reconnect()
    with scene.dropped("dropped_unknown_peer", len(frames)):
        for frame in frames:
            scene.put(frame)
    for frame in handshake:  # the reply is repeated, or no reply is sent
        scene.put(frame)
    scene.unharmed()


# ---------------------------------------------------------------- floods


def test_request_floods(scene: Scene) -> None:
    """Thousands of requests from as many addresses: to no VI, to a waiting VI, and withdrawn at once."""
    unknown = Peer(scene, 50, 1)
    before = scene.victim("look")["alive"]
    connections = before.pop(
        "connections"
    )  # also the requests of the last 5 s, answered and remembered: those of older tests go
    for i in range(3000):
        station = bytes([2, 0x66, 0, 0, i >> 8, i & 255])
        scene.put(unknown.frame(REQUEST, unknown.connect_block(i + 1, b"nobody"), dst_port=0, key=0), station)
        if i % 100 == 99:
            scene.talk()
    alive = scene.victim("look")["alive"]
    assert alive.pop("connections") <= connections
    assert alive == before
    scene.victim("create", "attacker", True, 0)
    scene.victim("accept", "attacker")
    for i in range(500):
        for kind in (REQUEST, CANCEL):
            block = unknown.connect_block(10000 + i, b"attacker")
            scene.put(unknown.frame(kind, block, dst_port=0 if kind == REQUEST else scene.port, key=0))
    scene.unharmed()
    # The server, which took none of the withdrawn requests, still waits: for this one.
    scene.put(unknown.frame(REQUEST, unknown.connect_block(20000, b"attacker"), dst_port=0, key=0))
    scene.victim("accepted")
    alive = scene.victim("look")["alive"]
    assert alive["connections"] <= connections + 2, alive
    scene.reconnect()


def test_malformed_requests(scene: Scene) -> None:
    unknown = Peer(scene, 50, 1)
    with scene.dropped("dropped_malformed", 4):
        for wrong in ({"wanted": 255}, {"wanted": 65}, {"max_payload": 63}, {"mode": 3}):
            scene.put(unknown.frame(REQUEST, unknown.connect_block(1, b"n" * 8, **wrong), dst_port=0, key=0))
