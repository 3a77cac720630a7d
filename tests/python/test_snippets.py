"""The documentation's programs, cells and commands run as shown.

Programs are files in docs/snippets/, named PAGE-WHAT, and pages include them; each is run here as its page says.
Commands
stand in the pages themselves: every one exists, with every option that is shown.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import needs
import pytest

from viakit import cli

CHECKOUT = Path(__file__).resolve().parents[2]
DOCS = CHECKOUT / "docs"
SNIPPETS = DOCS / "snippets"
PAGES = sorted([*DOCS.glob("*.md"), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"])
LIMIT_S = 100

# How a program is run, if not alone: the words before its name.
BEFORE = {
    "comm-sum": ["-m", "viakit", "run", "-n", "3"],
    "onesided-put": ["-m", "viakit", "run", "-n", "2"],
    "running-exchange": ["-m", "viakit", "run", "-n", "2"],
}
# The output of a program that its page requires.
SAYS = {
    "gallery-inspect": r"NIC ",
    "inspect-tables": r"NIC loop",
    "lessons-ranks": r"^\['3', '3'\]$",
    "onesided-put": r"RDMA writes at the origin: 1\n|messages handled at the target: 0\n",
    "results-fit": r"no evidence of change",
    "testbed-hosts": r"^b'HELLO'\nh1 answered 10\.77\.0\.1\nh0\n\n$",
    "testbed-rate": r"^(port\d 1000000000 bit/s, 0 drops\n){3}$",
}
# The files that it must leave.
LEAVES = {
    "lab-compare": "today.json",
    "seeing-tap": "frames.pcapng",
    "measuring-sweep": "sockets.json",
    "speedup-measure": "sor.png",
}
NEEDS_HOSTS = {"testbed-hosts", "testbed-rate", "running-mpirun"}
# Those that another test runs, with what belongs to them.
ELSEWHERE = {"c-programs-pingpong"}  # test_c_programs.py: against the C program
MODULES = {"lessons-ranks": "ipyparallel", "speedup-measure": "matplotlib"}


def prepare(name: str, folder: Path) -> None:
    """Put what a program expects into its folder, or skip where the machine lacks it."""
    if name in MODULES:
        needs.packages(MODULES[name])
    if name in NEEDS_HOSTS:
        needs.hosts(2).close()
    if name == "running-mpirun":
        needs.mpi_library("mpi:mpich")
        (folder / "prog.py").write_text("import viakit\nassert viakit.world().size == 4\n")
    if name == "results-read":
        command = [
            sys.executable,
            "-m",
            "viakit",
            "sweep",
            "unix",
            "--sizes",
            "64",
            "--seconds",
            "0.2",
            "--json",
            "a.json",
        ]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=LIMIT_S)


@pytest.mark.parametrize("name", sorted({path.stem for path in SNIPPETS.glob("*.py")} - ELSEWHERE))
def test_program_runs(name, tmp_path):
    prepare(name, tmp_path)
    program = tmp_path / "program.py"
    program.write_text((SNIPPETS / f"{name}.py").read_text(encoding="utf-8"), encoding="utf-8")
    command = [sys.executable, *BEFORE.get(name, ["-W", "error::ResourceWarning"]), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    if not name.startswith("lab-"):  # a laboratory without a notebook shows its progress there
        assert not done.stderr
    assert re.search(SAYS.get(name, ""), done.stdout), done.stdout
    if name in LEAVES:
        assert (tmp_path / LEAVES[name]).stat().st_size > 0


def test_cells_run(tmp_path, monkeypatch):
    """The cells of the pages, one after the other, in one kernel."""
    nbclient, nbformat, _ = needs.packages("nbclient", "nbformat", "ipyparallel")
    cells = []
    for name in ("lessons-ranks", "lessons-live", "lessons-sweep"):
        parts = re.split(r"\n\n(?=%%)", (SNIPPETS / f"{name}.ipy").read_text(encoding="utf-8"))
        cells += [nbformat.v4.new_code_cell(part) for part in parts]
    cells.append(nbformat.v4.new_code_cell("%ranks --stop\nprint(result.protocols)"))
    notebook = nbformat.v4.new_notebook(cells=cells)
    monkeypatch.chdir(tmp_path)
    nbclient.NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3").execute()
    outputs = [one for cell in notebook.cells for one in cell.outputs]
    text = "".join(one.get("text", "") for one in outputs)
    assert all(f"[{rank}] [6.]\n" in text for rank in range(4)), text
    assert len([one for one in outputs if "image/png" in one.get("data", {})]) == 1, (
        "one picture, that changes in its place"
    )
    assert "['via-shm', 'unix']" in text


def test_pages_include_their_programs():
    """No program is pasted into a page; each in the folder is included by the page that its name begins with."""
    for page in DOCS.glob("*.md"):
        assert "```python" not in page.read_text(encoding="utf-8"), f"{page.name}: a program belongs into docs/snippets"
    for path in SNIPPETS.iterdir():
        page, _, what = path.stem.rpartition("-")
        assert what
        assert f"snippets/{path.name}" in (DOCS / f"{page}.md").read_text(encoding="utf-8"), path.name


def commands_of(text: str) -> list[list[str]]:
    """The words of each `viakit ...` that a page shows, in a block or within a line, up to what is no part of it."""
    blocks = re.findall(r"^```(?:sh|text)?\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    lines = re.findall(r"^(?:\.venv/bin/)?viakit ([a-z].*)", "".join(blocks), flags=re.MULTILINE)
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += re.findall(r"`(?:\.venv/bin/)?viakit ([a-z][^`\n]*)`", prose)
    lines += re.findall(r"\$\(viakit ([^)`]*)\)", text)
    return [re.split(r"  |#|\|", line)[0].split() for line in lines]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_commands_exist_as_they_are_shown(page):
    for words in commands_of(page.read_text(encoding="utf-8")):
        command = cli.cli.commands.get(words[0])
        assert command is not None, f"viakit {' '.join(words)}: there is no such command"
        known = {name for one in command.params for name in (*one.opts, *one.secondary_opts)} | {"--help", "-h"}
        if words[0] in ("run", "trace", "app"):  # what follows may be a program's, or an application's own
            continue
        shown = {word.partition("=")[0] for word in words[1:] if re.match(r"--?[a-zA-Z]", word)}
        assert shown <= known, f"viakit {' '.join(words)}"
