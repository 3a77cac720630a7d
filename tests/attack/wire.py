"""A process on the path that repeats, damages, cuts and readdresses the frames of a victim, on every interface.

    wire.py PID SEED

It cannot correct a checksum here, so no byte of a message may change. Ends with SIGTERM, and then prints the number of
frames that it sent. It has to be able to open raw sockets in the victim's network namespaces.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import select
import signal
import socket
import sys
import time

import victims

CLONE_NEWNET = 0x40000000
ETH_P_ALL = 3
OUTGOING = 4


def altered(rng: random.Random, frame: bytes) -> bytes:
    """Return the frame as it was, with one byte changed, cut, longer, or from another station."""
    how, at = rng.randrange(6), rng.randrange(len(frame))
    if how == 0:
        return frame
    if how == 1:
        return frame[: max(14, at)]
    if how == 2:
        return frame + rng.randbytes(rng.randrange(1, 64))
    if how == 3:
        return frame[:6] + rng.randbytes(6) + frame[12:]
    return frame[:at] + bytes([frame[at] ^ rng.randrange(1, 256)]) + frame[at + 1 :]


def sockets_of(pid: int, own: int) -> list[socket.socket]:
    """Open a raw socket on each interface of a process's namespace, and come back to the own one."""
    libc, found = ctypes.CDLL(None), []
    with contextlib.suppress(OSError):
        place = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        try:
            if libc.setns(place, CLONE_NEWNET) == 0:
                for _, name in socket.if_nameindex():
                    if name != "lo":
                        raw = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                        raw.bind((name, ETH_P_ALL))
                        raw.setblocking(False)
                        found.append(raw)
        finally:
            libc.setns(own, CLONE_NEWNET)
            os.close(place)
    return found


def main() -> None:
    """Send until the victim has ended."""
    root, rng, n = int(sys.argv[1]), random.Random(int(sys.argv[2])), 0
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))
    own, here = os.open("/proc/self/ns/net", os.O_RDONLY), victims.namespace(os.getpid())
    seen, raws, looked = {here, ""}, [], 0.0
    while os.path.exists(f"/proc/{root}") and not over:
        if time.monotonic() - looked > 0.1:
            looked = time.monotonic()
            for pid in victims.tree(root):
                if (where := victims.namespace(pid)) not in seen:
                    seen.add(where)
                    raws += sockets_of(pid, own)
        for raw in select.select(raws, [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                frame, about = raw.recvfrom(65536)
                # A frame reaches its station from any other host of the network. Repeated frames arrive here again,
                # and a quarter of them is repeated once more.
                others = [other for other in raws if other is not raw]
                if about[2] != OUTGOING and len(frame) > 14 and others and rng.randrange(4) == 0:
                    rng.choice(others).send(altered(rng, frame))
                    n += 1
    print(f"calls {n} frames", flush=True)


if __name__ == "__main__":
    main()
