"""The program that a command line names: a Python file, a module, or a file that PATH has."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

from viakit.launch import LaunchError

__all__ = ["find_program", "program"]


def program(words: list[str]) -> list[str]:
    """Return the command for the words of a command line: a Python file, ``-m`` and a module, or any program.

    Raises
    ------
    LaunchError
        If the program does not exist or cannot be executed.
    """
    if not words:
        raise LaunchError("no program given: viakit run -n 4 prog.py")
    if words[0] == "-m":
        if len(words) < 2:
            raise LaunchError("-m needs the name of a module: viakit run -n 4 -m viakit.apps.sor")
        return [sys.executable, *words]
    path = Path(words[0])
    if words[0].endswith(".py"):
        if path.is_dir():
            raise LaunchError(f"{words[0]}: is a folder; name a program in it")
        if not path.exists():
            raise LaunchError(f"{words[0]}: no such file; the program is looked for from {Path.cwd()}")
        return [sys.executable, *words]
    found = find_program(words[0], " (a Python file ends in .py)", " (a file that ends in .py need not be)")
    return [os.path.abspath(found) if os.path.dirname(words[0]) else found, *words[1:]]


def find_program(word: str, if_missing: str = "", if_not_executable: str = "") -> str:
    """Return the file to run for *word*: *word* itself if it contains a folder, otherwise the first match in PATH.

    Folders of PATH that cannot be read are skipped. The system's own search reports their error instead, which does not
    describe the program.

    Parameters
    ----------
    word : str
        Name or path of the program.
    if_missing, if_not_executable : str
        End of the error message in these two cases.

    Raises
    ------
    LaunchError
        If no such file exists, or it is not executable.
    """
    path, found = Path(word), shutil.which(word)
    if found is not None:
        return found
    shell = word
    if os.path.dirname(word) == "" and path.is_file():  # `which` looks in PATH only
        shell = f"./{word}"
        if os.access(path, os.X_OK):
            raise LaunchError(f"{word}: no such program in PATH; the one of this folder is {shlex.quote(shell)}")
    elif path.is_dir():
        raise LaunchError(f"{word}: is a folder; name a program in it")
    elif not path.exists():
        raise LaunchError(f"{word}: no such program, neither here nor in PATH{if_missing}")
    raise LaunchError(f"{shell}: is there, but not executable: chmod +x {shlex.quote(shell)}{if_not_executable}")
