"""Real machines: processes on hosts that ssh reaches, with the interface of :mod:`viakit.testbed`.

::

    with Remote("ssh:alpha,beta") as remote:
        for host in remote.hosts:
            print(host.name, host.address, host.interface)
        remote.hosts[0].run(["uname", "-a"], timeout=10)

OpenSSH's client is used with the user's own configuration, and never prompts for a password. One ssh process per
host runs :mod:`viakit.remote.agent` there. Control and output pass through its standard streams: no port is opened. The
other host needs viakit in the same version. Every process on it ends with the connection.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import math
import os
import shlex
import sys
import threading
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

import viakit
from viakit.remote import captures, rdma
from viakit.remote.facts import common
from viakit.remote.link import NO_PYTHON, Link, RemoteError
from viakit.remote.mux import limits
from viakit.remote.spec import HERE, Spec, parse
from viakit.testbed import Host
from viakit.testbed.call import HostProcess, TestbedError

__all__ = ["Remote", "RemoteError", "RemoteHost", "Spec", "parse"]


class RemoteHost(Host):
    """A machine that ssh reaches; created by :class:`Remote`.

    Programs are started as on a host of a testbed. This machine's interpreter (as the program) and its folder of viakit
    stand for those of the host. *pass_fds* are connected sockets of this process: the new process inherits the other
    ends of equal ones, under the same numbers. The default of *cwd* is this process's own directory if the host has it,
    otherwise the user's home. *env* adds to the environment that ssh gives there. A lost connection is a RemoteError.

    Attributes
    ----------
    name : str
        Name as given to ssh.
    address : str
        IPv4 address that carries the data.
    interface : str
        Interface with this address.
    mac : str
        MAC address of the interface.
    python, root : str
        Interpreter on that host, and the folder that contains viakit there.
    facts : dict
        Kernel, architecture, Python, number of cores and interfaces of that host.
    environment : dict
        Variables of every process that is started on the host from now on.
    """

    def __init__(self, index: int, name: str, link: Link) -> None:
        self.index, self.name, self.link = index, name, link
        self.facts: dict[str, Any] = link.hello
        self.python: str = link.hello["executable"]
        self.root: str = link.hello["root"]
        self.network = self.address = self.interface = self.mac = ""
        self.pid = -1
        self.environment: dict[str, str] = {}
        self._names = ""
        self._lock = threading.Lock()
        self._n_started = 0

    def __repr__(self) -> str:
        return f"<RemoteHost {self.name} {self.address} {self.interface}>"

    @property
    def trouble(self) -> str | None:  # type: ignore[override]
        """Why the host cannot be used any more; None while it can."""
        return self.link.trouble

    @property
    def device(self) -> str:
        """Name of the NIC that carries a job's data: ``udp:ADDRESS``, or the chosen ``eth:IF`` or ``verbs:IF``."""
        by_interface = self.network in ("eth", "verbs")
        return f"{self.network}:{self.interface}" if by_interface else f"udp:{self.address}"

    @property
    def cores(self) -> list[int]:
        """Cores that processes on this host may use."""
        return list(self.facts["cores"])

    @property
    def place(self) -> tuple[str, str]:
        """Boot of the machine's kernel, and network namespace: equal for two names of one host."""
        return self.facts["boot"], self.facts["netns"]

    def translated(self, argv: Sequence[str]) -> list[str]:
        """Return a command of this machine with the host's interpreter and folder of viakit."""
        program = self.python if argv[0] == sys.executable else argv[0]
        return [program, *(self.root if part == _ROOT else part for part in argv[1:])]

    def _start(
        self, argv: list[str], streams: tuple[Any, Any, Any], *, cwd: Any = None, env: Any = None, **how: Any
    ) -> HostProcess:
        """Start a program as :meth:`viakit.testbed.Host.popen` does. Raises RemoteError if the connection is lost."""
        argv = self.translated(argv)
        where = os.fspath(cwd) if cwd is not None else os.getcwd()
        variables = {**(env or {}), **self.environment}
        return self.link.start(self, argv, streams, how["pass_fds"], where, variables, how["text"])

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Refuse to call a function: another machine need not have its module."""
        raise TestbedError(f"{self.name} is another machine, which runs programs only; use run() or popen()")

    def call(self, function: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any) -> Any:
        """Refuse to call a function: another machine need not have its module."""
        return self.submit(function)

    def query(self, what: str, timeout_s: float = 10.0, **details: Any) -> dict[str, Any]:
        """Send a request to the agent and return its reply. Raises RemoteError after *timeout_s* seconds."""
        return self.link.query({"what": what, **details}, timeout_s)

    def folder(self) -> str:
        """Make a temporary folder on this host, which is removed with the connection, and return its path."""
        return str(self.query("folder", timeout_s=60.0)["folder"])

    def kill(self) -> None:
        """End all processes on this host, and the connection."""
        self.link.close()

    def _environment(self) -> dict[str, str]:
        return {}

    def _send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        self.link.signal(request["ident"], request["signum"], request["group"])


class Remote:
    """Connections to several hosts. Use it as a context manager.

    Parameters
    ----------
    hosts : str or Spec
        ``ssh:a,b``; see :func:`parse`. The name "." is this machine.
    network : str, optional
        What carries the data: "eth:IF" (or "eth:IF0,IF1", an interface for each host), "verbs:DEVICE" (an RDMA
        device or its interface, also one for each host), "udp:ADDRESS" (an address for each host, or one network as
        10.0.0.0/24). Default: the first network that all hosts have in common.
    python : str, optional
        Interpreter with viakit on the other hosts. Default: the path of this one if it exists there, else ``python3``.
    timeout_s : float
        Time limit for all connections.

    Attributes
    ----------
    hosts : list of RemoteHost
    kind : str
        "ssh".
    network : str
        How the data travels, for the result: "udp 10.0.0.1 (eth0), 10.0.0.2 (eth0)".

    Raises
    ------
    RemoteError
        If a host cannot be reached, has no viakit or another version of it, or if no network joins the hosts.
    """

    kind = "ssh"

    def __init__(
        self, hosts: str | Spec, *, network: str | None = None, python: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self.spec = parse(hosts) if isinstance(hosts, str) else hosts
        self._wanted, self._python, self._timeout_s = network, python, timeout_s
        self.hosts: list[RemoteHost] = []
        self.network = ""
        self._captures: list[captures.Captures] = []

    def __enter__(self) -> Remote:
        return self.open()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Remote {self.spec} {'open' if self.hosts else 'closed'}>"

    def open(self, is_cancelled: Callable[[], bool] = lambda: False) -> Remote:
        """Connect to all hosts at once, and choose the network.

        Parameters
        ----------
        is_cancelled : callable, optional
            Called every 50 ms while the hosts do not reply. If it returns True, no connection is left, and
            KeyboardInterrupt is raised.
        """
        links = [Link(name, _command(name, self._python), self._python or "python3") for name in self.spec.names]
        with concurrent.futures.ThreadPoolExecutor(min(32, len(links))) as pool:
            try:
                opening = [pool.submit(link.open, self._timeout_s) for link in links]
                while concurrent.futures.wait(opening, _SLICE_S).not_done:
                    if is_cancelled():
                        raise KeyboardInterrupt
                failed = [error for one in opening if (error := one.result()) is not None]
            except BaseException:
                for link in links:
                    link.abandon()
                try:
                    pool.shutdown(cancel_futures=True)
                finally:
                    for link in links:
                        link.close()
                raise
        if failed:
            for link in links:
                link.close()
            raise failed[0] if len(failed) == 1 else RemoteError("\n".join(str(error) for error in failed))
        self.hosts = [RemoteHost(i, link.name, link) for i, link in enumerate(links)]
        try:
            self._choose_network()
            self._captures = captures.begin(self.hosts)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all processes on all hosts, and the connections. Idempotent.

        The captures of taps (``VIAKIT_TAP``) are fetched before, from processes that have ended.
        """
        hosts, self.hosts = self.hosts, []
        taken, self._captures = self._captures, []
        try:
            for one in taken:
                one.fetch()
        finally:
            with concurrent.futures.ThreadPoolExecutor(max(1, min(32, len(hosts)))) as pool:
                list(pool.map(lambda host: host.link.close(), hosts))

    def describe(self) -> dict[str, Any]:
        """Return the hosts and what joins them, for a result document."""
        about = [{"name": host.name, "address": host.address, "interface": host.interface} for host in self.hosts]
        return {"network": self.network, "hosts": about}

    # ---- the network

    def _choose_network(self) -> None:
        """Give each host its address and interface."""
        wanted, _, which = (self._wanted or "").partition(":")
        if wanted not in ("", "eth", "udp", "tcp", "verbs") or (wanted == "verbs" and not which):
            raise RemoteError(
                f"network {self._wanted!r}; expected eth:IF, verbs:DEVICE, udp:ADDRESS or udp:NETWORK/BITS"
            )
        words = [word.strip() for word in which.split(",")] if which else []
        if words and len(words) not in (1, len(self.hosts)):
            raise RemoteError(
                f"network {self._wanted!r} names {len(words)} for {len(self.hosts)} hosts; expected one, or one each"
            )
        if words:
            for i, host in enumerate(self.hosts):
                self._take_named(host, wanted, words[i % len(words)])
            self._check_named()
        else:
            self._take_common()
        for host in self.hosts:
            host.network = wanted
        places = ", ".join(f"{host.address or 'no address'} ({host.interface})" for host in self.hosts)
        self.network = f"{wanted or 'ip'} {places}"

    def _take_named(self, host: RemoteHost, kind: str, word: str) -> None:
        """Set the interface or address that the user named."""
        if kind == "verbs":
            word = _interface_of(host, word)
        for one in host.facts["interfaces"]:
            address = ipaddress.ip_interface(one["address"]) if one["address"] else None
            if kind in ("eth", "verbs"):
                fits = one["name"] == word
            else:
                try:
                    fits = address is not None and address.ip in ipaddress.ip_network(word, strict=False)
                except ValueError:
                    raise RemoteError(
                        f"{word!r} is no address and no network; expected 10.0.0.1 or 10.0.0.0/24"
                    ) from None
            if fits:
                host.address, host.interface, host.mac = str(address.ip) if address else "", one["name"], one["mac"]
                return
        what = "address" if kind in ("udp", "tcp") else "interface"
        raise RemoteError(f"{host.name} has no {what} {word} that is up; it has {_listed(host)}")

    def _check_named(self) -> None:
        """Refuse a loopback, and one address of two hosts: neither leads from one host to the other."""
        if self._one_network():
            return
        found: dict[str, RemoteHost] = {}
        for host in self.hosts:
            if any(one["loopback"] for one in host.facts["interfaces"] if one["name"] == host.interface):
                raise RemoteError(
                    f"{host.interface} is the loopback of {host.name}, which leads to no other host; "
                    f"{host.name} has {_listed(host)}"
                )
            other = found.setdefault(host.address, host)
            if host.address and other.place != host.place:
                raise RemoteError(
                    f"{other.name} and {host.name} have the same address {host.address} ({host.interface}), so "
                    f"neither reaches the other there; name another --network: {host.name} has {_listed(host)}"
                )

    def _take_common(self) -> None:
        """Choose the first network of the first host that all others have, a real wire before the loopback."""
        found = common([host.facts["interfaces"] for host in self.hosts], self._one_network())
        if found is not None:
            for host, one in zip(self.hosts, found, strict=True):
                address = ipaddress.ip_interface(one["address"]).ip
                host.address, host.interface, host.mac = str(address), one["name"], one["mac"]
            return
        if self._take_routed():
            return
        lists = "; ".join(f"{host.name} has {_listed(host)}" for host in self.hosts)
        raise RemoteError(
            f"the hosts have no network in common, and no route to each other was found: {lists}. Name the "
            "wire: --network udp:10.0.0.0/24 or --network eth:IF0,IF1"
        )

    @property
    def one_machine(self) -> bool:
        """Whether all hosts are one machine, whose cores they share."""
        return len({host.facts["boot"] for host in self.hosts}) == 1

    def _one_network(self) -> bool:
        """Return whether all hosts are this very machine and network namespace, so that the loopback joins them."""
        return len({host.place for host in self.hosts}) == 1

    def _take_routed(self) -> bool:
        """Use the addresses at which ssh reached the hosts, if each has a route to the next."""
        reached = [(host.facts["reached_at"] or [""])[0] for host in self.hosts]
        for i, host in enumerate(self.hosts):
            peer = reached[i - 1]
            if len(self.hosts) > 1 and not peer:
                return False
            address = host.query("route", address=peer).get("route") if peer else None
            for one in host.facts["interfaces"]:
                if one["address"] and str(ipaddress.ip_interface(one["address"]).ip) == address:
                    host.address, host.interface, host.mac = str(address), one["name"], one["mac"]
            if not host.address:
                return False
        return True


