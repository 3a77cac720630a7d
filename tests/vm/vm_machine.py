"""Virtual machines on emulated cables, which OpenSSH reaches with a throw-away key.

A machine is a qemu process with its own kernel. Its root is the host's file system, read-only, with a layer in memory
(init.c), so viakit is the same installation. Each machine has three cards:

    mgmt     virtio-net, the way of ssh: qemu forwards a port of 127.0.0.1
    virtio   virtio-net, one end of a cable
    e1000    Intel's card as qemu emulates it, one end of a second cable

A card has a datagram socket CARD.INDEX in the test's folder and sends to CARD.INDEX.wire. This name is a link to where
the cable leads: to the card of the other machine or, once there are three, to a port of a switch (vm_switch.py). So a
cable can be put elsewhere while its machine runs. Times that are measured here are those of an emulation: the tests
check what arrives and which errors are reported, and no figure is taken from them.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vm_kernel import Boot

__all__ = [
    "ALL_HOSTS",
    "HOSTS",
    "LIMIT_S",
    "NAMES",
    "PROGRAM",
    "VIAKIT",
    "Cannot",
    "Machine",
    "guest",
    "machines",
    "third_machine",
]

HERE = Path(__file__).resolve().parent
QEMU = "qemu-system-x86_64"
NAMES = ("alpha", "beta", "gamma")
HOSTS = "ssh:alpha,beta"  # the two that always run
ALL_HOSTS = "ssh:" + ",".join(NAMES)
CARDS = {"virtio": "virtio-net-pci", "e1000": "e1000"}  # those on cables, with qemu's names of their models
VIAKIT = Path(sys.executable).with_name("viakit")
LIMIT_S = 280  # of a command: an emulated processor is slow
PROGRAM = """
import os, socket, sys, time
import viakit
comm = viakit.world()
total = comm.allreduce(comm.rank)
names = comm.allgather(socket.gethostname())
if comm.rank == 0:
    print(total, *names, flush=True)
if "wait" in sys.argv:
    print("waits", os.getpid(), flush=True)
    time.sleep(1000)
"""
CPU = "max,-arch-capabilities"  # nested KVM refuses this model-specific register to some hosts
_PROBE_S = 15.0
_AGENT_S = 20.0
_SSHD = """
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
StrictModes no
UsePAM no
UseDNS no
PermitRootLogin yes
PidFile none
MaxStartups 100
PasswordAuthentication no
KbdInteractiveAuthentication no
KexAlgorithms curve25519-sha256
"""
_CLIENT = """
Host {name}
    HostName 127.0.0.1
    Port {port}
    User root
    HostKeyAlias {name}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    StrictHostKeyChecking no
    LogLevel ERROR
