"""The standard input of rank 0, if it is a terminal: the launcher reads it and passes it on."""

from __future__ import annotations

import os
import select
import signal
import sys
from typing import IO

__all__ = ["Feed"]


class Feed:
    """The terminal's lines, passed on to rank 0.

    In the background the launcher does not read, because the kernel would stop it.
    """

    def __init__(self, sink: IO[bytes]) -> None:
        self._sink = sink
        self._pending = b""  # input that the pipe had no room for yet
        os.set_blocking(sink.fileno(), False)

    def interest(self) -> dict[int, int]:
        """Return the descriptor and the poll events to wait for; empty if the terminal must not be read."""
        if self._pending:
            return {self._sink.fileno(): select.POLLOUT}
        return {sys.stdin.fileno(): select.POLLIN} if _in_foreground(sys.stdin.fileno()) else {}

    def pump(self) -> bool:
        """Pass on the available input. Return False at its end, or if rank 0 has closed it."""
        try:
            if not self._pending:
                typed = _read_terminal(sys.stdin.fileno(), 1 << 12)
                if typed is None:
                    return True
                self._pending = typed
            while self._pending:
                self._pending = self._pending[os.write(self._sink.fileno(), self._pending) :]
                if not self._pending:
                    return True
        except BlockingIOError:
            return True
        except OSError:
            pass
        self.close()
        return False

    def close(self) -> None:
        """Close the pipe, so that rank 0 reads the end of its input."""
        self._sink.close()


def _in_foreground(terminal: int) -> bool:
    """Return whether this process may read from a terminal.

    A process reads its controlling terminal only in the foreground.
    """
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:  # not the controlling terminal of this process
        return True


def _read_terminal(terminal: int, most: int) -> bytes | None:
    """Read input; return b"" at its end, and None if this process has just been put into the background.

    With SIGTTIN blocked, the kernel then returns EIO and does not stop the process. The signal is not ignored instead,
    because ranks would inherit that.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTTIN})
    try:
        return os.read(terminal, most)
    except OSError:
        if _in_foreground(terminal):
            raise
        return None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
