"""Pictures and tables: files of the right kind, with the measured values."""

import itertools
import json
import math
import re

import pytest
from rich.console import Console
from synthetic import SyntheticPair, SyntheticTestbed

from viakit.measure import interactive, plot, report, sweep, table
from viakit.measure.look import looks
from viakit.measure.result import ResultError

MAGIC = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF-", ".html": b"<!doctype html>"}


@pytest.fixture(scope="module")
def _measured():
    SyntheticPair.reset()
    config = sweep.Config(["via-eth", "tcp", "via-shm"], [8, 64, 4096, 1 << 20], seconds=1, seed=3)
    return sweep.run(config, pair_class=SyntheticPair, testbed_class=SyntheticTestbed).document


@pytest.fixture
def document(_measured):
    return json.loads(json.dumps(_measured))


@pytest.mark.parametrize("suffix", plot.FORMATS)
def test_every_format(document, tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    plot.save([document], path)
    data = path.read_bytes()
    assert data.startswith(MAGIC[suffix])
    assert len(data) > 5000


def test_html_needs_no_network(document):
    text = plot.html([document])
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']https?:", text)
    assert "Plotly.newPlot" in text


def test_curves_are_the_points(document):
    drawn = plot.curves([document])
    assert [one["label"] for one in drawn] == ["via-eth, two hosts", "tcp, two hosts", "via-shm, one host"]
    assert len({(one["look"].colour, one["look"].marker) for one in drawn}) == 3
    first = document["series"][0]["points"]
    assert drawn[0]["nbytes"] == [point["nbytes"] for point in first]
    assert drawn[0]["Bps"][0] == pytest.approx(first[0]["nbytes"] / first[0]["one_way_s"]["median"])
    for one in drawn:
        assert all(a <= b <= c for a, b, c in zip(one["low_s"], one["time_s"], one["high_s"], strict=True))
        assert all(a <= b <= c for a, b, c in zip(one["low_Bps"], one["Bps"], one["high_Bps"], strict=True))


def test_a_picture_says_what_it_shows_and_where(document):
    assert plot.figure([document]).get_suptitle() == "via-eth, tcp and via-shm"
    document["series"] = document["series"][:2]
    canvas = plot.figure([document])
    assert canvas.get_suptitle() == "via-eth and tcp between two hosts"
    first = document["series"][0]["points"][0]["one_way_s"]["median"] * 1e6
    assert f"{first:.3g} µs" in [text.get_text() for text in canvas.axes[1].texts]
    assert "via-eth and tcp between two hosts" in plot.html([document])
    assert plot.figure([document], title="mine").get_suptitle() == "mine"
    for one in document["series"]:
        one["protocol"] = f"msg-tcp:{one['protocol']},eager_limit=128000,copy_recv=1"
    assert plot.figure([document]).get_suptitle() == "2 protocols between two hosts", "the title is cut off"


def test_several_files_are_told_apart(document):
    labels = [one["label"] for one in plot.curves([document, document], ["before", "after"])]
    assert len(set(labels)) == len(labels) == 6
    assert labels[0].endswith("[before]")


def test_times_that_are_alike_are_written_below_each_other(document):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawing = plot.figure([document, document, document], names=["a", "b", "c"], graphs=("throughput", "signature"))
    FigureCanvasAgg(drawing).draw()
    boxes = [text.get_window_extent() for text in drawing.axes[1].texts if text.get_text().endswith("µs")]
    assert len(boxes) == 9
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])
        assert box.y0 > drawing.axes[1].get_window_extent().y0


def test_times_hide_neither_each_other_nor_the_first_mark_of_a_curve(document):
    document["series"] = document["series"][:3]
    for one, factor in zip(document["series"], (1.0, 1.4, 1.7), strict=True):
        for point in one["points"]:
            point["one_way_s"] = dict.fromkeys(point["one_way_s"], 2e-6 * factor * max(1, point["nbytes"] / 65536))
            point["bandwidth_Bps"] = point["nbytes"] / point["one_way_s"]["median"]
    canvas = plot.figure([document])
    canvas.canvas.draw()
    graph = canvas.axes[1]
    boxes = [text.get_window_extent() for text in graph.texts if text.get_text().endswith("µs")]
    assert len(boxes) == 3
    for one, other in itertools.combinations(boxes, 2):
        assert not one.overlaps(other)
    for line in graph.lines:
        if not line.get_label().startswith("_"):
            x, y = graph.transData.transform((line.get_xdata()[0], line.get_ydata()[0]))
            assert not any(box.contains(x, y) for box in boxes)


