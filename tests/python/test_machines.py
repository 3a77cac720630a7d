"""Machine files: each has a source for each number, errors are clear, and the fitted figures come out."""

from pathlib import Path

import pytest

from viakit import machines
from viakit.machines import cost
from viakit.machines.keys import KEYS

FILE = """
[machine]
title = "two hosts"
[host]
copy_mb_s = { is = 100, from = "Author, section 1" }
[wire]
rate_mbit_s = { is = 1000, from = "Author, section 2" }
[card]
bus_mb_s = { is = 132, from = "derived: PCI" }
[via]
send_us = { is = 1, from = "fitted: a latency of 5 us" }
receive_us = { is = 2, from = "fitted: as send_us" }
"""


@pytest.mark.parametrize("name", machines.names())
def test_every_machine_loads_and_gives_times(name):
    machine = machines.load(name)
    assert machine.title
    for kind in cost.KINDS:
        if machine.has("via" if kind == "write" else kind):
            short, long = (cost.message_s(machine, kind, n) for n in (1, 1 << 20))
            assert 0 < short < 1e-3 < long * 100
            parts = sum(us for _, us in cost.stages(cost.path_of(machine, kind), 1))
            assert parts * 1e-6 == pytest.approx(short, rel=0.02, abs=2e-7)


def test_users_file_gets_defaults(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(FILE)
    machine = machines.load(path)
    assert (machine.name, machine["via.send_us"], machine["via.write_us"]) == ("mine", 1, 1)
    assert machine.words["switch.topology"] == "none"
    assert machine.has("via")
    assert not machine.has("tcp")
    assert "via.receive_us 2.0\n" in machine.text()
    with pytest.raises(machines.MachineError, match="no section \\[tcp\\]"):
        machine["tcp.send_us"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("send_us", "sned_us", "unknown key 'via.sned_us'; is it via.send_us"),
        ('is = 1, from = "fitted: a latency of 5 us"', "is = 1", "a number and its source"),
        ('is = 1, from = "fitted: a latency of 5 us"', 'is = -1, from = "Author"', "expected 0 or more"),
        ("is = 132", 'is = "fast"', "expected a number"),
        ('title = "two hosts"', "", "has no title"),
        ('copy_mb_s = { is = 100, from = "Author, section 1" }', "", "host.copy_mb_s is missing"),
        ("[via]", "[via", "not TOML"),
        ("[card]", '[switch]\ntopology = "ring"\n[card]', "none or star or fat-tree"),
    ],
)
def test_errors_name_the_place_and_the_remedy(old, new, message):
    assert old in FILE
    with pytest.raises(machines.MachineError, match=message.replace("[", "\\[")):
        machines.read(FILE.replace(old, new), "mine")


def test_unknown_machine():
    with pytest.raises(machines.MachineError, match="is it barrier-cluster-1"):
        machines.load("barrier-cluster1")
    with pytest.raises(machines.MachineError, match="No such file"):
        machines.load("./nowhere.toml")


# Ping-pong figures that the files were fitted to: microseconds for 1 byte, Mbit/s for 8 MiB.
@pytest.mark.parametrize(
    ("name", "kind", "latency_us", "peak_mbit_s"),
    [
        ("pentium3-450-sknet", "tcp", 46, 331),
        ("pentium3-450-acenic-jumbo", "tcp", 121, 513),
        ("pentium4-1800-ga620", "tcp", 120, 550),
        ("ds20-syskonnect-9000", "tcp", 48, 900),
        ("pentium4-1800-gm", "via", 16, 800),
        ("pentium4-1800-giganet", "via", 8.4, 800),
        ("pentium4-1800-mvia", "via", 42, 425),
        ("ppro200-myrinet-bip", "bip", 4.3, None),
    ],
)
def test_fitted_figures(name, kind, latency_us, peak_mbit_s):
    machine, sockbuf = machines.load(name), 131072 if name.startswith("pentium3") else 524288
    assert cost.message_s(machine, kind, 1, sockbuf) * 1e6 == pytest.approx(latency_us, rel=0.05)
    if peak_mbit_s:
        assert (8 << 23) / cost.message_s(machine, kind, 8 << 20, sockbuf) / 1e6 == pytest.approx(peak_mbit_s, rel=0.03)


def test_a_socket_buffer_limits_the_stream():
    machine = machines.load("pentium3-450-sknet").replace(wire__mtu=9000)
    small, large = (cost.message_s(machine, "tcp", 1 << 23, sockbuf) for sockbuf in (65536, 131072))
    assert small > 1.1 * large  # Ong and Farrell, table 1: 512 against 613 Mbit/s


@pytest.mark.parametrize("key", KEYS)
def test_the_documentation_has_a_row_for_each_number(key):
    page = (Path(__file__).parents[2] / "docs" / "machines.md").read_text(encoding="utf-8")
    assert f"| `{key}` | {KEYS[key].text} | {KEYS[key].unit} | " in page
