"""The Python reference: a page for each class, and an overview for each module.

docs/reference-python.md lists modules and their members. Before Sphinx reads the pages, each class in it gets a page
of its own in docs/classes/, which is not tracked. In the overview, its name and first line stand in its place.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
PAGES = HERE / "classes"
OVERVIEW = "reference-python"
MODULE = re.compile(r"^\.\. automodule:: (\S+)\n((?:   :.*\n)+)", re.MULTILINE)
CLASS = re.compile(r"^\.\. autoclass:: (\S+)\n((?:   :.*\n)+)", re.MULTILINE)


def members(module: Any, options: str) -> list[str]:
    """Return the names that an entry lists, or all public names of the module."""
    listed = re.search(r":members:(.*)\n", options)
    names = [name.strip() for name in listed[1].split(",") if name.strip()] if listed else []
    return names or list(module.__all__)


def first_line(kind: type) -> str:
    """Return the first line of a class's docstring. Cython puts the signature before it."""
    lines = [line for line in (inspect.getdoc(kind) or "").splitlines() if line.strip()]
    if lines and lines[0].startswith(f"{kind.__name__}("):
        del lines[0]
    return lines[0].rstrip(":.") if lines else ""


def options_for(kind: type, options: str) -> str:
    """Return the options of a class's entry: those of its module. An exception has described attributes only."""
    kept = [line for line in options.splitlines() if not line.startswith("   :members:")]
    if issubclass(kind, BaseException):
        kept = [line for line in kept if ":undoc-members:" not in line]
    return "".join(f"{line}\n" for line in ("   :members:", *kept, "   :show-inheritance:"))


def page(name: str, options: str) -> str:
    """Return the text of the page of a class."""
    return f"# {name}\n\n```{{eval-rst}}\n.. autoclass:: {name}\n{options}```\n"


def listing(names: list[str], kinds: list[type]) -> str:
    """Return links to the pages of classes, and their place in the table of contents."""
    links = [f"* :class:`{name}`: {first_line(kind)}" for name, kind in zip(names, kinds, strict=True)]
    entries = "".join(f"   /{PAGES.name}/{name}\n" for name in names)
    return "\n".join(links) + f"\n\n.. toctree::\n   :hidden:\n\n{entries}"


def split(text: str) -> tuple[str, dict[str, str]]:
    """Return the overview, and the text of each page by the full name of its class."""
    pages: dict[str, str] = {}

    def of_module(found: re.Match[str]) -> str:
        module = importlib.import_module(found[1])
        all_names = members(module, found[2])
        classes = [name for name in all_names if inspect.isclass(getattr(module, name))]
        others = [name for name in all_names if name not in classes]
        full, kinds = [f"{found[1]}.{name}" for name in classes], [getattr(module, name) for name in classes]
        pages.update({name: page(name, options_for(kind, found[2])) for name, kind in zip(full, kinds, strict=True)})
        shown = f"   :members: {', '.join(others)}\n" if others else ""
        links = listing(full, kinds) if classes else ""
        title = f"{found[1]}\n{'-' * len(found[1])}\n"
        return f"{title}\n.. automodule:: {found[1]}\n{shown}\n{links}"

    def of_class(found: re.Match[str]) -> str:
        module_name, _, name = found[1].rpartition(".")
        pages[found[1]] = page(found[1], found[2])
        return listing([found[1]], [getattr(importlib.import_module(module_name), name)])

    return CLASS.sub(of_class, MODULE.sub(of_module, text)), pages


def write(app: object) -> None:
    """Write the pages of all classes, and remove those of classes that no longer exist."""
    _, pages = split((HERE / f"{OVERVIEW}.md").read_text(encoding="utf-8"))
    PAGES.mkdir(exist_ok=True)
    for old in PAGES.glob("*.md"):
        if old.stem not in pages:
            old.unlink()
    for name, text in pages.items():
        path = PAGES / f"{name}.md"
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not read again
            path.write_text(text, encoding="utf-8")


def overview(app: object, docname: str, source: list[str]) -> None:
    """Replace the classes of the overview by links."""
    if docname == OVERVIEW:
        source[0], _ = split(source[0])
