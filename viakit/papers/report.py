"""Reports of the verdicts: a table, JSON, a page of Markdown for the documentation, and an HTML page with figures."""

from __future__ import annotations

import io
from collections.abc import Sequence
from html import escape
from typing import Any

from viakit import __version__
from viakit.base.sheet import sheet
from viakit.papers import PAPERS, figures, summary
from viakit.papers.claims import claims
from viakit.papers.rules import VERDICTS

__all__ = ["document", "html", "markdown", "show", "show_table", "tables"]

STYLES = {
    "reproduced": "green",
    "in shape": "cyan",
    "not reproduced": "red",
    "measured here today": "blue",
    "inconsistent in the source": "yellow",
    "untestable": "dim",
}
NOT_ROWS = "untestable"


def number(value: float | None, digits: int = 4) -> str:
    """Return a number for tables: of so many digits, and a long one without an exponent."""
    if value is None:
        return ""
    return f"{value:.0f}" if abs(value) >= 10 ** (digits - 1) else f"{value:.{digits}g}"


def document(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the document of ``viakit papers --json``."""
    return {"schema": "viakit.verdicts/1", "summary": summary(entries), "verdicts": list(entries)}


def words(entries: Sequence[dict[str, Any]]) -> list[str]:
    """Return the result in sentences."""
    counts = summary(entries)
    each = ", ".join(f"{many} {name}" for name, many in counts["verdicts"].items() if many)
    found = [f"{counts['figures']} published figures: {each}."]
    if counts["predicted"]:
        found.append(
            f"{counts['reproduced_percent']} % of {counts['predicted']} predictions are reproduced, and "
            f"{counts['at_least_in_shape_percent']} % are at least in shape."
        )
    return found


def show(entries: Sequence[dict[str, Any]], console: Any, everything: bool = False) -> None:
    """Print a table for each paper; without *everything*, figures that are inputs or descriptions are left out."""
    from rich.text import Text  # start-up time

    for paper, (authors, _) in PAPERS.items():
        rows = [one for one in entries if one["paper"] == paper and (everything or one["verdict"] != NOT_ROWS)]
        if not rows:
            continue
        table = sheet(*"line where system quantity >published >predicted unit verdict reason".split(), title=authors)
        for one in rows:
            table.add_row(
                str(one["line"]), Text(one["where"]), Text(one["system"]),
                Text(f"{one['quantity']}, {one['conditions']}"),
                one["published"], number(one["predicted"]), one["unit"],
                Text(one["verdict"], style=STYLES[one["verdict"]]), Text(one["reason"]),
            )  # fmt: skip
        console.print(table)
    for sentence in words(entries):
        console.print(sentence, markup=False)


def tables(entries: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return the entries of each of the paper's tables: "table1", "table2" ..."""
    numerals = {"I": "1", "II": "2", "III": "3"}
    found: dict[str, list[dict[str, Any]]] = {}
    for one in entries:
        if one["where"].startswith("Table "):
            numeral = one["where"].removeprefix("Table ")
            found.setdefault("table" + numerals.get(numeral, numeral), []).append(one)
    return found


def show_table(entries: Sequence[dict[str, Any]], console: Any) -> None:
    """Print one of a paper's tables as it is printed there: the published figure, and in brackets the predicted one."""
    cells: dict[str, dict[str, str]] = {}
    for one in entries:
        row, _, column = one["system"].partition("; ")
        if not column and len({other["quantity"] for other in entries}) > 1:
            column = f"{one['quantity']}, {one['unit']}"
        elif not column:  # one quantity: the conditions make the rows
            row, column = one["conditions"], claims()[one["line"]].platform.rpartition("; ")[2]
        value = one["predicted"]
        predicted = "" if value is None else f" ({number(value, 3 if abs(value) >= 1 else 2)})"
        cells.setdefault(row, {})[column] = one["published"] + predicted
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    table = sheet("", *(f">{column}" for column in columns), title=f"{entries[0]['where']}: published (predicted)")
    for row, found in cells.items():
        table.add_row(row, *(found.get(column, "") for column in columns))
    console.print(table)


def markdown(entries: Sequence[dict[str, Any]]) -> str:
    """Return the page of the documentation."""
    lines = [
        "# Verdicts on the papers' figures",
        "",
        "`viakit papers --markdown docs/verdicts.md` writes this page. Predictions are computed in virtual time on the",
        "machines of [machines](machines.md), and judged by rule:",
        "",
        "- **reproduced**: within 15 % of the published number, or within the bounds of its words",
        "- **in shape**: the published order within its group, the same sign, or a knee within a factor of 2",
        "- **not reproduced**: neither, with the difference and its likely cause",
        "- **measured here today**: viakit's own code shows it on any machine",
        "- **inconsistent in the source**: two places of the paper contradict each other",
        "- **untestable**: an input of a machine file, a description, a price, a version, or another machine",
        "",
        *words(entries),
        "",
        "| paper | " + " | ".join(VERDICTS) + " |",
        "|---" * (len(VERDICTS) + 1) + "|",
    ]
    for paper, (authors, _) in PAPERS.items():
        counts = summary([one for one in entries if one["paper"] == paper])["verdicts"]
        lines.append(f"| {authors} | " + " | ".join(str(counts[name]) for name in VERDICTS) + " |")
    for paper, (authors, title) in PAPERS.items():
        lines += ["", f"## {authors}", "", f"*{title}*", ""]
        lines += ["| line | where | figure | published | predicted | unit | verdict |", "|---|---|---|---|---|---|---|"]
        for one in entries:
            if one["paper"] == paper and one["verdict"] != NOT_ROWS:
                what = ", ".join(text for text in (one["system"], one["quantity"], one["conditions"]) if text)
                cells = (one["line"], one["where"], what, one["published"], number(one["predicted"]), one["unit"])
                lines.append(
                    "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + f" | {one['verdict']} |"
                )
    lines += ["", "## Figures that are not reproduced", ""]
    for one in entries:
        if one["verdict"] == "not reproduced":
            place = ", ".join((PAPERS[one["paper"]][0], one["where"], one["system"], one["quantity"]))
            lines.append(f"- line {one['line']}, {place}: {one['reason']}")
    return "\n".join(line.rstrip() for line in lines) + "\n"


def html(entries: Sequence[dict[str, Any]], papers: Sequence[str] = tuple(PAPERS)) -> str:
    """Return one self-contained page: the verdicts, and every figure with its published points."""
    style = (
        "body{font:15px/1.5 sans-serif;max-width:75rem;margin:2rem auto;padding:0 1rem}table{border-collapse:collapse}"
        "td,th{padding:.15rem .6rem;border-bottom:1px solid #ddd;text-align:left;font-size:13px}"
        ".reproduced{color:#0a7d32}.in-shape{color:#05668d}.not-reproduced{color:#b00020}svg{max-width:36rem;height:auto}"
    )
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>viakit papers</title>",
        f"<style>{style}</style><h1>The papers' figures, predicted and judged</h1>",
        *(f"<p>{escape(sentence)}</p>" for sentence in words(entries)),
    ]
    for paper in papers:
        authors, title = PAPERS[paper]
        parts.append(f"<h2>{escape(authors)}</h2><p><i>{escape(title)}</i></p>")
        for name in figures.names(paper):
            buffer = io.StringIO()
            figures.draw(paper, name).savefig(buffer, format="svg", metadata={"Date": None})
            parts.append(buffer.getvalue()[buffer.getvalue().index("<svg") :])
        headings = ("line", "where", "figure", "published", "predicted", "unit", "verdict", "reason")
        parts.append("<table><tr>" + "".join(f"<th>{one}</th>" for one in headings) + "</tr>")
        for one in entries:
            if one["paper"] != paper:
                continue
            what = ", ".join(text for text in (one["system"], one["quantity"], one["conditions"]) if text)
            cells = (one["line"], one["where"], what, one["published"], number(one["predicted"]), one["unit"])
            row = "".join(f"<td>{escape(str(cell))}</td>" for cell in cells)
            kind = one["verdict"].replace(" ", "-")
            parts.append(f"<tr>{row}<td class={kind}>{one['verdict']}</td><td>{escape(one['reason'])}</td></tr>")
        parts.append("</table>")
    parts.append(f"<p>viakit {escape(__version__)}</p></html>")
    return "\n".join(parts) + "\n"
