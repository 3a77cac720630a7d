"""A cluster under Slurm, for tests: Debian's slurmctld, slurmd and munge on the hosts of a testbed.

The hosts share a kernel, its files and their user. Therefore each has a configuration, a munge socket and a folder for
PMIx of its own. All daemons end with their host.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import needs
import pytest
from waiting import until

from viakit.testbed import Host, Testbed

LIMIT_S = 100.0
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
_PMIX = "pmix2/lib/libpmix.so"  # below the folder of libraries; Slurm's plugin loads it by this name
# The time limits are those of a machine that has stalled: only SIGTERM ends the ranks of a job.
_CONFIGURATION = """
ClusterName=viakit
SlurmctldHost={first.name}({first.address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/{name}/munge.socket
CredType=cred/munge
DebugFlags=NO_CONF_HASH
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=60
MessageTimeout=90
TCPTimeout=60
BatchStartTimeout=100
SlurmdTimeout=300
UnkillableStepTimeout=100
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """Hosts under Slurm; commands run on the first one, in `folder`."""

    testbed: Testbed
    folder: Path
    environment: dict[str, str]

    def run(self, *command: object, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        words = [str(word) for word in command]
        host = self.testbed.hosts[0]
        return host.run(words, timeout=LIMIT_S, cwd=self.folder, env={**os.environ, **self.environment, **environment})

    def submit(self, *words: object, **environment: str) -> int:
        """Submit a batch job, and return its number."""
        done = self.run("sbatch", "--parsable", *words, **environment)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def states(self, job: int) -> set[str]:
        """Return the states of a job and, if it is an array, of its tasks."""
        done = self.run("scontrol", "show", "job", job)
        assert done.returncode == 0, done.stderr
        return {word.partition("=")[2] for word in done.stdout.split() if word.startswith("JobState=")}

    def wait(self, job: int, state: str) -> None:
        """Wait for the end of a job, and check that this was its state then."""
        deadline = time.monotonic() + LIMIT_S
        while (states := self.states(job)) & {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING"}:
            assert time.monotonic() < deadline, self.about(job)
            time.sleep(0.1)  # between two checks of the condition, not instead of one
        assert states == {state}, self.about(job)

    def about(self, job: int) -> str:
        """Return Slurm's record of a job, the output of all jobs, and the logs."""
        return "\n".join([self.run("scontrol", "show", "job", job).stdout, self.outputs(), self.logs()])

    def outputs(self) -> str:
        """Return the output of the jobs, each after the name of its file."""
        found = sorted(self.folder.glob("*.out"))
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')}" for path in found)

    def logs(self) -> str:
        """Return the last lines of the daemons' logs."""
        found = [*self.folder.rglob("*.log")]
        return "\n".join(f"{path.name}: " + path.read_text(errors="replace")[-2000:] for path in found)


def tool(name: str, package: str) -> str:
    """Return the path of a daemon or command of Slurm or munge."""
    path = shutil.which(name, path=_PATH)
    if path is None:
        pytest.skip(f"missing package {package}: sudo apt-get install {package}")
    return path


def needs_pmix() -> None:
    """Skip a test whose ranks are started by PMIx, if Slurm's plugin finds no PMIx."""
    if not list(Path("/usr/lib").glob(f"*/{_PMIX}")):
        pytest.skip("missing package libpmix-dev: sudo apt-get install libpmix-dev")


@contextlib.contextmanager
def cluster(folder: Path, n: int = 2) -> Iterator[Cluster]:
    """Start Slurm on *n* hosts h0, h1, ..., and end it."""
    slurmctld, slurmd, munged = tool("slurmctld", "slurmctld"), tool("slurmd", "slurmd"), tool("munged", "munge")
    tool("srun", "slurm-client")
    if os.geteuid() != 0:
        pytest.skip("slurmd starts jobs as their users, which only root can do: run this test as root")
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "state").mkdir()
    (folder / "work").mkdir()
    with contextlib.ExitStack() as stack:
        testbed = stack.enter_context(needs.hosts(n))
        log = stack.enter_context(open(folder / "daemons.log", "wb"))

        def start(host: Host, *words: str) -> None:
            process = stack.enter_context(host.popen(words, stdout=log, stderr=log, cwd=folder))
            stack.callback(process.kill)

        for host in testbed.hosts:
            _configure(folder, host.name, testbed)
            own = folder / host.name
            words = [munged, "--foreground", "--force", "--num-threads=2", f"--key-file={folder}/munge.key"]
            words += [f"--{name}-file={own}/munge.{name}" for name in ("pid", "log", "seed")]
            start(host, *words, f"--socket={own}/munge.socket")
            until((own / "munge.socket").exists, "munge's socket", LIMIT_S)
        conf = [f"-f{folder}/{host.name}/slurm.conf" for host in testbed.hosts]
        start(testbed.hosts[0], slurmctld, "-D", conf[0])
        for host, option in zip(testbed.hosts, conf, strict=True):
            start(host, slurmd, "-D", "-N", host.name, option)
        found = Cluster(testbed, folder / "work", {"SLURM_CONF": conf[0][2:]})
        until(
            lambda: found.run("sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() == str(n), "idle nodes", LIMIT_S
        )
        yield found


def _configure(folder: Path, name: str, testbed: Testbed) -> None:
    """Write the configuration of a host."""
    (folder / name / "spool").mkdir(parents=True)
    nodes = "\n".join(f"NodeName={host.name} NodeAddr={host.address} CPUs=16" for host in testbed.hosts)
    text = _CONFIGURATION.format(first=testbed.hosts[0], folder=folder, name=name, nodes=nodes)
    (folder / name / "slurm.conf").write_text(text)
    (folder / name / "mpi.conf").write_text(f"PMIxCliTmpDirBase={folder}/{name}\n")
