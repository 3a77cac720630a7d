"""The processes behind a testbed: the supervisor, a keeper and a host process per host, and the processes of a host.

::

    the user's process ---------------------------- started by it, single-threaded, fresh
      |  control socket of the supervisor                  v
      |                                             supervisor: user namespace, switch's network namespace, the wiring
      |                                             |-- relay: only on a wire with a delay; forwards all frames
      |  control socket of host i                     |-- keeper i: joins host i's network namespace, waits for host i
      +---------------------------------------------------- host i: process 1 of a PID namespace; starts and reaps
                                                            |-- requested processes (and their children)

Invariant: every process dies with its parent.

- The supervisor ends when its control socket is closed, or when a pidfd reports the end of the user's process. Both are
  needed, because a forked child may still hold the socket.
- The kernel ends a keeper when the supervisor dies, and a host when its keeper dies (PR_SET_PDEATHSIG).
- A host is process 1 of its PID namespace, so the kernel kills all processes in it when the host ends.
- Interfaces disappear with their namespaces, so nothing remains.

A request to start a process is a small message on the host's control socket. Attached file descriptors are, in order:

- the *channel*, over which the new process receives its task and replies,
- the *status* socket, on which the host reports the process number and the exit status,
- the three standard streams,
- the descriptors to pass on.

This module imports nothing of viakit but its four siblings and :mod:`viakit.base.process`.
:mod:`viakit.testbed.namespaces` gives the reason.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import time
import traceback
from typing import Any, NoReturn

from viakit.base.process import end_with_parent

from . import namespaces as ns
from .delay import Relay
from .netlink import RouteSocket
from .process import be_process

MAX_FDS = 64  # descriptors to pass on, besides the five of every request; the kernel's limit is 253 in all
_STOP_DEADLINE_S = 5.0
_ETHERNET_HEADER = 14
_SUPER_FRAME = 65536 + 128  # longest frame of a sender with segmentation offload, with its headers


# --- The supervisor -------------------------------------------------------------------------------------------------


class _Plan:
    """The request of the user's process; Testbed.open documents the keys."""

    def __init__(self, message: bytes) -> None:
        plan = json.loads(message)
        self.parent: int = plan["parent"]
        self.mtu: int = plan["mtu"]
        self.tbf: dict[str, int] | None = plan["tbf"]
        self.offload: bool = plan["offload"]
        self.tcp_options: bool = plan["tcp_options"]
        self.delay_ns: int | None = plan["delay_ns"]
        self.hosts: list[dict[str, Any]] = plan["hosts"]  # name, address, prefix, mac, fd of its control socket

    @property
    def switched(self) -> bool:
        """Whether a switch joins the hosts. Two hosts without a rate limit or a delay are joined by one wire."""
        return len(self.hosts) > 2 or self.tbf is not None or self.relayed

    @property
    def relayed(self) -> bool:
        """Whether the switch is a relay, which delays frames, instead of the kernel's bridge."""
        return self.delay_ns is not None and len(self.hosts) > 1

    @property
    def longest(self) -> int:
        """Length of the longest frame. With offloads TCP and via-eth send super-frames of up to 64 KiB."""
        frame = self.mtu + _ETHERNET_HEADER
        return max(frame, _SUPER_FRAME) if self.offload else frame

    def names(self) -> dict[str, str]:
        """Return the address of each host by its name."""
        return {host["name"]: host["address"] for host in self.hosts}


