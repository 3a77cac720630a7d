"""Every lesson runs in its quick form, in a kernel of its own. A planted bug fails as announced. Solutions pass.

One run of a lesson has all answers to each exercise. To none, wrong and lazy ones (lesson_answers.py) its check replies
"not yet", and why; to the solution, and to other right answers, it replies
"passed".
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import runpy
from pathlib import Path

import needs
import pytest
from lesson_answers import ACCEPTED, REFUSED

jupytext = needs.module("jupytext", "lab")
nbclient = needs.module("nbclient", "lab")
needs.module("ipyparallel", "lab")

import nbformat  # noqa: E402

from viakit.lab import tutor  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]
LESSONS = sorted((CHECKOUT / "notebooks").glob("[0-9]*.md"))
RUNS = CHECKOUT / "build" / "lessons"
CELL_S = 120  # a cell that takes longer hangs
CODE_COLUMNS = 100  # what JupyterLab shows of a line beside its list of files, in a window of 1280 pixels
PICTURE_COLUMNS = 88  # of Markdown, which has larger letters


def tag_like(cell, pattern: str) -> str | None:
    return next((tag for tag in cell.metadata.get("tags", []) if re.fullmatch(pattern, tag)), None)


def code_cells(path: Path) -> list:
    return [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]


def number_of(lesson: Path) -> int:
    return int(lesson.name[:2])


def with_answers(lesson: Path, *, refused: bool = True):
    """The lesson, with the refused answers and the solution behind each check, and with planted bugs twice."""
    notebook, exercises = jupytext.read(lesson), tutor.exercises_of(number_of(lesson))
    cells = []

    def add(cell, source: str, **metadata) -> None:
        again = cell.copy()
        again.update(source=source, metadata=metadata, id=f"added-{len(cells)}", outputs=[])
        cells.append(type(cell)(again))

    for cell in notebook.cells:
        cells.append(cell)
        if "planted-bug" in cell.metadata.get("tags", []):  # a reader who doubts the result runs it again
            announced = cell.metadata.get("announces-again", cell.metadata["announces"])
            add(cell, cell.source, **{**cell.metadata, "announces": announced})
        if tag := tag_like(cell, r"check-\d"):
            number = int(tag[-1])
            for source, reason in REFUSED[number_of(lesson)][number] if refused else ():
                add(cell, source)
                add(cell, cell.source, refused=reason)
            others = ACCEPTED.get(number_of(lesson), {}).get(number, [])
            for source in (*others, exercises[number].solution):
                add(cell, source)
                add(cell, cell.source, tags=[f"solved-{number}"])
    notebook.cells = cells
    return notebook


def keep_outputs(notebook, lesson: Path) -> None:
    """Keep the run for the documentation, without the added cells: docs/lesson_pages.py shows it."""
    cells = [cell for cell in notebook.cells if not cell.get("id", "").startswith("added-")]
    kept = nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)
    RUNS.mkdir(parents=True, exist_ok=True)
    nbformat.write(kept, RUNS / f"{lesson.stem}.ipynb")


def said(cell) -> str:
    return "".join(one.get("text", "") or one.get("data", {}).get("text/plain", "") for one in cell.outputs)


def test_there_are_lessons():
    assert LESSONS


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_has_its_parts(lesson):
    """A goal, a picture, a number to change, a planted bug, the paper's findings, three exercises, a prediction."""
    text = lesson.read_text(encoding="utf-8")
    for part in (
        "**Goal.**",
        "**You will be able to**",
        "**Time**",
        "**Needs**",
        "lessons.predict(",
        "lessons.measured(",
        "```text",
        "## Change this number",
        "## A planted bug",
        "## The paper and this machine",
        "## Exercises",
    ):
        assert part in text, part
    assert '"outputs"' not in text
    for cell in code_cells(lesson):
        for line in cell.source.splitlines():
            assert len(line) <= CODE_COLUMNS, f"JupyterLab cuts it off: {line}"
    for picture in re.findall(r"```text\n(.*?)```", text, re.DOTALL):
        assert max(map(len, picture.splitlines())) <= PICTURE_COLUMNS, f"JupyterLab wraps it at 1280x800:\n{picture}"
    assert f"lessons.begin({number_of(lesson)})" in text
    assert sorted(tutor.exercises_of(number_of(lesson))) == sorted(REFUSED[number_of(lesson)]) == [1, 2, 3]
    tags = {tag for cell in code_cells(lesson) for tag in cell.metadata.get("tags", [])}
    assert {"check-1", "check-2", "check-3", "exercise-1", "exercise-2", "exercise-3", "planted-bug"} <= tags
    for other in re.findall(r"\]\(([^)#:]+\.md)\)", text):
        assert (lesson.parent / other).exists(), f"a link to {other}, which is not there"


