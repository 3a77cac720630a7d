"""Result files of schema ``viakit.result/1``: creation, validation, reading and writing.

A document is a plain dict as ``json.load`` returns it, so that results can be read without viakit. The schema is
``result-1.schema.json`` in the same folder; docs/results.md explains it.
"""

from __future__ import annotations

import csv
import errno
import functools
import io
import json
import os
import shlex
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from viakit.base.words import counted

__all__ = [
    "SCHEMA",
    "ResultError",
    "check_writable",
    "conditions",
    "load",
    "machine_text",
    "merge",
    "save",
    "save_csv",
    "schema",
    "series_label",
    "validate",
    "write_file",
]

SCHEMA = "viakit.result/1"

Document = dict[str, Any]


class ResultError(Exception):
    """A file cannot be read or written, or is not a result; the message names the file and a remedy."""


@functools.cache
def schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a document."""
    return json.loads(Path(__file__).with_name("result-1.schema.json").read_text(encoding="utf-8"))


@functools.cache
def _validator() -> Any:
    """Return the schema's validator.

    If Jupyter is installed, the import of jsonschema builds grammars of Internet addresses. This takes seconds of CPU
    time in every process that writes a result. The schema uses no formats, so the grammars are hidden at the import.
    """
    hidden = "rfc3987_syntax"
    hide = hidden not in sys.modules and "jsonschema" not in sys.modules
    if hide:
        sys.modules[hidden] = None  # type: ignore[assignment]
    try:
        import jsonschema  # start-up time
    finally:
        if hide:
            del sys.modules[hidden]
    return jsonschema.Draft202012Validator(schema())


def validate(document: Mapping[str, Any], name: str = "the document") -> None:
    """Raise :class:`ResultError` unless *document* is a ``viakit.result/1``.

    The message names the place inside the document (``series/0/points/3/nbytes``) and the error.
    """
    given = document.get("schema") if isinstance(document, Mapping) else None
    if given != SCHEMA:
        hint = "it is not a viakit result" if given is None else f"its schema is {given!r}"
        raise ResultError(f"{name}: {hint}; this version reads {SCHEMA!r}")
    error = next(iter(sorted(_validator().iter_errors(document), key=lambda one: list(map(str, one.path)))), None)
    if error is not None:
        where = "/".join(str(part) for part in error.absolute_path) or "top level"
        raise ResultError(f"{name}: not a valid {SCHEMA}, at {where}: {error.message[:300]}")


def _refuse_constant(word: str) -> None:
    """Refuse NaN and Infinity, which Python's JSON module accepts and JSON does not have."""
    raise ValueError(f"{word} is not a number in JSON")


def load(path: str | os.PathLike[str]) -> Document:
    """Read and check a result file.

    Raises
    ------
    ResultError
        If the file does not exist, is not JSON, or is not a valid document.
    """
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except OSError as error:
        raise ResultError(f"{path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ResultError(
            f"{path}: not JSON ({error}); give a file that `viakit sweep --json` or save() wrote"
        ) from error
    validate(document, str(path))
    return document


def _is_plain_target(path: Path) -> bool:
    """Return whether *path* may be replaced by renaming. Devices, pipes and terminals are written directly."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return True  # does not exist yet


def check_writable(*paths: str | os.PathLike[str]) -> None:
    """Raise :class:`ResultError` if one of *paths* cannot be written. Call it before the measurement.

    Two paths must not be the same regular file, because only the last contents would remain. A device may occur twice.
    A disk that fills up during the measurement is detected when the file is written.
    """
    files = set()
    for path in paths:
        _check_writable(Path(path))
        if _is_plain_target(Path(path)):
            file = Path(path).resolve()
            if file in files:
                raise ResultError(f"{path}: is named for two different outputs; give each a file of its own")
            files.add(file)


def _check_writable(target: Path) -> None:
    if not _is_plain_target(target):
        if target.is_dir():
            raise ResultError(f"{target}: is a folder; give a file in it, for instance {target / 'results.json'}")
        if not os.access(target, os.W_OK):
            raise ResultError(f"{target}: may not be written by this user")
        return
    folder = target.resolve().parent
    if not folder.is_dir():
        raise ResultError(
            f"{target}: folder {folder} does not exist; create it with: mkdir -p {shlex.quote(str(folder))}"
        )
    if not os.access(folder, os.W_OK | os.X_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise ResultError(f"{target}: may not be written by this user; choose a file in a folder that you own")


def write_file(path: str | os.PathLike[str], data: bytes) -> None:
    """Write *data* to *path* atomically.

    A regular file is replaced by renaming a complete file in the same folder. If the disk is full, or power fails, the
    old file remains. A device or a pipe (``/dev/stdout``) is written directly.

    Raises
    ------
    ResultError
        If this fails. No incomplete file remains.
    """
    target = Path(path)
    try:
        if not _is_plain_target(target):
            with open(target, "wb", buffering=0) as file:
                view = memoryview(data)
                while view:
                    view = view[file.write(view) :]
            return
        target = target.resolve()  # a symbolic link remains one
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o666 & ~umask)
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            kept = (
                "; the file that was there before is untouched" if _is_plain_target(target) and target.exists() else ""
            )
            raise ResultError(
                f"{path}: no room for {counted(len(data), 'byte')} ({error.strerror}){kept}; free some, "
                "or name a file on another disk"
            ) from error
        raise ResultError(f"{path}: cannot be written ({error.strerror})") from error


def to_bytes(document: Mapping[str, Any]) -> bytes:
    """Return *document* as JSON text in UTF-8. A number that is not finite is an error, because JSON has no ``NaN``."""
    return (json.dumps(document, indent=1, allow_nan=False, ensure_ascii=False) + "\n").encode()


def save(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Check *document* and write it to *path* (see :func:`write_file`).

    Raises
    ------
    ResultError
        If the document is not valid or cannot be written.
    """
    validate(document)
    write_file(path, to_bytes(document))


