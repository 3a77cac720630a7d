"""Properties of a host that others need in order to reach it: its interfaces, addresses and routes."""

from __future__ import annotations

import contextlib
import fcntl
import ipaddress
import os
import platform
import socket
import struct
from collections.abc import Sequence
from typing import Any

from viakit.remote import rdma

__all__ = ["common", "facts", "interfaces", "route_to"]

_SIOCGIFFLAGS, _SIOCGIFADDR, _SIOCGIFNETMASK, _SIOCGIFMTU, _SIOCGIFHWADDR = 0x8913, 0x8915, 0x891B, 0x8921, 0x8927
_UP, _LOOPBACK = 0x1, 0x8


def facts() -> dict[str, Any]:
    """Return name, user, Python, kernel, architecture, number of cores, interfaces and RDMA ports of this host."""
    return {
        "host": socket.gethostname(),
        "user": os.getuid(),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": sorted(os.sched_getaffinity(0)),
        "reached_at": (os.environ.get("SSH_CONNECTION", "").split() or [""] * 4)[2:3],
        "boot": _first_line("/proc/sys/kernel/random/boot_id"),
        "netns": os.readlink("/proc/self/ns/net"),
        "interfaces": interfaces(),
        "rdma": [list(port) for port in rdma.ports()],
    }


def _first_line(path: str) -> str:
    """Return the first line of a file, empty if it cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip()
    except OSError:
        return ""


def interfaces() -> list[dict[str, Any]]:
    """Return the interfaces that are up: "name", "loopback", "mac", "mtu", and "address" as ADDRESS/BITS or None."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:

        def request(command: int, name: str) -> bytes:
            return fcntl.ioctl(sock, command, struct.pack("16s24x", name.encode()))[16:]

        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                (flags,) = struct.unpack_from("=H", request(_SIOCGIFFLAGS, name))
                if not flags & _UP:
                    continue
                one: dict[str, Any] = {
                    "name": name,
                    "loopback": bool(flags & _LOOPBACK),
                    "mac": request(_SIOCGIFHWADDR, name)[2:8].hex(":"),
                    "mtu": struct.unpack_from("=i", request(_SIOCGIFMTU, name))[0],
                    "address": None,
                }
                with contextlib.suppress(OSError):
                    address, mask = (socket.inet_ntoa(request(c, name)[4:8]) for c in (_SIOCGIFADDR, _SIOCGIFNETMASK))
                    one["address"] = str(ipaddress.ip_interface(f"{address}/{mask}"))
                found.append(one)
    return found


def common(hosts: Sequence[Sequence[dict[str, Any]]], loopback: bool) -> list[dict[str, Any]] | None:
    """Return an interface of each host, all in the first network of the first host that the others have, too.

    Parameters
    ----------
    hosts : sequence of sequences of dict
        The interfaces of each host, as :func:`interfaces` returns them.
    loopback : bool
        Whether the loopback joins the hosts. It is then the last choice.

    Returns
    -------
    list of dict or None
        None if the hosts have no network in common, or two of them the same address in it.
    """
    for one in sorted((one for one in hosts[0] if one["address"]), key=lambda one: bool(one["loopback"])):
        network = ipaddress.ip_interface(one["address"]).network
        found = [one]
        for others in hosts[1:]:
            found += [
                other
                for other in others
                if other["address"] and ipaddress.ip_interface(other["address"]).network == network
            ][:1]
        distinct = one["loopback"] or len({other["address"] for other in found}) == len(hosts)
        if len(found) == len(hosts) and distinct and (loopback or not one["loopback"]):
            return found
    return None


def route_to(address: str) -> str | None:
    """Return the address of this host from which it sends to *address*, or None if there is no route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        try:
            sock.connect((address, 9))
        except OSError:
            return None
        return str(sock.getsockname()[0])
