"""The lessons as pages: the text of a notebook, and the outputs of its last run.

docs/notebooks is a link to notebooks/. A run is kept in build/lessons/NAME.ipynb, by the lessons' tests or by this
file. It belongs to a lesson if the sources of all code cells are equal. Without one, VIAKIT_EXECUTE decides:

    1      run the lesson with short measurements (default)
    0      render the lesson without outputs
    again  run all lessons, also those that have a run
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "build" / "lessons"
CELL_S = 120
LINK = re.compile(r"\[([^\]]+)\]\((\d\d-[\w-]+)\.md\)")  # to another lesson
NOT_RUN = "This page was built without a run of the lesson. `make docs EXECUTE=1` runs it and shows the outputs."
FAILED = "The run of the lesson failed when this page was built, so the page has no outputs. {}"
SHORT = "The outputs are from a run with short measurements (`VIAKIT_QUICK=1`), so their bands are wide."


def code(notebook: Any) -> list[Any]:
    """Return the code cells."""
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def kept(lesson: Path) -> Any:
    """Return the kept run of this text of a lesson, or None."""
    run = RUNS / f"{lesson.stem}.ipynb"
    if not run.exists():
        return None
    found = nbformat.read(run, as_version=4)
    same = [cell.source for cell in code(found)] == [cell.source for cell in code(jupytext.read(lesson))]
    return found if same else None


def execute(lesson: Path) -> None:
    """Run a lesson with short measurements and keep its outputs. Raises the errors of nbclient."""
    import nbclient

    os.environ["VIAKIT_QUICK"] = "1"
    notebook = jupytext.read(lesson)
    with tempfile.TemporaryDirectory(prefix="lesson-") as folder:
        resources = {"metadata": {"path": folder}}
        nbclient.NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources).execute()
    RUNS.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, RUNS / f"{lesson.stem}.ipynb")


def fenced(kind: str, text: str) -> str:
    """Return a fence around *text*, longer than any that it contains."""
    ticks = "`" * max([3, *(1 + len(found) for found in re.findall("`{3,}", text))])
    return f"{ticks}{kind}\n{text.rstrip()}\n{ticks}"


def shown(output: Any) -> str:
    """Return an output of a cell as MyST."""
    if output.output_type == "stream":
        return fenced("text", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", output.text))
    if output.output_type == "error":
        return fenced("text", f"{output.ename}: {output.evalue}")
    data = output.get("data", {})
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return fenced("{raw} html", f'<div class="lesson-output">{data[kind]}</div>')
    if "image/png" in data:
        source = "".join(data["image/png"].split())
        return fenced("{raw} html", f'<img class="lesson-output" alt="output" src="data:image/png;base64,{source}">')
    return fenced("text", data["text/plain"]) if "text/plain" in data else ""


def cause(error: Exception) -> str:
    """Return why a run failed: the last line of the error, and the first line of the cell if the error names one."""
    lines = [line.strip() for line in re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(error)).splitlines()]
    words = next((line for line in reversed(lines) if line), type(error).__name__)
    rules = [number for number, line in enumerate(lines) if line and not line.strip("-")]
    cell = [line for line in lines[rules[0] + 1 : rules[1]] if line] if len(rules) > 1 else []
    return f"{words} (in the cell that begins with: {cell[0]})" if cell else words


def myst(lesson: Path, run: Any, failure: str = "") -> Iterator[str]:
    """Yield the parts of a lesson's page. *failure* is the cause if the lesson was run and the run failed."""
    missing = FAILED.format(f"The cause:\n\n{fenced('text', failure)}") if failure else NOT_RUN
    outputs = iter(code(run) if run is not None else ())
    for number, cell in enumerate(jupytext.read(lesson).cells):
        if cell.cell_type != "code":
            yield LINK.sub(r"{doc}`\1 </notebooks/\2>`", cell.source)
            if number == 0:
                yield f":::{{note}}\n{SHORT if run is not None else missing}\n:::"
            continue
        yield fenced("{code-block} ipython3", cell.source)
        done = next(outputs, None)
        yield from filter(None, map(shown, done.outputs if done is not None else ()))


def outdated(app: Any, env: Any, added: set[str], changed: set[str], removed: set[str]) -> list[str]:
    """Return all lessons: a page changes with its run, also if the text is the same."""
    return [name for name in env.found_docs if name.startswith("notebooks/")]


def page(app: Any, docname: str, source: list[str]) -> None:
    """Replace the text of a lesson by its page."""
    if not docname.startswith("notebooks/"):
        return
    lesson, wish = ROOT / f"{docname}.md", os.environ.get("VIAKIT_EXECUTE") or "1"
    if wish not in ("0", "1", "again"):
        raise ValueError(f"VIAKIT_EXECUTE is {wish!r}; expected 0, 1 or again")
    run, failure = kept(lesson) if wish != "again" else None, ""
    if run is None and wish != "0":
        try:
            execute(lesson)
            run = kept(lesson)
        except Exception as error:  # the page stands without outputs, as with figures that a machine cannot draw
            failure = cause(error)
            print(f"{docname}: no outputs, because its run failed: {failure}", file=sys.stderr)
    source[0] = "\n\n".join(myst(lesson, run, failure)) + "\n"
