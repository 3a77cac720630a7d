"""Use an installed viakit: a message over VIA, and a kernel of the applications against plain Python.

`tools/wheels` runs this program in each environment into which it installs a wheel.
"""

import platform
import sys

import numpy as np

import viakit
from viakit import _kernels, via


def exchange(n_bytes: int) -> None:
    """Send a message of several frames between two VIs of a NIC, and compare its bytes."""
    data = np.random.default_rng(1).integers(0, 256, n_bytes, dtype=np.uint8)
    with (
        via.Nic("loop") as nic,
        nic.create_region(n_bytes) as source,
        nic.create_region(n_bytes) as target,
        nic.create_vi() as here,
        nic.create_vi() as there,
    ):
        there.post_recv(via.Descriptor.recv(target[:]))
        here.request_peer(nic.address / "there", local="here", timeout_s=10)
        there.connect_peer(nic.address / "here", local="there", timeout_s=10)
        while here.peer_done() is None:
            pass
        memoryview(source)[:] = data.tobytes()
        here.post_send(via.Descriptor.send(source[:]))
        there.recv_wait(timeout_s=10)
        here.send_wait(timeout_s=10)
        if bytes(memoryview(target)) != data.tobytes():
            sys.exit(f"{n_bytes} bytes arrived changed")


def random_numbers(count: int) -> None:
    """Compare the generator of the NAS benchmarks, x -> 5^13 x mod 2^46 (Bailey et al., section 2.3), with integers."""
    numbers = np.empty(count)
    for level in _kernels.levels():
        _kernels.set_level(level)
        last, seed = _kernels.random_fill(314159265, numbers), 314159265
        for number in numbers:
            seed = seed * 5**13 % 2**46
            if number != seed / 2**46:
                sys.exit(f"kernels of level {level} compute another random number: {number}, expected {seed / 2**46}")
        if last != seed:
            sys.exit(f"kernels of level {level} end with the seed {last}, expected {seed}")


if __name__ == "__main__":
    exchange(30_000)
    random_numbers(1000)
    versions = f"viakit {viakit.__version__}, Python {sys.version.split()[0]}, numpy {np.__version__}"
    print(f"{versions}, {platform.machine()}: message and kernels ({', '.join(_kernels.levels())}) ok")
