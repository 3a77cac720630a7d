"""Hosts without root: a small Ethernet on one machine, made of network namespaces.

::

    with Testbed(hosts=2, mtu=1500) as tb:
        a, b = tb.hosts
        server = b.submit(serve)  # a Python function, in a process on host b
        print(a.call(request, b.address))  # another on host a; its result, output or exception comes back
        print(a.run(["ip", "addr"]).stdout)  # or any command

Each host has a network of its own: an interface ``eth0`` with the address 10.77.0.N, and a loopback. It also has its
own process numbers and host name. It shares the file system and the user with the rest of the machine. Two hosts are
connected by a wire (a veth pair). More than two hosts, or hosts with a rate limit, are connected by a switch (a
bridge). Hosts with a delay are connected by a relay, a process that forwards frames. Every process on a host may open
raw sockets, although no process is root.

The testbed disappears when the context ends, when the process that created it exits, crashes or is killed, and after
Ctrl-C. :mod:`viakit.testbed.host` describes the processes involved and why none can remain.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from viakit.base.words import counted
from viakit.testbed.call import Call, HostProcess, HostTimeoutError, RemoteError, TestbedError, call_on, start_on
from viakit.testbed.server import NamespaceError, Supervisor
from viakit.testbed.wire import Wire, parse_rate

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


class Host:
    """Host of a testbed; created by :class:`Testbed`.

    Attributes
    ----------
    name : str
        "h0", "h1", ...; also the result of gethostname() on the host.
    address : str
        IPv4 address, "10.77.0.1" for the first host.
    interface : str
        Name of the interface: "eth0", or "lo" for a single host.
    mac : str
        MAC address of the interface, "02:56:49:41:00:01" for the first host.
    pid : int
        Number of the host's first process outside the host: /proc/PID/ns/net is the host's network.
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
        self._testbed = weakref.ref(testbed)  # weak, because the testbed refers to its hosts
        self._control = control
        self._lock = threading.Lock()
        self._n_started = 0

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address} pid={self.pid}>"

    trouble: str | None = None  #: Why the host cannot be used any more; None while it can.

    @property
    def device(self) -> str:
        """Name of the NIC that carries the data of a job: ``eth:IFNAME``."""
        return f"eth:{self.interface}"

    @property
    def cores(self) -> list[int]:
        """Cores that processes on this host may use."""
        return sorted(os.sched_getaffinity(0))

    def call(self, function: Callable[..., Any], /, *args: Any, timeout: float | None = 60.0, **kwargs: Any) -> Any:
        """Call a Python function in a new process on this host and return its result.

        The function, its arguments and its result are pickled. Functions of importable modules and of the running
        script always work; lambdas, nested functions and functions of a notebook need the package cloudpickle. The
        function's output is written to sys.stdout and sys.stderr of this process as it is produced.

        Parameters
        ----------
        function : callable
            The function to call.
        *args, **kwargs
            Its arguments.
        timeout : float or None
            Seconds after which the process and its process group are killed; None: no limit.

        Raises
        ------
        HostTimeoutError
            After `timeout`.
        TestbedError
            If the process dies without a result, or the host is gone.
        Exception
            The exception of the function. Its cause is the remote traceback (:class:`RemoteError`).
        """
        return call_on(self, function, args, kwargs, timeout)

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Call:
        """Start a call in the background and return a :class:`Call`, whose result() waits for it.

        The arguments are those of :meth:`call`, without a timeout.
        """
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
        """Run a command on this host and wait until it ends, as subprocess.run does.

        Parameters
        ----------
        command : sequence of str
            Program and arguments; no shell is involved.
        timeout : float or None
            Seconds after which the command is killed; None: no limit.
        input : str or bytes, optional
            Contents of the standard input. Default: empty.
        check : bool
            Raise subprocess.CalledProcessError if the exit status is not 0.
        capture_output, text : bool
            Collect the output, and decode it (UTF-8).
        cwd, env
            Directory and environment. Default: those of this process, and ``VIAKIT_HOSTS`` with the hosts' names.

        Returns
        -------
        subprocess.CompletedProcess

        Raises
        ------
        HostTimeoutError
            After `timeout`; it is also a TimeoutError and a subprocess.TimeoutExpired, and contains the output so far.
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
            Program and arguments; no shell is involved.
        stdin, stdout, stderr
            As for subprocess.Popen: None (that of this process), PIPE, DEVNULL, STDOUT, a file or a descriptor.
        text : bool
            Open the pipes as text files (UTF-8) instead of unbuffered binary ones.
        pass_fds : sequence of int
            Descriptors that the new process inherits under the same numbers; at most 64, and above 2.
        cwd, env
            Directory and environment. Default: those of this process.

        Returns
        -------
        HostProcess

        Raises
        ------
        OSError
            If the program cannot be started, for instance FileNotFoundError.
        TestbedError
            If the host is gone.
        """
        argv = [os.fspath(part) for part in command]
        if not argv or isinstance(command, (str, bytes)):
            raise ValueError(f'command is {command!r}; expected a list such as ["ip", "addr"]')
        return self._start(argv, (stdin, stdout, stderr), pass_fds=pass_fds, cwd=cwd, env=env, text=text)

    def _start(self, argv: list[str], streams: tuple[Any, Any, Any], **how: Any) -> HostProcess:
        """Start a program on this host; the arguments are those of :meth:`popen`."""
        return start_on(self, argv, {}, streams, **how)

    def _environment(self) -> dict[str, str]:
        """Return the variables that each process on the host gets: the hosts' names, for the name service of VIPL."""
        return {"VIAKIT_HOSTS": self._names}

    def kill(self) -> None:
        """Kill this host and all its processes at once, like a power failure. The other hosts continue."""
        testbed = self._testbed()
        if testbed is not None:
            testbed._request({"kill": self.index})

    def _next_id(self) -> int:
        """Return a unique number for the next process on this host."""
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
                raise TestbedError(f"host {self.name} is gone ({how}); open a new Testbed") from error


