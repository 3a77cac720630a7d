"""The part of PMI that an exchange needs: the protocol of MPICH's launcher (Hydra) and of ``srun --mpi=pmi2``.

Version 1 sends lines of ``key=value`` words over the descriptor of ``PMI_FD``. Version 2 sends ``key=value;`` words
with the length before them, and is used if the launcher refuses version 1. One rank puts a value into the job's
key-value space, and after a barrier any other rank can get it. Values are texts of limited length, so blobs are sent as
base64 in pieces.
"""

from __future__ import annotations

import base64
import os
import select
import socket
import time

from viakit.launch.rendezvous import RendezvousError

__all__ = ["Pmi"]


_VERSIONS = ((1, 1), (2, 0))  # the first that the launcher accepts is used
_VALUE = 1024  # bytes of a value that version 2 allows


def _shown(words: str) -> str:
    """Return a message for an error, without its value, which may be the job's secret."""
    return repr(words.partition("value=")[0])


class Pmi:
    """Connection of a rank to its launcher.

    Raises
    ------
    RendezvousError
        If a reply of the launcher does not conform to PMI.
    """

    def __init__(self, fd: int, n_ranks: int) -> None:
        self._socket = socket.socket(fileno=os.dup(fd))
        self._socket.setblocking(False)
        self._received = b""
        self._n_ranks = n_ranks
        self._n_exchanges = 0
        self._deadline = time.monotonic() + 20.0
        try:
            self._version = self._agree()
            self._space, self._piece = self._begin()
        except BaseException:
            self._socket.close()
            raise

    def _begin(self) -> tuple[str, int]:
        """Open the job's key-value space; return its name and the number of bytes to use in a value."""
        if self._version == 1:
            limits = self._request("cmd=get_maxes", "maxes")
            most = min(_VALUE, int(limits.get("vallen_max", str(_VALUE))))
            return self._request("cmd=get_my_kvsname", "my_kvsname")["kvsname"], max(64, most - 64)
        job = os.environ.get("PMI_JOBID", "")
        words = [f"pmijobid={job}"] if job else []
        words += [f"pmirank={os.environ['PMI_RANK']}", "threaded=FALSE"]
        answer = self._request2(f"cmd=fullinit;{';'.join(words)};")
        return job or answer.get("pmijobid", "") or self._request2("cmd=job-getid;").get("jobid", ""), _VALUE - 64

    def _agree(self) -> int:
        """Agree on a version with the launcher."""
        answers = []
        for major, minor in _VERSIONS:
            self._send(f"cmd=init pmi_version={major} pmi_subversion={minor}\n".encode())
            answers.append(self._line())
            words = dict(word.partition("=")[::2] for word in answers[-1].split())
            if words.get("cmd") == "response_to_init" and words.get("rc", "0") == "0":
                return major
        raise RendezvousError(f"the MPI launcher accepts neither version 1 nor 2 of PMI: {answers}")

    def _put(self, key: str, value: str) -> None:
        if self._version == 2:
            self._request2(f"cmd=kvs-put;key={key};value={value};")
        else:
            self._request(f"cmd=put kvsname={self._space} key={key} value={value}", "put_result")

    def _barrier(self) -> None:
        if self._version == 2:
            self._request2("cmd=kvs-fence;")
        else:
            self._request("cmd=barrier_in", "barrier_out")

    def _get(self, key: str) -> str:
        if self._version == 2:
            answer = self._request2(f"cmd=kvs-get;jobid={self._space};srcid=-1;key={key};")
        else:
            answer = self._request(f"cmd=get kvsname={self._space} key={key}", "get_result")
        return answer.get("value", "")

    def exchange(self, blob: bytes, timeout: float) -> list[bytes]:
        """Exchange data, as :meth:`viakit.launch.rendezvous.Client.exchange` does."""
        self._deadline = time.monotonic() + timeout
        n = self._n_exchanges
        self._n_exchanges += 1
        text = base64.b64encode(blob).decode().replace("=", "_")  # '=' separates words of the protocol
        pieces = [text[i : i + self._piece] for i in range(0, len(text), self._piece)] or [""]
        rank = os.environ["PMI_RANK"]
        for k, piece in enumerate(pieces):
            self._put(f"vk-{n}-{rank}-{k}", f"{len(pieces)}:{piece}")
        self._barrier()
        blobs = []
        for other in range(self._n_ranks):
            whole, k, count = "", 0, 1
            while k < count:
                number, _, piece = self._get(f"vk-{n}-{other}-{k}").partition(":")
                if not number.isdigit():
                    raise RendezvousError(f"the MPI launcher has nothing of rank {other}: is it another version?")
                whole, k, count = whole + piece, k + 1, int(number)
            blobs.append(base64.b64decode(whole.replace("_", "=")))
        return blobs

    def close(self) -> None:
        """Finalize PMI and close the connection. A rank that ends without this counts as failed."""
        self._deadline = time.monotonic() + 5.0
        try:
            if self._version == 2:
                self._request2("cmd=finalize;")
            else:
                self._request("cmd=finalize", "finalize_ack")
        except RendezvousError:
            pass  # the launcher has already ended
        self._socket.close()

    def _request(self, line: str, expected: str) -> dict[str, str]:
        """Send a request in version 1, and return the words of the reply, whose command must be `expected`."""
        self._send(line.encode() + b"\n")
        first = self._line()
        words = dict(word.partition("=")[::2] for word in first.split())
        if words.get("cmd") != expected or words.get("rc", "0") != "0":
            raise RendezvousError(f"the MPI launcher answered {_shown(first)} to {_shown(line)}")
        return words

    def _request2(self, words: str) -> dict[str, str]:
        """Send a request in version 2, six digits of length and words that end with ';', and return the reply."""
        self._send(f"{len(words):6d}{words}".encode())
        length = self._take(6).decode(errors="replace").strip()
        if not length.isdigit():
            raise RendezvousError(f"the MPI launcher answered {length!r} where PMI version 2 has a length")
        text = self._take(int(length)).decode(errors="replace")
        answer = dict(word.partition("=")[::2] for word in text.split(";") if word)
        question = words.partition(";")[0]
        if answer.get("cmd") != f"{question[4:]}-response" or answer.get("rc", "0") != "0":
            raise RendezvousError(f"the MPI launcher answered {_shown(text)} to {question!r}")
        return answer

    def _send(self, whole: bytes) -> None:
        data = memoryview(whole)
        while data:
            try:
                data = data[self._socket.send(data, socket.MSG_NOSIGNAL) :]
            except BlockingIOError:
                self._wait(select.POLLOUT)
            except OSError as error:
                raise RendezvousError(f"the MPI launcher is gone ({error.strerror})") from error

    def _line(self) -> str:
        while b"\n" not in self._received:
            self._more()
        first, _, self._received = self._received.partition(b"\n")
        return first.decode(errors="replace")

    def _take(self, n: int) -> bytes:
        while len(self._received) < n:
            self._more()
        data, self._received = self._received[:n], self._received[n:]
        return data

    def _more(self) -> None:
        """Wait for data from the launcher."""
        while True:
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
            return

    def _wait(self, event: int) -> None:
        poll = select.poll()
        poll.register(self._socket.fileno(), event)
        while not poll.poll(50):
            if time.monotonic() > self._deadline:
                raise RendezvousError(f"not all of the {self._n_ranks} ranks came to the exchange in time")
