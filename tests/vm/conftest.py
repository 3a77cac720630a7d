"""The machines of the tests in this folder: they boot once. Where they cannot boot, all tests are skipped."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from vm_kernel import Boot, NoKernelError, prepare
from vm_machine import Cannot, Machine, machines


def reason(error: Exception) -> str:
    """Return the reason of a skip. "missing package" is a failure in CI."""
    return str(error) if str(error).startswith("missing package") else f"not run: {error}"


@pytest.fixture(scope="session")
def boot() -> Boot:
    """Return the kernel and its RAM disk."""
    try:
        return prepare()
    except NoKernelError as error:
        pytest.skip(reason(error))


@pytest.fixture(scope="session")
def shared() -> Iterator[Path]:
    """Return a folder that the machines see under the same path."""
    folder = Path(tempfile.mkdtemp(prefix="vk-vm-"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def vm(boot: Boot, shared: Path) -> Iterator[list[Machine]]:
    """Boot two machines."""
    try:
        with machines(shared, boot, limit_s=60) as both:
            yield both
    except Cannot as error:
        pytest.skip(reason(error))
