"""Every lesson runs in its quick form, in a kernel of its own. A planted bug fails as announced. Solutions pass.

One run of a lesson has both: each exercise unchanged, whose check must print "not yet", and then its solution, whose
check must print "passed".
"""

from __future__ import annotations

import re
from pathlib import Path

import needs
import pytest

jupytext = needs.module("jupytext", "lab")
nbclient = needs.module("nbclient", "lab")
needs.module("ipyparallel", "lab")

CHECKOUT = Path(__file__).resolve().parents[2]
LESSONS = sorted((CHECKOUT / "notebooks").glob("[0-9]*.md"))
CELL_S = 120  # a cell that takes longer hangs


def tag_like(cell, pattern: str) -> str | None:
    return next((tag for tag in cell.metadata.get("tags", []) if re.fullmatch(pattern, tag)), None)


def code_cells(path: Path) -> list:
    return [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]


def solutions_of(lesson: Path) -> dict[str, str]:
    """The source of each exercise's solution, by tag."""
    cells = code_cells(lesson.parent / "solutions" / lesson.name)
    return {tag: cell.source for cell in cells if (tag := tag_like(cell, r"exercise-\d"))}


def with_solutions(lesson: Path):
    """The lesson, with each exercise's solution and its check once more behind the check, and its planted bug twice."""
    notebook, solutions = jupytext.read(lesson), solutions_of(lesson)
    cells = []
    for cell in notebook.cells:
        cells.append(cell)
        if "planted-bug" in cell.metadata.get("tags", []):  # a doubtful reader runs it again
            again = cell.copy()
            announced = {"announces": cell.metadata.get("announces-again", cell.metadata["announces"])}
            again.update(id=f"again-bug-{len(cells)}", metadata={**cell.metadata, **announced})
            cells.append(type(cell)(again))
        number = (tag_like(cell, r"check-\d") or "")[-1:]
        if number:
            for source, tags in ((solutions[f"exercise-{number}"], []), (cell.source, [f"solved-{number}"])):
                again = cell.copy()
                again.update(source=source, metadata={"tags": tags}, id=f"again-{number}-{len(cells)}", outputs=[])
                cells.append(type(cell)(again))
    notebook.cells = cells
    return notebook


def said(cell) -> str:
    return "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in cell.outputs)


def test_there_are_lessons():
    assert LESSONS


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_its_parts(lesson):
    """A goal, a picture, a number to change, a planted bug, the paper's findings, three exercises with solutions."""
    text = lesson.read_text(encoding="utf-8")
    for part in (
        "**Goal.**",
        "```text",
        "## Change this number",
        "## A planted bug",
        "## What the paper",
        "## Exercises",
    ):
        assert part in text, part
    assert '"outputs"' not in text
    assert sorted(solutions_of(lesson)) == ["exercise-1", "exercise-2", "exercise-3"]
    tags = {tag for cell in code_cells(lesson) for tag in cell.metadata.get("tags", [])}
    assert {"check-1", "check-2", "check-3", "exercise-1", "exercise-2", "exercise-3", "planted-bug"} <= tags
    for other in re.findall(r"\]\(([^)#:]+\.md)\)", text):
        assert (lesson.parent / other).exists(), f"a link to {other}, which is not there"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_runs(lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("VIAKIT_QUICK", "1")
    notebook = with_solutions(lesson)
    resources = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        errors = [one["ename"] for one in cell.get("outputs", ()) if one["output_type"] == "error"]
        wanted = [cell.metadata["announces"]] if "planted-bug" in cell.metadata.get("tags", []) else []
        assert errors == wanted, f"{errors} where {wanted} was announced:\n{cell.source}\n{said(cell)}"
        if number := tag_like(cell, r"check-\d"):
            assert "not yet" in said(cell), f"{number} is content with an exercise that nobody has solved: {said(cell)}"
        if number := tag_like(cell, r"solved-\d"):
            assert "passed" in said(cell), f"{number}: {said(cell)}"
