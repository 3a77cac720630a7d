"""What runs behind a testbed: the warden, one keeper and one host process per host, and what is started on a host.

::

    the user's process ---------------------------- started by it, single-threaded, fresh
      |  control socket of the warden                  v
      |                                             warden: user namespace, switch's network namespace, the wiring
      |  control socket of host i                     |-- keeper i: joins host i's network namespace, waits for host i
      +---------------------------------------------------- host i: process 1 of a PID namespace; starts and buries
                                                            |-- processes asked for (and all they start)

The invariant: every process dies with the one above it. The warden ends when its control socket reports the end of the
user's process, or when that process itself is seen to end (a forked child may still hold the socket). A keeper ends by
the kernel's hand when the warden does (PR_SET_PDEATHSIG), a host when its keeper does, and when a host, being process 1
of its PID namespace, ends, the kernel kills everything in it. Interfaces vanish with the namespaces: nothing is left.

A request to start something is a small message on the host's control socket with file descriptors attached: the
*channel* (over which the new process reads what it shall do, and answers), the *status* socket (on which the host
reports its process number and how it ended), the three standard streams, and those to be passed on.

This module imports nothing of viakit but its two siblings; see :mod:`viakit._testbed_namespaces` for why.
"""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import json
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from types import ModuleType
from typing import Any, NoReturn

from . import _testbed_namespaces as ns
from ._testbed_netlink import RouteSocket

LENGTH = struct.Struct("=Q")
MAX_FDS = 64  # that may be passed on, beyond the five of every request; the kernel itself stops at 253 in all
_STOP_DEADLINE_S = 5.0


# --- The warden -----------------------------------------------------------------------------------------------------


class _Plan:
    """What the user's process asked for; see Testbed.open for the keys."""

    def __init__(self, message: bytes) -> None:
        plan = json.loads(message)
        self.parent: int = plan["parent"]
        self.mtu: int = plan["mtu"]
        self.tbf: dict[str, int] | None = plan["tbf"]
        self.hosts: list[dict[str, Any]] = plan["hosts"]  # name, address, prefix, mac, fd of its control socket

    @property
    def switched(self) -> bool:
        """Two hosts without a rate limit are joined by one wire; everybody else by a switch."""
        return len(self.hosts) > 2 or self.tbf is not None


def main(control_fd: int) -> None:
    """Be the warden: read the plan, build the network, fork the hosts, keep them until the user's process lets go."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the user's process's to answer
    control = socket.socket(fileno=control_fd)
    try:
        plan = _Plan(control.recv(1 << 20))
        parent_fd = ns.pidfd_open(plan.parent)
        net_fds, routes = _build(plan)
        inherited = [control, *routes]
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
        pass  # interrupted meanwhile: there is nobody to tell, and what was made is taken down below
    if "pids" in answer:
        _keep(control, plan, parent_fd, [keeper for keeper, _ in keepers], routes)


def _build(plan: _Plan) -> tuple[list[int], list[RouteSocket]]:
    """Make a network namespace for each host, wire them, and end in one more, the switch's.

    Returns the file descriptors of the hosts' namespaces, and a route socket in each of them and last in the switch's.
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
        net_fds.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        routes.append(RouteSocket())
    _wire(plan, net_fds, routes)
    os.close(net_fds.pop())
    return net_fds, routes


def _forbid_ipv6_chatter() -> None:
    """Let interfaces to come speak no IPv6, which would send frames nobody asked for; the loopback keeps ::1."""
    try:
        with open("/proc/sys/net/ipv6/conf/default/disable_ipv6", "w") as file:
            file.write("1")
    except OSError:
        pass  # no IPv6 here, or a container that forbids: a few frames more, and nothing else


