"""millisecond report: the page says what evaluate says, why boxes are wrong, and stands alone."""

import base64
import io
import json
import shutil
import subprocess
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from millisecond.data.metric import evaluation
from millisecond.data.metric.overlap import FrameBoxes, rings
from millisecond.tools import evaluate
from millisecond.tools.evaluate import sampled
from millisecond.tools.report import main
from tests.helpers.judged_results import write_judged_results, write_results
from tests.helpers.kitti_miniature import CAR, IDS, PEDESTRIAN


class Page(HTMLParser):
    """The tables of a page as rows of texts by the title above them, and all that it refers to."""

    def __init__(self, text: str):
        super().__init__()
        self.tables: dict[str, list[list[str]]] = {}
        self.refers, self.tags = [], set()
        self._title, self._open = "", ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.refers += [value for name, value in attributes if name in ("src", "href")]
        self._open = tag
        if tag in ("h2", "h3"):
            self._title = ""
        if tag == "tr":
            self.tables.setdefault(self._title, []).append([])
        if tag in ("td", "th"):
            self.tables[self._title][-1].append("")

    def handle_endtag(self, tag):
        self._open = ""

    def handle_data(self, text):
        if self._open in ("h2", "h3"):
            self._title += text
        elif self._open in ("td", "th"):
            self.tables[self._title][-1][-1] += text


@pytest.fixture
def judged(root, tmp_path, plain):
    """Results with known errors, and the data set."""
    results = write_judged_results(tmp_path / "results")
    (root / "ImageSets" / "most.txt").write_text("\n".join(IDS))
    return [str(results), "--root", str(root), "--split", "most", "--rings", "15"]


def test_the_page_has_the_figures_of_evaluate(judged, tmp_path):
    page, ap = tmp_path / "report.html", tmp_path / "ap.json"
    assert main([*judged, "--output", str(page)]) == 0
    files = ["--detections", *judged, "--json", str(ap)]
    assert evaluate.main([*files, "--report", str(tmp_path / "same.html")]) == 0
    result = json.loads(ap.read_text())
    tables = Page(page.read_text()).tables
    rows = iter(tables["Average precision"][1:])
    for name, least in (("Car", 0.7), ("Pedestrian", 0.5)):
        assert next(rows) == [f"{name}, overlap {least}"]
        for title, figures in result["classes"][name].items():
            if not figures["count"]:
                continue
            told, volume = next(rows), figures[f"3d@{least}"]
            assert told[:2] == [title, str(figures["count"])]
            assert told[3] == f"{volume['R40']:.1f}*"
            assert told[8] == f"{figures['centre']['mean']:.1f}"
            assert told[9:] == [f"{100 * volume[key]:.1f}" for key in ("recall", "precision")]
    assert [row[1:] for row in tables["Confusion of classes"][1:]] == [
        list(map(str, counts)) for counts in result["confusion"]["counts"]
    ]
    frames = [title for title in tables if title[:6] in IDS]
    worst = result["worst"]
    assert frames == [
        f"{f['frame']}: {f['missed']} missed, {f['false']} false, badness {f['badness']:.2f}"
        for f in worst
    ]
    missed, false = (sum(f[kind] for f in worst) for kind in ("missed", "false"))
    told = f"{8 - missed} matched, {missed} missed, {false} false"
    assert "4 frames, 8 labelled objects, " in page.read_text() and told in page.read_text()
    assert Page((tmp_path / "same.html").read_text()).tables == tables


def test_each_error_has_its_reason(judged, tmp_path):
    page = tmp_path / "report.html"
    assert main([*judged, "--output", str(page)]) == 0
    verdicts = {
        title[:6]: [(row[0], row[-1]) for row in rows[1:]]
        for title, rows in Page(page.read_text()).tables.items()
    }
    assert verdicts[IDS[1]] == [("Car", "false: no object there")]
    nothing = "missed: nothing found there"
    assert sorted(verdicts[IDS[2]]) == [("Car", nothing), ("Pedestrian", nothing)]
    share = (CAR[3] - 1) / (CAR[3] + 1)  # displaced by a metre
    low = f"best overlap {share:.2f} < 0.70"
    assert verdicts[IDS[3]] == [("Car", f"missed: {low}"), ("Car", f"false: {low}")]


def test_one_file_shows_everything_offline(judged, tmp_path):
    page = tmp_path / "report.html"
    assert main([*judged, "--output", str(page), "--worst", "1"]) == 0
    text = page.read_text()
    parsed = Page(text)
    assert "script" not in parsed.tags and "link" not in parsed.tags and "@import" not in text
    assert all(place.startswith(("data:image/png;base64,", "#s")) for place in parsed.refers)
    pictures = [place.partition(",")[2] for place in parsed.refers if place.startswith("data")]
    sizes = [Image.open(io.BytesIO(base64.b64decode(data))).size for data in pictures]
    assert len(sizes) == 2 + 2 and min(min(size) for size in sizes) > 200  # curves; views
    assert "millisecond report" in text and "@media print" in text
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is not None:
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/own"]
        command = [browser, *options, "--dump-dom", page.as_uri()]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
        assert Page(shown).tables == parsed.tables


def test_what_changed_against_earlier_results(judged, root, tmp_path):
    right = [(CAR, 0.9, "Car"), (PEDESTRIAN, 0.8, "Pedestrian")]
    frames = {name: right for name in IDS} | {IDS[0]: []}
    then = write_results(tmp_path / "then", frames)
    page = tmp_path / "report.html"
    assert main([*judged, "--against", str(then), "--output", str(page)]) == 0
    rows = Page(page.read_text()).tables[f"Against {then}"]
    objects = {row[0]: row[1:] for row in rows if len(row) == 4}
    # now found and before missed, now missed and before found, missed by both
    assert objects["Car"] == ["1", "2", "0"] and objects["Pedestrian"] == ["1", "1", "0"]
    assert [IDS[0], "2.0", "0.0", "better"] in rows and [IDS[2], "0.0", "2.0", "worse"] in rows


def test_another_page_is_not_replaced(judged, tmp_path, capsys):
    page = tmp_path / "mine.html"
    page.write_text("<p>mine</p>")
    assert main([*judged, "--output", str(page)]) == 2
    assert "mine.html: already exists and is not a report" in capsys.readouterr().err
    assert page.read_text() == "<p>mine</p>"


@pytest.mark.parametrize("count", [3, 20, 90])
def test_the_area_below_a_curve_is_its_ap_of_few_objects_too(count):
    rng = np.random.default_rng(count)
    places = rng.uniform((5, -30), (60, 30), (count, 2))
    boxes = np.column_stack([places, np.tile((-1, 4, 1.8, 1.5, 0.2), (count, 1))])
    strangers = boxes[: count // 3] + np.array([0, 300, 0, 0, 0, 0, 0])
    both = np.concatenate([boxes[: -(count // 6) or None], strangers])
    truth = FrameBoxes(boxes, ["Car"] * count, np.full(count, 9), np.zeros(count))
    scores = rng.uniform(0, 1, len(both))
    found = FrameBoxes(both, ["Car"] * len(both), np.full(len(both), 9), scores)
    overlaps = {"Car": (0.7,)}
    result = evaluation.evaluate([found], [truth], overlaps, rings([30]))
    for figures in result["classes"]["Car"].values():
        curve = figures["3d@0.7"]
        x, y = sampled(curve["curve_precision"])
        assert 100 * np.trapezoid(y, x) == pytest.approx(curve["R40"], abs=1e-9)
