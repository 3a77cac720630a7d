"""The command `viakit` when it is interrupted before or after the code of a command runs."""

import signal
import subprocess
import sys

import pytest

from viakit import cli


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
