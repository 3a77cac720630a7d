"""The configuration of a sweep, its check, and the series that follow from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from viakit.measure import endpoints, ladder, sockbuf
from viakit.testbed.wire import Wire

__all__ = [
    "ONE_WAY",
    "Config",
    "Series",
    "UsageError",
    "check",
    "is_remote",
    "plan",
    "remote_hosts",
    "several",
    "wire_of",
]

CHOICES = {  # accepted values of options, by attribute of Config
    "mode": endpoints.MODES,
    "wait": endpoints.WAITS,
    "hosts": ("auto", "local", "testbed"),
    "level": (*endpoints.LEVELS, "both"),
    "memory": endpoints.MEMORIES,
    "buffers": endpoints.BUFFERS,
    "spec": endpoints.SPECS,
    **endpoints.VIA_CHOICES,
}
BIDIR_OR_COLD = "--mode bidir or overlap, no --buffers cold and no --wait hybrid; remove these options"
FLOOR_NBYTES = 8  # payload of the cache line that the floor passes

ONE_WAY = {
    "pingpong": "half the round trip",
    "stream": "time per message, many in flight",
    "bidir": "time per message and direction, both directions at once",
    "overlap": "half of the round trip's time that computing beside it could not use",
    "rate": "time per message, many in flight",
}


class UsageError(ValueError):
    """The configuration of a sweep is invalid. The error is raised before anything is started."""


@dataclass
class Config:
    """Configuration of a sweep.

    :func:`viakit.measure.sweep.run` raises :class:`UsageError` for an invalid one, before anything starts.

    Attributes
    ----------
    protocols : sequence of str
        Names as ``viakit protocols`` lists them. The first is the reference for ratios. Those of the message engine
        may name a policy: ``"msg-tcp:mpich-p4"``, ``"msg-via:mvich-rput"``.
    sizes : sequence of int
        Message sizes in bytes (:func:`viakit.measure.ladder.parse_sizes`).
    hosts : {"auto", "local", "testbed", "testbed:2"} or str
        ``ssh:A,B`` names two machines that ssh reaches, ``ssh:B`` this one and another: see :mod:`viakit.remote`.
        Hosts of protocols that use a wire: this host, or two hosts of :class:`viakit.testbed.Testbed`. ``auto`` selects
        the testbed if a protocol needs it. Protocols of shared memory are always local.
    mtu : int or sequence of int, optional
        MTU of the testbed's wire in bytes. Default: 1500. Several make a grid: each protocol is measured at each, on a
        testbed of its own.
    rate : str or float, optional
        Limit of the testbed's wire in bit/s, for instance ``"1gbit"``.
    interface : str, optional
        Interface of this host, or two separated by a comma (one for each side), for ``via-eth`` and ``via-verbs`` with
        ``hosts="local"``.
    sockbuf : int, "auto", or sequence of them, optional
        Size of the socket buffers of tcp, udp, unix, zmq and msg-tcp in bytes. Several make a grid. With ``"auto"`` a
        short calibration before the sweep finds the best size for tcp (:mod:`viakit.measure.sockbuf`); the others have
        that of the system.
    memory : {"user", "viakit"}
        Source of the buffers: ordinary memory, or the allocator of viakit's NICs, whose memory a peer on the same host
        can map. Protocols without such an allocator use ordinary memory. The result states the memory of each series.
    buffers : {"touched", "same", "cold"}
        "touched": each message is written before it is sent, and read after it has been received; both are part of the
        time. "same": one buffer, which is not touched, so that its bytes never change. "cold": buffers in turn from a
        pool that is larger than the last-level cache; they are not touched.
    offset : int
        Offset of each message from the beginning of its page in bytes, on both sides: 0 to 4095.
    offload, tcp_options : {"on", "off"}, optional
        Properties of the testbed's wire, as for :class:`viakit.testbed.Testbed`.
    burst : int or "min", optional
        The same, for the bucket of `rate`.
    delay : float, str or sequence of them, optional
        The same, for the delay of every frame, in seconds or as text: "1ms". Several make a grid: each protocol is
        measured with each, on a testbed of its own.
    mode : {"pingpong", "stream", "bidir", "overlap", "rate"}
        Pattern of the messages. "overlap" is ping-pong in which one side computes beside every second message. "rate"
        is a stream whose result is shown as messages per second.
    wait : {"poll", "block", "hybrid"}
        Wait by polling, by sleeping in the kernel, or by polling for 50 us and sleeping afterwards.
    level : {"c", "python", "both"}, optional
        Language of the measuring loop. Default: C if the library can be called from it.
    seconds : float
        Time for the whole sweep, without start and stop.
    validate : bool
        Check the contents of every message.
    form : {"plain", "udp", "auto"}, optional
        Encapsulation of the frames of via-eth.
    reliability : {"unreliable", "delivery", "reception"}, optional
        Reliability level of ``via-*``.
    fault : str, optional
        Faults that both sides of ``via-*``, ``bip-*``, ``msg-via`` and ``msg-bip`` inject into the frames they send:
        ``"loss=1%,delay=200us,seed=7"``, as for :class:`viakit.via.Faults`. Other protocols are measured without
        faults.
    retransmission : {"selective", "go_back_n"}, optional
        Treatment of frames that arrive before a lost one, for ``via-*``.
    checksum : {"auto", "crc"}, optional
        Checksum of the frames of via-eth and via-udp: see :class:`viakit.via.Checksum`.
    policy : str, optional
        Policy of the message engine for ``msg-*`` whose name has none: a name (``"mpich-p4"``), a name with changes
        (``"via,eager_limit=64K"``), or changes of the channel's own policy.
    network : {"eth", "udp", "verbs"} or str, optional
        Link of msg-via and msg-bip between the hosts of a testbed, which ``hosts="auto"`` then selects. Default: eth.
        Between real machines: the wire of all protocols, as "eth:eth0", "udp:10.0.0.0/24", "verbs:mlx5_0". Default: the
        first network that both have.
    python : str, optional
        Interpreter with viakit on machines that ssh reaches.
    spec : {"list", "plain"}, optional
        Arguments of Send and Recv of ``mpi*`` and ``msg-*`` at level Python: ``[buffer, datatype]``, which is the
        default, or the array itself.
    seed : int, optional
        Seed of the order. Default: random.
    timeout_s : float
        Time limit of a burst in seconds.
    machine : str, optional
        Name or file of a machine (:mod:`viakit.machines`). The sweep runs on it, in virtual time: "via", "bip", "tcp",
        "msg-via", "msg-bip", "msg-tcp". Each size is measured once, because repetitions are equal to the bit. Buffers
        are not touched, because the real processor's work takes no virtual time.
    skip_unavailable : bool
        True: a protocol that cannot run on this machine is skipped and named in the result. False: it is an error.
    """

    protocols: Sequence[str]
    sizes: Sequence[int]
    hosts: str = "auto"
    mtu: int | Sequence[int] | None = None
    rate: str | float | None = None
    interface: str | None = None
    sockbuf: int | str | Sequence[int | str] | None = None
    memory: str = "user"
    buffers: str = "touched"
    offset: int = 0
    offload: str | None = None
    tcp_options: str | None = None
    burst: int | str | None = None
    delay: float | str | Sequence[float | str] | None = None
    mode: str = "pingpong"
    wait: str = "poll"
    level: str | None = None
    seconds: float = 10.0
    validate: bool = False
    form: str | None = None
    reliability: str | None = None
    fault: str | None = None
    retransmission: str | None = None
    checksum: str | None = None
    policy: str | None = None
    network: str | None = None
    python: str | None = None
    spec: str | None = None
    seed: int | None = None
    machine: str | None = None
    skip_unavailable: bool = False
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.hosts == "testbed:2":
            self.hosts = "testbed"


@dataclass(frozen=True, eq=False)
class Series:
    """One curve: a protocol at one level, on one wire, with one size of socket buffers."""

    name: str
    protocol: endpoints.Protocol
    level: str
    hosts: str
    is_floor: bool = False
    mtu: int | None = None  # of the testbed; None elsewhere
    delay: float | None = None  # of the testbed's wire, seconds; None: no relay
    sockbuf: int | str | None = None  # only for protocols that take it


def several(given: Any) -> list[Any]:
    """Return the values of an option that may have several; [None] without a value."""
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _check(config: Config) -> None:
    """Raise :class:`UsageError` for values that are invalid with any protocol."""
    if not config.protocols:
        raise UsageError("name at least one protocol; `viakit protocols` lists them")
    twice = [name for name, times in Counter(config.protocols).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]} is named twice; name each protocol once")
    if not config.sizes:
        raise UsageError("name at least one size, for instance 64 or 1:4M")
    if config.network is not None and not is_remote(config.hosts):
        from viakit import _core  # Only here, to save start-up time.

        networks = [link.name for link in _core.links() if link.leaves_host]
        if config.network not in networks:
            raise UsageError(
                f"--network is {config.network!r}: on the testbed it is a link alone, one of {', '.join(networks)}; "
                "with an interface, address or device it is for --hosts ssh:A,B"
            )
    if config.python is not None and not is_remote(config.hosts):
        raise UsageError(
            "--python is the interpreter on machines that ssh reaches: add --hosts ssh:A,B, or leave it out"
        )
    for option, allowed in CHOICES.items():
        given = getattr(config, option)
        if option == "hosts" and is_remote(given):
            _check_remote(config)
            continue
        optional = getattr(Config, option) is None
        if given not in allowed and not (given is None and optional):
            raise UsageError(f"--{option} is {given!r}: it has to be one of {', '.join(allowed)}")
    network = None if is_remote(config.hosts) else config.network  # between real machines it is for every protocol
    for option, given in (("--policy", config.policy), ("--network", network)):
        if given is not None and not any("policy" in _protocol(name, config).options for name in config.protocols):
            raise UsageError(f"{option} is for the message engine: name msg-via, msg-bip or msg-tcp")
    if config.fault is not None:
        _check_faults(config)
    if config.machine is not None:
        _check_machine(config)
    if not config.seconds > 0 or config.seconds > 1e6:
        raise UsageError(f"--seconds is {config.seconds:g}: give the time that the sweep may take, for instance 10")
    for one in several(config.sockbuf):
        if one not in (None, sockbuf.AUTO) and not (isinstance(one, int) and 0 < one < 1 << 31):
            raise UsageError(f"--sockbuf is {one}: give a number of bytes, for instance 128K, or auto")
    for option in ("mtu", "sockbuf", "delay"):
        values = delays_of(config) if option == "delay" else several(getattr(config, option))
        if not values or len(set(values)) < len(values):
            raise UsageError(f"--{option} is {values}: give each value once, at least one")
    if not 0 <= config.offset <= 4095:
        raise UsageError(f"--offset is {config.offset}: give a number of bytes from 0 to 4095")
    if config.seed is not None and config.seed < 0:
        raise UsageError(f"--seed is {config.seed}: give 0 or a positive number")


def _check_machine(config: Config) -> None:
    """Raise :class:`UsageError` for options that have no meaning on a described machine."""
    options = {"mtu": "wire.mtu", "rate": "wire.rate_mbit_s"}
    for option, key in options.items():
        if getattr(config, option) is not None:
            raise UsageError(f"--{option} with --machine: the machine's description has it, as {key}")
    if delays_of(config) != [None]:
        raise UsageError("--delay with --machine: the machine's description has it, as wire.delay_us")
    for option in ("interface", "network", "burst", "offload", "tcp_options"):
        if getattr(config, option) is not None:
            name = f"--{option.replace('_', '-')}"
            raise UsageError(f"{name} with --machine: a described machine has a network of its own; remove {name}")
    if sockbuf.AUTO in several(config.sockbuf):
        raise UsageError("--sockbuf auto with --machine: larger socket buffers are never slower there; give a size")
    if config.hosts not in ("auto", "local"):
        raise UsageError(f"--hosts {config.hosts} with --machine: all ranks run on this host; remove --hosts")
    if config.level not in (None, "c"):
        raise UsageError(f"--level {config.level} with --machine: only the loop in C has virtual time")


def is_remote(hosts: str) -> bool:
    """Return whether *hosts* names machines that ssh reaches."""
    return str(hosts).startswith("ssh:")


def remote_hosts(config: Config) -> str:
    """Return the two hosts of a sweep between real machines; one name stands for this machine and that one.

    Numbers of ranks, which a file of hosts may contain, do not matter here and are left out.
    """
    from viakit.remote.spec import HERE  # on use, as below

    names = _spec(config).names
    return f"ssh:{','.join(names if len(names) == 2 else (HERE, *names))}"


def _spec(config: Config) -> Any:
    from viakit.remote.spec import parse  # on use: most sweeps stay on this machine

    try:
        return parse(config.hosts)
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from None


def _check_remote(config: Config) -> None:
    """Raise :class:`UsageError` for hosts that are malformed, or that a sweep cannot use."""
    from viakit.remote.spec import HERE  # on use, as above

    spec = _spec(config)
    if not 1 <= len(spec) <= 2 or spec.names == (HERE,):
        raise UsageError(
            f"--hosts {config.hosts}: a sweep has two sides; name two hosts, or one that is not this machine"
        )
    if config.interface is not None:
        raise UsageError("--interface is for two interfaces of this host; between machines use --network eth:IF0,IF1")


def _check_faults(config: Config) -> None:
    """Raise :class:`UsageError` for faults that are malformed, or that no protocol of the sweep can have."""
    from viakit import via  # on use: only faults need the extension here

    try:
        faults = via.Faults.parse(config.fault or "")
    except ValueError as error:
        raise UsageError(f"--fault: {error}") from None
    if not any(_protocol(name, config).takes_faults for name in config.protocols):
        raise UsageError("--fault spoils what via-*, bip-*, msg-via and msg-bip send: name at least one of them")
    by_via = any(name.startswith("via-") for name in config.protocols)  # BIP detects a loss, and ends with an error
    if config.reliability == "unreliable" and faults.loses and by_via:
        raise UsageError("--fault with loss and --reliability unreliable: a lost message would be waited for in vain")


def _levels(protocol: endpoints.Protocol, config: Config) -> list[str]:
    """Return the levels at which a protocol is measured."""
    # The loop in Python supports neither these modes nor cold buffers.
    only_in_c = config.mode in endpoints.IN_C or config.buffers == "cold" or config.wait == "hybrid"
    there = [level for level in protocol.levels if level == "c" or not only_in_c]
    if not there:
        raise UsageError(f"{protocol.name} is measured by the loop in Python, which has no {BIDIR_OR_COLD}")
    if config.level is None:
        return there[:1]
    if config.level == "both":
        return there
    if config.level not in there:
        reasons = {
            f" in {config.mode}": config.mode in endpoints.IN_C,
            " with cold buffers": config.buffers == "cold",
            " with hybrid waits": config.wait == "hybrid",
        }
        words = next((text for text, holds in reasons.items() if holds), "")
        raise UsageError(
            f"{protocol.name} cannot be measured at level {config.level}{words}, only at {', '.join(there)}"
        )
    return [config.level]


def _protocol(name: str, config: Config) -> endpoints.Protocol:
    """Return the protocol that a name stands for, on this machine or on a described one."""
    return endpoints.lookup(name if config.machine is None else endpoints.on_machine(name))


def _on_machine(name: str, config: Config) -> list[Series]:
    """Return the series of a protocol on a described machine: one for each size of socket buffers."""
    protocol = _protocol(name, config)
    ladder.check_limits(config.sizes, name, protocol.min_bytes, protocol.max_bytes)
    _check_section(protocol, config)
    buffers = several(config.sockbuf) if protocol.takes_sockbuf else [None]
    return [Series(protocol.name, protocol, "c", "machine", sockbuf=buffer) for buffer in buffers]


def _check_section(protocol: endpoints.Protocol, config: Config) -> None:
    """Raise :class:`UsageError` for a protocol over sockets or NICs that the described machine does not have."""
    from viakit import machines  # start-up time

    machine = machines.load(str(config.machine))
    if not protocol.takes_sockbuf and machine.protocol() == "tcp":
        raise UsageError(
            f"{protocol.name}: machine {machine.name} has no section [via] and no [bip], so it has no NICs; use tcp"
        )
    if protocol.takes_sockbuf and not machine.has("tcp"):
        raise UsageError(f"{protocol.name}: machine {machine.name} has no section [tcp], so it has no sockets")


def _check_buffers(config: Config, series: list[Series]) -> None:
    """Raise :class:`UsageError` if --sockbuf is given and no series has socket buffers that can be set."""
    if config.sockbuf is not None and not any(one.protocol.takes_sockbuf for one in series):
        names = list(dict.fromkeys(one.name for one in series))
        raise UsageError(
            f"--sockbuf: {', '.join(names)} {'has' if len(names) == 1 else 'have'} no socket buffers to set; remove "
            "--sockbuf, or add tcp, udp, unix, zmq or msg-tcp"
        )


def _wire_option(config: Config) -> str | None:
    """Return the option of *config* that requires the testbed's wire, or None."""
    names = ("mtu", "rate", "burst", "offload", "tcp_options")
    values = {name: getattr(config, name) for name in names} | {"delay": delays_of(config)[0]}
    return next((f"--{name.replace('_', '-')}" for name, given in values.items() if given is not None), None)


