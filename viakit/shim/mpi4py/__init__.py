"""Package ``mpi4py`` whose module ``MPI`` is :mod:`viakit.mpi`.

The modules that mpi4py writes in Python on top of its ``MPI`` (``mpi4py.util``, ``mpi4py.futures``) are those of an
installed mpi4py, if there is one. They use the ``MPI`` of this package.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
import warnings
from typing import Any

__all__ = ["MPI"]
__version__ = "4.1.2"  # the version whose interface is implemented
__author__ = "viakit"
__credits__ = "the interface is that of mpi4py, by Lisandro Dalcin"


def _installed() -> list[str]:
    """Return the folder of the installed mpi4py, or nothing: its Python modules are found behind this package's."""
    own = os.path.dirname(os.path.abspath(__file__))
    for entry in sys.path:
        folder = os.path.join(os.path.abspath(entry or os.curdir), "mpi4py")
        if os.path.abspath(folder) != own and os.path.isfile(os.path.join(folder, "__init__.py")):
            return [folder]
    return []


__path__ = [*__path__, *_installed()]


_OPTIONS = {
    "initialize": True, "threads": True, "thread_level": "multiple", "finalize": None, "fast_reduce": True,
    "recv_mprobe": True, "irecv_bufsz": 32768, "errors": "exception",
}  # fmt: skip


class Rc:
    """Runtime configuration options: ``mpi4py.rc``.

    Attributes
    ----------
    initialize : bool
        Whether ``import mpi4py.MPI`` initialises MPI.
    threads, thread_level : bool, str
        Accepted and ignored: viakit always provides "multiple".
    finalize : bool or None
        Whether MPI is finalised at exit. Default: as `initialize`.
    fast_reduce, recv_mprobe, irecv_bufsz, errors : bool, bool, int, str
        Accepted and ignored.
    """

    def __init__(self, **options: Any) -> None:
        self.__dict__.update(_OPTIONS)
        self(**options)

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _OPTIONS:
            raise TypeError(f"rc has no option {name!r}; the options are {', '.join(_OPTIONS)}")
        super().__setattr__(name, value)

    def __call__(self, **options: Any) -> None:
        """Set several options at once; set none if one is unknown."""
        for name in options:
            if name not in _OPTIONS:
                raise TypeError(f"unexpected argument {name!r}; the options are {', '.join(_OPTIONS)}")
        for name, value in options.items():
            setattr(self, name, value)

    def __repr__(self) -> str:
        return "<mpi4py.rc: " + ", ".join(f"{name}={getattr(self, name)!r}" for name in _OPTIONS) + ">"


rc = Rc()
sys.modules[f"{__name__}.rc"] = rc  # type: ignore[assignment]  # `import mpi4py.rc` works, as with mpi4py


def get_include() -> str:
    """Return the folder of the installed mpi4py's headers. Raises ImportError without an installed mpi4py."""
    for folder in __path__[1:]:
        return os.path.join(folder, "include")
    raise ImportError("get_include: viakit has no headers of mpi4py; install mpi4py beside it (pip install mpi4py)")


def get_config() -> dict[str, str]:
    """Return the configuration of the MPI that mpi4py was built with: nothing, because viakit is no library of MPI."""
    return {}


def profile(name: str, *, path: Any = None) -> None:
    """Warn that a profiling library has no effect, because viakit has no profiling interface of MPI.

    Parameters
    ----------
    name : str
        Name or path of the library.
    path : str or sequence of str, optional
        Folders in which it is searched.

    Raises
    ------
    ValueError
        If there is no such library.
    """
    folders = [path] if isinstance(path, (str, bytes, os.PathLike)) else list(path or ())
    names = [name, f"lib{name}.so"]
    places = names if not folders else [os.path.join(os.fsdecode(folder), one) for folder in folders for one in names]
    found = next((place for place in places if os.path.isfile(place)), None)
    if found is None:
        raise ValueError(f"profile: there is no library {name!r} in {[os.fsdecode(folder) for folder in folders]}")
    warnings.warn(f"{found} has no effect: viakit has no profiling interface of MPI; see `viakit trace`", stacklevel=2)


class _NotInstalled(importlib.abc.MetaPathFinder):
    """Explains why a module that mpi4py writes in Python is missing."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        """Raise ImportError for a module of mpi4py that no finder has found."""
        if fullname.startswith(f"{__name__}.") and not __path__[1:]:
            raise ModuleNotFoundError(
                f"No module named {fullname!r}: it is part of mpi4py, whose modules in Python run on viakit, too; "
                "install mpi4py beside it (pip install mpi4py)",
                name=fullname,
            )


sys.meta_path.append(_NotInstalled())
