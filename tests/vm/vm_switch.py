"""An Ethernet switch between machines: the cables of more than two meet here.

    vm_switch.py HERE=THERE HERE=THERE ...

Each argument is a port. THERE is the datagram socket of a machine's card, and HERE is the socket to which that card
sends. A frame goes to the port where its destination was last a sender; a group address, and a destination that is not
known yet, go to all other ports. A card that receives slower than the others send has up to N_WAITING frames kept for
it; the frames after them are lost, as in any switch. The program runs until it is killed.
"""

from __future__ import annotations

import select
import socket
import sys
from collections import deque

__all__ = ["Port", "forward"]

N_WAITING = 1000  # frames per port
_LONGEST = 1 << 16  # bytes of a frame


class Port:
    """One port, with the frames that wait for its card.

    Parameters
    ----------
    here, there : str
        Paths of the sockets. That of the card may be missing: its machine is off.
    """

    def __init__(self, here: str, there: str) -> None:
        self.there = there
        self.waiting: deque[bytes] = deque()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(here)

    def send(self, frame: bytes) -> None:
        """Send a frame to the card after those that wait. It is lost if too many wait or the machine is off."""
        if len(self.waiting) < N_WAITING:
            self.waiting.append(frame)
            self.flush()

    def flush(self) -> None:
        """Send the frames that wait, until the card's socket is full."""
        while self.waiting:
            try:
                self._put(self.waiting[0])
            except BlockingIOError:
                return
            except OSError:
                self.waiting.clear()  # the machine is off
                return
            self.waiting.popleft()

    def _put(self, frame: bytes) -> None:
        """Send a frame to the card. poll() waits for room in the card's socket only if this one is connected to it."""
        try:
            self.socket.send(frame)
        except BlockingIOError:
            raise
        except OSError:
            self.socket.connect(self.there)  # the machine has been switched on
            self.socket.send(frame)


def forward(frame: bytes, source: Port, ports: list[Port], known: dict[bytes, Port]) -> None:
    """Send a frame to the port of its destination, and remember the port of its sender in *known*."""
    target, sender = frame[:6], frame[6:12]
    known[sender] = source
    is_group = target[0] & 1
    to = [known[target]] if not is_group and target in known else ports
    for port in to:
        if port is not source:
            port.send(frame)


def main(*words: str) -> None:
    """Forward frames between the ports until the process is killed."""
    ports = [Port(*word.split("=")) for word in words]
    by_fd = {port.socket.fileno(): port for port in ports}
    known: dict[bytes, Port] = {}
    poll = select.poll()
    while True:
        for fd, port in by_fd.items():
            poll.register(fd, select.POLLIN | (select.POLLOUT if port.waiting else 0))
        for fd, events in poll.poll():
            port = by_fd[fd]
            if events & select.POLLOUT:
                port.flush()
            if events & ~select.POLLOUT:
                try:
                    frame = port.socket.recv(_LONGEST)
                except OSError:
                    continue
                if len(frame) >= 14:
                    forward(frame, port, ports, known)


if __name__ == "__main__":
    main(*sys.argv[1:])
