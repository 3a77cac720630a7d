"""Machines whose kernel refuses namespaces: the setting, the remedy, and the features that still work."""

from __future__ import annotations

import errno
import platform
import subprocess
import sys
from collections.abc import Callable

import needs
import pytest

from viakit.testbed import NamespaceError, Testbed, TestbedError, namespaces


def settings(**files: str) -> Callable[[str], str | None]:
    """A reader of /proc in which only these settings exist (dots for slashes)."""
    known = {"/proc/sys/" + name.replace("__", "/"): text for name, text in files.items()}
    return known.get


@pytest.mark.parametrize(
    ("number", "read", "setting", "remedy"),
    [
        (errno.ENOSPC, settings(user__max_user_namespaces="0"), "user.max_user_namespaces", "sudo sysctl -w user.max"),
        (errno.ENOSPC, settings(user__max_user_namespaces="7"), "user.max_user_namespaces", "sudo sysctl"),
        (
            errno.EPERM,
            settings(kernel__unprivileged_userns_clone="0"),
            "kernel.unprivileged_userns_clone",
            "sudo sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            errno.EPERM,
            settings(kernel__apparmor_restrict_unprivileged_userns="1", kernel__unprivileged_userns_clone="1"),
            "kernel.apparmor_restrict_unprivileged_userns",
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (errno.EPERM, {"/proc/self/status": "Name: x\nSeccomp:\t2\n"}.get, "seccomp filter", "seccomp=unconfined"),
        (errno.EPERM, settings(), "security module", "run as root"),
        (errno.EINVAL, settings(), "CONFIG_USER_NS", "run as root"),
    ],
)
def test_a_refusal_names_its_setting_and_its_remedy(number, read, setting, remedy):
    refusal = namespaces.explain_refusal("user", number, read)
    assert setting in refusal.setting
    assert remedy in refusal.remedy


def test_a_missing_kernel_module_is_named():
    assert namespaces.explain_refusal("tbf", errno.ENOENT).remedy == "sudo modprobe sch_tbf"


def test_a_refusal_is_a_permission_error_that_says_what_still_works():
    error = NamespaceError("user", errno.EPERM)
    assert isinstance(error, PermissionError)
    assert isinstance(error, TestbedError)
    assert error.errno == errno.EPERM
    assert "links loop and shm" in str(error)
    assert "viakit doctor" in str(error)


def refused_program(preparation: str) -> subprocess.CompletedProcess[str]:
    """Run code that makes the kernel refuse, then open a testbed; the NamespaceError's step and setting are printed."""
    code = f"""
import sys
sys.path[:] = {sys.path!r}
from viakit.testbed import namespaces
from viakit.testbed import NamespaceError, Testbed
{preparation}
try:
    with Testbed(hosts=2):
        print("open")
except NamespaceError as error:
    print(error.step, "|", error.setting)
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_kernel_refuses_when_the_limit_is_nought():
    done = refused_program("""
try:
    namespaces.enter_user_namespace()
    assert open("/proc/self/uid_map").read().split()[2] == "1"  # the limit below is this namespace's alone
    with open("/proc/sys/user/max_net_namespaces", "w") as file:
        file.write("0")
except OSError:
    print("cannot try")
    sys.exit()
""")
    if done.stdout.strip() == "cannot try":
        pytest.skip("this machine refuses user namespaces, or the setting in them")
    assert done.stdout.strip() == "net | user.max_net_namespaces", done.stderr


def test_a_seccomp_filter_like_a_containers_is_recognised():
    number = {"x86_64": 272, "aarch64": 97}.get(platform.machine())
    if number is None:
        pytest.skip("the number of unshare is not known on this machine")
    if any((namespaces.read_setting(f"/proc/sys/kernel/{name}") or good) != good for name, good in (
        ("unprivileged_userns_clone", "1"), ("apparmor_restrict_unprivileged_userns", "0"))):  # fmt: skip
        pytest.skip("another setting refuses first")
    done = refused_program(f"""
import ctypes, struct
# Load the system call's number; if it is unshare, answer EPERM; else allow.
steps = (0x20, 0, 0, 0), (0x15, 0, 1, {number}), (0x06, 0, 0, 0x00050001), (0x06, 0, 0, 0x7FFF0000)
code = b"".join(struct.pack("=HBBI", *step) for step in steps)
buffer = ctypes.create_string_buffer(code, len(code))
program = struct.pack("HP", 4, ctypes.addressof(buffer))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.create_string_buffer(program, len(program)), 0, 0) == 0
""")
    assert done.stdout.strip() == "user | the container's seccomp filter", done.stderr


def test_a_helper_that_cannot_start_is_told(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TestbedError, match=r"server process \(/bin/false\) has ended"):
        Testbed(hosts=2).open()


def test_a_deleted_working_directory_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = """
import os, sys
from viakit.testbed import Testbed, TestbedError
with Testbed(1) as testbed:
    os.rmdir(os.getcwd())
    try:
        testbed.hosts[0].run(["true"])
    except TestbedError as error:
        print(error)
    print(testbed.hosts[0].run(["pwd"], cwd="/").stdout)
"""
    needs.hosts().close()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=gone, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "working directory of this process has been deleted" in done.stdout
    assert "cwd=" in done.stdout
    assert done.stdout.endswith("/\n\n")