def merge(documents: list[Document], command: str | None = None) -> Document:
    """Return one document with the series of several documents that one command measured one after the other.

    It is complete if all are. The environment is that of the first, with additional items of the others.
    """
    if not documents:
        raise ResultError("nothing was measured")
    first = documents[0]
    merged: Document = {
        **first,
        "command": command or first["command"],
        "complete": all(one.get("complete", True) for one in documents),
        "environment": dict(first["environment"]),
        "floor": next((one["floor"] for one in documents if one.get("floor")), None),
        "seconds": sum(one["seconds"] for one in documents),
        "elapsed_s": round(sum(one["elapsed_s"] for one in documents), 3),
        "errors": [error for one in documents for error in one.get("errors", [])],
        "series": [series for one in documents for series in one["series"]],
    }
    skipped = {one["protocol"]: one for document in documents for one in document.get("skipped", [])}
    merged["skipped"] = list(skipped.values())
    for document in documents[1:]:
        for key, value in document["environment"].items():
            if merged["environment"].get(key) is None:
                merged["environment"][key] = value
    return merged


_KEYS = {  # by kind of series: the fields that distinguish a line of CSV from the others
    "transfers": "protocol link hosts mtu mode wait level memory buffers sockbuf wire offset",
    "faults": "protocol link hosts mtu mode wait level memory buffers loss retransmission",
    "barriers": "operation algorithm protocol link hosts ranks level skew_s",
    "collectives": "operation algorithm protocol link hosts ranks level skew_s",
    "applications": "application label protocol hosts ranks level",
}


def to_csv(document: Mapping[str, Any]) -> str:
    """Return the points of *document* as CSV with a header line, one line per point, times in seconds.

    Missing values are empty. The columns depend on the kind (:mod:`viakit.measure.kinds`): first the fields that
    distinguish the series, then size, times and number of samples.

    Raises
    ------
    ResultError
        If the document has series of several kinds, whose columns differ.
    """
    from viakit.measure import kinds  # it imports this module

    keys = _KEYS[kinds.common_kind([dict(document)], ["this result"])].split()
    of_sides = "mode" in keys
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    median = "one_way_median_s" if of_sides else "median_s"
    head = [*keys, "nbytes", median, *"ci95_low_s ci95_high_s p5_s p90_s p99_s p999_s min_s max_s".split()]
    writer.writerow([*head, *(["bandwidth_Bps"] if of_sides else []), "samples"])
    for series in document["series"]:
        for point in series["points"]:
            times = point["one_way_s" if of_sides else "time_s"]
            numbers = [times["median"], *times["ci95"]]
            numbers += [times[name] for name in ("p5", "p90", "p99", "p999", "min", "max")]
            numbers += [point["bandwidth_Bps"]] if of_sides else []
            writer.writerow([*(series.get(name) for name in keys), point["nbytes"], *numbers, point["samples"]])
    return text.getvalue()


def save_csv(document: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Write the points of *document* to *path* as CSV (see :func:`to_csv` and :func:`write_file`)."""
    write_file(path, to_csv(document).encode())


# Names of the choices in captions. Older result files do not record every choice.
WORDS = {
    ("wait", "poll"): "polled",
    ("wait", "block"): "blocking",
    ("level", "c"): "C",
    ("level", "python"): "Python",
    ("memory", "user"): "ordinary memory",
    ("memory", "viakit"): "viakit's memory",
    ("memory", "None"): "memory not recorded",
    ("buffers", "touched"): "buffers touched",
    ("buffers", "same"): "buffers untouched",
    ("buffers", "cold"): "cold buffers",
    ("buffers", "None"): "buffers not recorded",
}


def machine_text(environment: Mapping[str, Any]) -> str:
    """Return processor, cores and kernel of a result's environment. Imported results know none of them."""
    if environment["cpu"] == "unknown" and environment["cores"] is None:
        return "an unknown machine"
    return f"{environment['cpu']}, {counted(environment['cores'], 'core')}, {environment['kernel']}"


def conditions(series: Sequence[Mapping[str, Any]]) -> str:
    """Return the memory and the buffers of some series in words: "ordinary memory, buffers touched"."""
    parts: list[str] = []
    for key in ("memory", "buffers") if series else ():
        found: dict[str, list[str]] = {}
        for one in series:
            found.setdefault(WORDS.get((key, str(one.get(key))), str(one.get(key))), []).append(str(one["protocol"]))
        if len(found) == 1:
            parts += list(found)
        else:  # the most frequent value needs no names
            most = max(found, key=lambda text: len(found[text]))
            parts += [f"{text} ({', '.join(dict.fromkeys(who))})" for text, who in found.items() if text != most]
            parts.append(f"otherwise {most}")
    return ", ".join(parts)


_NUMBERED = {"mtu": "MTU", "sockbuf": "socket buffers", "offset": "offset"}


def series_label(series: Mapping[str, Any], among: list[Mapping[str, Any]] | None = None) -> str:
    """Return a name for a series: its protocol, and the fields that distinguish it from the others of *among*."""
    label = str(series["protocol"])
    extras = []
    for key in ("level", "wait", "mode", "hosts", "mtu", "wire", "memory", "buffers", "sockbuf", "offset"):
        values = {str(one.get(key)) for one in among or [] if one["protocol"] == series["protocol"]}
        if len(values) > 1:
            given = str(series.get(key))
            extras.append(WORDS.get((key, given), f"{_NUMBERED[key]} {given}" if key in _NUMBERED else given))
    return f"{label} ({', '.join(extras)})" if extras else label
