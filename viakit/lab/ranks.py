"""Ranks that stay alive between the cells of a notebook: what ``%%ranks`` runs cells on.

>>> from viakit.lab.ranks import Ranks
>>> with Ranks(4) as ranks:                             # doctest: +SKIP
...     ranks.run("print(comm.rank, 'of', comm.size)")

Each rank is an ipyparallel engine in a process of its own, started and watched as ``viakit run`` starts ranks
(:mod:`viakit.lab._ranks_host`). All belong to one job, so ``viakit.world()`` connects them; it has been called already,
and its result is ``comm`` in each. They end with :meth:`Ranks.close`, and with the process that made them.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from typing_extensions import Self

from viakit._limits import seconds
from viakit._words import counted
from viakit.lab import _settings
from viakit.lab._job import socket_folder
from viakit.lab._ranks_host import CLIENT_FILE, READY_FILE

__all__ = ["RankError", "Ranks", "RanksEnded", "check"]

_PROTOCOLS = ("via", "bip", "tcp", "mpi", "mpi:mpich", "mpi:openmpi")

_START_S = 90.0  # four Python processes that import IPython, on a busy machine
_HUB_S = 10.0  # until the controller answers; then it is asked again, as long as it lives
_CLOSE_S = 8.0
_INTERRUPT_S = 5.0  # how long ranks may take to stop after an interrupt, before they are ended
_AFTER_FAILURE_S = 3.0
_LOOK_S = 0.02

_FAREWELL = re.compile(
    r"\[IPController\] CRITICAL \| (Received signal 15|terminating children)"
)  # when it is asked to go

# What every rank runs first. IPython's history would be one more file; nobody types into a rank.
_PRELUDE = """
import viakit
comm = viakit.world()
rank, size = comm.rank, comm.size
"""


class RankError(RuntimeError):
    """A cell failed on one rank or several; raised once, for all of them.

    Attributes
    ----------
    errors : dict of int to (str, str, list of str)
        By rank: the exception's name, its text, and the lines of its traceback.
    waiting : list of int
        Ranks that went on waiting, and were interrupted.
    """

    def __init__(
        self, errors: dict[int, tuple[str, str, list[str]]], size: int, waiting: list[int] | None = None
    ) -> None:
        self.errors = errors
        self.waiting = waiting or []
        kinds: dict[tuple[str, str], list[int]] = {}
        for rank, (name, text, _) in errors.items():
            kinds.setdefault((name, text), []).append(rank)
        lines = [f"{_ranks(ranks, size)}: {name}: {text}" for (name, text), ranks in kinds.items()]
        if self.waiting:
            lines.append(f"{_ranks(self.waiting, size)} still waited, and had to be interrupted")
        super().__init__("\n".join(lines))


class RanksEnded(RuntimeError):
    """The ranks are gone: a rank died, was killed, or could not be started. The text has what they said last."""


def _ranks(numbers: list[int], size: int) -> str:
    """Name ranks: ``all 4 ranks``, ``rank 2``, ``ranks 0, 2``."""
    if len(numbers) == size and size > 1:
        return f"all {size} ranks"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, sorted(numbers)))


def check(n: int = 4, protocol: str | None = None, **options: Any) -> dict[str, Any]:
    """Return the options of :class:`Ranks` as its host process takes them.

    Raises
    ------
    ValueError
        If they make no sense; nothing has been started, or ended, then.
    """
    from viakit._launch import MAX_RANKS, Options

    if protocol not in (None, *_PROTOCOLS):
        raise ValueError(f"protocol is {protocol!r}; right would be one of {', '.join(_PROTOCOLS)}")
    rules = {"ranks": _settings.whole(1, MAX_RANKS), "hosts": _settings.whole(0, MAX_RANKS), "mtu": _settings.MTU}
    rules["rate"] = _settings.maybe(_settings.rate)
    found = _settings.checked({"ranks": n, "protocol": protocol, **options}, rules)
    Options(**found).check()
    return found


class Ranks:
    """N processes that run code together.

    Parameters
    ----------
    n : int
        How many. More than there are cores is normal.
    protocol, policy : str, optional
        What ``viakit.world()`` uses: "via" (the default), "bip", "tcp" or "mpi"; and a policy of the message engine.
        "mpi", "mpi:mpich" and "mpi:openmpi" have the ranks started by that MPI's ``mpiexec``.
    launcher : str, optional
        Who starts the ranks: "viakit" (the default), or "mpi", "mpi:mpich", "mpi:openmpi": that MPI's ``mpiexec``, with
        any protocol between them.
    hosts : int
        0: this machine. Else so many hosts of a testbed, with `mtu` and `rate` of its wire.

    Raises
    ------
    ImportError
        If ipyparallel is missing; the message says how to get it.
    ValueError
        If the numbers make no sense.
    RanksEnded
        If they could not be started.
    """

    def __init__(
        self,
        n: int = 4,
        protocol: str | None = None,
        *,
        policy: str | None = None,
        launcher: str | None = None,
        hosts: int = 0,
        mtu: int = 1500,
        rate: str | None = None,
    ) -> None:
        options = check(n, protocol, policy=policy, launcher=launcher, hosts=hosts, mtu=mtu, rate=rate)
        try:
            import ipyparallel
        except ImportError as error:
            raise ImportError("ranks in a notebook need ipyparallel: pip install 'viakit[lab]'") from error
        self.options = options
        self.n = n
        self._client: Any = None
        self._view: Any = None
        self._by_rank: dict[int, int] = {}
        self._words = ""
        self._folder = Path(socket_folder("viakit-ranks-"))
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._host = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "viakit.lab._ranks_host",
                json.dumps({"folder": str(self._folder), "options": options}),
            ],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        try:
            self._connect(ipyparallel)
        except BaseException:
            self.close()
            raise

    def _connect(self, ipyparallel: Any) -> None:
        """Wait for the controller and all engines, and find out which engine is which rank."""
        deadline = time.monotonic() + _START_S
        self._wait_until((self._folder / READY_FILE).exists, deadline)
        file = str(self._folder / CLIENT_FILE)
        while self._client is None:
            self._wait_until(lambda: time.monotonic() < deadline, deadline)  # they live, and there is time
            try:
                self._client = ipyparallel.Client(file, timeout=_HUB_S, profile_dir=str(self._folder / "profile"))
            except (TimeoutError, OSError):
                time.sleep(_LOOK_S)  # the ranks may have ended meanwhile, and their controller with them
        _let_cells_follow_failures(self._client)
        self._wait_until(lambda: len(self._client.ids) >= self.n, deadline)
        self._view = self._client[:]
        numbers = self._view.apply_async(_rank_of_engine)
        self._wait_until(numbers.ready, deadline)
        self._by_rank = dict(zip(numbers.get(), self._view.targets, strict=True))
        self._view = self._client[[self._by_rank[rank] for rank in range(self.n)]]
        self.run(_PRELUDE, timeout_s=max(deadline - time.monotonic(), 1.0))

    def _wait_until(self, ready: Callable[[], Any], deadline: float) -> None:
        """Look until *ready* says yes; RanksEnded if the ranks end meanwhile or the deadline passes."""
        while True:
            if self._host.poll() is not None:
                raise RanksEnded(f"the {counted(self.n, 'rank')} could not be started:\n{self._last_words()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise RanksEnded(f"not ready within {_START_S:g} s:\n{self._last_words()}")
            time.sleep(_LOOK_S)

    def _last_words(self) -> str:
        """What the ranks and their keeper wrote outside of cells."""
        if self._log.closed:
            return self._words
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        lines = [line for line in lines if not _FAREWELL.search(line)]
        theirs = [line for line in lines if "[IPController]" not in line]  # who knows the controller, in a notebook?
        return "\n".join((theirs or lines)[-20:]) or "(they said nothing)"

    @property
    def alive(self) -> bool:
        """Whether the ranks run."""
        return self._client is not None and self._host.poll() is None

    @property
    def pids(self) -> dict[int, int]:
        """Process numbers by rank, as each rank sees its own."""
        return dict(enumerate(self._view.apply_sync(os.getpid)))

    # ------------------------------------------------------------------------------------------------ running

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[int, str, str], None] | None = None,
        on_display: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> list[Any]:
        """Run code on all ranks, and wait.

        Parameters
        ----------
        code : str
            Anything that a cell may hold. Names that it defines stay for the next call.
        timeout_s : float, optional
            Then it is interrupted, with TimeoutError; None, as infinity: it may take as long as it likes.
        on_text : callable, optional
            Called with rank, "stdout" or "stderr", and whole lines, while the code runs; default: nobody.
        on_display : callable, optional
            Called with rank and the content of a ``display_data`` message of the Jupyter protocol, while the code runs;
            for the value of the last expression too.

        Returns
        -------
        list
            By rank: the text of the last expression's value, or None.

        Raises
        ------
        RankError
            If it raised on any rank: once for all.
        RanksEnded
            If the ranks are gone, or went meanwhile.
        KeyboardInterrupt
            After Ctrl-C, when all ranks have been interrupted and have stopped.
        ValueError
            If *timeout_s* is negative, or not a number; nothing has run then.
        """
        limit = seconds("timeout_s", timeout_s)
        if not self.alive:
            raise RanksEnded(f"the ranks are gone:\n{self._last_words()}")
        pending = self._view.execute(code, silent=False, block=False)
        listener = _Listener(self.n, on_text, on_display)
        deadline = time.monotonic() + limit
        try:
            self._listen(pending, listener, deadline)
        except (KeyboardInterrupt, TimeoutError):
            self._stop(pending, listener)
            raise
        listener.look(pending, last=True)
        errors = {rank: _error(one) for rank, one in enumerate(_metadata(pending)) if one["error"]}
        if errors:
            causes = {rank: one for rank, one in errors.items() if one[0] != "KeyboardInterrupt"}
            raise RankError(causes or errors, self.n, sorted(set(errors) - set(causes)) if causes else [])
        return [(one["execute_result"] or {}).get("data", {}).get("text/plain") for one in _metadata(pending)]

    def _listen(self, pending: Any, listener: _Listener, deadline: float | None) -> None:
        """Wait for the end of what runs, and pass on what it says.

        Ranks that still run some seconds after another has failed most likely wait for it: they are interrupted.
        """
        failed_at: float | None = None
        while not _is_told(pending):
            listener.look(pending)
            if self._host.poll() is not None:
                raise RanksEnded(f"the ranks ended:\n{self._last_words()}")
            now = time.monotonic()
            if failed_at is None and any(one["error"] for one in _metadata(pending)):
                failed_at = now
            if failed_at is not None and now > failed_at + _AFTER_FAILURE_S:
                self._stop(pending, listener)
                return
            if deadline is not None and now > deadline:
                raise TimeoutError("the ranks did not finish within the time that was allowed")
            if pending.wait(_LOOK_S):
                time.sleep(_LOOK_S)  # the answers came before the output

    def _stop(self, pending: Any, listener: _Listener) -> None:
        """Interrupt all ranks and wait until they have stopped; whoever does not is ended, with all others.

        Again and again: a rank that has not begun yet (others were quicker) does not hear the first one.
        """
        now = time.monotonic()
        deadline, again = now + _INTERRUPT_S, now
        with contextlib.suppress(KeyboardInterrupt):
            while not _is_told(pending) and self._host.poll() is None:
                now, stopped = time.monotonic(), pending.ready()
                if now > deadline and stopped:
                    break  # what is missing is only what they said
                if now > deadline:
                    self.close()
                    raise RanksEnded("the ranks did not answer the interrupt, and were ended")
                if now >= again and not stopped:
                    self.interrupt()
                    again = now + _INTERRUPT_S / 5
                if pending.wait(0.1):
                    time.sleep(_LOOK_S)  # the answers came before the output
        listener.look(pending, last=True)

    def interrupt(self) -> None:
        """Send SIGINT to all ranks: what they run ends with KeyboardInterrupt, and they stay."""
        assert self._host.stdin is not None
        with contextlib.suppress(OSError):
            self._host.stdin.write(b"interrupt\n")
            self._host.stdin.flush()

    # ------------------------------------------------------------------------------------------------ the end

    def close(self) -> None:
        """End the ranks; returns when they are gone. Safe to repeat."""
        if self._client is not None:
            with contextlib.suppress(Exception):
                self._client.close()
            self._client = None
        if self._host.stdin is not None:
            with contextlib.suppress(OSError):
                self._host.stdin.close()
        try:
            self._host.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._host.kill()  # the guard, or the testbed, ends the ranks then
            self._host.wait()
        if not self._log.closed:
            self._words = self._last_words()
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        where = f"{counted(self.options['hosts'], 'host')}" if self.options["hosts"] else "this machine"
        state = "" if self.alive else ", ended"
        how = f", started by {self.options['launcher']}" if self.options["launcher"] else ""
        return f"<{counted(self.n, 'rank')} on {where}, {self.options['protocol'] or 'via'}{how}{state}>"


class _Listener:
    """Passes on, in order and once, what ranks write and show."""

    def __init__(self, n: int, on_text: Any, on_display: Any) -> None:
        self._on_text, self._on_display = on_text, on_display
        self._told = [{"stdout": 0, "stderr": 0, "outputs": 0, "value": False} for _ in range(n)]

    def look(self, pending: Any, last: bool = False) -> None:
        """Pass on what is new: whole lines, or with *last* all."""
        for rank, metadata in enumerate(_metadata(pending)):
            told: dict[str, Any] = self._told[rank]
            for stream in ("stdout", "stderr"):
                text = metadata[stream] or ""
                end = len(text) if last else text.rfind("\n") + 1
                if self._on_text is not None and end > told[stream]:
                    self._on_text(rank, stream, text[told[stream] : end])
                told[stream] = max(end, told[stream])
            outputs = list(metadata["outputs"])
            for content in outputs[told["outputs"] :]:
                if self._on_display is not None:
                    self._on_display(rank, content)
            told["outputs"] = len(outputs)
            value = metadata["execute_result"]
            if last and value and not told["value"] and self._on_display is not None:
                told["value"] = True
                self._on_display(rank, value)


def _let_cells_follow_failures(client: Any) -> None:
    """Have engines run what was sent while an earlier cell failed: a rank that skips one leaves the others waiting."""
    send = client._send

    def send_and_go_on(socket: Any, kind: str, content: dict[str, Any] | None = None, **rest: Any) -> Any:
        if kind == "execute_request" and content is not None:
            content["stop_on_error"] = False
        return send(socket, kind, content=content, **rest)

    client._send = send_and_go_on


def _is_told(pending: Any) -> bool:
    """Whether all ranks have answered, and all that they said has come: errors are said, on a way of their own."""
    return pending.ready() and all(child.output.done() for child in pending._children)


def _metadata(pending: Any) -> list[dict[str, Any]]:
    """What the client has collected of each rank's output so far, in the order of the ranks."""
    return [child.output.metadata for child in pending._children]


def _error(metadata: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Name, text and traceback of the exception that a rank answered with."""
    error = metadata["error"]
    trace = error.traceback if isinstance(error.traceback, list) else str(error.traceback).splitlines()
    return str(error.ename), str(error.evalue), trace


def _rank_of_engine() -> int:
    """Runs on an engine: which rank it is, whoever has started it."""
    from viakit.launch import detect

    return detect().rank
