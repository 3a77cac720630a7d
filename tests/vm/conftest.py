"""The machines of the tests in this folder: two boot once, and a third one for the tests with three.

Where they cannot boot, the tests are skipped.
"""

from __future__ import annotations

import ctypes
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from vm_kernel import Boot, NoKernelError, in_order, prepare
from vm_machine import Cannot, Machine, guest, machines, third_machine


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


@pytest.fixture(scope="module")
def three(vm: list[Machine], boot: Boot) -> Iterator[list[Machine]]:
    """Boot a third machine beside the two, for the tests of one file."""
    try:
        with third_machine(vm, boot, limit_s=60) as every:
            yield every
    except Cannot as error:
        pytest.skip(reason(error))


@pytest.fixture(scope="session")
def rxe(vm: list[Machine], boot: Boot) -> list[Machine]:
    """Give each machine an RDMA device in software, rxe0, on its card virtio. Its library is the host's."""
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        pytest.skip("missing package libibverbs1: sudo apt-get install libibverbs1 ibverbs-providers")
    # A package that was removed leaves /etc/libibverbs.d/rxe.driver.
    if not any(Path("/usr/lib").glob("**/librxe-rdmav*.so")):
        pytest.skip("missing package ibverbs-providers: sudo apt-get install ibverbs-providers")
    modules = in_order(boot.modules, ("crc32_generic", "rdma_rxe"))
    for machine in vm:
        guest(
            machine,
            " ".join([sys.executable, str(Path(__file__).with_name("vm_rxe.py")), "virtio", *map(str, modules)]),
        )
    return vm
