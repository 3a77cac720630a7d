"""Sweeps on a synthetic machine: order, budget, stop rule, and partial results after errors."""

import threading
from collections import Counter

import pytest
from synthetic import SyntheticPair, SyntheticTestbed

from viakit.measure import result, sweep, table, turns
from viakit.measure.endpoints import MeasureError
from viakit.measure.plan import plan
from viakit.measure.sweep import Config, UsageError


@pytest.fixture(autouse=True)
def machine():
    SyntheticPair.reset()
    SyntheticTestbed.refuse = None
    yield SyntheticPair
    assert SyntheticPair.open_pairs == 0, "a pair was left open"
    SyntheticPair.reset()


def run(config, **kw):
    return sweep.run(config, pair_class=SyntheticPair, testbed_class=SyntheticTestbed, **kw)


def test_a_result_is_valid_and_complete():
    outcome = run(Config(["via-eth", "tcp"], [1, 64, 4096], seconds=1, seed=5))
    document = outcome.document
    result.validate(document)
    assert outcome.complete
    assert outcome.error is None
    assert [one["protocol"] for one in document["series"]] == ["via-eth", "tcp"]
    assert {one["hosts"] for one in document["series"]} == {"testbed"}, "via-eth needs a wire, so both get one"
    assert {one["mtu"] for one in document["series"]} == {1500}
    for one in document["series"]:
        assert [point["nbytes"] for point in one["points"]] == [1, 64, 4096]
        assert one["one_way"] == "half the round trip"
        for point in one["points"]:
            assert len(point["bursts_s"]) == len(point["rounds"]) >= sweep.MIN_ROUNDS
            assert point["counters"]["messages"] > 0
    assert document["environment"]["seed"] == document["seed"] == 5
    assert document["environment"]["interface"] == "eth0"


def test_medians_and_ratios_are_those_of_the_machine():
    document = run(Config(["via-eth", "tcp"], [64], seconds=1, seed=5)).document
    mine, peer = (table.point_at(table.find_series(document, name), 64) for name in ("via-eth", "tcp"))
    assert mine["one_way_s"]["median"] == pytest.approx(1.109e-6, rel=0.02)
    ratio = table.point_ratio(mine, peer)
    assert ratio.paired
    assert ratio.value == pytest.approx(1.109 / 3.432, rel=0.02)
    back = table.point_ratio(mine, peer, bandwidth=True)
    assert back.value == pytest.approx(1 / ratio.value, rel=1e-6)


def test_protocols_take_turns_and_the_seed_fixes_the_order():
    def order(seed):
        seen = []
        run(
            Config(["tcp", "udp", "unix"], [1, 1024, 65536], seconds=1, seed=seed),
            on_point=lambda series, point: seen.append((series["protocol"], point["nbytes"])),
        )
        return seen

    first, again, other = order(1), order(1), order(2)
    both = min(len(first), len(again))  # a busy machine gets through fewer rounds in its second
    assert both >= 9 * sweep.MIN_ROUNDS
    assert first[:both] == again[:both]
    assert first[: len(other)] != other[: len(first)]
    for start in range(0, 9 * sweep.MIN_ROUNDS, 3):  # each size is visited by all before the next one
        visit = first[start : start + 3]
        assert len({nbytes for _, nbytes in visit}) == 1
        assert {name for name, _ in visit} == {"tcp", "udp", "unix"}
    assert set(Counter(first[: 9 * sweep.MIN_ROUNDS]).values()) == {sweep.MIN_ROUNDS}


def test_the_floor_is_measured_beside_shared_memory():
    document = run(Config(["via-shm", "mpi:openmpi"], [8, 4096], seconds=1)).document
    result.validate(document)
    assert document["floor"]["one_way_s"]["median"] == pytest.approx(0.137e-6, rel=0.02)
    assert "floor" not in [one["protocol"] for one in document["series"]]
    assert run(Config(["tcp"], [8], seconds=1)).document["floor"] is None


def test_both_levels_are_two_series():
    document = run(Config(["tcp"], [64], seconds=1, level="both")).document
    assert [one["level"] for one in document["series"]] == ["c", "python"]


@pytest.mark.parametrize("mode", ["stream", "bidir"])
def test_streams(mode):
    document = run(Config(["via-eth", "tcp"], [1 << 20], mode=mode, seconds=1)).document
    result.validate(document)
    mine = document["series"][0]["points"][0]
    factor = 2 if mode == "bidir" else 1
    assert mine["bandwidth_Bps"] == pytest.approx(factor * 7e9, rel=0.1)


def test_the_first_round_is_finished_however_short_the_time():
    document = run(Config(["tcp", "udp"], [1, 64, 1 << 20], seconds=1e-6)).document
    assert document["complete"]
    assert all(len(one["points"]) == 3 for one in document["series"])
    assert document["series"][0]["points"][0]["one_way_s"]["ci_of"] == "samples"


def test_ctrl_c_keeps_what_was_measured(machine):
    machine.interrupt_after = 40
    outcome = run(Config(["tcp", "udp"], [1, 64, 4096], seconds=30))
    assert outcome.interrupted
    assert not outcome.complete
    result.validate(outcome.document)
    assert any(one["points"] for one in outcome.document["series"])


