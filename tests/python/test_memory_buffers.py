"""Memory and buffers of measurements: accepted options, entries in results, and the contents of messages."""

import copy

import pytest
from click.testing import CliRunner
from synthetic import SyntheticPair, SyntheticTestbed

from viakit import cli
from viakit.measure import comparison, plot, report, result, sockbuf, sweep, table
from viakit.measure.endpoints import MeasureError, protocols
from viakit.measure.pair import Pair
from viakit.measure.sweep import Config, UsageError


@pytest.fixture(autouse=True)
def _machine():
    SyntheticPair.reset()
    yield
    assert SyntheticPair.open_pairs == 0
    SyntheticPair.reset()


def run(*protocols, sizes=(64, 4096), seconds=0.5, **kw):
    config = Config(list(protocols), list(sizes), seconds=seconds, seed=1, **kw)
    return sweep.run(config, pair_class=SyntheticPair, testbed_class=SyntheticTestbed).document


# ---------------------------------------------------------------- requested buffers


def test_the_default_is_ordinary_memory_and_touched_buffers():
    document = run("via-shm", "unix")
    result.validate(document)
    for one in document["series"]:
        assert (one["memory"], one["buffers"]) == ("user", "touched")
        assert all(point["touch_s"] > 0 for point in one["points"])


def test_memory_of_the_allocator_goes_to_those_that_have_it():
    document = run("via-shm", "mpi", memory="viakit", buffers="same")
    assert {one["protocol"]: one["memory"] for one in document["series"]} == {"via-shm": "viakit", "mpi": "user"}
    assert not any("touch_s" in point for one in document["series"] for point in one["points"])
    (group,) = table.groups(document)
    assert "ordinary memory (mpi), otherwise viakit's memory, buffers untouched" in table.how(group)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"memory": "huge"}, "--memory is 'huge': it has to be one of user, viakit"),
        ({"buffers": "warm"}, "--buffers is 'warm': it has to be one of touched, same, cold"),
        ({"memory": "viakit"}, "--memory viakit: tcp has no allocator and takes ordinary memory"),
        ({"buffers": "cold", "level": "python"}, "only at c"),
        ({"sockbuf": "best"}, "--sockbuf is best: give a number of bytes, for instance 128K, or auto"),
    ],
)
def test_what_makes_no_sense_is_refused(change, words):
    with pytest.raises((UsageError, ValueError)) as caught:
        sweep.check(Config(["tcp"], [64], **change))
    assert words in str(caught.value)


def test_a_pair_refuses_memory_that_its_protocol_does_not_have():
    with pytest.raises(MeasureError, match="only via-\\* and msg-via have an allocator"):
        Pair("unix", memory="viakit")
    with pytest.raises(ValueError, match="expected one of touched, same, cold"):
        Pair("unix", buffers="hot")
    with pytest.raises(MeasureError, match="the loop in C has them"):
        Pair("unix", level="python", buffers="cold")


@pytest.mark.parametrize("command", ["sweep", "demo", "bench"])
def test_commands_take_both_options(command):
    text = CliRunner().invoke(cli.cli, [command, "--help"]).output
    assert "--memory [user|viakit]" in text
    assert "--buffers [touched|same|cold]" in text


# ---------------------------------------------------------------- what a result says


def older(document):
    """The document as it was before these fields existed."""
    document = copy.deepcopy(document)
    for one in document["series"]:
        del one["memory"], one["buffers"]
        for point in one["points"]:
            point.pop("touch_s", None)
    return document


def test_tables_pictures_and_reports_name_memory_and_buffers():
    document = run("via-shm", "unix")
    (group,) = table.groups(document)
    assert table.how(group) == "polled, loop in C, one host, ordinary memory, buffers touched"
    assert "ordinary memory, buffers touched" in plot.html([document])
    assert "ordinary memory, buffers touched" in report.html(document)
    assert "<th>touching</th>" in report.html(document)
    assert plot.words([document])[1].count("ordinary memory, buffers touched") == 1
    head, first = result.to_csv(document).splitlines()[:2]
    assert head.split(",")[7:9] == ["memory", "buffers"]
    assert first.split(",")[7:9] == ["user", "touched"]


def test_older_results_still_load(tmp_path):
    document = older(run("via-shm", "unix"))
    result.save(document, tmp_path / "old.json")
    loaded = result.load(tmp_path / "old.json")
    (group,) = table.groups(loaded)
    assert table.how(group).endswith("memory not recorded, buffers not recorded")
    assert "memory not recorded, buffers not recorded" in report.html(loaded)
    assert "touching" not in report.tables_html(loaded)


