"""Sphinx: every page is a MyST text beside this file."""

import inspect
import re
from pathlib import Path

import click
from docutils import nodes
from docutils.parsers.rst import Directive

import viakit
from viakit.cli import cli

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
html_theme = "furo"
html_title = f"viakit {version}"
suppress_warnings = ["ref.python"]  # "state" is an attribute of several classes: which one is meant, the text says


class CommandHelp(Directive):
    """``viakit-commands``: what ``viakit`` and each of its commands say to ``--help``, so that the two never differ."""

    def run(self) -> list[nodes.Node]:
        """Return a section per command."""
        found: list[nodes.Node] = []
        group = click.Context(cli, info_name="viakit", max_content_width=100)
        for name, command in [("", cli), *sorted(cli.commands.items())]:
            title = f"viakit {name}".strip()
            context = group if not name else click.Context(command, info_name=title, max_content_width=100)
            section = nodes.section(ids=[nodes.make_id(title)])
            section += nodes.title("", title)
            text = command.get_help(context)
            section += nodes.literal_block(text, text, language="text")
            found.append(section)
        return found


class Remedies(Directive):
    """``viakit-remedies``: every remedy that ``viakit doctor`` can name, read from its source."""

    def run(self) -> list[nodes.Node]:
        """Return a list of them."""
        source = Path(viakit.__file__).with_name("doctor.py").read_text(encoding="utf-8")
        texts = dict.fromkeys(re.findall(r'remedy = f?"((?:[^"\\]|\\.)+)"', source))
        items = nodes.bullet_list()
        for text in texts:
            item = nodes.list_item()
            item += nodes.paragraph("", "", nodes.literal(text, text))
            items += item
        return [items]


def attribute_text(app: object, what: str, name: str, attribute: object, options: object, lines: list[str]) -> None:
    """Fill the entry of an attribute of an extension type from the section Attributes of its class."""
    if any(lines) or inspect.isroutine(attribute) or not hasattr(attribute, "__objclass__"):
        return
    text = inspect.getdoc(attribute.__objclass__) or ""
    found = re.search(rf"^{attribute.__name__} : .*\n((?:    .*\n?)+)", text, re.MULTILINE)
    if found:
        lines[:] = inspect.cleandoc(found[1]).splitlines()


def setup(app: object) -> None:
    """Register the directives."""
    app.connect("autodoc-process-docstring", attribute_text)
    app.add_directive("viakit-commands", CommandHelp)
    app.add_directive("viakit-remedies", Remedies)
