"""``python -m viakit``: the same as the command ``viakit``."""

from viakit.cli import main

if __name__ == "__main__":
    main()