def test_a_stop_event_ends_it_too():
    stop = threading.Event()
    outcome = run(Config(["tcp"], [64], seconds=30), stop=stop, on_point=lambda series, point: stop.set())
    assert outcome.interrupted
    assert outcome.document["series"][0]["points"]


def test_a_peer_that_goes_away_keeps_what_was_measured(machine):
    machine.fail_after = {"udp": (9, MeasureError("the peer went away"))}
    outcome = run(Config(["tcp", "udp"], [64], seconds=30))
    assert str(outcome.error) == "the peer went away"
    assert not outcome.complete
    result.validate(outcome.document)
    assert outcome.document["errors"] == [{"protocol": "udp", "nbytes": 64, "message": "the peer went away"}]
    assert outcome.document["series"][0]["points"]


def test_what_cannot_run_is_an_error_before_anything_is_measured(machine):
    machine.missing = {"mpi": MeasureError("no MPI: pip install viakit[mpich]")}
    with pytest.raises(MeasureError, match="no MPI"):
        run(Config(["via-shm", "mpi"], [8]))
    assert machine.runs == 0


def test_unless_it_may_be_skipped(machine):
    machine.missing = {"mpi": MeasureError("no MPI: pip install viakit[mpich]")}
    document = run(Config(["via-shm", "mpi"], [8], seconds=1, skip_unavailable=True)).document
    result.validate(document)
    assert document["skipped"] == [{"protocol": "mpi", "reason": "no MPI: pip install viakit[mpich]"}]
    assert document["complete"]


def test_without_a_floor_the_rest_is_measured(machine):
    machine.missing = {"floor": MeasureError("one core only")}
    document = run(Config(["via-shm"], [8], seconds=1)).document
    assert document["floor"] is None
    assert document["skipped"][0]["protocol"] == "floor"


def test_where_namespaces_are_refused(machine):
    SyntheticTestbed.refuse = PermissionError("user namespaces are refused by a setting")
    with pytest.raises(PermissionError):
        run(Config(["via-eth", "tcp"], [64]))
    document = run(Config(["via-eth", "via-shm"], [64], seconds=1, skip_unavailable=True)).document
    assert [one["protocol"] for one in document["series"]] == ["via-shm"]
    assert "refused" in document["skipped"][0]["reason"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"protocols": []}, "at least one protocol"),
        ({"protocols": ["tcp", "tcp"]}, "twice"),
        ({"sizes": []}, "at least one size"),
        ({"mode": "pong"}, "--mode"),
        ({"wait": "sleep"}, "--wait"),
        ({"level": "fortran"}, "--level"),
        ({"hosts": "moon"}, "--hosts"),
        ({"seconds": 0}, "--seconds"),
        ({"seconds": float("nan")}, "--seconds"),
        ({"sockbuf": -1}, "--sockbuf"),
        ({"seed": -1}, "--seed"),
        ({"form": "x"}, "--form"),
        ({"reliability": "x"}, "--reliability"),
        ({"hosts": "local", "mtu": 9000}, "--hosts testbed"),
        ({"hosts": "local", "rate": "1gbit"}, "--hosts testbed"),
        ({"protocols": ["msg-via"], "hosts": "local", "network": "udp"}, "--hosts testbed"),
        ({"protocols": ["msg-via"], "network": "udp", "interface": "lo"}, "remove --interface"),
        ({"protocols": ["msg-via"], "hosts": "testbed", "network": "shm"}, "one of eth, udp"),
        ({"protocols": ["msg-via"], "hosts": "testbed", "network": "eth:eth0"}, "--hosts ssh:A,B"),
    ],
)
def test_what_makes_no_sense_is_said_before_anything_starts(change, words):
    with pytest.raises(UsageError, match=words):
        run(Config(**{"protocols": ["tcp"], "sizes": [64], **change}))
    assert SyntheticPair.runs == 0


def test_a_link_between_hosts_selects_the_testbed():
    series, two_hosts = plan(Config(["msg-via", "tcp", "via-shm"], [64], network="udp"))
    assert two_hosts
    assert [one.hosts for one in series if not one.is_floor] == ["testbed", "testbed", "local"]


def test_an_unknown_protocol_gets_a_suggestion():
    with pytest.raises(ValueError, match="tcp"):
        run(Config(["tpc"], [64]))


def test_progress_ends_and_never_runs_backwards_in_time():
    seen = []
    run(Config(["tcp"], [1, 64], seconds=0.5), on_progress=seen.append)
    assert seen
    assert all(0.0 <= one.fraction <= 1.0 and one.left_s >= 0.0 and one.text for one in seen)


def test_a_long_sweep_keeps_what_matters_and_not_every_sample(monkeypatch, rng):
    monkeypatch.setattr(turns, "MOST_SAMPLES", 1000)
    point = sweep.Point(64)
    every = [rng.lognormal(0.0, 0.1, 200) for _ in range(50)]
    every[7][3] = 99.0
    for number, burst in enumerate(every):
        point.add(burst, number)
    kept = sum(burst.size for burst in point.bursts)
    assert 500 <= kept <= 2000
    assert point.samples == 10_000
    described = point.as_dict("pingpong")
    assert described["samples"] == 10_000
    assert described["one_way_s"]["max"] == 99.0
    assert len(described["bursts_s"]) == len(described["rounds"]) == 50
    assert described["one_way_s"]["median"] == pytest.approx(1.0, rel=0.02)
