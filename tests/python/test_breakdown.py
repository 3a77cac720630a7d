"""The parts of one message: their sum is the measured time, and steps that are timed alone are plausible."""

import json
import socket
import subprocess
import sys

import needs
import pytest

from viakit import _core
from viakit.measure import breakdown, look
from viakit.measure.breakdown import PARTS, Breakdown, Message


def message(**more):
    given = {"protocol": "tcp", "blocking_s": 20e-6, "polled_s": 9e-6, "send_s": 5e-6, "receive_s": 1e-6}
    return Message(**{**given, "softirq": 0.25, "call_s": 0.1e-6, "copy_s": 0.05e-6, **more})


def test_the_parts_add_up_to_the_blocking_time():
    for one in (message(), message(softirq=None), message(protocol="via-eth", receive_s=0.0), message(polled_s=5e-6)):
        assert list(one.parts) == list(PARTS)
        assert sum(one.parts.values()) == pytest.approx(one.blocking_s)
    parts = message().parts
    assert parts["system calls"] == pytest.approx(0.2e-6)
    assert parts["copies"] == pytest.approx(0.1e-6)
    assert parts["interrupt"] == pytest.approx(1.5e-6)
    assert parts["protocol"] == pytest.approx(4.2e-6)
    assert parts["wake-up"] == pytest.approx(11e-6)
    assert parts["remainder"] == pytest.approx(3e-6)


def test_numbers_on_coloured_parts_are_the_same_in_each_theme():
    assert look.INK not in breakdown.COLOURS, "a part in the colour of the page's text"
    page = Breakdown(8, [message()])._repr_html_()
    for colour in (look.ON_DARK, look.ON_LIGHT):
        assert f'<g style="fill: {colour}"' in page, "mixed with the colour of the page's text"


def test_what_was_not_separated_is_said():
    found = Breakdown(8, [message(softirq=None), message(protocol="udp", polled_s=5e-6)])
    assert "no softirq for tcp, where" in found.note(), "udp's was counted"
    assert str(found).count("not counted") == found._repr_html_().count("not counted") == 1
    hatches = {bar.get_hatch() for bars in found.figure().axes[1].containers for bar in bars}
    assert {"///", "..."} <= hatches, "interrupt and wake-up have one tone in grey"
    assert "negative remainder" in found.note()
    text = str(found)
    assert "-1.00 µs" in text
    assert max(map(len, text.splitlines())) <= 80
    page = found._repr_html_()
    assert "<svg" in page
    assert "currentColor" in page
    assert "the kernel&#x27;s work" in page, "escaped once"
    again = Breakdown.from_dict(json.loads(breakdown.save(found)))
    assert again.messages == found.messages


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"protocols": ["zmq"]}, "expected some of tcp, udp, via-eth"),
        ({"protocols": []}, "no protocol"),
        ({"nbytes": 0}, "1 to 1400"),
        ({"nbytes": 1401}, "fit one frame"),
        ({"seconds": 0}, "seconds is 0"),
    ],
)
def test_refusals(given, words):
    with pytest.raises(ValueError, match=words):
        breakdown.check(**{"protocols": ["tcp"], "nbytes": 8, "seconds": 1.0, **given})


def test_steps_alone():
    assert 0 < _core.bench_step_call(1000) < 1e-3
    assert 0 <= _core.bench_step_copy(8, 1000) < 1e-3
    for refused in (lambda: _core.bench_step_call(0), lambda: _core.bench_step_copy(8, 0)):
        with pytest.raises(ValueError, match="at least 1"):
            refused()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_one_thread_at_both_ends(kind):
    out, into = socket.socketpair(socket.AF_UNIX, kind)
    with out, into:
        data = bytearray(b"payload!")
        send_s, receive_s = _core.bench_step_pass(out.fileno(), into.fileno(), data, 4)
        assert send_s > 0
        assert receive_s > 0
        assert data == b"payload!"
        into.setblocking(False)
        with pytest.raises(BlockingIOError):
            into.recv(1)  # nothing is left
        with pytest.raises(ValueError, match="must not be empty"):
            _core.bench_step_pass(out.fileno(), into.fileno(), data, 0)
    with socket.socket(socket.AF_UNIX) as alone, pytest.raises(OSError, match="not connected"):
        _core.bench_step_pass(alone.fileno(), alone.fileno(), data, 1)


@pytest.mark.timeout(300)
def test_the_command_divides_all_three(tmp_path):
    needs.hosts().close()
    done = subprocess.run(
        [sys.executable, "-m", "viakit", "breakdown", "--seconds", "3", "--json", str(tmp_path / "b.json"), "--plot",
         str(tmp_path / "b.png")], capture_output=True, text=True, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = Breakdown.from_dict(json.loads((tmp_path / "b.json").read_text()))
    assert [one.protocol for one in found.messages] == list(breakdown.PROTOCOLS)
    assert found.complete
    for one in found.messages:
        assert sum(one.parts.values()) == pytest.approx(one.blocking_s)
        assert one.parts["protocol"] > 0, one
        assert one.parts["system calls"] > 0
    assert (tmp_path / "b.png").read_bytes().startswith(b"\x89PNG")
    for part in PARTS:
        assert part in done.stdout
