"""A descriptor followed step by step: every stage is the state of real NICs."""

from __future__ import annotations

import pytest
from kernel import notebook, printed, shown

from viakit import lab
from viakit import via as provider


@pytest.fixture(autouse=True)
def text_mode(monkeypatch):
    """Plain Python's way, and every object of the library is gone afterwards."""
    monkeypatch.setenv("VIAKIT_LAB", "text")
    yield
    assert not any(provider.live_objects().values())


def by_hand(operation, message=b"abc"):
    from viakit.lab._via import Stepper

    return Stepper(message, operation)


def test_a_send_goes_through_every_stage():
    with by_hand("send") as one:
        names = [stage.name for stage in one.run()]
        with pytest.raises(StopIteration, match=r"lab\.via"):
            one.step()
    assert names == [
        *("connected", "receive posted", "send posted", "doorbell", "placement", "receive completed", "send completed"),
    ]
    at = {stage.name: stage for stage in one.stages}
    assert at["send posted"].sides["A"]["send queue"].startswith("1 posted")
    assert at["send posted"].frame == []
    assert at["send posted"].sides["A"]["counted"] == "nothing"  # the bell has not rung
    frame = dict(at["doorbell"].frame)
    assert frame["kind"] == "SEND"
    assert frame["bytes"] == "61 62 63"
    assert "frames_sent +1" in at["doorbell"].sides["A"]["counted"]
    assert at["doorbell"].sides["B"]["memory"] == "zeros"  # sent, and not placed
    assert at["placement"].sides["B"]["memory"] == "'abc'"
    assert at["placement"].sides["B"]["receive queue"].startswith("0 posted, 1 done")
    assert at["receive completed"].sides["B"]["receive queue"].startswith("0 posted, 0 done")
    assert at["send completed"].sides["A"]["send queue"].startswith("0 posted, 0 done")


def test_a_write_is_acknowledged_and_completes_nothing_on_the_other_side():
    with by_hand("rdma_write") as one:
        names = [stage.name for stage in one.run()]
    assert names == ["connected", "send posted", "doorbell", "placement", "acknowledgement", "send completed"]
    at = {stage.name: stage for stage in one.stages}
    assert dict(at["doorbell"].frame)["kind"] == "WRITE"
    assert at["doorbell"].sides["A"]["send descriptor"].endswith("sent")
    assert at["placement"].sides["B"]["memory"] == "'abc'"
    assert at["placement"].sides["B"]["receive queue"].startswith("0 posted, 0 done")
    assert dict(at["acknowledgement"].frame)["kind"] == "ACK"
    assert at["acknowledgement"].sides["A"]["send descriptor"].endswith("done")


def test_it_can_begin_again_and_be_left_in_the_middle():
    with by_hand("send") as one:
        one.step()
        assert one.left == 5
        one.restart()
        assert [stage.name for stage in one.stages] == ["connected"]
        one.step()
        one.step()
        assert "3 steps" in repr(one) or "4 steps" in repr(one)


def test_plain_python_shows_all_of_it(capsys):
    one = lab.via(b"hi")
    said = capsys.readouterr().out
    assert said.count("doorbell:") == 1
    assert "68 69" in said
    assert one.html().count("<hr>") == len(one.stages) - 1


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="send, rdma_write"):
        lab.via(operation="teleport")
    for message in (b"", bytes(65)):
        with pytest.raises(ValueError, match="1 to 64"):
            lab.via(message)


def test_in_a_notebook_a_button_goes_on():
    (outputs,) = notebook(
        "from viakit import lab\ns = lab.via(b'abc')\np = s.panel\n"
        "while s.left: p.next.click()\n"
        "print(s.stage.name, p.next.disabled, 'background' in p.table.value)\n"
        "p.again.click()\nprint(s.stage.name, p.next.disabled)\n"
        "s.close(); p.next.click(); print(s.stage.name, p.next.disabled)",
        mode="widgets",
    )
    assert printed(outputs) == "send completed True True\nconnected False\nconnected True\n"
    assert shown(outputs, "application/vnd.jupyter.widget-view+json")


def test_what_watching_costs_is_measured_in_turns():
    import needs

    from viakit.lab import _disturbance

    needs.packages("ipywidgets", "anywidget")
    found = _disturbance.measure(0.3)
    assert len(found["alone_s"]) == len(found["watched_s"]) >= 6
    assert found["drawings"] >= len(found["watched_s"])
    assert found["ratio"].paired
    assert found["ratio"].low <= found["ratio"].value <= found["ratio"].high
