"""viakit: the Virtual Interface Architecture in software, with the instruments to measure it.

The package itself is only a front door. Importing it opens nothing and loads nothing heavy; a submodule is loaded when
it is first used, so both of these work and cost the same::

    import viakit
    nic = viakit.via.Nic("shm:demo")

    from viakit import via

Submodules
----------
via
    The Virtual Interface Architecture: NICs, registered memory, virtual interfaces, descriptors, completion queues.
bip
    BIP, messages of 1997: a queue for short ones, a pipeline for long ones.
errors
    What can go wrong, as exceptions that are also Python's own.
testbed
    Hosts made of network namespaces, without root.
comm
    Communicators with mpi4py's interface, over every channel; ``viakit.world()`` opens the first one.
mpi
    ``from viakit.mpi import MPI`` in place of ``from mpi4py import MPI``.
launch
    Jobs of several ranks: starting them, and finding each other.
lab
    Experiments in a notebook, measured while you watch.
measure
    Sweeps over message sizes and protocols, results, comparison, plots and reports.
doctor
    What this machine can and cannot do, and how to remedy it.
inspect
    What the NICs of a running process are doing.
config
    Where libvipl and its headers are, for programs in C.
cli
    The command ``viakit``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from viakit import bip, cli, comm, config, doctor, errors, inspect, lab, launch, measure, mpi, testbed, via
    from viakit.comm import world

__version__ = "0.1.0"

_SUBMODULES = (
    "bip",
    "cli",
    "comm",
    "config",
    "doctor",
    "errors",
    "inspect",
    "lab",
    "launch",
    "measure",
    "mpi",
    "testbed",
    "via",
)

__all__ = [
    "__version__",
    "bip",
    "cli",
    "comm",
    "config",
    "doctor",
    "errors",
    "inspect",
    "lab",
    "launch",
    "measure",
    "mpi",
    "testbed",
    "via",
    "world",
]


def __getattr__(name: str) -> Any:
    """Load the submodule *name*, or the function `world`, on first use (PEP 562).

    Raises
    ------
    AttributeError
        If there is no such submodule.
    ImportError
        If the compiled part is missing, which is so when Python finds the source tree before the installed package.
    """
    if name == "world":
        return __getattr__("comm").world
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'viakit' has no attribute {name!r}")
    try:
        return importlib.import_module(f"viakit.{name}")
    except ImportError as error:
        # In a source tree, viakit._core is only a folder of Cython sources: no file is to blame, hence no path.
        if error.name == "viakit._core" and not getattr(error, "path", None):
            raise ImportError(
                f"viakit's compiled part is missing beside {__file__}: this is a source tree, not an installed "
                "package. Run `make setup` there, then start .venv/bin/python from another folder."
            ) from error
        raise


def load_ipython_extension(shell: Any) -> None:
    """What ``%load_ext viakit`` calls in a notebook: see :mod:`viakit.lab.magics`."""
    from viakit.lab.magics import load

    load(shell)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_SUBMODULES) | {"world"})
