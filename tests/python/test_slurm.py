"""Jobs under Slurm: srun, the batch script of docs/running.md, arrays, and jobs that are cancelled or run out of time.

Each is run over VIA on UDP, over VIA on raw Ethernet, and over an MPI.
"""

import json
import os
import secrets
import sys
from pathlib import Path

import leftovers
import needs
import pytest
from slurm_hosts import LIMIT_S, Cluster, cluster, needs_pmix
from waiting import until

SCRIPT = Path(__file__).resolve().parents[2] / "docs" / "snippets" / "running-slurm.sh"
PROGRAM = """
import os, socket, sys, time
import viakit
from viakit.launch import bootstrap
comm = viakit.world()
hosts = sorted(set(comm.allgather(socket.gethostname())))
total = comm.allreduce(comm.rank)
if comm.rank == 0:
    over = bootstrap().network_device if os.environ.get("VIAKIT_PROTOCOL") != "mpi" else type(comm).__module__
    print("RESULT", over, comm.size, *hosts, total, flush=True)
if "receive" in sys.argv:
    comm.recv(source=(comm.rank + 1) % comm.size)
if "sleep" in sys.argv:
    time.sleep(1000)
"""
pytestmark = pytest.mark.timeout(400)  # a machine that stalls; LIMIT_S bounds each wait
# The hosts share a kernel, so either MPI would assume shared memory between them. These settings select TCP. The hosts
# also share /dev/shm, but number their processes themselves. There the names of MPICH's segments for the ranks of one
# host may be equal on two hosts: MPICH treats each rank as alone on its host.
MPI = {
    "mpich": {"SLURM_MPI_TYPE": "pmi2", "UCX_TLS": "tcp,self", "MPIR_CVAR_NOLOCAL": "1"},
    "openmpi": {"SLURM_MPI_TYPE": "pmix", "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self"},
}
WAYS = {
    "udp": ({}, "udp:10.77.0.1"),
    "eth": ({"VIAKIT_NETWORK": "eth:eth0"}, "eth:eth0"),
    "mpich": ({"VIAKIT_PROTOCOL": "mpi", **MPI["mpich"]}, "mpi4py.MPI"),
    "openmpi": ({"VIAKIT_PROTOCOL": "mpi", **MPI["openmpi"]}, "mpi4py.MPI"),
}
# Ranks of MPICH that are killed leave its segments in the /dev/shm that all hosts and tests share.
THREE = ("udp", "eth", "openmpi")


def environment_of(way: str) -> dict[str, str]:
    """Return the variables of one of WAYS, or skip the test if its MPI is missing."""
    found = dict(WAYS[way][0])
    if way == "openmpi":
        needs_pmix()
    if way in MPI:
        found["MPI4PY_LIBMPI"] = needs.mpi_library(f"mpi:{way}").libmpi
    return found


def result(way: str, ranks: int) -> str:
    """Return what rank 0 prints."""
    return f"RESULT {WAYS[way][1]} {ranks} h0 h1 {ranks * (ranks - 1) // 2}\n"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with cluster(tmp_path_factory.mktemp("slurm")) as found:
        found.environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        (found.folder / "prog.py").write_text(PROGRAM)
        (found.folder / "script.sh").write_text(SCRIPT.read_text(encoding="utf-8"))
        for word in ("receive", "sleep"):
            text = SCRIPT.read_text(encoding="utf-8").replace("python prog.py", f"python prog.py {word}")
            (found.folder / f"{word}.sh").write_text(text)
        yield found