def wire_of(config: Config, delay: float | str | None = None) -> Wire:
    """Return the properties of the testbed's wire with this delay: those of *config*, then those of ``VIAKIT_WIRE``.

    Raises
    ------
    UsageError
        If one of them is invalid.
    """
    given = {name: getattr(config, name) for name in ("rate", "burst", "offload", "tcp_options")}
    try:
        found = Wire.chosen(**given, delay=delay)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if found.burst is not None and found.rate is None:
        raise UsageError(f"--burst {found.burst} is the bucket of a limit: add --rate, for instance --rate 1gbit")
    return found


def delays_of(config: Config) -> list[float | None]:
    """Return the delays of the testbed's wire in seconds: those of *config*, then that of ``VIAKIT_WIRE``.

    [None]: the testbed has no relay. Raises :class:`UsageError` as :func:`wire_of` does.
    """
    return [wire_of(config, one).delay_s for one in several(config.delay)]


def plan(config: Config) -> tuple[list[Series], bool]:
    """Return the series of *config*, and whether the sweep uses two hosts, of a testbed or real ones.

    Raises
    ------
    UsageError
        If the configuration is invalid. The endpoints raise ``ValueError`` for an unknown protocol.
    """
    _check(config)
    if config.machine is not None:
        on_it = [one for name in config.protocols for one in _on_machine(name, config)]
        _check_buffers(config, on_it)
        return on_it, False
    found = {name: endpoints.lookup(name) for name in config.protocols}
    hosts = "ssh" if is_remote(config.hosts) else config.hosts
    if hosts == "auto":
        between = _wire_option(config) is not None or config.network is not None
        of_wire = between or any(one.apart for one in found.values())
        hosts = "testbed" if of_wire and not config.interface else "local"
    if hosts == "local" and config.network is not None:
        remedy = "remove --interface" if config.interface else "add --hosts testbed or ssh:A,B"
        raise UsageError(
            f"--network is the link between two hosts, and this sweep is on one: {remedy}, or leave it out"
        )
    if hosts in ("local", "ssh") and (option := _wire_option(config)):
        raise UsageError(f"{option} sets the testbed's wire: add --hosts testbed, or remove {option}")
    series: list[Series] = []
    for name, protocol in found.items():
        ladder.check_limits(config.sizes, name, protocol.min_bytes, protocol.max_bytes)
        for option, given, allowed in (("mode", config.mode, protocol.modes), ("wait", config.wait, protocol.waits)):
            if given not in allowed:
                raise UsageError(f"{name} cannot be measured with --{option} {given}, only with {', '.join(allowed)}")
        # An MPI is on the wire on request only: `auto` finds it where its ranks usually are.
        asked = (config.hosts != "auto" or config.network is not None) and protocol.between_hosts
        where = hosts if protocol.wired or asked else "local"
        on_testbed = where == "testbed"
        mtus = [one or 1500 for one in several(config.mtu)] if on_testbed else [None]
        delays = delays_of(config) if on_testbed else [None]
        buffers = several(config.sockbuf) if protocol.takes_sockbuf else [None]
        series += [
            Series(name, protocol, level, where, mtu=mtu, delay=delay, sockbuf=buffer)
            for level in _levels(protocol, config)
            for mtu in mtus
            for delay in delays
            for buffer in buffers
        ]
    _check_buffers(config, series)
    if sockbuf.AUTO in several(config.sockbuf) and not any(one.name == "tcp" for one in series):
        raise UsageError(
            "--sockbuf auto finds the best size for tcp, which is not measured here: add tcp, or give several sizes, "
            "for instance --sockbuf 64K,256K,1M"
        )
    if config.memory == "viakit" and not any(one.protocol.allocates for one in series):
        raise UsageError(
            f"--memory viakit: {', '.join(found)} {'has' if len(found) == 1 else 'have'} no allocator and "
            f"take{'s' * (len(found) == 1)} ordinary memory; remove --memory, or add one of via-* and msg-via"
        )
    # The floor shows how far shared memory is from the limit of the machine.
    shared = any(one.protocol.in_memory for one in series)
    if shared and config.mode == "pingpong" and config.wait == "poll" and "floor" not in found:
        series.append(Series("floor", endpoints.lookup("floor"), "c", "local", is_floor=True))
    return series, any(one.hosts != "local" for one in series)


def check(config: Config) -> None:
    """Raise the error of :func:`viakit.measure.sweep.run` for an invalid *config*, without starting anything."""
    plan(config)
