"""System calls that create namespaces, and explanations of refusals.

A *namespace* gives a process its own copy of a global resource of the kernel: its own network interfaces
(``CLONE_NEWNET``), its own process numbers (``CLONE_NEWPID``), its own mounts and host name. An ordinary user may
create them inside a *user namespace* (``CLONE_NEWUSER``). There the user has every capability over the new namespaces,
and none over anything else. In this way :mod:`viakit.testbed` gets raw sockets without root.

All functions are plain libc calls through :mod:`ctypes`: ``os.unshare`` exists only from Python 3.12, and programs
such as ``unshare`` or ``ip`` need not be installed. The module imports nothing of viakit, because it also runs in a
process that must stay single-threaded. NumPy, for example, would start the threads of its linear algebra library, and
the kernel refuses a user namespace to a process with several threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from dataclasses import dataclass

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
MNT_DETACH = 2
CAP_SYS_ADMIN = 21
SYS_PIDFD_OPEN = 434  # the same number on every architecture

_libc = ctypes.CDLL(None, use_errno=True)


class Refused(OSError):
    """The kernel refused one step of creating a host; ``step`` is a key of :data:`STEPS`."""

    def __init__(self, step: str, number: int) -> None:
        super().__init__(number, f"{STEPS[step]}: {os.strerror(number)}")
        self.step = step


#: The steps that a kernel or an administrator may refuse, with their names in error messages.
STEPS = {
    "user": "making a user namespace",
    "map": "becoming root inside the user namespace",
    "net": "making a network namespace",
    "host": "making the process, mount and host-name namespaces of a host",
    "veth": "making a pair of virtual Ethernet interfaces (veth)",
    "bridge": "making a software bridge",
    "tbf": "setting a rate limit (token bucket filter, tbf)",
    "offload": "switching off an interface's offloads (ethtool)",
    "relay": "opening the packet sockets of the relay that delays frames",
    "options": "switching off TCP's window scaling and time stamps (sysctl)",
}


def _check(result: int) -> int:
    """Raise OSError if *result* is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def unshare(flags: int) -> None:
    """Move the calling process into new namespaces of the kinds in `flags` (CLONE_NEW...). Raises OSError."""
    _check(_libc.unshare(ctypes.c_int(flags)))


def setns(fd: int, flags: int) -> None:
    """Move the calling process into the namespace of `fd`, an open /proc/PID/ns/... file. Raises OSError."""
    _check(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)))


def mount(source: str, target: str, kind: str | None, flags: int) -> None:
    """Call mount(2) without data. Raises OSError."""
    kind_bytes = None if kind is None else kind.encode()
    _check(_libc.mount(source.encode(), target.encode(), kind_bytes, ctypes.c_ulong(flags), None))


def unmount(target: str, flags: int) -> None:
    """Call umount2(2). Raises OSError."""
    _check(_libc.umount2(target.encode(), ctypes.c_int(flags)))


def pidfd_open(pid: int) -> int | None:
    """Return a descriptor that becomes readable when process `pid` ends, or None on kernels older than 5.3."""
    fd = _libc.syscall(ctypes.c_long(SYS_PIDFD_OPEN), ctypes.c_int(pid), ctypes.c_uint(0))
    return None if fd < 0 else fd