def test_what_was_measured_otherwise_is_not_compared():
    new = run("via-shm")
    found = comparison.compare(older(new), new)
    assert not found.changes
    assert found.unmatched == (
        "via-shm (memory not recorded, buffers not recorded)",
        "via-shm (ordinary memory, buffers touched)",
    )


# ---------------------------------------------------------------- TCP at its best


def test_the_best_socket_buffers_are_found_and_named(capsys):
    document = run("via-eth", "tcp", sizes=[1 << 20], mode="stream", sockbuf="auto")
    info = table.find_series(document, "tcp")["info"]
    assert info["sockbuf"] == 256 << 10
    assert info["sockbuf_tried"]["256 KiB"] == 1.0
    assert info["sockbuf_tried"]["automatic"] > 1.2
    assert sockbuf.words(info).startswith("Socket buffers of tcp: 256 KiB, the best of automatic, 64 KiB")
    assert any("Socket buffers of tcp: 256 KiB" in sentence for sentence in report.words(document))


def test_a_real_pair_reconnects_with_other_socket_buffers():
    with Pair("tcp") as pair:
        assert pair.info["sockbuf"] == "automatic"
        pair.run(1000, count=5)
        for size in (64 << 10, 128 << 10):
            pair.reconnect(size)
            assert pair.info["sockbuf"] == size
            assert pair.info["rcvbuf"] == 2 * size  # the kernel counts its bookkeeping, too
            assert pair.run(1000, count=5, validate=True).one_way_s.size == 5
    with Pair("via-shm") as pair, pytest.raises(MeasureError, match="has no socket buffers that can be set"):
        pair.reconnect(1 << 16)


@pytest.mark.parametrize("protocol", ["unix", "udp", "msg-tcp"])
def test_each_kind_of_pair_with_socket_buffers_reconnects(protocol):
    with Pair(protocol) as pair:
        pair.run(1000, count=5)
        pair.reconnect(64 << 10)
        assert pair.run(1000, count=5, validate=True).one_way_s.size == 5


# ---------------------------------------------------------------- bursts of streams


def test_a_stream_of_long_messages_is_never_two_messages():
    """However many points share the time: filling and draining the pipeline must not be most of what is measured."""
    document = run("via-eth", sizes=[4 << 20, *range(1, 200)], mode="stream", seconds=3)
    point = table.point_at(document["series"][0], 4 << 20)
    assert point["counters"]["messages"] / len(point["bursts_s"]) >= 10


# ---------------------------------------------------------------- what happens to messages


@pytest.mark.parametrize("level", ["c", "python"])
@pytest.mark.parametrize("mode", ["pingpong", "stream"])
@pytest.mark.parametrize("protocol", ["via-shm", "via-udp", "tcp", "unix", "zmq", "msg-via", "bip-shm", "udp"])
def test_touched_messages_are_written_and_read_whole(protocol, mode, level):
    if level not in protocols()[protocol].levels:
        pytest.skip(f"{protocol} has no loop in Python")
    with Pair(protocol, level=level, buffers="touched") as pair:
        for nbytes in (1, 1000, 100_000):
            done = pair.run(nbytes, mode=mode, count=40, warmup=2)
            n = 42 * (2 if mode == "pingpong" else 1)
            assert done.counters["bytes_written"] == n * nbytes
            assert done.counters["bytes_read"] == n * nbytes
            assert done.touch_s > 0
    with Pair(protocol, level=level, buffers="same") as pair:
        done = pair.run(1000, mode=mode, count=40)
        assert (done.counters["bytes_written"], done.counters["bytes_read"], done.touch_s) == (0, 0, None)


@pytest.mark.parametrize("protocol", ["via-shm", "tcp", "udp", "zmq", "msg-via", "bip-shm"])
def test_cold_buffers_carry_every_byte(protocol):
    with Pair(protocol, buffers="cold") as pair:
        assert pair.info["cold_pool_bytes"] > 0
        for mode in ("pingpong", "stream"):
            pair.run(5000, mode=mode, count=30, validate=True)


def per_message(memory, level):
    with Pair("via-shm", memory=memory, level=level) as pair:
        done = pair.run(1 << 18, count=20)
        assert done.counters["copies"] > 0
        return {name: done.counters[name] / done.counters["messages"] for name in ("copies_mapped", "copies_cma")}


@pytest.mark.parametrize("level", ["c", "python"])
def test_only_memory_of_the_allocator_is_mapped(level):
    """The peer cannot map ordinary memory: it is copied as a plain VIPL program's malloc memory is."""
    assert per_message("user", level)["copies_mapped"] == 0
    mapped = per_message("viakit", level)
    assert mapped["copies_mapped"] >= 1
    assert mapped["copies_cma"] == 0
