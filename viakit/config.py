"""Paths of the installed C library, and the compiler and linker arguments to use it.

``libvipl`` and its headers are part of the package, so that a C program uses the same provider as Python::

    cc pingpong.c $(viakit config --cflags --libs) -o pingpong

or, with pkg-config, ``PKG_CONFIG_PATH=$(viakit config --pkg-config-dir) pkg-config --cflags --libs vipl``. A C library
that is loaded into Python (by :mod:`ctypes`, or as an extension) and linked in this way shares NICs and handles with
:mod:`viakit.via`: a process has one provider.
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
    "raw_helper",
    "raw_setup",
    "valgrind_suppressions",
    "version",
]

_SYSTEM_LIBRARIES = ("-lpthread", "-lrt", "-ldl")


def _existing(path: Path) -> Path:
    """Return *path*; raise FileNotFoundError with the reason if it does not exist."""
    if not path.exists():
        raise FileNotFoundError(
            2, "this is a source tree, not an installed package; run `make setup`, then .venv/bin/viakit", str(path)
        )
    return path


def version() -> str:
    """Return the version of the library, which equals that of the package."""
    return __version__


def prefix() -> Path:
    """Return the folder that holds ``include`` and ``lib``: the installed package.

    Raises
    ------
    FileNotFoundError
        Here and in the functions below, if Python has imported the source tree instead of the installed package.
    """
    return Path(str(importlib.resources.files("viakit"))).resolve()


def include_dir() -> Path:
    """Return the folder of ``vipl.h`` and ``viakit.h``."""
    return _existing(prefix() / "include" / "vipl.h").parent


def lib_dir() -> Path:
    """Return the folder of ``libvipl.so.1`` (run time), ``libvipl.so`` (for the linker) and ``libvipl.a``."""
    return library().parent


def library() -> Path:
    """Return the path of the shared library, which Python's extension uses and :class:`ctypes.CDLL` can load."""
    return _existing(prefix() / "lib" / "libvipl.so.1")


def pkg_config_dir() -> Path:
    """Return the folder of ``vipl.pc``, for ``PKG_CONFIG_PATH``."""
    return _existing(prefix() / "lib" / "pkgconfig" / "vipl.pc").parent


def example_dir() -> Path:
    """Return the folder of the example programs in C."""
    return _existing(prefix() / "examples" / "pingpong.c").parent


def valgrind_suppressions() -> Path:
    """Return the file for valgrind's option ``--suppressions``: memcheck, helgrind and drd."""
    return _existing(prefix() / "valgrind" / "viakit.supp")


def raw_helper() -> Path:
    """Return the helper that opens packet sockets for users without CAP_NET_RAW; see :func:`raw_setup`."""
    return _existing(lib_dir() / "viakit-raw")


def raw_setup(group: str = "viakit") -> list[str]:
    """Return the commands, one per item, by which an administrator installs the helper for the users of a group."""
    target = "/usr/local/libexec/viakit-raw"
    return [
        f"sudo groupadd -f {group} && sudo usermod -a -G {group} $USER",
        f"sudo install -D -m 750 -o root -g {group} {shlex.quote(str(raw_helper()))} {target}",
        f"sudo setcap cap_net_raw=ep {target}",
    ]


def cflags() -> list[str]:
    """Return the compiler arguments, one per item."""
    return [f"-I{include_dir()}"]


def libs(*, static: bool = False) -> list[str]:
    """Return the linker arguments, one per item.

    The program records the path of the library and runs without ``LD_LIBRARY_PATH``.

    Parameters
    ----------
    static : bool
        Link the library statically: the program then also runs where viakit is not installed. Names inside the library
        are local to it and cannot collide with the program's.
    """
    if static:
        return [str(_existing(lib_dir() / "libvipl.a")), *_SYSTEM_LIBRARIES]
    folder = lib_dir()
    return [f"-L{folder}", f"-Wl,-rpath,{folder}", "-lvipl"]


def quote(arguments: list[str]) -> str:
    """Join arguments to one line for a shell or a Makefile."""
    return shlex.join(arguments)
