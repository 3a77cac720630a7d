"""Ranks that stay alive between the cells of a notebook, on which ``%%ranks`` runs cells.

>>> from viakit.lab.ranks import Ranks
>>> with Ranks(4) as ranks:                             # doctest: +SKIP
...     ranks.run("print(comm.rank, 'of', comm.size)")

Each rank is an ipyparallel engine in a separate process, started and supervised as ``viakit run`` starts ranks
(:mod:`viakit.lab._ranks_host`). All ranks belong to one job. ``viakit.world()`` has been called in each of them, and
its result is ``comm``. The ranks end with :meth:`Ranks.close`, and with the process that created them.
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

from viakit.base.limits import seconds
from viakit.base.words import counted
from viakit.lab import _settings
from viakit.lab._job import socket_folder
from viakit.lab._ranks_host import CLIENT_FILE, READY_FILE
from viakit.launch.options import MAX_RANKS, PROTOCOLS, Options
from viakit.remote.spec import chosen_hosts

__all__ = ["RankError", "Ranks", "RanksEnded", "check"]

_START_S = 90.0  # for four Python processes that import IPython, on a busy machine
_REACH_S = 60.0  # more, for machines that ssh reaches
_HUB_S = 10.0  # for one connection attempt; attempts are repeated while the controller runs
_CLOSE_S = 8.0
_INTERRUPT_S = 20.0  # for ranks to stop after an interrupt, before they are ended and their variables are lost
_REPEAT_S = 1.0  # between interrupts of ranks that go on
_AFTER_FAILURE_S = 3.0
_POLL_S = 0.02

_SHUTDOWN_MESSAGE = re.compile(
    r"\[IPController\] CRITICAL \| (Received signal 15|terminating children)"
)  # the controller's message after SIGTERM

# Code that every rank runs first.
_PRELUDE = """
import viakit
comm = viakit.world()
rank, size = comm.rank, comm.size
"""


class RankError(RuntimeError):
    """A cell failed on one or several ranks; raised once for all of them.

    Attributes
    ----------
    errors : dict of int to (str, str, list of str)
        For each failed rank: name and text of the exception, and the lines of its traceback.
    waiting : list of int
        Ranks that were still waiting and were interrupted.
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
            verb = "was" if len(self.waiting) == 1 else "were"
            lines.append(f"{_ranks(self.waiting, size)} {verb} still waiting and had to be interrupted")
        super().__init__("\n".join(lines))


class RanksEnded(RuntimeError):
    """The ranks have ended: a rank died, was killed, or could not be started. The text contains their last output."""


def _ranks(numbers: list[int], size: int) -> str:
    """Return a text for ranks: ``all 4 ranks``, ``rank 2``, ``ranks 0, 2``."""
    if len(numbers) == size and size > 1:
        return f"all {size} ranks"
    return ("rank " if len(numbers) == 1 else "ranks ") + ", ".join(map(str, sorted(numbers)))


def check(n: int = 4, protocol: str | None = None, **options: Any) -> dict[str, Any]:
    """Check the options of :class:`Ranks`, and return them in the form for the host process.

    Raises
    ------
    ValueError
        If an option is invalid. Nothing has been started or ended.
    """
    if protocol not in (None, *PROTOCOLS):
        raise ValueError(f"protocol is {protocol!r}; expected one of {', '.join(PROTOCOLS)}")
    rules = {"ranks": _settings.whole(1, MAX_RANKS), "hosts": _hosts, "mtu": _settings.MTU}
    rules["rate"] = _settings.maybe(_settings.rate)
    found = _settings.checked({"ranks": n, "protocol": protocol, **options}, rules)
    Options(**found).check()
    return found


def _hosts(name: str, given: Any) -> int | str:
    """Return hosts as a number, or as text if it names machines; the rule of a setting."""
    if not isinstance(given, str):
        return _settings.whole(0, MAX_RANKS)(name, given)
    return chosen_hosts(given)


