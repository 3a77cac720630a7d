"""Results as objects: draw them, tabulate them, fit models to them, compare them.

A :class:`Result` is the dict of a ``viakit.result/1`` with methods. Whatever takes a document takes a Result, and
``json.dump`` writes it as it is.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viakit._words import counted
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


class Result(dict[str, Any]):
    """A measured result: the dict of schema ``viakit.result/1``, with methods.

    ::

        mine = Result.load("today.json")
        mine.plot()
        mine.to_pandas()

    In a notebook it shows itself as its picture and its tables.
    """

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Result:
        """Read and check a result file. Raises :class:`viakit.measure.result.ResultError`."""
        return cls(result.load(path))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write to *path*: JSON, CSV, or a picture, as its suffix says (.json .csv .png .svg .pdf .html).

        Raises
        ------
        viakit.measure.result.ResultError
            For another suffix, or if the file cannot be written; what was there before is then untouched.
        """
        suffix = Path(path).suffix.lower()
        result.check_writable(path)  # says what to do, which the failure of writing cannot
        if suffix == ".json":
            result.save(self, path)
        elif suffix == ".csv":
            result.save_csv(self, path)
        else:
            from viakit.measure import plot

            if suffix not in plot.FORMATS:
                known = ", ".join((".json", ".csv", *plot.FORMATS))
                raise result.ResultError(f"{path}: no such format; end the name with one of {known}")
            result.write_file(path, self.picture(suffix))
        return Path(path)

    @property
    def protocols(self) -> list[str]:
        """Names of what was measured, in order."""
        return list(dict.fromkeys(one["protocol"] for one in self["series"]))

    def series(self, protocol: str, **key: Any) -> Mapping[str, Any]:
        """Return the first series of *protocol* whose fields match *key* (``mode="stream"``).

        Raises
        ------
        KeyError
            If there is none; the message says what there is.
        """
        for one in self["series"]:
            if one["protocol"] == protocol and all(one.get(name) == value for name, value in key.items()):
                return one
        raise KeyError(f"no series of {protocol!r} with {key or 'any key'}; there are {', '.join(self.protocols)}")

    @property
    def kind(self) -> str:
        """``"transfer"``, ``"barrier"``, ``"collective"``, ``"application"`` or ``"faults"``: what the series are of.

        Of a document with several kinds, that of its first series.
        """
        return _KINDS[next(iter(kinds.split(self)))]

    def picture(self, suffix: str = ".png") -> bytes:
        """Return :meth:`plot` as the bytes of a file: ".png", ".svg", ".pdf", and ".html" for transfers.

        Raises
        ------
        viakit.measure.result.ResultError
            If there is nothing to draw, or not in this format.
        """
        from viakit.measure import plot

        if kinds.common_kind([self], ["this result"]) == kinds.TRANSFERS:
            return plot.picture([self], suffix)
        if suffix == ".html":
            raise result.ResultError("only transfers are drawn as .html; give .png, .svg or .pdf")
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format=suffix[1:])
        return buffer.getvalue()

    def show(self, console: Console) -> None:
        """Print the tables."""
        kinds.show(self, console)

    def plot(self, *others: Mapping[str, Any] | str | os.PathLike[str], **kw: Any) -> Figure:
        """Draw with Matplotlib, *others* (results, or names of their files) over it, and return the figure.

        Keywords are those of :func:`viakit.measure.plot.figure`, for instance ``graphs=["time"]``; of other kinds than
        transfers, only ``title``.

        Raises
        ------
        viakit.measure.result.ResultError
            If there is nothing to draw, or if they are of different kinds.
        """
        return kinds.figure([self, *as_documents(others)], **kw)

    def fit(self, seed: int = 0) -> Fits:
        """Fit Hockney's and the LogGP model, and find knees with their probable cause: :mod:`viakit.measure.fit`.

        ::

            fits = result.fit()
            fits["tcp"].n_half.value, fits["tcp"].knees
        """
        from viakit.measure import fit

        return fit.fit(self, seed)

    def compare(self, other: Mapping[str, Any] | str | os.PathLike[str], **kw: Any) -> Comparison:
        """Compare with *other*, an earlier result or its file: what has changed from it to this one.

        Keywords are those of :func:`viakit.measure.comparison.compare`.
        """
        from viakit.measure import comparison

        return comparison.compare(as_documents([other]), self, **kw)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the points as a DataFrame, one row per point: what tells its series from the others, its times in
        seconds, and ``copies``, ``frames_sent``, ... per message, where messages were counted.

        Raises
        ------
        ImportError
            Without pandas; the message says how to install it.
        """  # noqa: D205
        try:
            import pandas
        except ImportError:
            raise ImportError(
                "to_pandas() needs pandas, which viakit does not require. Remedy: pip install 'viakit[pandas]'; "
                "without it, rows() has the same, and save('result.csv') writes the times"
            ) from None
        return pandas.DataFrame(self.rows())

    def rows(self) -> list[dict[str, Any]]:
        """Return the points as flat dictionaries, one per point: what :meth:`to_pandas` makes its rows of."""
        from viakit.measure.report import per_message

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
        """Show picture and tables in a notebook."""
        import base64

        if not any(one["points"] for one in self["series"]):
            return "<p>This result has no points.</p>"
        shown = ""
        for part in map(Result, kinds.split(self).values()):
            try:
                picture = base64.b64encode(part.picture()).decode()
                shown += f'<img alt="{part.kind}" style="max-width:100%" src="data:image/png;base64,{picture}">'
            except result.ResultError:
                pass  # for instance a speed-up without its serial program
            shown += part._tables()
        return shown

    def _tables(self) -> str:
        if self.kind == "transfer":
            from viakit.measure import report

            return report.tables_html(self)
        from rich.console import Console

        # In a notebook rich would show each table by itself as well.
        console = Console(record=True, width=140, file=io.StringIO(), force_jupyter=False)
        self.show(console)
        return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")

    def __repr__(self) -> str:
        points = sum(len(one["points"]) for one in self["series"])
        unfinished = "" if self.get("complete", True) else ", not finished"
        return f"<Result of {', '.join(self.protocols) or 'nothing'}: {counted(points, 'point')}{unfinished}>"


def as_documents(
    results: Mapping[str, Any] | str | os.PathLike[str] | Sequence[Mapping[str, Any] | str | os.PathLike[str]],
) -> list[dict[str, Any]]:
    """Return results that may be given as such, or as names of their files, as documents; one may stand alone.

    Raises
    ------
    viakit.measure.result.ResultError
        If one is no result.
    """
    given = [results] if isinstance(results, (Mapping, str, os.PathLike)) else list(results or ())
    documents = [result.load(one) if isinstance(one, (str, os.PathLike)) else one for one in given]
    for one in documents:
        if not isinstance(one, Mapping) or "series" not in one:
            raise result.ResultError(f"{str(one)[:40]!r} is no viakit result: give one, or the name of its file")
    return [dict(one) for one in documents]