MEASURES = re.compile(r"%viakit (?!ranks)\w+|run_line_magic\(|\b(?<!def )app\(|\blab\.\w+\(|\bcopy_speed\(n\)")
SHOWS = re.compile(r"start=False|lab\.via\(")  # a panel that waits for its button, and a message step by step


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_no_solution_stands_in_the_lesson(lesson):
    text = lesson.read_text(encoding="utf-8")
    for number, one in tutor.exercises_of(number_of(lesson)).items():
        words = one.solution.strip()
        for answer in (words, *re.findall(r'"([^"\n]*=[^"\n]*)"', words)):  # such as a policy with its changed field
            assert answer not in text, f"exercise {number} is answered by {answer}"


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_guess_precedes_each_measurement_and_is_displayed_beside_it(lesson):
    """Measurements of the smallest program and of planted bugs need none."""
    pending: set[str] = set()
    section, n_measurements = "", 0
    for cell in jupytext.read(lesson).cells:
        if cell.cell_type != "code":
            section = (re.findall(r"^## (.+)$", cell.source, re.MULTILINE) or [section])[-1]
            continue
        if guess := re.search(r'lessons\.predict\(\s*"(.+?)",\s*\.\.\.,', cell.source):
            pending.add(guess[1])
        if MEASURES.search(cell.source) and not SHOWS.search(cell.source) and section != "The smallest program":
            n_measurements += 1
            assert pending or "planted-bug" in cell.metadata.get("tags", []), f"no guess before:\n{cell.source}"
        if "lessons.measured(" in cell.source:
            shown = {name for name in pending if f'"{name}"' in cell.source}
            shown |= {name for name in pending if 'f"{name}, ' in cell.source and name.split(", ")[1] in cell.source}
            assert shown, f"no guess of this name before:\n{cell.source}"
            pending -= shown
    assert not pending, f"guesses that are not displayed beside a measurement: {pending}"
    assert n_measurements or number_of(lesson) in (2, 9), "lessons 2 and 9 count and compute first"


def test_the_stopwatch_walks_each_minute_of_the_plan_once():
    steps = runpy.run_path(str(CHECKOUT / "tools" / "walk"), run_name="walk")["steps"]()
    assert steps[0][0] == 0
    assert steps[-1][1] == 90
    for before, after in itertools.pairwise(steps):
        assert before[1] == after[0], f"the step after minute {before[1]} begins at minute {after[0]}"


