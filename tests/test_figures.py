"""Pages have the figures of the runs in docs/results, and say where a run is an earlier one."""

import json
import re
import subprocess

import pytest

from docs import figures

RUNS = sorted(path.stem for path in figures.FOLDER.iterdir())
RUN = """\
commit: 0000000
date: 2020-01-01
hardware: one
command: one
sources:
  csrc: {csrc}
weights:
  small: {small}
figures:
  time:
    one scan: {{ms: 0.455, memory: '1,234 MB'}}
"""
PAGE = """\
[**{ms} ms**; {mb} MB](results/run.yaml "time / one scan / ms; time / one scan / memory"){mark}

[source](results/run.yaml "time"){mark}

| | ms | memory |
|---|---|---|
| one scan | **{exact}** | 1,234 MB |

Of it, 0.455 ms are the GPU's. [source](results/run.yaml){mark}
"""


@pytest.mark.parametrize("page", figures.PAGES, ids=lambda page: page.stem)
def test_pages_have_the_figures_and_marks_of_their_runs(page):
    assert page.read_text(encoding="utf-8") == figures.rewritten(page), "run python -m docs.figures"
    assert not list(figures.unsourced(page))


@pytest.mark.parametrize("name", RUNS)
def test_runs_say_what_was_measured_and_are_cited(name):
    run = figures.read(name)
    assert run.keys() >= figures.KEYS and run.keys() <= figures.KEYS | figures.MAY
    assert re.fullmatch(r"[0-9a-f]{7}", run["commit"])
    assert any(f"results/{name}.yaml" in page.read_text("utf-8") for page in figures.PAGES)
    git = ["git", "cat-file", "-e", run["commit"]]
    whole = subprocess.run(["git", "rev-parse", "--is-shallow-repository"], capture_output=True)
    if whole.stdout.strip() == b"false":  # a clone with its history
        assert subprocess.run(git, cwd=figures.ROOT).returncode == 0


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a kernel, weights, a run of both and a page; gives the page."""
    for name in ("results", "csrc", "weights"):
        (tmp_path / name).mkdir()
    (tmp_path / "csrc" / "scale.cu").write_text("// doubles\nx = 2 * y;\n")
    (tmp_path / "weights" / "small.safetensors").write_bytes(b"1")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "FOLDER", tmp_path / "results")
    monkeypatch.setattr(figures, "WEIGHTS", tmp_path / "weights")
    run = RUN.format(csrc=figures.digest("csrc"), small=figures.checksum("small"))
    (tmp_path / "results" / "run.yaml").write_text(run)
    page = tmp_path / "page.md"
    write(page)
    return page


def write(page, ms="0.46", mb="1,234", exact="0.455", mark=""):
    page.write_text(PAGE.format(ms=ms, mb=mb, exact=exact, mark=mark))


def test_a_wrong_figure_is_mended(project):
    right = project.read_text()
    assert figures.rewritten(project) == right and not list(figures.unsourced(project))
    for wrong in ({"ms": "0.47"}, {"mb": "1,235"}, {"exact": "0.456"}):
        write(project, **wrong)
        assert figures.rewritten(project) == right


def test_a_citation_that_leads_nowhere_is_an_error(project):
    right = project.read_text()
    for part, wrong, said in (
        ("time / one scan / ms;", "time / two scans / ms;", "no 'two scans'"),
        ("/ ms; time", "/ ms; time / one scan / ms; time", "the run has 3 numbers"),
        ("| one scan |", "| two scans |", "no row 'two scans'"),
    ):
        project.write_text(right.replace(part, wrong))
        with pytest.raises(ValueError, match=said):
            figures.rewritten(project)


def test_a_run_of_earlier_kernels_or_weights_is_marked(project):
    kernel, weights = figures.ROOT / "csrc/scale.cu", figures.WEIGHTS / "small.safetensors"
    kernel.write_text("/* the same */ x = 2*y;")
    assert figures.rewritten(project) == project.read_text()  # only what is compiled counts
    kernel.write_text("x = 3 * y;")
    marked = figures.rewritten(project)
    assert marked.count("yaml") == marked.count(" (earlier kernels)") == 3
    weights.write_bytes(b"2")
    assert figures.rewritten(project).count(" (earlier kernels and weights)") == 3
    figures.rewritten(project)
    write(project, mark=" (earlier kernels)")
    kernel.write_text("x = 2 * y;")
    assert figures.rewritten(project).count(" (earlier weights)") == 3


def test_a_time_without_a_run_and_one_that_its_run_lacks_are_found(project):
    project.write_text("It takes 0.455 ms.\n\nIt takes 1.5 ms. [source](results/run.yaml)\n")
    assert [text.split()[1] for text in figures.unsourced(project)] == ["0.455", "1.5"]


def spconv_rows(precision):
    """Rows of the benchmark spconv: ours takes 2 ms and 10 MB, spconv 5 ms and 20 MB."""
    times = {"millisecond_ms": 2.0, "spconv_ms": 5.0, "millisecond_mb": 10.0, "spconv_mb": 20.0}
    names = ("SECOND", "U-Net", "PTv3 CPE", *(f"2 x {width}" for width in (16, 64, 128, 256, 512)))
    return [
        {"network": name, "scan": scan, "batch": batch, "precision": precision, "work": work}
        | times
        for name in names
        for scan in ("KITTI", "360")
        for batch in (1, 4)
        for work in ("inference", "training")
    ]


def bev_steps(batch):
    """Twelve layers of 100 us, two ends of 10 us, 30 us of tables, 8 us of predictions."""
    steps = [("cells and tables", None, 30), *[("128-128", 5000, 100)] * 12]
    steps += [("up 128-256, heads", 5000, 10)] * 2 + [("predictions of all cells", None, 8)]
    return [{"step": name, "batch": batch, "cells": n, "us": us} for name, n, us in steps]


FP16 = {"precision": "fp16"}
SETS = ["10 scans", "3 sweeps"]
STAGES = ("load", "voxelize", "index", "encoder", "BEV network", "cells, beside the encoder")
STAGES += ("dense BEV network", "postprocess", "report", "all in one graph")
PIPELINE = {
    "scans": SETS,
    "latency": [
        {**FP16, "path": path, "scans": scans, "p50_ms": 0.4, "p90_ms": 0.5}
        | {"p99_ms": 0.6, "p99_9_ms": 0.7}
        for path in ("graph", "eager")
        for scans in SETS
    ],
    "stages": [{**FP16, "scans": scans, **dict.fromkeys(STAGES, 0.02)} for scans in SETS],
    "throughput": [
        {**FP16, "way": way, "frames_per_second": 2500.4}
        for way in ("stream", *(f"batch of {n}" for n in (1, 2, 4, 8)))
    ],
    "memory_mb": {"fp16": 2000.6},
    "start": {**FP16, "imported": 2.71, "network": 2.9, "first boxes": 3.0},
}
ENCODER = {
    "encoder": [
        {"engine": engine, "work": work, "batch": batch, "precision": precision, "median_ms": 0.5}
        for engine in ("millisecond", "spconv")
        for work in ("forward, graph", "forward, eager", "forward + backward")
        for batch in (1, 4)
        for precision in ("fp16", "bf16", "tf32", "fp32")
    ]
}
STEP = dict.fromkeys(
    ("whole step", "backbone and heads forward", "losses and backward", "clip and update"), 1.5
) | {"of it the host's own work": 0.5}
MEASURED = {
    "bev": {
        "steps": [row for batch in (1, 4, 8) for row in bev_steps(batch)],
        "whole": [{"batch": batch, "rows_ms": 0.2, "cudnn_ms": 0.4} for batch in (1, 4, 8)],
    },
    "encoder": ENCODER,
    "encoder_precisions": ENCODER,
    "networks_fp16": {"rows": spconv_rows("fp16")},
    "networks_tf32": {"rows": spconv_rows("tf32") + spconv_rows("bf16")},
    "pipeline": PIPELINE,
    "pipeline_stages": PIPELINE,
    "train": {
        "steps": [
            {**FP16, **{f"{name}, ms": ms for name, ms in STEP.items()}, "peak memory, GiB": 2.25}
        ]
    },
}
PLACES = {
    "bev": ("network", "twelve convolutions, each by itself", "4 scans", "1.200"),
    "encoder": ("encoder", "forward and backward, AMP fp16", "1 scan", "0.500"),
    "encoder_precisions": ("encoder", "forward, tf32", "4 scans", "0.500"),
    "networks_fp16": ("fp16", "2 x 64, 360, 4", "inference, ms", "2.00, 5.00"),
    "networks_tf32": ("times as fast", "bf16, 360, 1", "U-Net", "2.5"),
    "pipeline": ("latency", "three sweeps", "p99.9", "0.700"),
    "pipeline_stages": ("batches", "ten scans", "of 4", "2,500"),
    "train": ("step", "AMP fp16", "memory", "2.25 GiB"),
}


@pytest.mark.parametrize("name", figures.FIGURES)
def test_a_run_takes_its_figures_from_the_benchmark(tmp_path, monkeypatch, name):
    """Every figure of its file, under the same names."""
    before = figures.read(name)
    (tmp_path / f"{name}.yaml").write_bytes((figures.FOLDER / f"{name}.yaml").read_bytes())
    (tmp_path / "found.json").write_text(json.dumps(MEASURED[name]))
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    figures.fill(name, tmp_path / "found.json")
    after = figures.read(name)
    table, row, column, expected = PLACES[name]
    assert after["figures"][table][row][column] == expected
    assert shape(after) == shape(before)


def test_a_benchmark_without_a_figure_changes_nothing(tmp_path, monkeypatch):
    whole = figures.FOLDER / "bev.yaml"
    (tmp_path / "bev.yaml").write_bytes(whole.read_bytes())
    monkeypatch.setattr(figures, "FOLDER", tmp_path)
    less = MEASURED["bev"] | {"whole": MEASURED["bev"]["whole"][:2]}  # no batch of 8
    (tmp_path / "found.json").write_text(json.dumps(less))
    with pytest.raises(ValueError, match="no figure network / network and heads on rows / 8 scans"):
        figures.fill("bev", tmp_path / "found.json")
    assert (tmp_path / "bev.yaml").read_bytes() == whole.read_bytes()
    with pytest.raises(ValueError, match="few_labels: copy its figures by hand"):
        figures.fill("few_labels", tmp_path / "found.json")


def shape(found):
    return {key: shape(value) for key, value in found.items()} if isinstance(found, dict) else None


def test_a_new_run_is_stamped(project, monkeypatch):
    (figures.ROOT / "csrc/scale.cu").write_text("x = 3 * y;")
    monkeypatch.setattr(figures, "PAGES", [project])
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "one"]):
        identity = ["-c", "user.name=one", "-c", "user.email=one@localhost"]
        subprocess.run(["git", *identity, *command], cwd=figures.ROOT, check=True)
    write(project, mark=" (earlier kernels)")
    figures.main(["run"])
    run = figures.read("run")
    assert run["commit"] != "0000000" and run["date"] != "2020-01-01"
    assert not figures.mark("run") and "earlier" not in project.read_text()
    (figures.ROOT / "csrc/scale.cu").unlink()
    assert figures.mark("run") == " (earlier kernels)"
    with pytest.raises(ValueError, match="not all of its sources are there"):
        figures.main(["run"])
