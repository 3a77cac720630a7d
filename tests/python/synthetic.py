"""A synthetic machine: pairs whose times come from a formula, for tests of the code that uses times.

`SyntheticPair` replaces viakit.measure.pair.Pair. Its times are a fixed cost plus size / bandwidth, with log-normal
noise and an occasional slow message. The same seed gives the same times.
"""

import os
import signal
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

COSTS = {  # fixed cost in s, bandwidth in B/s
    "via-eth": (1.1e-6, 7e9),
    "via-udp": (2.2e-6, 6e9),
    "bip-eth": (2.2e-6, 6e9),
    "tcp": (3.4e-6, 2e9),
    "tcp:default": (3.4e-6, 1.3e9),
    "tcp:fresh": (3.4e-6, 1.3e9),
    "udp": (2.9e-6, 1.8e9),
    "zmq": (9.0e-6, 1.5e9),
    "unix": (1.9e-6, 4e9),
    "via-shm": (0.2e-6, 10e9),
    "mpi": (0.35e-6, 8e9),
    "mpi:openmpi": (0.35e-6, 8e9),
    "mpi:mpich": (0.8e-6, 9e9),
    "mpi:openmpi:fresh": (0.35e-6, 8e9),
    "mpi:mpich:fresh": (0.8e-6, 9e9),
    "msg-via": (0.3e-6, 9.9e9),
    "msg-bip": (0.5e-6, 9.9e9),
    "msg-tcp": (3.6e-6, 2e9),
    "put-via": (0.8e-6, 9.9e9),
    "put-mpi:openmpi": (1.9e-6, 9.9e9),
    "put-mpi:mpich": (2.1e-6, 9.9e9),
    "frames": (1.2e-6, 6e9),
    "floor": (0.137e-6, 60e9),
}


class SyntheticPair:
    """Implements the interface of viakit.measure.pair.Pair."""

    missing: ClassVar[dict] = {}  # protocol -> exception at opening
    fail_after: ClassVar[dict] = {}  # protocol -> (runs, exception)
    interrupt_after = None  # runs of all pairs before Ctrl-C
    runs = 0
    open_pairs = 0

    @classmethod
    def reset(cls):
        cls.missing, cls.fail_after, cls.interrupt_after, cls.runs, cls.open_pairs = {}, {}, None, 0, 0

    def __init__(
        self,
        protocol,
        *,
        testbed=None,
        wait="poll",
        level="c",
        sockbuf=None,
        memory="user",
        buffers="touched",
        options=None,
        timeout_s=30.0,
    ):
        if protocol in self.missing:
            raise self.missing[protocol]
        self.protocol, self.level, self.wait = protocol, level, wait
        self.rng = np.random.default_rng(len(protocol))
        self.mine = 0
        self.buffers = buffers
        self.sockbuf = sockbuf
        self.info = {
            "protocol": protocol,
            "library": {"mpi:mpich": "MPICH 5.0.2", "mpi": "Open MPI 5.0.11"}.get(protocol),
            "interface": "eth0" if testbed else None,
            "mtu": testbed.mtu if testbed else None,
            "loop_overhead_s": 2e-8,
            "options": dict(options or {}),
            "memory": memory,
            "buffers": buffers,
        }

    def reconnect(self, sockbuf):
        """Set the buffers: TCP is fastest with 256 KiB, slower with other sizes, and slow with automatic ones."""
        assert self.protocol == "tcp"
        self.sockbuf = sockbuf
        self.info["sockbuf"] = sockbuf or "automatic"

    def __enter__(self):
        type(self).open_pairs += 1
        return self

    def __exit__(self, *error):
        self.close()

    def close(self):
        type(self).open_pairs -= 1

    def run(self, nbytes, mode="pingpong", count=100, warmup=0, validate=False, offset=0):
        cls = SyntheticPair
        cls.runs += 1
        self.mine += 1
        if cls.interrupt_after is not None and cls.runs > cls.interrupt_after:
            os.kill(os.getpid(), signal.SIGINT)
        after, error = cls.fail_after.get(self.protocol, (None, None))
        if after is not None and self.mine > after:
            raise error
        fixed, bandwidth = COSTS[self.protocol]
        fixed *= {"c": 1, "python": 4}[self.level] * {"poll": 1, "block": 8}[self.wait]
        if self.protocol == "tcp" and "sockbuf" in self.info:
            fixed, bandwidth = fixed, bandwidth / (1 + abs(np.log2((self.sockbuf or 16 << 20) / (256 << 10))) / 10)
        base = (fixed if mode == "pingpong" else fixed / 4) + nbytes / bandwidth
        n = count if mode == "pingpong" else 1
        times = base * np.exp(self.rng.normal(0, 0.03, n)) * np.where(self.rng.random(n) < 0.002, 20, 1)
        return SimpleNamespace(
            one_way_s=times,
            bandwidth_Bps=None if mode == "pingpong" else (2 if mode == "bidir" else 1) * nbytes / times,
            counters={
                "copies": 2 * count,
                "bytes_copied": 2 * count * nbytes,
                "system_calls": count,
                "messages": count if mode == "stream" else 2 * count,
            },
            lost=0,
            touch_s=1e-9 + nbytes / 20e9 if self.buffers == "touched" and not validate else None,
        )


class SyntheticTestbed:
    """Implements the part of viakit.testbed.Testbed that a sweep needs."""

    refuse = None

    def __init__(self, hosts=2, mtu=1500, rate=None):
        if self.refuse is not None:
            raise self.refuse
        self.mtu = mtu

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass
