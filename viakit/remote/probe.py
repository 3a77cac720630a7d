"""The way between two hosts, tried out: what :mod:`viakit.doctor_hosts` runs on both.

::

    serve ADDRESS TOKEN             replies until standard input is closed; prints its ports as JSON
    try ADDRESS TCP UDP INTERFACE TOKEN    tries the way to a server, prints the result as JSON

A datagram begins with the token, and the reply is the token and the length that arrived, so the server is no amplifier.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import statistics
import sys
import time
from typing import Any

from viakit import via
from viakit.base.hardware import card
from viakit.errors import ViaError

__all__ = ["JUMBO", "PAYLOADS", "main"]

JUMBO = 9000
HEADERS = 28  # of IPv4 and UDP
PAYLOADS = (64, 1500 - HEADERS, JUMBO - HEADERS)  # bytes of a datagram: a small one, a whole frame, a jumbo frame
_TRIES, _PATIENCE_S = 5, 2.0  # a busy host may need more than half a second for a reply
_IP_MTU_DISCOVER, _IP_PMTUDISC_DO = 10, 2


def _serve(address: str, token: bytes) -> None:
    """Accept connections and reply to datagrams until standard input is closed."""
    with socket.create_server((address, 0)) as tcp, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind((address, 0))
        print(json.dumps({"tcp": tcp.getsockname()[1], "udp": udp.getsockname()[1]}), flush=True)
        while True:
            ready, _, _ = select.select([tcp, udp, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            if tcp in ready:
                tcp.accept()[0].close()
            if udp in ready:
                data, peer = udp.recvfrom(1 << 16)
                if data.startswith(token):
                    udp.sendto(token + len(data).to_bytes(4, "big"), peer)


def _datagram(sock: socket.socket, token: bytes, nbytes: int) -> float | str:
    """Send one datagram that may not be fragmented. Return the round trip in seconds, or why it failed."""
    began = time.perf_counter()
    try:
        sock.send(token.ljust(nbytes, b"\0"))
        while True:
            answer = sock.recv(1 << 16)
            if answer == token + nbytes.to_bytes(4, "big"):
                return time.perf_counter() - began
    except TimeoutError:
        return "no answer"
    except OSError as error:
        return error.strerror or str(error)


def _try_udp(address: str, port: int, token: bytes) -> dict[str, Any]:
    """Return for each size the best round trip in seconds, or why none came back."""
    found: dict[str, Any] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.settimeout(_PATIENCE_S)
        sock.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _IP_PMTUDISC_DO)
        sock.connect((address, port))
        for nbytes in PAYLOADS:
            results = []
            for _ in range(_TRIES):
                results.append(_datagram(sock, token, nbytes))
                if isinstance(results[-1], str):
                    break
            times = [one for one in results if isinstance(one, float)]
            found[str(nbytes)] = statistics.median(times) if len(times) == _TRIES else results[-1]
    return found


def _try_raw(interface: str) -> str:
    """Return "" if a NIC for raw frames opens on the interface, otherwise why not."""
    try:
        via.Nic(f"eth:{interface}").close()
    except ViaError as error:
        return str(error)
    return ""


def _try(address: str, tcp: int, udp: int, interface: str, token: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"tcp": "", "raw": _try_raw(interface), "card": card(interface)}
    try:
        with contextlib.closing(socket.create_connection((address, tcp), timeout=3.0)):
            pass
    except OSError as error:
        found["tcp"] = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    found["udp"] = _try_udp(address, udp, token)
    return found


def main() -> int:
    """Run one end."""
    role, address, *rest = sys.argv[1:]
    if role == "serve":
        _serve(address, rest[0].encode())
    else:
        tcp, udp, interface, token = rest
        print(json.dumps(_try(address, int(tcp), int(udp), interface, token.encode())))
    return 0
