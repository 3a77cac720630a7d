"""The command ``viakit lab``: JupyterLab on the lessons."""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import click

__all__ = ["lab"]

_FIRST = "00-start-here.md"
_COPY = "viakit-lessons"
_PR_SET_PDEATHSIG = 1

# The lessons are Markdown (MyST); with this, a double click opens them as notebooks and not as text. And nobody asks
# the network for news.
_SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Jupytext Notebook"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}


def _lessons() -> Path:
    """The folder of the lessons that were installed with viakit."""
    import viakit

    return Path(viakit.__file__).parent / "lessons"


def find_folder(wanted: str | None) -> Path:
    """Return the folder to open: the one that is wanted, lessons that are here, or a new copy of those installed.

    A copy is made once: what somebody has changed in it stays.
    """
    if wanted is not None:
        folder = Path(wanted)
    else:
        for folder in (Path("notebooks"), Path(_COPY), Path(".")):
            if (folder / _FIRST).is_file():
                return folder.resolve()
        folder = Path(_COPY)
    if not folder.exists():
        shutil.copytree(_lessons(), folder)
        click.echo(f"the lessons are in {folder.resolve()}: yours to change")
    return folder.resolve()


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option("--port", type=click.IntRange(1, 65535), help="Of the server.  [default: the first free from 8888]")
def lab(folder: str | None, no_browser: bool, port: int | None) -> None:
    """Open JupyterLab on the lessons, or on FOLDER.

    Without FOLDER: on the lessons that are in this folder; if there are none, on a copy that is made of them
    (viakit-lessons). Ctrl-C ends it, and with it all that notebooks have started.
    """
    from viakit._cli_base import Failure

    for module in ("jupyterlab", "jupytext"):
        if importlib.util.find_spec(module) is None:
            raise Failure(f"{module} is not installed. Remedy: pip install 'viakit[lab]', or `make lab` in a checkout")
    root = find_folder(folder)
    with tempfile.TemporaryDirectory(prefix="viakit-lab-") as settings:
        file = Path(settings) / "labconfig" / "default_setting_overrides.json"
        file.parent.mkdir()
        file.write_text(json.dumps(_SETTINGS), encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"]
        command += [f"--LabApp.default_url=/lab/tree/{_FIRST}"] if (root / _FIRST).is_file() else []
        command += ["--no-browser"] if no_browser else []
        command += [f"--port={port}"] if port else []
        command += ["--allow-root"] if os.geteuid() == 0 else []  # Jupyter asks whether root is meant; it is
        path = [settings, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        environment = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, path))}
        raise SystemExit(_run(command, environment))


def _end_with_parent() -> None:
    """In the server, before it starts: SIGTERM when we are killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the server until it ends; Ctrl-C and SIGTERM are for it, and we go after it."""
    process = subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent)
    asked = 0

    def pass_on(number: int, frame: object) -> None:
        nonlocal asked
        asked += 1
        process.send_signal(signal.SIGTERM)  # SIGINT would make Jupyter ask whether one is sure

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, pass_on)
    status = process.wait()
    return 0 if asked else status
