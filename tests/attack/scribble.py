"""A process of the victim's user with a wild pointer: it writes random bytes into the memory that viakit shares.

    scribble.py PID SEED

Ends with SIGTERM, and then prints the number of writes. The victim's messages may be destroyed, and it may end with an
error. It must not crash.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import sys
import time

import victims


def main() -> None:
    """Write until the victim has ended."""
    root, rng, n = int(sys.argv[1]), random.Random(int(sys.argv[2])), 0
    over = []
    signal.signal(signal.SIGTERM, lambda *_: over.append(1))
    while os.path.exists(f"/proc/{root}") and not over:
        for path in list(victims.shared_memory(victims.tree(root))):
            with contextlib.suppress(OSError, ValueError):
                fd = os.open(path, os.O_RDWR)
                try:
                    with contextlib.closing(mmap.mmap(fd, 0)) as memory:
                        for _ in range(rng.randrange(1, 50)):
                            # Indices and descriptors are at the beginning of rings and tables.
                            at = rng.randrange(min(len(memory), rng.choice([256, 8192, len(memory)])))
                            word = rng.randbytes(rng.choice([1, 4, 8]))[: len(memory) - at]
                            memory[at : at + len(word)] = word
                            n += 1
                finally:
                    os.close(fd)
        time.sleep(0.01)
    print(f"calls {n} to shared memory", flush=True)


if __name__ == "__main__":
    main()