def _interface_of(host: RemoteHost, word: str) -> str:
    """Return the interface of an RDMA device. Raises RemoteError if the host has no such device."""
    ports = [rdma.RdmaPort(*port) for port in host.facts["rdma"]]
    interface = rdma.interface_of(word, ports)
    if not interface:
        known = ", ".join(f"{one.device} ({one.interface or 'no interface'})" for one in ports) or "none"
        raise RemoteError(f"{host.name} has no RDMA device {word!r} with an address; it has {known}")
    return interface


def _listed(host: RemoteHost) -> str:
    return ", ".join(f"{one['name']} {one['address'] or 'without address'}" for one in host.facts["interfaces"])


_SLICE_S = 0.05  # between two questions whether the connections are still wanted
_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(viakit.__file__)))
_SERVER_S = 30.0  # limit of an ssh server's silence; a slow one may look up names and accounts that long
_N_ALIVE = 3
_LONGEST_S = 1e6  # of that limit, which VIAKIT_SILENCE_S can raise


# Runs the agent with the given interpreter, this one's path, or python3, whichever exists. The text after exec must not
# contain single quotes.
_START = (
    "import json, sys\n"
    "try:\n"
    "    import viakit\n"
    "except ImportError as error:\n"
    '    sys.exit(f"viakit-missing {sys.executable} {sys.version.split()[0]}: {error}")\n'
    "if viakit.__version__ != sys.argv[1]:\n"
    '    sys.exit(f"viakit-version {sys.executable} {viakit.__version__}")\n'
    "from viakit.remote.agent import main\n"
    "main(*sys.argv[2:])"
)


