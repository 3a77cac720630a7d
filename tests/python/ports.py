"""Numbers of ports that stay free until the process binds them that a test starts."""

from __future__ import annotations

import contextlib
import random
import socket


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    """Return a port of 127.0.0.1 that no socket of this kind is bound to.

    It is below the ports that the kernel chooses (from 32768 on), and below those that other tests count up. The kernel
    may give a free port of its own to any other program before the process of the test has started.
    """
    while True:
        port = random.SystemRandom().randrange(3000, 10000)
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, kind) as probe:
            probe.bind(("127.0.0.1", port))
            return port
