"""Run programs that use mpi4py, unchanged, on viakit and on Open MPI, and compare what they print.

    make mpi4py-programs
    make mpi4py-programs ARGS='--only dask,ref --protocol tcp'

The programs are mpi4py's own demos, from its source distribution, and three packages of PyPI: emcee on schwimmbad's
pool, mpipool, and dask-mpi. The packages are installed in build/mpi4py/packages, not in the environment. The few lines
that drive them are in tools/programs. On viakit each runs by `viakit run --as-mpi4py`.

Exit status: 0 if every program that ends with status 0 on Open MPI does so on viakit, with the same lines.
"""

import argparse
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mpi4py_suite as suite

PROGRAMS = Path(__file__).resolve().parent / "programs"
PACKAGES = suite.BUILD / "packages"
# They require mpi4py or NumPy, which the environment has.
WITHOUT_DEPENDENCIES = ("schwimmbad", "emcee", "mpipool", "errr", "dask-mpi")
WITH_DEPENDENCIES = ("dask", "distributed", "dill", "tblib", "multiprocess")


@dataclass(frozen=True)
class Program:
    """A program: its name, file, number of ranks, and whether its lines are the same in each run."""

    name: str
    path: Path
    ranks: int
    exact: bool = True


def programs(only: str) -> list[Program]:
    """Return the programs, or those whose names contain one of the words of the option --only."""
    demo = suite.SUITE / "demo"
    found = [Program(f"ref-{path.stem[3:]}", path, 4) for path in sorted((demo / "mpi-ref-v1").glob("ex-*.py"))]
    found += [Program(path.stem, path, 3) for path in sorted((demo / "nxtval").glob("*.py"))]
    found += [Program(path.stem, path, 2, exact=False) for path in sorted(demo.glob("osu_*.py"))]
    found += [
        Program("helloworld", demo / "helloworld.py", 4),
        Program("reductions", demo / "reductions" / "test_reductions.py", 3, exact=False),
        Program("schwimmbad-emcee", PROGRAMS / "schwimmbad_emcee.py", 3),
        Program("mpipool", PROGRAMS / "mpipool_map.py", 3),
        Program("dask-mpi", PROGRAMS / "dask_mpi_sum.py", 4),
    ]
    words = [word for word in only.split(",") if word]
    return [one for one in found if not words or any(word in one.name for word in words)]


def install() -> None:
    """Install the packages of PyPI beside the environment, unless that has been done."""
    done = PACKAGES / "installed"
    if done.is_file():
        return
    pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target", str(PACKAGES)]
    for more in (["--no-deps", *WITHOUT_DEPENDENCIES], list(WITH_DEPENDENCIES)):
        if subprocess.run([*pip, *more]).returncode:
            raise SystemExit(f"{', '.join(more)} could not be installed from PyPI; check the connection and repeat")
    done.touch()


def run(one: Program, protocol: str, limit_s: float) -> tuple[int, list[str]]:
    """Run a program; return its status and its lines in alphabetical order."""
    command = [str(suite.VIAKIT), "run", "-n", str(one.ranks), "--protocol", protocol]
    command += [] if protocol.startswith("mpi") else ["--as-mpi4py"]
    environment = dict(os.environ, PYTHONPATH=str(PACKAGES), PYTHONDONTWRITEBYTECODE="1")
    child = subprocess.Popen(
        [*command, str(one.path)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=environment, cwd=one.path.parent, start_new_session=True, text=True,
    )  # fmt: skip
    try:
        output, trouble = child.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGTERM)
        output, trouble = child.communicate()
        return 124, [f"no end after {limit_s:g} s"]
    return child.returncode, sorted(output.splitlines() if child.returncode == 0 else trouble.splitlines()[-3:])


def main() -> int:
    """Run the programs as the options say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORDS", help="programs whose names contain a word: ref,dask")
    parser.add_argument("--protocol", default="via", help="protocol of viakit: via, bip or tcp (via)")
    parser.add_argument("--limit", type=float, default=120, metavar="S", help="seconds for one program (120)")
    options = parser.parse_args()
    suite.download()
    install()
    print(f"{'program':20}{'ranks':>6}{'viakit':>8}{'Open MPI':>10}  lines")
    good = True
    for one in programs(options.only):
        (mine, lines), (theirs, others) = (run(one, name, options.limit) for name in (options.protocol, "mpi:openmpi"))
        same = lines == others
        holds = theirs != 0 or (mine == 0 and (same or not one.exact))
        said = "the same" if same else "differ" if one.exact else "times"
        print(f"{one.name:20}{one.ranks:>6}{mine:>8}{theirs:>10}  {said}", flush=True)
        if not holds:
            for name, shown in (("viakit", lines), ("Open MPI", others)):
                print(*(f"    {name:9} {line}" for line in shown[:8]), sep="\n")
        good &= holds
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