class Jobs:
    """Jobs of two ranks that do not end, one for each of THREE, and what they could leave."""

    def __init__(self, slurm: Cluster, word: str) -> None:
        self.slurm, self.word = slurm, word
        self.before = self._sockets()  # those of other jobs
        self.segments: set[Path] = set()  # of Open MPI, which a job that Slurm ends leaves in /dev/shm
        self.mark = secrets.token_hex(16)
        self.scratch = slurm.folder / f"scratch-{word}"
        self.scratch.mkdir()
        self.numbers = {}
        for way in THREE:
            environment = {**environment_of(way), "VIAKIT_TEST_MARK": self.mark, "TMPDIR": str(self.scratch)}
            words = ("--ntasks-per-node=1", f"--job-name={word}-{way}", f"{word}.sh")
            self.numbers[way] = slurm.submit(*words, **environment)

    def wait_until_running(self) -> None:
        """Wait until rank 0 of each job has printed its result."""
        for way, number in self.numbers.items():
            path = self.slurm.folder / f"{self.word}-{way}-{number}.out"
            until(lambda path=path: path.exists() and "\n" in path.read_text(), f"{path.name} from rank 0", LIMIT_S)
            assert path.read_text().startswith(result(way, 2)), path.read_text()
        assert len(self._processes()) >= 2 * len(self.numbers)
        assert self._sockets() - self.before
        self.segments = leftovers.segments(self._mark())

    def _mark(self) -> bytes:
        return f"VIAKIT_TEST_MARK={self.mark}".encode()

    def _sockets(self) -> set[str]:
        """Return viakit's Unix sockets on all hosts, each as its number and name."""
        lists = [host.run(["cat", "/proc/net/unix"]).stdout for host in self.slurm.testbed.hosts]
        return {line.split()[6] + line.split()[7] for text in lists for line in text.splitlines() if "viakit" in line}

    def _processes(self) -> dict[int, str]:
        return leftovers.marked(self._mark())

    def check_end(self, state: str) -> None:
        """Wait for the end of the jobs; check their state, and that nothing is left of them."""
        for number in self.numbers.values():
            self.slurm.wait(number, state)
        until(lambda: not self._processes(), "no process is left", LIMIT_S)
        for path in self.segments:
            path.unlink(missing_ok=True)
        assert not list(self.scratch.iterdir())
        until(lambda: self._sockets() <= self.before, "no socket is left", LIMIT_S)


@pytest.fixture(scope="module", autouse=True)
def sleeping(slurm):
    """Jobs that are to run out of time: Slurm checks this every 30 s, and meanwhile other tests run."""
    jobs = Jobs(slurm, "sleep")
    jobs.wait_until_running()
    for number in jobs.numbers.values():
        done = slurm.run("scontrol", "update", f"jobid={number}", "EndTime=now+1")
        assert done.returncode == 0, done.stderr
    return jobs


# ---- srun


@pytest.mark.parametrize("way", WAYS)
def test_srun(slurm, way):
    secret = {} if way in MPI else {"VIAKIT_SECRET": secrets.token_hex(32)}
    done = slurm.run("srun", "-K", "-N2", "-n4", "python", "prog.py", **environment_of(way), **secret)
    assert done.returncode == 0, done.stderr
    assert done.stdout == result(way, 4)


def test_srun_with_a_network_in_common(slurm):
    secret = {"VIAKIT_SECRET": secrets.token_hex(32), "VIAKIT_NETWORK": "udp:10.77.0.0/24"}
    done = slurm.run("srun", "-N2", "-n2", "python", "prog.py", **secret)
    assert done.returncode == 0, done.stderr
    assert done.stdout == result("udp", 2)


@pytest.mark.parametrize("variables", [{"VIAKIT_BOOTSTRAP": "pmi"}, {"UCX_TLS": "tcp,self"}], ids=["pmi", "mpi4py"])
def test_srun_gives_the_ranks_a_secret_by_pmi(slurm, variables):
    needs.mpi_library("mpi:mpich")
    done = slurm.run("srun", "--mpi=pmi2", "-N2", "-n2", "python", "prog.py", **variables)
    assert done.returncode == 0, done.stderr
    assert done.stdout == result("udp", 2)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "have no secret by which they recognise each other"),
        ({"VIAKIT_PROTOCOL": "mpi"}, "srun has started 2: this MPI was not started by srun; srun --mpi=pmi2"),
        (
            {"VIAKIT_SECRET": "ab" * 32, "VIAKIT_NETWORK": "udp:10.1.0.0/16"},
            "h1 has no address in it; it has 127.0.0.1",
        ),
    ],
    ids=["no secret", "no MPI", "no such network"],
)
def test_srun_without_what_it_needs(slurm, variables, says):
    done = slurm.run("srun", "-N2", "-n2", "python", "prog.py", **variables)
    assert done.returncode == 1
    assert says in done.stderr


