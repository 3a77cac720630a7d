"""Models, knees and comparisons, on synthetic curves with known results, and on a measured one."""

from __future__ import annotations

import json

import numpy as np
import pytest

from viakit.measure import Config, Result, comparison, fit, sweep
from viakit.measure.result import ResultError

SIZES = [1, 4, 16, 64, 256, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1048576]


def series(times, *, noise=0.01, bursts=20, seed=1, protocol="tcp", info=None, mtu=None, mode="pingpong"):
    """A series of one-way times, each burst's median off by *noise*."""
    rng = np.random.default_rng(seed)
    points = []
    for n, t in zip(SIZES, times, strict=True):
        medians = t * (1 + noise * rng.standard_normal(bursts))
        middle = float(np.median(medians))
        points.append(
            {
                "nbytes": n,
                "one_way_s": {"median": middle, "ci95": [middle, middle]},
                "bursts_s": medians.tolist(),
                "rounds": list(range(bursts)),
            }
        )
    key = {"protocol": protocol, "link": "ip", "hosts": "local", "mtu": mtu, "mode": mode, "wait": "poll", "level": "c"}
    return {**key, "info": info or {}, "points": points}


def result(*every, **environment):
    return Result({"series": list(every), "environment": environment})


def line(t0, rate):
    return [t0 + n / rate for n in SIZES]


def test_hockney_is_found_again():
    fits = result(series(line(5e-6, 1e9), noise=0.02)).fit()
    found = fits["tcp"]
    for estimate, truth in ((found.t0, 5e-6), (found.bandwidth, 1e9), (found.n_half, 5000.0)):
        assert estimate.value == pytest.approx(truth, rel=0.05)
        assert estimate.low <= estimate.value <= estimate.high
        assert estimate.low * 0.97 <= truth <= estimate.high * 1.03
    assert found.error < 0.03
    assert found.G.value == pytest.approx(1e-9, rel=0.1)
    assert found.L_plus_2o.value == pytest.approx(5e-6, rel=0.1)
    assert found.g is None
    assert found.half_bandwidth.value == pytest.approx(5000, rel=0.3)


@pytest.mark.parametrize("seed", range(4))
def test_noise_makes_no_knees(seed):
    assert result(series(line(5e-6, 1e9), noise=0.03, seed=seed)).fit()["tcp"].knees == ()


@pytest.mark.parametrize(
    ("limit", "info", "mtu", "caches", "cause"),
    [
        (16384, {"eager_limit": 16384}, None, [], "threshold"),
        (1448, {}, 1500, [], "MTU"),
        (65536, {"sndbuf": 65536}, None, [], "socket buffer"),
        (131072, {}, None, [32768, 131072], "cache"),
        (16384, {}, None, [], None),
    ],
)
def test_a_knee_is_found_and_its_cause_named(limit, info, mtu, caches, cause):
    times = [t if n <= limit else 2 * t + 4e-6 for n, t in zip(SIZES, line(2e-6, 4e9), strict=True)]
    (knee,) = result(series(times, info=info, mtu=mtu), caches=caches).fit()["tcp"].knees
    assert knee.after <= limit <= knee.before
    assert knee.cause == cause
    assert knee.jump > 1.3
    assert ("no known limit" in knee.why) == (cause is None)


def test_a_fit_says_what_it_cannot_tell():
    one = series(line(1e-6, 1e9))
    one["points"] = one["points"][:1]
    assert "needs two sizes" in result(one).fit()[0].notes[0]
    stream = result(series(line(1e-6, 1e9), mode="stream", bursts=3)).fit()[0]
    assert stream.L_plus_2o is None
    assert stream.g.value == pytest.approx(1e-6, rel=0.1)
    assert any("too few bursts" in note for note in stream.notes)
    with pytest.raises(ValueError, match="models can be fitted to sweeps only"):
        result().fit()
    with pytest.raises(KeyError, match="the result has tcp"):
        _ = result(series(line(1e-6, 1e9))).fit()["udp"]
    assert "Hockney" in str(fit.fit(result(series(line(1e-6, 1e9)))))


