"""Processes, sockets and shared memory of a victim, as the attackers of this folder find them.

A neighbour of the same user reads this from /proc. For another user the attacker's parent reads it, and hands it on:
names and ports are no secrets.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

LISTENS = "0A"
UNIX_LISTENS = 0x00010000  # __SO_ACCEPTCON


def tree(root: int) -> list[int]:
    """Return the process and all its descendants."""
    children: dict[int, list[int]] = {}
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(process.name))
    found = [root]
    for pid in found:
        found += children.get(pid, [])
    return found


def namespace(pid: int) -> str:
    """Return the network namespace of a process; empty if the process has ended."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/{pid}/ns/net")
    return ""


def _inodes(pid: int) -> set[str]:
    found = set()
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.match(r"socket:\[(\d+)\]", os.readlink(fd)):
                    found.add(match[1])
    return found


def _address(text: str) -> tuple[str, int]:
    host, port = text.split(":")
    raw = bytes.fromhex(host)
    words = struct.unpack(f"<{len(raw) // 4}I", raw)
    packed = struct.pack(f">{len(words)}I", *words)
    family = socket.AF_INET if len(packed) == 4 else socket.AF_INET6
    return socket.inet_ntop(family, packed), int(port, 16)


def listeners(pids: list[int]) -> Iterator[tuple[str, str, str, int]]:
    """Yield (namespace, kind, address, port) of each socket that other processes can send to.

    The kinds are tcp, udp, and unix, which has a name in the abstract namespace or a path, and port 0.
    """
    for pid in pids:
        inodes, where = _inodes(pid), namespace(pid)
        for kind in ("tcp", "tcp6", "udp", "udp6"):
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/net/{kind}").read_text().splitlines()[1:]:
                    fields = line.split()
                    if fields[9] in inodes and (kind.startswith("udp") or fields[3] == LISTENS):
                        yield (where, kind[:3], *_address(fields[1]))
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
                fields = line.split()
                if len(fields) > 7 and fields[6] in inodes and int(fields[3], 16) & UNIX_LISTENS:
                    yield where, "unix", fields[7], 0


def shared_memory(pids: list[int]) -> Iterator[str]:
    """Yield a path in /proc for each memory of viakit that a process has open."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    if re.match(r"/memfd:\S*", os.readlink(fd)):
                        yield str(fd)
