"""Faults from Python: values, their text, predicted decisions for frames, and their effect on messages."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viakit import via

LIMIT_S = 20.0

chances = st.floats(0, 1, allow_nan=False)
seconds = st.integers(0, 10**6).map(lambda us: us / 1e6)
rules = st.builds(
    via.FaultRule,
    st.sampled_from(["drop", "double", "hold", "spoil"]),
    st.integers(0, 5),
    st.one_of(st.none(), st.integers(5, 9)),
    st.one_of(st.none(), st.sampled_from(["send", "ack", "accept"])),
)


@given(
    st.builds(
        via.Faults,
        loss=chances,
        duplicate=chances,
        reorder=chances,
        corrupt=chances,
        delay_s=seconds,
        jitter_s=seconds,
        partition_s=st.one_of(seconds, st.just(math.inf)),
        rules=st.lists(rules, max_size=8).map(tuple),
        seed=st.integers(0, 2**64 - 1),
    )
)
def test_text_and_back(faults):
    again = via.Faults.parse(str(faults))
    assert str(again) == str(faults)
    assert again.seed == faults.seed
    assert again.loss == pytest.approx(faults.loss, rel=1e-15)
    assert again.rules == faults.rules
    assert again.for_ever == faults.for_ever


@given(st.text(max_size=60))
def test_any_text_is_understood_or_refused_with_a_word(text):
    try:
        faults = via.Faults.parse(text)
    except ValueError as error:
        message = str(error)
    else:
        message = f"faults: {via.Faults.parse(str(faults))}"
    assert message.startswith("faults: ")


@pytest.mark.parametrize(
    ("faults", "error", "word"),
    [
        ("loss=7", ValueError, "loss=0.05"),
        (via.Faults(loss=2), ValueError, "chance"),
        (via.Faults(delay_s=-1), ValueError, "delay_s"),
        (via.Faults(delay_s=math.nan), ValueError, "delay_s"),
        (via.Faults(reorder_distance=65), ValueError, "reorder_distance"),
        (via.Faults(kinds=("sent",)), ValueError, "sent"),
        (via.Faults(rules=(via.FaultRule("drop"),) * 9), ValueError, "at most 8"),
        (via.Faults(seed=-1), ValueError, "seed"),
        (5, TypeError, "via.Faults"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(faults, error, word):
    with via.Nic("loop") as nic:
        nic.faults = "loss=0.25"
        with pytest.raises(error, match=word):
            nic.faults = faults
        assert nic.faults == via.Faults(loss=0.25)
        nic.faults = None
        assert nic.faults is None
    with pytest.raises(ValueError, match="closed"):
        nic.faults = None


def test_rules_are_checked_when_they_are_made():
    with pytest.raises(ValueError, match="lose"):
        via.FaultRule("lose")
    with pytest.raises(ValueError, match="first <= last"):
        via.FaultRule("drop", 3, 2)


def test_the_same_seed_hits_the_same_messages():
    faults = via.Faults(loss=0.3, kinds=("send",), seed=42)
    expected = [i for i in range(100) if not faults.fate(i)]
    assert 50 < len(expected) < 90
    with (
        via.Nic("loop:faults") as a,
        via.Nic("loop:faults") as b,
        a.create_vi(via.Reliability.UNRELIABLE) as va,
        b.create_vi(via.Reliability.UNRELIABLE) as vb,
        a.create_region(64) as out,
        b.create_region(100 * 64) as into,
    ):
        a.faults = b.faults = via.Faults()  # so that the connection does not rely on the link
        descriptors = [via.Descriptor.recv(into[64 * i : 64 * i + 64]) for i in range(100)]
        for descriptor in descriptors:
            vb.post_recv(descriptor)
        asking = threading.Thread(target=lambda: va.connect(b.address / "faults", LIMIT_S, retry=True))
        asking.start()
        b.connect_wait("faults", LIMIT_S).accept(vb)
        asking.join(LIMIT_S)
        a.faults = faults
        for i in range(100):
            memoryview(out)[:1] = bytes([i])
            va.send(out[:64], timeout_s=LIMIT_S)
        for _ in expected:
            vb.recv_wait(LIMIT_S)
        assert list(memoryview(into)[: 64 * len(expected) : 64]) == expected  # whatever arrives fills the next receive
        assert a.counters["fault_dropped"] == 100 - len(expected)
        va.disconnect()
        vb.disconnect()
        va.drain()
        vb.drain()


def test_a_program_gets_them_from_outside():
    code = "from viakit import via; nic = via.Nic('loop'); print(nic.faults); nic.close()"
    run = [sys.executable, "-c", code]
    there = subprocess.run(
        run, env=os.environ | {"VIAKIT_FAULT": "loss=5%"}, capture_output=True, text=True, timeout=60
    )
    assert there.stdout.strip() == "loss=0.05", there.stderr
    wrong = subprocess.run(run, env=os.environ | {"VIAKIT_FAULT": "loss=5"}, capture_output=True, text=True, timeout=60)
    assert wrong.returncode != 0
    assert "'loss=5' is not understood" in wrong.stderr
