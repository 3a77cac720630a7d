"""The files that describe containers use commands, options and extras that exist."""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]


def extras() -> set[str]:
    return set(importlib.metadata.metadata("viakit").get_all("Provides-Extra") or [])


def test_dockerfile_runs_options_of_viakit_lab() -> None:
    """Each option of the image's command is one that `viakit lab` accepts."""
    text = (CHECKOUT / "Dockerfile").read_text(encoding="utf-8")
    (line,) = re.findall(r"^CMD (\[.*\])$", text, flags=re.M)
    command, *arguments = json.loads(line)
    usage = subprocess.run(
        [sys.executable, "-m", "viakit", command, "--help"], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    options = [word for word in arguments if word.startswith("--")]
    assert options, "the command has no option"
    for option in options:
        assert re.search(rf"{option}\b", usage), f"{option} is no option of viakit {command}"


def test_containers_install_extras_that_exist() -> None:
    """Dockerfile, devcontainer and Binder name extras of the package."""
    named = set()
    for file in ("Dockerfile", ".binder/postBuild"):
        for words in re.findall(r"\[([a-z,]+)\]", (CHECKOUT / file).read_text(encoding="utf-8")):
            named |= set(words.split(","))
    container = json.loads((CHECKOUT / ".devcontainer/devcontainer.json").read_text(encoding="utf-8"))
    program, *arguments = container["postCreateCommand"].split()
    assert (CHECKOUT / program).is_file()
    named |= set(arguments)
    assert "lab" in named
    assert named <= extras()


def test_binder_copies_the_lessons(tmp_path: Path) -> None:
    """The last line of Binder's script copies the lessons to a folder."""
    last = (CHECKOUT / ".binder/postBuild").read_text(encoding="utf-8").splitlines()[-1]
    assert last.startswith("python -c ")
    script = last.replace("python", sys.executable, 1)
    subprocess.run(["bash", "-c", script], cwd=tmp_path, timeout=60, check=True)
    assert (tmp_path / "lessons" / "00-start-here.md").is_file()
