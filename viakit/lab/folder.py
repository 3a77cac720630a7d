"""A student's own copy of the lessons: made, brought up to date, reset, and handed in.

``viakit lab`` opens this copy, never the installed or tracked files. Each lesson is a Markdown file, paired by jupytext
with a notebook of the same name (.ipynb), which keeps the outputs. Files that cells write are in the same folder.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import viakit
from viakit.measure.result import write_file

__all__ = [
    "FIRST",
    "RECORD",
    "LessonsError",
    "find_lesson",
    "hand_in",
    "installed",
    "is_source",
    "personal",
    "prepare",
    "reset",
]

FIRST = "00-start-here.md"
RECORD = ".viakit-lessons.json"  # file name -> SHA-256 of the lesson as it was copied
_PAIRS = 'formats = "ipynb,md:myst"\n'
_KEPT = "kept"


class LessonsError(ValueError):
    """A request about the lessons cannot be fulfilled; the message states what is accepted."""


def installed() -> Path:
    """Return the folder of the lessons that are installed with viakit."""
    return Path(viakit.__file__).parent / "lessons"


def personal() -> Path:
    """Return the user's folder of lessons: ``viakit/lessons`` in XDG_DATA_HOME, which is ~/.local/share by default."""
    data = os.environ.get("XDG_DATA_HOME", "")
    base = Path(data) if os.path.isabs(data) else Path.home() / ".local" / "share"
    return base / "viakit" / "lessons"


