"""The final output of a command."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

__all__ = ["printing"]


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Guard the final output of a command: a closed pipe or terminal is not a failure of the command.

    The reader may be ``head``, which stops reading, or a terminal that was closed and sends SIGHUP.
    """
    from viakit.measure.turns import shielded  # start-up time

    try:
        with shielded():
            yield
            sys.stdout.flush()
    except SystemExit:  # rich raises this on a closed pipe, after it has redirected standard output
        pass
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # Otherwise the interpreter fails again when it exits.
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, sys.stdout.fileno())
            os.close(null)
        if error.errno not in (errno.EPIPE, errno.EIO):
            raise
