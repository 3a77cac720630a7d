"""Remote-start agent for MPI launchers: the substitute for ssh on the hosts of a testbed."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from viakit.launch import LaunchError

if TYPE_CHECKING:
    from viakit.launch.mpi_library import Library
    from viakit.testbed import Testbed

__all__ = ["Agent", "mpi_agent"]

# Options of ssh, which launchers often give, are ignored. A host's user namespace is entered only from outside, because
# all hosts of a testbed share one.
_SCRIPT = """#!/bin/sh
# {path} HOST COMMAND...: runs a command on a host of the testbed of process {parent}
while [ $# -gt 0 ]; do case $1 in -*) shift ;; *) break ;; esac; done
pid=$(cat "{folder}/$1") || {{ echo "agent: no host $1 in this testbed" >&2; exit 255; }}
shift
user=
[ "$(readlink /proc/$pid/ns/user)" = "$(readlink /proc/self/ns/user)" ] || user="-U --preserve-credentials"
export VIAKIT_NETWORK=eth:eth0
exec nsenter -t "$pid" $user -n -u -- sh -c "$*"
"""


@dataclass(frozen=True)
class Agent:
    """Access to a testbed's hosts for ``mpiexec``; made by :func:`mpi_agent`.

    Attributes
    ----------
    path : str
        A program that is called like ssh: ``PATH HOST COMMAND...``.
    addresses : list of str
        Addresses of the hosts, which serve as their names.
    """

    path: str
    addresses: list[str]

    def command(self, library: Library, ranks_per_host: int, program: list[str]) -> list[str]:
        """Return the command that starts `ranks_per_host` ranks of `program` on each host, the launcher on the first.

        Parameters
        ----------
        library : viakit.launch.mpi_library.Library
            The MPI whose ``mpiexec`` is used: MPICH or Open MPI.
        ranks_per_host : int
        program : list of str
            A program and its arguments.
        """
        n = str(ranks_per_host * len(self.addresses))
        if library.flavour == "mpich":
            flags = ["-launcher", "ssh", "-launcher-exec", self.path, "-hosts", ",".join(self.addresses)]
            flags += ["-ppn", str(ranks_per_host), "-n", n]
        else:
            flags = ["--host", ",".join(f"{address}:{ranks_per_host}" for address in self.addresses)]
            flags += ["--prtemca", "plm_ssh_agent", self.path, "--prtemca", "prte_if_include", "eth0"]
            flags += ["--map-by", f"ppr:{ranks_per_host}:node:OVERSUBSCRIBE", "--bind-to", "none"]
            flags += ["--allow-run-as-root", "-n", n]  # a host's user namespace names its user root
        return [self.path, self.addresses[0], shlex.join([library.mpiexec, *flags, *program])]


@contextlib.contextmanager
def mpi_agent(testbed: Testbed) -> Iterator[Agent]:
    """Make an agent for an open testbed. It is removed at the end of the context.

    ::

        with Testbed(hosts=2) as testbed, mpi_agent(testbed) as agent:
            subprocess.run(agent.command(mpi.find("mpi:mpich"), 2, ["python", "prog.py"]))

    Raises
    ------
    LaunchError
        If ``nsenter`` (package util-linux) is missing.
    """
    if shutil.which("nsenter") is None:
        raise LaunchError("mpirun on hosts of a testbed needs nsenter: sudo apt-get install util-linux")
    with tempfile.TemporaryDirectory(prefix="viakit-agent-") as folder:
        for host in testbed.hosts:
            Path(folder, host.address).write_text(str(host.pid), encoding="ascii")
        path = Path(folder, "agent")
        path.write_text(_SCRIPT.format(path=path, folder=folder, parent=os.getpid()), encoding="utf-8")
        path.chmod(0o700)
        yield Agent(str(path), [host.address for host in testbed.hosts])
