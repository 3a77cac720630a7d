"""Each promise of docs/security.md names tests, and these tests exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PAGE = (CHECKOUT / "docs" / "security.md").read_text(encoding="utf-8")


def rows(title: str) -> list[list[str]]:
    """Return the cells of the table below a title, without its head."""
    section = PAGE.split(f"### {title}\n")[1]
    lines = [line for line in section.split("\n#")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def missing(cell: str) -> list[str]:
    """Return the names in a cell for which there is no test: files, and functions of the file before them."""
    lacking, text = [], ""
    for name in re.findall(r"`([^`]+)`", cell):
        if re.fullmatch(r"(test|cases)_\w+\.(py|c)", name):
            path = CHECKOUT / "tests" / ("python" if name.endswith(".py") else "c") / name
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            lacking += [] if path.exists() else [name]
        elif not re.search(rf"^def {name}\(", text, re.M):
            lacking.append(name)
    return lacking


@pytest.mark.parametrize("title", ["By link", "By launcher"])
def test_each_promise_names_a_test_that_exists(title):
    table = rows(title)
    assert table
    for row in table:
        assert len(row) == 4, row
        assert re.search(r"`(?:test|cases)_", row[3]), f"no test: {row}"
        assert missing(row[3]) == [], row


def test_every_link_is_in_the_threat_model():
    from viakit import via

    named = {row[0] for row in rows("By link")}
    assert {link.name for link in via.links()} <= named


def test_a_name_that_is_no_test_is_found():
    assert missing("`test_nothing.py`: `test_x`") == ["test_nothing.py", "test_x"]
    assert missing("`test_promises.py`: `test_x`, `test_a_name_that_is_no_test_is_found`") == ["test_x"]


def test_all_tests_that_the_page_names_exist():
    for name in re.findall(r"`(test_\w+\.(?:py|c))`", PAGE):
        assert (CHECKOUT / "tests" / ("python" if name.endswith(".py") else "c") / name).exists(), name
