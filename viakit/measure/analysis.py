"""Results as objects: plots, tables, models and comparisons.

A :class:`Result` is the dict of a ``viakit.result/1`` with methods. Every function that takes a document also takes a
Result, and ``json.dump`` writes it unchanged.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit.base.words import counted
from viakit.measure import kinds, result

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.console import Console

    from viakit.measure.comparison import Comparison
    from viakit.measure.fit import Fits

__all__ = ["Result"]

_KINDS = {
    kinds.TRANSFERS: "transfer",
    kinds.BARRIERS: "barrier",
    kinds.COLLECTIVES: "collective",
    kinds.APPLICATIONS: "application",
    kinds.FAULTS: "faults",
}

_PRE = "font-family:monospace;line-height:1.2;white-space:pre;overflow-x:auto"  # a notebook breaks rows


class Result(dict[str, Any]):
    """Measured result: the dict of schema ``viakit.result/1``, with methods.

    ::

        mine = Result.load("today.json")
        mine.plot()
        mine.to_pandas()

    A notebook displays it as its picture and its tables.
    """

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read and check a result file. Raises :class:`viakit.measure.result.ResultError`."""
        return cls(result.load(path))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the result to *path* in the format of its suffix: .json, .csv, or a picture (.png .svg .pdf .html).

        Returns
        -------
        pathlib.Path
            The path that was written.

        Raises
        ------
        viakit.measure.result.ResultError
            For another suffix, or if the file cannot be written. An existing file is then unchanged.
        """
        suffix = Path(path).suffix.lower()
        result.check_writable(path)  # Its error message contains a remedy.
        if suffix == ".json":
            result.save(self, path)
        elif suffix == ".csv":
            result.save_csv(self, path)
        else:
            from viakit.measure import plot  # start-up time

            if suffix not in plot.FORMATS:
                known = ", ".join((".json", ".csv", *plot.FORMATS))
                raise result.ResultError(f"{path}: unknown format; the name must end with one of {known}")
            result.write_file(path, self.picture(suffix))
        return Path(path)

    @property
    def protocols(self) -> list[str]:
        """Names of the measured protocols, in order."""
        return list(dict.fromkeys(one["protocol"] for one in self["series"]))

    def series(self, protocol: str, **key: Any) -> Mapping[str, Any]:
        """Return the first series of *protocol* whose fields match *key* (``mode="stream"``).

        Raises
        ------
        KeyError
            If no series matches; the message lists the protocols.
        """
        for one in self["series"]:
            if one["protocol"] == protocol and all(one.get(name) == value for name, value in key.items()):
                return one
        raise KeyError(f"no series of {protocol!r} with {key or 'any key'}; the result has {', '.join(self.protocols)}")

    @property
    def kind(self) -> str:
        """Kind of the series: ``"transfer"``, ``"barrier"``, ``"collective"``, ``"application"`` or ``"faults"``.

        For a document with several kinds it is the kind of the first series.
        """
        return _KINDS[next(iter(kinds.split(self)))]

    def picture(self, suffix: str = ".png") -> bytes:
        """Return the picture of :meth:`plot` as bytes in the format *suffix*.

        Formats are ".png", ".svg" and ".pdf"; for transfers also ".html".

        Raises
        ------
        viakit.measure.result.ResultError
            If the result has nothing to draw, or cannot be drawn in this format.
        """
        from viakit.measure import plot  # start-up time

        if kinds.common_kind([self], ["this result"]) == kinds.TRANSFERS:
            return plot.picture([self], suffix)
        if suffix == ".html":
            raise result.ResultError("only transfers can be drawn as .html; choose .png, .svg or .pdf")
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format=suffix[1:])
        return buffer.getvalue()

    def show(self, console: Console) -> None:
        """Print the tables of the result to *console*."""
        kinds.show(self, console)

    def plot(self, *others: Mapping[str, Any] | str | os.PathLike[str], **kw: Any) -> Figure:
        """Draw the result with Matplotlib, overlaid with *others* (results, or names of their files).

        Keywords are those of :func:`viakit.measure.plot.figure`, for instance ``graphs=["time"]``; for kinds other than
        transfers only ``title``.

        Returns
        -------
        matplotlib.figure.Figure

        Raises
        ------
        viakit.measure.result.ResultError
            If a result has nothing to draw, or the results are of different kinds.
        """
        return kinds.figure([self, *as_documents(others)], **kw)

    def fit(self, seed: int = 0) -> Fits:
        """Fit Hockney's and the LogGP model, and find knees with their probable causes: :mod:`viakit.measure.fit`.

        ::

            fits = result.fit()
            fits["tcp"].n_half.value, fits["tcp"].knees
        """
        from viakit.measure import fit  # start-up time

        return fit.fit(self, seed)

    def compare(self, other: Mapping[str, Any] | str | os.PathLike[str], **kw: Any) -> Comparison:
        """Compare this result with *other*, an earlier result or its file.

        Keywords are those of :func:`viakit.measure.comparison.compare`.
        """
        from viakit.measure import comparison  # start-up time

        return comparison.compare(as_documents([other]), self, **kw)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the points as a DataFrame, with one row per point.

        The columns identify the series and give the times in seconds. If messages were counted, further columns give
        ``copies``, ``frames_sent``, ... per message.

        Raises
        ------
        ImportError
            If pandas is missing; the message contains the command to install it.
        """
        try:
            import pandas  # optional package
        except ImportError:
            raise ImportError(
                "to_pandas() needs pandas, which viakit does not require; pip install 'viakit[pandas]'. Without it, "
                "rows() returns the same data, and save('result.csv') writes the times"
            ) from None
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as flat dictionaries, one per point: the rows of :meth:`to_pandas`."""
        from viakit.measure.report import per_message  # start-up time

        rows = []
        for one in self["series"]:
            key = {name: value for name, value in one.items() if not isinstance(value, (list, dict))}
            for point in one["points"]:
                times = point["one_way_s"] if "one_way_s" in point else point["time_s"]
                low, high = times["ci95"]
                row = {**key, "nbytes": point["nbytes"], "median_s": times["median"], "ci95_low_s": low}
                row |= {"ci95_high_s": high} | {f"{name}_s": times[name] for name in ("p5", "p90", "p99", "p999")}
                row |= {"min_s": times["min"], "max_s": times["max"]}
                row |= {name: point[name] for name in ("bandwidth_Bps", "samples", "lost") if name in point}
                rows.append(row | (per_message(point) if "counters" in point else {}))
        return rows

    def _repr_html_(self) -> str:
        """Return picture and tables for a notebook."""
        from viakit.measure import plot  # start-up time

        if not any(one["points"] for one in self["series"]):
            return "<p>This result has no points.</p>"
        shown = ""
        for part in map(Result, kinds.split(self).values()):
            if sum(len(one["points"]) for one in part["series"]) == 1:  # the table has all of it
                shown += part._tables()
                continue
            try:
                shown += plot.inline(part.picture(".svg"), part.kind)
            except result.ResultError:
                pass  # for instance a speed-up without its serial run
            shown += part._tables()
        return shown

    def _tables(self) -> str:
        if self.kind == "transfer":
            from viakit.measure import report  # start-up time

            return report.tables_html(self)
        from rich.console import Console  # start-up time

        # Without force_jupyter=False, rich would also display each table separately in a notebook.
        console = Console(record=True, width=80, file=io.StringIO(), force_jupyter=False)
        self.show(console)
        return console.export_html(inline_styles=True, code_format=f"<pre style='{_PRE}'>{{code}}</pre>")

    def __repr__(self) -> str:
        points = sum(len(one["points"]) for one in self["series"])
        unfinished = "" if self.get("complete", True) else ", not finished"
        return f"<Result of {', '.join(self.protocols) or 'nothing'}: {counted(points, 'point')}{unfinished}>"


def as_documents(
    results: Mapping[str, Any] | str | os.PathLike[str] | Sequence[Mapping[str, Any] | str | os.PathLike[str]],
) -> list[dict[str, Any]]:
    """Return results as documents.

    Each item may be a result or the name of its file. A single item needs no list.

    Raises
    ------
    viakit.measure.result.ResultError
        If an item is not a result.
    """
    given = [results] if isinstance(results, (Mapping, str, os.PathLike)) else list(results or ())
    documents = [result.load(one) if isinstance(one, (str, os.PathLike)) else one for one in given]
    for one in documents:
        if not isinstance(one, Mapping) or "series" not in one:
            raise result.ResultError(f"{str(one)[:40]!r} is not a viakit result; give a result or the name of its file")
    return [dict(one) for one in documents]
