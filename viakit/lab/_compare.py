"""``lab.compare()``: comparison of protocols that is displayed during the measurement."""

from __future__ import annotations

import dataclasses
import numbers
import operator
import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viakit.base.words import counted
from viakit.lab import _settings
from viakit.lab._experiment import Experiment
from viakit.measure import endpoints, ladder, sweep
from viakit.measure.analysis import as_documents
from viakit.measure.report import html_table, per_message
from viakit.measure.sweep import Config, UsageError
from viakit.measure.table import format_time, point_at

__all__ = ["PROTOCOLS", "SECONDS", "SIZES", "Compare", "Counters"]

PROTOCOLS = ("via-eth", "tcp")
SIZES = "1,16,64,256,1K,4K,16K,64K,256K,1M"
SECONDS = 15.0

_RULES = {
    "protocols": _settings.names('"via-eth", "tcp"'),
    "mtu": _settings.maybe(_settings.MTU),
    "rate": _settings.maybe(_settings.rate),
    "delay": _settings.maybe(_settings.delay),
    "sockbuf": _settings.maybe(_settings.size(1, 1 << 31, "auto")),
    "memory": _settings.choice(*endpoints.MEMORIES),
    "buffers": _settings.choice(*endpoints.BUFFERS),
    "seconds": _settings.SECONDS,
    "timeout_s": _settings.SECONDS,
    "validate": _settings.flag,
    "skip_unavailable": _settings.flag,
    "seed": _settings.SEED,
}
_FIELDS = {field.name for field in dataclasses.fields(Config)} - {"protocols", "sizes"}


class Compare(Experiment):
    """Protocols over message sizes: the result of :func:`viakit.lab.compare`."""

    config: Config  # settings of the next start

    def __init__(
        self,
        protocols: Sequence[str],
        sizes: str | int | Iterable[int],
        against: Sequence[Mapping[str, Any] | str | os.PathLike[str]],
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__()
        unknown = sorted(set(settings) - _FIELDS)
        if unknown:
            raise TypeError(f"compare() has no setting {unknown[0]!r}; it has {', '.join(sorted(_FIELDS))}")
        self.against = as_documents(against)
        self.config = Config(protocols=[], sizes=[], seconds=SECONDS)
        self.configure(protocols=list(protocols), sizes=sizes, **settings)

    @property
    def title(self) -> str:
        """Description of the measurement."""
        return "comparing " + ", ".join(self.config.protocols)

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start; the settings are those of :func:`viakit.lab.compare`."""
        settings = _settings.checked(settings, _RULES)
        if "sizes" in settings:
            settings["sizes"] = sizes_of(settings["sizes"])
        self.config = dataclasses.replace(self.config, **settings)

    def _request(self) -> tuple[str, dict[str, Any]]:
        sweep.check(self.config)
        return "sweep", {"config": _plain(self.config), "command": self.command()}

    def command(self) -> str:
        """Return the command line of the same measurement without a notebook."""
        plain = _plain(self.config)
        words = ["viakit", "sweep", *plain.pop("protocols")]
        words += ["--sizes", ",".join(map(str, plain.pop("sizes")))]
        for name, value in plain.items():
            default = next(field.default for field in dataclasses.fields(Config) if field.name == name)
            if name == "seconds" or (value != default and name not in ("timeout_s", "skip_unavailable")):
                words.append("--" + name)
                words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)

    def at(self, nbytes: int) -> Counters:
        """Return the cost of a message of *nbytes* by protocol: time, copies, system calls, frames.

        Raises
        ------
        KeyError
            If no protocol has been measured at that size; the message lists the measured sizes.
        """
        return Counters.of(self.result, nbytes)

    def _make_panel(self) -> Any:
        from viakit.lab._compare_panel import ComparePanel  # optional package

        return ComparePanel(self)


def _plain(config: Config) -> dict[str, Any]:
    """Return the fields that are not None, in a form for JSON."""
    return {key: value for key, value in dataclasses.asdict(config).items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Counters:
    """Cost of a message of one size. *rows* has a dictionary per protocol, with counters per message of both sides."""

    nbytes: int
    rows: list[dict[str, Any]]

    @classmethod
    def of(cls, result: Mapping[str, Any], nbytes: int) -> Counters:
        """Extract the counters from a result."""
        rows = []
        for one in result["series"]:
            point = point_at(one, nbytes)
            if point is not None:
                times = point["one_way_s"]
                row = {"protocol": one["protocol"], "median_s": times["median"], "p99_s": times["p99"]}
                rows.append(row | per_message(point))
        if not rows:
            sizes = sorted({point["nbytes"] for one in result["series"] for point in one["points"]})
            raise KeyError(
                f"a message of {counted(nbytes, 'byte')} was not measured; the sizes are {', '.join(map(str, sizes))}"
            )
        return cls(nbytes, rows)

    def cells(self) -> tuple[list[str], list[list[str]]]:
        """Return head and rows as text, without counters that are zero in all rows."""
        names = list(dict.fromkeys(key for row in self.rows for key in row if key[-2:] != "_s" and key != "protocol"))
        names = [key for key in names if any(row.get(key) for row in self.rows)]
        lines = []
        for row in self.rows:
            times = [format_time(row["median_s"]), format_time(row["p99_s"])]
            lines.append([row["protocol"], *times, *(f"{row[key]:.3g}" if key in row else "-" for key in names)])
        return ["protocol", "median", "p99", *(key.replace("_", " ") for key in names)], lines

    def _repr_html_(self) -> str:
        return html_table(
            f"A message of {ladder.format_size(self.nbytes)}; counters per message, both sides", *self.cells()
        )

    def __str__(self) -> str:
        head, rows = self.cells()
        return "\n\n".join("\n".join(f"{a:24} {b}" for a, b in zip(head, row, strict=True)) for row in rows)


def sizes_of(given: str | int | Iterable[int]) -> list[int]:
    """Return message sizes in bytes for ``"64,4K"``, ``"1:1M"`` (without perturbation), a number or numbers."""
    if isinstance(given, str):
        return ladder.parse_sizes(given, 0)
    try:
        sizes = [operator.index(one) for one in ([given] if isinstance(given, (int, numbers.Integral)) else given)]
    except TypeError:
        sizes = [-1]
    if any(one < 0 for one in sizes):
        raise UsageError(f"sizes is {given!r}; expected bytes as whole numbers, or text such as '64,4K' or '1:1M'")
    return sizes
