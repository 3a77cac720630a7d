"""Daemons and folders of LAM and PVM, datagrams on a testbed, and two cases of a side that is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import waiting

from viakit.base.marks import marked
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair
from viakit.remote import Remote, RemoteError
from viakit.testbed import Host, Testbed

# Variable in the environment of each daemon, whose value is its folder.
VARIABLES = {"pvmd": "PVM_TMP", "lamd": "LAM_MPI_SESSION_PREFIX"}


def folders_of(pair: Pair, hosts: list[Host]) -> set[Path]:
    """Return the folders that a pair's workers keep open. Tests that run beside have folders of their own in /tmp."""
    found: set[str] = set()
    for host, pid in zip(hosts, pair.pids, strict=True):  # its number on that host
        found |= set(host.run(["sh", "-c", f"readlink /proc/{pid}/fd/*"]).stdout.splitlines())
    return {Path(one) for one in found if one.startswith("/tmp/viakit-host-")}


def daemons(command: str, folders: set[Path]) -> list[int]:
    """Return the numbers of the running daemons with these folders."""
    found = [pid for folder in folders for pid in marked(VARIABLES[command], str(folder))]
    return [pid for pid in found if _name(pid) == command]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""  # it has ended


def datagrams(bed: Testbed) -> int:
    """Return the number of UDP datagrams that the first host has sent."""
    lines = bed.hosts[0].run(["cat", "/proc/net/snmp"]).stdout.splitlines()
    names, values = (line.split() for line in lines if line.startswith("Udp:"))
    return int(values[names.index("OutDatagrams")])


def kill_a_side(protocol: str, bed: Testbed) -> None:
    """Kill the second side of a pair: its run ends with the reason. The next pair removes what that side has left."""
    with Pair(protocol, testbed=bed, wait="block") as pair:
        killed = bed.hosts[1].run(["kill", "-KILL", str(pair.pids[1])])  # its number on that host
        assert killed.returncode == 0, killed.stderr
        with pytest.raises(MeasureError) as caught:
            pair.run(64, count=3)
        assert caught.value.reason == "gone"
    with Pair(protocol, testbed=bed, wait="block") as pair:
        pair.run(64, count=3, validate=True)


def kill_on_ssh(protocol: str, remote: Remote, killed: str, side: int, *, command: str) -> None:
    """Kill the worker or the agent of one side on a host of ssh: its daemon and its folder go as well."""
    variable = VARIABLES[command]
    with Pair(protocol, testbed=remote, wait="block") as pair:
        pair.run(64, count=3)
        both = [_open_folder(pid) for pid in pair.pids]
        folder, worker = both[side], Path(f"/proc/{pair.pids[side]}")
        assert marked(variable, str(folder))
        agent = int((worker / "stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent if killed == "agent" else pair.pids[side], signal.SIGKILL)
        waiting.until(lambda: not marked(variable, str(folder)), "no daemon is left", 30)
        waiting.until(lambda: not folder.exists(), "its folder is removed", 30)
        with pytest.raises((MeasureError, RemoteError)):
            pair.run(64, count=3)
    waiting.until(lambda: not daemons(command, set(both)), "no daemon is left", 10)
    waiting.until(lambda: not any(one.exists() for one in both), "no folder is left", 10)


def _open_folder(pid: int) -> Path:
    """Return the folder that a worker on a host of ssh keeps open."""
    (found,) = {os.readlink(fd) for fd in Path(f"/proc/{pid}/fd").iterdir() if "viakit-host-" in os.readlink(fd)}
    return Path(found)
