"""A hostile neighbour: it calls every socket of a victim, and is silent, slow, garbled or many.

    neighbour.py PID SEED [USER]

The victim is the process with all its descendants. USER is a number, by default this process's own user. The calls come
from a child, in each network namespace of the victim. Ends with SIGTERM, and then prints the number of calls. Makes the
file VIAKIT_ATTACK_MARK after its first round of calls.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import signal
import socket
import sys
import time

import victims

MOST_OPEN = 200  # connections that a child holds; the oldest is closed for a new one
CLONE_NEWNET = 0x40000000


class Caller:
    """One namespace's attacker: its open connections and what it does with them."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.open: list[tuple[socket.socket, bool]] = []
        self.n = 0

    def garbage(self, most: int) -> bytes:
        """Return random bytes, at times with a beginning that looks right."""
        head = self.random.choice([b"", b"", b"viakit", b"VIA\x01", b'{"', bytes(8)])
        return head + self.random.randbytes(self.random.randrange(most))

    def call(self, kind: str, address: str, port: int) -> None:
        """Send something to the socket once."""
        self.n += 1
        if kind == "udp":
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            to = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
            with socket.socket(family, socket.SOCK_DGRAM) as caller:
                for _ in range(self.random.randrange(1, 20)):
                    caller.sendto(self.garbage(1400), (to, port))
            return
        if kind == "unix":
            caller = self.unix(address)
        else:
            caller = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            caller.setblocking(False)
            caller.connect_ex(({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address), port))
        caller.setblocking(False)
        manner = self.random.choice(["silent", "slow", "garbage", "gone"])
        if manner == "garbage":
            with contextlib.suppress(OSError):
                caller.send(self.garbage(65536))
        if manner == "gone":
            caller.close()
            return
        self.open.append((caller, manner == "slow"))
        if len(self.open) > MOST_OPEN:
            self.open.pop(0)[0].close()

    def unix(self, name: str) -> socket.socket:
        """Connect to a name, as a stream or by packets."""
        where = "\0" + name[1:] if name.startswith("@") else name
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
            caller = socket.socket(socket.AF_UNIX, kind)
            caller.setblocking(False)
            if caller.connect_ex(where) != 91:  # EPROTOTYPE: the listener is of the other type
                break
            caller.close()
        return caller

    def trickle(self) -> None:
        """Send a byte on each slow connection."""
        for caller, slow in self.open:
            if slow:
                with contextlib.suppress(OSError):
                    caller.send(self.random.randbytes(1))


def attack(seed: int, user: int, place: int, orders: int, results: int, called: int) -> None:
    """Run in a child: enter the namespace, become the user, and call what the parent names until the pipe closes.

    The pipe `called` gets a byte after each round of calls.
    """
    if place >= 0 and ctypes.CDLL(None).setns(place, CLONE_NEWNET):
        os._exit(0)
    if user != os.geteuid():
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    caller, targets = Caller(seed), set()
    os.set_blocking(orders, False)
    rest = b""
    while True:
        try:
            more = os.read(orders, 65536)
            if not more:
                break
            *lines, rest = (rest + more).split(b"\n")
            targets |= {tuple(line.decode().split("\t")) for line in lines}
        except BlockingIOError:
            pass
        for kind, address, port in list(targets):
            with contextlib.suppress(OSError):
                caller.call(kind, address, int(port))
        if targets:
            with contextlib.suppress(BlockingIOError):
                os.write(called, b".")
        caller.trickle()
        time.sleep(0.02)
    os.write(results, f"{caller.n}\n".encode())
    os._exit(0)


def mark(rounds: int) -> None:
    """Make the file that the victim waits for, once there was a round of calls."""
    path = os.environ.get("VIAKIT_ATTACK_MARK", "")
    with contextlib.suppress(BlockingIOError):
        if os.read(rounds, 65536) and path:
            open(path, "w").close()


def main() -> None:
    """Find the victim's sockets until the end, with one child for each namespace."""
    root, seed, user = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else os.geteuid()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    reading, results = os.pipe()
    rounds, called = os.pipe2(os.O_NONBLOCK)
    children: dict[str, int] = {}
    known: set[tuple[str, str, str, int]] = set()
    own = victims.namespace(os.getpid())
    try:
        while os.path.exists(f"/proc/{root}"):
            pids = victims.tree(root)
            for found in set(victims.listeners(pids)) - known:
                known.add(found)
                where = found[0]
                if where not in children:
                    pid = next((p for p in pids if victims.namespace(p) == where), 0)
                    with contextlib.suppress(OSError):
                        place = -1 if where == own else os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
                        orders, children[where] = os.pipe()
                        if os.fork() == 0:
                            for end in children.values():  # only the parent's end keeps a child alive
                                os.close(end)
                            signal.signal(signal.SIGTERM, signal.SIG_IGN)
                            attack(seed + len(children), user, place, orders, results, called)
                        os.close(orders)
                if where in children:
                    with contextlib.suppress(OSError):
                        os.write(children[where], ("\t".join(map(str, found[1:])) + "\n").encode())
            mark(rounds)
            time.sleep(0.05)
    finally:
        for end in children.values():
            os.close(end)
        os.close(results)
        with os.fdopen(reading) as counts:
            print(f"calls {sum(map(int, counts.read().split()))} to {len(known)} sockets", flush=True)


if __name__ == "__main__":
    main()
