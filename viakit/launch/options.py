"""The options of a job, and their check."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from viakit.base import secret as _secret
from viakit.base.words import counted
from viakit.remote.spec import Spec, chosen_hosts, parse

__all__ = ["CHANNELS", "MAX_RANKS", "PROTOCOLS", "Options"]

MAX_RANKS = 1024
CHANNELS = ("via", "bip", "tcp")  # of the message engine (csrc/msg/channel.h): each is a protocol of ranks
PROTOCOLS = (*CHANNELS, "mpi", "mpi:openmpi", "mpi:mpich")


@dataclass
class Options:
    """Options of a job.

    Attributes
    ----------
    ranks : int
        Number of ranks, 1 to 1024; it may exceed the number of cores.
    hosts : int or str
        0 or ``"local"``: this machine; otherwise the number of hosts of a testbed, or ``"testbed:4"``. ``"ssh:a,b*4"``:
        machines that ssh reaches, see :mod:`viakit.remote`. The attribute is the number of hosts.
    mtu, rate : int, str or None
        Properties of the testbed's wire; see :class:`viakit.testbed.Testbed`.
    placement : str
        "block" (ranks 0, 1 on the first host) or "cyclic" (ranks 0, H, ... on the first of H).
    protocol, policy, network : str or None
        Passed on as VIAKIT_PROTOCOL, VIAKIT_POLICY and VIAKIT_NETWORK. The policy must be one of the protocol; without
        a protocol, the policy determines it. The protocol may name the policy: "tcp:mpich-p4". With protocol "mpi" (or
        "mpi:mpich", "mpi:openmpi") that MPI's launcher starts the ranks: see :func:`launch_of`.
    python : str or None
        Interpreter with viakit on machines that ssh reaches.
    launcher : str or None
        Launcher of the ranks, unless the protocol determines it. None: viakit. "mpi", "mpi:mpich", "mpi:openmpi": that
        MPI's ``mpiexec``, with any protocol between the ranks.
    label : bool
        Begin each line of output with its rank.
    bind : str
        "core": each rank runs on a core of its own, if this machine has one for each. "none": the kernel places them.
    preload : bool
        Fork the ranks, which are Python programs on this machine, from one process that has imported NumPy and viakit.
    timeout : float or None
        Seconds after which the job is ended, with status 124.
    environment : dict
        Variables to add to the ranks' environment.
    prog : str
        Command that starts the job. Messages of the launcher begin with it.
    """

    ranks: int
    hosts: int | str = 0
    mtu: int = 1500
    rate: str | float | None = None
    placement: str = "block"
    protocol: str | None = None
    policy: str | None = None
    network: str | None = None
    python: str | None = None
    launcher: str | None = None
    label: bool = False
    bind: str = "none"
    preload: bool = False
    timeout: float | None = None
    environment: dict[str, str] = field(default_factory=dict)
    prog: str = "viakit run"
    remote: Spec | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.hosts = chosen_hosts(self.hosts)
        if isinstance(self.hosts, str):
            self.remote = parse(self.hosts)
            self.hosts = len(self.remote)
        if self.protocol and ":" in self.protocol and not self.protocol.startswith("mpi"):
            from viakit.launch.policy import split  # on use: it loads the extension

            self.protocol, given = split(self.protocol)
            self.policy = self.policy or given

    @property
    def n_hosts(self) -> int:
        """Number of hosts of a testbed, or of machines that ssh reaches; 0: this machine."""
        assert isinstance(self.hosts, int)
        return self.hosts

    def check(self) -> None:
        """Raise ValueError if an option is invalid, before any process is started."""
        if not 1 <= self.ranks <= MAX_RANKS:
            raise ValueError(f"{counted(self.ranks, 'rank')}; expected 1 to {MAX_RANKS}")
        if self.n_hosts > self.ranks:
            raise ValueError(
                f"{counted(self.n_hosts, 'host')} for {counted(self.ranks, 'rank')}; expected "
                "a rank for each host at least"
            )
        if self.launcher not in (None, "viakit", "mpi", "mpi:mpich", "mpi:openmpi"):
            raise ValueError(f"launcher is {self.launcher!r}; expected viakit, mpi, mpi:mpich or mpi:openmpi")
        if self.placement not in ("block", "cyclic"):
            raise ValueError(f"placement is {self.placement!r}; expected block or cyclic")
        if self.protocol and self.protocol.partition(":")[0] not in (*CHANNELS, "mpi"):
            raise ValueError(f"protocol is {self.protocol!r}; expected {', '.join(PROTOCOLS)}")
        if self.bind not in ("core", "none"):
            raise ValueError(f"bind is {self.bind!r}; expected core or none")
        if self.bind == "core" and (self.n_hosts or (self.protocol or "").startswith("mpi")):
            raise ValueError("bind=core is for ranks that viakit starts on this machine; leave out the hosts, and mpi")
        if self.preload and (self.n_hosts or (self.launcher or self.protocol or "").startswith("mpi")):
            raise ValueError("preload is for ranks that viakit starts on this machine; leave out the hosts, and mpi")
        if self.python is not None and self.remote is None:
            raise ValueError(
                "python is the interpreter on machines that ssh reaches; add --hosts ssh:A,B, or leave it out"
            )
        if self.policy:
            from viakit.launch import policy as _policy  # start-up time

            protocol = self.protocol or self.environment.get("VIAKIT_PROTOCOL") or os.environ.get("VIAKIT_PROTOCOL")
            _policy.complete(_policy.chosen(protocol, self.policy), self.policy)
        if _secret.VARIABLE in self.environment:
            raise ValueError(
                f"{_secret.VARIABLE} is not for the command line, which everyone can read; leave it out: every job "
                "gets a secret of its own"
            )
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout is {self.timeout:g} s; expected more than 0")

    def host_of(self, rank: int) -> int:
        """Return the index of the host on which a rank runs."""
        if self.remote is not None:
            return self.remote.host_of(rank, self.ranks, self.placement)
        return rank % self.n_hosts if self.placement == "cyclic" else rank * self.n_hosts // self.ranks