class Ranks:
    """Processes that run code together.

    Parameters
    ----------
    n : int
        Number of ranks; it may exceed the number of cores.
    protocol, policy : str, optional
        Protocol of ``viakit.world()``: "via" (default), "bip", "tcp" or "mpi"; and a policy of the message engine. With
        "mpi", "mpi:mpich" and "mpi:openmpi" the ``mpiexec`` of that MPI starts the ranks.
    launcher : str, optional
        Launcher of the ranks: "viakit" (default), or "mpi", "mpi:mpich", "mpi:openmpi" for the ``mpiexec`` of that MPI,
        with any protocol.
    hosts : int or str
        Number of testbed hosts, or ``"testbed:4"``; 0 or ``"local"``: this machine. ``"ssh:a,b*4"``: machines that ssh
        reaches.
    mtu : int
        MTU of the testbed's wire in bytes.
    rate : str, optional
        Limit of the testbed's wire.
    network, python : str, optional
        Between machines: the wire, as ``"eth:eth0"`` or ``"udp:10.0.0.0/24"``, and the interpreter there.

    Raises
    ------
    ImportError
        If ipyparallel is missing; the message contains the command to install it.
    ValueError
        If an option is invalid.
    RanksEnded
        If the ranks cannot be started.
    """

    def __init__(
        self,
        n: int = 4,
        protocol: str | None = None,
        *,
        policy: str | None = None,
        launcher: str | None = None,
        hosts: int | str = 0,
        mtu: int = 1500,
        rate: str | None = None,
        network: str | None = None,
        python: str | None = None,
    ) -> None:
        more = {"hosts": hosts, "mtu": mtu, "rate": rate, "network": network, "python": python}
        options = check(n, protocol, policy=policy, launcher=launcher, **more)
        try:
            import ipyparallel  # optional package
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
        """Wait for the controller and all engines, and determine the rank of each engine."""
        self._start_s = _START_S + (_REACH_S if isinstance(self.options["hosts"], str) else 0.0)
        deadline = time.monotonic() + self._start_s
        self._wait_until((self._folder / READY_FILE).exists, deadline)
        file = str(self._folder / CLIENT_FILE)
        while self._client is None:
            self._wait_until(
                lambda: time.monotonic() < deadline, deadline
            )  # Raise if the ranks or the time have ended.
            try:
                self._client = ipyparallel.Client(file, timeout=_HUB_S, profile_dir=str(self._folder / "profile"))
            except (TimeoutError, OSError):
                time.sleep(_POLL_S)  # The ranks and their controller may have ended in the meantime.
        _let_cells_follow_failures(self._client)
        self._wait_until(lambda: len(self._client.ids) >= self.n, deadline)
        self._view = self._client[:]
        numbers = self._view.apply_async(_prepare_engine)
        self._wait_until(numbers.ready, deadline)
        self._by_rank = dict(zip(numbers.get(), self._view.targets, strict=True))
        self._view = self._client[[self._by_rank[rank] for rank in range(self.n)]]
        self.run(_PRELUDE, timeout_s=max(deadline - time.monotonic(), 1.0))

    def _wait_until(self, ready: Callable[[], Any], deadline: float) -> None:
        """Wait until *ready* returns true. Raises RanksEnded if the ranks end before, or at the deadline."""
        while True:
            if self._host.poll() is not None:
                raise RanksEnded(f"the {counted(self.n, 'rank')} could not be started:\n{self._last_output()}")
            if ready():
                return
            if time.monotonic() > deadline:
                raise RanksEnded(f"not ready within {self._start_s:g} s:\n{self._last_output()}")
            time.sleep(_POLL_S)

    def _last_output(self) -> str:
        """Return the end of the output of the ranks and their host process outside of cells."""
        if self._log.closed:
            return self._words
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        lines = [line for line in lines if not _SHUTDOWN_MESSAGE.search(line)]
        of_ranks = [line for line in lines if "[IPController]" not in line]  # Messages of ranks are more useful.
        return "\n".join((of_ranks or lines)[-20:]) or "(no output)"

    @property
    def alive(self) -> bool:
        """Whether the ranks are running."""
        return self._client is not None and self._host.poll() is None

    @property
    def pids(self) -> dict[int, int]:
        """Process number of each rank, in the rank's own namespace."""
        return dict(enumerate(self._view.apply_sync(os.getpid)))

    # ------------------------------------------------------------------------------------------------ running code

    def run(
        self,
        code: str,
        *,
        timeout_s: float | None = None,
        on_text: Callable[[int, str, str], None] | None = None,
        on_display: Callable[[int, dict[str, Any]], None] | None = None,
    ) -> list[Any]:
        """Run code on all ranks and wait until it ends.

        Parameters
        ----------
        code : str
            Contents of a cell. Its names are kept for the next call.
        timeout_s : float, optional
            Seconds after which the code is interrupted, with TimeoutError. None and infinity mean no limit.
        on_text : callable, optional
            Called with rank, "stdout" or "stderr", and whole lines, while the code runs.
        on_display : callable, optional
            Called with rank and the content of a ``display_data`` message of the Jupyter protocol, while the code runs,
            and for the value of the last expression.

        Returns
        -------
        list
            For each rank the text of the last expression's value, or None.

        Raises
        ------
        RankError
            If the code raises on any rank; one error for all ranks.
        RanksEnded
            If the ranks have ended, or end before the code does.
        KeyboardInterrupt
            After Ctrl-C, when all ranks have been interrupted and have stopped.
        ValueError
            If *timeout_s* is negative or not a number. The code has not run.
        """
        limit = seconds("timeout_s", timeout_s)
        if not self.alive:
            raise RanksEnded(f"the ranks are gone:\n{self._last_output()}")
        pending = self._view.execute(code, silent=False, block=False)
        listener = _Listener(self.n, on_text, on_display)
        deadline = time.monotonic() + limit
        try:
            self._listen(pending, listener, deadline)
        except (KeyboardInterrupt, TimeoutError):
            self._stop(pending, listener)
            raise
        listener.forward(pending, last=True)
        errors = {rank: _error(one) for rank, one in enumerate(_metadata(pending)) if one["error"]}
        if errors:
            causes = {rank: one for rank, one in errors.items() if one[0] != "KeyboardInterrupt"}
            raise RankError(causes or errors, self.n, sorted(set(errors) - set(causes)) if causes else [])
        return [(one["execute_result"] or {}).get("data", {}).get("text/plain") for one in _metadata(pending)]

    def _listen(self, pending: Any, listener: _Listener, deadline: float | None) -> None:
        """Wait until the code ends, and forward its output.

        If a rank fails, ranks that still run some seconds later probably wait for it. They are interrupted.
        """
        failed_at: float | None = None
        while not _is_complete(pending):
            listener.forward(pending)
            if self._host.poll() is not None:
                raise RanksEnded(f"the ranks ended:\n{self._last_output()}")
            now = time.monotonic()
            if failed_at is None and any(one["error"] for one in _metadata(pending)):
                failed_at = now
            if failed_at is not None and now > failed_at + _AFTER_FAILURE_S:
                self._stop(pending, listener)
                return
            if deadline is not None and now > deadline:
                raise TimeoutError("the ranks did not finish before the timeout")
            if pending.wait(_POLL_S):
                time.sleep(_POLL_S)  # The results have arrived before the output.

    def _stop(self, pending: Any, listener: _Listener) -> None:
        """Interrupt all ranks and wait until they have stopped. If a rank does not stop, all ranks are ended.

        The interrupt is repeated, because a rank that has not started the code yet ignores the first one. On a busy
        machine such a rank may need seconds to start.
        """
        now = time.monotonic()
        deadline, again = now + _INTERRUPT_S, now
        with contextlib.suppress(KeyboardInterrupt):
            while not _is_complete(pending) and self._host.poll() is None:
                now, stopped = time.monotonic(), pending.ready()
                if now > deadline and stopped:
                    break  # Only output is missing.
                if now > deadline:
                    self.close()
                    raise RanksEnded("the ranks did not react to the interrupt and were ended")
                if now >= again and not stopped:
                    self.interrupt()
                    again = now + _REPEAT_S
                if pending.wait(0.1):
                    time.sleep(_POLL_S)  # The results have arrived before the output.
        listener.forward(pending, last=True)

    def interrupt(self) -> None:
        """Send SIGINT to all ranks. Their code ends with KeyboardInterrupt, and the ranks stay alive."""
        assert self._host.stdin is not None
        with contextlib.suppress(OSError):
            self._host.stdin.write(b"interrupt\n")
            self._host.stdin.flush()

    # ------------------------------------------------------------------------------------------------ closing

    def close(self) -> None:
        """End the ranks and wait until they are gone. Closing twice does nothing."""
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
            self._host.kill()  # The guard or the testbed then ends the ranks.
            self._host.wait()
        if not self._log.closed:
            self._words = self._last_output()
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        hosts = self.options["hosts"]
        where = hosts if isinstance(hosts, str) else counted(hosts, "host") if hosts else "this machine"
        state = "" if self.alive else ", ended"
        how = f", started by {self.options['launcher']}" if self.options["launcher"] else ""
        return f"<{counted(self.n, 'rank')} on {where}, {self.options['protocol'] or 'via'}{how}{state}>"


