"""Whether the kernel of the other machine still acknowledges what a TCP connection sends, read from /proc/net/tcp.

A kernel acknowledges segments within milliseconds, however busy the processes of its machine are. So segments that were
retransmitted several times and are still not acknowledged distinguish a lost link from a machine that is overloaded.

This module imports only the standard library, and runs on both machines.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Connection"]

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_ESTABLISHED, _RETRANSMITTING, _PROBING = "01", "01", "04"  # states, and timers
_SENT_AGAIN = 2  # times; the second is sent 0.6 s after the segment, or after three round trips if that is longer


@dataclass
class Connection:
    """The TCP connection of an ssh client or server, as far as this process can identify it.

    Attributes
    ----------
    inodes : set of int
        Sockets of the process that holds the connection; those of other kinds do no harm.
    ends : set of (str, str)
        Local and remote end, as /proc/net/tcp writes them.
    """

    inodes: set[int] = field(default_factory=set)
    ends: set[tuple[str, str]] = field(default_factory=set)

    @classmethod
    def of_process(cls, pid: int) -> Connection:
        """Return the connections of a process of this user, such as an ssh client."""
        found = cls()
        with contextlib.suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    found._add(os.stat(f"/proc/{pid}/fd/{name}"))
        return found

    @classmethod
    def of_agent(cls, fd: int, environment: Mapping[str, str]) -> Connection:
        """Return the connection of an agent: descriptor *fd*, or that of the ssh server (``SSH_CONNECTION``)."""
        found = cls()
        with contextlib.suppress(OSError):
            found._add(os.fstat(fd))
        words = environment.get("SSH_CONNECTION", "").split()
        if len(words) == 4:
            with contextlib.suppress(OSError, ValueError):
                for remote, local in zip(_written(*words[:2]), _written(*words[2:]), strict=True):
                    found.ends.add((local, remote))
        return found

    def _add(self, about: os.stat_result) -> None:
        if stat.S_ISSOCK(about.st_mode):
            self.inodes.add(about.st_ino)

    def unacknowledged(self) -> bool:
        """Return whether segments remain without acknowledgement after several retransmissions or probes."""
        for table in _TABLES if self.inodes or self.ends else ():
            with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
                next(lines)
                for line in lines:
                    _, local, remote, state, _, timer, retransmits, _, probes, inode = line.split()[:10]
                    if int(inode) not in self.inodes and (local, remote) not in self.ends:
                        continue
                    # Probes replace retransmissions if the interface of this host is down. A peer that is only slow to
                    # read acknowledges them, and the kernel then counts from 0.
                    again = {_RETRANSMITTING: int(retransmits, 16), _PROBING: int(probes)}.get(timer[:2], 0)
                    if state == _ESTABLISHED and again >= _SENT_AGAIN:
                        return True
        return False


def _written(address: str, port: str) -> list[str]:
    """Return an end as /proc/net/tcp and /proc/net/tcp6 write it: words of 32 bits in the order of this machine."""
    if ":" in address:
        forms = [socket.inet_pton(socket.AF_INET6, address.partition("%")[0])] * 2
    else:
        forms = [socket.inet_pton(socket.AF_INET, address)]
        forms.append(bytes(10) + b"\xff\xff" + forms[0])
    words = [[int.from_bytes(form[i : i + 4], sys.byteorder) for i in range(0, len(form), 4)] for form in forms]
    return ["".join(f"{word:08X}" for word in one) + f":{int(port):04X}" for one in words]
