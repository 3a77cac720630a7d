"""PVM itself as a protocol of a sweep. The tests that all protocols have in common are in test_pairs.py."""

from __future__ import annotations

import needs
import pytest
import waiting
from daemon_cases import daemons, datagrams, folders_of, kill_a_side, kill_on_ssh
from ssh_hosts import ssh_hosts

from viakit.measure import plan
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair
from viakit.measure.sides_pvm import _SLAVE
from viakit.remote import Remote
from viakit.testbed import Testbed


@pytest.fixture
def bed():
    needs.tool("pvm")
    with Testbed() as found:
        yield found


def test_routes_are_those_of_pvm(bed):
    """The daemons exchange datagrams, the tasks that have a direct route do not."""
    moved = {}
    for protocol in ("pvm3", "pvm3:direct", "pvm3:inplace"):
        with Pair(protocol, testbed=bed, wait="block") as pair:
            assert pair.info["library"].startswith("PVM 3.")
            pair.run(1000, count=5, validate=True)
            before = datagrams(bed)
            pair.run(1000, count=50, validate=True)
            moved[protocol] = datagrams(bed) - before
    assert moved["pvm3"] > 50
    assert moved["pvm3:direct"] < 20
    assert moved["pvm3:inplace"] < 20


def test_nothing_is_left(bed):
    with Pair("pvm3", testbed=bed, wait="block") as pair:
        pair.run(64, count=3)
        folders = folders_of(pair, bed.hosts)
        assert len(folders) == 2
        assert len(daemons("pvmd", folders)) >= 2  # one more while a host is added
    waiting.until(lambda: not daemons("pvmd", folders), "no daemon is left", 10)
    assert not any(one.exists() for one in folders)


def test_a_side_that_is_killed(bed):
    kill_a_side("pvm3:direct", bed)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("killed", ["worker", "agent"])
def test_what_is_killed_on_a_host_of_ssh_leaves_no_daemon(tmp_path, killed, side):
    """Its folder is removed, too, although no other measurement follows on that host."""
    needs.tool("pvm")
    with ssh_hosts(tmp_path), Remote("ssh:h0,h1") as remote:
        kill_on_ssh("pvm3", remote, killed, side, command="pvmd")


def test_what_it_cannot_do():
    with pytest.raises(MeasureError, match=r"one daemon on each host\. Remedy: --hosts testbed"):
        Pair("pvm3")
    assert plan.plan(plan.Config(["pvm3"], [8]))[1], "hosts auto is the testbed"
    with pytest.raises(plan.UsageError, match="stream"):
        plan.plan(plan.Config(["pvm3"], [8], mode="stream"))


def test_without_pvm(monkeypatch):
    monkeypatch.setattr("viakit.measure.sides_pvm._ROOTS", ("/nowhere",))
    monkeypatch.delenv("PVM_ROOT", raising=False)
    from viakit.measure.sides_pvm import PvmSide

    request = {"protocol": "pvm3", "side": 0, "wait": "poll", "level": "c", "secret": "00" * 32}
    with pytest.raises(MeasureError, match=r"there is no pvmd in /nowhere\. Remedy: sudo apt-get install pvm"):
        PvmSide(request).open()


@pytest.mark.parametrize(
    ("command", "accepted"),
    [
        ("pvmd -s -d0x0 -n10.77.0.2 1 0a4d0001:dea6 4080 2 0a4d0002:0000", True),
        ("/usr/lib/pvm3/lib/pvmd -s -d0x0 -n10.77.0.2 1 0a4d0001:dea6 4080 2 0a4d0002:0000", True),
        ("pvmd -s -d0x0 -n10.77.0.2 1 0a4d0001:dea6 4080 2 0a4d0002:0000; id", False),
        ("echo YES", False),
        ("", False),
    ],
)
def test_only_the_command_of_a_daemon_is_executed(command, accepted):
    assert bool(_SLAVE.fullmatch(command)) == accepted
