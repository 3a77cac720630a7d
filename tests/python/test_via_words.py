"""Names, docstrings and type stubs of viakit.via."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

from viakit import _core, via

PUBLIC = [getattr(via, name) for name in via.__all__]
OWN_CLASSES = [value for value in PUBLIC if isinstance(value, type) and value.__module__.startswith("viakit")]


@pytest.mark.parametrize("value", PUBLIC, ids=via.__all__)
def test_every_public_name_is_documented(value):
    if isinstance(value, dict):
        return
    assert words(value), f"{value!r} has no docstring"
    if value in OWN_CLASSES:
        fields = {*getattr(value, "__dataclass_fields__", ()), *getattr(value, "_fields", ())}
        for name, member in vars(value).items():
            if name.startswith("_") or name in fields or isinstance(member, value):
                continue
            documented = words(getattr(value, name)) or words(member) or f"{name} :" in value.__doc__
            documented = documented or f", {name}" in value.__doc__
            assert documented, f"{value.__name__}.{name} has no docstring"


def words(value) -> str:
    """Its docstring without the signature that Cython puts on the first line."""
    doc = inspect.getdoc(value) or ""
    first, _, rest = doc.partition("\n")
    name = getattr(value, "__name__", "")
    return rest if name and first.startswith((f"{name}(", f"{getattr(value, '__qualname__', name)}(")) else doc


def test_type_stubs_say_what_there_is():
    stub = ast.parse(Path(_core.__file__).with_name("_core.pyi").read_text())
    declared = {node.name: node for node in stub.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    closable = {item.name for item in declared["_Closable"].body}
    for kind in OWN_CLASSES:
        if kind.__module__ != "viakit._core":
            continue
        node = declared[kind.__name__]
        names = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        names |= {item.target.id for item in node.body if isinstance(item, ast.AnnAssign)}
        if "_Closable" in [getattr(base, "id", "") for base in node.bases]:
            names |= closable
        there = {name for name in vars(kind) if not name.startswith("_")}
        assert there == {name for name in names if not name.startswith("_")}, kind.__name__
    for name in ("live_objects", "return_codes", "error_codes"):
        assert name in declared


@pytest.mark.parametrize(
    ("enum", "codes"), [(via.ViState, {0: "IDLE", 1: "CONNECTED", 2: "CONNECT_PENDING", 3: "ERROR"})]
)
def test_enums(enum, codes):
    assert {int(member): member.name for member in enum} == codes
