"""What the ranks of a job write, on its way to our own standard output and error: see :mod:`viakit._launch`."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from typing import IO

__all__ = ["Sink", "Stream", "wait_for"]

_SLICE_MS = 200
_MAX_LINE = 1 << 16


def wait_for(fd: int, event: int, timeout_ms: int = _SLICE_MS) -> bool:
    """Whether a file, with any number, comes to be ready within that time."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(timeout_ms))


class Sink:
    """Where the output of all ranks goes: our standard output, or standard error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._closed = False
        self.unfinished: object = None  # whose line it is that has not come to its end
        self.problem: str | None = None  # why nothing can be written any more, if there is more to it than no reader

    def put(self, data: bytes) -> bool:
        """Write all of it, also where the file is non-blocking or takes less than given. False: it takes nothing."""
        rest = memoryview(data)
        while not self._closed:
            try:
                taken = self._file.write(rest) if rest else 0
                rest = rest[taken or 0 :]
                if not rest:
                    self._file.flush()
                    break
                if not taken:
                    raise BlockingIOError(errno.EAGAIN, "full", 0)
            except BlockingIOError as full:
                rest = rest[full.characters_written :]
                wait_for(self._file.fileno(), select.POLLOUT)
            except (OSError, ValueError) as error:
                self._turn_away(error)
        return not self._closed

    def _turn_away(self, error: Exception) -> None:
        """Let what the file still holds go nowhere, so that the interpreter can end without stumbling over it."""
        self._closed = True
        if getattr(error, "errno", None) not in (errno.EPIPE, errno.EIO):
            self.problem = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._file.flush()


class Stream:
    """What one rank writes to one of its streams.

    Passed on byte by byte as it came where the rank is `alone`; in whole lines where there are several, or labels.
    """

    def __init__(self, rank: int, source: IO[bytes], sink: Sink, label: bool, alone: bool) -> None:
        self.rank, self.source, self.sink = rank, source, sink
        self.prefix = f"[{rank}] ".encode() if label else b""
        self.alone = alone
        self.pending = b""
        self.mute = False
        self.kept: list[bytes] | None = None  # lines that are kept back until it is known whether they are to be shown
        os.set_blocking(source.fileno(), False)

    def read(self) -> bool:
        """Pass on what there is. False at the end, and when nobody reads it."""
        try:
            data = self.source.read(1 << 16)
        except OSError:
            data = b""
        if data is None:
            return True
        lines = self._lines(data)
        if self.kept is not None:
            self.kept += lines
        elif lines and not self.mute and not self.sink.put(b"".join(map(self._labelled, lines))):
            return False
        return bool(data)

    def decide(self, shown: bool) -> None:
        """Pass on what was kept back, or let it go; and with it all that comes after."""
        kept, self.kept = self.kept or [], None
        self.mute = not shown
        if shown:
            self.sink.put(b"".join(map(self._labelled, kept)))

    def _lines(self, data: bytes) -> list[bytes]:
        """What of it can be passed on now: lines with their ends, and of a line that is too long, what there is."""
        whole = self.alone and not self.prefix
        lines = (self.pending + data).split(b"\n")
        rest = lines.pop()
        lines = [line + b"\n" for line in lines]
        self.pending = b""
        if whole or not data or len(rest) > _MAX_LINE:  # the last line may have no end
            lines += [rest] if rest else []
        else:
            self.pending = rest
        return lines

    def _labelled(self, line: bytes) -> bytes:
        """The line, or part of one, with what stands before it."""
        before, self.sink.unfinished = self.sink.unfinished, None if line.endswith(b"\n") else self
        if before is self:  # it goes on
            return line
        return (b"\n" if before is not None and self.prefix else b"") + self.prefix + line
