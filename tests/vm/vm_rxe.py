"""Runs in a virtual machine: loads kernel modules, and makes an RDMA device in software (rdma_rxe) of a network card.

    vm_rxe.py INTERFACE MODULE...

The modules are files, each after those that it needs. The device is named rxe0. A device that exists is left as it is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys
from pathlib import Path

FINIT_MODULE = {"x86_64": 313, "aarch64": 273}


def load(path: str) -> None:
    """Load a module, unless the kernel has it."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(path, os.O_RDONLY)
    done = libc.syscall(FINIT_MODULE[os.uname().machine], fd, b"", 0)
    os.close(fd)
    if done != 0 and ctypes.get_errno() != errno.EEXIST:
        sys.exit(f"{path}: {os.strerror(ctypes.get_errno())}")


def main(interface: str, *modules: str) -> None:
    for path in modules:
        load(path)
    if not Path("/sys/class/infiniband/rxe0").exists():
        subprocess.run(["rdma", "link", "add", "rxe0", "type", "rxe", "netdev", interface], check=True)


main(*sys.argv[1:])
