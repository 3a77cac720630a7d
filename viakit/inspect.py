"""Looking into programs that use viakit, while they run.

A process with an open NIC answers questions about it (``csrc/via/inspect.c``): it need not be prepared for it, is not
stopped, and does not notice. It answers only its own user and root. ``viakit inspect PID`` shows the answer as tables,
``--json`` as it came, ``--watch`` again and again; a program's own NICs are seen with :meth:`viakit.via.Nic.snapshot`.

``VIAKIT_INSPECT=0`` in the environment of a program keeps it from answering.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["InspectError", "inspect", "processes", "tables"]

SCHEMA = "viakit.process/1"
PATIENCE_S = 5.0  # a process that is stopped, or busy for so long, is not waited for any longer


class InspectError(OSError):
    """A process cannot be looked into; the message says why."""


# ------------------------------------------------------------------------------------------------ asking


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} ({uid})"
    except KeyError:
        return str(uid)


def _status(pid: int) -> dict[str, str]:
    """Return /proc/PID/status as a dictionary.

    Raises
    ------
    InspectError
        If there is no such process.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        raise InspectError(f"there is no process {pid}") from None
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def _namespace(pid: int | str, kind: str) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return None


def _uses_viakit(pid: int) -> bool:
    """Whether libvipl is mapped there; False also where one may not look."""
    try:
        return "libvipl" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def _ask(pid: int, inner_pid: int) -> bytes:
    """Read what the process has to say; *inner_pid* is its number in its own PID namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(PATIENCE_S)
        sock.connect(f"\0viakit/inspect/{inner_pid}")
        other, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # The name is free for anybody to take while the process has no NIC: believe the kernel, not the name.
        if other not in (pid, 0):
            raise InspectError(f"process {other} of user {_user(uid)} answers in the name of process {pid}")
        pieces = []
        while piece := sock.recv(1 << 16):
            pieces.append(piece)
        return b"".join(pieces)


def _ask_from_inside(pid: int) -> bytes:
    """Ask from within the process's network, where alone its socket can be reached: a host of a testbed."""
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise InspectError(f"process {pid} is on another network, and nsenter (of util-linux) is not there to go in")
    command = [nsenter, f"--target={pid}", "--net"]
    if _namespace(pid, "user") != _namespace("self", "user"):
        command += ["--user", "--preserve-credentials"]
    code = "import sys; from viakit.inspect import _main; _main(int(sys.argv[1]))"
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(pid)],
        capture_output=True,
        timeout=4 * PATIENCE_S,
        check=False,
        cwd="/",
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise InspectError(lines[-1] if lines else f"nsenter ended with {done.returncode}")
    return done.stdout


def _main(pid: int) -> None:
    """Write the answer to standard output, or why there is none to standard error: the far end of _ask_from_inside."""
    try:
        sys.stdout.buffer.write(_raw(pid, enter=False))
    except InspectError as error:
        sys.exit(str(error))


def _raw(pid: int, *, enter: bool = True) -> bytes:
    status = _status(pid)
    uid = int(status["Uid"].split()[1])  # the effective one
    if os.geteuid() not in (0, uid):
        raise InspectError(
            f"process {pid} belongs to user {_user(uid)}: only that user and root may look into it, "
            f"and this is {_user(os.geteuid())}"
        )
    here = _namespace(pid, "net") in (_namespace("self", "net"), None)
    if not here and enter:
        return _ask_from_inside(pid)
    try:
        return _ask(pid, int(status["NSpid"].split()[-1]))
    except (ConnectionRefusedError, FileNotFoundError):
        name = status.get("Name", "?")
        if status.get("State", "").startswith("Z"):
            reason = "has ended; only its parent has not yet taken note"
        elif _uses_viakit(pid):
            reason = "has no NIC open now, or was told not to answer (VIAKIT_INSPECT=0, or NICs without threads)"
        else:
            reason = "is not a program that uses viakit, or has no NIC open now"
        raise InspectError(f"process {pid} ({name}) {reason}") from None
    except TimeoutError:
        reason = "it is stopped" if status.get("State", "").startswith(("T", "t")) else "it is too busy"
        raise InspectError(f"process {pid} did not answer within {PATIENCE_S:g} s: {reason}") from None
    except ConnectionResetError:
        raise InspectError(f"process {pid} ended while it answered") from None


def inspect(pid: int) -> dict[str, Any]:
    """Ask a running process what its NICs are doing.

    Parameters
    ----------
    pid : int
        Any process of this user: of this host, or of a host of a testbed.

    Returns
    -------
    dict
        ``pid``, and ``nics``: a list of what :meth:`viakit.via.Nic.snapshot` returns.

    Raises
    ------
    InspectError
        There is no such process, it does not use viakit, it belongs to somebody else, or it does not answer.
    """
    raw = _raw(pid)
    try:
        answer = json.loads(raw)
    except ValueError:
        raise InspectError(f"process {pid} ended, or closed its last NIC, while it answered") from None
    if "error" in answer or answer.get("schema") != SCHEMA:
        raise InspectError(f"process {pid} refuses to answer: {answer.get('error', 'it is of another version')}")
    return answer


