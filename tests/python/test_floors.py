"""The rooms of the house and what each may use: includes and imports point down, as CONTRIBUTING.md shows it.

The order of rooms is read from the picture in CONTRIBUTING.md. A line of it is a floor; a room may use rooms of its own
line that stand left of it, and all rooms of the lines below. Imports inside functions count as imports.
"""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PICTURE = re.compile(r"<!-- floors: (\w+) -->\n```\n(.*?)```", re.DOTALL)
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def floors(language: str) -> list[str]:
    """Return the rooms of one picture, from the lowest to the highest."""
    text = (CHECKOUT / "CONTRIBUTING.md").read_text()
    lines = {found[1]: found[2] for found in PICTURE.finditer(text)}[language].splitlines()
    return [room for line in reversed(lines) for room in line.split("  ", 1)[0].split()]


def room_of(path: str, rooms: list[str]) -> str:
    """Return the room of a file or module: the longest name in the picture that it begins with."""
    found = [room for room in rooms if path == room or path.startswith((room + "/", room + "."))]
    return max(found, key=len, default="")


# ---- C


def included(path: Path) -> set[str]:
    """Return the files below csrc that one includes, as paths below csrc; public headers belong to `include`."""
    found = set()
    for name in INCLUDE.findall(path.read_text()):
        for base in (CHECKOUT / "csrc", path.parent, CHECKOUT / "csrc" / "include"):
            if (base / name).is_file():
                found.add((base / name).resolve().relative_to(CHECKOUT / "csrc").as_posix())
                break
        else:
            pytest.fail(f"{path.relative_to(CHECKOUT)} includes {name}, which is no file of csrc")
    return found


def c_arrows() -> set[tuple[str, str]]:
    arrows = set()
    for path in sorted((CHECKOUT / "csrc").rglob("*.[ch]")):
        here = path.relative_to(CHECKOUT / "csrc").as_posix()
        arrows |= {(here, there) for there in included(path)}
    return arrows


# ---- Python


