"""A real browser, driving JupyterLab as a student would: open a lesson, run it, measure, watch, stop, keep.

Screenshots are left in build/browser/, to be looked at. The browser is the machine's own Chromium.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import needs
import pytest

sync_api = needs.module("playwright.sync_api", "browser")
needs.module("jupyterlab", "lab")
needs.module("jupytext", "lab")

from viakit.lab import folder as copies  # noqa: E402
from viakit.measure import Result  # noqa: E402

CHECKOUT = Path(__file__).resolve().parents[2]
PICTURES = CHECKOUT / "build" / "browser"
START_S = 90
STEP_MS = 200_000
PANEL = ".viakit-lab"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.fixture
def jupyter(tmp_path, monkeypatch):
    """`viakit lab` on the user's copy of the lessons, with a home of its own: yields the address and the folder."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
        (tmp_path / name.lower()).mkdir()
    token, port = secrets.token_hex(16), free_port()
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


@pytest.fixture
def page(jupyter):
    """A page of Chromium, with what it says on its console collected in `page.complaints`; closed before the server."""
    options = {"executable_path": needs.tool("chromium"), "headless": True}
    options["args"] = ["--no-sandbox", "--disable-dev-shm-usage"] if os.geteuid() == 0 else []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(**options)
        page = browser.new_page(viewport={"width": 1500, "height": 1100})
        page.set_default_timeout(STEP_MS)
        page.complaints = []
        page.on("console", lambda message: message.type == "error" and page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        try:
            yield page
        finally:
            shoot(page, "0-last")
            browser.close()


def points(page) -> int:
    """How many points the panel's curves have."""
    return page.locator(f"{PANEL} .scatterlayer .point").count()


def wait_for(page, condition, what: str) -> None:
    deadline = time.monotonic() + STEP_MS / 1000
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        page.wait_for_timeout(100)  # between two looks


def shoot(page, name: str) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{name}.png")


def tracked_files() -> dict[Path, float]:
    """The times of the lessons' sources and of the installed package, which no lesson may change."""
    places = [CHECKOUT / "notebooks", copies.installed()]
    return {path: path.stat().st_mtime for place in places for path in [place, *place.rglob("*")]}


def save_and_reload(page, folder: Path) -> None:
    """Save the notebook: its outputs are in the .ipynb beside it, and in the page after a reload."""
    page.locator("[data-command='docmanager:save']").first.click()
    kept = folder / "00-start-here.ipynb"
    wait_for(page, lambda: kept.exists() and "exercise 3: <b>not yet" in kept.read_text(), "the outputs in the .ipynb")
    page.reload()
    page.locator(".jp-Notebook").wait_for()
    page.locator(".jp-OutputArea-output", has_text=re.compile("two hosts|this host only")).first.wait_for()
    picture = page.locator(".jp-OutputArea-output img").first
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
    page.locator(".jp-OutputArea-output", has_text="exercise 3: not yet").wait_for(state="attached")
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
    page.set_viewport_size({"width": 1280, "height": 800})
    shoot(page, "4-stopped")
    page.set_viewport_size({"width": 1500, "height": 1100})

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
