"""The secret of a job, which its ranks prove to each other that they know; and the user at the other end of a socket.

A secret is 32 random bytes. A rank gets it from its environment (``viakit run``, or the user before ``srun``), from a
file that only the user can read, or from a channel that the launcher guards. No command line, result or
error message contains it, and no name of a socket or a shared file. Each use has a key of its own: see :func:`derive`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import socket
import stat
import struct
from collections.abc import Mapping

__all__ = [
    "FILE",
    "HOW_TO_SET",
    "NBYTES",
    "VARIABLE",
    "SecretError",
    "derive",
    "new",
    "of_environment",
    "same_user",
    "users_can_be_told_apart",
]

NBYTES = 32
VARIABLE, FILE = "VIAKIT_SECRET", "VIAKIT_SECRET_FILE"
HOW_TO_SET = f"""\
    export {VARIABLE}=$(python3 -c 'import secrets; print(secrets.token_hex({NBYTES}))')
in the shell that starts the job (srun passes its environment on), or {FILE}=PATH to a file of mode 0600 with at least \
{NBYTES} random bytes that all hosts can read"""
_FILE_LEAST, _FILE_MOST = 32, 4096
_ALL_USERS = "0 0 4294967295"  # the map of a user namespace that has every user, as the first one of a machine has


class SecretError(RuntimeError):
    """A secret was given, but it cannot be used. The message never contains it."""


def new() -> bytes:
    """Draw a secret for a new job."""
    return secrets.token_bytes(NBYTES)


def derive(secret: bytes, purpose: str, context: bytes = b"") -> bytes:
    """Derive the key for one purpose, so that a proof made for one use is worth nothing in another.

    Parameters
    ----------
    secret : bytes
        A secret, or a key that was derived before.
    purpose : str
        A fixed text, which no other use has.
    context : bytes
        What else the key belongs to, such as a connection's nonces.

    Returns
    -------
    bytes
        32 bytes: the keyed BLAKE2s of the purpose and the context.
    """
    return hashlib.blake2s(purpose.encode() + b"\0" + context, key=secret).digest()


def of_environment(environment: Mapping[str, str] | None = None) -> bytes | None:
    """Read the secret that VIAKIT_SECRET, or else the file of VIAKIT_SECRET_FILE, gives; None if neither is set.

    Raises
    ------
    SecretError
        If the variable is not 64 hexadecimal digits, or the file is not safe to use.
    """
    environment = os.environ if environment is None else environment
    text = environment.get(VARIABLE, "")
    if text:
        if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * NBYTES}}}", text):
            raise SecretError(
                f"{VARIABLE} has {len(text)} characters that are not {2 * NBYTES} hexadecimal digits; set\n{HOW_TO_SET}"
            )
        return bytes.fromhex(text)
    path = environment.get(FILE, "")
    return _of_file(path) if path else None


def _of_file(path: str) -> bytes:
    """Read a secret file; its owner, mode and size are checked on the open file, so that it cannot be exchanged."""

    def refuse(why: str) -> SecretError:
        return SecretError(
            f"{FILE}={path}: {why}; expected a regular file of yours with mode 0600 or stricter and {_FILE_LEAST} to "
            f"{_FILE_MOST} bytes. To make one: (umask 077; head -c {NBYTES} /dev/urandom > FILE)"
        )

    try:  # O_NONBLOCK: a pipe would wait for a writer
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise refuse("it is a symbolic link" if error.errno == errno.ELOOP else f"{error.strerror}") from None
    try:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode):
            raise refuse("it is not a regular file")
        if about.st_uid != os.geteuid():
            raise refuse(f"it belongs to user {about.st_uid}, and this process to user {os.geteuid()}")
        if about.st_mode & 0o077:
            raise refuse(f"its mode is {stat.S_IMODE(about.st_mode):04o}, so that other users have access")
        content = b""
        while len(content) <= _FILE_MOST and (piece := os.read(fd, _FILE_MOST + 1 - len(content))):
            content += piece
    finally:
        os.close(fd)
    if not _FILE_LEAST <= len(content) <= _FILE_MOST:
        more = "more than " if len(content) > _FILE_MOST else ""
        raise refuse(f"it has {more}{min(len(content), _FILE_MOST)} bytes")
    return hashlib.blake2s(b"viakit secret file" + content).digest()


# ---- the user at the other end of a Unix socket


def users_can_be_told_apart() -> bool:
    """Return whether the user number of this process is its own alone, as the kernel reports users here.

    In a user namespace that does not have all users, those that it lacks share one number (65534). If this process
    has that number too, other users' processes look like its own.
    """
    return _is_distinct(os.geteuid())


def _is_distinct(uid: int) -> bool:
    try:
        with open("/proc/sys/kernel/overflowuid", encoding="ascii") as file:
            overflow = int(file.read())
        if uid != overflow:
            return True
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return " ".join(file.read().split()) == _ALL_USERS
    except (OSError, ValueError):
        return False


def same_user(connection: socket.socket) -> bool:
    """Return whether the process at the other end of a connected Unix socket is surely one of the same user."""
    _, uid, _ = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return uid % (1 << 32) == os.geteuid() and users_can_be_told_apart()
