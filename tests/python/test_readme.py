"""The programs in the README run unchanged, and the links of every document are sound. `make links` follows them."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
README = CHECKOUT / "README.md"
DERIVED = CHECKOUT / "docs" / "classes"  # by `make docs`
DOCUMENTS = sorted(
    path
    for place, pattern in ((".", "*.md"), ("docs", "**/*.md"), ("notebooks", "*.md"))
    for path in (CHECKOUT / place).glob(pattern)
    if DERIVED not in path.parents
)
LINK = re.compile(r"\[[^\]]*\]\(<?([^)\s>]+)>?\)")
HOST = re.compile(r"([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")  # of an external link: a name, in lower case


def pingpong() -> str:
    match = re.search(r"<!-- pingpong -->\s*```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert match, "the README has no program behind <!-- pingpong -->"
    return match[1]


def test_pingpong_is_short():
    assert len([line for line in pingpong().splitlines() if line.strip()]) <= 25


@pytest.mark.parametrize("again", range(3))
def test_pingpong_runs(tmp_path, again):
    program = tmp_path / "pingpong.py"
    program.write_text(pingpong(), encoding="utf-8")
    command = [sys.executable, "-W", "error::ResourceWarning", program]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert not result.stderr
    assert re.search(r"[0-9.]+ µs", result.stdout), result.stdout


def prose(text: str) -> str:
    """Return a document without its code, in which brackets are no links."""
    text = re.sub(r"^(```+|~~~+).*?^\1", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", "", text)


def wrong_links(document: Path) -> list[str]:
    """Return the links of a document that lead to no file, or are no address of the web."""
    text, wrong = prose(document.read_text(encoding="utf-8")), []
    for target in LINK.findall(text):
        parts = urlsplit(target)
        if parts.scheme or parts.netloc:
            sound = parts.scheme in ("https", "http") and HOST.fullmatch(parts.netloc)
        else:
            sound = not parts.path or (document.parent / parts.path).exists()
        if not sound:
            wrong.append(target)
    return wrong


def test_every_link_of_a_document_is_sound():
    assert len(DOCUMENTS) > 50
    wrong = {str(document.relative_to(CHECKOUT)): wrong_links(document) for document in DOCUMENTS}
    assert not any(wrong.values()), {name: targets for name, targets in wrong.items() if targets}


def test_a_wrong_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    good = "[a](page.md) [b](#part) [c](https://ui.perfetto.dev/x) `[d](no.md)`\n```\n[e](no.md)\n```\n"
    page.write_text(good + "[f](no.md) [g](https:/one.org) [h](htps://two.org) [i](https://three)")
    assert wrong_links(page) == ["no.md", "https:/one.org", "htps://two.org", "https://three"]


WORKS = {"uri": "https://a.org", "status": "working", "info": "", "filename": "lab.md", "lineno": 1}
GONE = {**WORKS, "uri": "https://b.org/x", "status": "broken", "info": "404 Client Error: Not Found for url"}
UNREACHED = {**WORKS, "uri": "https://c.org", "status": "broken", "info": "NameResolutionError: Failed to resolve"}


def test_links_are_skipped_with_the_reason_only_without_a_connection():
    verdicts = runpy.run_path(str(CHECKOUT / "tools" / "links"), run_name="links")["verdicts"]
    inner = {**WORKS, "uri": "#here", "status": "broken"}
    assert verdicts([UNREACHED, inner]) == [
        ("https://c.org", "skipped", "no connection: NameResolutionError: Failed to resolve")
    ]
    for other in (WORKS, GONE):
        assert [one[1] for one in verdicts([UNREACHED, other])] == ["broken", "works" if other is WORKS else "broken"]
    assert verdicts([GONE])[0][2] == "404 Client Error: Not Found for url (lab.md:1)"
    late = {**UNREACHED, "status": "timeout", "info": "Read timed out"}
    assert [one[1] for one in verdicts([late])] == ["skipped"]
    assert [one[1] for one in verdicts([late, WORKS])] == ["broken", "works"]
