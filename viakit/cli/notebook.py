"""The command ``viakit lab``: JupyterLab with the lessons."""

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

import viakit
from viakit.cli.base import Failure

__all__ = ["lab"]

_FIRST = "00-start-here.md"
_COPY = "viakit-lessons"
_PR_SET_PDEATHSIG = 1

# The lessons are Markdown (MyST). With these settings a double click opens them as notebooks and not as text, and
# JupyterLab does not fetch news from the network.
_SETTINGS = {
    "@jupyterlab/docmanager-extension:plugin": {"defaultViewers": {"markdown": "Jupytext Notebook"}},
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False},
}


def _lessons() -> Path:
    """Return the folder of the lessons that are installed with viakit."""
    return Path(viakit.__file__).parent / "lessons"


def find_folder(wanted: str | None) -> Path:
    """Return the folder to open: the requested one, existing lessons, or a new copy of the installed lessons.

    An existing copy is never overwritten, so that changes in it are kept.
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
        click.echo(f"copied the lessons to {folder.resolve()}; you can change them there")
    return folder.resolve()


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False))
@click.option("--no-browser", is_flag=True, help="Print the address and open no browser.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the server.  [default: first free from 8888]")
def lab(folder: str | None, no_browser: bool, port: int | None) -> None:
    """Open JupyterLab with the lessons, or with FOLDER.

    Without FOLDER, JupyterLab opens the lessons in the current folder. If the folder has no lessons, they are copied to
    viakit-lessons. Ctrl-C ends JupyterLab and all processes started by notebooks.
    """
    for module in ("jupyterlab", "jupytext"):
        if importlib.util.find_spec(module) is None:
            raise Failure(f"{module} is not installed; run pip install 'viakit[lab]', or `make lab` in a checkout")
    root = find_folder(folder)
    with tempfile.TemporaryDirectory(prefix="viakit-lab-") as settings:
        file = Path(settings) / "labconfig" / "default_setting_overrides.json"
        file.parent.mkdir()
        file.write_text(json.dumps(_SETTINGS), encoding="utf-8")
        command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={root}", "--LabApp.news_url=None"]
        command += [f"--LabApp.default_url=/lab/tree/{_FIRST}"] if (root / _FIRST).is_file() else []
        command += ["--no-browser"] if no_browser else []
        command += [f"--port={port}"] if port else []
        command += ["--allow-root"] if os.geteuid() == 0 else []  # Jupyter refuses to run as root without it.
        path = [settings, os.environ.get("JUPYTER_CONFIG_PATH", "")]
        environment = {**os.environ, "JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, path))}
        raise SystemExit(_run(command, environment))


def _end_with_parent() -> None:
    """Request SIGTERM for the server when this process is killed. Runs in the server before it starts."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run(command: list[str], environment: dict[str, str]) -> int:
    """Run the server until it ends. SIGINT and SIGTERM are forwarded to it."""
    process = subprocess.Popen(command, env=environment, preexec_fn=_end_with_parent)
    n_signals = 0

    def forward(number: int, frame: object) -> None:
        nonlocal n_signals
        n_signals += 1
        process.send_signal(signal.SIGTERM)  # On SIGINT Jupyter would require a confirmation.

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, forward)
    status = process.wait()
    return 0 if n_signals else status
