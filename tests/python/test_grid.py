"""Several MTUs, delays and sizes of socket buffers in one sweep, as one table."""

import io
import json

import click.testing
import needs
import pytest
from rich.console import Console

from viakit.cli import cli
from viakit.measure import comparison, grid, kinds, plan, plot, report, result, sweep
from viakit.measure.pair import MeasureError, Pair


def shown(document):
    console = Console(file=io.StringIO(), width=160)
    kinds.show(document, console)
    return console.file.getvalue()


def test_the_cells_of_a_grid():
    config = plan.Config(["tcp", "tcp:default", "via-shm"], [8], mtu=[1500, 9000], sockbuf=[65536, "auto"])
    series = [(one.name, one.mtu, one.sockbuf) for one in plan.plan(config)[0] if not one.is_floor]
    assert series == [
        *(("tcp", mtu, size) for mtu in (1500, 9000) for size in (65536, "auto")),
        *(("tcp:default", mtu, None) for mtu in (1500, 9000)),
        ("via-shm", None, None),
    ]
    one = plan.plan(plan.Config(["tcp"], [8], hosts="testbed"))[0]
    assert [(each.mtu, each.delay, each.sockbuf) for each in one] == [(1500, None, None)]


def test_delays_are_an_axis_too(monkeypatch):
    config = plan.Config(["tcp", "via-shm"], [8], mtu=[1500, 9000], delay=[0, "1ms"], sockbuf=[65536, 131072])
    series = [(one.name, one.mtu, one.delay, one.sockbuf) for one in plan.plan(config)[0] if not one.is_floor]
    assert series == [
        *(("tcp", mtu, delay, size) for mtu in (1500, 9000) for delay in (0, 0.001) for size in (65536, 131072)),
        ("via-shm", None, None, None),
    ]
    monkeypatch.setenv("VIAKIT_WIRE", "offload=off,delay=3ms")
    given, own = (plan.plan(plan.Config(["tcp"], [8], delay=delay))[0][0] for delay in ("2ms", None))
    assert (given.delay, own.delay) == (0.002, 0.003)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sockbuf": [65536, 65536]}, "each value once"),
        ({"mtu": []}, "at least one"),
        ({"sockbuf": [65536, 0]}, "--sockbuf is 0"),
        ({"protocols": ["via-udp"], "sockbuf": 65536}, "no socket buffers to set"),
        ({"delay": ["1ms", "1000us"]}, r"--delay is \[0.001, 0.001\]: give each value once"),
        ({"delay": []}, "--delay is .*at least one"),
        ({"delay": ["1ms", "2"]}, "delay is '2'; expected a time from 0 to 1 s with its unit"),
        ({"delay": ["0", "1ms"], "hosts": "local"}, "--delay sets the testbed's wire"),
    ],
)
def test_what_is_no_grid(options, words):
    with pytest.raises(plan.UsageError, match=words):
        plan.plan(plan.Config(**{"protocols": ["tcp"], "sizes": [8], **options}))


def test_socket_buffers_of_the_message_engine_are_those_of_its_policy():
    with Pair("msg-tcp:mpich-p4", sockbuf=131072) as pair:
        assert pair.info["policy"] == "mpich-p4"
        assert pair.run(8, count=10).one_way_s.size
    with pytest.raises(MeasureError, match="no socket buffers that can be set"):
        Pair("msg-via", sockbuf=131072)


def swept(*words) -> str:
    """Run a sweep without disturbance, and return its output."""
    done = click.testing.CliRunner().invoke(cli, [*map(str, words), "--perturb", "0"], prog_name="viakit")
    assert done.exit_code == 0, done.output
    return done.output


def test_one_table_for_all_wires_and_buffers(tmp_path):
    needs.hosts().close()
    out = tmp_path / "grid.json"
    words = ["sweep", "tcp", "via-eth", "--mtu", "1500,9000", "--sockbuf", "64K,256K", "--sizes", "64,256K"]
    output = swept(*words, "--seconds", "2", "--json", out)
    assert output.count("by size of the socket buffers") == 1
    document = json.loads(out.read_text())
    result.validate(document)
    cells = {(one["protocol"], one["mtu"], one.get("sockbuf")) for one in document["series"]}
    assert cells == {("tcp", m, s) for m in (1500, 9000) for s in (65536, 262144)} | {
        ("via-eth", m, None) for m in (1500, 9000)
    }
    text = shown(document)
    rows = [line.split()[:2] for line in text.splitlines() if line.lstrip().startswith(("tcp ", "via-eth "))]
    assert rows == [["tcp", "1500"], ["tcp", "9000"], ["via-eth", "1500"], ["via-eth", "9000"]]
    labels = [one["label"] for one in plot.curves([document])]
    assert len(set(labels)) == len(labels) == 6
    assert "tcp (MTU 1500, socket buffers 65536)" in labels
    assert len(comparison.compare(document, document)) == 12
    assert "256 KiB buffers" in report.html(document)
    assert "sockbuf" in result.to_csv(document).splitlines()[0]


def test_a_table_of_delays(tmp_path):
    needs.hosts().close()
    out = tmp_path / "grid.json"
    words = ["sweep", "tcp", "via-eth", "--delay", "0,2ms", "--wait", "block", "--sizes", "8,64"]
    output = swept(*words, "--seconds", "1", "--json", out)
    assert "by delay" in output
    assert "delay=" not in output  # the rows have it
    document = json.loads(out.read_text())
    result.validate(document)
    found = {(one["protocol"], one["delay_s"], one["wire"]): one for one in document["series"]}
    wires = ((0, "delay=0us"), (0.002, "delay=2ms"))
    assert set(found) == {(name, *wire) for name in ("tcp", "via-eth") for wire in wires}
    for (_, delay_s, _), one in found.items():
        assert one["info"]["relay"]["delay_s"] == delay_s
        assert all(point["one_way_s"]["min"] >= delay_s for point in one["points"])
    rows = [line.split()[:3] for line in shown(document).splitlines() if line.lstrip().startswith(("tcp ", "via-eth "))]
    assert rows == [[name, "1500", late] for name in ("tcp", "via-eth") for late in ("0", "2.00")]
    labels = {one["label"] for one in plot.curves([document])}
    assert labels == {f"{name} ({wire})" for name in ("tcp", "via-eth") for _, wire in wires}
    assert len(comparison.compare(document, document)) == 8
    assert {line.split(",")[10] for line in result.to_csv(document).splitlines()} == {"wire", "delay=0us", "delay=2ms"}


@pytest.mark.parametrize(
    ("delay", "words"),
    [
        ("1ms,1m", "delay is '1m'; expected a time from 0 to 1 s with its unit"),
        ("1ms,0.001s", "--delay is [0.001, 0.001]: give each value once, at least one"),
    ],
)
def test_wrong_delays_are_named(delay, words):
    done = click.testing.CliRunner().invoke(cli, ["sweep", "tcp", "--delay", delay], prog_name="viakit")
    assert done.exit_code == 2
    assert words in " ".join(done.output.split())


def test_other_results_are_no_grid():
    document = sweep.run(plan.Config(["unix", "tcp"], [8], seconds=0.2)).document
    assert grid.grids(document) == []
