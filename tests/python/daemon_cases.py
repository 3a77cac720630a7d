"""Daemons and folders of LAM and PVM, datagrams on a testbed, and two cases of a side that is killed."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import waiting

from viakit.base.marks import marked
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair
from viakit.remote import Remote, RemoteError
from viakit.testbed import Testbed


def daemons(command: str) -> set[str]:
    """Return the numbers of the running processes of this command."""
    found = subprocess.run(["pgrep", "-x", command], capture_output=True, text=True, check=False)
    return set(found.stdout.split())


def folders() -> set[Path]:
    """Return the folders of daemons that exist."""
    return set(Path("/tmp").glob("viakit-host-*"))


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


def kill_on_ssh(protocol: str, remote: Remote, killed: str, side: int, *, variable: str, command: str) -> None:
    """Kill the worker or the agent of one side on a host of ssh: its daemon and its folder go as well.

    *variable* is the variable of the environment by which the daemon's processes are found, *command* their name.
    """
    before = daemons(command), folders()
    with Pair(protocol, testbed=remote, wait="block") as pair:
        pair.run(64, count=3)
        worker = Path(f"/proc/{pair.pids[side]}")
        (folder,) = {Path(os.readlink(fd)) for fd in (worker / "fd").iterdir()} & folders()
        assert marked(variable, str(folder))
        agent = int((worker / "stat").read_text().rpartition(")")[2].split()[1])
        os.kill(agent if killed == "agent" else pair.pids[side], signal.SIGKILL)
        waiting.until(lambda: not marked(variable, str(folder)), "no daemon is left", 30)
        waiting.until(lambda: not folder.exists(), "its folder is removed", 30)
        with pytest.raises((MeasureError, RemoteError)):
            pair.run(64, count=3)
    waiting.until(lambda: daemons(command) <= before[0], "no daemon is left", 10)
    waiting.until(lambda: folders() <= before[1], "no folder is left", 10)
