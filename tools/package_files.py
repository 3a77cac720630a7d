"""Print the files of a package folder that are installed with it, one relative path per line, for meson.build."""

import sys
from pathlib import Path

SUFFIXES = {".csv", ".toml", ".py", ".pyi", ".typed", ".json", ".html", ".css", ".js", ".lua", ".mplstyle", ".c"}


def main(folder: str, *more_suffixes: str) -> None:
    """Walk *folder*; folders without Python sources of their own still count (schemas, templates)."""
    suffixes = SUFFIXES | set(more_suffixes)
    root = Path(folder)
    for path in sorted(root.rglob("*")):
        relative = path.relative_to(root)
        hidden = any(part.startswith((".", "__pycache__")) for part in relative.parts)
        if path.is_file() and not hidden and (path.suffix in suffixes or path.name == "py.typed"):
            print(relative.as_posix())


if __name__ == "__main__":
    main(*sys.argv[1:])