def test_sizes_are_powers_of_two_in_pictures_and_pages(document):
    for axis, graph in zip(interactive.figure([document]).select_xaxes(), ("throughput", "signature"), strict=False):
        names = plot.size_ticks(plot.curves([document]), most=6)[1]
        assert axis.ticktext == (tuple(names) if graph == "throughput" else None)
    assert plot.size_ticks([])[1] == ["1\xa0B", "8\xa0B", "64\xa0B", "512\xa0B", "4\xa0KiB", "32\xa0KiB", "256\xa0KiB"]
    assert len(plot.size_ticks([{"nbytes": [1, 1 << 22]}], most=6)[0]) <= 6


def test_axes_say_what_they_are(document):
    canvas = plot.figure([document], graphs=("throughput", "signature", "time"))
    labels = [(ax.get_xlabel(), ax.get_ylabel()) for ax in canvas.axes]
    assert labels[0] == ("message size", "throughput")
    canvas.canvas.draw()
    ticks = [one.get_text() for one in canvas.axes[0].get_yticklabels()]
    assert any(re.fullmatch(r"\d+ [kMG]B/s", one) for one in ticks), ticks
    assert labels[1][0] == "one-way time, half the round trip, µs"
    assert labels[2][1] == "one-way time, half the round trip, µs"


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ((2.1, 800), []),
        ((2.1, 60), ["5", "20", "50"]),
        ((1.5, 9), ["2", "5"]),
        ((3.1, 3.6), None),
    ],
)
def test_a_short_logarithmic_axis_has_labels_between_powers_of_ten(document, limits, expected):
    points = [{**one, "one_way_s": dict.fromkeys(one["one_way_s"], 1e-6) | {"ci95": [1e-6, 1e-6]}}
              for one in document["series"][1]["points"][:2]]  # fmt: skip
    axis = (
        plot.figure([document | {"series": [document["series"][1] | {"points": points}]}], graphs=("time",))
        .axes[0]
        .yaxis
    )
    axis.axes.set_ylim(*limits)
    plot._few_decades(axis)
    low, high = limits
    texts = [axis.get_minor_formatter()(tick, None) for tick in axis.get_minorticklocs() if low <= tick <= high]
    if expected is None:  # round numbers, which Matplotlib chooses
        assert len(texts) == len(set(texts)) > 1, texts
    else:
        assert [text for text in texts if text] == expected


def test_names_stand_at_the_ends_of_lines_apart_from_each_other(document):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawing = plot.figure([document, document], names=["a", "b"])
    FigureCanvasAgg(drawing).draw()
    last = drawing.axes[-1]
    names = [text for text in last.texts if text.get_text().endswith(("[a]", "[b]"))]
    assert [one.get_text() for one in names] == [one["label"] for one in plot.curves([document, document], ["a", "b"])]
    boxes = [one.get_window_extent() for one in names]
    for i, box in enumerate(boxes):
        assert box.x0 >= last.get_window_extent().x1, "it covers the curves"
        assert box.x1 <= drawing.bbox.x1, "it is cut off"
        assert not any(box.overlaps(other) for other in boxes[:i])
    assert drawing.legends == []


def test_a_ratio_or_the_tail_stands_beside_the_signature(document):
    assert plot.usual_graphs([document]) == ("throughput", "signature", "ratio")
    ratios = plot.curves([document], intervals=True)[1]
    via, tcp = (one["points"][0]["one_way_s"]["median"] for one in document["series"][:2])
    assert ratios["ratio"][0] == pytest.approx(tcp / via)
    assert ratios["low_ratio"][0] <= ratios["ratio"][0] <= ratios["high_ratio"][0]
    document["series"] = document["series"][:1]
    assert plot.usual_graphs([document]) == ("throughput", "signature", "p99")
    drawing = plot.figure([document])
    tail = [point["one_way_s"]["p99"] * 1e6 for point in document["series"][0]["points"]]
    assert list(drawing.axes[2].get_lines()[0].get_ydata()) == pytest.approx(tail)


