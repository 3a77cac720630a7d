"""``%load_ext viakit``: run a cell on ranks, and viakit's commands as results.

``%%ranks -n 4 --protocol via``
    The cell runs on four ranks, together; ``comm``, ``rank`` and ``size`` are there. The ranks stay for the next
    ``%%ranks`` cell, with all names that were defined, until another number of them is asked for, ``%ranks --stop``, or
    the end of the kernel.
``%ranks``
    What runs. ``%ranks --stop`` ends it, ``%ranks --restart`` begins anew.
``%viakit sweep via-shm unix --sizes 64 --seconds 2``
    Any command of viakit. What measures (sweep, barrier, collectives, app, speedup, demo, bench) gives back a
    :class:`viakit.measure.Result`; the kernel stays free of it, because the command runs in a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import itertools
import json
import os
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

from viakit.lab.ranks import RankError, Ranks, RanksEnded, check

__all__ = ["ViakitMagics", "load"]

_WITH_RESULT = {"sweep", "barrier", "collectives", "app", "speedup"}  # --json FILE writes a viakit.result/1
_NO_RESULT = {"--help", "-h", "--list"}  # with these they measure nothing
_STOP_S = 10.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


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
    @argument("--mtu", type=int, default=None, help="Of the testbed's wire, 1500 unless told.")
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
        """Say which ranks run; ``--stop`` ends them; with a number or another option, start such ranks now."""
        given = parse_argstring(self.ranks, line)
        if given.stop:
            self.stop()
            return None
        wanted = ("ranks", "protocol", "launcher", "policy", "hosts", "mtu", "rate")
        if not given.restart and all(getattr(given, name) is None for name in wanted):
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
            wanted = {name: getattr(given, name) for name in ("ranks", "protocol", "policy", "launcher", "mtu", "rate")}
            wanted["hosts"] = hosts if given.hosts is not None else None
            if all(value is None or value == has[name] for name, value in wanted.items()):
                return running
        if self._ranks is not None and running is None:
            print("the ranks of before are gone: starting new ones", file=sys.stderr)
        n = given.ranks if given.ranks is not None else running.n if running is not None else 4
        wishes = {"policy": given.policy, "launcher": given.launcher, "hosts": hosts, "rate": given.rate}
        wishes["mtu"] = given.mtu if given.mtu is not None else 1500
        try:
            check(n, given.protocol, **wishes)
        except ValueError as error:
            raise UsageError(str(error)) from None  # before those that run are ended, with all names of theirs
        self.stop()
        self._ranks = Ranks(n, given.protocol, **wishes)
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
            assert self.shell is not None
            self.shell.set_custom_exc((RankError,), _show_briefly)

    # -------------------------------------------------------------------------------------------- commands

    @line_magic
    def viakit(self, line: str) -> Any:
        """Run a command of viakit in a process of its own; what measures gives back its result."""
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
                words += ["--quiet"]  # the table comes with the result; of the others, what they say is the point
            before = _stamp(file)
            try:
                _run(words, may_be_interrupted=True, keeper=keeper)
            except UsageError:
                if _stamp(file) == before:
                    raise
                # It failed on its way, and has said so: what was measured by then is the result.
            if _stamp(file) == before:
                return None  # nothing was measured, and it has said why
            document = json.loads(file.read_bytes())
        from viakit.measure import Result

        document = document["result"] if name == "bench" else document
        document["command"] = document["environment"]["command"] = f"viakit {line.strip()}"
        return Result(document)


def _names_application(words: list[str]) -> bool:
    """Whether ``viakit app ...`` runs one: without a name it lists them."""
    from viakit.apps import harness

    return not set(harness.NAMES).isdisjoint(words[1:])


@contextlib.contextmanager
def _folder() -> Iterator[tuple[str, int]]:
    """Yield a new folder, which goes with the block, or with the kernel, and a descriptor that keeps it as long.

    A kernel that is killed removes nothing: so a shell waits for its word, and does it when none can come any more:
    when the kernel and the command that writes there, which inherits the descriptor, have both ended.
    """
    folder = tempfile.mkdtemp(prefix="viakit-lab-")
    script = 'read -r word || rm -rf "$0"'
    heir = subprocess.Popen(["/bin/sh", "-c", script, folder], stdin=subprocess.PIPE, start_new_session=True)
    assert heir.stdin is not None
    try:
        yield folder, heir.stdin.fileno()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        heir.communicate(b"gone\n")


def _option(words: list[str], name: str) -> str | None:
    """Return what was given for an option, as ``--json F`` or ``--json=F``; None if it was not."""
    for word, following in itertools.pairwise([*words, ""]):
        if word == name:
            return following or None
        if word.startswith(name + "="):
            return word.partition("=")[2]
    return None


def _stamp(file: Path) -> tuple[int, int] | None:
    """Return what tells a file from the one that was there before: results are written anew, and renamed."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def _hosts(word: str | None) -> int:
    """Number of the testbed's hosts that ``testbed:N`` means; 0: this machine."""
    if word in (None, "local"):
        return 0
    kind, _, number = str(word).partition(":")
    if kind == "testbed" and (number.isdigit() or not number):
        return int(number or 2)
    raise UsageError(f"--hosts {word}: right would be local or testbed:N")


def _end_with_kernel() -> None:
    """In the command, before it starts: SIGTERM when the kernel has gone, upon which it puts everything away."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _run(words: list[str], *, may_be_interrupted: bool = False, keeper: int | None = None) -> None:
    """Run a command of viakit and show what it writes; UsageError if it fails, KeyboardInterrupt after Ctrl-C.

    The descriptor *keeper* stays open as long as it runs.
    """
    environment = {**os.environ, "COLUMNS": os.environ.get("COLUMNS", "120"), "PYTHONUNBUFFERED": "1"}
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # kernels set them; a bar that redraws itself is for terminals
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "viakit", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,  # interrupting the kernel is passed on by us, once
        preexec_fn=_end_with_kernel,
        pass_fds=() if keeper is None else (keeper,),
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
            rest, _ = process.communicate(timeout=_STOP_S)
            sys.stdout.write(rest)
        except subprocess.TimeoutExpired:
            pass
        if not may_be_interrupted:  # else what was measured by then is the result
            raise
        return
    finally:
        if process.poll() is None:  # it does not answer, or the user will not wait
            process.kill()
            process.wait()
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
