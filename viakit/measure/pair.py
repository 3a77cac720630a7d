"""Two processes that measure one protocol and stay open between points.

::

    with Pair("via-shm") as shm, Pair("mpi") as mpi:
        for nbytes in (8, 4096, 1 << 20):
            print(nbytes, np.median(shm.run(nbytes).one_way_s), np.median(mpi.run(nbytes).one_way_s))

A pair starts worker A on the first allowed core and worker B on the second: on this host, on two hosts of a testbed, or
under ``mpiexec``. Between runs both sleep in read(), so that any number of pairs can be open and be measured in turns.
The workers end with the pair, and with the process that created it, even if that is killed. Protocols such as
``mpi:openmpi:fresh`` start new workers for each run.
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import time
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from viakit.base import secret as _secret
from viakit.base.channel import Channel
from viakit.launch import mpi_library as mpi
from viakit.measure import children
from viakit.measure.endpoints import (
    BUFFERS,
    HYBRID_US,
    IN_C,
    LEVELS,
    MEMORIES,
    MODES,
    WAITS,
    MeasureError,
    Protocol,
    lookup,
)
from viakit.measure.environment import caches
from viakit.measure.samples import Samples, samples_of

if TYPE_CHECKING:
    from viakit.machines import Machine
    from viakit.remote import Remote
    from viakit.testbed import Testbed

__all__ = ["MeasureError", "Pair", "Samples"]

_SECOND_WORD_S = 2.0  # after one worker failed, time for the other one to report its reason, on a busy machine
_GRACE_S = 5.0  # beyond the workers' own deadline
_SLOWEST_BPS = 1e6  # a slower wire counts as broken
_MAX_OFFSET = 4095
_COLD_CACHES = 1.5  # size of the pool of cold buffers, in last-level caches
_COLD_BYTES = 64 << 20  # size of that pool if the caches are unknown

# If two workers report different reasons for one failure, the one that is first in this list is the cause.
_CAUSES = ("died", "usage", "missing", "refused", "version", "mismatch", "error", "gone", "timeout", "stopped")


class Pair(children.Team):
    """Two workers and a connection between them.

    Parameters
    ----------
    protocol : str
        A name from :func:`viakit.measure.endpoints.protocols`. Those of the message engine may name a policy:
        "msg-tcp:mpich-p4".
    testbed : Testbed or viakit.remote.Remote, optional
        Its hosts 0 and 1 are used. Default: this host. Protocols without a wire, such as shared memory, always use this
        host. An MPI library runs between the hosts, over TCP.
    wait : str
        "poll", "block" or "hybrid": how a side waits for a message. Hybrid waits poll for 50 µs, and then sleep.
    level : str
        "c" or "python": language of the measuring loop.
    sockbuf : int, optional
        Size of the socket buffers in bytes, for protocols that have them. Default: that of the system.
    memory : {"user", "viakit"}
        Source of the buffers: ordinary memory, or the allocator of the NIC, whose memory a peer on this host can map.
        Only VIA and messages over VIA have such an allocator.
    buffers : {"touched", "same", "cold"}
        "touched": each message is written before it is sent, and read after it has been received. "same": one buffer,
        which is not touched, so that its bytes never change. "cold": buffers in turn from a pool that is larger than
        the last-level cache; they are not touched.
    options : dict, optional
        For VIA:

        - "reliability": "unreliable", "delivery" or "reception"
        - "form": "auto", "plain" or "udp"
        - "mtu": bytes
        - "fault": text, see :class:`viakit.via.Faults`
        - "retransmission": "selective" or "go_back_n"
        - "spin_us": time that a blocking wait polls before it sleeps. Default: 0, so that sleeping is measured.
        - "interface", without a testbed: one name, or two separated by a comma, for A and B

        For messages: "policy" (``"NAME"``, ``"NAME,field=value"``, ``"field=value"``). For msg-via and msg-bip on a
        testbed also "network" ("eth", "udp").
    timeout_s : float
        Time limit of a run, unless the run has its own. On a machine it is virtual time.
    machine : viakit.machines.Machine, optional
        The pair runs on this machine, in virtual time.

    Attributes
    ----------
    protocol : Protocol
        Description of the protocol.
    pids : list of int
        Process numbers of the present A and B in their own namespaces (on a testbed, those of their hosts).
    info : dict
        Properties for the result: "protocol", "level", "wait", "hosts", "library", "version", "transport", "interface",
        "mtu", "offloads", "form", "clock", "loop_overhead_s" (of the measuring loop, per message), "cores".

    Raises
    ------
    UnknownProtocol
        If the protocol is unknown; a ValueError.
    MeasureError
        If the protocol cannot be started on this machine; the message contains a remedy.
    """

    module, member, start_s = "viakit.measure.worker", "worker", 30.0

    def __init__(
        self,
        protocol: str,
        *,
        testbed: Testbed | Remote | None = None,
        wait: str = "poll",
        level: str = "c",
        sockbuf: int | None = None,
        memory: str = "user",
        buffers: str = "touched",
        options: dict[str, Any] | None = None,
        timeout_s: float = 60.0,
        machine: Machine | None = None,
    ) -> None:
        self._closed = True  # until something needs to be closed
        self.protocol: Protocol = lookup(protocol)
        self.wait, self.level, self.timeout_s = wait, level, float(timeout_s)
        _check_choice(self.protocol, "wait", wait, self.protocol.waits, WAITS)
        _check_choice(self.protocol, "level", level, self.protocol.levels, LEVELS)
        _check_choice(self.protocol, "memory", memory, MEMORIES[: 1 + self.protocol.allocates], MEMORIES)
        _check_choice(self.protocol, "buffers", buffers, self.protocol.buffers_at(level), BUFFERS)
        self.memory, self.buffers = memory, buffers
        self._pool = int(_COLD_CACHES * (caches() or [0])[-1]) or _COLD_BYTES
        if not self.timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}; expected more than 0")
        if sockbuf is not None and not 0 < sockbuf < 1 << 31:
            raise ValueError(f"sockbuf is {sockbuf}; expected more than 0 bytes")
        between = testbed is not None and self.protocol.between_hosts
        self._testbed = testbed if between else None
        if wait == "hybrid" and level != "c":
            raise MeasureError(f"{protocol}: the loop in Python has no hybrid wait. Remedy: level c", "usage")
        self._options = self._completed(options or {})
        interface = self._options.pop("interface", None)
        if self.protocol.raw and testbed is None and not interface:
            raise MeasureError(
                f"{protocol} sends raw Ethernet frames and needs two interfaces on one wire. Remedy: --hosts testbed, "
                "which needs no root, or name the interfaces (--interface IF0,IF1)",
                "usage",
            )
        if (name := self.protocol.daemon) and testbed is None:
            raise MeasureError(f"{protocol}: {name} has one daemon on each host. Remedy: --hosts testbed", "usage")
        if self.protocol.by_interface and testbed is None and not interface:
            raise MeasureError(
                f"{protocol} needs an RDMA card on each side. Remedy: --hosts ssh:A,B --network verbs:DEVICE, or name "
                "the interfaces of two cards of this host (--interface IF0,IF1); viakit doctor lists the cards",
                "usage",
            )
        self._interfaces = _two_interfaces(interface, self._testbed, self.protocol.by_interface)
        if sockbuf is not None and not self.protocol.takes_sockbuf:
            raise MeasureError(f"{protocol} has no socket buffers that can be set. Remedy: leave out sockbuf", "usage")
        self._sockbuf = sockbuf
        self._machine = machine
        super().__init__()
        self.pids: list[int] = []
        self._runs = secrets.randbits(24)
        self._broken: str | None = None
        self._used = False  # whether messages have been sent by these processes
        self._closed = False
        self._cores = [self._core_of(side) for side in range(2)]
        self.info: dict[str, Any] = {}
        try:
            self._start()
            self._connect()
        except BaseException:
            self._kill()
            raise

    # ------------------------------------------------------------------------------------ starting

    def _start(self) -> None:
        """Start the processes and open a channel to each side."""
        if self.protocol.by_mpi:
            far = self._testbed is not None and self._testbed.kind == "ssh"
            self._connect_ranks(self.protocol.library if far else mpi.find(self.protocol.library))
        elif self.protocol.in_one_process:
            self._start_process(None, n_sides=2)
        else:
            if self.protocol.runs_mpi:
                self._open_runs(self.protocol, self._cores, self._testbed)
            for side in range(2):
                host = self._testbed.hosts[side] if self._testbed is not None and self._mpi_runs is None else None
                self._start_process(host, fds=self._floor_fds())
        if not self.protocol.by_mpi:  # the hello of a rank has been read already, because it contains the rank
            deadline = time.monotonic() + self.start_s
            self.pids = [self._hello(channel, deadline)["pid"] for channel in self._channels]

    def _floor_fds(self) -> list[int]:
        """Return the descriptor of the memory that both sides of floor share. The first call creates it."""
        if self.protocol.name != "floor":
            return []
        if not hasattr(self, "_floor_fd"):
            self._floor_fd = os.memfd_create("viakit-floor", 0)
            os.ftruncate(self._floor_fd, 4096)
        return [self._floor_fd]

    def _connect_ranks(self, library: mpi.Library | str) -> None:
        """Start both ranks under mpiexec and accept their connections."""
        ranks: dict[int, Channel] = {}
        pids: dict[int, int] = {}
        try:
            for channel in self._start_ranks(library, 2, self._testbed):
                hello = self._hello(channel, time.monotonic() + self.start_s)
                rank = hello["rank"] if hello["rank"] is not None else len(ranks)
                ranks[rank], pids[rank] = channel, hello["pid"]
        finally:
            self._channels = [ranks[rank] for rank in sorted(ranks)]
            self.pids = [pids[rank] for rank in sorted(pids)]

    def _renew_ranks(self) -> None:
        """End both ranks, and start and connect new ones. The time limit of a run does not include this."""
        self._begin_again()
        self._start()
        self._connect()

    def reconnect(self, sockbuf: int | None) -> None:
        """Replace the connection by one with socket buffers of *sockbuf* bytes.

        Raises
        ------
        MeasureError
            For protocols without socket buffers that can be set, or if the connection cannot be made.
        """
        if not self.protocol.takes_sockbuf:
            raise MeasureError(f"{self.protocol.name} has no socket buffers that can be set", "usage")
        self._sockbuf = sockbuf
        self._secret = _secret.new()
        self._connect()

    def reopen(self, options: dict[str, Any]) -> None:
        """Replace the connection by one with other *options*, in the same processes, which is faster than a new pair.

        Options that are in force already change nothing.

        Parameters
        ----------
        options : dict
            As for a new pair, without "interface".

        Raises
        ------
        MeasureError
            For MPI libraries, whose processes cannot connect again, or if the connection cannot be made.
        """
        if self.protocol.by_mpi:
            raise MeasureError(f"{self.protocol.name} cannot be opened again. Remedy: a new pair", "usage")
        if (completed := self._completed(options)) == self._options:
            return
        self._options = completed
        self._secret = _secret.new()
        self._connect()

    def _completed(self, options: dict[str, Any]) -> dict[str, Any]:
        """Return options with those that the protocol's policy and the wait imply."""
        policy = {"policy": self.protocol.policy} if self.protocol.policy else {}
        spin = {"spin_us": HYBRID_US} if self.wait == "hybrid" else {}
        return {**spin, **options, **policy}

    def _connect(self) -> None:
        """Open and connect both sides, and store their properties in `info`."""
        requests = [self._opening(side) for side in range(2)]
        deadline = time.monotonic() + self.start_s
        offers = self._both(requests, deadline)
        if self._mpi is not None:
            for offer in offers:
                self._mpi.remember(offer[0]["offer"].get("files", ()))
        if hasattr(self, "_floor_fd"):
            os.close(self._floor_fd)
            del self._floor_fd
        timeout_s = min(self.timeout_s, self.start_s)
        peers = [{"op": "connect", "peer": offers[1 - side][0]["offer"], "timeout_s": timeout_s} for side in range(2)]
        infos = self._both(peers, time.monotonic() + timeout_s + _GRACE_S)
        first = infos[0][0]["info"]
        a, b = self._cores
        self.info = {
            "protocol": self.protocol.name,
            "level": self.level,
            "wait": self.wait,
            "hosts": self._testbed.kind if self._testbed is not None else "local",
            "memory": self.memory,
            "buffers": self.buffers,
            **({"cold_pool_bytes": self._pool} if self.buffers == "cold" else {}),
            **{key: value for key, value in first.items() if value is not None},
            "cores": f"A and B share core {a}, the only one" if self._share_core else f"A on core {a}, B on core {b}",
        }
        if self._options:
            self.info["options"] = dict(self._options)
        if self._machine is not None:
            del self.info["cores"]
            self.info |= {"hosts": "machine", "machine": self._machine.name, "time": "virtual", "clock": "virtual"}
            self.info["loop_overhead_s"] = 0.0  # The loop is work of the real processor.

    def _core_of(self, side: int) -> int:
        """Return the core of a side, which differs from the other side's if the host has two."""
        cores = sorted(os.sched_getaffinity(0)) if self._testbed is None else self._testbed.hosts[side].cores
        return cores[side % len(cores)]

    @property
    def _share_core(self) -> bool:
        """Whether both sides run on one core of one machine."""
        return self._cores[0] == self._cores[1] and (self._testbed is None or self._testbed.one_machine)

    def _opening(self, side: int) -> dict[str, Any]:
        address = "127.0.0.1" if self._testbed is None else self._testbed.hosts[side].address
        return {
            "op": "open",
            "protocol": self.protocol.name,
            "side": side,
            "level": self.level,
            "wait": self.wait,
            "core": self._cores[side],
            "secret": self._secret.hex(),
            "address": address,
            "interface": self._interfaces[side],
            "sockbuf": self._sockbuf,
            "options": self._options,
            "machine": self._machine.text() if self._machine is not None else None,
            "hosts": self._testbed.kind if self._testbed is not None else "local",
            "floor_fd": getattr(self, "_floor_fd", None),
            "scratch": self._mpi.scratch if self._mpi is not None else None,
            "runs": self._mpi_runs.request if self._mpi_runs is not None else None,
        }

    # ------------------------------------------------------------------------------------ control of the workers

    def _both(self, requests: Sequence[dict[str, Any]], deadline: float) -> list[tuple[dict[str, Any], bytes]]:
        """Send a request to each side, B first, and wait for both replies. Raises MeasureError if either fails."""
        answers: list[tuple[dict[str, Any], bytes] | None] = [None, None]
        failures: list[MeasureError] = []
        for side in (1, 0):
            try:
                self._channels[side].send(requests[side])
            except OSError:
                failures.append(self._died(f"worker {'AB'[side]} ended"))
        while None in answers and not (failures and time.monotonic() > deadline):
            waiting = [self._channels[side] for side in range(2) if answers[side] is None]
            left = max(0.0, deadline - time.monotonic())
            ready = select.select(waiting, [], [], left)[0]
            if not ready:
                if not failures:
                    failures.append(
                        MeasureError(f"{self.protocol.name}: no answer from the workers in time", "timeout")
                    )
                break
            for channel in ready:
                side = self._channels.index(channel)
                try:
                    answer = self._receive(channel, time.monotonic() + _GRACE_S)
                    answers[side] = answer
                    if "error" in answer[0]:
                        failures.append(_failure(self.protocol.name, answer[0]))
                except MeasureError as error:
                    answers[side] = ({}, b"")
                    failures.append(error)
            if failures:
                deadline = min(deadline, time.monotonic() + _SECOND_WORD_S)
        if failures:
            cause = min(failures, key=lambda error: _CAUSES.index(error.reason) if error.reason in _CAUSES else 0)
            if cause.reason == "died":
                cause.reason = "gone"
            cause.args = (children.with_hosts(str(cause), self._testbed),)
            self._broken = str(cause)
            raise cause
        return [answer for answer in answers if answer is not None]

    def _failed(self, why: str, reason: str = "died") -> MeasureError:
        """Return the error of this pair; for a process that has ended, with its status and the end of its output."""
        if reason == "died":
            return self._died(why)
        return MeasureError(f"{self.protocol.name}: {why}", reason)

    def _died(self, what: str) -> MeasureError:
        """Return the error for a process that has ended, with the end of its output."""
        deadline = time.monotonic() + 1.0
        ended: list[Any] = []
        while not ended and time.monotonic() < deadline:
            ended = [p for p in self._processes if p.poll() is not None]
            if not ended:
                select.select([], [], [], 0.01)
        how = ""
        if ended:
            status = ended[0].returncode
            how = f" (signal {signal.Signals(-status).name})" if status < 0 else f" (exit status {status})"
        hosts = self._testbed.hosts if self._testbed else []
        if lost := next((host.trouble for host in hosts if host.trouble), None):
            return MeasureError(f"{self.protocol.name}: {lost}", "died")
        said = children.last_words(self._output)
        words = f"; it said:\n{said}" if said else ""
        return MeasureError(f"{self.protocol.name}: the peer went away: {what}{how}{words}", "died")

    # ------------------------------------------------------------------------------------ measuring

    def run(
        self,
        nbytes: int,
        mode: str = "pingpong",
        count: int = 1000,
        warmup: int | None = None,
        *,
        repeats: int = 1,
        validate: bool = False,
        offset: int = 0,
        timeout_s: float | None = None,
    ) -> Samples:
        """Measure messages of one size.

        Parameters
        ----------
        nbytes : int
            Size of a message in bytes.
        mode : str
            "pingpong", "stream", "bidir", "overlap", or "rate", which is a stream.
        count : int
            Ping-pong and overlap: number of round trips; overlap needs an even number. Otherwise number of messages of
            a repeat in each direction.
        warmup : int, optional
            Number of messages before the clock starts; at least one is always sent.
        repeats : int
            Stream and bidir: number of samples.
        validate : bool
            Fill every message with a different pattern and check every byte. The times include this work.
        offset : int
            Offset of the message from the beginning of a page on both sides in bytes; 0 to 4095.
        timeout_s : float, optional
            Time limit of this run.

        Returns
        -------
        Samples

        Raises
        ------
        ValueError
            If an argument is invalid for this protocol; nothing has been sent.
        MeasureError
            If the peer ended, wrong data arrived, or the time is over. The pair cannot be used any more.
        """
        timeout_s = self.timeout_s if timeout_s is None else float(timeout_s)
        warmup = max(1, min(count // 10, 100)) if warmup is None else max(1, warmup)
        self._check_run(nbytes, mode, count, repeats, offset, timeout_s)
        self._runs += 1
        plan = {
            "nbytes": nbytes,
            "mode": "stream" if mode == "rate" else mode,
            "count": count,
            "warmup": warmup,
            "repeats": repeats,
            "offset": offset,
            "memory": self.memory,
            "buffers": self.buffers,
            "pool": self._pool,
            "spin_us": HYBRID_US if self.wait == "hybrid" and self.protocol.spins_in_loop else 0,
            "validate": bool(validate) and self.protocol.link not in ("null", "cache"),
            "one_core": self._share_core,
            "run_id": self._runs % (1 << 29),
            "timeout_s": timeout_s,
            "stall_s": min(timeout_s, 10 + nbytes / _SLOWEST_BPS),
        }
        try:
            if self.protocol.new_ranks and self._used:
                self._renew_ranks()
            self._used = True
            self._both(
                [{"op": "prepare", "plan": plan | {"side": side}} for side in range(2)], time.monotonic() + timeout_s
            )
            answers = self._both([{"op": "go"}, {"op": "go"}], time.monotonic() + timeout_s + _GRACE_S)
        except BaseException as error:
            self._broken = self._broken or f"a run was broken off ({type(error).__name__})"
            self._kill()
            raise
        return samples_of(self.protocol, plan, answers)

    def _check_run(self, nbytes: int, mode: str, count: int, repeats: int, offset: int, timeout_s: float) -> None:
        protocol = self.protocol
        if self._closed or self._broken:
            why = f": {self._broken}" if self._broken else ""
            raise MeasureError(f"this pair of {protocol.name} is closed{why}. Remedy: open a new one", "gone")
        _check_choice(protocol, "mode", mode, protocol.modes, MODES)
        if mode in IN_C and self.level == "python":
            raise MeasureError(f"{mode} is measured by the loop in C only. Remedy: remove --level python", "usage")
        if mode == "overlap" and count % 2:
            raise ValueError(f"count is {count}; overlap needs an even number, because it computes in every second one")
        if not protocol.min_bytes <= nbytes <= protocol.max_bytes:
            raise ValueError(
                f"{protocol.name} takes messages of {protocol.min_bytes} to {protocol.max_bytes} bytes, not of {nbytes}"
            )
        if not (0 < count <= 100_000_000 and 0 < repeats <= 1_000_000):
            raise ValueError(f"count is {count} and repeats {repeats}; both must be at least 1")
        if not 0 <= offset <= _MAX_OFFSET:
            raise ValueError(f"offset is {offset}; expected 0 to {_MAX_OFFSET}")
        if not timeout_s > 0:
            raise ValueError(f"timeout_s is {timeout_s}; expected more than 0")

    # ------------------------------------------------------------------------------------ ending

    def close(self) -> None:
        """End both workers and wait until they have ended. Idempotent."""
        if self._closed:
            return
        self._dismiss()
        self._kill()

    def _kill(self) -> None:
        """End all processes that still run, at once, and release everything."""
        if self._closed:
            return
        self._closed = True
        self._end()
        if hasattr(self, "_floor_fd"):
            os.close(self._floor_fd)
            del self._floor_fd

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self._kill()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._kill()

    def __repr__(self) -> str:
        state = "closed" if self._closed else "broken" if self._broken else "open"
        return f"<Pair {self.protocol.name} level={self.level} wait={self.wait} {state}>"


def _check_choice(protocol: Protocol, what: str, given: str, has: Sequence[str], known: Sequence[str]) -> None:
    """Raise an error for a choice that does not exist, or that this protocol does not have."""
    if given not in known:
        raise ValueError(f"{what} is {given!r}; expected one of {', '.join(known)}")
    if given not in has:
        why = " (MPI libraries poll; none of them sleeps in a receive)" if protocol.by_mpi else ""
        why = {
            "memory": " (only via-* and msg-via have an allocator)",
            "buffers": " in Python (the loop in C has them)",
        }.get(what, why)
        raise MeasureError(f"{protocol.name} has no {what} {given!r}{why}. Remedy: {what} {' or '.join(has)}", "usage")


def _two_interfaces(given: str | None, testbed: Testbed | Remote | None, named: bool) -> tuple[str, str]:
    """Return the interfaces of A and B."""
    if testbed is not None:
        return testbed.hosts[0].interface, testbed.hosts[1].interface
    if named and given:
        a, _, b = given.partition(",")
        return a.strip(), (b or a).strip()
    return "lo", "lo"


def _failure(protocol: str, answer: dict[str, Any]) -> MeasureError:
    text = answer["error"] if answer["error"].startswith(protocol) else f"{protocol}: {answer['error']}"
    error = MeasureError(text, answer.get("reason", "error"))
    if "traceback" in answer:
        error.__cause__ = RuntimeError("in the worker:\n" + answer["traceback"])
    return error