def test_pictures_in_pages_take_the_colours_of_the_page(document):
    text = plot.inline(plot.picture([document], ".svg"), "a <sweep>")
    assert text.startswith('<svg role="img" aria-label="a &lt;sweep&gt;"')
    assert "currentColor" in text
    assert not re.search("#000000|#ffffff", text)
    assert not re.search(r'<g style="fill: #', text), "text in a colour that the page's does not lighten or darken"
    assert text.count("color-mix(in srgb, #") >= 3, "the names of the curves"
    page = report.html(document)
    assert page.index("Plotly.newPlot") < page.index("<h2>Summary</h2>"), "a report opens with its figure"
    assert "color-scheme: light dark" in page
    assert "color-scheme: light dark" in plot.html([document])


def test_names_at_the_ends_are_apart_also_if_other_values_stretch_the_axis():
    look = looks(["one", "other"])["one"]
    ends = [("one", look, 1.0, 1.0), ("other", look, 1.2, 1.0)]
    for around in ([], [1e-3, 1e3]):
        one, other = interactive.end_labels(ends, column=1, log_y=True, height=270, around=around)
        per_decade = 270 / (6 if around else math.log10(1.2))
        apart = (other["y"] - one["y"]) * per_decade + other["yshift"] - one["yshift"]
        assert apart >= 16 - 1e-6, "the names overlap"


def test_sizes_of_zero_can_be_drawn():
    SyntheticPair.reset()
    config = sweep.Config(["via-shm"], [0, 1, 64], seconds=0.2)
    document = sweep.run(config, pair_class=SyntheticPair).document
    assert plot.picture([document], ".png").startswith(MAGIC[".png"])
    assert plot.picture([document], ".png", log_y=False).startswith(MAGIC[".png"])
    assert plot.html([document])


@pytest.mark.filterwarnings("error::UserWarning")
def test_level_curves_can_be_drawn(document):
    document["series"] = document["series"][:1]
    for point in document["series"][0]["points"]:  # equal but for rounding, so that automatic limits are equal
        time_s = math.nextafter(point["nbytes"] * 1e-9, point["nbytes"] % 128)
        point["one_way_s"] = dict.fromkeys(point["one_way_s"], time_s)
        point["bandwidth_Bps"] = point["nbytes"] / time_s
    assert plot.picture([document], ".png", graphs=["throughput"]).startswith(MAGIC[".png"])


def test_what_cannot_be_drawn(document, tmp_path):
    with pytest.raises(ResultError, match=r"\.png"):
        plot.save([document], tmp_path / "a.jpeg")
    for one in document["series"]:
        one["points"] = []
    with pytest.raises(ResultError, match="nothing to draw"):
        plot.save([document], tmp_path / "a.png")


def shown(document, width=120, against=None):
    console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    table.show(document, console, against)
    console.file.close()
    return console.export_text()


def test_tables_say_how_it_was_measured(document):
    text = shown(document)
    assert "One-way time, half the round trip" in text
    assert "polled, loop in C, two hosts, MTU 1500" in text
    assert "polled, loop in C, one host" in text
    assert "core to core" in text
    assert re.search(r"64 B +1\.1\d µs ±.*3\.4\d µs ±.* 3\.\d\d", text)


def test_what_was_lost_is_counted_over_all_series_of_a_protocol(document):
    lossy = {**document, "errors": [{"protocol": "tcp", "message": "tcp: [it] went"}], "complete": False}
    tcp = next(one for one in document["series"] if one["protocol"] == "tcp")
    lossy["series"] = [
        {**tcp, "level": level, "points": [{**tcp["points"][0], "lost": n}] if n else []}
        for level, n in (("c", 7), ("python", 2))
    ]
    text = shown(lossy)
    assert "tcp: 9 frames were lost" in text
    assert "Failed: tcp: [it] went" in text
    assert "not finished" in text