def test_a_page_shows_the_outputs_of_the_same_text_only(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("lesson_pages", CHECKOUT / "docs" / "lesson_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    monkeypatch.setattr(pages, "RUNS", tmp_path)
    lesson = LESSONS[0]
    assert pages.kept(lesson) is None
    run = jupytext.read(lesson)
    code = [cell for cell in run.cells if cell.cell_type == "code"]
    code[1]["outputs"] = [
        nbformat.v4.new_output("stream", text="```\n\x1b[1mtext\x1b[0m"),
        nbformat.v4.new_output("display_data", {"text/html": "<svg></svg>", "text/plain": "not this"}),
        nbformat.v4.new_output("error", ename="CompletionError", evalue="no descriptor"),
    ]
    nbformat.write(run, tmp_path / f"{lesson.stem}.ipynb")
    page = "\n\n".join(pages.myst(lesson, pages.kept(lesson)))
    for part in (
        "# Start here",
        "````text\n```\ntext\n````",
        '```{raw} html\n<div class="lesson-output"><svg></svg></div>\n```',
        "CompletionError: no descriptor",
        "{doc}`1. Why is TCP slow? </notebooks/01-why-is-tcp-slow>`",
        pages.SHORT,
    ):
        assert part in page, part
    assert "not this" not in page
    assert pages.NOT_RUN in "\n".join(pages.myst(lesson, None))
    code[1]["source"] += "\n# changed"
    nbformat.write(run, tmp_path / f"{lesson.stem}.ipynb")
    assert pages.kept(lesson) is None


def test_a_page_names_the_cause_of_a_failed_run_and_its_cell():
    spec = importlib.util.spec_from_file_location("lesson_pages", CHECKOUT / "docs" / "lesson_pages.py")
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    cell = nbformat.v4.new_code_cell("a = 1\nraise ValueError('the wire is cut')")
    with pytest.raises(nbclient.exceptions.CellExecutionError) as raised:
        nbclient.NotebookClient(nbformat.v4.new_notebook(cells=[cell]), timeout=120, kernel_name="python3").execute()
    cause = pages.cause(raised.value)
    assert cause == "ValueError: the wire is cut (in the cell that begins with: a = 1)"
    page = "\n\n".join(pages.myst(LESSONS[0], None, cause))
    assert cause in page
    assert pages.NOT_RUN not in page
    assert pages.cause(RuntimeError("")) == "RuntimeError"


def execute(notebook, folder: Path) -> None:
    """Run a notebook of with_answers() in a kernel of its own, and check what each cell displays."""
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=CELL_S, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        errors = [one["ename"] for one in cell.get("outputs", ()) if one["output_type"] == "error"]
        wanted = [cell.metadata["announces"]] if "planted-bug" in cell.metadata.get("tags", []) else []
        assert errors == wanted, f"{errors} where {wanted} was announced:\n{cell.source}\n{said(cell)}"
        shown = [one.get("data", {}) for one in cell.get("outputs", ())]
        drawn = [data for data in shown if "Figure size" in data.get("text/plain", "")]
        assert all("text/html" in data for data in drawn), f"a figure is displayed as text:\n{cell.source}"
        if "prediction-result" in cell.metadata.get("tags", []):
            assert said(cell), f"nothing is displayed beside the guess:\n{cell.source}"
        if number := tag_like(cell, r"check-\d"):
            assert "not yet" in said(cell), f"{number} accepts an exercise without an answer: {said(cell)}"
            assert "still" in said(cell), said(cell)
        if reason := cell.metadata.get("refused"):
            assert "not yet" in said(cell), f"accepted: {said(cell)}"
            assert reason in said(cell), said(cell)
        if number := tag_like(cell, r"solved-\d"):
            assert "passed" in said(cell), f"{number}: {said(cell)}"


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_lesson_runs(lesson, tmp_path, monkeypatch):
    monkeypatch.setenv("VIAKIT_QUICK", "1")
    notebook = with_answers(lesson)
    execute(notebook, tmp_path)
    keep_outputs(notebook, lesson)


ON_THIS_HOST = """
from viakit.lab import lessons

lessons.wire = lambda: lessons.Wire("local", "via-udp", "this test measures on one host")
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("lesson", [LESSONS[i] for i in (1, 3, 5, 8, 11)], ids=lambda path: path.stem)
def test_the_checks_hold_on_a_machine_without_namespaces(lesson, tmp_path, monkeypatch):
    """The same answers are right if the lesson measures within this host."""
    monkeypatch.setenv("VIAKIT_QUICK", "1")
    notebook = with_answers(lesson, refused=False)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(ON_THIS_HOST))
    execute(notebook, tmp_path)