def _command(name: str, python: str | None) -> list[str]:
    """Return the command that starts the agent on a host."""
    words = [viakit.__version__, *map(str, limits())]
    if name == HERE:
        code = f"import sys; sys.path.append({_ROOT!r}); {'; '.join(_START.splitlines()[-2:])}"
        return [sys.executable, "-c", code, *words]
    chosen = f"p={shlex.quote(python)}" if python else f'p={shlex.quote(sys.executable)}; [ -x "$p" ] || p=python3'
    check = f'f=$(command -v "$p") && [ -f "$f" ] && [ -x "$f" ] || {{ echo "{NO_PYTHON} $p" >&2; exit 127; }}'
    script = f'{chosen}; {check}; exec "$p" -c {shlex.quote(_START)} {shlex.join(words)}'
    client = os.environ.get("VIAKIT_SSH", "").strip() or "ssh"
    try:
        ssh = shlex.split(client)
    except ValueError as error:
        raise ValueError(f"VIAKIT_SSH is {client!r}: {error}; expected a command such as 'ssh -F FILE'") from None
    options = ["-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"]
    # ConnectTimeout ends with the exchange of keys. Then ssh gives up a server that is silent for _N_ALIVE intervals,
    # while it logs in and afterwards. An agent that is slow to start is no such silence: the server replies for it.
    interval = math.ceil(min(max(_SERVER_S, limits()[1]), _LONGEST_S) / _N_ALIVE)
    options += ["-o", f"ServerAliveInterval={interval}", "-o", f"ServerAliveCountMax={_N_ALIVE}"]
    return [*ssh, *options, "--", name, f"exec sh -c {shlex.quote(script)}"]
