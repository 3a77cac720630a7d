"""The diction check of tools/lint finds the words of its list in prose, and only in prose."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "diction.py"
spec = importlib.util.spec_from_file_location("diction", TOOL)
diction = importlib.util.module_from_spec(spec)
spec.loader.exec_module(diction)

WRONG = [
    "The handler is told of it.",
    "The peer tells the NIC.",
    "A rank sends its message when he is ready.",
    "Whoever posts a descriptor rings the doorbell.",
    "Nobody is notified.",
    "The program asked for a notification.",
    "A stranger sends a frame.",
    "A copy is dear.",
    "Such a read cannot come to be denied.",
    "The peer has gone and says so.",
    "It returns the next frame, if there is none NULL.",
    "What was lost is sent again.",
    "Who does not trust 16 bits opens the NIC with a checksum.",
    "Of these frames the last is acknowledged.",
    "One frame; two frames; three frames.",
]
RIGHT = [
    "Lost frames are retransmitted.",
    "The peer requests a credit; the NIC replies.",
    "If a completion queue overflows, its entries are lost.",
    "What is a doorbell?",
    "A task in the shell is masked; the foretelling retold.",  # words of the list inside longer ones
    "`tell()` returns the offset, see [the page](tell.md).",
]
FORMS = {
    "page.md": "{}\n",
    "note.md": "```{{note}}\nA note.\n```\n\n```text\ntold\n```\n\n{}\n",
    "inside.md": "```{{note}}\n{}\n```\n",
    "list.md": "- one\n- {}\n",
    "lesson.md": "```{{code-cell}} python\nx = 1  # {}\n```\n",
    "a.py": "# {}\n",
    "b.py": 'def f():\n    """{}"""\n',
    "c.pyx": 'cdef int f():\n    """{}"""\n    return 0\n',
    "d.pxi": "x = 'a'  # {}\n",
    "e.c": "/* {} */\nint x;\n",
    "f.h": "int x; // {}\n",
}
NOT_PROSE = {
    "page.md": "```text\n{}\n```\n",
    "a.py": "x = '{}'\n",
    "b.pyx": 'x = f("""{}""")\n',
    "d.pxi": 'cdef extern from *:\n    """\n    {}\n    """\n    int x\n',
    "c.c": 'const char *x = "{}";\n',
}


def errors(name: str, source: str) -> list[tuple[int, str]]:
    return [(line, message) for line, message, error in diction.check(name, source) if error]


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("sentence", WRONG)
def test_wrong_sentence_is_found(name, sentence):
    assert errors(name, FORMS[name].format(sentence))


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("sentence", RIGHT)
def test_right_sentence_passes(name, sentence):
    assert not errors(name, FORMS[name].format(sentence))


@pytest.mark.parametrize("name", NOT_PROSE)
@pytest.mark.parametrize("sentence", WRONG)
def test_code_is_not_prose(name, sentence):
    assert not errors(name, NOT_PROSE[name].format(sentence))


def test_finding_has_its_line_and_a_replacement():
    source = '"""Send.\n\nThe NIC\ntold the peer.\n"""\n\n# A frame.\n# What\n# follows is a header.\n'
    assert errors("a.py", source) == [
        (4, '"told" -> report, notify, return, state, distinguish'),
        (8, '"What ..." opens a sentence -> begin with a noun: the NIC, the frame'),
    ]


def test_long_sentence_is_a_warning():
    findings = list(diction.check("page.md", "A frame " + "and a frame " * 12 + "arrive.\n"))
    assert findings == [(1, "39 words -> sentences of at most 25", False)]


@pytest.mark.parametrize(
    "source", ["int x; /* one of 12 */\n" * 30, "/* x\n" + " *   name    what it is\n" * 30 + " */"]
)
def test_items_of_a_list_are_no_sentence(source):
    assert not list(diction.check("a.c", source))


def test_the_checkout_is_clean():
    def run(*words):
        return subprocess.run([sys.executable, TOOL, *words], capture_output=True, text=True, timeout=60)

    done = run()
    errors = [line for line in done.stdout.splitlines() if "warning: " not in line]
    assert (done.returncode, errors) == (0, [])
    counts = run("--all", str(TOOL.parents[1] / "tests"))
    assert counts.returncode == 0
    assert {int(word) for word in counts.stdout.split() if word.isdigit()} == {0}


@pytest.mark.parametrize("path", ["nowhere.py", "/etc/passwd"])
def test_path_outside_the_checkout_is_refused(path):
    done = subprocess.run([sys.executable, TOOL, path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert f"{Path(path).resolve()} is not a file or folder in" in done.stderr
