"""The kernel of the virtual machines, and the initial RAM disk that finds their root.

The kernel is Debian's package linux-image-amd64, unpacked into build/vm and not installed: no privilege is needed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Boot", "NoKernelError", "in_order", "prepare"]

HERE = Path(__file__).resolve().parent
BUILD = HERE.parents[1] / "build/vm"
MODULES = ("virtio_pci", "virtio_net", "virtio-rng", "e1000", "9pnet_virtio", "9p", "overlay", "af_packet", "sch_netem")


class NoKernelError(RuntimeError):
    """The kernel cannot be had: a program is missing, or the download failed."""


@dataclass(frozen=True)
class Boot:
    """Files with which a machine boots.

    Attributes
    ----------
    kernel : Path
        Compressed kernel.
    disk : Path
        Initial RAM disk.
    release : str
        Version of the kernel.
    modules : Path
        Folder of all modules of the kernel. The RAM disk contains MODULES only.
    """

    kernel: Path
    disk: Path
    release: str
    modules: Path


def prepare() -> Boot:
    """Return the kernel and the RAM disk; make both if they are missing.

    Raises
    ------
    NoKernelError
        If the package cannot be downloaded, or a program that unpacks or compiles is missing.
    """
    BUILD.mkdir(parents=True, exist_ok=True)
    kernels = sorted(BUILD.glob("kernel/boot/vmlinuz-*"))
    if not kernels:
        _unpack()
        kernels = sorted(BUILD.glob("kernel/boot/vmlinuz-*"))
    kernel = kernels[-1]
    release = kernel.name.removeprefix("vmlinuz-")
    disk = BUILD / f"initrd-{os.getpid()}"
    folder = BUILD / "kernel/lib/modules" / release
    _make_disk(disk, folder)
    disk.replace(BUILD / "initrd")
    return Boot(kernel, BUILD / "initrd", release, folder)


def _run(*command: str, cwd: Path) -> str:
    try:
        done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=240)
    except FileNotFoundError:
        raise NoKernelError(f"missing package: {command[0]} is not installed") from None
    if done.returncode != 0:
        raise NoKernelError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


def _download(folder: Path) -> None:
    """Download the package on which linux-image-amd64 depends."""
    depends = _run("apt-cache", "depends", "--no-recommends", "--no-suggests", "linux-image-amd64", cwd=folder)
    names = [word for word in depends.split() if word.startswith("linux-image-") and word != "linux-image-amd64"]
    if not names:
        raise NoKernelError("apt has no linux-image-amd64 in its lists; run apt-get update")
    _run("apt-get", "download", "-qq", names[0], cwd=folder)


def _unpack() -> None:
    """Download Debian's current kernel package and unpack it."""
    shutil.rmtree(BUILD / "package", ignore_errors=True)
    (BUILD / "package").mkdir()
    try:
        _download(BUILD / "package")
    except NoKernelError:
        if os.geteuid() != 0:
            raise
        _run("apt-get", "update", "-qq", cwd=BUILD)  # the lists may name a version that was replaced
        _download(BUILD / "package")
    (package,) = (BUILD / "package").glob("*.deb")
    _run("dpkg-deb", "-x", str(package), "package/root", cwd=BUILD)
    (BUILD / "package/root").rename(BUILD / "kernel")
    shutil.rmtree(BUILD / "package")


def in_order(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the files of the named modules and of all modules that they need, each after those."""
    files = {path.stem.replace("-", "_"): path for path in folder.rglob("*.ko")}
    order: list[Path] = []

    def add(name: str) -> None:
        if name not in files or files[name] in order:
            return  # part of the kernel itself, or listed
        for line in files[name].read_bytes().split(b"\0"):
            if line.startswith(b"depends="):
                for other in filter(None, line.removeprefix(b"depends=").decode().split(",")):
                    add(other.replace("-", "_"))
        order.append(files[name])

    for name in names:
        add(name.replace("-", "_"))
    return order


def _make_disk(path: Path, folder: Path) -> None:
    """Write an archive (cpio, newc) with init, the modules and their list."""
    init = path.with_suffix(".init")
    _run("cc", "-static", "-O1", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-o", str(init), str(HERE / "init.c"), cwd=BUILD)
    modules = in_order(folder, MODULES)
    files = [("init", 0o100755, init.read_bytes())]
    files += [(module.name, 0o100644, module.read_bytes()) for module in modules]
    files.append(("modules", 0o100644, "".join(f"/{module.name}\n" for module in modules).encode()))
    entries = [("dev", 0o040755, b"", 0), ("dev/console", 0o020600, b"", 0x0501)]
    entries += [(name, mode, data, 0) for name, mode, data in files]
    entries.append(("TRAILER!!!", 0, b"", 0))
    with path.open("wb") as archive:
        for number, (name, mode, data, device) in enumerate(entries, 1):
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, device >> 8, device & 0xFF, len(name) + 1, 0)
            header = b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
            archive.write(header + bytes(-len(header) % 4) + data + bytes(-len(data) % 4))
    init.unlink()