@pytest.mark.parametrize("flavour", MPI)
def test_mpirun_in_an_allocation(slurm, flavour):
    library = needs.mpi_library(f"mpi:{flavour}")
    command = library.command(["python", "prog.py"], 2)
    extra = {**library.environment(str(slurm.folder)), **MPI[flavour]}
    words = ["salloc", "-Q", "-N2", "--ntasks-per-node=1", *command]
    done = slurm.run(*words, **extra)
    assert done.returncode == 0, done.stderr
    assert done.stdout == result("udp", 2)


# ---- viakit's commands as jobs: --hosts job


def test_sweep_measures_between_the_nodes_of_the_job(slurm):
    words = ["viakit", "sweep", "via-udp", "tcp", "--sizes", "64", "--seconds", "1", "--json", "sweep.json", "-q"]
    done = slurm.run("srun", "-N2", "-n2", *words, VIAKIT_SECRET=secrets.token_hex(32))
    assert done.returncode == 0, done.stderr
    document = json.loads((slurm.folder / "sweep.json").read_text())
    assert [one["protocol"] for one in document["series"]] == ["via-udp", "tcp"]
    assert [one["environment"]["host"] for one in document["environment"]["hosts"]] == ["h0", "h1"]


def test_run_starts_as_many_ranks_as_the_step_has(slurm):
    done = slurm.run("srun", "--mpi=pmi2", "-N2", "-n4", "viakit", "run", "prog.py", VIAKIT_BOOTSTRAP="pmi")
    assert done.returncode == 0, done.stderr
    assert done.stdout == result("udp", 4)


# ---- batch jobs


@pytest.mark.parametrize("way", WAYS)
def test_batch_script(slurm, way):
    number = slurm.submit(f"--job-name={way}", "script.sh", **environment_of(way))
    slurm.wait(number, "COMPLETED")
    assert (slurm.folder / f"{way}-{number}.out").read_text() == result(way, 4), slurm.about(number)


def test_batch_script_itself_is_no_rank(slurm):
    # Without a list of nodes Slurm takes h1 while the job before this one still completes on h0.
    number = slurm.submit("-n2", "--nodelist=h0", "--output=alone.out", "--wrap", "python prog.py")
    slurm.wait(number, "COMPLETED")
    assert (slurm.folder / "alone.out").read_text() == "RESULT None 1 h0 0\n", slurm.about(number)


def test_arrays(slurm):
    """Tasks of an array run at the same time, on the same hosts, and have the same program."""
    numbers = {}
    for way in THREE:
        words = ("--array=0-1", "--ntasks-per-node=1", f"--output=array-{way}-%a.out", "script.sh")
        numbers[way] = slurm.submit(*words, **environment_of(way))
    for way, number in numbers.items():
        slurm.wait(number, "COMPLETED")
        for task in (0, 1):
            assert (slurm.folder / f"array-{way}-{task}.out").read_text() == result(way, 2), slurm.about(number)


def test_cancelled_jobs_leave_nothing(slurm):
    jobs = Jobs(slurm, "receive")
    jobs.wait_until_running()
    done = slurm.run("scancel", *jobs.numbers.values())
    assert done.returncode == 0, done.stderr
    jobs.check_end("CANCELLED")


def test_jobs_out_of_time_leave_nothing(slurm, sleeping):
    sleeping.check_end("TIMEOUT")