"""
_SHARED = "    ControlPath {folder}/{name}.ssh\n"  # one connection for all commands: a handshake takes seconds here


class Cannot(RuntimeError):
    """A machine did not boot here."""


class Machine:
    """One virtual machine.

    Parameters
    ----------
    index : int
        Which of NAMES it is.
    folder : Path
        Folder of the host that the machine shares, with the keys and the sockets.
    boot : Boot
        Kernel and RAM disk.
    accelerator : str
        "kvm" or "tcg".
    """

    def __init__(self, index: int, folder: Path, boot: Boot, accelerator: str) -> None:
        self.name, self.folder, self.accelerator = NAMES[index], folder, accelerator
        self.console = folder / f"{self.name}.console"
        self._ssh: subprocess.Popen | None = None
        self._monitor: socket.socket | None = None
        self._replies: Any = None
        # An earlier machine of this name has left these files: its console says that it is ready.
        for name in (self.console.name, f"{self.name}.log", f"{self.name}.qmp"):
            (folder / name).unlink(missing_ok=True)
        words = ["setpriv", "--pdeathsig", "KILL", QEMU, *self._arguments(index, boot, accelerator)]
        with (folder / f"{self.name}.qemu").open("wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _arguments(self, index: int, boot: Boot, accelerator: str) -> list[str]:
        """Return qemu's arguments."""
        folder, name = self.folder, self.name
        cards = [f"mgmt=52:54:00:00:00:{index + 1:02x}=10.1.{index}.15/24"]
        network = f"user,id=mgmt,restrict=on,net=10.1.{index}.0/24,hostfwd=tcp:127.0.0.1:0-10.1.{index}.15:22"
        devices = ["-netdev", network, "-device", f"virtio-net-pci,netdev=mgmt,mac=52:54:00:00:00:{index + 1:02x}"]
        for wire, (card, model) in enumerate(CARDS.items(), 1):
            mac = f"52:54:00:00:{wire:02x}:{index + 1:02x}"
            near = f"{folder}/{card}.{index}"
            ends = f"local.type=unix,local.path={near},remote.type=unix,remote.path={near}.wire"
            devices += ["-netdev", f"dgram,id={card},{ends}", "-device", f"{model},netdev={card},mac={mac}"]
            cards.append(f"{card}={mac}=10.9.{wire}.{index + 1}/24")
        shares = []
        for tag, path, how in (("host", "/", ",readonly=on"), ("share", folder, ",readonly=on")):
            shares += ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{how}"]
            shares += ["-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]
        words = f"vk_script={HERE}/guest.sh vk_share={folder} vk_name={name} vk_cards={','.join(cards)}"
        return [
            *("-name", name, "-machine", "pc", "-accel", accelerator, "-cpu", CPU, "-smp", "1", "-m", "1024"),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-device", "virtio-rng-pci"),
            *("-serial", f"file:{self.console}", "-qmp", f"unix:{folder}/{name}.qmp,server=on,wait=off"),
            *("-kernel", str(boot.kernel), "-initrd", str(boot.disk)),
            *("-append", f"console=ttyS0 loglevel=4 panic=-1 net.ifnames=0 mitigations=off {words}"),
            *devices,
            *shares,
        ]

    def wait(self, deadline: float) -> None:
        """Wait until the machine is ready. Raises Cannot at the *deadline* (time.monotonic) or if qemu ends."""
        while f"vm: {self.name} is ready" not in self.said():
            if self.process.poll() is not None:
                raise Cannot(f"{self.name}: qemu ended with status {self.process.returncode}: {self.said()[-800:]}")
            if time.monotonic() > deadline:
                raise Cannot(f"{self.name} did not boot in time; its console: {self.said()[-800:]!r}")
            time.sleep(0.05)

    def said(self) -> str:
        """Return the messages of qemu and of the console."""
        files = (self.folder / f"{self.name}.qemu", self.console)
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def command(self, execute: str, **arguments: Any) -> Any:
        """Call a command of qemu's monitor (QMP) and return its reply."""
        if self._monitor is None:
            monitor = socket.socket(socket.AF_UNIX)
            monitor.settimeout(20)
            monitor.connect(f"{self.folder}/{self.name}.qmp")
            self._monitor, self._replies = monitor, monitor.makefile("r")
            self._replies.readline()  # the greeting
            self.command("qmp_capabilities")
        self._monitor.sendall(json.dumps({"execute": execute, "arguments": arguments}).encode())
        while True:
            reply = json.loads(self._replies.readline())
            if "event" not in reply:
                break
        if "error" in reply:
            raise RuntimeError(f"{self.name}: {execute}: {reply['error']}")
        return reply["return"]

    def port(self) -> int:
        """Return the port of 127.0.0.1 that leads to the machine's ssh server."""
        table = self.command("human-monitor-command", **{"command-line": "info usernet"})
        (line,) = (line.split() for line in table.splitlines() if "HOST_FORWARD" in line)
        return int(line[3])

    def connect(self) -> None:
        """Open the ssh connection that all commands share."""
        words = ["ssh", "-F", f"{self.folder}/config", "-M", "-N", self.name]
        with (self.folder / f"{self.name}.log").open("wb") as log:
            self._ssh = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait_connected(self, deadline: float) -> None:
        """Wait until the shared connection works. Raises Cannot at the *deadline*, or if ssh ends."""
        assert self._ssh is not None
        while not (self.folder / f"{self.name}.ssh").exists():
            log = (self.folder / f"{self.name}.log").read_text(errors="replace")
            if self._ssh.poll() is not None or time.monotonic() > deadline:
                raise Cannot(f"ssh does not reach {self.name} in time: {log[-400:]}; console: {self.said()[-400:]!r}")
            time.sleep(0.05)

    @contextlib.contextmanager
    def unplugged(self, card: str) -> Iterator[None]:
        """Pull the cable out of a card, and put it back at the end of the block."""
        self.command("set_link", name=card, up=False)
        try:
            yield
        finally:
            self.command("set_link", name=card, up=True)

    def kill(self) -> None:
        """End the machine at once, as if its power failed. Idempotent."""
        self.process.kill()
        self.process.wait(20)
        if self._ssh is not None:
            self._ssh.kill()
            self._ssh.wait(20)
            self._ssh = None
        if self._monitor is not None:
            self._replies.close()
            self._monitor.close()
            self._monitor = None


def guest(machine: Machine, command: str, timeout_s: float = LIMIT_S) -> str:
    """Return the output of a shell command on a machine."""
    ssh = os.environ["VIAKIT_SSH"].split()
    done = subprocess.run([*ssh, machine.name, command], capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def _check_speed(every: list[Machine]) -> None:
    """Raise Cannot if viakit's agents need longer than _AGENT_S to start at once: all time limits would expire."""
    try:
        with concurrent.futures.ThreadPoolExecutor(len(every)) as pool:
            list(pool.map(lambda one: guest(one, f"{sys.executable} -c 'import viakit.remote.agent'", _AGENT_S), every))
    except subprocess.TimeoutExpired:
        raise Cannot(f"emulated processors are too slow here: the agent did not start in {_AGENT_S:g} s") from None


def accelerator(boot: Boot) -> str:
    """Return "kvm" if the processor's own virtualisation runs the kernel here, otherwise "tcg", which emulates.

    A /dev/kvm that opens is not enough: some clouds have one that runs adapted kernels only. Without shares, init.c
    switches the machine off at once, and reports that on the console.
    """
    flags = Path("/proc/cpuinfo").read_text(errors="replace").split()
    if not {"vmx", "svm"} & set(flags) or not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return "tcg"
    words = [
        "-machine",
        "pc",
        "-accel",
        "kvm",
        "-cpu",
        CPU,
        "-m",
        "512",
        "-nodefaults",
        "-no-user-config",
        "-no-reboot",
    ]
    words += ["-display", "none", "-serial", "stdio", "-kernel", str(boot.kernel), "-initrd", str(boot.disk)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [QEMU, *words, "-append", "console=ttyS0 quiet panic=-1"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_S,
        )
        if b"vm: /host" in done.stdout:
            return "kvm"
    return "tcg"


def _configure_ssh(every: list[Machine], folder: Path) -> None:
    """Write the client's configurations: ``config`` shares one connection to each machine, ``alone`` opens new ones."""
    shared = alone = ""
    for one in every:
        text = _CLIENT.format(name=one.name, port=one.port(), folder=folder)
        alone += text
        shared += text + _SHARED.format(name=one.name, folder=folder)
    (folder / "alone").write_text(alone)
    (folder / "config").write_text(shared)


def _reach(new: list[Machine], every: list[Machine], deadline: float) -> None:
    """Wait for *new* machines, and open the ssh connections to them. Raises Cannot at the *deadline*."""
    for machine in new:
        machine.wait(deadline)
    _configure_ssh(every, every[0].folder)
    for machine in new:
        machine.connect()
    for machine in new:
        machine.wait_connected(deadline)


def _plug(folder: Path, card: str, index: int, end: str) -> None:
    """Let the cable of a machine's card lead to another socket of the folder."""
    spare = folder / f"{card}.{index}.spare"
    spare.symlink_to(end)
    spare.replace(folder / f"{card}.{index}.wire")


def _plug_two(folder: Path) -> None:
    """Connect the cards of the first two machines by cables."""
    for card in CARDS:
        for index in range(2):
            _plug(folder, card, index, f"{card}.{1 - index}")


@contextlib.contextmanager
def _switches(folder: Path) -> Iterator[None]:
    """Connect the cards of three machines by a switch per cable; at the end, those of the first two by cables."""
    running = []
    try:
        for card in CARDS:
            ports = [f"{folder}/{card}.{index}.port={folder}/{card}.{index}" for index in range(len(NAMES))]
            words = ["setpriv", "--pdeathsig", "KILL", sys.executable, f"{HERE}/vm_switch.py", *ports]
            running.append(subprocess.Popen(words, stdin=subprocess.DEVNULL))
        for card in CARDS:
            for index in range(len(NAMES)):
                _plug(folder, card, index, f"{card}.{index}.port")
        yield
    finally:
        _plug_two(folder)
        for process in running:
            process.kill()
            process.wait(20)
        for port in folder.glob("*.port"):
            port.unlink()


@contextlib.contextmanager
def machines(folder: Path, boot: Boot, limit_s: float = 60.0) -> Iterator[list[Machine]]:
    """Boot two machines, and set VIAKIT_SSH so that ssh reaches them by their names.

    Parameters
    ----------
    folder : Path
        Empty folder with a short path (names of sockets have at most 107 bytes).
    boot : Boot
        Kernel and RAM disk.
    limit_s : float
        Time limit for the boot.

    Raises
    ------
    Cannot
        If qemu is missing, a machine has not booted at the limit, or it is too slow for the tests.
    """
    if shutil.which(QEMU) is None:
        raise Cannot("missing package qemu-system-x86: sudo apt-get install qemu-system-x86")
    for key in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True, timeout=30)
    (folder / "sshd_config").write_text(_SSHD.format(folder=folder))
    _plug_two(folder)
    how = accelerator(boot)
    deadline = time.monotonic() + limit_s
    both: list[Machine] = []
    before = {name: os.environ.get(name) for name in ("VIAKIT_SSH", "VIAKIT_CUT_S")}
    try:
        os.environ["VIAKIT_SSH"] = f"ssh -F {folder}/config"
        if how != "kvm":
            os.environ["VIAKIT_CUT_S"] = "10"  # the kernel of an emulated machine may stand still for seconds
        both += [Machine(index, folder, boot, how) for index in range(2)]
        _reach(both, both, deadline)
        for machine in both:
            _check_speed([machine])
        yield both
    finally:
        for machine in both:
            machine.kill()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def third_machine(both: list[Machine], boot: Boot, limit_s: float = 60.0) -> Iterator[list[Machine]]:
    """Boot a third machine beside *both*, with a switch on each wire. Raises Cannot as :func:`machines` does."""
    folder = both[0].folder
    with _switches(folder), contextlib.ExitStack() as stack:
        third = Machine(2, folder, boot, both[0].accelerator)
        stack.callback(third.kill)
        _reach([third], [*both, third], time.monotonic() + limit_s)
        _check_speed([*both, third])
        yield [*both, third]
