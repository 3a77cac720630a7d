"""Findings and advice of the doctor, on this machine and on simulated faulty ones."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from viakit import doctor
from viakit.cli.class_page import class_page
from viakit.testbed import NamespaceError

N_LESSONS = len(list((Path(__file__).resolve().parents[2] / "notebooks").glob("[0-9]*.md")))
HOST_STEPS = [
    "user namespaces",
    "network namespaces",
    "veth interfaces",
    "bridge",
    "rate limit (tbf)",
    "process namespaces",
]


@pytest.fixture(scope="module")
def findings() -> list[doctor.Finding]:
    return doctor.examine()


def by_name(findings: list[doctor.Finding]) -> dict[str, doctor.Finding]:
    return {finding.name: finding for finding in findings}


def test_everything_is_looked_at(findings):
    names = [finding.name for finding in findings]
    assert len(set(names)) == len(names)
    expected = {
        *HOST_STEPS, "raw sockets", "memlock limit", "UDP segmentation offload", "net.core.rmem_max",
        "process_vm_readv", "membarrier", "huge pages", "/dev/shm",
        "CRC32C instructions", "cores", "frequency governor", "virtualisation", "mpi4py", "ZeroMQ", "matplotlib",
        "plotly", "kernel", "clock source", "viakit's compiled extension",
    }  # fmt: skip
    assert expected <= set(names)


def test_no_check_failed_and_every_no_has_a_remedy(findings):
    for finding in findings:
        assert "the check failed" not in finding.detail, finding
        assert finding.value, finding
        assert isinstance(finding.ok, bool) or finding.ok is None
        if finding.ok is False:
            assert finding.remedy, finding


def test_what_is_told_agrees_with_this_process(findings):
    found = by_name(findings)
    assert found["cores"].value.startswith(f"{len(os.sched_getaffinity(0))} of ")
    assert found["kernel"].value == os.uname().release


def test_the_dictionary_is_what_json_holds(findings):
    data = doctor.to_dict(findings)
    assert json.loads(doctor.to_json(findings)) == data
    assert data["schema"] == "viakit.doctor/1"
    assert data["failures"] == sum(finding.ok is False for finding in findings)
    assert [set(entry) for entry in data["findings"]] == [{"name", "ok", "value", "detail", "remedy"}] * len(findings)


def test_the_table_shows_every_finding_and_whole_remedies():
    from rich.console import Console

    long_command = "sudo sysctl -w " + "x" * 200
    findings = [
        doctor.Finding("good", True, "fine"),
        doctor.Finding("so so", None, "[8 MiB]", "means [little]"),
        doctor.Finding("bad", False, "refused", "means much", long_command),
    ]
    stream = io.StringIO()
    doctor.render(findings, Console(file=stream, width=100))
    text = stream.getvalue()
    for word in ("good", "so so", "[8 MiB]", "means [little]", "bad", "means much"):
        assert word in text
    assert long_command in text
    assert "Everything that viakit needs is available" not in text


@pytest.mark.parametrize("step", ["user", "map", "net", "host", "veth", "bridge", "tbf"])
def test_a_refused_step_is_named_and_those_behind_it_are_not_judged(monkeypatch, step):
    number = errno.EPERM if step in ("user", "map", "net", "host") else errno.EOPNOTSUPP

    class Refusing:
        """A testbed on a machine that refuses one step; bridge and tbf are needed only with a rate."""

        def __init__(self, hosts: int, rate: float | None) -> None:
            self.refuses = rate is not None or step not in ("bridge", "tbf")
            self.hosts = [self]

        def __enter__(self) -> Refusing:
            if self.refuses:
                raise NamespaceError(step, number)
            return self

        def __exit__(self, *_: object) -> None: ...

        def run(self, command: list[str], timeout: float) -> subprocess.CompletedProcess[str]:
            return subprocess.CompletedProcess(command, 0, "ring v3\n", "")

    monkeypatch.setattr(doctor, "Testbed", Refusing)
    found = by_name(doctor._hosts())
    assert set(found) == {*HOST_STEPS, "raw sockets"}
    names = dict(zip(("user", "net", "veth", "bridge", "tbf", "host"), HOST_STEPS, strict=True))
    names["map"] = names["user"]
    refused = found[names[step]]
    assert refused.ok is False
    assert refused.remedy
    assert [finding.name for finding in found.values() if finding.ok is False] == [refused.name]
    alone = step in ("bridge", "tbf")  # the hosts work without it
    assert found["raw sockets"].ok is (True if alone else None)
    if not alone:
        after = HOST_STEPS[HOST_STEPS.index(refused.name) + 1 :]
        assert {found[name].value for name in after} <= {"not tried"}


def test_a_check_that_breaks_does_not_hide_the_others(monkeypatch):
    def _broken() -> doctor.Finding:
        raise RuntimeError("no such file")

    monkeypatch.setattr(doctor, "_CHECKS", (_broken, doctor._kernel))
    first, second = doctor.examine()
    assert (first.name, first.ok) == ("broken", None)
    assert "no such file" in first.detail
    assert second.name == "kernel"


@pytest.mark.parametrize(("limit", "ok"), [(8 << 20, None), (64 << 20, True), (-1, True)])
def test_the_memlock_limit_is_judged(monkeypatch, limit, ok):
    monkeypatch.setattr(doctor, "_capable", lambda bit: False)
    monkeypatch.setattr(doctor.resource, "getrlimit", lambda which: (limit, limit))
    finding = doctor._memlock()
    assert finding.ok is ok
    assert ("memlock unlimited" in finding.remedy) is (ok is None)


def test_a_child_that_hangs_is_given_up(monkeypatch):
    monkeypatch.setattr(doctor, "_DEADLINE_S", 0.2)
    assert doctor._python("import signal; signal.pause()") == "no result within 0.2 s"


def test_a_missing_package_is_told_with_its_remedy(monkeypatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None)
    found = by_name([*doctor._plotting(), *doctor._mpi(), doctor._functions_by_value()])
    assert found["matplotlib"].ok is False
    assert found["mpi4py"].ok is None
    assert all("pip install" in finding.remedy for finding in found.values())


def test_it_runs_without_writing_anything(tmp_path):
    """In an empty folder with an empty home, by a fresh interpreter, with a closed standard input."""
    path = os.pathsep.join(sys.path)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    code = "from viakit import doctor; print(doctor.to_json(doctor.examine()))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["findings"]
    assert list(tmp_path.iterdir()) == []


def test_a_page_for_a_class():
    good = [doctor.Finding(name, True, "") for name in ("viakit's compiled extension", "network namespaces")]
    good += [doctor.Finding(name, True, "") for name in ("veth interfaces", "raw sockets", "cores", "notebooks")]
    page = class_page(good)
    assert "Nothing is missing." in page
    assert " no " not in page
    assert page.splitlines()[0].endswith(f": all {N_LESSONS} lessons are ready")
    rows = re.findall(r"^([\d, ]+) yes", page, re.MULTILINE)
    named = sorted(int(one) for row in rows for one in row.split(","))
    assert named == list(range(N_LESSONS)), "each lesson stands once on the page"
    one = doctor.Finding(
        "network namespaces", False, "refused", "", "sysctl -w kernel.unprivileged_userns_clone=1 " * 3
    )
    page = class_page([*good[:1], one, *good[2:]])
    assert "measure on this host, without a wire" in page
    ready = ", ".join(str(one) for one in range(N_LESSONS) if one not in (1, 3, 5, 8, 11))
    assert page.splitlines()[0].endswith(f": ready {ready}; see below 1, 3, 5, 8, 11")
    without = doctor.Finding("notebooks", None, "not installed: jupytext", "", "pip install")
    no_lab = class_page([*good[:-1], without])
    assert "ready none" in no_lab
    assert no_lab.count("do not run (notebooks)") == 4
    assert "sysctl" in page
    assert max(map(len, f"{page}\n{no_lab}".splitlines())) <= 79
