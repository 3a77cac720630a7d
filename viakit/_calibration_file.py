"""The files of ``viakit calibrate``, which the engines in C read: comments, then a word and its values on each line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def text(of: str, environment: Mapping[str, Any], lines: Iterable[str]) -> str:
    """Return a file that begins with what it is a calibration of, when, and where it was measured."""
    head = [
        f"# viakit calibration of {of}, {time.strftime('%Y-%m-%d %H:%M:%S')}",
        *(f"# {key}: {value}" for key, value in sorted(environment.items()) if not isinstance(value, dict)),
    ]
    return "\n".join(" ".join(line.split()) for line in (*head, *lines)) + "\n"


def save(content: str, path: str) -> str:
    """Write the file, whole or not at all; return its name. Raises OSError if that cannot be."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(place.name + ".new")
    draft.write_text(content, encoding="utf-8")
    draft.replace(place)
    return str(place)