def _wire(plan: _Plan, net_fds: list[int], routes: list[RouteSocket]) -> None:
    """Join the hosts and configure each: MTU, address, neighbours, rate limit."""
    switch, switch_fd = routes[-1], net_fds[-1]
    hosts = plan.hosts
    macs = [bytes.fromhex(host["mac"].replace(":", "")) for host in hosts]
    if plan.switched:
        with _Step("bridge"):
            switch.add_bridge("switch", b"\x02VIA\xff\x00", plan.mtu)
            switch.set_link("switch")
    with _Step("veth"):
        if plan.switched:
            for i, mac in enumerate(macs):
                port_mac = b"\x02VIA\xfe" + bytes([i + 1])
                switch.add_veth([("eth0", mac, net_fds[i]), (f"port{i}", port_mac, switch_fd)], plan.mtu)
                switch.set_link(f"port{i}", bridge="switch")
        elif len(hosts) == 2:
            switch.add_veth([("eth0", macs[0], net_fds[0]), ("eth0", macs[1], net_fds[1])], plan.mtu)
    if plan.tbf is not None:
        # The limit sits where frames leave the switch: on a host's own interface, a raw socket that bypasses the
        # queueing discipline, as viakit's does, would also bypass the limit.
        with _Step("tbf"):
            for i in range(len(hosts)):
                switch.add_tbf(f"port{i}", **plan.tbf)
    for route, host in zip(routes, hosts, strict=False):
        alone = len(hosts) == 1
        route.set_link("lo", mtu=plan.mtu if alone else None)
        if not alone:
            route.set_link("eth0")
        route.add_address(host["interface"], host["address"], 32 if alone else host["prefix"])
        others = [(other["address"], mac) for other, mac in zip(hosts, macs, strict=True) if other is not host]
        route.add_neighbours(host["interface"], others)


class _Step:
    """Turn an OSError of the block into ns.Refused with the name of the step."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError):
            raise ns.Refused(self.name, error.errno or 0) from error


def _keep(
    control: socket.socket, plan: _Plan, parent_fd: int | None, keepers: list[int], routes: list[RouteSocket]
) -> None:
    """Serve the user's process until it closes the control socket or ends; then bury every host."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if parent_fd is not None:
        poll.register(parent_fd, select.POLLIN)
    while os.getppid() == plan.parent:
        # Without a pidfd the end of the parent is seen, at the latest, when the poll's time is up.
        ready = [fd for fd, _ in poll.poll(None if parent_fd is not None else 500)]
        if parent_fd in ready:
            break
        if control.fileno() in ready:
            try:
                message = control.recv(4096)
                if not message:
                    break
                control.send(json.dumps(_answer(json.loads(message), keepers, routes)).encode())
            except OSError:
                break
    _stop([keeper for keeper in keepers if keeper])


def _answer(request: dict[str, Any], keepers: list[int], routes: list[RouteSocket]) -> dict[str, Any]:
    """Do one thing for the user's process: kill a host, or tell how the network stands."""
    try:
        if "kill" in request:
            i = request["kill"]
            if keepers[i]:
                _stop([keepers[i]])
                keepers[i] = 0
            return {}
        return {"networks": [{"links": route.links(), "qdiscs": route.qdiscs()} for route in routes]}
    except OSError as error:
        return {"error": str(error)}


