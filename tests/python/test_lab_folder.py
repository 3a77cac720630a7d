"""A student's copy of the lessons: where it is made, what is never overwritten, resetting, and handing in."""

import nbformat
import needs
import pytest
from click.testing import CliRunner

from viakit.cli import notebook
from viakit.cli.base import Failure
from viakit.lab import folder as copies

LESSON = "07-five-applications.md"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    place = copies.personal()
    assert place == tmp_path / "data" / "viakit" / "lessons"
    copies.prepare(place)
    return place


def installed_state():
    return {path: path.stat().st_mtime_ns for path in copies.installed().rglob("*")}


def test_the_copy_is_in_the_users_data_folder(copy, monkeypatch, tmp_path):
    assert sorted(path.name for path in copy.glob("*.md")) == sorted(p.name for p in copies.installed().glob("*.md"))
    assert "ipynb" in (copy / "jupytext.toml").read_text()
    assert notebook.find_folder(None) == copy
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert copies.personal() == tmp_path / ".local" / "share" / "viakit" / "lessons"


def test_changed_lessons_are_kept_and_unchanged_ones_follow_viakit(copy, tmp_path, monkeypatch):
    newer = tmp_path / "newer"
    newer.mkdir()
    for path in copies.installed().glob("*.md"):
        (newer / path.name).write_text(path.read_text() + "\nnewer\n")
    (copy / LESSON).write_text("my work")
    (copy / "00-start-here.ipynb").write_text("{}")  # opened and saved
    monkeypatch.setattr(copies, "installed", lambda: newer)
    messages = copies.prepare(copy)
    assert (copy / LESSON).read_text() == "my work"
    assert "newer" not in (copy / "00-start-here.md").read_text()
    assert (copy / "03-raw-frames-against-tcp.md").read_text().endswith("newer\n")
    assert [text[:2] for text in messages] == ["00", "07"]
    assert all("--reset" in text for text in messages)


@pytest.mark.parametrize("wanted", ["7", "07", "07-five-applications", LESSON])
def test_reset_keeps_the_work(copy, wanted):
    (copy / LESSON).write_text("my work")
    (copy / LESSON).with_suffix(".ipynb").write_text("my outputs")
    fresh, kept = copies.reset(copy, wanted)
    assert fresh.read_bytes() == (copies.installed() / LESSON).read_bytes()
    assert (kept / LESSON).read_text() == "my work"
    assert (kept / LESSON).with_suffix(".ipynb").read_text() == "my outputs"
    assert not fresh.with_suffix(".ipynb").exists()


def test_what_cannot_be_done(copy, tmp_path):
    with pytest.raises(copies.LessonsError, match=r"no lesson '77'.*07-five"):
        copies.reset(copy, "77")
    needs.module("nbconvert", "lab")
    with pytest.raises(copies.LessonsError, match="no lesson has been saved"):
        copies.hand_in(copy, tmp_path / "me.html")
    with pytest.raises(copies.LessonsError, match=r"ends in \.html"):
        copies.hand_in(copy, tmp_path / "me.pdf")
    before = installed_state()
    for place in (copies.installed(), tmp_path / "source"):
        if place != copies.installed():
            place.mkdir()
            (place / copies.FIRST).write_text("")
            (place / "meson.build").write_text("")
        with pytest.raises(Failure, match="--in-place"):
            notebook.find_folder(str(place))
        assert notebook.find_folder(str(place), in_place=True) == place.resolve()
    assert installed_state() == before


def test_a_port_that_browsers_refuse(tmp_path):
    done = CliRunner().invoke(notebook.lab, [str(tmp_path), "--no-browser", "--port", "6566"])
    assert done.exit_code == 2
    assert "browsers refuse to open port 6566" in done.output
    assert not any(tmp_path.iterdir())


def test_another_folder_is_opened_as_it_is(tmp_path):
    (tmp_path / "mine.md").write_text("# mine")
    assert notebook.find_folder(str(tmp_path)) == tmp_path
    assert [path.name for path in tmp_path.iterdir()] == ["mine.md"]
    assert (notebook.find_folder(str(tmp_path / "new")) / copies.FIRST).exists()


def test_hand_in_has_answers_and_figures_and_nothing_else(copy, tmp_path):
    needs.module("nbconvert", "lab")
    v4 = nbformat.v4
    picture = v4.new_output("display_data", {"image/png": "iVBORw0KGgo="})
    verdict = v4.new_output("stream", text="exercise 1: passed.")

    def code(source, *outputs, tags=()):
        return v4.new_code_cell(source, outputs=list(outputs), metadata={"tags": list(tags)})

    cells = [
        v4.new_markdown_cell("# 7. Five applications\n\nlong text"),
        code("secret_of_no_interest = 1"),
        code("draw()", picture),
        v4.new_markdown_cell("**1.** Which?"),
        code("largest = 'IS'", tags=["exercise-1"]),
        code("lessons.check(1)", verdict, tags=["check-1"]),
    ]
    nbformat.write(v4.new_notebook(cells=cells), (copy / LESSON).with_suffix(".ipynb"))
    assert copies.hand_in(copy, tmp_path / "me.html", "A. <Student>") == 1
    page = (tmp_path / "me.html").read_text()
    for text in ("A. &lt;Student&gt;", "7. Five applications", "Which?", "largest", "passed", "iVBORw0KGgo="):
        assert text in page, text
    assert "secret_of_no_interest" not in page
    assert "long text" not in page
