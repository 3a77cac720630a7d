"""Observation of NICs: captures for Wireshark, and timelines of each message from its post to the peer's reap.

A tap (:meth:`viakit.via.Nic.tap`, or ``VIAKIT_TAP`` for unmodified programs) writes pcapng files. This package reads
such files, merges those of several processes, follows each message through them, and writes files for Perfetto,
Matplotlib and Wireshark.

    >>> from viakit import trace
    >>> with trace.recording() as taken:           # every NIC opened here, and in child processes, has a tap
    ...     pass                                   # doctest: +SKIP
    >>> timeline = taken.timeline()                # doctest: +SKIP
    >>> trace.chrome.save(timeline, "trace.json")  # doctest: +SKIP
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from viakit.base.sheet import sheet
from viakit.base.words import counted
from viakit.trace import chrome, hosts, pcapng, picture, timeline
from viakit.trace.schedule import to_schedule

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Recording", "build", "chrome", "dissector", "install_dissector", "merge", "pcapng", "picture", "read", "recording",
    "render", "timeline", "to_schedule", "variable",
]  # fmt: skip

HEADERS_ONLY = 176  # bytes to keep of a frame: enough for the longest connection request
FILE_BYTES = 8 << 20  # limit per process: about 50000 records, which Perfetto displays without delay

read = hosts.read
merge = pcapng.merge
build = timeline.build


def variable(
    file: str | os.PathLike[str], *, events: bool, snap_bytes: int | None = None, file_bytes: int | None = None
) -> str:
    """Return the value of ``VIAKIT_TAP`` for taps that write to *file*, a file or a folder.

    Parameters
    ----------
    file : path-like
        Name of the file or folder.
    events : bool
        Record the events of descriptors as well.
    snap_bytes : int, optional
        Bytes to keep of each frame. Default: all.
    file_bytes : int, optional
        Approximate limit of each file in bytes. Default: none.

    Raises
    ------
    ValueError
        If the name contains a comma, which ``VIAKIT_TAP`` cannot represent.
    """
    name = os.fspath(file)
    if "," in name:
        raise ValueError(f"{name}: the name of a capture must not contain a comma; choose another name")
    words = [name, *(["events"] if events else [])]
    words += [f"{word}={value}" for word, value in (("snap", snap_bytes), ("limit", file_bytes)) if value]
    return ",".join(words)


class Recording:
    """Captures of a run, in a folder. Created by :func:`recording`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._capture: pcapng.Capture | None = None

    @property
    def files(self) -> list[Path]:
        """Captures, one for each process that opened a NIC."""
        return sorted(self.folder.glob("*.pcapng"))

    def capture(self) -> pcapng.Capture:
        """Return all captures merged into one. The result is cached, so that it remains after the folder is deleted."""
        if self._capture is None:
            self._capture = read([self.folder])
        return self._capture

    def timeline(self) -> timeline.Timeline:
        """Return the timeline of the merged captures."""
        return build(self.capture())


@contextlib.contextmanager
def recording(
    *, events: bool = True, snap_bytes: int | None = HEADERS_ONLY, file_bytes: int | None = FILE_BYTES
) -> Iterator[Recording]:
    """Attach a tap to every NIC that this process and its children open within the ``with`` statement.

    Children on machines that :mod:`viakit.remote` reaches are included: their captures are fetched, and their times
    are expressed by the clock of this machine (:mod:`viakit.trace.hosts`).

    Parameters
    ----------
    events : bool
        Record the events of each descriptor as well.
    snap_bytes : int, optional
        Bytes to keep of each frame. None: all.
    file_bytes : int, optional
        Approximate limit of each process's file. Later records are counted as lost. None: no limit.

    Notes
    -----
    The files are read at the end of the ``with`` statement, so the NICs must be closed by then. The function sets
    ``VIAKIT_TAP`` in ``os.environ``; do not use it in several threads at the same time.
    """
    with tempfile.TemporaryDirectory(prefix="viakit-trace-") as folder:
        taken = Recording(Path(folder))
        before = os.environ.get("VIAKIT_TAP")
        os.environ["VIAKIT_TAP"] = variable(folder, events=events, snap_bytes=snap_bytes, file_bytes=file_bytes)
        try:
            yield taken
        finally:
            if before is None:
                del os.environ["VIAKIT_TAP"]
            else:
                os.environ["VIAKIT_TAP"] = before
        taken.capture()


# ---------------------------------------------------------------- Wireshark


def dissector() -> Path:
    """Return the path of the dissector for Wireshark and tshark: ``tshark -X lua_script:PATH -r FILE``."""
    return Path(__file__).parent.parent / "wireshark" / "viakit.lua"


def install_dissector(folder: str | os.PathLike[str] | None = None) -> Path:
    """Copy the dissector to the user's folder of Wireshark plugins, and return its new path.

    Parameters
    ----------
    folder : path-like, optional
        Destination. Default: ``~/.local/lib/wireshark/plugins``.
    """
    target = Path(folder) if folder is not None else Path.home() / ".local" / "lib" / "wireshark" / "plugins"
    target.mkdir(parents=True, exist_ok=True)
    path = target / "viakit.lua"
    path.write_bytes(dissector().read_bytes())
    return path


# ---------------------------------------------------------------- tables


def render(seen: timeline.Timeline, console: Console) -> None:
    """Print the numbers of frames, and the median duration of each leg of a message's path."""
    counts = seen.counts()
    kinds = [kind for kind in timeline.FRAME_KINDS if any(counts[name][kind] for name in counts)]
    columns = ("sent", "again", "lost", "received", "dropped")
    table = sheet("frames", *(f">{name}" for name in columns))
    for kind in kinds:
        table.add_row(kind, *(str(counts[name][kind] or "-") for name in columns))
    if kinds:
        console.print(table)
    legs = seen.medians_ns()
    if legs:
        table = sheet("leg of a message's path", ">seen", ">median")
        for name, (number, value) in legs.items():
            table.add_row(name, str(number), f"{value / 1000:.3f} µs")
        console.print(table)
    for clock in seen.clocks:
        console.print(_of_clock(clock), markup=False)
    lost = sum(nic.lost for nic in seen.nics)
    console.print(f"{counted(len(seen.messages), 'message')} on {counted(len(seen.nics), 'NIC')}", markup=False)
    if lost:
        console.print(f"{lost} more records were lost: a ring was full, or a file reached its limit", markup=False)


def _of_clock(clock: pcapng.HostClock) -> str:
    """Return a sentence about the clock of another machine."""
    if clock.problem:
        return f"{clock.host}: captures are missing: {clock.problem}"
    if clock.source == "reference":
        return f"{clock.host}: its clock is the reference"
    error = f"{clock.error_ns / 1000:.3f} µs"
    if clock.low_ns > clock.high_ns:
        return f"{clock.host}: its clock drifted during the run; times between the hosts are uncertain by {error}"
    how = "frames in both directions" if clock.source == "frames" else "ssh, as no frames went in both directions"
    return f"{clock.host}: its clock is known to ± {error}, by {how}"


def convert(paths: Sequence[str | os.PathLike[str]]) -> timeline.Timeline:
    """Return the timeline of existing captures."""
    return build(read(paths))