def main(control_fd: int) -> None:
    """Run the supervisor: read the plan, build the network, fork the hosts, and serve until the user's process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the user's process handles Ctrl-C
    control = socket.socket(fileno=control_fd)
    try:
        plan = _Plan(control.recv(1 << 20))
        parent_fd = ns.pidfd_open(plan.parent)
        net_fds, routes = _build(plan)
        inherited = [control, *routes]
        relay = _start_relay(plan, net_fds, inherited) if plan.relayed else None
        keepers = [_fork_keeper(i, plan, net_fds, inherited) for i in range(len(plan.hosts))]
        for fd in net_fds + [host["fd"] for host in plan.hosts]:
            os.close(fd)
        answer: dict[str, Any] = {"pids": [pid for _, pid in keepers]}
    except ns.Refused as error:
        answer = {"refused": [error.step, error.errno]}
    except Exception:
        answer = {"error": traceback.format_exc(limit=4)}
    try:
        control.send(json.dumps(answer).encode())
    except OSError:
        pass  # the user's process has ended meanwhile; the hosts are removed below
    if "pids" in answer:
        _keep(control, plan, parent_fd, [keeper for keeper, _ in keepers], routes, relay)


def _start_relay(plan: _Plan, net_fds: list[int], inherited: list[Any]) -> Relay:
    """Start the process that forwards frames between the ports of the switch."""

    def release() -> None:
        for item in inherited:
            item.close()
        for fd in net_fds + [host["fd"] for host in plan.hosts]:
            os.close(fd)

    ports = [(f"port{i}", _mac(host)) for i, host in enumerate(plan.hosts)]
    return Relay(ports, plan.delay_ns or 0, plan.longest, release)


def _mac(host: dict[str, Any]) -> bytes:
    """Return the MAC address of a planned host."""
    return bytes.fromhex(host["mac"].replace(":", ""))


def _build(plan: _Plan) -> tuple[list[int], list[RouteSocket]]:
    """Create a network namespace for each host and one for the switch, and connect them. Ends in that of the switch.

    Returns the file descriptors of the hosts' namespaces, and a route socket in each namespace, the switch's last.
    """
    ns.gain_network_rights()
    net_fds, routes = [], []
    for i in range(len(plan.hosts) + 1):
        if i > 0:
            try:
                ns.unshare(ns.CLONE_NEWNET)
            except OSError as error:
                raise ns.Refused("net", error.errno or 0) from None
        _forbid_ipv6_chatter()
        if not plan.tcp_options:
            _forbid_tcp_options()
        net_fds.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        routes.append(RouteSocket())
    _wire(plan, net_fds, routes)
    os.close(net_fds.pop())
    return net_fds, routes


def _forbid_ipv6_chatter() -> None:
    """Disable IPv6 on future interfaces, because it would send frames of its own. The loopback keeps ::1."""
    try:
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
            file.write("1")
    except OSError:
        pass  # no IPv6, or a container that forbids the change: a few more frames, and no other effect


def _forbid_tcp_options() -> None:
    """Switch off window scaling and time stamps for the TCP of this network namespace."""
    with _Step("options"):
        for name in ("tcp_window_scaling", "tcp_timestamps"):
            with open(f"/proc/sys/net/ipv4/{name}", "w") as file:
                file.write("0")


def _wire(plan: _Plan, net_fds: list[int], routes: list[RouteSocket]) -> None:
    """Connect the hosts and configure each: MTU, address, neighbours, rate limit."""
    switch, switch_fd = routes[-1], net_fds[-1]
    hosts = plan.hosts
    macs = [_mac(host) for host in hosts]
    bridge = "switch" if plan.switched and not plan.relayed else None
    if bridge:
        with _Step("bridge"):
            switch.add_bridge("switch", b"\x02VIA\xff\x00", plan.mtu)
            switch.set_link("switch")
    with _Step("veth"):
        if plan.switched:
            for i, mac in enumerate(macs):
                port_mac = b"\x02VIA\xfe" + bytes([i + 1])
                switch.add_veth([("eth0", mac, net_fds[i]), (f"port{i}", port_mac, switch_fd)], plan.mtu)
                switch.set_link(f"port{i}", bridge=bridge)
        elif len(hosts) == 2:
            switch.add_veth([("eth0", macs[0], net_fds[0]), ("eth0", macs[1], net_fds[1])], plan.mtu)
    if plan.tbf is not None:
        # The limit is at the egress of the switch. On a host's own interface a raw socket that bypasses the queueing
        # discipline, as viakit's does, would also bypass the limit.
        with _Step("tbf"):
            for i in range(len(hosts)):
                switch.add_tbf(f"port{i}", **plan.tbf)
    if not plan.offload:
        with _Step("offload"):
            for route in routes:
                for link in route.links():
                    route.disable_offloads(link["name"])
    for route, host in zip(routes, hosts, strict=False):
        alone = len(hosts) == 1
        route.set_link("lo", mtu=plan.mtu if alone else None)
        if not alone:
            route.set_link("eth0")
        route.add_address(host["interface"], host["address"], 32 if alone else host["prefix"])
        others = [(other["address"], mac) for other, mac in zip(hosts, macs, strict=True) if other is not host]
        route.add_neighbours(host["interface"], others)


class _Step:
    """Convert an OSError of the block to ns.Refused with the name of the step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ns.Refused(self.name, error.errno or 0) from error


