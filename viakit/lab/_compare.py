"""``lab.compare()``: protocols beside each other, while they are measured."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from viakit.lab._experiment import Experiment
from viakit.lab._worker import as_plain
from viakit.measure.analysis import as_documents
from viakit.measure.sweep import Config, UsageError

__all__ = ["PROTOCOLS", "SECONDS", "SIZES", "Compare"]

PROTOCOLS = ("via-eth", "tcp")
SIZES = "1,16,64,256,1K,4K,16K,64K,256K,1M"
SECONDS = 15.0

_FIELDS = {field.name for field in dataclasses.fields(Config)} - {"protocols", "sizes"}


class Compare(Experiment):
    """Protocols over message sizes: what :func:`viakit.lab.compare` returns."""

    config: Config  # of the next start

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
            raise TypeError(f"compare() has no setting {unknown[0]!r}; there are {', '.join(sorted(_FIELDS))}")
        self.against = as_documents(against)
        self.config = Config(protocols=[], sizes=[], seconds=SECONDS)
        self.configure(protocols=list(protocols), sizes=sizes, **settings)

    @property
    def title(self) -> str:
        """What is compared, for people."""
        return "comparing " + ", ".join(self.config.protocols)

    def configure(self, **settings: Any) -> None:
        """Change settings for the next start: any of those of :func:`viakit.lab.compare`."""
        if "sizes" in settings:
            settings["sizes"] = sizes_of(settings["sizes"])
        self.config = dataclasses.replace(self.config, **settings)

    def _request(self) -> tuple[str, dict[str, Any]]:
        from viakit.measure.sweep import check

        check(self.config)
        return "sweep", {"config": as_plain(self.config), "command": self.command()}

    def command(self) -> str:
        """Return the command line that measures the same without a notebook."""
        import shlex

        plain = as_plain(self.config)
        words = ["viakit", "sweep", *plain.pop("protocols")]
        words += ["--sizes", ",".join(map(str, plain.pop("sizes")))]
        for name, value in plain.items():
            default = next(field.default for field in dataclasses.fields(Config) if field.name == name)
            if name == "seconds" or (value != default and name not in ("timeout_s", "skip_unavailable")):
                words.append("--" + name)
                words += [] if value is True else [f"{value:g}" if isinstance(value, float) else str(value)]
        return shlex.join(words)

    def _make_panel(self) -> Any:
        from viakit.lab._panel import ComparePanel

        return ComparePanel(self)


def sizes_of(given: str | int | Iterable[int]) -> list[int]:
    """Return message sizes in bytes from ``"64,4K"``, ``"1:1M"`` (without perturbation), a number or numbers."""
    from viakit.measure import ladder

    if isinstance(given, str):
        return ladder.parse_sizes(given, 0)
    sizes = [given] if isinstance(given, int) else list(given)
    if not all(isinstance(one, int) and one >= 0 for one in sizes):
        raise UsageError(f"sizes is {given!r}: give bytes as whole numbers, or text like '64,4K' or '1:1M'")
    return sizes
