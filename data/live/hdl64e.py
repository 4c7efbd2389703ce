"""Which HDL-64E it is, and its calibration: it sends both itself, a byte per packet."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import yaml

from data.live.optional import require

STATUS = 2 * 4160  # packets in which the whole calibration comes once at least
# by series: the calibration of another sensor of it, for want of the own one
SERIES = {
    "HDL-64E-S1": "HDL-64E_S1-utexas.yml",
    "HDL-64E-S2": "HDL-64E_S2.1-sztaki.yml",
    "HDL-64E-S3": "HDL-64E_S3-VeloView.yml",
}
USUAL = "HDL-64E-S3"


def calibrated(packets: Sequence[bytes], said: str) -> tuple[str, Any, str]:
    """The series, its calibration for velodyne-decoder, and a note where that is not the own one.

    said: what is known: one of SERIES, or HDL-64E.
    """
    library = require("velodyne_decoder", "velodyne-decoder")
    bundled = require("velodyne_decoder.calibrations", "velodyne-decoder").get_bundled_calibration
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it tells of each try
            status = library.hdl64e.read_status_info(packets)
            lasers = library.hdl64e.status_info_to_calib_dict(status)
    except (ValueError, KeyError):
        series = said if said in SERIES else USUAL
        note = f"no calibration in the packets; that of another {series} is used"
        if said not in SERIES:
            note += "; say another series by e.g. ?model=HDL-64E-S2"
        return series, bundled(SERIES[series]), note
    series = f"HDL-64E-{status['Model']}"
    return series, library.Calibration.from_string(yaml.dump(lasers)), ""


def model_of(series: str) -> Any:
    """What velodyne-decoder calls it."""
    models = require("velodyne_decoder", "velodyne-decoder").Model
    return getattr(models, series.replace("HDL-64E-", "HDL64E_"))
