"""Where the C library of this installation lies, and what a compiler needs to use it.

``libvipl`` and its headers are part of the package, so that a C program of one's own uses the very provider that
Python does::

    cc pingpong.c $(viakit config --cflags --libs) -o pingpong

or, with pkg-config, ``PKG_CONFIG_PATH=$(viakit config --pkg-config-dir) pkg-config --cflags --libs vipl``. A C library
that is loaded into Python (by :mod:`ctypes`, or as an extension) and linked like this shares NICs and handles with
:mod:`viakit.via`: there is one provider in a process.
"""

from __future__ import annotations

import importlib.resources
import shlex
from pathlib import Path

from viakit import __version__

__all__ = [
    "cflags",
    "example_dir",
    "include_dir",
    "lib_dir",
    "library",
    "libs",
    "pkg_config_dir",
    "prefix",
    "version",
]

_SYSTEM_LIBRARIES = ("-lpthread", "-lrt", "-ldl")


def _existing(path: Path) -> Path:
    """Return *path*, or say why it is not there."""
    if not path.exists():
        raise FileNotFoundError(
            2, "this is a source tree, not an installed package: run `make setup`, then .venv/bin/viakit", str(path)
        )
    return path


def version() -> str:
    """Return the version of the library, which is the package's."""
    return __version__


def prefix() -> Path:
    """Return the folder that holds ``include`` and ``lib``: the installed package.

    Raises
    ------
    FileNotFoundError
        In this and in all that follow: Python has found the source tree and not the installed package.
    """
    return Path(str(importlib.resources.files("viakit"))).resolve()


def include_dir() -> Path:
    """Return the folder of ``vipl.h`` and ``viakit.h``."""
    return _existing(prefix() / "include" / "vipl.h").parent


def lib_dir() -> Path:
    """Return the folder of ``libvipl.so.1`` (run time), ``libvipl.so`` (for the linker) and ``libvipl.a``."""
    return library().parent


def library() -> Path:
    """Return the shared library itself: what :class:`ctypes.CDLL` takes, and what Python's extension uses."""
    return _existing(prefix() / "lib" / "libvipl.so.1")


def pkg_config_dir() -> Path:
    """Return the folder of ``vipl.pc``, for ``PKG_CONFIG_PATH``."""
    return _existing(prefix() / "lib" / "pkgconfig" / "vipl.pc").parent


def example_dir() -> Path:
    """Return the folder of the example programs in C."""
    return _existing(prefix() / "examples" / "pingpong.c").parent


def cflags() -> list[str]:
    """Return the compiler's arguments, one per item."""
    return [f"-I{include_dir()}"]


def libs(*, static: bool = False) -> list[str]:
    """Return the linker's arguments, one per item.

    The path of the library is written into the program, which then runs without ``LD_LIBRARY_PATH``.

    Parameters
    ----------
    static : bool
        Put the library into the program: it then runs where viakit is not installed. Names inside the library are
        local to it and cannot collide with the program's.
    """
    if static:
        return [str(_existing(lib_dir() / "libvipl.a")), *_SYSTEM_LIBRARIES]
    folder = lib_dir()
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lvipl"]


def quote(arguments: list[str]) -> str:
    """Join arguments to one line for a shell or a Makefile."""
    return shlex.join(arguments)
