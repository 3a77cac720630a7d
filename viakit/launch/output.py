"""Output of the ranks of a job, on its way to the launcher's own streams: see :mod:`viakit.launch.runner`."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from typing import IO, TextIO

__all__ = ["Sink", "Stream", "bytes_of", "wait_for"]

_SLICE_MS = 200
_MAX_LINE = 1 << 16


def wait_for(fd: int, event: int, timeout_ms: int = _SLICE_MS) -> bool:
    """Wait for a poll event of a descriptor, and return whether it occurred in time."""
    poll = select.poll()
    poll.register(fd, event)
    return bool(poll.poll(timeout_ms))


def bytes_of(stream: TextIO | None) -> IO[bytes]:
    """Return the binary form of a standard stream. A stream that the process was started without is /dev/null."""
    return open(os.devnull, "wb") if stream is None else stream.buffer


class Sink:
    """Destination of the output of all ranks: the launcher's standard output, or its standard error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._closed = False
        self.unfinished: object = None  # the stream whose last line has no end yet
        self.problem: str | None = None  # why writing fails, unless only the reader is gone

    def put(self, data: bytes) -> bool:
        """Write all data, also to a file that is non-blocking or accepts only a part. Return False if writing fails."""
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
                self._discard(error)
        return not self._closed

    def _discard(self, error: Exception) -> None:
        """Send the rest of the file's buffer to /dev/null, so that the interpreter can flush it at its end."""
        self._closed = True
        if getattr(error, "errno", None) not in (errno.EPIPE, errno.EIO):
            self.problem = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._file.fileno())
            os.close(nowhere)
            self._file.flush()


class Stream:
    """Output of one rank on one of its streams.

    If the rank is `alone`, its output is passed on as it arrives. With several ranks, or with labels, whole lines are
    passed on.
    """

    def __init__(self, rank: int, source: IO[bytes], sink: Sink, label: bool, alone: bool) -> None:
        self.rank, self.source, self.sink = rank, source, sink
        self.prefix = f"[{rank}] ".encode() if label else b""
        self.alone = alone
        self.pending = b""
        self.mute = False
        self.kept: list[bytes] | None = None  # lines held back until decide()
        os.set_blocking(source.fileno(), False)

    def read(self) -> bool:
        """Pass on the available output. Return False at its end, or if the sink cannot be written."""
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
        """Pass on the lines held back and all later ones, or discard both."""
        kept, self.kept = self.kept or [], None
        self.mute = not shown
        if shown:
            self.sink.put(b"".join(map(self._labelled, kept)))

    def _lines(self, data: bytes) -> list[bytes]:
        """Return the lines that can be passed on now: complete ones, and the available part of one that is too long."""
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
        """Return a line, or a part of one, with the label before it."""
        before, self.sink.unfinished = self.sink.unfinished, None if line.endswith(b"\n") else self
        if before is self:  # the line continues
            return line
        return (b"\n" if before is not None and self.prefix else b"") + self.prefix + line
