"""``%load_ext viakit``: cells that run on ranks, and viakit's commands as results.

``%%ranks -n 4 --protocol via``, ``%%ranks --hosts ssh:alpha*2,beta*2``
    Run the cell on four ranks together; ``comm``, ``rank`` and ``size`` are defined. The ranks and all defined names
    are kept for the next ``%%ranks`` cell. They end when another number of ranks is requested, with ``%ranks --stop``,
    or with the kernel.
``%ranks``
    Show the present ranks. ``%ranks --stop`` ends them, ``%ranks --restart`` starts new ones.
``%viakit sweep via-shm unix --sizes 64 --seconds 2``
    Run any command of viakit. Commands that measure (sweep, barrier, collectives, app, speedup, demo, bench) return a
    :class:`viakit.measure.Result`. The command runs in a separate process, so that the kernel stays free.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display, publish_display_data, update_display

from viakit.base.process import end_with_parent
from viakit.lab import _front, _live
from viakit.lab.ranks import RankError, Ranks, RanksEnded, check
from viakit.remote.spec import chosen_hosts, parse

__all__ = ["ViakitMagics", "load"]

_WITH_RESULT = {"sweep", "barrier", "collectives", "app", "speedup"}  # --json FILE writes a viakit.result/1
_SETTINGS = ("ranks", "protocol", "policy", "launcher", "mtu", "rate", "network", "python")
_NO_RESULT = {"--help", "-h", "--list"}  # with these they measure nothing
_STOP_S = 10.0


class _Output:
    """Displays the output of ranks below the cell: text by rank, pictures as they arrive, updates in place."""

    def __init__(self, label: bool) -> None:
        self._label = label
        self._shown: set[tuple[int, str]] = set()

    def text(self, rank: int, stream: str, text: str) -> None:
        """Write whole lines, each preceded by its rank."""
        prefix = f"[{rank}] " if self._label else ""
        out = sys.stdout if stream == "stdout" else sys.stderr
        out.write("".join(prefix + line for line in text.splitlines(keepends=True)))
        if not text.endswith("\n"):
            out.write("\n")
        out.flush()

    def display(self, rank: int, content: dict[str, Any]) -> None:
        """Show a display of a rank. A repeated ``display_id`` updates the existing display."""
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
    """The magics. There is at most one set of ranks."""

    def __init__(self, shell: Any) -> None:
        super().__init__(shell)
        self._ranks: Ranks | None = None
        self._exceptions_are_ours = False
        atexit.register(self.stop)

    def stop(self) -> None:
        """End the ranks, if they run."""
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None

    # -------------------------------------------------------------------------------------------- ranks

    @magic_arguments()
    @argument(
        "-n",
        "--ranks",
        type=int,
        default=None,
        help="Number of ranks; default: those that run, one on each machine, or 4.",
    )
    @argument("--protocol", default=None, help="Protocol: via (default), bip, tcp, mpi[:mpich|:openmpi].")
    @argument("--launcher", default=None, help="viakit (default), or the mpirun of mpi, mpi:mpich, mpi:openmpi.")
    @argument("--policy", default=None, help="Policy of the message engine, as for `viakit run --policy`.")
    @argument("--hosts", default=None, help="local, testbed:N for N emulated hosts, or ssh:A,B*4 for machines.")
    @argument("--network", default=None, help="Wire between machines: eth:IF, udp:ADDRESS, udp:10.0.0.0/24.")
    @argument("--python", default=None, help="Interpreter with viakit on the machines of --hosts ssh:.")
    @argument("--mtu", type=int, default=None, help="MTU of the testbed's wire; default: 1500.")
    @argument("--rate", default=None, help="Limit of the testbed's wire: 1gbit.")
    @argument("--timeout", type=float, default=None, help="Seconds after which the cell is interrupted.")
    @argument("--no-label", action="store_true", help="Do not print [rank] before lines.")
    @argument("--stop", action="store_true", help="%%ranks --stop ends the ranks.")
    @argument("--restart", action="store_true", help="Start new ranks, without the names of earlier cells.")
    @cell_magic("ranks")
    def ranks(self, line: str, cell: str) -> None:
        """Run the cell on N ranks that stay alive between cells."""
        given = parse_argstring(self.ranks, line)
        ranks = self._need(given)
        shown = _Output(not given.no_label)
        try:
            ranks.run(cell, timeout_s=given.timeout, on_text=shown.text, on_display=shown.display)
        except RankError as error:
            self._show_tracebacks(error, ranks.n)
            raise
        except RanksEnded:
            self.stop()
            raise

    @line_magic("ranks")
    def ranks_line(self, line: str) -> Ranks | None:
        """Return the present ranks. ``--stop`` ends them, and a number or another option starts new ranks."""
        given = parse_argstring(self.ranks, line)
        if given.stop:
            self.stop()
            return None
        if not given.restart and all(getattr(given, name) is None for name in (*_SETTINGS, "hosts")):
            if self._ranks is None:
                print("no ranks are running; a cell that begins with %%ranks -n 4 starts four")
            return self._ranks
        return self._need(given)

    def _need(self, given: Any) -> Ranks:
        """Return ranks with the requested options: the present ones if they match, otherwise new ones."""
        hosts = _hosts(given.hosts)
        running = self._ranks if self._ranks is not None and self._ranks.alive else None
        if running is not None and not given.restart:
            has = running.options
            wanted = {name: getattr(given, name) for name in _SETTINGS}
            wanted["hosts"] = hosts if given.hosts is not None else None
            if all(value is None or value == has[name] for name, value in wanted.items()):
                return running
        if self._ranks is not None and running is None:
            print("the previous ranks have ended; starting new ones", file=sys.stderr)
        n = given.ranks if given.ranks is not None else running.n if running is not None else 4
        if given.ranks is None and isinstance(hosts, str):
            spec = parse(hosts)
            n = sum(spec.slots) or len(spec)
        settings = {name: getattr(given, name) for name in ("policy", "launcher", "rate", "network", "python")}
        settings |= {"hosts": hosts, "mtu": given.mtu if given.mtu is not None else 1500}
        try:
            check(n, given.protocol, **settings)
        except ValueError as error:
            raise UsageError(str(error)) from None  # before the present ranks are ended and their names are lost
        self.stop()
        self._ranks = Ranks(n, given.protocol, **settings)
        return self._ranks

    def _show_tracebacks(self, error: RankError, size: int) -> None:
        """Show one traceback for each kind of failure, with its ranks. Texts that differ in numbers are of one kind."""
        kinds = {rank: (name, re.sub(r"\d+", "N", text)) for rank, (name, text, _) in error.errors.items()}
        shown: set[tuple[str, str]] = set()
        for rank, (_, _, trace) in error.errors.items():
            if kinds[rank] not in shown:
                shown.add(kinds[rank])
                others = [other for other, kind in kinds.items() if kind == kinds[rank]]
                who = f"all {size} ranks" if len(others) == size else f"rank {', '.join(map(str, others))}"
                print(f"--- {who}{f' (traceback of rank {rank})' if len(others) > 1 else ''}", file=sys.stderr)
                print("\n".join(trace), file=sys.stderr)
        # The relevant traceback has been shown. Suppress that of the magic itself.
        error.__suppress_context__ = True
        if not self._exceptions_are_ours:
            self._exceptions_are_ours = True
            assert self.shell is not None
            self.shell.set_custom_exc((RankError,), _show_briefly)

    # -------------------------------------------------------------------------------------------- commands

    @line_magic
    def viakit(self, line: str) -> Any:
        """Run a command of viakit in a separate process; a command that measures returns its result."""
        try:
            words = shlex.split(line)
        except ValueError as error:
            raise UsageError(f"%viakit {line.strip()}: {error}") from None
        name = words[0] if words else ""
        given = _option(words, "--json")
        measures = name in {*_WITH_RESULT, "demo", "bench"} and not _NO_RESULT & set(words)
        if not measures or given == "-" or (name == "app" and not _names_application(words)):
            _run(words)
            return None
        with _folder() as (folder, keeper):
            if name == "demo":
                file = Path(_option(words, "--out") or "viakit-demo") / "results.json"
            else:
                file = Path(given or folder + "/result.json")
                words += [] if given else ["--json", str(file)]
            if name in _WITH_RESULT:
                words += ["--quiet"]  # The result displays its own table. Other commands must print their output.
            live = _live.LiveFigure(f"viakit {line.strip()}") if _live.wanted(words) else None
            before = _stamp(file)
            try:
                _run(words, may_be_interrupted=True, keeper=keeper, live=live)
            except UsageError:
                if _stamp(file) == before:
                    raise
                # The command failed and has printed the reason. The measurements so far are the result.
            if _stamp(file) == before:
                return None  # Nothing was measured, and the command has printed the reason.
            document = json.loads(file.read_bytes())
        document = document["result"] if name == "bench" else document
        document["command"] = document["environment"]["command"] = f"viakit {line.strip()}"
        shown = _live.ShownResult(document)
        shown.live, shown.cell = live, _front.cell()
        if live is not None:
            self._finish_after_cell(live, document)
        return shown

    def _finish_after_cell(self, live: _live.LiveFigure, document: dict[str, Any]) -> None:
        """Complete the live figure when the cell has ended, unless the cell displayed the result in its place."""
        assert self.shell is not None
        events = self.shell.events

        def finish(*_result: Any) -> None:
            events.unregister("post_run_cell", finish)
            live.finish(document)

        events.register("post_run_cell", finish)


def _names_application(words: list[str]) -> bool:
    """Return whether ``viakit app ...`` runs an application; without a name it lists them."""
    from viakit.apps import harness  # start-up time

    return not set(harness.NAMES).isdisjoint(words[1:])


@contextlib.contextmanager
def _folder() -> Iterator[tuple[str, int]]:
    """Yield a new folder, and a descriptor. The folder is removed after the block, or when the kernel ends.

    A killed kernel removes nothing. A shell therefore waits at the other end of the descriptor. When the kernel and the
    command that inherits the descriptor have both ended, the shell removes the folder.
    """
    folder = tempfile.mkdtemp(prefix="viakit-lab-")
    script = 'read -r word || rm -rf "$0"'
    cleaner = subprocess.Popen(["/bin/sh", "-c", script, folder], stdin=subprocess.PIPE, start_new_session=True)
    assert cleaner.stdin is not None
    try:
        yield folder, cleaner.stdin.fileno()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        cleaner.communicate(b"gone\n")


def _option(words: list[str], name: str) -> str | None:
    """Return the value of an option, as ``--json F`` or ``--json=F``; None if it is not given."""
    for word, following in itertools.pairwise([*words, ""]):
        if word == name:
            return following or None
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return None


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return values that identify a version of a file: results are written to a new file, which is then renamed."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _hosts(word: str | None) -> int | str:
    """Return the number of the testbed's hosts for ``testbed:N``, or ``ssh:A,B`` as it is; 0: this machine."""
    try:
        return chosen_hosts("local" if word is None else word)
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from None


