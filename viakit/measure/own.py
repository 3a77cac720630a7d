"""User-defined protocols, measured together with the others: ``FILE.py:CLASS`` as the name of a protocol.

The class is a :class:`viakit.measure.pyloop.Transport` with ``send(n)`` and ``recv(n)``. Its constructor gets a
connected Unix stream socket, and whether to poll. It is measured with the same loop, sizes, rounds and statistics as
every other protocol. Lesson 10 builds one.

>>> class Mine(Transport):                                    # doctest: +SKIP
...     def __init__(self, sock, polled): self.sock = sock
...     def send(self, n): self.sock.sendall(self.messages[n])
...     def recv(self, n): read_all(self.sock, self.rooms[n])
"""

from __future__ import annotations

import importlib.util
import socket
import struct
import sys
from pathlib import Path
from typing import Any

from viakit.measure.endpoints import MeasureError, Protocol
from viakit.measure.sides import SocketSide

__all__ = ["OwnSide", "is_own", "load", "protocol"]


def is_own(name: str) -> bool:
    """Return whether *name* is of the form ``FILE.py:CLASS``."""
    return ".py:" in name


def protocol(name: str) -> Protocol:
    """Return the description of a user-defined protocol. Its file is loaded, so that errors appear before the start.

    Raises
    ------
    ValueError
        If the file or the class does not exist; the message lists the classes of the file.
    """
    kind = load(name)
    text = (kind.__doc__ or "user-defined protocol").strip().partition("\n")[0]
    modes = ("pingpong", "stream", "rate")
    return Protocol(
        name,
        "unix",
        ("python",),
        frozenset(),
        text,
        min_bytes=1,
        modes=modes,
        waits=("poll", "block"),
        side="own:OwnSide",
    )


def load(name: str) -> type:
    """Return the class that ``FILE.py:CLASS`` names. Raises ValueError, or the exception of the file itself."""
    from viakit.measure.pyloop import Transport  # start-up time

    file, _, wanted = name.rpartition(":")
    path = Path(file).resolve()
    if not path.is_file():
        raise ValueError(f"{name}: there is no file {path}; name a user-defined protocol as FILE.py:CLASS")
    spec = importlib.util.spec_from_file_location(f"viakit_own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    there = [key for key, one in vars(module).items() if isinstance(one, type) and issubclass(one, Transport)]
    there = [key for key in there if key != "Transport"]
    if wanted not in there:
        raise ValueError(
            f"{name}: {path.name} has no class {wanted!r} derived from Transport; it has: {', '.join(there) or 'none'}"
        )
    return vars(module)[wanted]


class OwnSide(SocketSide):
    """The user-defined transport on a Unix stream socket."""

    def __init__(self, request: dict[str, Any]) -> None:
        super().__init__({**request, "protocol": "unix"})
        self.name: str = request["protocol"]

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect the socket and create the user's transport on it."""
        from viakit.measure.pyloop import PythonEndpoint  # start-up time

        super().connect(peer, deadline)
        assert self.sock is not None
        # A blocking call returns every 50 ms with BlockingIOError, so that the class can call check().
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 50_000))
        try:
            self.endpoint = PythonEndpoint(load(self.name)(self.sock, self.polled))
        except Exception as error:
            raise MeasureError(f"{self.name}: {type(error).__name__}: {error}", "usage") from error

    def describe(self) -> dict[str, Any]:
        """Return the properties of the transport."""
        return {**super().describe(), "library": self.name, "transport": f"{self.name} on a Unix stream socket"}
