"""PMI-1, the language of MPICH's launcher (Hydra), as much of it as an exchange needs.

Lines of ``key=value`` words over the descriptor of ``PMI_FD``. What one rank puts into the job's key-value space, any
other can get after a barrier. Values are text of limited length, so blobs go as base64 in pieces.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import time

from viakit._rendezvous import RendezvousError

__all__ = ["Pmi"]


class Pmi:
    """A rank's connection to Hydra.

    Raises
    ------
    RendezvousError
        If the launcher does not answer as PMI-1 has it.
    """

    def __init__(self, fd: int, n_ranks: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(False)
        self._received = b""
        self._n_ranks = n_ranks
        self._n_exchanges = 0
        self._deadline = time.monotonic() + 20.0
        answer = self._ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        if answer.get("rc", "0") != "0":
            raise RendezvousError(f"the MPI launcher refuses PMI version 1: {answer}")
        limits = self._ask("cmd=get_maxes", "maxes")
        self._piece = max(64, min(1024, int(limits.get("vallen_max", "1024"))) - 64)
        self._space = self._ask("cmd=get_my_kvsname", "my_kvsname")["kvsname"]

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """As :meth:`viakit._rendezvous.Client.exchange`."""
        self._deadline = time.monotonic() + timeout
        n = self._n_exchanges
        self._n_exchanges += 1
        text = base64.b64encode(blob).decode().replace("=", "_")  # '=' separates words of the protocol
        pieces = [text[i : i + self._piece] for i in range(0, len(text), self._piece)] or [""]
        rank = os.environ["PMI_RANK"]
        for k, piece in enumerate(pieces):
            self._ask(f"cmd=put kvsname={self._space} key=vk-{n}-{rank}-{k} value={len(pieces)}:{piece}", "put_result")
        self._ask("cmd=barrier_in", "barrier_out")
        blobs = []
        for other in range(self._n_ranks):
            whole, k, count = "", 0, 1
            while k < count:
                answer = self._ask(f"cmd=get kvsname={self._space} key=vk-{n}-{other}-{k}", "get_result")
                number, _, piece = answer.get("value", "").partition(":")
                if not number.isdigit():
                    raise RendezvousError(f"the MPI launcher has nothing of rank {other}: is it another version?")
                whole, k, count = whole + piece, k + 1, int(number)
            blobs.append(base64.b64decode(whole.replace("_", "=")))
        return blobs

    def close(self) -> None:
        """Take leave in order: a rank that just goes counts as failed."""
        self._deadline = time.monotonic() + 5.0
        try:
            self._ask("cmd=finalize", "finalize_ack")
        except RendezvousError:
            pass  # the launcher has gone before us
        self._socket.close()

    def _ask(self, line: str, expected: str) -> dict[str, str]:
        data = memoryview(line.encode() + b"\n")
        while data:
            try:
                data = data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise RendezvousError(f"the MPI launcher is gone ({error.strerror})") from error
        while b"\n" not in self._received:
            try:
                piece = self._socket.recv(1 << 16)
            except BlockingIOError:
                self._wait(select.POLLIN)
                continue
            except OSError:
                piece = b""
            if not piece:
                raise RendezvousError("the MPI launcher is gone: it closed the connection")
            self._received += piece
        first, _, self._received = self._received.partition(b"\n")
        words = dict(word.partition("=")[::2] for word in first.decode(errors="replace").split())
        if words.get("cmd") != expected or words.get("rc", "0") != "0":
            raise RendezvousError(f"the MPI launcher answered {first.decode(errors='replace')!r} to {line!r}")
        return words

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        while not poll.poll(50):
            if time.monotonic() > self._deadline:
                raise RendezvousError(f"not all of the {self._n_ranks} ranks came to the exchange in time")
