"""The command ``viakit calibrate``: thresholds that follow from measured message times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from viakit.cli.base import Failure, make_console
from viakit.cli.group import check_outputs
from viakit.cli.job import two_sides

if TYPE_CHECKING:
    from viakit.measure.calibrate import Calibration

__all__ = ["calibrate"]

_LEAST_S, _LEAST_HOSTS_S = 1.25, 2.5  # for a link; the start of hosts and connections needs about half of it


@click.command()
@click.argument("links", nargs=-1, metavar="[shm|eth|udp|tcp]...")
@click.option(
    "--hosts",
    metavar="local|testbed|ssh:A,B|job",
    default="testbed",
    show_default=True,
    callback=two_sides,
    help="Measure links between hosts on a testbed in network namespaces, or between two machines that ssh reaches "
    "(ssh:B: this one and B). Each machine then saves the calibration. local: measure the link within this host, shm.",
)
@click.option("--network", metavar="LINK", help="With --hosts ssh:, the wire: eth:IF, udp:ADDRESS, udp:10.0.0.0/24.")
@click.option("--python", metavar="PATH", help="Interpreter with viakit on the machines of --hosts ssh:.")
@click.option(
    "--what",
    type=click.Choice(["all", "bip", "messages"]),
    default="all",
    show_default=True,
    help="Calibrate BIP's pipeline, or the thresholds of the message engine, or both.",
)
@click.option("--seconds", type=float, default=60.0, show_default=True, help="Approximate time for everything.")
@click.option("--rate", help="Limit of the testbed's wire, bit/s: 1gbit, 100mbit, 1e9.")
@click.option(
    "--plot", "picture", metavar="P", help="Draw model and measurement; for several links, P gets the link's name."
)
@click.option("--dry-run", is_flag=True, help="Show the calibration without saving it.")
def calibrate(links: tuple[str, ...], picture: str | None, **given: Any) -> None:
    """Measure BIP's pipeline and the engine's thresholds, and save the calibration.

    \b
    viakit calibrate                                            all links of this machine
    viakit calibrate --hosts local                              shm alone
    viakit calibrate eth --hosts ssh:alpha,beta --network eth:enp3s0

    Links between hosts are measured on a testbed, or between two machines. The default is all links: shm, eth, udp and
    tcp here; udp and tcp between machines, or what --network names, and tcp.
    """  # noqa: D301 - \b keeps click from wrapping the lines after it
    wanted = _Wanted(links=links, **given)
    wanted.check(picture)
    pictures = {}
    if picture is not None:
        one = Path(picture)
        several = len(wanted.links) > 1
        pictures = {link: one.with_stem(f"{one.stem}-{link}") if several else one for link in wanted.pipelines}
        check_outputs(None, [str(place) for place in pictures.values()])
    _calibrate_each(wanted, pictures)


@dataclass
class _Wanted:
    """The options of the command."""

    links: Sequence[str]
    hosts: str
    network: str | None
    python: str | None
    what: str
    seconds: float
    rate: str | None
    dry_run: bool
    pipelines: list[str] = field(default_factory=list)  # links whose pipeline of BIP is measured
    begun: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Time that is left for measurements and the start of processes, at least 0."""
        return self.time_until(0.0)

    def time_until(self, left_s: float) -> float:
        """Return the time until *left_s* seconds are left, at least 0."""
        return max(0.0, self.begun + self.seconds - time.monotonic() - left_s)

    @property
    def remote(self) -> bool:
        return self.hosts.startswith("ssh:")

    def check(self, picture: str | None) -> None:
        """Complete the links, and refuse what cannot be measured, before anything is started."""
        from viakit.measure import calibrate as calibration  # start-up time
        from viakit.measure.calibrate_messages import LINKS, leaves_host  # start-up time
        from viakit.testbed import parse_rate  # start-up time

        for link in self.links:
            if link not in LINKS:
                raise click.UsageError(f"{link!r} cannot be calibrated; expected shm, eth, udp or tcp")
        if not 0 < self.seconds <= 1e6:
            raise Failure(f"--seconds is {self.seconds:g}; expected the time for all measurements, for instance 60", 2)
        if self.remote:
            self._check_remote()
        elif self.hosts not in ("local", "testbed", "testbed:2"):
            raise Failure(f"--hosts {self.hosts}; expected local, testbed, ssh:HOST,HOST or job", 2)
        elif self.network is not None or self.python is not None:
            raise Failure("--network and --python are for --hosts ssh:HOST,HOST", 2)
        if self.rate is not None:
            parse_rate(self.rate)
        between = [link for link in LINKS if leaves_host(link)]
        within = [link for link in LINKS if link not in between]
        named = (self.network or "").partition(":")[0]
        alone = self.hosts == "local"
        self.links = self.links or ([named or "udp", "tcp"] if self.remote else within if alone else list(LINKS))
        for link in self.links:
            if self.remote and link not in between:
                raise Failure(f"{link} stays within a host; with --hosts {self.hosts} expected {', '.join(between)}", 2)
            if alone and link in between:
                raise Failure(f"{link} is for two hosts; with --hosts local expected {', '.join(within)}", 2)
            if self.remote and link == "eth" and named != "eth":
                raise Failure("eth needs the interface of the wire: --network eth:IF, or eth:IF0,IF1", 2)
        self.pipelines = [link for link in self.links if self.what != "messages" and link in calibration.LINKS]
        if not self.pipelines and (picture is not None or self.what == "bip"):
            option = "--what bip measures" if self.what == "bip" else "--plot draws"
            raise Failure(f"{option} BIP's pipeline; choose shm, eth or udp, and do not use --what messages", 2)

    def _check_remote(self) -> None:
        from viakit.remote.spec import HERE, parse  # start-up time

        try:
            spec = parse(self.hosts)
        except ValueError as error:
            raise Failure(f"--hosts: {error}", 2) from None
        if not 1 <= len(spec) <= 2 or spec.names == (HERE,):
            raise Failure(f"--hosts {self.hosts}: a wire has two ends; name two hosts, or one that is not this one", 2)
        # A file of hosts may have numbers of ranks. They do not matter here.
        self.hosts = f"ssh:{','.join(spec.names if len(spec) == 2 else (HERE, *spec.names))}"
        if self.rate is not None:
            raise Failure("--rate sets the testbed's wire; leave it out between machines", 2)
        if (self.network or "udp").partition(":")[0] not in ("eth", "udp", "tcp"):
            raise Failure(f"--network {self.network}: calibrated are eth:IF and udp:ADDRESS", 2)

    def open_hosts(self, link: str, stack: contextlib.ExitStack) -> Any:
        """Return two hosts for a link, which the stack closes; None if it does not leave this host."""
        from viakit.measure.calibrate_messages import leaves_host  # start-up time
        from viakit.remote import Remote  # start-up time
        from viakit.testbed import Testbed  # start-up time

        if self.remote:
            return stack.enter_context(Remote(self.hosts, network=self.network, python=self.python))
        return stack.enter_context(Testbed(hosts=2, rate=self.rate)) if leaves_host(link) else None


