"""tools/size.py finds files and functions that are too long, in each language."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "size.py"
spec = importlib.util.spec_from_file_location("size", TOOL)
size = importlib.util.module_from_spec(spec)
spec.loader.exec_module(size)

FUNCTIONS = {
    "a.c": ("static int act(void)\n{{\n{}}}\n\nint other;\n", "    x();\n", 3),
    "a.py": ("@decorated\ndef act():\n{}\n\nOTHER = 1\n", "    x()\n", 1),
    "a.pxi": ("cdef class C:\n    cdef int act(self,\n                 int b) except -1:\n{}\n", "        x()\n", 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_long_functions(tmp_path, name):
    frame, line, n_head = FUNCTIONS[name]
    file = tmp_path / name
    file.write_text(frame.format(line * (80 - n_head)))
    assert list(size.findings(file)) == []
    file.write_text(frame.format(line * (81 - n_head)))
    (found,) = size.findings(file)
    assert "act has 81 lines" in found


def test_long_files(tmp_path):
    file = tmp_path / "a.h"
    file.write_text("int x;\n" * 600)
    assert list(size.findings(file)) == []
    file.write_text("int x;\n" * 601)
    (found,) = size.findings(file)
    assert found.startswith("601 lines")
