"""A real browser, driving JupyterLab as a student would: open a lesson, run it, measure, watch, stop, keep.

Screenshots are left in build/browser/, to be looked at. The browser is the machine's own Chromium.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import needs
import pytest
from leftovers import marked
from ports import free_port

sync_api = needs.module("playwright.sync_api", "browser")
needs.module("jupyterlab", "lab")
needs.module("jupytext", "lab")

from viakit.cli.notebook import BAD_PORTS  # noqa: E402
from viakit.lab import folder as copies  # noqa: E402
from viakit.measure import Result  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]
PICTURES = CHECKOUT / "build" / "browser"
START_S = 90
STEP_MS = 200_000
LESSON_S = 400  # for all cells of a lesson, on a busy machine: as in test_lessons.py
PANEL = ".viakit-lab"
SCREENSHOTS = CHECKOUT / "build" / "screenshots"  # 1280x800 in light, dark and grey
WINDOW = {"width": 1280, "height": 800}
SHOWN = ".jp-NotebookPanel:not(.lm-mod-hidden)"
IDLE = ".jp-StatusBar-TextItem:has-text('| Idle')"
# Scroll to a cell, or towards it; return whether it is in the window with so many outputs and pictures.
BRING = """([index, outputs, pictures]) => {
    const list = document.querySelector('.jp-NotebookPanel:not(.lm-mod-hidden) .jp-WindowedPanel-outer');
    const number = cell => Number(cell.dataset.windowedListIndex);
    const drawn = [...list.querySelectorAll('.jp-Cell[data-windowed-list-index]')].filter(one => one.offsetHeight);
    const cell = drawn.find(one => number(one) === index);
    if (cell) {
        cell.querySelector('.jp-OutputArea').scrollIntoView({block: 'start'});
        return cell.querySelectorAll('.jp-OutputArea-output').length === outputs
            && cell.querySelectorAll(".jp-OutputArea-output svg[role='img']").length >= pictures;
    }
    list.scrollTop += (drawn.length && number(drawn[0]) > index ? -1 : 1) * list.clientHeight;
    return false;
}"""
WIDGET = "application/vnd.jupyter.widget-view+json"
LESSONS = sorted((CHECKOUT / "notebooks").glob("[0-9]*.md"))


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """`viakit lab` on the user's copy of the lessons, with a home of its own: yields the address and the folder."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    token = secrets.token_hex(16)
    port = next(port for port in iter(free_port, None) if port not in BAD_PORTS)
    monkeypatch.setenv("JUPYTER_TOKEN", token)
    monkeypatch.setenv("VIAKIT_QUICK", "1")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    folder = tmp_path / "data" / "viakit" / "lessons"
    command = [sys.executable, "-m", "viakit", "lab", "--no-browser", f"--port={port}"]
    with open(tmp_path / "server.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path)
    try:
        deadline = time.monotonic() + START_S
        while True:
            assert process.poll() is None, (tmp_path / "server.log").read_text()
            assert time.monotonic() < deadline, "JupyterLab did not start: " + (tmp_path / "server.log").read_text()
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token={token}"):
                break
            time.sleep(0.1)  # between two looks
        yield f"http://127.0.0.1:{port}/lab/tree/00-start-here.md?token={token}", folder
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        print((tmp_path / "server.log").read_text())


# Each figure of Plotly in the page: its number of traces, and its axes
FIGURES = """[...document.querySelectorAll('.js-plotly-plot')].map(figure => [
    figure.data?.length, Object.keys(figure.layout ?? {}), figure.data?.map(trace => trace.x?.length),
    figure.querySelectorAll('.scatterlayer .point').length])"""
STATUS = """[...document.querySelectorAll('.viakit-status')].map(one => one.textContent)"""


@contextlib.contextmanager
def chromium():
    """Yield a page of Chromium, with the messages of its console in `page.complaints`."""
    options = {"executable_path": needs.tool("chromium"), "headless": True}
    options["args"] = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        page = browser.new_page(viewport=WINDOW)
        page.set_default_timeout(STEP_MS)
        # An automatic save that falls together with a requested one makes JupyterLab suspect another program.
        both = page.locator(".jp-Dialog", has_text="has changed on disk")
        page.add_locator_handler(both, lambda dialog: dialog.get_by_role("button", name="Overwrite").click())
        page.complaints = []
        page.on("console", lambda message: message.type == "error" and page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        try:
            yield page
        finally:
            shoot(page, "0-last")
            print("console:", page.complaints)  # pytest shows both for a test that fails
            with contextlib.suppress(sync_api.Error):
                print("figures:", page.evaluate(FIGURES))
                print("status:", page.evaluate(STATUS))
            browser.close()


@pytest.fixture
def page(jupyter):
    """A page that is closed before the server."""
    with chromium() as made:
        yield made


@pytest.fixture
def lone_page():
    """A page without a server."""
    with chromium() as made:
        yield made


def points(page) -> int:
    """How many points the panel's curves have."""
    return page.locator(f"{PANEL} .scatterlayer .point").count()


def wait_for(page, condition, what: str, limit_s: float = STEP_MS / 1000) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        page.wait_for_timeout(100)  # between two looks


def shoot(page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def in_theme(page, theme: str) -> None:
    """Switch to the theme, and wait until JupyterLab shows it: while it loads, an empty splash covers the window."""
    page.emulate_media(color_scheme=theme)
    if page.locator("body[data-jp-theme-light]").count():
        light = "true" if theme == "light" else "false"
        page.locator(f"body[data-jp-theme-light='{light}']").wait_for(state="attached")
        page.locator("#jupyterlab-splash").wait_for(state="detached")


def in_three_themes(page, name: str) -> None:
    """Leave screenshots in light, dark and grey."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for theme in ("light", "dark"):
        in_theme(page, theme)
        page.screenshot(path=SCREENSHOTS / f"{name}-{theme}.png")
    in_theme(page, "light")
    page.add_style_tag(content=".viakit-grey { filter: grayscale(1); }")
    page.evaluate("document.documentElement.classList.add('viakit-grey')")
    page.screenshot(path=SCREENSHOTS / f"{name}-grey.png")
    page.evaluate("document.documentElement.classList.remove('viakit-grey')")


def tracked_files() -> dict[Path, float]:
    """The times of the lessons' sources and of the installed package, which no lesson may change."""
    places = [CHECKOUT / "notebooks", copies.installed()]
    return {path: path.stat().st_mtime for place in places for path in [place, *place.rglob("*")]}


def save_and_reload(page, folder: Path) -> None:
    """Save the notebook: its outputs are in the .ipynb beside it, and in the page after a reload."""
    kept = folder / "00-start-here.ipynb"
    wait_for(page, lambda: saved_whole(page, kept), "the outputs in the .ipynb")
    assert "exercise 3: <b>not yet" in kept.read_text()
    page.reload()
    page.locator(".jp-Notebook").wait_for()
    page.locator(".jp-OutputArea-output", has_text=re.compile("two hosts|this host only")).first.wait_for()
    picture = page.locator(".jp-OutputArea-output svg[role='img']").first
    page.mouse.move(700, 500)

    def scrolled() -> bool:  # cells far outside the window are not in the page
        page.mouse.wheel(0, 400)
        return picture.count() > 0

    wait_for(page, scrolled, "the picture of the measurement after a reload")
    page.emulate_media(color_scheme="dark")
    page.locator("body[data-jp-theme-light='false']").wait_for(state="attached")  # it has no size
    shoot(page, "7-dark")
    page.emulate_media(color_scheme="light")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_lesson_in_jupyterlab(page, jupyter):
    address, folder = jupyter
    before = tracked_files()
    page.goto(address)
    page.locator(".jp-Notebook").wait_for()
    page.locator(".jp-Notebook .jp-MarkdownOutput h1", has_text="Start here").wait_for()
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()
    shoot(page, "1-opened")

    # all cells, the planted bug among them
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()
    begun = time.monotonic()
    figures = page.locator(".jp-OutputArea-output").locator("svg[role='img'], .js-plotly-plot")
    ended = page.locator(".jp-OutputArea-output", has_text="exercise 3: not yet")
    wait_for(page, lambda: figures.count() > 0 or ended.count() > 0, "a figure or the end of the lesson")
    first_figure = f"the first figure stood {time.monotonic() - begun:.1f} s after the first cell of lesson 0 began"
    (PICTURES / "first-figure.txt").write_text(first_figure + "\n")  # to be read: no test asserts a time
    ended.wait_for(state="attached")
    page.locator(".jp-OutputArea-output", has_text="InvalidStateError").first.wait_for(state="attached")
    panel = page.locator(PANEL)
    panel.scroll_into_view_if_needed()
    panel.locator(".js-plotly-plot").wait_for()
    shoot(page, "2-all-cells-run")

    # a control is moved, and the measurement follows it
    label = page.locator("label", has_text=re.compile("^seconds$"))
    seconds = panel.locator(".widget-inline-hbox", has=label).locator("input")
    seconds.fill("300")  # it is stopped long before
    seconds.press("Tab")
    sizes = panel.locator(".widget-text", has_text="sizes").locator("input")
    sizes.fill("1:4M")  # a whole ladder: it lasts until it is stopped
    sizes.press("Tab")
    panel.locator(".widget-dropdown", has_text="mode").locator("select").select_option("stream")
    panel.get_by_role("button", name="Start").click()
    wait_for(page, lambda: points(page) > 0, "the first point")
    first = panel.locator(".scatterlayer path.js-line").first.get_attribute("d")
    wait_for(
        page,
        lambda: points(page) >= 16 and panel.locator(".scatterlayer path.js-line").first.get_attribute("d") != first,
        "the curve changes while it is measured",
    )
    assert panel.get_by_role("button", name="Stop").is_enabled(), "it was over before it was watched"
    shoot(page, "3-measuring")

    panel.get_by_role("button", name="Stop").click()
    panel.locator(".viakit-status", has_text="stopped").wait_for()
    panel.get_by_role("button", name="Start").click(trial=True)  # it can be started again
    shoot(page, "4-stopped")
    panel.evaluate("panel => panel.scrollIntoView({block: 'start'})")
    figure = panel.locator(".js-plotly-plot").bounding_box()
    assert figure["y"] >= 0, "the figure begins above the window"
    assert figure["y"] + figure["height"] <= WINDOW["height"], "the figure is below the fold"
    assert figure["x"] + figure["width"] <= WINDOW["width"]
    in_three_themes(page, "panel")

    panel.locator(".widget-text", has_text="file").locator("input").fill("kept.json")
    panel.locator(".widget-text", has_text="file").locator("input").press("Tab")
    panel.get_by_role("button", name="Save").click()
    panel.locator(".viakit-status", has_text="written").wait_for()
    shoot(page, "5-saved")
    kept = Result.load(folder / "kept.json")
    assert kept.protocols == ["via-shm", "unix"]
    assert {one["mode"] for one in kept["series"]} == {"stream"}
    assert not kept["complete"]
    assert not page.complaints, page.complaints
    save_and_reload(page, folder)
    assert tracked_files() == before, "a lesson changed the sources or the installed package"


def open_a_cell(page, address: str, file: Path, call: str) -> None:
    """Open a new notebook with one cell, which is not run yet."""
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cell = nbformat.v4.new_code_cell(f"from viakit import lab\n{call}")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": spec}), file)
    page.goto(address.replace("00-start-here.md", file.name))
    page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_page_on_a_slow_machine_shows_the_measurement(page, jupyter):
    """anywidget ignores updates of a widget whose code loads too slowly. Here its limit is 0 s, and not 2 s."""
    address, folder = jupyter
    page.add_init_script("const limit = AbortSignal.timeout; AbortSignal.timeout = () => limit.call(AbortSignal, 0)")
    open_a_cell(page, address, folder / "slow.ipynb", "lab.compare('unix', 'via-shm', sizes='8,4K')")
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()
    wait_for(page, lambda: points(page) == 12, "two points of two curves in three fields")
    page.locator(f"{PANEL} .viakit-status", has_text="done").wait_for()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("how", ["Restart Kernel…", "Shut Down Kernel"])
def test_a_kernel_that_ends_takes_its_measurement_along(page, jupyter, how):
    """Its processes end, and a restarted kernel measures again."""
    address, folder = jupyter
    mark = f"VIAKIT_TEST_RUN={os.environ['VIAKIT_TEST_RUN']}".encode()  # of all processes that tests here have started
    # This measurement ends after its time only, and not when its intervals are tight.
    open_a_cell(page, address, folder / "ends.ipynb", "lab.faults(hosts='local', follow=True, seconds=900)")

    def workers() -> list[str]:
        return [one for one in marked(mark).values() if re.search(r"viakit\.(lab\._worker|measure\.worker)", one)]

    for _ in range(2 if how.startswith("Restart") else 1):
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()
        wait_for(page, lambda: points(page) > 0 and len(workers()) >= 3, "the first point")
        page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.get_by_role("menuitem", name=re.compile(f"^{how}")).click()
        if how.startswith("Restart"):
            page.locator(".jp-Dialog .jp-mod-accept").click()
        wait_for(page, lambda: not workers(), "the end of its processes")
        if how.startswith("Restart"):
            page.locator(".jp-StatusBar-TextItem", has_text="| Idle").wait_for()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_all_lessons_run_and_saved_leave_the_sources_clean(page, jupyter):
    """Each lesson is opened, run and saved as a student would; only the student's copy has changed afterwards."""
    address, folder = jupyter
    before = tracked_files()
    page.goto(address)
    for lesson in LESSONS:
        open_from_the_list(page, lesson)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name=re.compile("^Run All Cells")).click()
        run_to_its_end(page)
        kept = folder / lesson.with_suffix(".ipynb").name
        wait_for(
            page, lambda kept=kept: saved_whole(page, kept), f"outputs of all cells, also behind the bug, in {kept}"
        )
        page.goto(address.replace("00-start-here.md", lesson.name) + "&reset")  # this document only
        page.locator(IDLE).wait_for()  # connected to its kernel again, which has the state of panels
        outputs_are_in_the_page(page, kept)
        in_three_themes(page, lesson.stem)
        page.get_by_role("menuitem", name="Kernel", exact=True).click()
        page.get_by_role("menuitem", name=re.compile("^Shut Down Kernel")).click()
    assert tracked_files() == before, "a lesson changed the sources or the installed package"
    assert {path.name for path in folder.glob("[0-9]*.ipynb")} == {path.with_suffix(".ipynb").name for path in LESSONS}


def open_from_the_list(page, lesson: Path) -> None:
    """Open a lesson from the list of files, and wait for its kernel. A new page would take longer."""
    page.locator(".jp-DirListing-item", has_text=lesson.name).dblclick()
    page.locator(".lm-TabBar-tab.lm-mod-current", has_text=lesson.stem).wait_for()
    page.locator(f"{SHOWN} .jp-MarkdownOutput h1").first.wait_for()
    page.locator(IDLE).wait_for()


def shown_in_the_page(cell: dict) -> list[int]:
    """Return how many outputs and how many pictures of a saved cell a page has to show."""
    html = ["".join(one["data"].get("text/html", "")) for one in cell["outputs"] if "data" in one]
    return [len(cell["outputs"]), sum("<svg" in text for text in html)]


def outputs_are_in_the_page(page, kept: Path) -> None:
    """Go through a lesson that was loaded again: each output and picture of the saved notebook is in the page.

    JupyterLab draws only the cells near the window, so each cell is brought there. At the end the first picture is in
    the window, or the first panel of a lesson without pictures.
    """
    cells = json.loads(kept.read_text())["cells"]
    wanted = {i: shown_in_the_page(cell) for i, cell in enumerate(cells) if cell.get("outputs")}
    assert wanted, f"no outputs in {kept}"
    pictures = [i for i, (_, n_pictures) in wanted.items() if n_pictures]
    panels = [i for i in wanted if any(WIDGET in one.get("data", {}) for one in cells[i]["outputs"])]
    page.locator(f"{SHOWN} .jp-Notebook").wait_for()
    for i in (*wanted, *(pictures or panels)[:1]):
        what = f"cell {i} of {kept.name} with {wanted[i]} outputs and pictures, after the page was loaded again"
        wait_for(page, lambda i=i: page.evaluate(BRING, [i, *wanted[i]]), what)


def all_cells_ran(kept: Path) -> bool:
    """Whether each code cell of a saved notebook was run. JupyterLab may have saved it before, in the middle."""
    try:
        cells = json.loads(kept.read_text())["cells"]
    except (FileNotFoundError, json.JSONDecodeError):  # not saved yet, or JupyterLab is writing it
        return False
    counts = [cell["execution_count"] for cell in cells if cell["cell_type"] == "code"]
    return bool(counts) and None not in counts


def saved_whole(page, kept: Path) -> bool:
    """Save the notebook, and return whether each of its cells was run by then.

    JupyterLab draws only the cells near the window. So between two cells of a long lesson the kernel may be idle while
    no drawn cell waits for its turn, and the notebook is saved in the middle. Then it has to be saved once more.
    """
    if not all_cells_ran(kept):
        page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) [data-command='docmanager:save']").click()
        page.wait_for_timeout(900)  # and 100 ms in wait_for: a save each second
    return all_cells_ran(kept)


def run_to_its_end(page) -> None:
    """Wait until no cell waits for its turn, and the kernel is idle."""

    def over() -> bool:
        return page.locator(".jp-StatusBar-TextItem", has_text="| Idle").count() > 0 and page.evaluate(
            "![...document.querySelectorAll('.jp-InputPrompt')].some(one => one.textContent.includes('*'))"
        )

    wait_for(page, over, "the end of the lesson", LESSON_S)


@pytest.mark.timeout(300)
def test_a_report_opens_with_its_figure_and_follows_the_theme(lone_page, tmp_path):
    page = lone_page
    from synthetic import SyntheticPair, SyntheticTestbed

    from viakit.measure import report, sweep

    SyntheticPair.reset()
    protocols = ["via-eth", "tcp", "tcp:default", "udp", "zmq"]
    config = sweep.Config(protocols, [8, 64, 4096, 1 << 20], seconds=1, seed=3)
    document = sweep.run(config, pair_class=SyntheticPair, testbed_class=SyntheticTestbed).document
    (tmp_path / "report.html").write_text(report.html(document))
    page.goto((tmp_path / "report.html").as_uri())
    figure = page.locator(".js-plotly-plot")
    figure.locator(".point").first.wait_for(state="attached")
    box = figure.bounding_box()
    assert box["y"] + box["height"] <= WINDOW["height"], "the figure is below the fold"
    assert box["x"] + box["width"] <= WINDOW["width"]
    boxes = [one.bounding_box() for one in figure.locator(".annotation-text").all()]
    assert len(boxes) == 3 + len(protocols), "a title for each field, and a name for each curve"
    for one, other in itertools.combinations(boxes, 2):
        assert one["x"] + one["width"] <= WINDOW["width"], "the name of a curve is cut off"
        beside = one["x"] + one["width"] <= other["x"] or other["x"] + other["width"] <= one["x"]
        above = one["y"] + one["height"] <= other["y"] + 3 or other["y"] + other["height"] <= one["y"] + 3
        assert beside or above, "one name is written over another"
    title = figure.locator(".x2title").bounding_box()
    assert figure.locator(".legend").bounding_box()["y"] >= title["y"] + title["height"], "the legend hides a title"
    wide = "[...document.querySelectorAll('.scroll')].filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.evaluate(wide) == 0, "a table is cut off"
    in_three_themes(page, "report")
    ink = "() => getComputedStyle(document.querySelector('.js-plotly-plot .x3tick text')).fill"
    page.emulate_media(color_scheme="light")
    light = page.evaluate(ink)
    page.emulate_media(color_scheme="dark")
    assert page.evaluate(ink) != light, "the figure's text does not follow the theme"
    assert not page.complaints, page.complaints


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("costs", "sizes"),
    [
        ({"via-eth": (3e-6, 1e9), "tcp": (4e-6, 2e9)}, [64, 512, 4096]),  # one decade and a half
        ({"via-eth": (3e-6, 1e9), "tcp": (4e-6, 1e9)}, [8, 4096]),  # less than one
        ({"via-eth": (3e-7, 2e7), "tcp": (4e-5, 1e7)}, [8, 4096, 4 << 20]),  # to 0.4 s
    ],
)
def test_labels_of_the_axes_of_a_report_do_not_overlap(lone_page, tmp_path, monkeypatch, costs, sizes):
    import synthetic

    from viakit.measure import report, sweep

    synthetic.SyntheticPair.reset()
    for name, cost in costs.items():
        monkeypatch.setitem(synthetic.COSTS, name, cost)
    config = sweep.Config([*costs], sizes, seconds=1, seed=3)
    testbed = synthetic.SyntheticTestbed
    document = sweep.run(config, pair_class=synthetic.SyntheticPair, testbed_class=testbed).document
    (tmp_path / "report.html").write_text(report.html(document))
    lone_page.goto((tmp_path / "report.html").as_uri())
    figure = lone_page.locator(".js-plotly-plot")
    figure.locator(".point").first.wait_for(state="attached")
    for axis, side, length in [*((f"y{i}", "y", "height") for i in ("", "2", "3")), ("x2", "x", "width")]:
        labels = figure.locator(f".{axis}tick text")
        boxes = sorted((one.bounding_box() for one in labels.all()), key=lambda box, side=side: box[side])
        assert len(boxes) >= 2, f"{axis} has no scale"
        for one, other in itertools.pairwise(boxes):
            assert one[side] + one[length] <= other[side] + 1, f"labels of {axis}: {labels.all_text_contents()}"
    assert all(re.fullmatch(r"[\d.\u202f]+", text) for text in figure.locator(".x2tick text").all_text_contents())
