"""Functions that the tests of the testbed run on hosts, and a wait for a condition."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

from viakit import testbed as testbed_module

PACKAGE = Path(testbed_module.__file__).parents[1]
DEADLINE_S = 60.0  # on a busy machine a process needs many seconds to start


def eventually(condition: Callable[[], bool]) -> bool:
    """Look again and again until the condition holds or the deadline has passed."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.01)
    return True


# --- Functions that run on hosts ------------------------------------------------------------------------------------


def interface_mtu(name: str) -> int:
    import fcntl
    import struct

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        return struct.unpack_from("=i", fcntl.ioctl(s, 0x8921, name.encode().ljust(32, b"\0")), 16)[0]  # SIOCGIFMTU


def echo_once(kind: int, port: int) -> str:
    """Answer one message (UDP) or one connection (TCP) and return the address of its sender."""
    with socket.socket(socket.AF_INET, kind) as s:
        s.settimeout(DEADLINE_S)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.bind(("", port))
        if kind == socket.SOCK_DGRAM:
            message, peer = s.recvfrom(2000)
            s.sendto(message, peer)
        else:
            s.listen()
            connection, peer = s.accept()
            with connection:
                connection.sendall(connection.recv(2000))
        return peer[0]


def ask_echo(kind: int, address: str, port: int) -> bytes:
    """Return the echo of a message, which is sent until the port exists.

    All datagrams come from one socket, because the other host answers only one of them, and perhaps late.
    """
    deadline = time.monotonic() + DEADLINE_S
    with contextlib.ExitStack() as sockets:
        s = None
        while True:
            if s is None or kind == socket.SOCK_STREAM:
                s = sockets.enter_context(socket.socket(socket.AF_INET, kind))
                s.settimeout(0.2 if kind == socket.SOCK_DGRAM else DEADLINE_S)
            try:
                s.connect((address, port))
                s.send(b"who is there?")
                return s.recv(2000)
            except (ConnectionRefusedError, TimeoutError):
                if time.monotonic() > deadline:
                    raise


def receive_frame(interface: str) -> bytes:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5)) as s:
        s.bind((interface, 0x88B5))
        s.settimeout(DEADLINE_S)
        return s.recv(2000)


def send_frames(interface: str, frame: bytes) -> None:
    """Send a frame every few milliseconds for as long as the process lives."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as s:
        s.bind((interface, 0x88B5))
        while True:
            s.send(frame)
            select.select([], [], [], 0.005)


def greet(name: str) -> str:
    print(f"grüße, {name}")
    print("trouble", file=sys.stderr)
    return name.upper()


class OddError(Exception):
    """An exception that can be pickled and not read back."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__("odd")


def raise_odd() -> None:
    raise OddError(1, 2)


def divide(a: int, b: int) -> float:
    return a / b


def wait_for_ever(message: str = "") -> None:
    print(message, flush=True)
    while True:
        signal.pause()


def die(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    if how == "_exit":
        os._exit(4)
    os.kill(os.getpid(), signal.SIGSEGV)


def who_am_i() -> tuple[str, int, int, int]:
    return socket.gethostname(), os.getpid(), os.getuid(), os.stat("/proc/self/ns/net").st_ino
