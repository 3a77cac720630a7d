"""tools/benchmark_compare.py: which benchmarks became slower, by rank tests and bootstrap intervals."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

TOOL = Path(__file__).parents[2] / "tools" / "benchmark_compare.py"
spec = importlib.util.spec_from_file_location("benchmark_compare", TOOL)
assert spec is not None
assert spec.loader is not None
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)


def saved(path, **times):
    rows = [{"fullname": f"python/{name}", "stats": {"data": list(data)}} for name, data in times.items()]
    path.write_text(json.dumps({"benchmarks": rows}))
    return path


def test_the_rank_test_agrees_with_known_values():
    """The first is the example of ten and ten values in order; the p-values are those of the normal approximation."""
    assert compare.mann_whitney(range(10), range(10, 20)) == pytest.approx(1.827e-4, rel=1e-3)
    assert compare.mann_whitney([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]) == pytest.approx(1.0)
    assert compare.mann_whitney([1] * 9, [1] * 8) == 1.0


def test_a_shift_is_reported_and_noise_is_not(tmp_path, capsys):
    rng = np.random.default_rng(3)
    noise = [1e-6 * rng.lognormal(0, 0.2, 60) for _ in range(12)]
    same = {f"same{i}": (noise[i], noise[i + 1]) for i in range(10)}
    pairs = {**same, "slow": (noise[10], 1.4 * noise[11]), "fast": (noise[10], 0.7 * noise[11])}
    pairs["gone"] = (noise[0], None)
    old = saved(tmp_path / "a.json", **{name: pair[0] for name, pair in pairs.items()})
    new = saved(tmp_path / "b.json", **{name: pair[1] for name, pair in pairs.items() if pair[1] is not None})
    assert compare.main([str(old), str(new)]) == 1
    said = capsys.readouterr().out
    assert [line.split()[0] for line in said.splitlines() if line.endswith("  slower")] == ["slow"]
    assert [line.split()[0] for line in said.splitlines() if line.endswith("  faster")] == ["fast"]
    assert "gone" in said
    assert "1 of 12 slower, 1 faster" in said
    assert compare.main([str(new), str(new)]) == 0


def test_runs_without_rounds_are_refused(tmp_path):
    empty = tmp_path / "c.json"
    empty.write_text(json.dumps({"benchmarks": [{"fullname": "x", "stats": {}}]}))
    with pytest.raises(SystemExit, match="--benchmark-save-data"):
        compare.main([str(empty), str(empty)])
    with pytest.raises(SystemExit, match="two runs are needed, found 1"):
        compare.main([str(empty)])
