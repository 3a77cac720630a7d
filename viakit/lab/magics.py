"""``%load_ext viakit``: run a cell on ranks, and viakit's commands as results.

``%%ranks -n 4 --protocol via``
    The cell runs on four ranks, together; ``comm``, ``rank`` and ``size`` are there. The ranks stay for the next
    ``%%ranks`` cell, with all names that were defined, until another number of them is asked for, ``%ranks --stop``, or
    the end of the kernel.
``%ranks``
    What runs. ``%ranks --stop`` ends it, ``%ranks --restart`` begins anew.
``%viakit sweep via-shm unix --sizes 64 --seconds 2``
    Any command of viakit. What measures gives back a :class:`viakit.measure.Result`; the kernel stays free of it,
    because the command runs in a process of its own.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display, publish_display_data, update_display

from viakit.lab.ranks import RankError, Ranks, RanksEnded

__all__ = ["ViakitMagics", "load"]

_WITH_RESULT = {"sweep", "barrier"}  # commands that take --json FILE and write a viakit.result/1
_STOP_S = 10.0


class _Shown:
    """Puts what ranks say under the cell: text by rank, pictures as they come, updates in place."""

    def __init__(self, label: bool) -> None:
        self._label = label
        self._shown: set[tuple[int, str]] = set()

    def text(self, rank: int, stream: str, text: str) -> None:
        """Write whole lines, each with its rank before it."""
        prefix = f"[{rank}] " if self._label else ""
        out = sys.stdout if stream == "stdout" else sys.stderr
        out.write("".join(prefix + line for line in text.splitlines(keepends=True)))
        if not text.endswith("\n"):
            out.write("\n")
        out.flush()

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """Show what a rank displayed. The same ``display_id`` again changes what is there: a picture that lives."""
        data = dict(content["data"])
        identity = (content.get("transient") or {}).get("display_id")
        if set(data) == {"text/plain"}:
            self.text(rank, "stdout", data["text/plain"])
            return
        if identity is None:
            publish_display_data(data, content.get("metadata"))
        elif (rank, identity) in self._shown:
            update_display(data, display_id=f"rank {rank} {identity}", raw=True, metadata=content.get("metadata"))
        else:
            self._shown.add((rank, identity))
            display(data, display_id=f"rank {rank} {identity}", raw=True, metadata=content.get("metadata"))


@magics_class
class ViakitMagics(Magics):
    """The magics; one set of ranks at a time."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._ranks: Ranks | None = None
        self._exceptions_are_ours = False
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    # -------------------------------------------------------------------------------------------- ranks

    @magic_arguments()
    @argument("-n", "--ranks", type=int, default=None, help="How many; default: those that run, or 4.")
    @argument("--protocol", default=None, help="What connects them: via (default), bip, tcp, mpi[:mpich|:openmpi].")
    @argument("--launcher", default=None, help="viakit (default); mpi, mpi:mpich, mpi:openmpi: that MPI's mpirun.")
    @argument("--policy", default=None, help="Of the message engine, as of `viakit run --policy`.")
    @argument("--hosts", default=None, help="local, or testbed:N for N emulated hosts.")
    @argument("--mtu", type=int, default=1500, help="Of the testbed's wire.")
    @argument("--rate", default=None, help="Limit of the testbed's wire: 1gbit.")
    @argument("--timeout", type=float, default=None, help="Seconds after which the cell is interrupted.")
    @argument("--no-label", action="store_true", help="No [rank] before lines.")
    @argument("--stop", action="store_true", help="%%ranks --stop ends the ranks.")
    @argument("--restart", action="store_true", help="Begin anew, without the names of earlier cells.")
    @cell_magic("ranks")
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on N ranks that stay alive between cells."""
        given = parse_argstring(self.ranks, line)
        ranks = self._need(given)
        shown = _Shown(not given.no_label)
        try:
            ranks.run(cell, timeout_s=given.timeout, on_text=shown.text, on_display=shown.display)
        except RankError as error:
            self._tell_once(error, ranks.n)
            raise
        except RanksEnded:
            self.stop()
            raise

    @line_magic("ranks")
    def ranks_line(self, line: str) -> Ranks | None:
        """Say which ranks run; ``--stop`` ends them; with a number, start them now."""
        given = parse_argstring(self.ranks, line)
        if given.stop:
            self.stop()
            return None
        if given.ranks is None and not given.restart:
            if self._ranks is None:
                print("no ranks run; a cell that begins with %%ranks -n 4 starts four")
            return self._ranks
        return self._need(given)

    def _need(self, given: Any) -> Ranks:
        """The ranks that were asked for: those that run if they are such, else new ones."""
        hosts = _hosts(given.hosts)
        running = self._ranks if self._ranks is not None and self._ranks.alive else None
        if running is not None and not given.restart:
            has = running.options
            wanted = {name: getattr(given, name) for name in ("ranks", "protocol", "policy", "launcher")}
            wanted["hosts"] = hosts if given.hosts is not None else None
            if all(value is None or value == has[name] for name, value in wanted.items()):
                return running
        if self._ranks is not None and running is None:
            print("the ranks of before are gone: starting new ones", file=sys.stderr)
        n = given.ranks or (running.n if running is not None else 4)
        self.stop()
        wishes = {"policy": given.policy, "launcher": given.launcher}
        self._ranks = Ranks(n, given.protocol, **wishes, hosts=hosts, mtu=given.mtu, rate=given.rate)
        return self._ranks

    def _tell_once(self, error: RankError, size: int) -> None:
        """Show one traceback for each kind of failure, with the ranks that it concerns, and none of our own frames."""
        told: set[tuple[str, str]] = set()
        for rank, (name, text, trace) in error.errors.items():
            if (name, text) not in told:
                told.add((name, text))
                others = [other for other, one in error.errors.items() if one[:2] == (name, text)]
                who = f"all {size} ranks" if len(others) == size else f"rank {', '.join(map(str, others))}"
                print(f"--- {who}{f' (traceback of rank {rank})' if len(others) > 1 else ''}", file=sys.stderr)
                print("\n".join(trace), file=sys.stderr)
        # The traceback that counts was shown; that of the magic would only be in its way.
        error.__suppress_context__ = True
        if not self._exceptions_are_ours:
            self._exceptions_are_ours = True
            self.shell.set_custom_exc((RankError,), _show_briefly)

    # -------------------------------------------------------------------------------------------- commands

    @line_magic
    def viakit(self, line: str) -> Any:
        """Run a command of viakit in a process of its own; what measures gives back its result."""
        words = shlex.split(line)
        command = [sys.executable, "-m", "viakit", *words]
        wants_result = (
            bool(words) and words[0] in _WITH_RESULT and not {"--json", "--help", "-h", "--list"} & set(words)
        )
        if not wants_result:
            _run(command)
            return None
        with tempfile.TemporaryDirectory(prefix="viakit-lab-") as folder:
            file = Path(folder) / "result.json"
            try:
                _run([*command, "--json", str(file), "--quiet"], may_be_interrupted=True)
            except UsageError:
                if not file.exists():
                    raise
                # It failed on its way, and has said so: what was measured by then is the result.
            if not file.exists():
                return None
            document = json.loads(file.read_bytes())
        from viakit.measure import Result

        document["command"] = f"viakit {line.strip()}"
        return Result(document)


def _hosts(word: str | None) -> int:
    """Number of the testbed's hosts that ``testbed:N`` means; 0: this machine."""
    if word in (None, "local"):
        return 0
    kind, _, number = str(word).partition(":")
    if kind == "testbed" and (number.isdigit() or not number):
        return int(number or 2)
    raise UsageError(f"--hosts {word}: right would be local or testbed:N")


