"""Files of ``viakit calibrate``, which the engines in C read: comments, then lines of a keyword and its values."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def text(of: str, environment: Mapping[str, Any], lines: Iterable[str]) -> str:
    """Return a file that begins with the subject, the time and the machine of the calibration."""
    head = [
        f"# viakit calibration of {of}, {time.strftime('%Y-%m-%d %H:%M:%S')}",
        *(f"# {key}: {value}" for key, value in sorted(environment.items()) if not isinstance(value, dict)),
    ]
    return "\n".join(" ".join(line.split()) for line in (*head, *lines)) + "\n"


def save(content: str, path: str) -> str:
    """Write the file atomically and return its name. Raises OSError if this fails."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    draft = place.with_name(place.name + ".new")
    draft.write_text(content, encoding="utf-8")
    draft.replace(place)
    return str(place)
