"""Hosts without root: a small Ethernet on one machine, made of network namespaces.

::

    with Testbed(hosts=2, mtu=1500) as tb:
        a, b = tb.hosts
        server = b.submit(serve)  # a Python function, in a process on host b
        print(a.call(ask, b.address))  # another on host a; its result, output or exception comes back
        print(a.run(["ip", "addr"]).stdout)  # or any command

Each host has a network of its own: an interface ``eth0`` with the address 10.77.0.N, a loopback, its own process
numbers and host name, and the file system and user of everybody else. Two hosts are joined by a wire (a veth pair),
more than two, or any with a rate limit, by a switch (a bridge). On a host every process may open raw sockets, though
nobody is root.

All of it is gone when the context ends, when the process that made it exits, crashes or is killed, and after Ctrl-C:
see :mod:`viakit._testbed_host` for the processes behind it and why none can be left over.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from viakit import _testbed_namespaces as _namespaces
from viakit._testbed_call import Call, HostProcess, HostTimeoutError, RemoteError, TestbedError, call_on, start_on
from viakit._words import counted

__all__ = [
    "Call",
    "Host",
    "HostProcess",
    "HostTimeoutError",
    "NamespaceError",
    "RemoteError",
    "Testbed",
    "TestbedError",
    "parse_rate",
]

MAX_HOSTS = 64
_NETWORK, _PREFIX = "10.77.0", 24
_START_DEADLINE_S = 20.0
_STOP_DEADLINE_S = 8.0
_SEND_DEADLINE_S = 5.0
_STILL_WORKS = (
    "What works without: the links loop and shm, MPI, and tcp, udp and zmq on localhost "
    "(viakit sweep ... --hosts local). `viakit doctor` shows all that this machine can do."
)


class NamespaceError(TestbedError, PermissionError):
    """The kernel refused a namespace or an interface.

    Attributes
    ----------
    step : str
        What was refused: "user", "map", "net", "host", "veth", "bridge" or "tbf".
    setting : str
        The setting that refuses, for instance "kernel.apparmor_restrict_unprivileged_userns".
    remedy : str
        What to do about it.
    """

    def __init__(self, step: str, number: int) -> None:
        refusal = _namespaces.explain_refusal(step, number)
        what = _namespaces.STEPS[step]
        super().__init__(
            f"{what} was refused ({os.strerror(number)}): {refusal.why}. Remedy: {refusal.remedy}. {_STILL_WORKS}"
        )
        self.step, self.setting, self.remedy = step, refusal.setting, refusal.remedy
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return NamespaceError, (self.step, self.errno)


def parse_rate(rate: float | str) -> int:
    """Bits per second from a number, or from text such as "1gbit", "100 Mbit/s" or "2.5G" (decimal prefixes).

    Raises
    ------
    ValueError
        If it is not a positive number of at least 8 bit/s with one of these units. "bps" is refused, because ``tc``
        takes it for bytes and everybody else for bits.
    """
    right = 'right would be bits per second, at least 8: 1e9, "1gbit", "100 Mbit/s" or "2.5G"'
    if isinstance(rate, str):
        match = re.fullmatch(r"\s*([0-9.]+(?:e[+-]?[0-9]+)?)\s*([kmgt]?)(?:bit(?:/s)?)?\s*", rate.lower())
        try:
            value = float(match[1]) * 1000.0 ** " kmgt".index(match[2] or " ") if match else math.nan
        except ValueError:
            value = math.nan
    elif isinstance(rate, bool) or not isinstance(rate, (int, float)):
        raise ValueError(f"rate is {rate!r}; {right}")
    else:
        value = float(rate)
    if not 8 <= value <= 1e13:  # false for nan too
        raise ValueError(f"rate is {rate!r}; {right}")
    return round(value)


class Host:
    """One host of a testbed; made by :class:`Testbed`.

    Attributes
    ----------
    name : str
        "h0", "h1", ...; also what gethostname() answers there.
    address : str
        Its IPv4 address, "10.77.0.1" for the first.
    interface : str
        Its interface: "eth0", or "lo" for a host that is alone.
    mac : str
        The MAC address of the interface, "02:56:49:41:00:01" for the first.
    pid : int
        Number of the host's first process, as seen from here: /proc/PID/ns/net is the host's network.
    """

    def __init__(
        self, testbed: Testbed, index: int, plan: dict[str, Any], pid: int, control: socket.socket, names: str
    ) -> None:
        self.index = index
        self.name: str = plan["name"]
        self.address: str = plan["address"]
        self.interface: str = plan["interface"]
        self.mac: str = plan["mac"]
        self.pid = pid
        self._names = names
        self._testbed = weakref.ref(testbed)  # the testbed holds its hosts, not they it
        self._control = control
        self._lock = threading.Lock()
        self._n_started = 0

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} pid={self.pid}>"

    def call(self, function: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any) -> Any:
        """Call a Python function in a new process on this host and return its result.

        The function, its arguments and its result are pickled. Functions of importable modules and of the running
        script always work; lambdas, nested functions and those of a notebook need the package cloudpickle. What the
        function prints appears here, in sys.stdout and sys.stderr, as it is printed.

        Parameters
        ----------
        function, args, kwargs
            What to call.
        timeout : float or None
            Seconds after which the process, and what it started in its process group, is killed; None: no limit.

        Raises
        ------
        HostTimeoutError
            After `timeout`.
        TestbedError
            If the process dies without an answer, or the host is gone.
        Exception
            What the function raised, with the traceback of the other side as its cause (:class:`RemoteError`).
        """
        return call_on(self, function, args, kwargs, timeout)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        """Start a call as :meth:`call` does and return at once a :class:`Call`, whose result() waits for it."""
        return Call(self, function, args, kwargs)

    def run(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        timeout: float | None = 60.0,
        input: str | bytes | None = None,
        check: bool = False,
        capture_output: bool = True,
        text: bool = True,
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[Any]:
        """Run a command on this host to its end, as subprocess.run does.

        Parameters
        ----------
        command : sequence of str
            The program and its arguments; no shell.
        timeout : float or None
            Seconds after which the command is killed; None: no limit.
        input : str or bytes, optional
            What it shall read from its standard input, which is empty otherwise.
        check : bool
            Raise subprocess.CalledProcessError if the exit status is not 0.
        capture_output, text : bool
            Collect the output, and as text (UTF-8).
        cwd, env
            Directory and environment; by default those of this process, and ``VIAKIT_HOSTS`` with the hosts' names.

        Raises
        ------
        HostTimeoutError
            After `timeout`; it is also a TimeoutError and a subprocess.TimeoutExpired and holds the output so far.
        OSError
            If the program cannot be started, for instance FileNotFoundError.
        """
        pipe = subprocess.PIPE if capture_output else None
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        with self.popen(command, stdin=stdin, stdout=pipe, stderr=pipe, text=text, cwd=cwd, env=env) as process:
            try:
                out, err = process.communicate(input, timeout=timeout)
            except BaseException:
                process.kill(group=True)
                raise
        result = subprocess.CompletedProcess(process.args, process.wait(), out, err)
        if check:
            result.check_returncode()
        return result

    def popen(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        stdin: Any = subprocess.DEVNULL,
        stdout: Any = None,
        stderr: Any = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        cwd: str | os.PathLike[str] | None = None,
        env: dict[str, str] | None = None,
    ) -> HostProcess:
        """Start a command on this host and return a handle like subprocess.Popen.

        Parameters
        ----------
        command : sequence of str
            The program and its arguments; no shell.
        stdin, stdout, stderr
            As for subprocess.Popen: None (this process's own), PIPE, DEVNULL, STDOUT, a file or a descriptor.
        text : bool
            Make the pipes text files (UTF-8) instead of unbuffered binary ones.
        pass_fds : sequence of int
            Descriptors that the new process shall have too, under the same numbers; at most 64, and above 2.
        cwd, env
            Directory and environment; by default those of this process.

        Raises
        ------
        OSError
            If the program cannot be started, for instance FileNotFoundError.
        TestbedError
            If the host is gone.
        """
        argv = [os.fspath(part) for part in command]
        if not argv or isinstance(command, (str, bytes)):
            raise ValueError(f'command is {command!r}; right would be a list such as ["ip", "addr"]')
        return start_on(self, argv, {}, (stdin, stdout, stderr), pass_fds=pass_fds, cwd=cwd, env=env, text=text)

    def _environment(self) -> dict[str, str]:
        """What a process here is told by its environment: the hosts' names, for the name service of VIPL."""
        return {"VIAKIT_HOSTS": self._names}

    def kill(self) -> None:
        """Kill this host with every process on it, at once, as if its power failed; the other hosts stay."""
        testbed = self._testbed()
        if testbed is not None:
            testbed._ask({"kill": self.index})

    def _next_id(self) -> int:
        """A number for the next process on this host, never used twice."""
        with self._lock:
            self._n_started += 1
            return self._n_started

    def _send(self, request: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a request to the host's first process. Raises TestbedError if it is gone."""
        with self._lock:
            try:
                socket.send_fds(self._control, [json.dumps(request).encode()], list(fds))
            except OSError as error:
                how = "its testbed was closed" if self._control.fileno() < 0 else "it was killed"
                raise TestbedError(f"host {self.name} is gone ({how}): open a new Testbed") from error


class Testbed:
    """Hosts joined by Ethernet, without root; a context manager, or open() and close() in a notebook.

    Parameters
    ----------
    hosts : int
        How many, 1 to 64. One is alone with its loopback interface, two are joined by a wire, more by a switch.
    mtu : int
        Largest packet of the wire in bytes, 68 to 65535, without the 14 bytes of the Ethernet header.
    rate : float or str, optional
        Limit of each direction of each host's wire in bit/s: 1e9, "1gbit", "100 Mbit/s". It is set in the switch, where
        no program on a host can go round it; so with a rate even two hosts are joined by a switch.
    burst : int, optional
        Bytes that may pass at once after a pause before the limit bites (the token bucket). Small is true to a real
        wire, large loses less bandwidth to late timers. Default: what the rate lets through in 300 microseconds, and at
        least two packets.

    Attributes
    ----------
    hosts : list of Host
        Empty while the testbed is not open.

    Raises
    ------
    ValueError
        If an argument makes no sense; nothing has been made then.
    """

    __test__ = False  # the name is no test's, whatever pytest thinks

    def __init__(
        self, hosts: int = 2, mtu: int = 1500, rate: float | str | None = None, *, burst: int | None = None
    ) -> None:
        self.n_hosts = _whole("hosts", hosts, 1, MAX_HOSTS)
        self.mtu = _whole("mtu", mtu, 68, 65535)
        self.rate_bps = None if rate is None else parse_rate(rate)
        self.burst = None
        if self.rate_bps is not None:
            if self.n_hosts == 1:
                raise ValueError("rate is given for a single host; right would be two hosts or more, or no rate")
            default = max(2 * (self.mtu + 18), self.rate_bps * 300 // 8_000_000)
            self.burst = default if burst is None else _whole("burst", burst, self.mtu + 18, 1 << 30)
        elif burst is not None:
            raise ValueError(f"burst is {burst!r} without a rate; right would be rate=... with it")
        self.hosts: list[Host] = []
        self._lock = threading.Lock()
        self._warden: _Warden | None = None
        self._release: Callable[[], Any] = lambda: None

    def __repr__(self) -> str:
        state = "open" if self._warden else "not open"
        rate = "" if self.rate_bps is None else f" rate={self.rate_bps} bit/s"
        return f"<Testbed of {counted(self.n_hosts, 'host')}, mtu={self.mtu}{rate}, {state}>"

    def __enter__(self) -> Testbed:
        return self if self._warden is not None else self.open()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_warden", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._release()

    def open(self) -> Testbed:
        """Make the hosts and return self; takes some tenths of a second.

        Raises
        ------
        NamespaceError
            If the kernel refuses; it names the setting and the remedy. It is a PermissionError too.
        TestbedError
            If it is open already, or the helper process fails.
        """
        if self._warden is not None:
            raise TestbedError("this testbed is open already: close() it first")
        if os.environ.get("VIAKIT_LOADING_MAIN"):
            raise TestbedError(
                "a script that calls its own functions on a host is loaded there too, and must not open a testbed "
                'meanwhile: put the part that does so under `if __name__ == "__main__":`, or pip install cloudpickle'
            )
        plans = [self._plan_host(i) for i in range(self.n_hosts)]
        tbf = None
        if self.rate_bps is not None and self.burst is not None:
            # The queue holds what the senders' socket buffers let out, so that they wait instead of losing frames.
            tbf = {"rate_Bps": max(1, self.rate_bps // 8), "burst": self.burst, "limit": max(16 << 20, 4 * self.burst)}
        warden = _Warden(plans, {"parent": os.getpid(), "mtu": self.mtu, "tbf": tbf})
        self._warden, self._release = warden, weakref.finalize(self, warden.stop)
        # Each by both kinds of address: eth takes the first, udp the second.
        names = ";".join(f"{plan['name']}={plan[kind]}" for plan in plans for kind in ("mac", "address"))
        self.hosts = [
            Host(self, i, plan, pid, control, names)
            for i, (plan, pid, control) in enumerate(zip(plans, warden.pids, warden.controls, strict=True))
        ]
        return self

    def close(self) -> None:
        """End every process on every host and wait until all is gone; to close twice does no harm."""
        self._release()
        self._warden = None
        self.hosts = []

    def describe(self) -> dict[str, Any]:
        """What the hosts are joined by, and how the network stands, read back from the kernel.

        Returns
        -------
        dict
            ``joined_by`` ("loopback", "veth" or "switch"), ``mtu``, ``rate_bps``, ``burst``; ``hosts``, a list with the
            ``links`` and ``qdiscs`` of each; and ``switch``, the same of the switch. A qdisc tells bytes, packets and
            drops so far.
        """
        networks = self._ask({"describe": True})["networks"]
        joined_by = "loopback" if self.n_hosts == 1 else "veth" if self.n_hosts == 2 and not self.rate_bps else "switch"
        return {
            "joined_by": joined_by,
            "mtu": self.mtu,
            "rate_bps": self.rate_bps,
            "burst": self.burst,
            "hosts": networks[:-1],
            "switch": networks[-1],
        }

    def _plan_host(self, i: int) -> dict[str, Any]:
        """Name, interface and addresses of host `i`; the MAC address spells VIA."""
        alone = self.n_hosts == 1
        return {
            "name": f"h{i}",
            "interface": "lo" if alone else "eth0",
            "address": f"{_NETWORK}.{i + 1}",
            "prefix": _PREFIX,
            "mac": "00:00:00:00:00:00" if alone else f"02:56:49:41:00:{i + 1:02x}",
        }

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the warden do or tell something."""
        with self._lock:
            if self._warden is None:
                raise TestbedError("this testbed is not open: use it as `with Testbed() as tb:`, or open() it")
            return self._warden.ask(request)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    """Check a whole number, and say what would be right if it is not."""
    try:
        number = value.__index__()
    except AttributeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise ValueError(f"{name} is {value!r}; right would be a whole number from {low} to {high}")
    return int(number)


# The helper is started by a few lines instead of -m, so that viakit itself, and with it NumPy and its threads, is not
# imported: its directory becomes a package of another name, in which the relative imports work.
_BOOTSTRAP = """
import sys, types
sys.path[:] = {path!r}
package = types.ModuleType("_viakit_testbed")
package.__path__ = [{here!r}]
sys.modules["_viakit_testbed"] = package
from _viakit_testbed import _testbed_host
_testbed_host.main({fd})
"""


class _Warden:
    """The helper process that holds the namespaces, and our ends of its sockets."""

    def __init__(self, plans: list[dict[str, Any]], rest: dict[str, Any]) -> None:
        self.owner = os.getpid()
        self.controls: list[socket.socket] = []
        self.pids: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        pair = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, far = socket.socketpair(*pair)
        fars = [far]
        try:
            for plan in plans:
                near, far = socket.socketpair(*pair)
                near.settimeout(_SEND_DEADLINE_S)
                self.controls.append(near)
                fars.append(far)
                plan["fd"] = far.fileno()
            code = _BOOTSTRAP.format(path=sys.path, here=os.path.dirname(__file__), fd=fars[0].fileno())
            # A session of its own: Ctrl-C in the terminal is for this process, which then closes the testbed.
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno() for far in fars],
                start_new_session=True,
            )
            for far in fars:
                far.close()
            self.control.settimeout(_START_DEADLINE_S)
            self.pids = self.ask({"hosts": plans, **rest})["pids"]
        except BaseException:
            for far in fars:
                far.close()
            self.stop()
            raise

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return its answer. Raises TestbedError, or NamespaceError if the kernel refuses."""
        try:
            self.control.send(json.dumps(request).encode())
            message = self.control.recv(1 << 20)
        except ConnectionError:
            message = b""
        except OSError as error:
            raise TestbedError(f"the testbed's helper process does not answer ({error}): open a new Testbed") from error
        if not message:
            raise TestbedError(f"the testbed's helper process ({sys.executable}) has ended: open a new Testbed")
        answer: dict[str, Any] = json.loads(message)
        if "refused" in answer:
            raise NamespaceError(*answer["refused"])
        if "error" in answer:
            raise TestbedError(f"the testbed's helper process failed: {answer['error']}")
        return answer

    def stop(self) -> None:
        """Let go of the warden and wait until it and everything below it has ended."""
        if os.getpid() != self.owner:
            return  # a forked child: the testbed is its parent's
        for control in [*self.controls, self.control]:
            try:
                control.shutdown(socket.SHUT_RDWR)  # felt on the other side even if a forked child holds a copy
            except OSError:
                pass
            control.close()
        if self.process is not None:
            try:
                self.process.wait(_STOP_DEADLINE_S)
            finally:
                if self.process.poll() is None:  # it hangs, or Ctrl-C was pressed: the kernel ends what is below it
                    self.process.kill()
                    self.process.wait()


for _class in (Call, HostProcess, HostTimeoutError, RemoteError, TestbedError):
    _class.__module__ = __name__  # where they are documented, imported from, and shown in a traceback to come from
