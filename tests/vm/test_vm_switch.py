"""The switch between three machines, without machines: which frames arrive where."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
import vm_switch
from waiting import until

GROUP = b"\xff" * 6
MACS = [bytes([2, 0, 0, 0, 0, index]) for index in range(3)]


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """The sockets of three cards on a switch. Their paths are relative, because those of sockets must be short."""
    monkeypatch.chdir(tmp_path)
    words = [f"port.{index}=card.{index}" for index in range(3)]
    cards = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(3)]
    with subprocess.Popen([sys.executable, vm_switch.__file__, *words]) as switch:
        until(lambda: all(Path(f"port.{index}").exists() for index in range(3)), "the switch has its ports")
        for index, card in enumerate(cards):
            card.settimeout(20)
            card.bind(f"card.{index}")
        yield cards
        switch.kill()
    for card in cards:
        card.close()


def send(cards: list[socket.socket], source: int, target: bytes, text: bytes) -> bytes:
    """Send a frame from a card, and return it."""
    frame = target + MACS[source] + b"\x88\xb5" + text
    cards[source].sendto(frame, f"port.{source}")
    return frame


def test_a_frame_to_all_and_to_one(cards):
    first = send(cards, 0, GROUP, b"to all")
    assert [cards[index].recv(2000) for index in (1, 2)] == [first] * 2
    reply = send(cards, 1, MACS[0], b"to the sender")
    last = send(cards, 1, GROUP, b"behind it")
    assert [cards[0].recv(2000) for _ in range(2)] == [reply, last]
    assert cards[2].recv(2000) == last  # and not the reply: the switch knew where it leads


def test_a_destination_that_is_not_known_is_sent_to_all(cards):
    frame = send(cards, 2, MACS[1], b"unknown")
    assert [cards[index].recv(2000) for index in (0, 1)] == [frame] * 2


def test_a_card_that_reads_nothing_stops_no_other(cards):
    """Its frames wait and arrive later, in order; those beyond the limit are lost."""
    count = vm_switch.N_WAITING + 200
    sent = []
    for number in range(count):
        sent.append(send(cards, 0, GROUP, b"%d" % number))
        assert cards[1].recv(2000) == sent[-1]
    kept = [cards[2].recv(2000) for _ in range(vm_switch.N_WAITING)]
    assert kept == sent[: vm_switch.N_WAITING]


def test_a_machine_that_is_switched_on_again(cards):
    cards[1].close()
    Path("card.1").unlink()
    first = send(cards, 0, GROUP, b"while it is off")
    assert cards[2].recv(2000) == first
    cards[1] = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    cards[1].settimeout(20)
    cards[1].bind("card.1")
    second = send(cards, 0, GROUP, b"while it is on")
    assert [cards[index].recv(2000) for index in (1, 2)] == [second] * 2