def processes() -> dict[int, str]:
    """Return the processes that have libvipl loaded, as far as this user may look: their numbers and commands."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and _uses_viakit(pid):
            with contextlib.suppress(OSError):  # it has just ended
                found[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return dict(sorted(found.items()))


def watch(pid: int, interval_s: float) -> Iterator[dict[str, Any]]:
    """Yield answers of a process at this interval, until it is gone; the first error of all is raised."""
    yield inspect(pid)
    while True:
        time.sleep(interval_s)
        try:
            answer = inspect(pid)
        except InspectError:
            return
        yield answer


# ------------------------------------------------------------------------------------------------ showing


def _size(n: int) -> str:
    for unit, step in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= step:
            return f"{n / step:.4g} {unit}"
    return f"{n} B"


def _queue(queue: Mapping[str, Any]) -> str:
    text = f"{queue['posted']}+{queue['done']}"
    return f"{text} cq" if queue["cq"] else text


def _descriptors(queue: Mapping[str, Any]) -> str:
    listed = queue["descriptors"]
    text = ", ".join(f"{one['operation']} {_size(one['length'])} {one['state']}" for one in listed[:2])
    rest = queue["posted"] + queue["done"] - min(len(listed), 2)
    return f"{text}, {rest} more" if rest > 0 and text else text


def _flags(one: Mapping[str, Any]) -> str:
    return "".join(letter for letter, name in (("w", "rdma_write"), ("r", "rdma_read")) if one[name])


def _table(title: str, heads: str) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for head in heads.split("|"):
        table.add_column(
            head, justify="right" if head.startswith(">") else "left", no_wrap=head != "oldest descriptors"
        )
        table.columns[-1].header = head.lstrip(">")
    return table


def _vis(nic: Mapping[str, Any]) -> Any:
    table = _table(
        "VIs (send and recv: posted+done)",
        "vi|state|level|rights|peer|>sent to|>acked|>flight/window|>got to|send|recv|oldest descriptors",
    )
    for vi in sorted(nic["vis"], key=lambda vi: vi["number"]):
        peer, sender = vi["peer"], vi["transmitter"]
        oldest = "; ".join(text for text in (_descriptors(vi["send"]), _descriptors(vi["recv"])) if text)
        table.add_row(
            str(vi["number"]),
            vi["state"],
            vi["level"],
            _flags(vi),
            f"{peer['address']} {peer['port']}/{peer['vi']}" if peer else "",
            str(sender["next_psn"]) if peer else "",
            str(sender["unacknowledged_psn"]) if peer else "",
            f"{sender['in_flight']}/{sender['window']}" if peer else "",
            str(vi["receiver"]["expected_psn"]) if peer else "",
            _queue(vi["send"]),
            _queue(vi["recv"]),
            oldest,
        )
    return table


def _others(nic: Mapping[str, Any]) -> Iterator[Any]:
    if nic["cqs"]:
        table = _table("completion queues", "cq|>entries|>room for|>work queues")
        for cq in nic["cqs"]:
            table.add_row(cq["handle"], str(cq["entries"]), str(cq["capacity"]), str(cq["queues"]))
        yield table
    if nic["regions"]:
        table = _table("registered memory", "handle|address|>length|>tag|rights|pinned")
        for region in nic["regions"]:
            pinned = "yes" if region["pinned"] else "no"
            cells = (region["handle"], region["address"], _size(region["length"]), str(region["ptag"]))
            table.add_row(*cells, _flags(region), pinned)
        yield table
    if nic["connections"]:
        table = _table("connections in the making", "state|address|discriminator|vi")
        for one in nic["connections"]:
            address = f"{one['address']} {one['port'] or ''}" if "address" in one else ""
            table.add_row(one["state"], address, repr(one["discriminator"]), one["vi"] or "")
        yield table


def _counters(nic: Mapping[str, Any], before: Mapping[str, Any] | None) -> Any:
    seconds = (nic["time_ns"] - before["time_ns"]) / 1e9 if before else 0.0
    table = _table("counters", "counter|>so far|>per second" if seconds else "counter|>so far")
    for name, value in nic["counters"].items():
        if value:
            cells = [name, f"{value:,}"]
            if seconds and before is not None:
                cells.append(f"{(value - before['counters'].get(name, 0)) / seconds:,.0f}")
            table.add_row(*cells)
    return table


def tables(answer: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> RenderableType:
    """Lay out an answer of :func:`inspect` for a Rich console.

    Parameters
    ----------
    answer : dict
        What :func:`inspect` returned, or ``{"pid": ..., "nics": [nic.snapshot()]}``.
    before : dict, optional
        An earlier answer: counters are then shown with their rate as well.
    """
    from rich.console import Group
    from rich.text import Text

    earlier = {nic["handle"]: nic for nic in before["nics"]} if before else {}
    parts: list[Any] = []
    for nic in answer["nics"]:
        title = f"process {answer['pid']}, NIC {nic['device']}"
        state = (
            f"{nic['link']} {nic['interface']} {nic['address']} port {nic['port']}, MTU {nic['mtu']}, "
            f"{_size(nic['bytes_registered'])} registered ({_size(nic['bytes_pinned'])} pinned), "
            f"asleep: {nic['asleep']}, calls that wait: {nic['waiting_calls']}"
        )
        parts += [Text(title, style="bold"), Text(" ".join(state.split()), style="dim")]
        if nic["vis"]:
            parts.append(_vis(nic))
        parts += [*_others(nic), _counters(nic, earlier.get(nic["handle"]))]
    if not parts:
        parts.append(Text(f"process {answer['pid']} has no NIC open", style="dim"))
    return Group(*parts)
