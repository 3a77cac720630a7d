"""Calibrations that were measured between two machines: each of them saves what its programs will read."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from viakit import _core
from viakit.base import calibration_file as _calibration_file
from viakit.base.process import command

if TYPE_CHECKING:
    from viakit.measure.calibrate import Calibration
    from viakit.measure.calibrate_messages import Thresholds
    from viakit.remote import Remote

__all__ = ["main", "save_on"]

_SAVE_S = 60.0
_PATHS = {"Calibration": _core.bip_calibration_path, "Thresholds": _core.message_calibration_path}


def save_on(remote: Remote, found: Sequence[Calibration | Thresholds]) -> list[str]:
    """Save calibrations on each host, where its environment places them, and return "HOST:PATH" of each file.

    Raises
    ------
    viakit.testbed.TestbedError
        If a host is lost, or cannot write a file; the message has its reason.
    """
    from viakit.testbed import TestbedError  # the same

    request = json.dumps([{"kind": type(one).__name__, "link": one.link, "text": one.text()} for one in found])
    saved = []
    for host in remote.hosts:
        done = host.run(command(__name__), input=request, timeout=_SAVE_S)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no output"])[-1]
            raise TestbedError(f"{host.name} did not save the calibration: {reason}")
        saved += [f"{host.name}:{path}" for path in json.loads(done.stdout)]
    return saved


def _save(one: dict[str, Any]) -> str:
    return _calibration_file.save(one["text"], _PATHS[one["kind"]](one["link"]))


def main() -> int:
    """Save the calibrations of the standard input, as JSON, on this machine; print the names of the files."""
    try:
        print(json.dumps([_save(one) for one in json.load(sys.stdin)]))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
