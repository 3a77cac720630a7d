"""Every public name has a docstring whose first paragraph is a sentence, and every field has a description."""

import ast
import enum
import importlib
import importlib.util
import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import MemberDescriptorType, ModuleType
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference-python.md"
MODULES = ["bip", "comm", "inspect", "lab", "launch", "measure", "mpi", "testbed", "trace", "via"]


def public_names(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public functions, classes and submodules of *module*, with their names."""
    names = getattr(module, "__all__", None) or [name for name in dir(module) if not name.startswith("_")]
    for name in names:
        thing = getattr(module, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            yield f"{module.__name__}.{name}", thing
        elif inspect.ismodule(thing) and thing.__name__.startswith("viakit") and thing.__name__ != module.__name__:
            yield f"{module.__name__}.{name}", thing
            yield from public_names(thing)


def members(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods and properties of a class, also those that it inherits from classes of viakit."""
    seen = set()
    for base in kind.__mro__:
        if not base.__module__.startswith("viakit"):
            continue
        for member, thing in vars(base).items():
            if member.startswith("_") or member in seen:
                continue
            seen.add(member)
            static = isinstance(thing, (staticmethod, classmethod))
            thing = thing.__func__ if static else thing
            # An extension type has a getset descriptor for each property and a member descriptor for each attribute.
            # The docstring of the class describes attributes.
            routine = inspect.isroutine(thing) and not isinstance(thing, MemberDescriptorType)
            if routine or isinstance(thing, property):
                yield f"{name}.{member}", thing


def everything(module: ModuleType) -> dict[str, Any]:
    """Return all public names of a module and of its classes."""
    found = {module.__name__: module}
    for name, thing in public_names(module):
        found[name] = thing
        if inspect.isclass(thing) and thing.__module__.startswith("viakit"):
            found.update(members(name, thing))
    return found


def complaint(thing: Any) -> str | None:
    """Return the defect of a docstring, or None.

    Cython begins a docstring with the signature (embedsignature), which is not a sentence.
    """
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")
    text = re.sub(r"\A\w+(\.\w+)*\(.*\)( -> .+)?\n+", "", text)
    first = re.split(r"\n\s*\n", text)[0].strip()
    if not first:
        return "has no docstring"
    if not re.match(r"[A-Z0-9\"'`*:(:]", first) or first.startswith("viakit.") or re.match(r"\w+ = ", first):
        return f"its docstring does not begin with a capital letter: {first[:60]!r}"
    if not re.search(r"[.:]\)?$", first):
        return f"the first paragraph of its docstring does not end with a full stop: {first[-60:]!r}"
    return None


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_has_a_docstring(name):
    module = importlib.import_module(f"viakit.{name}")
    things = everything(module)
    if name == "mpi":
        things.update(everything(module.MPI))
    assert len(things) > 3
    wrong = {key: complaint(thing) for key, thing in things.items()}
    wrong = {key: why for key, why in wrong.items() if why is not None}
    assert not wrong, "\n".join(f"{key}: {why}" for key, why in wrong.items())


def test_a_missing_or_a_bad_docstring_is_found():
    class Example:
        """Example of a class."""

        def described(self) -> None:
            """Do one thing."""

        def empty(self) -> None:
            pass

        @property
        def half(self) -> int:
            """of a sentence"""
            return 1

    Example.__module__ = "viakit.example"
    found = dict(members("Example", Example))
    assert set(found) == {"Example.described", "Example.empty", "Example.half"}
    assert complaint(found["Example.described"]) is None
    assert complaint(found["Example.empty"]) == "has no docstring"
    assert "capital letter" in complaint(found["Example.half"])


def test_every_attribute_of_an_extension_type_is_described_in_its_class():
    """The reference has no other text for them: C attributes have no docstrings of their own."""
    found = 0
    for name, kind in everything(importlib.import_module("viakit.via")).items():
        for attribute, thing in vars(kind).items() if inspect.isclass(kind) else ():
            if inspect.isgetsetdescriptor(thing) and not attribute.startswith("_") and not thing.__doc__:
                found += 1
                assert re.search(rf"^{attribute} : ", inspect.getdoc(kind), re.MULTILINE), f"{name}.{attribute}"
    assert found > 5


def undescribed_fields(kind: type) -> Iterator[str]:
    """Yield the enum members and annotated fields of a class that neither a comment ``#:`` nor the class describes."""
    source = textwrap.dedent(inspect.getsource(kind))
    lines, text = source.splitlines(), inspect.getdoc(kind) or ""
    for statement in ast.parse(source).body[0].body:
        if isinstance(statement, ast.AnnAssign):
            target = statement.target
        elif isinstance(statement, ast.Assign) and issubclass(kind, enum.Enum):
            target = statement.targets[0]
        else:
            continue
        name = target.id
        above, last = lines[statement.lineno - 2], lines[statement.end_lineno - 1]
        comment = re.search(r"#: \S", last) or above.startswith("    #: ")
        if not name.startswith("_") and not comment and not re.search(rf"^[\w, ]*\b{name}\b[\w, ]* : ", text, re.M):
            yield name


def classes_of_the_reference() -> Iterator[type]:
    """Yield the classes written in Python that docs/reference-python.md names, and all of a module without a list."""
    found = re.findall(r"^\.\. automodule:: (\S+)\n   :members:(.*)$", REFERENCE.read_text(), re.MULTILINE)
    assert len(found) > 10
    for module_name, names in found:
        module = importlib.import_module(module_name)
        things = [getattr(module, name.strip()) for name in names.split(",") if name.strip()]
        for thing in things or vars(module).values():
            ours = inspect.isclass(thing) and thing.__module__.startswith("viakit.")
            if ours and "_core" not in thing.__module__ and not issubclass(thing, BaseException):
                yield thing


def test_every_field_of_the_reference_has_a_description():
    classes = set(classes_of_the_reference())
    assert {"Faults", "NicInfo", "ViState", "Completion", "Config"} <= {kind.__name__ for kind in classes}
    empty = [f"{kind.__module__}.{kind.__name__}.{name}" for kind in classes for name in undescribed_fields(kind)]
    assert not empty, "write a comment #: beside each of " + ", ".join(sorted(empty))


def test_each_class_of_the_reference_has_a_page():
    spec = importlib.util.spec_from_file_location("class_pages", REFERENCE.parent / "class_pages.py")
    class_pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(class_pages)
    overview, pages = class_pages.split(REFERENCE.read_text(encoding="utf-8"))
    for kind in ("viakit.via.Nic", "viakit.comm.Comm", "viakit.measure.pair.Pair", "viakit.errors.TagError"):
        assert f".. autoclass:: {kind}\n   :members:\n" in pages[kind]
        assert re.search(rf"^\* :class:`{kind}`: \w.* \w", overview, re.MULTILINE), f"{kind} is not described"
        assert f"   /classes/{kind}\n" in overview
    assert ":inherited-members:" in pages["viakit.comm.Comm"]
    assert "autoclass" not in overview
    assert ":members: counters_help, link_of, links, live_objects\n" in overview
    for entry in re.findall(r"^\* :class:.*$", overview, re.MULTILINE):
        assert re.search(r"`: \w", entry), f"the first line of the docstring is empty: {entry}"


class Described(enum.IntEnum):
    """An enumeration for the test below.

    Attributes
    ----------
    THIRD : int
        Described here.
    """

    FIRST = 1  #: Described beside it.
    #: Described above it.
    SECOND = 2
    THIRD = 3
    FOURTH = 4  # No comment of the reference.
    FIFTH = 5


def test_a_field_without_a_description_is_found():
    assert list(undescribed_fields(Described)) == ["FOURTH", "FIFTH"]
