"""Requirements of tests: each function returns a feature of the machine, or skips the test and names what is missing.

A reason that begins with "missing package" is a failure in CI (conftest.py), where every package can be installed. A
feature that the kernel refuses to ordinary users, or that the hardware lacks, is a skip everywhere.
"""

from __future__ import annotations

import importlib
import shutil
from typing import Any

import pytest

from viakit.apps import plain
from viakit.launch import mpi_library as mpi
from viakit.measure import endpoints
from viakit.measure.endpoints import MeasureError
from viakit.testbed import NamespaceError, Testbed


def tool(name: str) -> str:
    """Return the path of a program."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"missing package {name}: sudo apt-get install {name}")
    return path


def lam() -> None:
    """Skip a test if LAM/MPI is not installed."""
    if shutil.which("lamboot") is None:
        pytest.skip("missing package lam-runtime: sudo apt-get install lam-runtime")


def compiler() -> list[str]:
    """Return the command of the C compiler that compiles plain loops."""
    try:
        return plain.compiler()
    except plain.NoCompiler as error:
        pytest.skip(f"missing package: {error}")


def mpi_library(protocol: str) -> mpi.Library:
    """Return the library for "mpi", "mpi:mpich" or "mpi:openmpi"."""
    try:
        return mpi.find(protocol)
    except MeasureError as error:
        pytest.skip(f"missing package: {error}")


def oshmem() -> mpi.Library:
    """Return an Open MPI with OpenSHMEM, which no package of PyPI has."""
    try:
        return mpi.find("mpi:openmpi+oshmem")
    except MeasureError as error:
        pytest.skip(f"this machine has no OpenSHMEM: {error}")


def protocol(name: str) -> None:
    """Skip a test where the library that a protocol stands on is not installed."""
    found = endpoints.lookup(name)
    if "oshmem" in found.needs:
        oshmem()
    elif "pvm" in found.needs:
        tool("pvm")
    elif "lam" in found.needs:
        lam()
    elif found.by_mpi:
        mpi_library(found.library)


def instructions(*missing: str) -> None:
    """Skip a test for the vector instructions that this machine lacks: their kernels have not been run."""
    if missing:
        pytest.skip(f"this machine has no {', no '.join(missing)}: kernels for that have not been run")


def hosts(number: int = 2, **options: Any) -> Testbed:
    """Return an open testbed, to use in a `with` statement or to close."""
    try:
        return Testbed(hosts=number, **options).open()
    except NamespaceError as error:
        pytest.skip(f"this machine refuses hosts: {error}")


def module(name: str, extra: str) -> Any:
    """Return a module that one of viakit's extras installs."""
    return pytest.importorskip(name, reason=f"missing package {name}: pip install 'viakit[{extra}]'")


def packages(*names: str) -> list[Any]:
    """Import modules by name and return them."""
    found = []
    for name in names:
        try:
            found.append(importlib.import_module(name))
        except ImportError:
            pytest.skip(f"missing package {name}: pip install {name}")
    return found
