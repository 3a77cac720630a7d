"""A spawned rank, before its program: it takes the place of this process. ``VIAKIT_SPAWN`` lists the programs."""

from __future__ import annotations

import json
import os
import sys

__all__ = ["SPAWN", "main"]

SPAWN = "VIAKIT_SPAWN"  # JSON: a list of (command, folder or None, number of ranks)


def main() -> None:
    """Replace this process by the program of its rank."""
    rank = int(os.environ["VIAKIT_RANK"])
    for number, (command, folder, n_ranks) in enumerate(json.loads(os.environ.pop(SPAWN))):
        if rank < n_ranks:
            os.environ["VIAKIT_APPNUM"] = str(number)
            if folder:
                os.chdir(folder)
            try:
                os.execvp(command[0], command)
            except OSError as problem:
                sys.exit(f"viakit: {command[0]} cannot be started: {problem.strerror}")
        rank -= n_ranks
    sys.exit("viakit: VIAKIT_SPAWN has no program for this rank")


if __name__ == "__main__":
    main()