class Testbed:
    """Hosts connected by Ethernet, without root. Use it as a context manager, or with open() and close() in a notebook.

    Parameters
    ----------
    hosts : int
        Number of hosts, 1 to 64. A single host has only its loopback interface, two are connected by a wire, more by a
        switch.
    mtu : int
        Largest packet of the wire in bytes, 68 to 65535, without the 14 bytes of the Ethernet header.
    rate : float or str, optional
        Limit for each direction of each host's wire in bit/s: 1e9, "1gbit", "100 Mbit/s". The limit is set in the
        switch, where programs on the hosts cannot change it. Therefore two hosts with a rate are also connected by a
        switch. Default: that of ``VIAKIT_WIRE``, otherwise no limit.
    burst : int or "min", optional
        Size of the token bucket: bytes that may pass without delay after a pause. A small bucket is closer to a real
        wire; a large one loses less bandwidth to late timers. Default: the bytes of 300 microseconds at the rate, and
        at least two packets. "min": one packet, the smallest that the kernel accepts.
    offload : {"on", "off"}, optional
        "off": the interfaces neither cut nor merge frames (TSO, GSO, UDP segmentation, GRO), as the papers' cards.
        Default: that of ``VIAKIT_WIRE``, otherwise "on".
    tcp_options : {"on", "off"}, optional
        "off": TCP without window scaling and time stamps. Default: as for `offload`.
    delay : float or str, optional
        Delay of every frame on its way from one host to another, 0 to 1 s: 0.0002, "200us". A process forwards the
        frames, the relay, which is then the switch. It costs time and a core by itself. 0: the relay without a delay,
        which shows its cost. Default: that of ``VIAKIT_WIRE``, otherwise no relay.

    Attributes
    ----------
    hosts : list of Host
        Empty while the testbed is not open.

    Raises
    ------
    ValueError
        If an argument is invalid; nothing has been created.
    """

    __test__ = False  # Keep pytest from collecting the class because of its name.

    kind = "testbed"  #: Kind of the hosts, as in result files.
    one_machine = True  #: Whether the hosts share the cores of one machine.

    def __init__(
        self,
        hosts: int = 2,
        mtu: int = 1500,
        rate: float | str | None = None,
        *,
        burst: int | str | None = None,
        offload: str | None = None,
        tcp_options: str | None = None,
        delay: float | str | None = None,
    ) -> None:
        self.n_hosts = _whole("hosts", hosts, 1, MAX_HOSTS)
        self.mtu = _whole("mtu", mtu, 68, 65535)
        self.wire = Wire.chosen(rate=rate, burst=burst, offload=offload, tcp_options=tcp_options, delay=delay)
        if rate is not None and self.n_hosts == 1:
            raise ValueError("rate is given for a single host; expected two hosts or more, or no rate")
        self.rate_bps = self.wire.rate_bps if self.n_hosts > 1 else None
        self.delay_s = self.wire.delay_s if self.n_hosts > 1 else None
        if delay is not None and self.n_hosts == 1:
            raise ValueError("delay is given for a single host; expected two hosts or more, or no delay")
        self.burst = None
        if self.rate_bps is not None:
            usual = max(2 * (self.mtu + 18), self.rate_bps * 300 // 8_000_000)
            sizes: dict[Any, Any] = {None: usual, "min": self.mtu + 18}
            given = self.wire.burst
            self.burst = _whole("burst", sizes.get(given, given), self.mtu + 18, 1 << 30)
        elif burst is not None or (self.wire.burst is not None and self.n_hosts > 1):
            raise ValueError(f"burst is {self.wire.burst!r} without a rate; expected a rate with it, such as 1gbit")
        self.hosts: list[Host] = []
        self._lock = threading.Lock()
        self._supervisor: Supervisor | None = None
        self._release: Callable[[], Any] = lambda: None

    def __repr__(self) -> str:
        state = "open" if self._supervisor else "not open"
        rate = "" if self.rate_bps is None else f" rate={self.rate_bps} bit/s"
        return f"<Testbed of {counted(self.n_hosts, 'host')}, mtu={self.mtu}{rate}, {state}>"

    def __enter__(self) -> Testbed:
        return self if self._supervisor is not None else self.open()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_supervisor", None) is not None:
            warnings.warn(f"unclosed {self!r}", ResourceWarning, stacklevel=2, source=self)
            self._release()

    def open(self) -> Testbed:
        """Create the hosts and return self; takes some tenths of a second.

        Raises
        ------
        NamespaceError
            If the kernel refuses; the error names the setting and the remedy. It is also a PermissionError.
        TestbedError
            If the testbed is open already, or its server process fails.
        """
        if self._supervisor is not None:
            raise TestbedError("this testbed is open already; call close() first")
        if os.environ.get("VIAKIT_LOADING_MAIN"):
            raise TestbedError(
                "the host loads this script to call one of its functions, and the script opens another testbed; put "
                'that part under `if __name__ == "__main__":`, or pip install cloudpickle'
            )
        plans = [self._plan_host(i) for i in range(self.n_hosts)]
        tbf = None
        if self.rate_bps is not None and self.burst is not None:
            # The queue is longer than the senders' socket buffers, so that senders wait and frames are not lost.
            tbf = {"rate_Bps": max(1, self.rate_bps // 8), "burst": self.burst, "limit": max(16 << 20, 4 * self.burst)}
        switches = {name: getattr(self.wire, name) == "on" for name in ("offload", "tcp_options")}
        delay_ns = None if self.delay_s is None else round(self.delay_s * 1e9)
        rest = {"parent": os.getpid(), "mtu": self.mtu, "tbf": tbf, "delay_ns": delay_ns, **switches}
        supervisor = Supervisor(plans, rest)
        self._supervisor, self._release = supervisor, weakref.finalize(self, supervisor.stop)
        # Each name has two addresses: eth uses the first, udp the second.
        names = ";".join(f"{plan['name']}={plan[kind]}" for plan in plans for kind in ("mac", "address"))
        self.hosts = [
            Host(self, i, plan, pid, control, names)
            for i, (plan, pid, control) in enumerate(zip(plans, supervisor.pids, supervisor.controls, strict=True))
        ]
        return self

    def close(self) -> None:
        """End all processes on all hosts and wait until everything is gone. Closing twice does nothing.

        A RuntimeWarning reports frames that the relay of a delay dropped, and a relay that died.
        """
        trouble = self.relay_trouble()
        self._release()
        self._supervisor = None
        self.hosts = []
        if trouble is not None:
            warnings.warn(trouble, RuntimeWarning, stacklevel=2)

    def relay_trouble(self) -> str | None:
        """Return what the relay of a delay did not forward, in words, or None if nothing was lost so far."""
        if self.delay_s is None or self._supervisor is None:
            return None
        try:
            relay = self._request({"describe": True})["relay"]
        except TestbedError:
            return None  # the server process has ended, which every use of the hosts has reported
        if not relay["running"]:
            return "the relay that delays the testbed's frames has died, and the hosts were stopped; open a new Testbed"
        if relay["dropped"]:
            return (
                f"the relay that delays the testbed's frames dropped {relay['dropped']} of "
                f"{relay['frames'] + relay['dropped']} frames; choose a smaller delay or a rate"
            )
        return None

    def describe(self) -> dict[str, Any]:
        """Return the structure and the state of the network, read back from the kernel.

        Returns
        -------
        dict
            Keys ``joined_by`` ("loopback", "veth", "switch" or "relay"), ``mtu``, ``rate_bps``, ``burst`` and
            ``tcp_options``. ``hosts`` is a list with the ``links``, ``offloads`` and ``qdiscs`` of each host, and
            ``switch`` has the same for the switch. A qdisc has the numbers of bytes, packets and drops so far.
            ``relay`` is None without a delay. Otherwise it has ``delay_s``, ``pid``, ``running``, and its counts:
            ``frames``, ``bytes``, ``dropped``, ``late_ns`` (a sum) and ``late_max_ns`` (the time of frames beyond the
            delay), and ``queued_max`` (most bytes that waited for one host's delay).
        """
        answer = self._request({"describe": True})
        networks, relay = answer["networks"], answer["relay"]
        joined_by = "loopback" if self.n_hosts == 1 else "veth" if self.n_hosts == 2 and not self.rate_bps else "switch"
        if relay is not None:
            joined_by, relay = "relay", {"delay_s": self.delay_s, **relay}
        return {
            "joined_by": joined_by,
            "mtu": self.mtu,
            "rate_bps": self.rate_bps,
            "burst": self.burst,
            "tcp_options": self.wire.tcp_options,
            "relay": relay,
            "hosts": networks[:-1],
            "switch": networks[-1],
        }

    def _plan_host(self, i: int) -> dict[str, Any]:
        """Return name, interface and addresses of host `i`; the MAC address contains "VIA" in ASCII."""
        alone = self.n_hosts == 1
        return {
            "name": f"h{i}",
            "interface": "lo" if alone else "eth0",
            "address": f"{_NETWORK}.{i + 1}",
            "prefix": _PREFIX,
            "mac": "00:00:00:00:00:00" if alone else f"02:56:49:41:00:{i + 1:02x}",
        }

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the supervisor and return its reply."""
        with self._lock:
            if self._supervisor is None:
                raise TestbedError("this testbed is not open; use it as `with Testbed() as tb:`, or call open()")
            return self._supervisor.request(request)


def _whole(name: str, value: Any, low: int, high: int) -> int:
    """Check that a value is an integer in a range, and return it."""
    try:
        number = value.__index__()
    except AttributeError:
        number = None
    if number is None or isinstance(value, bool) or not low <= number <= high:
        raise ValueError(f"{name} is {value!r}; expected a whole number from {low} to {high}")
    return int(number)


for _class in (Call, HostProcess, HostTimeoutError, NamespaceError, RemoteError, TestbedError):
    _class.__module__ = __name__  # the module of the documentation, of imports, and of tracebacks