def _stop(keepers: list[int]) -> None:
    """End keepers, and thereby their hosts, and wait until they are buried; after a deadline, by SIGKILL."""
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

    `inherited` holds the warden's own sockets: the new processes close them, as objects, so that no object is left
    behind that believes to own a file descriptor which by then is somebody else's.
    """
    warden = os.getpid()
    ready_r, ready_w = os.pipe()
    keeper = os.fork()
    if keeper == 0:
        # A function called on the host ends by SystemExit, up through here, so that its interpreter ends as any does.
        os.close(ready_r)
        try:
            for item in inherited:
                item.close()
            _be_keeper(plan.hosts[i], warden, net_fds[i], ready_w, [host["fd"] for host in plan.hosts] + net_fds)
        except OSError as error:
            os.write(ready_w, struct.pack("=ii", -1, error.errno or 0))
            os._exit(1)
    os.close(ready_w)
    with open(ready_r, "rb") as pipe:
        message = pipe.read(8)  # ends at once if the keeper dies
    pid, number = struct.unpack("=ii", message) if len(message) == 8 else (-1, 0)
    if pid < 0:
        os.waitpid(keeper, 0)
        raise ns.Refused("host", number)
    return keeper, pid


def _be_keeper(host: dict[str, Any], warden: int, net_fd: int, ready_w: int, fds: list[int]) -> NoReturn:
    """Enter the host's namespaces, fork the host, and wait for its end. Raises OSError where a namespace is refused."""
    ns.die_with_parent(signal.SIGKILL)
    if os.getppid() != warden:
        os._exit(1)  # the warden died before the kernel knew that we wish to follow it
    ns.setns(net_fd, ns.CLONE_NEWNET)
    # A PID namespace is entered by the next child, not by the caller: that is why there are a keeper and a host.
    ns.unshare(ns.CLONE_NEWPID | ns.CLONE_NEWNS | ns.CLONE_NEWUTS)
    pid = os.fork()
    if pid == 0:
        ns.die_with_parent(signal.SIGKILL)
        for fd in [ready_w, *(fd for fd in fds if fd != host["fd"])]:
            os.close(fd)
        try:
            _Host(host).serve()
        except Exception:
            traceback.print_exc()  # cannot happen; if it does, the host ends, and its user is told that it is gone
            os._exit(1)
    signal.signal(signal.SIGTERM, lambda *_: _kill_quietly(pid))
    os.write(ready_w, struct.pack("=ii", pid, 0))
    for fd in [ready_w, *fds]:
        os.close(fd)
    os.waitpid(pid, 0)
    os._exit(0)