def has_admin_capability() -> bool:
    """Return whether this process has CAP_SYS_ADMIN, so that it needs no user namespace."""
    for line in (read_setting("/proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> CAP_SYS_ADMIN & 1)
    return False


def enter_user_namespace() -> None:
    """Enter a new user namespace as root: the caller's user and group, and no others, are mapped to 0.

    Files created inside belong to the caller outside, and the caller's rights over files do not change.

    Raises
    ------
    Refused
        With step "user" or "map".
    """
    uid, gid = os.geteuid(), os.getegid()
    try:
        unshare(CLONE_NEWUSER)
    except OSError as error:
        raise Refused("user", error.errno or errno.EPERM) from None
    try:
        # The kernel requires setgroups=deny first: a process that drops a group might open a file denied to the group.
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    except OSError as error:
        raise Refused("map", error.errno or errno.EPERM) from None


def gain_network_rights() -> bool:
    """Enter a new network namespace, inside a new user namespace unless this process has the capability without it.

    Returns
    -------
    bool
        True if a user namespace was needed.

    Raises
    ------
    Refused
        With step "user", "map" or "net".
    """
    if has_admin_capability():
        try:
            unshare(CLONE_NEWNET)
            return False
        except OSError:
            pass  # a container may grant the capability and still filter the call: use a user namespace
    enter_user_namespace()
    try:
        unshare(CLONE_NEWNET)
    except OSError as error:
        raise Refused("net", error.errno or errno.EPERM) from None
    return True


def read_setting(path: str) -> str | None:
    """Return the text of a small file of /proc or /sys without surrounding space, or None if it cannot be read."""
    try:
        with open(path) as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return None


@dataclass(frozen=True)
class Refusal:
    """Reason for a refused namespace: the setting that causes it, an explanation, and a remedy."""

    setting: str
    why: str
    remedy: str


_CONTAINER_REMEDY = (
    "start the container with: docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined "
    "--cap-add SYS_ADMIN --cap-add NET_ADMIN ... (podman: the same options)"
)
_LIMITS = {"user": "user", "map": "user", "net": "net", "host": "pid"}


def _explain_limit(step: str, read: Callable[[str], str | None]) -> Refusal:
    """Explain ENOSPC and EUSERS: a limit of namespaces is exhausted or 0."""
    kinds = [_LIMITS.get(step, "user"), *(("mnt", "uts") if step == "host" else ())]
    limits = {kind: read(f"/proc/sys/user/max_{kind}_namespaces") for kind in kinds}
    kind = next((kind for kind, limit in limits.items() if limit == "0"), kinds[0])
    setting = f"user.max_{kind}_namespaces"
    if limits[kind] == "0":
        why = f"{setting} is 0: no process on this machine may create one"
    else:
        why = f"the limit {setting} = {limits[kind] or 'unknown'} is used up, or namespaces are nested 32 deep"
    remedy = f"sudo sysctl -w {setting}=15000   (for good: the same line in /etc/sysctl.d/99-viakit.conf)"
    return Refusal(setting, why, remedy)


def explain_refusal(step: str, number: int, read: Callable[[str], str | None] = read_setting) -> Refusal:
    """Find the setting behind a refused step.

    Parameters
    ----------
    step
        A key of :data:`STEPS`.
    number
        The errno with which the kernel refused.
    read
        Function that reads a file of /proc; tests replace it.
    """
    if step in ("veth", "bridge", "tbf") and number in (errno.EOPNOTSUPP, errno.ENOENT, errno.ENODEV, errno.EINVAL):
        module = {"veth": "veth", "bridge": "bridge", "tbf": "sch_tbf"}[step]
        return Refusal(f"kernel module {module}", "this kernel offers none", f"sudo modprobe {module}")
    if step == "relay" and number in (errno.ENOMEM, errno.ENOBUFS):
        return Refusal("memory", "the kernel has no room for the rings of the relay", "free memory, or use fewer hosts")
    if number in (errno.ENOSPC, errno.EUSERS):
        return _explain_limit(step, read)
    if number in (errno.EINVAL, errno.ENOSYS):
        why = "this kernel was built without it, or the sandbox around this process hides it"
        return Refusal("kernel option CONFIG_USER_NS", why, "use a kernel with CONFIG_USER_NS=y, or run as root")
    if read("/proc/sys/kernel/unprivileged_userns_clone") == "0":
        setting = "kernel.unprivileged_userns_clone"
        why = f"{setting} is 0: only root may make user namespaces"
        return Refusal(setting, why, f"sudo sysctl -w {setting}=1")
    if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        setting = "kernel.apparmor_restrict_unprivileged_userns"
        why = f"{setting} is 1 (Ubuntu's default from 23.10): AppArmor takes away all rights inside a user namespace"
        return Refusal(setting, why, f"sudo sysctl -w {setting}=0, or run as root")
    if _seccomp_filtered(read):
        why = "a seccomp filter refuses the call, as Docker's and Podman's default profiles do"
        return Refusal("the container's seccomp filter", why, _CONTAINER_REMEDY)
    if _in_chroot():
        why = "the kernel refuses user namespaces to a process in a chroot"
        return Refusal("chroot", why, "run outside the chroot, or as root with CAP_SYS_ADMIN")
    why = "no setting that viakit knows forbids it, so a security module or a sandbox does"
    return Refusal("a security module or sandbox", why, "ask the administrator of this machine, or run as root")


def _seccomp_filtered(read: Callable[[str], str | None]) -> bool:
    """Return whether a seccomp filter (mode 2) is active in this process."""
    lines = (read("/proc/self/status") or "").splitlines()
    return any(line.split() == ["Seccomp:", "2"] for line in lines)


def _in_chroot() -> bool:
    """Return whether this process is provably in a chroot: its root is not the root of process 1."""
    try:
        here, init = os.stat("/"), os.stat("/proc/1/root/")
    except OSError:
        return False  # an ordinary user may not read the root of process 1, so the question is open
    return (here.st_dev, here.st_ino) != (init.st_dev, init.st_ino)
