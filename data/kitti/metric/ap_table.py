"""The result of the KITTI metric as a table to read."""

from data.kitti.metric.average_precision import SAMPLES
from data.kitti.metric.evaluation import MIN_OVERLAP, OPERATING_SCORE, Result

LEVELS = ("easy", "mod.", "hard")
HEADER = (
    f"{'':9}{'AP R40 (ground truths)':<48}{'AP R11':<25}{'recall':<13}precision\n"
    f"{'':9}{''.join(f'{level:<16}' for level in LEVELS)}"
    f"{''.join(f'{level:<8}' for level in LEVELS)}    e   m   h     e   m   h"
)
NOTES = {
    "*": f"fewer than {SAMPLES} ground truths: the {SAMPLES} places of recall cap the AP "
    "(20 found perfectly give 47.5 at R40, 45.5 at R11)",
    "-": "no ground truth of this class and difficulty: see the limits of height in the image, "
    "occlusion and truncation",
}


def format_table(result: Result) -> str:
    """A block per class and overlap, a row per metric; every AP beside its number of objects.

    AP, recall and precision are in percent; recall and precision as evaluation.evaluate
    defines them. Marks, explained below the table, show where AP is capped or there is nothing.
    """
    lines = [HEADER]
    marks: set[str] = set()
    for name, metrics in result.items():
        block = None
        for metric, figures in metrics.items():
            kind, _, overlap = metric.partition("@")
            if block != overlap:
                block = overlap
                lines.append(f"{name}, overlap {overlap or _benchmark_overlap(name)}")
            marks |= {_mark(count) for count in figures["count"]} - {""}
            lines.append(_row(kind, figures))
    lines.append(f"recall and precision: of detections that score at least {OPERATING_SCORE}")
    lines += [f"{mark} {note}" for mark, note in NOTES.items() if mark in marks]
    return "\n".join(lines)


def _benchmark_overlap(name: str) -> float:
    return MIN_OVERLAP[name][0]


def _mark(count: int) -> str:
    if count == 0:
        return "-"
    return "*" if count < SAMPLES else ""


def _row(kind: str, figures: dict[str, list]) -> str:
    counts = figures["count"]
    r40 = "".join(
        f"{_ap(v, n) + f' ({n})':<16}" for v, n in zip(figures["R40"], counts, strict=True)
    )
    r11 = " ".join(_ap(v, n) for v, n in zip(figures["R11"], counts, strict=True))
    shares = ("".join(f"{100 * v:4.0f}" for v in figures[key]) for key in ("recall", "precision"))
    return f"  {kind:<5}{r40}{r11}  {'  '.join(shares)}"


def _ap(value: float, count: int) -> str:
    return f"{'' if count == 0 else f'{value:.2f}':>6}{_mark(count) or ' '}"
