"""viakit: the Virtual Interface Architecture in software, with the instruments to measure it.

Importing the package opens nothing and loads nothing heavy. A submodule is loaded at its first use, so that both of
these forms work and cost the same::

    import viakit
    nic = viakit.via.Nic("shm:demo")

    from viakit import via

Submodules
----------
via
    The Virtual Interface Architecture: NICs, registered memory, virtual interfaces, descriptors, completion queues.
bip
    BIP (Prylli and Tourancheau, 1997): messages with a queue for short ones and a pipeline for long ones.
errors
    Exceptions, each of which is also a built-in exception.
testbed
    Hosts made of network namespaces, without root.
comm
    Communicators with mpi4py's interface, over every channel; ``viakit.world()`` opens the first one.
mpi
    ``from viakit.mpi import MPI`` in place of ``from mpi4py import MPI``.
launch
    Jobs of several ranks: how they are started and how they connect.
lab
    Experiments in a notebook that are measured while they run.
measure
    Sweeps over message sizes and protocols, results, comparison, plots and reports.
doctor
    Capabilities of this machine, and remedies for what is missing.
inspect
    State of the NICs of a running process.
config
    Paths of libvipl and its headers, for programs in C.
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
    "virtual",
    "world",
]
_SUBMODULES = tuple(name for name in __all__ if name not in ("__version__", "world"))


def __getattr__(name: str) -> Any:
    """Load the submodule *name*, or the function `world`, on first use (PEP 562).

    Raises
    ------
    AttributeError
        If there is no such submodule.
    ImportError
        If the compiled extension is missing because Python finds the source tree before the installed package.
    """
    if name == "world":
        return __getattr__("comm").world
    if name not in _SUBMODULES:
        raise AttributeError(f"module 'viakit' has no attribute {name!r}")
    try:
        return importlib.import_module(f"viakit.{name}")
    except ImportError as error:
        # In a source tree, viakit._core is a folder of Cython sources, so that the ImportError has no path.
        if error.name == "viakit._core" and not getattr(error, "path", None):
            raise ImportError(
                f"viakit's compiled extension is not in the folder of {__file__}: this is a source tree, not an "
                "installed package. Run `make setup` there, then start .venv/bin/python from another folder."
            ) from error
        raise


def load_ipython_extension(shell: Any) -> None:
    """Load the notebook magics: ``%load_ext viakit`` calls this function. See :mod:`viakit.lab.magics`."""
    importlib.import_module("viakit.lab.magics").load(shell)


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_SUBMODULES) | {"world"})