class _Listener:
    """Forwards the output and displays of ranks, in order and once."""

    def __init__(self, n: int, on_text: Any, on_display: Any) -> None:
        self._on_text, self._on_display = on_text, on_display
        self._forwarded = [{"stdout": 0, "stderr": 0, "outputs": 0, "value": False} for _ in range(n)]

    def forward(self, pending: Any, last: bool = False) -> None:
        """Forward new output: whole lines, or with *last* everything."""
        for rank, metadata in enumerate(_metadata(pending)):
            done: dict[str, Any] = self._forwarded[rank]
            for stream in ("stdout", "stderr"):
                text = metadata[stream] or ""
                end = len(text) if last else text.rfind("\n") + 1
                if self._on_text is not None and end > done[stream]:
                    self._on_text(rank, stream, text[done[stream] : end])
                done[stream] = max(end, done[stream])
            outputs = list(metadata["outputs"])
            for content in outputs[done["outputs"] :]:
                if self._on_display is not None:
                    self._on_display(rank, content)
            done["outputs"] = len(outputs)
            value = metadata["execute_result"]
            if last and value and not done["value"] and self._on_display is not None:
                done["value"] = True
                self._on_display(rank, value)


def _let_cells_follow_failures(client: Any) -> None:
    """Make engines run cells that were sent while an earlier cell failed.

    A rank that skips a cell would leave the other ranks waiting.
    """
    send = client._send

    def send_and_go_on(socket: Any, kind: str, content: dict[str, Any] | None = None, **rest: Any) -> Any:
        if kind == "execute_request" and content is not None:
            content["stop_on_error"] = False
        return send(socket, kind, content=content, **rest)

    client._send = send_and_go_on


def _is_complete(pending: Any) -> bool:
    """Return whether all results and all output have arrived. Output and errors use a separate channel."""
    return pending.ready() and all(child.output.done() for child in pending._children)


def _metadata(pending: Any) -> list[dict[str, Any]]:
    """Return the output of each rank that the client has collected so far, in the order of ranks."""
    return [child.output.metadata for child in pending._children]


def _error(metadata: dict[str, Any]) -> tuple[str, str, list[str]]:
    """Return name, text and traceback of a rank's exception."""
    error = metadata["error"]
    trace = error.traceback if isinstance(error.traceback, list) else str(error.traceback).splitlines()
    return str(error.ename), str(error.evalue), trace


def _prepare_engine() -> int:
    """Prepare an engine for cells, and return its rank. Runs on the engine."""
    from viakit.lab._engine import prepare  # The engine gets only this function, without its module.

    return prepare()
