"""Inspection of running programs that use viakit.

A process with an open NIC answers inspection requests (``csrc/watch/inspect.c``). It needs no preparation and is not
stopped. It replies only to its own user and to root. ``viakit inspect PID`` displays the reply as tables, ``--json``
prints it unchanged, and ``--watch`` repeats it. A program inspects its own NICs with
:meth:`viakit.via.Nic.snapshot`.

``VIAKIT_INSPECT=0`` in the environment of a program disables inspection.
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

from viakit.base.sheet import sheet

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["InspectError", "inspect", "processes", "tables"]

SCHEMA = "viakit.process/1"
REPLY_TIMEOUT_S = 5.0  # limit for a process that is stopped or busy
MOST_REPLY = 1 << 26  # bytes of a reply


class InspectError(OSError):
    """The process cannot be inspected; the message gives the reason."""


# ------------------------------------------------------------------------------------------------ requests


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
    """Return whether libvipl is mapped in the process; False if the maps cannot be read."""
    try:
        return "libvipl" in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def _request(pid: int, inner_pid: int) -> bytes:
    """Return the reply of the process; *inner_pid* is its number in its own PID namespace."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(REPLY_TIMEOUT_S)
        sock.connect(f"\0viakit/inspect/{inner_pid}")
        other, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        # Any process can bind the name while the inspected one has no NIC. Check the credentials from the kernel. The
        # process id is 0 if the listener belongs to a PID namespace that is not visible here.
        if other != pid and (other != 0 or inner_pid == pid):
            raise InspectError(f"process {other} of user {_user(uid)} has bound the socket name of process {pid}")
        if other == 0 and uid % (1 << 32) != int(_status(pid)["Uid"].split()[1]):
            raise InspectError(f"a process of user {_user(uid)} has bound the socket name of process {pid}")
        reply, deadline = bytearray(), time.monotonic() + REPLY_TIMEOUT_S
        while piece := sock.recv(1 << 16):
            reply += piece
            if len(reply) > MOST_REPLY or time.monotonic() > deadline:
                raise InspectError(
                    f"process {pid} sent {len(reply)} bytes; a reply must have at most {MOST_REPLY} bytes and end "
                    f"within {REPLY_TIMEOUT_S:g} s"
                )
        return bytes(reply)


def _request_from_inside(pid: int) -> bytes:
    """Return the reply of a process in another network namespace, such as a host of a testbed.

    The socket can be reached only from within that namespace.
    """
    nsenter = shutil.which("nsenter")
    if nsenter is None:
        raise InspectError(f"process {pid} is in another network namespace; install nsenter (package util-linux)")
    command = [nsenter, f"--target={pid}", "--net"]
    if _namespace(pid, "user") != _namespace("self", "user"):
        command += ["--user", "--preserve-credentials"]
    code = "import sys; from viakit.inspect import _main; _main(int(sys.argv[1]))"
    done = subprocess.run(
        [*command, sys.executable, "-c", code, str(pid)],
        capture_output=True,
        timeout=4 * REPLY_TIMEOUT_S,
        check=False,
        cwd="/",
    )
    if done.returncode != 0:
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        raise InspectError(lines[-1] if lines else f"nsenter ended with {done.returncode}")
    return done.stdout


def _main(pid: int) -> None:
    """Write the reply to standard output, or the error to standard error; runs inside the namespace."""
    try:
        sys.stdout.buffer.write(_raw(pid, enter=False))
    except InspectError as error:
        sys.exit(str(error))


def _raw(pid: int, *, enter: bool = True) -> bytes:
    status = _status(pid)
    uid = int(status["Uid"].split()[1])  # the effective user
    if os.geteuid() not in (0, uid):
        raise InspectError(
            f"process {pid} belongs to user {_user(uid)}; only that user and root may inspect it, "
            f"and this is {_user(os.geteuid())}"
        )
    here = _namespace(pid, "net") in (_namespace("self", "net"), None)
    if not here and enter:
        return _request_from_inside(pid)
    try:
        return _request(pid, int(status["NSpid"].split()[-1]))
    except (ConnectionRefusedError, FileNotFoundError):
        name = status.get("Name", "?")
        if status.get("State", "").startswith("Z"):
            reason = "has ended, and its parent has not collected its status yet"
        elif _uses_viakit(pid):
            reason = "has no open NIC, or does not permit inspection (VIAKIT_INSPECT=0, or NICs without threads)"
        else:
            reason = "does not use viakit, or has no open NIC"
        raise InspectError(f"process {pid} ({name}) {reason}") from None
    except TimeoutError:
        reason = "it is stopped" if status.get("State", "").startswith(("T", "t")) else "it is too busy"
        raise InspectError(f"process {pid} did not reply within {REPLY_TIMEOUT_S:g} s: {reason}") from None
    except ConnectionResetError:
        raise InspectError(f"process {pid} ended during its reply") from None