def test_the_same_thing_twice_is_no_change():
    alarms = 0
    for seed in range(12):
        a, b = (result(series(line(5e-6, 1e9), noise=0.03, seed=100 * seed + i)) for i in (1, 2))
        alarms += b.compare(a, indifferent=0.0).changed
    assert alarms <= 3  # 5 % of 12 is 0.6; more than 3 has a chance of two in a thousand


def test_bursts_that_follow_each_other_are_not_taken_for_independent():
    alarms = 0
    for seed in range(6):
        both = []
        for i in (1, 2):
            rng = np.random.default_rng(100 * seed + i)
            one = series(line(5e-6, 1e9), bursts=120)
            for point in one["points"]:
                wander = np.zeros(120)
                for k in range(1, 120):
                    wander[k] = 0.7 * wander[k - 1] + 0.02 * rng.standard_normal()
                point["bursts_s"] = (point["one_way_s"]["median"] * (1 + wander)).tolist()
            both.append(result(one))
        alarms += both[1].compare(both[0], indifferent=0.0).changed
    assert alarms <= 3


def test_a_change_is_seen_where_it_is():
    before = result(series(line(5e-6, 1e9), seed=1))
    after = result(
        series(
            [t * (1.2 if n == 4096 else 0.8 if n == 64 else 1.0) for n, t in zip(SIZES, line(5e-6, 1e9), strict=True)],
            seed=2,
        )
    )
    told = after.compare(before)
    assert {(one.nbytes, one.verdict) for one in told if one.verdict != "no evidence of change"} == {
        (4096, "slower"),
        (64, "faster"),
    }
    assert "slower at 1 of 16" in told.verdict
    assert "no evidence of change at 14" in told.verdict
    assert told.changed
    assert "<table" in told._repr_html_()


def test_a_comparison_says_what_it_cannot_tell(tmp_path):
    few = result(series(line(5e-6, 1e9), bursts=3), cpu="one")
    assert "too few bursts" in few.compare(few).verdict
    other = result(series(line(5e-6, 1e9), protocol="udp"), cpu="another")
    told = few.compare(other)
    assert "nothing to compare" in told.verdict
    assert told.unmatched == ("tcp", "udp")
    assert "cpu: another and one" in str(told)
    with pytest.raises(ValueError, match="confidence"):
        comparison.compare(few, few, confidence=95)
    with pytest.raises(ValueError, match="indifferent"):
        comparison.compare(few, few, indifferent=5)
    with pytest.raises(ResultError):
        few.compare(tmp_path / "not-there.json")


def test_a_measured_result_does_it_all(tmp_path):
    document = sweep.run(Config(protocols=["unix", "via-shm"], sizes=[8, 4096], seconds=0.5, mode="stream")).document
    found = Result(document)
    assert repr(found) == "<Result of unix, via-shm: 4 points>"
    assert found.series("via-shm", mode="stream")["link"] == "shm"
    with pytest.raises(KeyError, match="the result has unix, via-shm"):
        found.series("tcp")
    for name in ("a.json", "a.csv", "a.png"):
        assert found.save(tmp_path / name).stat().st_size > 100
    with pytest.raises(ResultError, match=r"\.json"):
        found.save(tmp_path / "a.doc")
    assert Result.load(tmp_path / "a.json") == found == json.loads(json.dumps(found))
    page = found._repr_html_()
    assert '<svg role="img"' in page
    assert "<table" in page
    assert len(found.fit()) == 2
    assert not found.compare(tmp_path / "a.json").changed
    assert len(found.plot(Result.load(tmp_path / "a.json"), graphs=["time"]).axes) == 1
    rows = found.rows()
    assert len(rows) == 4
    assert rows[0]["median_s"] > 0
    pandas = pytest.importorskip("pandas")
    frame = found.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert set(frame["protocol"]) == {"unix", "via-shm"}


def test_without_pandas_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'viakit\[pandas\]'"):
        result().to_pandas()
