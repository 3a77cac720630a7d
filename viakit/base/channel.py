"""Control channel between a process and its helpers: messages of JSON, each followed by raw bytes.

A frame consists of two lengths of 4 bytes (big-endian), the JSON text, and binary data such as samples. Its contents
are never executed or unpickled. The channel is idle during a measurement. If data arrives, or the channel is closed, a
worker's loop stops.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import time
from typing import Any

__all__ = ["CONTROL_VERSION", "Channel"]

CONTROL_VERSION = 1  # version of the messages between pair and worker, exchanged first

_LENGTHS = struct.Struct("!II")
_MAX_JSON, _MAX_BLOB = 1 << 24, 1 << 30


class Channel:
    """One end of a control channel. It owns the connected stream socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(True)
        self.sock = sock

    def fileno(self) -> int:
        """Return the descriptor, for select and for the measuring loop."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any], blob: bytes = b"") -> None:
        """Send one message. Raises OSError if the other end has closed the channel."""
        text = json.dumps(message).encode()
        self.sock.sendall(_LENGTHS.pack(len(text), len(blob)) + text + blob)

    def recv(self, timeout_s: float | None = None) -> tuple[dict[str, Any], bytes]:
        """Receive one message and its binary data.

        Raises
        ------
        EOFError
            If the other end has closed the channel.
        TimeoutError
            After *timeout_s* seconds (None: never).
        ValueError
            If the received data is not a frame.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        n_json, n_blob = _LENGTHS.unpack(self._exactly(_LENGTHS.size, deadline))
        if n_json > _MAX_JSON or n_blob > _MAX_BLOB:
            raise ValueError(f"a control message of {n_json} + {n_blob} bytes is invalid; the peer is not a worker")
        message = json.loads(self._exactly(n_json, deadline))
        if not isinstance(message, dict):
            raise ValueError("a control message is not a JSON object; the peer is not a worker")
        return message, self._exactly(n_blob, deadline)

    def _exactly(self, n: int, deadline: float | None) -> bytes:
        data = bytearray(n)
        view, done = memoryview(data), 0
        while done < n:
            if deadline is not None:
                left = max(0.0, deadline - time.monotonic())
                if not select.select([self.sock], [], [], left)[0]:
                    raise TimeoutError("no reply on the control channel")
            try:
                got = self.sock.recv_into(view[done:])
            except ConnectionError:
                got = 0
            if not got:
                raise EOFError("the control channel was closed")
            done += got
        return bytes(data)

    def close(self) -> None:
        """Close this end; the other end is notified at once."""
        self.sock.close()
