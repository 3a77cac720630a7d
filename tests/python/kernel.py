"""Run notebooks in tests: cells in, outputs out, in a separate Jupyter kernel."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import needs

from viakit.lab import _front

EXECUTE = """
import json, sys
import nbclient, nbformat
from jupyter_client import KernelManager
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in json.load(sys.stdin)])
manager = KernelManager(kernel_name="python3")
manager.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
nbclient.NotebookClient(book, km=manager, timeout=200, startup_timeout=200).execute()
print(json.dumps([cell.outputs for cell in book.cells]))
"""


def notebook(*cells, mode=None, **environment):
    """Run cells in a new kernel and return the outputs of each."""
    needs.packages("nbclient", "nbformat", "ipykernel", "ipywidgets", "anywidget")
    env = {k: v for k, v in os.environ.items() if k not in ("VIAKIT_LAB", *_front._SIGNS)} | environment
    if mode:
        env["VIAKIT_LAB"] = mode
    command = [sys.executable, "-W", "ignore", "-c", EXECUTE]
    done = subprocess.run(command, input=json.dumps(cells), capture_output=True, text=True, env=env, timeout=280)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def printed(outputs):
    return "".join(one["text"] for one in outputs if one.get("name") == "stdout")


def shown(outputs, kind):
    return [one["data"][kind] for one in outputs if kind in one.get("data", {})]
