"""Sphinx: every page is a MyST text beside this file."""

import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import ClassVar

sys.path.insert(0, str(Path(__file__).parent))

import class_pages
import click
import lesson_pages
from docutils import nodes
from docutils.parsers.rst import Directive, directives
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


FIGURES = Path(__file__).parent.parent / "build" / "figures"  # where the gallery's commands run and their files stay
SNIPPETS = {path.name: path for path in (Path(__file__).parent / "snippets").glob("gallery-*.py")}  # of its commands
COMMAND_S = 60


class CommandFigure(Directive):
    """``viakit-figure``: a command, and the figure that it draws when the documentation is built.

    The figure is kept in build/figures/ and drawn again if it is removed. Its lines have the colour of the page's text.
    The option ``by`` names the command's option for the file (default --plot). ``output`` also shows what it prints.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar = {"by": directives.unchanged, "output": directives.positive_int}
    draws = True

    def run(self) -> list[nodes.Node]:
        """Return the command, the text that it prints and its figure."""
        command = " ".join(self.arguments[0].split())
        path = FIGURES / (re.sub("[^a-z0-9]+", "-", command.lower())[:100].strip("-") + ".svg")
        printed = path.with_suffix(".txt")
        failed = "" if (path if self.draws else printed).exists() else self._make(command, path, printed)
        shown = self._with_picture(command) if "by" in self.options else command
        found: list[nodes.Node] = [nodes.literal_block(shown, shown, language="sh")]
        if failed:
            return [*found, nodes.paragraph("", failed)]
        if "output" in self.options and printed.exists():
            text = clipped(printed.read_text(encoding="utf-8"), self.options["output"])
            found.append(nodes.literal_block(text, text, language="text", classes=["command-output"]))
        if self.draws:
            found.append(nodes.raw("", plot.inline(path.read_bytes(), command), format="html"))
        return found

    def _with_picture(self, command: str) -> str:
        """Return the command with the option that draws: before the words of another command, if there is one."""
        first, another, rest = command[1:].partition("viakit ")
        option = f"{self.options['by']} picture.svg"
        return f"{command[0]}{first.rstrip()} {option}{' ' if another else ''}{another}{rest}"

    def _make(self, command: str, path: Path, printed: Path) -> str:
        """Run the command, and return why it made no figure or text, or an empty string."""
        FIGURES.mkdir(parents=True, exist_ok=True)
        words = [sys.executable, "-m", *shlex.split(command)]
        for name in filter(SNIPPETS.__contains__, words):
            shutil.copy(SNIPPETS[name], FIGURES)
        if self.draws:  # before the words of another command, if there is one: trace ends its options there
            place = words.index("viakit", 3) if "viakit" in words[3:] else len(words)
            words[place:place] = [self.options.get("by", "--plot"), str(path)]
        # A page shows 88 columns. Wider tables would have to be scrolled, and their last column is often the verdict.
        environment = {**os.environ, "COLUMNS": "88", "NO_COLOR": "1"}
        environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        try:
            # There, because in the checkout Python would import the sources and not the installed package.
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=COMMAND_S, check=False, cwd=FIGURES, env=environment
            )
        except subprocess.TimeoutExpired:
            return f"This machine did not finish the command in {COMMAND_S} s."
        made = path.exists() if self.draws else bool(done.stdout.strip())
        if not made:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            return f"This machine did not {'draw the figure' if self.draws else 'print the text'}: {lines[-1]}"
        # A command that passes on the output of another one prints its own text on standard error.
        text = done.stdout if done.stdout.strip() else done.stderr
        printed.write_text(text.replace(str(FIGURES) + os.sep, ""), encoding="utf-8")
        return ""


class CommandOutput(CommandFigure):
    """``viakit-output``: a command, and the text that it prints when the documentation is built.

    The option ``output`` is the largest number of lines to show (default 40). Files that the command writes stay in
    build/figures/, so a later command may read them.
    """

    draws = False

    def run(self) -> list[nodes.Node]:
        """Return the command and its text."""
        self.options.setdefault("output", 40)
        return super().run()


def clipped(text: str, most: int) -> str:
    """Return the first lines of a text, without empty lines at its ends, and how many lines are left out."""
    lines = [line.rstrip() for line in text.strip("\n").splitlines()]
    if len(lines) > most:
        lines[most:] = [f"... ({len(lines) - most} more lines)"]
    return "\n".join(lines)


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
    app.add_directive("viakit-output", CommandOutput)
    app.add_directive("viakit-remedies", Remedies)