def _n_fitting(links: Sequence[str], seconds: float) -> int:
    """Return how many of the links, from the first one on, can be measured in a time."""
    from viakit.measure.calibrate_messages import leaves_host  # start-up time

    needed = accumulate(_LEAST_HOSTS_S if leaves_host(link) else _LEAST_S for link in links)
    return sum(each_s <= seconds for each_s in needed)


def _calibrate_each(wanted: _Wanted, pictures: Mapping[str, Path]) -> None:
    """Calibrate links in turn until the time is over; print tables, and name the links that were not measured.

    The links that are measured share the time equally; it includes the start of their hosts and processes. A link for
    which the time would be too short is not measured.
    """
    from viakit.measure import calibrate as calibration  # start-up time
    from viakit.measure import calibration_store  # start-up time
    from viakit.measure.calibrate_messages import calibrate_messages  # start-up time
    from viakit.measure.calibrate_table import tables  # start-up time

    left = list(wanted.links)
    found: list[tuple[str, Calibration | None, Any]] = []
    saved: list[str] = []
    while left and (not found or _n_fitting(left, wanted.left_s)):
        until_s = wanted.left_s * (1 - 1 / max(1, _n_fitting(left, wanted.left_s)))
        link = left.pop(0)
        with contextlib.ExitStack() as stack:
            hosts = wanted.open_hosts(link, stack)
            options: dict[str, Any] = {"testbed": hosts, "say": lambda text: click.echo(text, err=True)}
            pipeline = thresholds = None
            if link in wanted.pipelines:
                half_s = wanted.time_until(until_s) / (1 + (wanted.what != "bip"))
                pipeline = calibration.calibrate(link, **options, seconds=half_s)
            if wanted.what != "bip":
                thresholds = calibrate_messages(link, **options, seconds=wanted.time_until(until_s))
            done = [one for one in (pipeline, thresholds) if one is not None]
            if wanted.remote and not wanted.dry_run:
                saved += calibration_store.save_on(hosts, done)
        found.append((link, pipeline, thresholds))
        saved += [] if wanted.remote or wanted.dry_run else [one.save() for one in done]
        if pipeline is not None and link in pictures:
            calibration.save_picture(pipeline, str(pictures[link]))
            saved.append(str(pictures[link]))
    for one in tables(found):
        make_console().print(one)
    for name in saved:
        click.echo(f"wrote {name}")
    if left:
        click.echo(f"not calibrated: {', '.join(left)}, for lack of time; raise --seconds, or name a link")
