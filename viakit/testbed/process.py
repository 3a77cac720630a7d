"""A requested process on a host: it receives its task over a channel, and executes a program or calls a function.

A task and a reply are pickled objects, each preceded by its length. This module imports nothing of viakit;
:mod:`viakit.testbed.namespaces` gives the reason.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import os
import pickle
import signal
import socket
import struct
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

LENGTH = struct.Struct("=Q")


def send_object(channel: socket.socket, value: Any) -> None:
    """Send a pickled object, preceded by its length."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(LENGTH.pack(len(data)))
    channel.sendall(data)


def _receive_object(channel: socket.socket) -> Any:
    """Receive an object of send_object. Raises EOFError if the sender closes the channel."""
    with channel.makefile("rb") as file:
        head = file.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            data = file.read(length)
            if len(data) == length:
                return pickle.loads(data)
    raise EOFError("the process that requested this one has ended")


def be_process(channel: socket.socket, fds: list[int]) -> NoReturn:
    """Execute the program, or call the function, that the channel names."""
    try:
        channel.settimeout(None)
        spec = _receive_object(channel)
    except (OSError, EOFError):
        os._exit(127)
    try:
        channel = _place_fds(channel, fds, spec["pass_fds"])
        os.chdir(spec["cwd"])
        if spec["argv"] is not None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.execvpe(spec["argv"][0], spec["argv"], spec["env"])
    except BaseException as error:
        if isinstance(error, OSError):
            # execvpe names the last file of PATH that it tried; the name in the request is more useful.
            error.filename = spec["argv"][0] if spec["argv"] and error.filename != spec["cwd"] else spec["cwd"]
        send_object(channel, {"failed": error})
        os._exit(127)
    sys.exit(_call(channel, spec))


def _place_fds(channel: socket.socket, fds: list[int], pass_fds: list[int]) -> socket.socket:
    """Put the streams at 0, 1, 2 and the passed descriptors at the numbers they have in the user's process."""
    targets = [0, 1, 2, *pass_fds]
    above = max(targets) + 1
    # First all descriptors move above every target, because a target may be the current number of another one.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, above) for fd in fds]
    moved = socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, above))
    channel.close()
    for fd in fds:
        os.close(fd)
    for fd, target in zip(high, targets, strict=True):
        os.dup2(fd, target, inheritable=True)
        os.close(fd)
    return moved


def _call(channel: socket.socket, spec: dict[str, Any]) -> int:
    """Call a function and send its result or exception back. Return the exit status of the process."""
    os.environ.clear()
    os.environ.update(spec["env"])
    sys.path[:], sys.argv[:] = spec["sys_path"], spec["sys_argv"]
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        stream = open(fd, mode, buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    try:
        if spec["module"] is not None:
            _load_module(*spec["module"])
        function, args, kwargs = pickle.loads(spec["payload"])
        answer = pickle.dumps({"returned": function(*args, **kwargs)}, protocol=pickle.HIGHEST_PROTOCOL)
    except BaseException as error:
        answer = _pack_error(error)
    try:
        send_object(channel, answer)
    except OSError:
        return 1
    finally:
        channel.close()
    return 0


def _load_module(name: str, path: str) -> None:
    """Import a module that only its file provides: the user's script, or a test file outside sys.path."""
    if name != "__main__":
        try:
            importlib.import_module(name)
            return
        except ImportError:
            pass
    # The script's `if __name__ == "__main__":` part must not run again, so it is loaded under another name.
    spec = importlib.util.spec_from_file_location("__viakit_main__" if name == "__main__" else name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file, so module {name} cannot be loaded on the host")
    for i in [i for i, letter in enumerate(name) if letter == "."]:
        parent = sys.modules.setdefault(name[:i], ModuleType(name[:i]))  # pickle imports the packages above it first
        parent.__path__ = getattr(parent, "__path__", [])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[spec.name] = module
    os.environ["VIAKIT_LOADING_MAIN"] = path  # Testbed.open refuses while this is set, to prevent endless recursion
    spec.loader.exec_module(module)
    del os.environ["VIAKIT_LOADING_MAIN"]


def _pack_error(error: BaseException) -> bytes:
    """Pickle an exception with its traceback as text. If it cannot be pickled, only the text is sent."""
    trace = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, trace.tb_next if trace else None))
    try:
        data = pickle.dumps({"raised": error, "traceback": text}, protocol=pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)  # some exceptions can be pickled but not restored
        return data
    except Exception:
        return pickle.dumps({"raised": None, "traceback": text})
