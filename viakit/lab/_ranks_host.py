"""The process that holds the ranks of ``%%ranks``: an ipyparallel controller, and one engine per rank.

::

    kernel --stdin--> this process (a session of its own, because Ctrl-C is for the kernel)
                        |-- controller: one process, its schedulers are threads; ends with this one (PR_SET_PDEATHSIG)
                        |-- guard, and rank 0 ... N-1: started as `viakit run` starts ranks; each is an engine
                        |   (or guard and mpiexec, which starts them)

The kernel holds the other end of stdin. A line ``interrupt`` sends SIGINT to all ranks. The end of the pipe, which is
closed when the kernel closes it or dies, ends everything. All files are in one folder, which the kernel created and
this process removes. The folder also contains the sockets, so that ranks on a testbed's hosts reach the controller
although no network connects them. On machines that ssh reaches, relays have sockets of the same names
(:mod:`viakit.lab._relay`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from viakit.base.process import end_with_parent
from viakit.lab._relay import RemoteEngines, RemoteMpiEngines, interrupt_engines
from viakit.launch import LaunchError
from viakit.launch import mpi_library as mpi
from viakit.launch.mpi_job import MpiLaunch
from viakit.launch.runner import Launch, Options, launch_of
from viakit.testbed import TestbedError

__all__ = ["CLIENT_FILE", "ENGINE_FILE", "READY_FILE", "main"]

ENGINE_FILE = "profile/security/ipcontroller-engine.json"
CLIENT_FILE = "profile/security/ipcontroller-client.json"
READY_FILE = "ready"  # created when clients may connect
_START_S = 60.0
_GRACE_S = 2.0


def _end_with_parent() -> None:
    """Request SIGTERM for the controller when this process ends. Runs in the controller before it starts."""
    os.setpgid(0, 0)
    end_with_parent(signal.SIGTERM)


def _end(controller: subprocess.Popen[bytes]) -> None:
    """End the controller and its descendants."""
    controller.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        controller.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(controller.pid, signal.SIGKILL)
    controller.wait()


def _start_controller(folder: Path) -> subprocess.Popen[bytes]:
    """Start the controller, and return when it has written the connection files of engines and clients."""
    profile = folder / "profile"
    profile.mkdir()
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "ipyparallel.controller",
            f"--profile-dir={profile}",
            f"--ipython-dir={folder}",
            "--IPController.use_threads=True",
            "--IPController.engine_transport=ipc",
            "--IPController.client_transport=ipc",
            f"--IPController.engine_ip={folder}/e",
            f"--IPController.client_ip={folder}/c",
            "--nodb",
            "--log-level=WARN",
        ],
        stdin=subprocess.DEVNULL,
        preexec_fn=_end_with_parent,
    )
    try:
        engines, clients = _wait_for_files(folder, process)
    except BaseException:
        _end(process)  # It writes to the folder, so end it before the folder is removed.
        raise
    _link_sockets(engines, folder, "e")
    _link_sockets(clients, folder, "c")
    (folder / READY_FILE).touch()
    return process


def _wait_for_files(folder: Path, process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the contents of the connection files of engines and clients, once both are complete."""
    deadline = time.monotonic() + _START_S
    while not (engines := _read_whole(folder / ENGINE_FILE)) or not (clients := _read_whole(folder / CLIENT_FILE)):
        if process.poll() is not None:
            raise RuntimeError(f"ipyparallel's controller ended with status {process.returncode}")
        if time.monotonic() > deadline:
            raise RuntimeError(f"ipyparallel's controller was not ready within {_START_S:g} s")
        time.sleep(0.02)  # between two checks
    return engines, clients


def _read_whole(path: Path) -> dict[str, Any] | None:
    """Return the contents of a connection file, or None if it is missing or not complete yet."""
    try:
        contents: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return contents


def _link_sockets(contents: dict[str, Any], folder: Path, letter: str) -> None:
    """Create links to the controller's sockets with the names that ipyparallel's clients and engines use.

    The controller creates socket files NAME-PORT, but clients and engines open NAME:PORT. A symbolic link may exist
    before its file, because ZeroMQ repeats the connection attempt.
    """
    for value in contents.values():
        for port in value if isinstance(value, list) else [value]:
            if isinstance(port, int) and not (folder / f"{letter}:{port}").exists():
                (folder / f"{letter}:{port}").symlink_to(f"{letter}-{port}")


def _serve_kernel(commands: int, launch: Any, folder: Path) -> None:
    """Carry out the kernel's commands until the pipe ends."""
    with os.fdopen(commands) as lines:
        for line in lines:
            if line.strip() == "interrupt" and isinstance(launch, MpiLaunch):
                interrupt_engines(folder / ENGINE_FILE)
            elif line.strip() == "interrupt":
                launch.interrupt()
    os.kill(os.getpid(), signal.SIGTERM)  # The launcher's handler ends all ranks.


def main() -> int:
    """Hold the ranks that the first argument (JSON: folder, options) describes until the kernel ends."""
    request = json.loads(sys.argv[1])
    folder = Path(request["folder"])
    commands = os.dup(0)  # Rank 0 inherits descriptor 0, which therefore becomes empty input.
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    controller = None
    launch: Launch | MpiLaunch
    try:
        engine = ["-m", "ipyparallel.engine", f"--file={folder / ENGINE_FILE}", f"--profile-dir={folder / 'profile'}"]
        engine += [f"--ipython-dir={folder}", "--log-level=ERROR", "--timeout=60", "--IPEngine.enable_nanny=False"]
        environment = {"IPYTHONDIR": str(folder), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
        options = Options(**request["options"], environment=environment)
        if options.remote is None:
            launch = launch_of(engine, options, out=sys.stderr.buffer)
        else:
            by_mpi = mpi.is_mpi(options.launcher) or mpi.is_mpi(options.protocol)
            kind = RemoteMpiEngines if by_mpi else RemoteEngines
            launch = kind(engine, options, folder, ENGINE_FILE, out=sys.stderr.buffer)
        controller = _start_controller(folder)
        threading.Thread(target=_serve_kernel, args=(commands, launch, folder), daemon=True).start()
        with contextlib.suppress(KeyboardInterrupt):
            return launch.run()
        return 0
    except (LaunchError, TestbedError, OSError, RuntimeError, ValueError) as error:
        if os.environ.get("VIAKIT_DEBUG"):
            raise
        print(error, file=sys.stderr)  # The kernel displays the message, which contains a remedy.
        return 1
    finally:
        if controller is not None:
            _end(controller)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
