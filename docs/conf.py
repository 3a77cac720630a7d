"""Sphinx: every page is a MyST text beside this file."""

import inspect
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import class_pages
import click
import lesson_pages
from docutils import nodes
from docutils.parsers.rst import Directive
from sphinx import addnodes
from sphinx.util import logging

import viakit
from viakit.cli import cli
from viakit.cli.reference import EXAMPLES, grouped
from viakit.measure import plot

logger = logging.getLogger(__name__)

project = "viakit"
copyright = "viakit contributors"
release = version = viakit.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types, in words
napoleon_use_ivar = True
smartquotes = False  # they make one dash of the two of an option
html_theme = "furo"
html_title = f"viakit {version}"
suppress_warnings = ["ref.python"]  # "state" is an attribute of several classes: which one is meant, the text says


def paragraph(text: str) -> nodes.paragraph:
    """Return a paragraph of a help text. Words between backquotes are code."""
    parts = text.split("`")
    return nodes.paragraph("", "", *(nodes.literal("", p) if i % 2 else nodes.Text(p) for i, p in enumerate(parts)))


class CommandHelp(Directive):
    """``viakit-commands``: a section per command, with its help, an example, and its options in groups."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        found: list[nodes.Node] = []
        for name, command in sorted(cli.commands.items()):
            title = f"viakit {name}"
            section = nodes.section(ids=[nodes.make_id(title)])
            section += nodes.title("", title)
            for text in inspect.cleandoc(command.help or "").split("\n\n"):
                verbatim = text.startswith("\b")
                words = text.removeprefix("\b").strip("\n") if verbatim else " ".join(text.split())
                section += nodes.literal_block(words, words) if verbatim else paragraph(words)
            usage = command.get_usage(click.Context(command, info_name=title, max_content_width=100))
            example = f"{usage.removeprefix('Usage: ')}\n\n{EXAMPLES[name]}"
            section += nodes.literal_block(example, example, language="text")
            for group, records in grouped(command).items():
                section += nodes.paragraph("", "", nodes.strong("", group))
                items = nodes.definition_list()
                for names, text in records:
                    term = nodes.term("", "", nodes.literal("", names))
                    items += nodes.definition_list_item("", term, nodes.definition("", paragraph(text)))
                section += items
            found.append(section)
        return found


class Remedies(Directive):
    """``viakit-remedies``: every remedy that ``viakit doctor`` can name, read from its source."""

    def run(self) -> list[nodes.Node]:
        """Return a list of them."""
        package = Path(viakit.__file__).parent
        source = "".join((package / name).read_text(encoding="utf-8") for name in ("doctor.py", "remote/rdma.py"))
        texts = dict.fromkeys(re.findall(r'remedy = f?"((?:[^"\\]|\\.)+)"', source))
        items = nodes.bullet_list()
        for text in texts:
            item = nodes.list_item()
            item += nodes.paragraph("", "", nodes.literal(text, text))
            items += item
        return [items]


class CommandFigure(Directive):
    """``viakit-figure``: a command, and the figure that it draws when the documentation is built.

    The figure is kept in build/figures/ and drawn again if it is removed. Its lines have the colour of the page's text.
    """

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the command and its figure."""
        command = " ".join(self.arguments[0].split())
        name = re.sub("[^a-z0-9]+", "-", command.lower())[:100].strip("-") + ".svg"
        path = Path(__file__).parent.parent / "build" / "figures" / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            words = [sys.executable, "-m", *shlex.split(command), "--plot", str(path)]
            try:
                # There, because in the checkout Python would import the sources and not the installed package.
                done = subprocess.run(words, capture_output=True, text=True, timeout=40, check=False, cwd=path.parent)
                lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            except subprocess.TimeoutExpired:
                lines = ["it took longer than 40 s"]
            if not path.exists():
                text = f"This machine did not draw the figure: {lines[-1]}"
                return [nodes.literal_block(command, command, language="sh"), nodes.paragraph("", text)]
        picture = nodes.raw("", plot.inline(path.read_bytes(), command), format="html")
        return [nodes.literal_block(command, command, language="sh"), picture]


def attribute_text(app: object, what: str, name: str, attribute: object, options: object, lines: list[str]) -> None:
    """Fill the entry of an attribute of an extension type from the section Attributes of its class."""
    if any(lines) or inspect.isroutine(attribute) or not hasattr(attribute, "__objclass__"):
        return
    text = inspect.getdoc(attribute.__objclass__) or ""
    found = re.search(rf"^{attribute.__name__} : .*\n((?:    .*\n?)+)", text, re.MULTILINE)
    if found:
        lines[:] = inspect.cleandoc(found[1]).splitlines()


_COLON = "\ue000"  # stands for a colon in the first line of an attribute's text


def hide_colon(app: object, what: str, name: str, attribute: object, options: object, lines: list[str]) -> None:
    """Hide a colon from Napoleon, which would take the words before it for a type."""
    if what in ("attribute", "data", "property") and lines:
        lines[0] = lines[0].replace(":", _COLON)


def show_colon(app: object, what: str, name: str, attribute: object, options: object, lines: list[str]) -> None:
    """Put hidden colons back."""
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def empty_entries(app: object, page: nodes.document) -> None:
    """Warn of entries without a description, which fails the build. NamedTuple's own text describes nothing."""
    for entry in page.findall(addnodes.desc):
        names, content = entry[0].get("ids", []), entry[-1]
        text = " ".join(part.astext() for part in content if not isinstance(part, addnodes.desc)).strip()
        if names and (not text or text.startswith("Alias for field number")):
            logger.warning("%s has no description: write a docstring, or #: beside it", names[0], location=entry)


def odd_links(app: object, page: nodes.document) -> None:
    """Warn of text that became a link by accident, such as tcp:HOST outside of code. `make links` follows links."""
    for link in page.findall(nodes.reference):
        scheme = re.match("([a-z]+):", link.get("refuri", ""))
        if scheme and scheme[1] not in ("http", "https"):
            logger.warning("%s is no link: write it as code", link["refuri"], location=link)


def setup(app: object) -> None:
    """Register the directives, and the pages of classes and lessons."""
    app.connect("builder-inited", class_pages.write)
    app.connect("source-read", class_pages.overview)
    app.connect("autodoc-process-docstring", attribute_text)
    app.connect("autodoc-process-docstring", hide_colon, priority=490)
    app.connect("autodoc-process-docstring", show_colon, priority=510)
    app.connect("doctree-read", empty_entries)
    app.connect("doctree-read", odd_links)
    app.connect("source-read", lesson_pages.page)
    app.connect("env-get-outdated", lesson_pages.outdated)
    app.add_directive("viakit-commands", CommandHelp)
    app.add_directive("viakit-figure", CommandFigure)
    app.add_directive("viakit-remedies", Remedies)