def is_source(folder: Path) -> bool:
    """Return whether *folder* has the lessons of a checkout, or those installed with viakit."""
    return folder.resolve() == installed().resolve() or (
        (folder / "meson.build").is_file() and (folder / FIRST).is_file()
    )


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _recorded(folder: Path) -> dict[str, str]:
    try:
        return dict(json.loads((folder / RECORD).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def _copy(name: str, folder: Path, record: dict[str, str]) -> None:
    shutil.copyfile(installed() / name, folder / name)
    record[name] = _hash(folder / name)


def _write_record(folder: Path, record: dict[str, str]) -> None:
    write_file(folder / RECORD, json.dumps(record, indent=1).encode())


def prepare(folder: Path) -> list[str]:
    """Make *folder* a copy of the lessons, or bring an existing copy up to date.

    A lesson that was opened or changed is never overwritten.

    Parameters
    ----------
    folder : pathlib.Path
        Folder of the copy; it is created if it does not exist.

    Returns
    -------
    list of str
        Messages for the user: the new copy, and lessons of which viakit has a newer version.

    Raises
    ------
    OSError
        If the folder cannot be written.
    """
    new = not (folder / FIRST).exists()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "jupytext.toml").exists():
        (folder / "jupytext.toml").write_text(_PAIRS, encoding="utf-8")
    record, messages = _recorded(folder), []
    for source in sorted(installed().glob("*.md")):
        mine = folder / source.name
        if not mine.exists() and not mine.with_suffix(".ipynb").exists():
            _copy(source.name, folder, record)
        elif mine.exists() and record.get(source.name) != _hash(source):
            if _hash(mine) == record.get(source.name) and not mine.with_suffix(".ipynb").exists():
                _copy(source.name, folder, record)
            else:
                messages.append(
                    f"{source.name}: viakit has a newer version; your work was kept. "
                    f"`viakit lab --reset {source.name[:2]}` exchanges it and keeps yours in {_KEPT}/"
                )
    _write_record(folder, record)
    return [f"copied the lessons to {folder}; your work is saved there"] * new + messages


def find_lesson(wanted: str) -> str:
    """Return the file name of an installed lesson.

    Parameters
    ----------
    wanted : str
        The lesson's number ("7" or "07"), or its file name with or without suffix.

    Raises
    ------
    LessonsError
        If there is no such lesson; the message lists the lessons.
    """
    names = sorted(path.name for path in installed().glob("[0-9]*.md"))
    stem = re.sub(r"\.(md|ipynb)$", "", Path(wanted).name)
    for name in names:
        if stem == name[:-3] or (stem.isdigit() and int(stem) == int(name[:2])):
            return name
    raise LessonsError(f"there is no lesson {wanted!r}; expected a number or one of {', '.join(n[:-3] for n in names)}")


def reset(folder: Path, wanted: str) -> tuple[Path, Path | None]:
    """Replace one lesson of a copy by the installed one. The previous files are moved to a folder below ``kept``.

    Parameters
    ----------
    folder : pathlib.Path
        The copy.
    wanted : str
        As for :func:`find_lesson`.

    Returns
    -------
    tuple
        Path of the fresh lesson, and the folder with the previous files, or None.
    """
    name = find_lesson(wanted)
    folder.mkdir(parents=True, exist_ok=True)
    old = [path for path in (folder / name, (folder / name).with_suffix(".ipynb")) if path.exists()]
    kept = None
    if old:
        stamp = datetime.datetime.now().astimezone().strftime("%Y-%m-%dT%H-%M-%S-%f")
        kept = folder / _KEPT / f"{name[:-3]}-{stamp}"
        kept.mkdir(parents=True)
        for path in old:
            path.rename(kept / path.name)
    record = _recorded(folder)
    _copy(name, folder, record)
    _write_record(folder, record)
    return folder / name, kept


# ------------------------------------------------------------------------------------------------ handing in

_WANTED = re.compile(r"(exercise|check|prediction)(-\w+)?")


def _has_figure(cell: Any) -> bool:
    return any(
        mime.startswith("image/") or (mime == "text/html" and ("<img" in text or "<svg" in text))
        for output in cell.get("outputs", ())
        for mime, text in output.get("data", {}).items()
    )


def _chosen(notebook: Any) -> list[Any]:
    """Return the cells that count: title, questions, answers, verdicts, predictions, and cells with a figure."""
    cells = []
    before = None
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and (any(_WANTED.fullmatch(tag) for tag in tags) or _has_figure(cell)):
            if before is not None and any(tag.startswith("exercise") for tag in tags):
                cells.append(before)  # the question
            cells.append(cell)
        elif cell.cell_type == "markdown" and not cells:
            head = cell.copy()
            head["source"] = cell.source.splitlines()[0] if cell.source else ""
            cells.append(type(cell)(head))
        before = cell if cell.cell_type == "markdown" else None
    return cells


def hand_in(folder: Path, out: Path, name: str = "") -> int:
    """Write one page with the answers, verdicts, predictions and figures of all lessons that have been saved.

    Parameters
    ----------
    folder : pathlib.Path
        The copy of the lessons.
    out : pathlib.Path
        Name of the page, which ends in .html. It needs no other file.
    name : str, optional
        Name of the student.

    Returns
    -------
    int
        Number of lessons in the page.

    Raises
    ------
    LessonsError
        If no lesson has been saved, or *out* has another suffix.
    ModuleNotFoundError
        If nbconvert is not installed.
    """
    if out.suffix != ".html":
        raise LessonsError(f"{out}: expected a name that ends in .html")
    import nbformat  # optional packages
    from nbconvert import HTMLExporter  # optional package

    from viakit.measure.environment import environment  # start-up time

    saved = sorted(folder.glob("[0-9]*.ipynb"))
    if not saved:
        raise LessonsError(f"{folder}: no lesson has been saved yet; open one with `viakit lab`, run it, and save it")
    facts = environment(seed=0, command="viakit lab --hand-in", infos=[])
    machine = f"{facts['cpu']}, {facts['cores']} cores, {facts['kernel']}, viakit {facts['viakit']}"
    about = f"# {escape(name) or 'Lessons'}\n\n{facts['date']} · {machine}"
    cells = [nbformat.v4.new_markdown_cell(about)]
    for path in saved:
        cells += _chosen(nbformat.read(path, as_version=4))
    for i, cell in enumerate(cells):
        cell["id"] = f"cell-{i}"
    page, _ = _exporter(HTMLExporter).from_notebook_node(nbformat.v4.new_notebook(cells=cells))
    write_file(out, page.encode())
    return len(saved)


def _exporter(kind: Callable[..., Any]) -> Any:
    exporter = kind(template_name="lab")
    exporter.embed_images = True
    return exporter