def _keep(
    control: socket.socket,
    plan: _Plan,
    parent_fd: int | None,
    keepers: list[int],
    routes: list[RouteSocket],
    relay: Relay | None,
) -> None:
    """Serve the user's process until it closes the control socket or ends. Then stop every host.

    If the relay dies, no frame passes any more. The hosts are stopped then, so that their programs fail at once.
    """
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if parent_fd is not None:
        poll.register(parent_fd, select.POLLIN)
    relay_fd = ns.pidfd_open(relay.pid) if relay is not None else None
    if relay_fd is not None:
        poll.register(relay_fd, select.POLLIN)
    # Without a pidfd the end of a process is noticed when the poll times out, after 500 ms at most.
    limit_ms = 500 if parent_fd is None or (relay is not None and relay_fd is None) else None
    while os.getppid() == plan.parent:
        ready = [fd for fd, _ in poll.poll(limit_ms)]
        if parent_fd in ready:
            break
        if relay is not None and any(keepers) and not relay.running():
            _stop([keeper for keeper in keepers if keeper])
            keepers[:] = [0] * len(keepers)
            if relay_fd is not None:
                poll.unregister(relay_fd)
        if control.fileno() in ready:
            try:
                message = control.recv(4096)
                if not message:
                    break
                control.send(json.dumps(_answer(json.loads(message), keepers, routes, relay)).encode())
            except OSError:
                break
    _stop([keeper for keeper in keepers if keeper])
    if relay is not None:
        relay.stop()


def _answer(
    request: dict[str, Any], keepers: list[int], routes: list[RouteSocket], relay: Relay | None
) -> dict[str, Any]:
    """Serve one request of the user's process: kill a host, or report the state of the network."""
    try:
        if "kill" in request:
            i = request["kill"]
            if keepers[i]:
                _stop([keepers[i]])
                keepers[i] = 0
            return {}
        return {"networks": [_state(route) for route in routes], "relay": relay.describe() if relay else None}
    except OSError as error:
        return {"error": str(error)}


def _state(route: RouteSocket) -> dict[str, Any]:
    """Return interfaces, their active offloads, and queueing disciplines of one network namespace."""
    links = route.links()
    offloads = {link["name"]: route.offloads(link["name"]) for link in links if link["name"] != "lo"}
    return {"links": links, "offloads": offloads, "qdiscs": route.qdiscs()}


