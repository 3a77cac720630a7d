#!/usr/bin/env python3
"""Check the size of source files and functions: at most 600 lines for a file, at most 80 for a function.

tools/size.py [PATH...] checks the sources below each PATH, by default csrc, viakit, apps and tests. Decorators do not
count. The exit status is 1 if anything was found.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("csrc", "viakit", "apps", "tests")
MOST_OF_FILE = 600
MOST_OF_FUNCTION = 80
C_SUFFIXES = (".c", ".h", ".cpp")
CYTHON_SUFFIXES = (".pyx", ".pxi", ".pxd")


def c_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last line of each function in C whose braces are in column 1."""
    first, name = 0, ""
    for number, line in enumerate(lines, 1):
        if line.startswith("{") and not first:
            head = number - 1
            while head > 1 and lines[head - 2].strip() and not lines[head - 2].rstrip().endswith((";", "}", "*/")):
                head -= 1
            found = re.search(r"(\w+)\(", " ".join(lines[head - 1 : number - 1]))
            first, name = head, found[1] if found else "?"
        elif line.startswith("}") and first:
            yield name, first, number
            first = 0


def python_functions(source: str) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last line of each function in Python."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.name, node.lineno, node.end_lineno or node.lineno


def cython_functions(lines: list[str]) -> Iterator[tuple[str, int, int]]:
    """Yield name, first and last line of each function in Cython. The lines of its body are indented further."""
    for first, line in enumerate(lines, 1):
        found = re.match(r"( *)(?:def|cpdef|cdef(?! class| extern))\b[^=]*?(\w+)\(", line)
        if found is None:
            continue
        last = first
        for number, text in enumerate(lines[first:], first + 1):
            if text.strip() and len(text) - len(text.lstrip()) <= len(found[1]):
                break
            last = number if text.strip() else last
        yield found[2], first, last


def findings(path: Path) -> Iterator[str]:
    """Yield a line for the file, if it is too long, and for each function that is too long."""
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines()
    if len(lines) > MOST_OF_FILE:
        yield f"{len(lines)} lines -> at most {MOST_OF_FILE}; move a coherent part to a file of its own"
    if path.suffix in C_SUFFIXES:
        functions = c_functions(lines)
    elif path.suffix == ".py":
        functions = python_functions(source)
    elif path.suffix in CYTHON_SUFFIXES:
        functions = cython_functions(lines)
    else:
        return
    for name, first, last in functions:
        if last - first >= MOST_OF_FUNCTION:
            yield f"{first}: {name} has {last - first + 1} lines -> at most {MOST_OF_FUNCTION}"


def main(arguments: list[str]) -> int:
    """Check the sources below the given paths, and print the findings."""
    suffixes = (*C_SUFFIXES, *CYTHON_SUFFIXES, ".py", ".pyi")
    allowed = [ROOT / folder for folder in FOLDERS]
    n_found = 0
    for start in (Path(one).resolve() for one in arguments) if arguments else allowed:
        for path in sorted(start.rglob("*")) if start.is_dir() else [start]:
            if path.suffix not in suffixes or not any(path.is_relative_to(folder) for folder in allowed):
                continue
            name = path.relative_to(ROOT)
            for text in findings(path):
                print(f"{name}:{text}" if text[0].isdigit() and ":" in text[:6] else f"{name}: {text}")
                n_found += 1
    return 1 if n_found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
