"""The command ``viakit lab``: JupyterLab with the lessons."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from viakit.base.process import end_with_parent
from viakit.cli.base import Failure
from viakit.lab import folder as copies

__all__ = ["lab"]


# The lessons are Markdown (MyST). With these settings a double click opens them as notebooks and not as text, and
# JupyterLab does not fetch news from the network. Its theme, light or dark, follows the desktop's.
_SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Jupytext Notebook"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
    "@jupyterlab/apputils-extension:themes": {"adaptive-theme": True},
}

# Ports above 1023 that no browser opens, because other protocols use them: the Fetch standard, "Port blocking".
BAD_PORTS = frozenset(
    [1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080]
)


def find_folder(wanted: str | None, in_place: bool = False) -> Path:
    """Return the folder to open: the requested one, or the user's own copy of the lessons.

    A folder that does not exist becomes a copy of the lessons. Lessons of a checkout and installed ones are refused
    unless *in_place*, because saving would change them and drop the outputs.
    """
    folder = copies.personal() if wanted is None else Path(wanted)
    if wanted is not None and copies.is_source(folder):
        if in_place:
            return folder.resolve()
        raise Failure(
            f"{wanted} has the sources of the lessons. Run `viakit lab` without a folder, which opens your own copy, "
            "or `viakit lab NEW_FOLDER`; to edit the sources, add --in-place",
            2,
        )
    if wanted is None or not folder.exists() or (folder / copies.RECORD).exists():
        for message in copies.prepare(folder):
            click.echo(message)
    return folder.resolve()


def _reset(folder: str | None, lesson: str) -> None:
    """Replace a lesson of the copy by a fresh one."""
    place = copies.personal() if folder is None else Path(folder)
    if copies.is_source(place):
        raise Failure(f"{place} has the sources of the lessons, which are not reset", 2)
    fresh, kept = copies.reset(place, lesson)
    click.echo(f"{fresh} is as it was in the beginning" + (f"; your previous work is in {kept}" if kept else ""))


def _check_port(_context: click.Context, parameter: click.Parameter, port: int | None) -> int | None:
    if port in BAD_PORTS:
        raise click.BadParameter(f"browsers refuse to open port {port}; choose another one", param=parameter)
    return port


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    callback=_check_port,
    help="Port of the server.  [default: first free from 8888]",
)
@click.option(
    "--ip", default=None, metavar="ADDRESS", help="Address of the server; 0.0.0.0 in a container.  [default: localhost]"
)
@click.option("--reset", metavar="LESSON", help="Replace a lesson by a fresh copy, and keep the previous one in kept/.")
@click.option(
    "--hand-in", "hand_in", metavar="F.html", help="Write answers and figures of the saved lessons to a page."
)
@click.option("--name", default="", help="Name on the page of --hand-in.")
@click.option("--in-place", is_flag=True, help="Open the lessons of a checkout themselves, to edit them.")
def lab(
    folder: str | None,
    no_browser: bool,
    port: int | None,
    ip: str | None,
    reset: str | None,
    hand_in: str | None,
    name: str,
    in_place: bool,
) -> None:
    """Open JupyterLab with your own copy of the lessons, or with FOLDER.

    \b
    viakit lab                     your copy, in ~/.local/share/viakit/lessons (XDG_DATA_HOME)
    viakit lab FOLDER              that folder, which is created as a copy if it does not exist
    viakit lab --reset 7           a fresh lesson 7 (your work moves to the folder kept/)
    viakit lab --hand-in me.html   one page with your answers and figures

    Outputs are kept in notebooks (.ipynb) beside the lessons. Ctrl-C ends JupyterLab and all processes started by
    notebooks.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    if reset is not None:
        return _reset(folder, reset)
    if hand_in is not None:
        place = copies.personal() if folder is None else Path(folder)
        n = copies.hand_in(place, Path(hand_in), name)
        click.echo(f"wrote {hand_in}: answers and figures of {n} lesson{'s' * (n != 1)}")
        return None
    for module in ("jupyterlab", "jupytext"):
        if importlib.util.find_spec(module) is None:
            raise Failure(f"{module} is not installed; run pip install 'viakit[lab]', or `make lab` in a checkout")
    root = find_folder(folder, in_place)
    with tempfile.TemporaryDirectory(prefix="viakit-lab-") as settings:
        file = Path(settings) / "labconfig" / "default_setting_overrides.json"
        file.parent.mkdir()
        file.write_text(json.dumps(_SETTINGS), encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"]
        command += [f"--LabApp.default_url=/lab/tree/{copies.FIRST}"] if (root / copies.FIRST).is_file() else []
        command += ["--no-browser"] if no_browser else []
        command += [f"--port={port}"] if port else []
        command += [f"--ip={ip}"] if ip else []
        command += ["--allow-root"] if os.geteuid() == 0 else []  # Jupyter refuses to run as root without it.
        path = [settings, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        environment = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, path))}
        raise SystemExit(_run(command, environment))


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the server until it ends. SIGINT and SIGTERM are forwarded to it."""
    process = subprocess.Popen(command, env=environment, preexec_fn=functools.partial(end_with_parent, signal.SIGTERM))
    n_signals = 0

    def forward(number: int, frame: object) -> None:
        nonlocal n_signals
        n_signals += 1
        process.send_signal(signal.SIGTERM)  # On SIGINT Jupyter would require a confirmation.

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    status = process.wait()
    return 0 if n_signals else status
