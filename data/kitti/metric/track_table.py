"""The counts of tracking as a table to read, and as figures."""

import math
from collections.abc import Iterable, Mapping

from data.kitti.metric.track_counts import TrackingCounts

HEADER = (
    f"{'':12}{'MOTA':>7}{'MOTP':>7}{'IDF1':>7}{'switches':>10}{'fragments':>11}{'false pos.':>12}"
    f"{'misses':>8}{'objects':>9}"
)
ALL = "all"


def format_tracks(result: Mapping[str, TrackingCounts], runs: int = 1) -> str:
    """A row per class and one of all together: shares in percent, counts per run."""
    rows = dict(result)
    if len(rows) > 1:
        rows[ALL] = sum_counts(result.values())
    return "\n".join([HEADER, *(_row(name, counts, runs) for name, counts in rows.items())])


def figures(
    result: Mapping[str, TrackingCounts], runs: int = 1
) -> dict[str, dict[str, float | None]]:
    """The numbers of the table per class, shares from 0 to 1; None where nothing can be shared."""
    rows = {**result, ALL: sum_counts(result.values())}
    return {name: {**_shares(counts), **_counts(counts, runs)} for name, counts in rows.items()}


def sum_counts(parts: Iterable[TrackingCounts]) -> TrackingCounts:
    first, *others = parts
    return sum(others, first)


def _shares(counts: TrackingCounts) -> dict[str, float | None]:
    shares = {"mota": counts.mota, "motp": counts.motp, "idf1": counts.idf1}
    return {name: None if math.isnan(value) else value for name, value in shares.items()}


def _counts(counts: TrackingCounts, runs: int) -> dict[str, float]:
    names = ("switches", "fragmentations", "false_positives", "misses", "objects")
    return {name: getattr(counts, name) / runs for name in names}


def _row(name: str, counts: TrackingCounts, runs: int) -> str:
    shares = "".join(
        f"{'-' if value is None else f'{100 * value:.1f}':>7}" for value in _shares(counts).values()
    )
    numbers = "".join(
        f"{value:>{width}.{0 if runs == 1 else 1}f}"
        for value, width in zip(_counts(counts, runs).values(), (10, 11, 12, 8, 9), strict=True)
    )
    return f"  {name:10}{shares}{numbers}"