def test_the_reference_can_be_chosen(document):
    assert re.search(r"64 B +3\.4\d µs ±.*1\.1\d µs ±.* 0\.3\d", shown(document, against="tcp"))
    with pytest.raises(ValueError, match="udp was not measured"):
        table.tables(document, "udp")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_nothing_is_cut_off_on_a_narrow_terminal(document, width):
    text = shown(document, width)
    assert "…" not in text
    for word in ("via-eth", "tcp", "via-shm", "1 MiB"):
        assert word in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.37e-7, "137 ns"),
        (1.117e-6, "1.12 µs"),
        (3.4e-3, "3.40 ms"),
        (2.0, "2.00 s"),
        (9.9999e-7, "1.00 µs"),
        (0.0, "0"),
    ],
)
def test_times_for_people(seconds, text):
    assert table.format_time(seconds) == text


def test_the_report_says_it_in_words(document):
    sentences = report.words(document)
    text = "\n".join(sentences)
    assert "half the round trip, polled" in text
    assert re.search(r"TCP in 3\.4\d µs: 0\.3\d of its time \(95 % interval 0\.3", text)
    assert "core to core" in text
    assert "copies of its payload" in text
    page = report.html(document)
    assert page.startswith("<!doctype html>")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']https?:", page)
    assert "data:image/png;base64," in page
    assert "seed 3" in page


def test_a_median_of_too_few_bursts_has_no_interval_in_html(document):
    for one in document["series"]:
        for point in one["points"]:
            point["one_way_s"].update(ci_of="samples", ci95=[point["one_way_s"]["median"]] * 2)
    page = report.tables_html(document)
    assert "[too few bursts]" in page
    assert not re.search(r"\[\d", page)


def test_the_report_claims_nothing_that_was_not_measured(document):
    document["series"] = [one for one in document["series"] if one["protocol"] != "via-eth"]
    document["floor"] = None
    document["skipped"] = [{"protocol": "via-eth", "reason": "<namespaces> are refused"}]
    assert "pip install 'viakit[mpich]'" in shown(
        {**document, "skipped": [{"protocol": "mpi", "reason": "pip install 'viakit[mpich]'"}]}
    ), "brackets are not markup"
    text = "\n".join(report.words(document))
    assert "Ethernet" not in text
    assert "Not measured: via-eth. <namespaces> are refused" in text
    assert "&lt;namespaces&gt; are refused" in report.html(document)


def test_a_counter_that_no_protocol_counts_has_no_column(document):
    for one in document["series"]:
        for point in one["points"]:
            point["counters"] = {"messages": 10, "system_calls": 20}
    page = report.tables_html(document)
    assert "<th>system calls</th>" in page
    assert "<th>copies</th>" not in page
    document["series"][0]["points"][0]["counters"]["copies"] = 5
    page = report.tables_html(document)
    assert "<th>copies</th>" in page
    assert "<td>0.50</td>" in page
    for one in document["series"]:
        for point in one["points"]:
            point["counters"] = {"messages": 10}
    assert "Cost of a message" not in report.tables_html(document)


@pytest.mark.parametrize("wait", ["poll", "block"])
@pytest.mark.parametrize("width", [80, 120, 220])
def test_tables_of_policies_fit_the_terminal(document, width, wait):
    """Names of policies are longer than a time; no cell is cut."""
    names = ("tcp", *(f"msg-tcp:{one}" for one in ("mpich-p4-tuned", "lam-c2c-convert", "pvm-direct-inplace")))
    names += ("msg-tcp:mpi-pro", "msg-via:mvich-rput-spin", "msg-via:mpich-gm-blocking")
    tcp = next(one for one in document["series"] if one["protocol"] == "tcp")
    text = shown({**document, "series": [{**tcp, "protocol": name, "wait": wait} for name in names]}, width)
    assert "…" not in text
    assert all(name in text for name in names)
