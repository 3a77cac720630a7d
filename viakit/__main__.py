"""The entry point ``viakit``, and of ``python -m viakit``.

The command's modules take a while to import. An exception that a signal raises meanwhile may be lost: importlib calls a
function at the end of each import, and Python ignores exceptions there. So SIGINT ends the process until they are
imported. Nothing has been started by then.
"""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Run the command."""
    is_default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_default:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from viakit import cli  # see above

    if is_default:
        signal.signal(signal.SIGINT, cli.interrupt)
    cli.main()


if __name__ == "__main__":
    main()
