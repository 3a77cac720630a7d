"""What a test needs of the machine, or a skip that says what is missing.

A reason that begins with "missing package" is a failure in CI (conftest.py), where every package can be installed; what
a kernel refuses to an ordinary user, or hardware lacks, is a skip everywhere.
"""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import pytest

from viakit.apps import plain
from viakit.measure import mpi
from viakit.measure.endpoints import MeasureError
from viakit.testbed import NamespaceError, Testbed


def tool(name: str) -> str:
    """The path of a program."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"missing package {name}: sudo apt-get install {name}")
    return path


def compiler() -> list[str]:
    """The command of the C compiler that plain loops are made with."""
    try:
        return plain.compiler()
    except plain.NoCompiler as error:
        pytest.skip(f"missing package: {error}")


def mpi_library(protocol: str) -> mpi.Library:
    """The library for "mpi", "mpi:mpich" or "mpi:openmpi"."""
    try:
        return mpi.find(protocol)
    except MeasureError as error:
        pytest.skip(f"missing package: {error}")


def instructions(*missing: str) -> None:
    """Say which vector instructions this machine lacks, so that nothing has run what is compiled for them."""
    if missing:
        pytest.skip(f"this machine has no {', no '.join(missing)}: kernels for that have not been run")


def hosts(number: int = 2, **options: Any) -> Testbed:
    """An open testbed: to be used in a `with` statement, or closed."""
    try:
        return Testbed(hosts=number, **options).open()
    except NamespaceError as error:
        pytest.skip(f"this machine refuses hosts: {error}")


def module(name: str, extra: str) -> Any:
    """A module that one of viakit's extras brings."""
    return pytest.importorskip(name, reason=f"missing package {name}: pip install 'viakit[{extra}]'")


def packages(*names: str) -> list[Any]:
    """Modules by name, imported."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError:
            pytest.skip(f"missing package {name}: pip install {name}")
    return found
