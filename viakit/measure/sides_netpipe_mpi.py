"""NetPIPE's own program over MPI, as protocols of a sweep: ``netpipe:openmpi`` and ``netpipe:mpich``.

Each burst starts the program under mpiexec and reads its np.out. The program of Debian runs with the library, the
mpiexec and the variables of ``mpi:openmpi`` or ``mpi:mpich`` (:mod:`viakit.measure.mpi_runs`), with each rank on the
core of a side. So two loops are measured on one library and one wire, in turns. Side A starts the run, and side B does
nothing. NetPIPE does not touch its buffers, and reports the best of several trials.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from viakit.launch.agent import Agent
from viakit.launch.mpi_library import Library
from viakit.measure.endpoints import MeasureError
from viakit.measure.foreign import NETPIPE_TRIALS as TRIALS
from viakit.measure.sides import Side
from viakit.measure.sides_netpipe import NetpipeEndpoint, debian_version, options_of

__all__ = ["NetpipeMpiSide"]

# The program of each family, Debian's package, and the name of the library that the program loads.
_PROGRAMS = {
    "openmpi": ("NPopenmpi", "netpipe-openmpi", "libmpi.so.40"),
    "mpich": ("NPmpich2", "netpipe-mpich2", "libmpich.so.12"),
}
_LONGEST_REASON = 400  # characters of mpiexec's output in an error
_NOISE = re.compile(r"\s*(-{5,}|={5,}|Using no perturbations|Sending output to |[01]: \S+$|Now starting the main loop)")

# mpiexec starts this script in place of the program. mpiexec itself is not bound to a core.
_RANK = """#!/bin/sh
case ${{PMI_RANK-$OMPI_COMM_WORLD_RANK}} in 0) core={cores[0]} ;; *) core={cores[1]} ;; esac
LD_LIBRARY_PATH={libraries}
export LD_LIBRARY_PATH
exec taskset -c $core {program} "$@"
"""


class _NetpipeMpiEndpoint(NetpipeEndpoint):
    """One run of NPopenmpi or NPmpich2 for each burst."""

    side: NetpipeMpiSide

    def prepare(self, nbytes: int, run_id: int, count: int, offset: int, timeout_s: float, **plan: Any) -> None:
        """A: store the command."""
        self.end()
        self.timeout_s = timeout_s
        if self.side.side == 0:
            self.folder = tempfile.mkdtemp(prefix="run-", dir=self.side.runs["scratch"])
            self.words = [*options_of(nbytes, count, offset, plan["buffers"]), "-o", f"{self.folder}/np.out"]

    def run(self) -> bytes:
        """A runs the program. Return its time, in nanoseconds."""
        if self.side.side == 1:
            return b""
        with open(f"{self.folder}/said", "wb") as said:
            self.process = subprocess.Popen(
                self.side.command(self.words),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                cwd=self.folder,
                env=os.environ | self.side.runs["variables"],
                start_new_session=True,
            )
        deadline = time.monotonic() + self.timeout_s
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(self.timeout_s)  # it looks 20 times a second, and shares a core with a rank
        self._check(deadline)
        samples = self._samples()
        self.end()
        return samples

    def _reason(self, said: str) -> str:
        lines = [line.strip() for line in said.splitlines() if line.strip() and not _NOISE.match(line)]
        return " ".join(lines)[:_LONGEST_REASON] or "it printed nothing"

    def stop(self) -> None:
        """End mpiexec, which ends its ranks, from another thread."""
        self._signal(signal.SIGTERM)

    def end(self) -> None:
        """End mpiexec, and remove the files of the run. The coordinator ends ranks that are left."""
        self._signal(signal.SIGKILL)
        super().end()

    close = end

    def _signal(self, number: int) -> None:
        process = self.process
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


class NetpipeMpiSide(Side):
    """Side whose rank is NetPIPE's program."""

    def open(self) -> dict[str, Any]:
        """Find the program, and write the script that starts it. This process itself is not bound to a core.

        Raises
        ------
        MeasureError
            If the program is missing, or the dynamic linker does not give it the chosen library.
        """
        self.runs: dict[str, Any] = self.request["runs"]
        self.library = Library(*self.runs["library"])
        name, package, soname = _PROGRAMS[self.library.flavour]
        for tool, its in ((name, package), ("taskset", "util-linux")):
            if shutil.which(tool) is None:
                raise MeasureError(
                    f"{self.protocol}: there is no {tool} in PATH. Remedy: sudo apt-get install {its}", "missing"
                )
        self.program = shutil.which(name) or name
        if self.side == 0:
            self._write_script(soname)
        return {}

    def _write_script(self, soname: str) -> None:
        """Write the script. Give the library the name under which the program loads it, if it has another one."""
        scratch, folder = self.runs["scratch"], os.path.dirname(self.library.libmpi)
        if not os.path.exists(os.path.join(folder, soname)):
            with contextlib.suppress(FileExistsError):  # of an earlier connection of the pair
                os.symlink(os.path.realpath(self.library.libmpi), os.path.join(scratch, soname))
        # The dynamic linker looks for what a library needs beside the link, too. PyPI's MPICH has it in a subfolder.
        folders = [scratch, folder, os.path.join(folder, self.library.flavour), os.environ.get("LD_LIBRARY_PATH", "")]
        libraries = ":".join(filter(None, folders))
        self._check_library(libraries)
        text = _RANK.format(
            cores=self.runs["cores"], libraries=shlex.quote(libraries), program=shlex.quote(self.program)
        )
        Path(scratch, "rank").write_text(text, encoding="utf-8")

    def _check_library(self, libraries: str) -> None:
        """Raise MeasureError if the program would run with another library than the chosen one, or not at all."""
        variables = {**os.environ, "LD_LIBRARY_PATH": libraries, "LD_TRACE_LOADED_OBJECTS": "1"}
        try:
            done = subprocess.run(
                [self.program], env=variables, capture_output=True, text=True, check=False, timeout=30
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise MeasureError(f"{self.protocol}: {self.program} cannot be executed: {error}", "error") from None
        loaded = dict(re.findall(r"^\s*(\S+) => (not found|\S+)", done.stdout, re.MULTILINE))
        if missing := [name for name, path in loaded.items() if path == "not found"]:
            raise MeasureError(
                f"{self.protocol}: {self.program} does not run with {self.library.libmpi}: the dynamic linker does not "
                f"find {', '.join(missing)}. Remedy: install what has it, or add its folder to LD_LIBRARY_PATH",
                "missing",
            )
        other = [path for name, path in loaded.items() if name.startswith(("libmpi.so", "libmpich.so"))]
        if other and os.path.realpath(other[0]) != os.path.realpath(self.library.libmpi):
            raise MeasureError(
                f"{self.protocol}: {self.program} runs with {other[0]} instead of {self.library.libmpi}. Remedy: set "
                f"MPI4PY_LIBMPI={other[0]}, so that viakit uses this library, too",
                "mismatch",
            )

    def command(self, words: list[str]) -> list[str]:
        """Return the command of a run: mpiexec with two ranks, each on its side's host and core."""
        program = ["sh", os.path.join(self.runs["scratch"], "rank"), *words]
        if self.runs["agent"]:
            return Agent(self.runs["agent"], self.runs["addresses"]).command(self.library, 1, program)
        return self.library.command(program)

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Create the endpoint. The ranks of each run connect to each other."""
        self.endpoint = _NetpipeMpiEndpoint(self, self.program)

    def describe(self) -> dict[str, Any]:
        """Return the version, the library and what it uses between the ranks."""
        name, package, _ = _PROGRAMS[self.library.flavour]
        variables = os.environ | self.runs["variables"]
        if self.library.flavour == "openmpi":
            between = ", ".join(f"{key} {variables.get(f'OMPI_MCA_{key}', 'default')}" for key in ("pml", "btl"))
        else:
            between = "TCP (UCX_TLS tcp)" if variables.get("UCX_TLS") == "tcp,self" else "shared memory within the host"
        return {
            "library": debian_version(package),
            "transport": f"MPI by {name}, a run of mpiexec for each burst; {between}; best of {TRIALS} trials",
            "libmpi": self.library.libmpi,
        }