def _run(
    words: list[str],
    *,
    may_be_interrupted: bool = False,
    keeper: int | None = None,
    live: _live.LiveFigure | None = None,
) -> None:
    """Run a command of viakit and show its output; raise UsageError if it fails, KeyboardInterrupt after Ctrl-C.

    The command inherits the descriptor *keeper*. A *live* figure takes the points from the output.
    """
    environment = {**os.environ, "COLUMNS": os.environ.get("COLUMNS", "120"), "PYTHONUNBUFFERED": "1"}
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # Kernels set them, but a redrawn bar needs a terminal.
        environment.pop(name, None)
    if live is not None:
        words = [*words, "--live"]
        environment[_live.PACED] = "1"
    process = subprocess.Popen(
        [sys.executable, "-m", "viakit", *words],
        stdin=subprocess.DEVNULL if live is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,  # An interrupt of the kernel is forwarded below, once.
        preexec_fn=functools.partial(end_with_parent, signal.SIGTERM),
        pass_fds=() if keeper is None else (keeper,),
    )
    output: list[str] = []
    assert process.stdout is not None
    try:
        for text in process.stdout:
            if live is not None and process.stdin is not None and live.line(text, process.stdin):
                continue
            output.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
        process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=_STOP_S)
            sys.stdout.write(rest)
        except subprocess.TimeoutExpired:
            pass
        if not may_be_interrupted:  # Otherwise the measurements so far are the result.
            raise
        return
    finally:
        if process.poll() is None:  # It does not end, or the user has interrupted the wait.
            process.kill()
            process.wait()
        process.stdout.close()
    if process.returncode:
        raise UsageError(output[-1].strip() if output else f"viakit ended with status {process.returncode}")


def _show_briefly(shell: Any, kind: type, error: BaseException, trace: Any, tb_offset: int | None = None) -> list[str]:
    """IPython's handler for RankError: print one line after the tracebacks of the ranks."""
    lines = [f"{kind.__name__}: {error}"]
    shell._showtraceback(kind, error, lines)
    return lines


def _figure_html(figure: Any) -> str | None:
    """Return a figure of Matplotlib as HTML; None for one of pyplot, whose backend displays it."""
    if figure.canvas.manager is not None:
        return None
    from viakit.measure import plot  # start-up time

    return plot.inline_figure(figure, "figure of a result")


def load(shell: Any) -> None:
    """Register the magics with an IPython shell, and the display of figures such as those of ``result.plot()``.

    IPython displays figures by itself after pyplot was imported, which :mod:`viakit.measure.plot` does not do.
    """
    shell.register_magics(ViakitMagics(shell))
    formatter = shell.display_formatter.formatters["text/html"]
    formatter.for_type_by_name("matplotlib.figure", "Figure", _figure_html)
