"""Seeing what NICs do: captures for Wireshark, and timelines from the post to the peer's reap.

A tap (:meth:`viakit.via.Nic.tap`, or ``VIAKIT_TAP`` for programs that know nothing of it) writes pcapng. This package
reads such files, joins those of several processes, follows each message through them, and writes what Perfetto,
Matplotlib and Wireshark can show.

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

from viakit._words import counted
from viakit.trace import chrome, pcapng, picture, timeline

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "Recording", "build", "chrome", "dissector", "install_dissector", "merge", "pcapng", "picture", "read", "recording",
    "render", "timeline", "variable",
]  # fmt: skip

HEADERS_ONLY = 176  # bytes of a frame: the longest connection request, without its payload's neighbours
FILE_BYTES = 8 << 20  # of each process: some 50000 records, which Perfetto shows without effort

read = pcapng.read
merge = pcapng.merge
build = timeline.build


def variable(
    file: str | os.PathLike[str], *, events: bool, snap_bytes: int | None = None, file_bytes: int | None = None
) -> str:
    """Return what ``VIAKIT_TAP`` has to be for taps that write to *file*, a file or a folder.

    Raises
    ------
    ValueError
        The name has a comma, which ``VIAKIT_TAP`` cannot hold.
    """
    name = os.fspath(file)
    if "," in name:
        raise ValueError(f"{name}: a comma cannot be in the name of a capture")
    words = [name, *(["events"] if events else [])]
    words += [f"{word}={value}" for word, value in (("snap", snap_bytes), ("limit", file_bytes)) if value]
    return ",".join(words)


class Recording:
    """What the taps of a run have written, in a folder. Made by :func:`recording`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._capture: pcapng.Capture | None = None

    @property
    def files(self) -> list[Path]:
        """One file per process that opened a NIC."""
        return sorted(self.folder.glob("*.pcapng"))

    def capture(self) -> pcapng.Capture:
        """All of them as one; kept, so that it outlives the folder."""
        if self._capture is None:
            self._capture = read([self.folder])
        return self._capture

    def timeline(self) -> timeline.Timeline:
        """What happened."""
        return build(self.capture())


@contextlib.contextmanager
def recording(
    *, events: bool = True, snap_bytes: int | None = HEADERS_ONLY, file_bytes: int | None = FILE_BYTES
) -> Iterator[Recording]:
    """Give a tap to every NIC that this process and its children open within the ``with`` statement.

    Parameters
    ----------
    events : bool
        The life of each descriptor, too.
    snap_bytes : int, optional
        Bytes of each frame to keep; None: all.
    file_bytes : int, optional
        About how much each process may write; what comes then is counted as lost. None: no bound.

    Notes
    -----
    The files are read when the ``with`` statement ends, so NICs have to be closed by then. It sets ``VIAKIT_TAP`` in
    ``os.environ``: not for several threads at once.
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
    """Where the dissector for Wireshark and tshark lies: ``tshark -X lua_script:PATH -r FILE``."""
    return Path(__file__).parent.parent / "wireshark" / "viakit.lua"


def install_dissector(folder: str | os.PathLike[str] | None = None) -> Path:
    """Put the dissector into Wireshark's folder for the user's plugins; returns where it is now.

    Parameters
    ----------
    folder : path-like, optional
        Another folder. None: ``~/.local/lib/wireshark/plugins``.
    """
    target = Path(folder) if folder is not None else Path.home() / ".local" / "lib" / "wireshark" / "plugins"
    target.mkdir(parents=True, exist_ok=True)
    path = target / "viakit.lua"
    path.write_bytes(dissector().read_bytes())
    return path


# ---------------------------------------------------------------- tables


def render(seen: timeline.Timeline, console: Console) -> None:
    """Print what was counted, and the median of each leg of a message's way."""
    from rich import box
    from rich.table import Table

    counts = seen.counts()
    kinds = [kind for kind in timeline.FRAME_KINDS if any(counts[name][kind] for name in counts)]
    columns = ("sent", "again", "lost", "received", "dropped")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("frames")
    for name in columns:
        table.add_column(name, justify="right")
    for kind in kinds:
        table.add_row(kind, *(str(counts[name][kind] or "-") for name in columns))
    if kinds:
        console.print(table)
    legs = seen.medians_ns()
    if legs:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("leg of a message's way")
        table.add_column("seen", justify="right")
        table.add_column("median", justify="right")
        for name, (number, value) in legs.items():
            table.add_row(name, str(number), f"{value / 1000:.3f} µs")
        console.print(table)
    lost = sum(nic.lost for nic in seen.nics)
    console.print(f"{counted(len(seen.messages), 'message')} on {counted(len(seen.nics), 'NIC')}", markup=False)
    if lost:
        console.print(f"{lost} records more were not kept: a ring was full, or a file at its limit", markup=False)


def convert(paths: Sequence[str | os.PathLike[str]]) -> timeline.Timeline:
    """Return the timeline of captures that are there already."""
    return build(read(paths))