def modules() -> dict[str, Path]:
    """Return every module of the installed package by its name; apps/ is installed as viakit.apps."""
    found = {}
    for root, name in (("viakit", "viakit"), ("apps", "viakit.apps")):
        for path in sorted((CHECKOUT / root).rglob("*.py")):
            parts = [name, *path.relative_to(CHECKOUT / root).with_suffix("").parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(tree: ast.AST, known: dict[str, Path], here: str, is_package: bool) -> set[str]:
    """Return viakit's modules that a module imports, at any place, except imports for types alone."""
    found = set()

    class Visitor(ast.NodeVisitor):
        def visit_If(self, node):
            if "TYPE_CHECKING" not in ast.dump(node.test):
                self.generic_visit(node)

        def visit_Import(self, node):
            found.update(alias.name for alias in node.names if alias.name in known)

        def visit_ImportFrom(self, node):
            base = here.split(".") if is_package else here.split(".")[:-1]
            base = base[: len(base) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{module}.{alias.name}"
                if name in known or module in known:
                    found.add(name if name in known else module)

    Visitor().visit(tree)
    return found - {here}


def python_arrows() -> set[tuple[str, str]]:
    known = modules()
    arrows = set()
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        arrows |= {(name, there) for there in imported(tree, known, name, path.name == "__init__.py")}
    return arrows


# ---- the test


@pytest.mark.parametrize(("language", "arrows_of"), [("c", c_arrows), ("python", python_arrows)])
def test_arrows_point_down(language, arrows_of):
    rooms = floors(language)
    assert len(rooms) == len(set(rooms)), f"a room stands twice in the picture: {rooms}"
    arrows = arrows_of()
    homeless = {file for arrow in arrows for file in arrow if not room_of(file, rooms)}
    assert not homeless, f"in no room of CONTRIBUTING.md's picture: {sorted(homeless)}"
    upward = [
        f"{here} ({room_of(here, rooms)}) uses {there} ({room_of(there, rooms)})"
        for here, there in sorted(arrows)
        if rooms.index(room_of(here, rooms)) < rooms.index(room_of(there, rooms))
    ]
    assert not upward, "these point upward:\n" + "\n".join(upward)


@pytest.mark.parametrize(("language", "arrows_of"), [("c", c_arrows), ("python", python_arrows)])
def test_every_room_is_used(language, arrows_of):
    used = {room_of(file, floors(language)) for arrow in arrows_of() for file in arrow}
    assert set(floors(language)) <= used | {"examples"}


def test_an_arrow_upward_is_seen(tmp_path, monkeypatch):
    """The check itself: one wrong include among right ones."""
    csrc = tmp_path / "csrc"
    for name, text in {
        "base/low.h": "",
        "link/high.h": '#include "base/low.h"\n',
        "base/low.c": '#include "base/low.h"\n#include "link/high.h"\n',
    }.items():
        (csrc / name).parent.mkdir(parents=True, exist_ok=True)
        (csrc / name).write_text(text)
    (tmp_path / "CONTRIBUTING.md").write_text("<!-- floors: c -->\n```\nlink   above\nbase   below\n```\n")
    monkeypatch.setattr(f"{__name__}.CHECKOUT", tmp_path)
    with pytest.raises(AssertionError, match=r"base/low.c \(base\) uses link/high.h \(link\)"):
        test_arrows_point_down("c", c_arrows)


# ---- the table of tests


def in_table(folder: str) -> list[str]:
    """Return the names in the table of tests that may be files of *folder*, with their stars."""
    text = (CHECKOUT / "CONTRIBUTING.md").read_text()
    section = text[text.index("\n## Tests of each room\n") :]
    lines = [line for line in section[: section.index("\n## ", 1)].splitlines() if line.startswith("|")]
    column = {"c": -3, "python": -2}[folder]
    return [name for line in lines for name in re.findall(r"`(test_[\w*]+)`", line.split("|")[column])]


@pytest.mark.parametrize("folder", ["c", "python"])
def test_every_test_watches_a_room(folder):
    """The table in CONTRIBUTING.md has every test file, and each name in it is a file."""
    files = {path.stem for path in (CHECKOUT / "tests" / folder).glob("test_*.*")}
    names = in_table(folder)
    missing = sorted(file for file in files if not any(fnmatch(file, name) for name in names))
    assert not missing, f"add these files of tests/{folder}/ to the table of tests in CONTRIBUTING.md: {missing}"
    stale = sorted(name for name in names if not any(fnmatch(file, name) for file in files))
    assert not stale, f"the table of tests in CONTRIBUTING.md has names without a file: {stale}"


# ---- imports inside functions


def unexplained(tree: ast.AST, lines: list[str]) -> list[int]:
    """Return the lines of imports inside functions that have no reason.

    A comment on the first of several imports in a row, or on the line above it, is the reason of all of them.
    """
    found = []

    def visit(node: ast.AST, inside: bool) -> None:
        inside = inside or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for body in (getattr(node, part, None) for part in ("body", "orelse", "finalbody", "handlers")):
            before: ast.AST | None = None
            for one in body if isinstance(body, list) else ():
                late = inside and isinstance(one, (ast.Import, ast.ImportFrom))
                if late and not isinstance(before, (ast.Import, ast.ImportFrom)):
                    near = lines[max(one.lineno - 2, 0) : one.end_lineno]
                    if "#" not in "".join(near[1:]) and not near[0].lstrip().startswith("#"):
                        found.append(one.lineno)
                before = one
                visit(one, inside)

    visit(tree, False)
    return found


def test_an_import_inside_a_function_has_a_reason():
    """It saves start-up time, avoids an optional package, or the other module imports this one."""
    bare = []
    for name, path in modules().items():
        text = path.read_text()
        bare += [f"{name}, line {number}" for number in unexplained(ast.parse(text), text.splitlines())]
    assert not bare, "move these imports to the top, or write the reason behind them:\n" + "\n".join(bare)


def test_an_unexplained_import_is_seen():
    text = "import a\ndef f():\n    import b  # optional package\n    import c\n    if c:\n        import d\n"
    assert unexplained(ast.parse(text), text.splitlines()) == [6]
