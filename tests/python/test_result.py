"""Result files: schema, atomic writing, full disks, CSV, and the description of the machine."""

import csv
import errno
import io
import json
import os
import stat
import subprocess
import sys

import pytest
from synthetic import SyntheticPair, SyntheticTestbed

from viakit.measure import environment, result, sweep
from viakit.measure.result import ResultError


@pytest.fixture(scope="module")
def _measured():
    SyntheticPair.reset()
    config = sweep.Config(["via-eth", "tcp", "via-shm"], [8, 64, 4096], seconds=1, seed=3)
    return sweep.run(config, pair_class=SyntheticPair, testbed_class=SyntheticTestbed).document


@pytest.fixture
def document(_measured):
    return json.loads(json.dumps(_measured))


def test_the_schema_is_a_schema():
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(result.schema())
    assert result.schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_checking_a_result_loads_no_grammar_of_addresses():
    """Seconds of computing in every process that writes a result, where Jupyter's extras are installed."""
    code = (
        "import sys\nfrom viakit.measure import result\nresult._validator()\n"
        "assert 'jsonschema' in sys.modules and 'lark' not in sys.modules and 'rfc3987_syntax' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_save_and_load(document, tmp_path):
    result.save(document, tmp_path / "a.json")
    assert result.load(tmp_path / "a.json") == document
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_folder_that_is_missing_is_named_as_a_shell_takes_it(tmp_path):
    folder = tmp_path / "Prüf lauf" / "it's new"
    with pytest.raises(ResultError, match="does not exist; create it") as refused:
        result.check_writable(folder / "a.json")
    command = str(refused.value).partition("create it with: ")[2]
    subprocess.run(command, shell=True, check=True)
    result.check_writable(folder / "a.json")


def test_the_fields_that_were_promised(document):
    assert document["schema"] == "viakit.result/1"
    for one in document["series"]:
        assert {"protocol", "link", "hosts", "mtu", "mode", "wait", "level", "points"} <= one.keys()
        for point in one["points"]:
            assert {"nbytes", "one_way_s", "bandwidth_Bps", "samples", "counters"} <= point.keys()
            wanted = {"median", "p5", "p50", "p90", "p99", "p999", "min", "max", "ci95"}
            assert wanted <= point["one_way_s"].keys()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda d: d.pop("schema"), "not a viakit result"),
        (lambda d: d.update(schema="viakit.result/9"), "viakit.result/9"),
        (lambda d: d.pop("series"), "series"),
        (lambda d: d["environment"].pop("cpu"), "environment"),
        (lambda d: d["series"][1].update(wait="doze"), "series/1/wait"),
        (lambda d: d["series"][0]["points"][2].update(nbytes=-1), "series/0/points/2/nbytes"),
        (lambda d: d["series"][0]["points"][0]["one_way_s"].pop("p999"), "series/0/points/0/one_way_s"),
        (lambda d: d["series"][0]["points"][0]["one_way_s"].update(ci95=[1]), "ci95"),
    ],
)
def test_what_is_not_valid_says_where(document, change, words, tmp_path):
    change(document)
    with pytest.raises(ResultError, match=words):
        result.validate(document)
    with pytest.raises(ResultError):
        result.save(document, tmp_path / "never.json")
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize(
    ("text", "words"), [("", "not JSON"), ("{", "not JSON"), ("[]", "not a viakit result"), ("{}", "not a viakit")]
)
def test_files_that_are_no_results(text, words, tmp_path):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ResultError, match=words):
        result.load(tmp_path / "x.json")
    with pytest.raises(ResultError, match="No such file"):
        result.load(tmp_path / "absent.json")


def test_a_full_disk_keeps_the_old_file_and_leaves_no_part(document, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    path.write_text("the old one")

    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match=r"no room.*untouched"):
        result.save(document, path)
    assert path.read_text() == "the old one"
    assert os.listdir(tmp_path) == ["a.json"]


def test_a_device_is_written_to_and_not_replaced(document):
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    with pytest.raises(ResultError, match="no room"):
        result.save(document, "/dev/full")
    assert stat.S_ISCHR(os.stat("/dev/full").st_mode)
    result.save(document, "/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_a_symbolic_link_stays_one(document, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "folder" / "real.json")
    result.save(document, tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert result.load(tmp_path / "folder" / "real.json") == document


def test_where_nothing_can_be_written_is_said_before_measuring(tmp_path):
    with pytest.raises(ResultError, match="mkdir"):
        result.check_writable(tmp_path / "no" / "folder.json")
    with pytest.raises(ResultError, match="folder"):
        result.check_writable(tmp_path)
    result.check_writable(tmp_path / "fine.json")
    result.check_writable(tmp_path / "fine.json", tmp_path / "other.json", "/dev/null", "/dev/null")
    with pytest.raises(result.ResultError, match="is named for two different outputs"):
        result.check_writable(tmp_path / "fine.json", tmp_path / "." / "fine.json")
    assert not os.listdir(tmp_path)


def test_a_number_that_is_not_finite_never_gets_into_a_file(document):
    document["elapsed_s"] = float("nan")
    with pytest.raises(ValueError):
        result.to_bytes(document)


def test_csv_has_a_line_per_point(document):
    rows = list(csv.DictReader(io.StringIO(result.to_csv(document))))
    assert len(rows) == sum(len(one["points"]) for one in document["series"]) == 9
    assert rows[0]["protocol"] == "via-eth"
    assert float(rows[0]["one_way_median_s"]) == document["series"][0]["points"][0]["one_way_s"]["median"]
    assert all(None not in row and None not in row.values() for row in rows)


def test_merging_keeps_all_series(document):
    other = json.loads(json.dumps(document))
    other["complete"] = False
    other["series"] = other["series"][:1]
    merged = result.merge([document, other], "viakit demo")
    result.validate(merged)
    assert len(merged["series"]) == 4
    assert not merged["complete"]
    assert merged["command"] == "viakit demo"


def test_the_environment_says_what_a_reader_needs():
    found = environment.environment(seed=7, infos=[{"protocol": "mpi:mpich", "library": "MPICH", "transport": "shm"}])
    assert found["seed"] == 7
    assert found["cpu"]
    assert found["affinity"] == sorted(os.sched_getaffinity(0))
    assert found["mpi"] == [{"protocol": "mpi:mpich", "library": "MPICH", "transport": "shm"}]
    assert found["libraries"]["numpy"]
    assert found["kernel"].startswith("Linux ")
    json.dumps(found, allow_nan=False)


def test_the_command_can_be_pasted():
    assert (
        environment.command_line(["/x/bin/viakit", "sweep", "tcp", "--plot", "a b.png"])
        == "viakit sweep tcp --plot 'a b.png'"
    )
    assert environment.command_line(["/x/viakit/__main__.py", "doctor"]) == "viakit doctor"