def inspect(pid: int) -> dict[str, Any]:
    """Return the state of the NICs of a running process.

    Parameters
    ----------
    pid : int
        Number of a process of this user, on this host or on a host of a testbed.

    Returns
    -------
    dict
        ``pid``, and ``nics``: a list of snapshots as :meth:`viakit.via.Nic.snapshot` returns them.

    Raises
    ------
    InspectError
        If there is no such process, it does not use viakit, it belongs to another user, or it does not reply.
    """
    raw = _raw(pid)
    try:
        answer = json.loads(raw)
    except ValueError:
        raise InspectError(f"process {pid} ended, or closed its last NIC, during its reply") from None
    if "error" in answer or answer.get("schema") != SCHEMA:
        raise InspectError(f"process {pid} refuses: {answer.get('error', 'it uses another version of viakit')}")
    return answer


def processes() -> dict[int, str]:
    """Return the numbers and commands of the processes that have loaded libvipl, as far as this user may see them."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        if pid != os.getpid() and _uses_viakit(pid):
            with contextlib.suppress(OSError):  # The process has just ended.
                found[pid] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    return dict(sorted(found.items()))


def watch(pid: int, interval_s: float) -> Iterator[dict[str, Any]]:
    """Yield replies of a process at this interval until it ends. An error of the first request is raised."""
    yield inspect(pid)
    while True:
        time.sleep(interval_s)
        try:
            answer = inspect(pid)
        except InspectError:
            return
        yield answer


# ------------------------------------------------------------------------------------------------ display


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
    names = heads.split("|")
    return sheet(*names, title=title, whole={name.lstrip(">") for name in names} - {"oldest descriptors"})


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
        table = _table("pending connections", "state|address|discriminator|vi")
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


def _frames(nic: Mapping[str, Any]) -> str:
    """Describe what one frame, and one super-frame, of the NIC carries now."""
    frame, super_frame = nic["max_payload"], nic["super_payload"]
    return f"{frame} B a frame, " + (f"{super_frame} B a super-frame" if super_frame > frame else "no super-frames")


def tables(answer: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> RenderableType:
    """Return a reply of :func:`inspect` as tables for a Rich console.

    Parameters
    ----------
    answer : dict
        Result of :func:`inspect`, or ``{"pid": ..., "nics": [nic.snapshot()]}``.
    before : dict, optional
        An earlier reply; if given, counters are shown with their rates.
    """
    from rich.console import Group  # start-up time
    from rich.text import Text  # start-up time

    earlier = {nic["handle"]: nic for nic in before["nics"]} if before else {}
    parts: list[Any] = []
    for nic in answer["nics"]:
        title = f"process {answer['pid']}, NIC {nic['device']}"
        state = (
            f"{nic['link']} {nic['interface']} {nic['address']} port {nic['port']}, MTU {nic['mtu']}, "
            f"{_frames(nic)}, "
            f"{_size(nic['bytes_registered'])} registered ({_size(nic['bytes_pinned'])} pinned), "
            f"asleep: {nic['asleep']}, waiting calls: {nic['waiting_calls']}"
        )
        parts += [Text(title, style="bold"), Text(" ".join(state.split()), style="dim")]
        if nic.get("trouble"):
            parts.append(Text(f"trouble: {nic['trouble']}", style="red"))
        if nic["vis"]:
            parts.append(_vis(nic))
        parts += [*_others(nic), _counters(nic, earlier.get(nic["handle"]))]
    if not parts:
        parts.append(Text(f"process {answer['pid']} has no open NIC", style="dim"))
    return Group(*parts)
