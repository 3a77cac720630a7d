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

from viakit.measure import result

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from rich.console import Console

    from viakit.measure.comparison import Comparison
    from viakit.measure.fit import Fits

__all__ = ["Result"]


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
        if suffix == ".json":
            result.save(self, path)
        elif suffix == ".csv":
            result.save_csv(self, path)
        else:
            from viakit.measure import plot

            if suffix not in plot.FORMATS:
                kinds = ", ".join((".json", ".csv", *plot.FORMATS))
                raise result.ResultError(f"{path}: no such format; end the name with one of {kinds}")
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
        """``"transfer"``, ``"barrier"``, ``"application"`` or ``"faults"``: what the series are of."""
        for one in self["series"]:
            if "algorithm" in one:
                return "barrier"
            if "application" in one:
                return "application"
            if "loss" in one:
                return "faults"
        return "transfer"

    def picture(self, suffix: str = ".png") -> bytes:
        """Return :meth:`plot` as the bytes of a file: ".png", ".svg", ".pdf", and ".html" for transfers.

        Raises
        ------
        viakit.measure.result.ResultError
            If there is nothing to draw, or not in this format.
        """
        from viakit.measure import plot

        if self.kind == "transfer":
            return plot.picture([self], suffix)
        if suffix == ".html":
            raise result.ResultError("only transfers are drawn as .html; give .png, .svg or .pdf")
        buffer = io.BytesIO()
        self.plot().savefig(buffer, format=suffix[1:])
        return buffer.getvalue()

    def show(self, console: Console) -> None:
        """Print the tables."""
        if self.kind == "barrier":
            from viakit import barrier

            barrier.show(self, console)
        elif self.kind == "application":
            from viakit.apps import speedup_report

            speedup_report.show(self, console)
        elif self.kind == "faults":
            from viakit.measure import loss

            loss.show(self, console)
        else:
            from viakit.measure import table

            table.show(self, console)

    def plot(self, *others: Mapping[str, Any], **kw: Any) -> Figure:
        """Draw with Matplotlib, *others* over it, and return the figure.

        Keywords are those of :func:`viakit.measure.plot.figure`, for instance ``graphs=["time"]``; of barriers, of
        applications and of faults the usual picture is drawn.
        """
        from viakit.measure import plot

        if self.kind == "barrier":
            from viakit import barrier

            return barrier.figure([self, *map(dict, others)], **kw)
        if self.kind == "application":
            from viakit.apps import speedup_report

            return speedup_report.figure(self, **kw)
        if self.kind == "faults":
            from viakit.measure import loss

            return loss.figure(self, **kw)
        return plot.figure([self, *map(dict, others)], **kw)

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
        """Return the points as a DataFrame, one row per point: the columns of the CSV, and ``copies``, ``frames_sent``,
        ... per message. Times in seconds.

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
                "without it, save('result.csv') writes the same table"
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
                row |= {name: point[name] for name in ("bandwidth_Bps", "samples", "lost") if name in point}
                rows.append(row | (per_message(point) if "counters" in point else {}))
        return rows

    def _repr_html_(self) -> str:
        """Show picture and tables in a notebook."""
        import base64

        if not any(one["points"] for one in self["series"]):
            return "<p>This result has no points.</p>"
        try:
            picture = base64.b64encode(self.picture()).decode()
            drawn = f'<img alt="{self.kind}" style="max-width:100%" src="data:image/png;base64,{picture}">'
        except result.ResultError:
            drawn = ""  # for instance a speed-up without its serial program
        return drawn + self._tables()

    def _tables(self) -> str:
        if self.kind == "transfer":
            from viakit.measure import report

            return report.tables_html(self)
        from rich.console import Console

        console = Console(record=True, width=140, file=io.StringIO())
        self.show(console)
        return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")

    def __repr__(self) -> str:
        points = sum(len(one["points"]) for one in self["series"])
        unfinished = "" if self.get("complete", True) else ", not finished"
        return f"<Result of {', '.join(self.protocols) or 'nothing'}: {points} points{unfinished}>"


def as_documents(results: Sequence[Mapping[str, Any] | str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return results that may be given as such, or as names of their files, as documents."""
    return [result.load(one) if isinstance(one, (str, os.PathLike)) else dict(one) for one in results]
