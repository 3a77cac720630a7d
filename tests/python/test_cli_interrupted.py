"""The command `viakit` when it is interrupted before the code of a command runs, or while a module is imported."""

import signal
import subprocess
import sys
import weakref

import pytest
from click.testing import CliRunner
from waiting import until

from viakit import cli

# The first argument is the module that is about to be imported when SIGINT arrives.
INTERRUPTED_AT = """
import signal, sys
class Finder:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Finder)
from viakit.__main__ import main
main()
"""


@pytest.mark.parametrize("place", ["_write_anything", "cli.make_context", "cli.get_command", "cli.invoke"])
def test_an_interrupt_has_the_same_status_everywhere(monkeypatch, place):
    """click itself ends with status 1 if it is interrupted while it reads the command line."""

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["viakit", "protocols"])
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # SIGTERM keeps its action in this process
    monkeypatch.setattr(f"viakit.cli.{place}", interrupted)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130


@pytest.mark.parametrize(
    ("words", "status"),
    [(["--version"], 0), (["protocols"], 0), (["protocols", "--nothing"], 2), (["show", "/nowhere"], 1)],
    ids=str,
)
def test_other_ends_keep_their_status(words, status):
    done = subprocess.run([sys.executable, "-m", "viakit", *words], capture_output=True, text=True, timeout=100)
    assert done.returncode == status, done
    assert done.stdout if status == 0 else done.stderr


@pytest.mark.parametrize("module", ["click", "viakit.launch"])
def test_an_interrupt_while_the_command_is_imported_ends_it_by_the_signal(module):
    """Nothing is written, and no code sees an exception that it could turn into another one."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_AT, module], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


@pytest.mark.parametrize("again_s", [0.01, 0])
def test_an_interrupt_in_a_callback_of_importlib_is_not_lost(monkeypatch, again_s):
    """Python ignores exceptions of callbacks of weak references, and importlib has one for each module.

    A signal that is sent again at once arrives while the first one is still handled.
    """
    monkeypatch.setattr(cli, "_AGAIN_S", again_s)
    names = {"signal": signal}
    exec(compile("def cb(_): signal.raise_signal(signal.SIGINT)", "<frozen importlib._bootstrap>", "exec"), names)
    locks = [{1}]
    reference = weakref.ref(locks[0], names["cb"])

    def end_of_import():
        locks.clear()
        until(lambda: False, "the interrupt")

    before = signal.signal(signal.SIGINT, cli.interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            end_of_import()
    finally:
        signal.signal(signal.SIGINT, before)
    assert reference() is None


def test_an_error_that_an_interrupt_has_caused_is_an_interrupt(monkeypatch):
    def interrupted(*_):
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    monkeypatch.setattr("viakit.cli.click.Group.invoke", interrupted)
    done = CliRunner().invoke(cli.cli, ["protocols"])
    assert done.exit_code == 130, done.output
    assert "interrupted" in done.output