def _stop(keepers: list[int]) -> None:
    """End keepers, and thereby their hosts, and wait until they have ended; after a deadline, by SIGKILL."""
    for keeper in keepers:
        os.kill(keeper, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_DEADLINE_S
    for keeper in keepers:
        while os.waitpid(keeper, os.WNOHANG)[0] == 0:
            if time.monotonic() > deadline:
                os.kill(keeper, signal.SIGKILL)
                os.waitpid(keeper, 0)
                break
            time.sleep(0.001)


# --- The keeper -----------------------------------------------------------------------------------------------------


def _fork_keeper(i: int, plan: _Plan, net_fds: list[int], inherited: list[Any]) -> tuple[int, int]:
    """Fork keeper `i` and, below it, host `i`; return the process numbers of both.

    `inherited` are the supervisor's own sockets. The new processes close them as objects. Otherwise an object would
    remain that later closes a file descriptor number that belongs to another object by then.
    """
    supervisor = os.getpid()
    ready_r, ready_w = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        # A function called on the host ends by SystemExit, which passes through here, so its interpreter ends normally.
        os.close(ready_r)
        try:
            for item in inherited:
                item.close()
            fds = [host["fd"] for host in plan.hosts] + net_fds
            _be_keeper(plan.hosts[i], plan.names(), supervisor, net_fds[i], ready_w, fds)
        except OSError as error:
            os.write(ready_w, struct.pack("=ii", -1, error.errno or 0))
            os._exit(1)
    os.close(ready_w)
    with open(ready_r, "rb") as pipe:
        message = pipe.read(8)  # returns at once if the keeper dies
    pid, number = struct.unpack("=ii", message) if len(message) == 8 else (-1, 0)
    if pid < 0:
        os.waitpid(keeper, 0)
        raise ns.Refused("host", number)
    return keeper, pid


def _be_keeper(
    host: dict[str, Any], names: dict[str, str], supervisor: int, net_fd: int, ready_w: int, fds: list[int]
) -> NoReturn:
    """Enter the host's namespaces, fork the host, and wait for its end. Raises OSError if a namespace is refused."""
    end_with_parent()
    if os.getppid() != supervisor:
        os._exit(1)  # the supervisor died before PR_SET_PDEATHSIG took effect
    ns.setns(net_fd, ns.CLONE_NEWNET)
    # A PID namespace is entered by the next child, not by the caller: hence a keeper and a host.
    ns.unshare(ns.CLONE_NEWPID | ns.CLONE_NEWNS | ns.CLONE_NEWUTS)
    pid = os.fork()
    if pid == 0:
        end_with_parent()
        for fd in [ready_w, *(fd for fd in fds if fd != host["fd"])]:
            os.close(fd)
        try:
            _Host(host, names).serve()
        except Exception:
            traceback.print_exc()  # not expected; the host ends, and its user gets an error
            os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: _kill_quietly(pid))
    os.write(ready_w, struct.pack("=ii", pid, 0))
    for fd in [ready_w, *fds]:
        os.close(fd)
    os.waitpid(pid, 0)
    os._exit(0)


