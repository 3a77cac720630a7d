"""A protocol names its policy: in sweeps, barriers, collectives, applications, and in the pictures of all of them."""

import json

import click.testing
import pytest

from viakit import _core
from viakit.apps import jobs
from viakit.cli import cli
from viakit.launch.options import Options
from viakit.launch.policy import of_channel, split
from viakit.measure import barrier, collectives, comparison, endpoints, plan, plot, report, result, sweep, table
from viakit.measure.look import look

NAMES = ["tcp", "msg-tcp:mpich-p4", "msg-tcp:lam-c2c", "msg-via:mvich-rput", "msg-tcp:tcp,eager_limit=1K"]


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("tcp", ("tcp", None)),
        ("msg-tcp", ("tcp", None)),
        ("mpi:openmpi", ("mpi:openmpi", None)),
        ("tcp:mpich-p4", ("tcp", "mpich-p4")),
        ("msg-tcp:mpich-p4", ("tcp", "mpich-p4")),
        ("mpich-p4", ("tcp", "mpich-p4")),
        ("mvich-rput,credits=8", ("via", "mvich-rput,credits=8")),
        ("via:credits=8", ("via", "via,credits=8")),
        ("pigeons", ("pigeons", None)),
    ],
)
def test_the_protocol_and_policy_of_a_name(name, found):
    assert split(name) == found


@pytest.mark.parametrize("name", ["tcp:pigeons", "tcp:", "tcp:mvich-rput"])
def test_a_wrong_policy_lists_those_of_its_protocol(name):
    with pytest.raises(ValueError, match=r"expected one of the policies for tcp: .*mpich-p4.*tcgmsg") as caught:
        split(name)
    assert "mvich" not in str(caught.value).partition("expected")[2]
    with pytest.raises(endpoints.UnknownProtocol, match="policies for tcp"):
        endpoints.lookup(f"msg-{name}")


def test_a_wrong_field_is_reported():
    with pytest.raises(endpoints.UnknownProtocol, match="no field 'feathers'"):
        endpoints.lookup("msg-tcp:mpich-p4,feathers=2")
    with pytest.raises(ValueError, match=r"pigeons.*expected one of via.*or a policy such as mpich-p4"):
        jobs.with_policy("pigeons")


def test_policies_differ_in_colour_and_title():
    names = [f"msg-{_core.policy_channel(name)}:{name}" for name in _core.policies()]
    found = [endpoints.lookup(name) for name in names]
    looks_of = [look(one.name) for one in found]
    assert len({(one.colour, one.dash) for one in looks_of}) == len(names)
    assert endpoints.known("msg-tcp:pigeons") is None
    assert endpoints.lookup("msg-tcp:mpich-p4").title == "messages over TCP as mpich-p4"
    assert endpoints.lookup("msg-tcp:mpich-p4").base == "msg-tcp"
    assert {name for name in _core.policies() if name in of_channel("via")} >= {"via", "mvich-rput"}


def test_a_machine_takes_policies_of_the_channels_that_it_has():
    giganet, gigabit = "pentium3-650-giganet", "pentium4-1800-ga620"
    for name, machine in ("msg-via:mvich-rput", giganet), ("msg-tcp:mpich-p4", gigabit):
        assert [one.name for one in plan.plan(plan.Config([name], [8], machine=machine))[0]] == [name]
    with pytest.raises(plan.UsageError, match=rf"{giganet} has no section \[tcp\]"):
        plan.plan(plan.Config(["msg-tcp:mpich-p4"], [8], machine=giganet))


def test_one_sweep_has_several_policies(tmp_path):
    config = sweep.Config(NAMES, [8, 200_000], hosts="local", seconds=1.0, validate=True)
    document = sweep.run(config).document
    result.validate(document)
    policies = {one["protocol"]: one["info"].get("policy") for one in document["series"] if one["protocol"] != "floor"}
    assert list(policies) == NAMES
    assert list(policies.values())[1:] == ["mpich-p4", "lam-c2c", "mvich-rput", "tcp"]
    drawn = plot.curves([document])
    assert [one["label"] for one in drawn] == NAMES
    assert len({(one["look"].colour, one["look"].dash) for one in drawn}) == len(NAMES)
    shown = click.testing.CliRunner()
    result.save(document, tmp_path / "a.json")
    said = shown.invoke(cli, ["show", str(tmp_path / "a.json")], prog_name="viakit")
    assert said.exit_code == 0, said.output
    assert all(name in said.output for name in NAMES)
    assert len(comparison.compare(document, document)) == 2 * len(NAMES)
    assert "msg-tcp:lam-c2c" in report.html(document)
    assert len(table.groups(document)[0]) == len(NAMES)


def test_barriers_and_collectives_have_several_protocols():
    both = "via,tcp:mpich-p4,socket_buffer=64K"
    document = barrier.measure([2], algorithms=["message"], protocol=both, with_mpi=False, seconds=0.2)
    result.validate(document)
    assert [(one["protocol"], one["link"]) for one in document["series"] if one["algorithm"] == "message"] == [
        ("via", "shm"),
        ("tcp:mpich-p4,socket_buffer=64K", "ip"),
    ]
    document = collectives.measure(["bcast"], ranks=[2], sizes=[8], protocol=both, with_mpi=False, seconds=0.2)
    assert {one["protocol"] for one in document["series"]} == {"via", "tcp:mpich-p4,socket_buffer=64K"}
    assert collectives.figure([document]) is not None
    for wrong, words in (
        ("via,via", "each at most once"),
        ("pigeons", "also with a policy"),
        ("tcp:pigeons", "for tcp"),
    ):
        with pytest.raises(ValueError, match=words):
            barrier.measure([2], protocol=wrong)


def test_an_application_names_its_policy(tmp_path):
    out = tmp_path / "ep.json"
    words = ["app", "ep", "-n", "2", "--class", "S", "--protocol", "tcp:mpich-p4", "--json", str(out), "--quiet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIAKIT_POLICY", "tcp")  # restored afterwards: the command sets it for its own process
        done = click.testing.CliRunner().invoke(cli, words, prog_name="viakit")
        assert done.exit_code == 0, done.output
    assert json.loads(out.read_text())["series"][0]["protocol"] == "tcp:mpich-p4"


def test_a_job_takes_a_name_with_a_policy():
    made = Options(2, protocol="tcp:mpich-p4")
    assert (made.protocol, made.policy) == ("tcp", "mpich-p4")
    made.check()
    assert Options(2, protocol="mpi:mpich").protocol == "mpi:mpich"
    with pytest.raises(ValueError, match="policies for tcp"):
        Options(2, protocol="tcp:pigeons")


def test_speedups_of_policies(tmp_path):
    out = tmp_path / "speedup.json"
    words = ["speedup", "ep", "--quick", "--rounds", "1", "--ranks", "2", "--protocols", "tcp:mpich-p4,via"]
    done = click.testing.CliRunner().invoke(cli, [*words, "--json", str(out), "-q"], prog_name="viakit")
    assert done.exit_code == 0, done.output
    assert {one["protocol"] for one in json.loads(out.read_text())["series"]} == {"serial", "tcp:mpich-p4", "via"}
