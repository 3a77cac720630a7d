"""Every command has an example that its own options accept, and every option is on the page once."""

import shlex

import click
import pytest

from viakit.cli import cli
from viakit.cli.reference import EXAMPLES, GROUPS, grouped


def test_every_command_has_an_example():
    assert set(EXAMPLES) == set(cli.commands), "a new command needs an example in viakit/cli/reference.py"


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_is_accepted(name):
    program, command, *words = shlex.split(EXAMPLES[name])
    assert (program, command) == ("viakit", name)
    if "--help" in words:
        with pytest.raises(click.exceptions.Exit):
            cli.commands[name].make_context(name, words)
        return
    with cli.commands[name].make_context(name, words):
        pass


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_option_is_shown_once(name):
    command = cli.commands[name]
    shown = [record for records in grouped(command).values() for record in records]
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    assert len(shown) == len([one for one in options if "--help" not in one.opts])
    assert len({names for names, _ in shown}) == len(shown)


def test_groups_do_not_overlap():
    names = [name for members in GROUPS.values() for name in members]
    assert len(set(names)) == len(names)