def _run(command: list[str], *, may_be_interrupted: bool = False) -> None:
    """Run a command and show what it writes; UsageError if it fails, KeyboardInterrupt after Ctrl-C."""
    environment = {**os.environ, "COLUMNS": os.environ.get("COLUMNS", "120"), "PYTHONUNBUFFERED": "1"}
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # kernels set them; a bar that redraws itself is for terminals
        environment.pop(name, None)
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        start_new_session=True,  # interrupting the kernel is passed on by us, once
    )
    said: list[str] = []
    assert process.stdout is not None
    try:
        for text in process.stdout:
            said.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            process.communicate(timeout=_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if not may_be_interrupted:  # else what was measured by then is the result
            raise
        print("stopped; what had been measured is the result", file=sys.stderr)
        return
    finally:
        process.stdout.close()
    if process.returncode:
        raise UsageError(said[-1].strip() if said else f"viakit ended with status {process.returncode}")


def _show_briefly(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> list[str]:
    """IPython's handler for RankError: one line, after the tracebacks of the ranks."""
    lines = [f"{kind.__name__}: {error}"]
    shell._showtraceback(kind, error, lines)
    return lines


def load(shell: Any) -> None:
    """Register the magics with an IPython shell."""
    shell.register_magics(ViakitMagics(shell))
