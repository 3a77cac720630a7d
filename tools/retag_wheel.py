#!/usr/bin/env python3
"""Give a wheel that was cross-compiled the names of the machine that it is for.

    tools/retag_wheel.py WHEEL ARCH FOLDER

meson-python takes the suffix of extensions and the wheel's tag from the interpreter that builds. Its architecture is
replaced by ARCH (x86_64, aarch64) in both; the result is written to FOLDER. The program `wheel` must be in PATH.
"""

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Unpack, rename, pack."""
    wheel, arch, folder = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    here = platform.machine()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["wheel", "unpack", "--dest", scratch, wheel], check=True, stdout=subprocess.DEVNULL)
        (root,) = Path(scratch).iterdir()
        for extension in root.rglob(f"*-{here}-linux-gnu.so"):
            extension.rename(extension.with_name(extension.name.replace(f"-{here}-", f"-{arch}-")))
        (about,) = root.glob("*.dist-info/WHEEL")
        text = about.read_text(encoding="utf-8")
        about.write_text(re.sub(rf"^(Tag: .*-linux_){here}$", rf"\g<1>{arch}", text, flags=re.M), encoding="utf-8")
        subprocess.run(["wheel", "pack", "--dest-dir", folder, root], check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