def _kill_quietly(pid: int) -> None:
    """SIGKILL, which may come just too late."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


# --- The host -------------------------------------------------------------------------------------------------------


class _Host:
    """Process 1 of a host: starts what it is asked to, reports how it ended, and buries orphans."""

    def __init__(self, host: dict[str, Any]) -> None:
        self.control = socket.socket(fileno=host["fd"])
        self.children: dict[int, tuple[int, socket.socket]] = {}  # process number here -> (id, status socket)
        _dress(host["name"])
        # The end of a child writes a byte into this pipe, so that one poll waits for requests and for ends.
        self.wake_r, self.wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self.wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def serve(self) -> NoReturn:
        """Serve until the control socket ends; returns only in children, by SystemExit."""
        poll = select.poll()
        poll.register(self.control, select.POLLIN)
        poll.register(self.wake_r, select.POLLIN)
        while True:
            ready = [fd for fd, _ in poll.poll()]
            if self.wake_r in ready:
                os.read(self.wake_r, 4096)
                self._bury()
            if self.control.fileno() in ready:
                try:
                    message, fds, _, _ = socket.recv_fds(self.control, 4096, 5 + MAX_FDS, socket.MSG_CMSG_CLOEXEC)
                except OSError:
                    message = b""
                if not message:
                    os._exit(0)  # and the kernel ends everything on this host
                request = json.loads(message)
                if "spawn" in request:
                    self._spawn(request["spawn"], fds)
                else:
                    self._signal(**request)

    def _spawn(self, ident: int, fds: list[int]) -> None:
        """Fork a process and report its number, as the user's process sees it, over its status socket."""
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
                self._let_go()
                _be_process(socket.socket(fileno=channel_fd), rest)
            self.children[pid] = (ident, status)
            # The number is sent as a credential: the kernel translates it into the receiver's PID namespace.
            credentials = struct.pack("=iII", pid, os.geteuid(), os.getegid())
            try:
                status.sendmsg([b'{"started": true}'], [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, credentials)])
            except OSError:
                pass  # whoever asked has gone; the process will be killed with the host
        for fd in (channel_fd, *rest):
            os.close(fd)

    def _let_go(self) -> None:
        """In a new child: give up everything that is the host's, and answer signals as any process does."""
        signal.set_wakeup_fd(-1)
        for name in ("SIGCHLD", "SIGTERM", "SIGPIPE", "SIGXFSZ"):
            signal.signal(getattr(signal, name), signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self.control.close()
        os.close(self.wake_r)
        os.close(self.wake_w)
        for _, status in self.children.values():
            status.close()
        # A process group of its own, to be signalled as one. Not a session: Linux deals out cores by sessions first
        # (autogroups), and between those sched_yield() gives nothing away.
        os.setpgid(0, 0)

    def _bury(self) -> None:
        """Collect every child that has ended, orphans too, and report those that were asked for."""
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
        """Signal one of the processes that were asked for, or its whole process group."""
        for pid, (known, _) in self.children.items():
            if known == ident:
                # In its very first moments the process has no group of its own yet.
                for send in (os.killpg, os.kill) if group else (os.kill,):
                    try:
                        send(pid, signum)
                        break
                    except OSError:
                        pass


def _dress(name: str) -> None:
    """Give the host its name, and a /proc that shows its own processes, where the kernel lets us."""
    try:
        socket.sethostname(name)
        ns.mount("none", "/", None, ns.MS_REC | ns.MS_PRIVATE)  # what we mount shall be seen here only
        ns.mount("proc", "/proc", "proc", ns.MS_NOSUID | ns.MS_NODEV | ns.MS_NOEXEC)
    except OSError:
        pass  # containers that hide parts of /proc forbid a fresh one; then /proc shows the outer processes


# --- A process on the host ------------------------------------------------------------------------------------------


def send_object(channel: socket.socket, value: Any) -> None:
    """Send a pickled object, its length before it."""
    data = value if isinstance(value, bytes) else pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    channel.sendall(LENGTH.pack(len(data)))
    channel.sendall(data)


def _receive_object(channel: socket.socket) -> Any:
    """Receive what send_object sent. Raises EOFError if the sender goes away."""
    with channel.makefile("rb") as file:
        head = file.read(LENGTH.size)
        if len(head) == LENGTH.size:
            (length,) = LENGTH.unpack(head)
            data = file.read(length)
            if len(data) == length:
                return pickle.loads(data)
    raise EOFError("the process that asked for this one has gone")


def _be_process(channel: socket.socket, fds: list[int]) -> NoReturn:
    """Become the program, or call the function, that the channel asks for."""
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
            # execvpe names the last file it tried of PATH, which says less than the name that was asked for.
            error.filename = spec["argv"][0] if spec["argv"] and error.filename != spec["cwd"] else spec["cwd"]
        send_object(channel, {"failed": error})
        os._exit(127)
    sys.exit(_call(channel, spec))


def _place_fds(channel: socket.socket, fds: list[int], pass_fds: list[int]) -> socket.socket:
    """Put the streams at 0, 1, 2 and the passed descriptors at the numbers they have in the user's process."""
    targets = [0, 1, 2, *pass_fds]
    above = max(targets) + 1
    # First all of them out of the way, above every target: a target may be the number another one has now.
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
    """Call a function and send back what it returns or raises; returns the exit status of the process."""
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
    """Make importable a module that only its file can give: the user's script, or a test file outside sys.path."""
    if name != "__main__":
        try:
            importlib.import_module(name)
            return
        except ImportError:
            pass
    # The script is not to run its `if __name__ == "__main__":` part again, so it is loaded by another name.
    spec = importlib.util.spec_from_file_location("__viakit_main__" if name == "__main__" else name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file, so module {name} cannot be loaded on the host")
    for i in [i for i, letter in enumerate(name) if letter == "."]:
        parent = sys.modules.setdefault(name[:i], ModuleType(name[:i]))  # pickle imports the packages above it first
        parent.__path__ = getattr(parent, "__path__", [])
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = sys.modules[spec.name] = module
    os.environ["VIAKIT_LOADING_MAIN"] = path  # Testbed.open refuses while this stands: the script would never end
    spec.loader.exec_module(module)
    del os.environ["VIAKIT_LOADING_MAIN"]


def _pack_error(error: BaseException) -> bytes:
    """Pickle an exception with its traceback as text; one that cannot be pickled goes as text alone."""
    trace = error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, trace.tb_next if trace else None))
    try:
        data = pickle.dumps({"raised": error, "traceback": text}, protocol=pickle.HIGHEST_PROTOCOL)
        pickle.loads(data)  # some pickle well and cannot be read back
        return data
    except Exception:
        return pickle.dumps({"raised": None, "traceback": text})