def _kill_quietly(pid: int) -> None:
    """Send SIGKILL to a process that may already have ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# --- The host -------------------------------------------------------------------------------------------------------


class _Host:
    """Process 1 of a host: starts requested processes, reports how they ended, and reaps orphans."""

    def __init__(self, host: dict[str, Any], names: dict[str, str]) -> None:
        self.control = socket.socket(fileno=host["fd"])
        self.children: dict[int, tuple[int, socket.socket]] = {}  # process number here -> (id, status socket)
        _set_up_host(host["name"], names)
        # The end of a child writes a byte to this pipe, so that one poll waits for requests and ends.
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve(self) -> NoReturn:
        """Serve until the control socket is closed. Returns only in children, by SystemExit."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_r, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self.wake_r in ready:
                os.read(self.wake_r, 4096)
                self._reap()
            if self.control.fileno() in ready:
                try:
                    message, fds, _, _ = socket.recv_fds(self.control, 4096, 5 + MAX_FDS, socket.MSG_CMSG_CLOEXEC)
                except OSError:
                    message = b""
                if not message:
                    os._exit(0)  # then the kernel ends all processes of this host
                request = json.loads(message)
                if "spawn" in request:
                    self._spawn(request["spawn"], fds)
                else:
                    self._signal(**request)

    def _spawn(self, ident: int, fds: list[int]) -> None:
        """Fork a process. Report its number, as seen by the user's process, over its status socket."""
        channel_fd, status_fd, *rest = fds
        status = socket.socket(fileno=status_fd)
        try:
            pid = os.fork()
        except OSError as error:
            status.send(json.dumps({"error": f"fork: {error}"}).encode())
            status.close()
        else:
            if pid == 0:
                status.close()
                self._drop_host_state()
                be_process(socket.socket(fileno=channel_fd), rest)
            self.children[pid] = (ident, status)
            # The number is sent as a credential: the kernel translates it into the receiver's PID namespace.
            credentials = struct.pack("=iII", pid, os.geteuid(), os.getegid())
            try:
                status.sendmsg([b'{"started": true}'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
            except OSError:
                pass  # the requesting process has ended; the new one is killed with the host
        for fd in (channel_fd, *rest):
            os.close(fd)

    def _drop_host_state(self) -> None:
        """Release the host's resources in a new child, and reset signals to their defaults."""
        signal.set_wakeup_fd(-1)
        for name in ("SIGCHLD", "SIGTERM", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.control.close()
        os.close(self.wake_r)
        os.close(self.wake_w)
        for _, status in self.children.values():
            status.close()
        # A process group of its own, to be signalled as one, but not a session: Linux distributes cores by session
        # first (autogroups), and between sessions sched_yield() has no effect.
        os.setpgid(0, 0)

    def _reap(self) -> None:
        """Reap every child that has ended, including orphans, and report those that were requested."""
        while True:
            try:
                pid, wait_status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.children:
                _, status = self.children.pop(pid)
                try:
                    status.send(json.dumps({"ended": os.waitstatus_to_exitcode(wait_status)}).encode())
                except OSError:
                    pass
                status.close()

    def _signal(self, signum: int, ident: int, group: bool) -> None:
        """Signal one of the requested processes, or its whole process group."""
        for pid, (known, _) in self.children.items():
            if known == ident:
                # A process that has just been forked has no group of its own yet.
                for send in (os.killpg, os.kill) if group else (os.kill,):
                    try:
                        send(pid, signum)
                        break
                    except OSError:
                        pass


def _set_up_host(name: str, names: dict[str, str]) -> None:
    """Set the host's name, the names of all hosts, and a /proc of its own processes, as far as the kernel permits."""
    try:
        socket.sethostname(name)
        ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)  # mounts made from here on are visible on this host only
    except OSError:
        return
    _name_hosts(names)
    try:
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    except OSError:
        pass  # containers that hide parts of /proc forbid a new one; /proc then shows the outer processes


def _name_hosts(names: dict[str, str]) -> None:
    """Let the C library resolve the names of the hosts: bind our own files over two of /etc, on this host only.

    The files are in a tmpfs that is mounted for a moment. The bind mounts keep it until the host ends. A file that does
    not exist in /etc cannot be mounted over and is left out.
    """
    files = {
        "/etc/hosts": hosts_file(_read("/etc/hosts"), names),
        "/etc/nsswitch.conf": files_first(_read("/etc/nsswitch.conf")),
    }
    place = next((path for path in ("/tmp", "/var/tmp", "/mnt", "/srv") if os.path.isdir(path)), None)
    try:
        if place is None:
            return
        ns.mount("tmpfs", place, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    except OSError:
        return  # a security module forbids it: only VIPL's name service then resolves the names
    try:
        for path, text in files.items():
            source = os.path.join(place, os.path.basename(path))
            with open(source, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o644)
            if os.path.isfile(path):
                ns.mount(source, path, None, ns.MS_BIND)
        for cache in ("/run/nscd", "/var/run/nscd"):  # a name cache outside would reply before the files are read
            if os.path.isdir(cache):
                ns.mount("tmpfs", cache, "tmpfs", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
                break
    except OSError:
        pass  # a security module forbids it
    finally:
        ns.unmount(place, ns.MNT_DETACH)


def _read(path: str) -> str:
    """Return the text of a file with any bytes; empty if it does not exist."""
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read()
    except OSError:
        return ""


def hosts_file(text: str, names: dict[str, str]) -> str:
    """Return /etc/hosts for a testbed host: `names` first, then the lines of `text` without those names."""
    lines = [f"{address}\t{name}" for name, address in names.items()]
    for line in text.splitlines():
        address, *others = line.partition("#")[0].split() or [""]
        if not names.keys() & set(others):
            lines.append(line)
        elif kept := [other for other in others if other not in names]:
            lines.append("\t".join([address, *kept]))
    return "\n".join(lines) + "\n"


def files_first(text: str) -> str:
    """Return nsswitch.conf with "files" before all other sources of host names, some of which end the search."""
    lines = []
    for line in text.splitlines():
        database, colon, sources = line.partition(":")
        if database.strip() == "hosts" and colon:
            sources = " ".join(["files", *(part for part in sources.partition("#")[0].split() if part != "files")])
            line = f"hosts: {sources}"
        lines.append(line)
    if not any(line.startswith("hosts:") for line in lines):
        lines.append("hosts: files dns")
    return "\n".join(lines) + "\n"
