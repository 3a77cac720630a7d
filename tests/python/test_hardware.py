"""Network card, clock source and governors of this host, as results and the doctor report them."""

from __future__ import annotations

import needs
import pytest

from viakit.base import hardware


@pytest.mark.parametrize("offload", [True, False])
def test_a_card_of_a_testbed(offload):
    with needs.hosts(2, offload="on" if offload else "off") as testbed:
        facts = testbed.hosts[0].call(hardware.card, "eth0")
    assert (facts["interface"], facts["mtu"], facts["driver"]) == ("eth0", 1500, "veth")
    assert facts["speed_mbit_s"] > 0
    assert set(facts["offloads"]) == {"rx-checksum", "tx-checksum", "sg", "tso", "gso", "gro"}
    assert (facts["offloads"]["tso"], facts["offloads"]["gso"]) == (offload, offload)
    assert "model" not in facts  # it is no PCI card


def test_the_loopback_has_an_mtu_and_offloads():
    facts = hardware.card("lo")
    assert facts["mtu"] >= 1500
    assert facts["offloads"]["gso"] in (True, False)


def test_an_interface_that_does_not_exist():
    assert hardware.card("no-such-one") == {"interface": "no-such-one"}


@pytest.fixture
def lines(monkeypatch):
    """A function that replaces the files of /sys by a dict from the ends of their paths to their first lines."""

    def replace(**files):
        given = {name.replace("__", "/"): text for name, text in files.items()}
        monkeypatch.setattr(
            hardware, "_line", lambda path: next((text for end, text in given.items() if path.endswith(end)), None)
        )

    return replace


@pytest.mark.parametrize(
    ("current", "available", "ok", "remedy"),
    [
        ("tsc", "tsc hpet", True, ""),
        ("arch_sys_counter", "arch_sys_counter", True, ""),
        ("hpet", "hpet kvm-clock acpi_pm", None, "echo kvm-clock | sudo tee /sys/devices/system/clocksource/"),
        ("acpi_pm", "acpi_pm", None, "tsc=reliable"),
    ],
)
def test_a_clock_that_needs_system_calls_has_a_remedy(lines, current, available, ok, remedy):
    lines(current_clocksource=current, available_clocksource=available)
    found = hardware.judge_clock()
    assert found[:2] == (ok, current)
    assert remedy in found[3]
    assert bool(found[3]) == (ok is not True)


def test_values_that_the_kernel_hides(lines):
    lines()
    assert hardware.clock_source() is None
    assert hardware.judge_clock()[:2] == (None, "not visible")
    assert hardware.governors() == []
    assert hardware.judge_governors()[:2] == (None, "not visible")


def test_governors(lines):
    lines(cpufreq__scaling_governor="performance")
    assert hardware.judge_governors()[:2] == (True, "performance")
    lines(cpufreq__scaling_governor="powersave")
    ok, value, _, remedy = hardware.judge_governors()
    assert (ok, value) == (None, "powersave")
    assert remedy == "sudo cpupower frequency-set -g performance"
