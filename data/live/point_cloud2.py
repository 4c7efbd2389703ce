"""The message sensor_msgs/PointCloud2 of ROS: records of any fields, in rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from data.point_fields import Cloud, Field, cloud_of, columns_of, require_size

TYPES = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}  # by datatype


def read_point_cloud2(message: Any, source: object) -> Cloud:
    """Raises ValueError for sizes that do not fit together, or missing fields."""
    width, height, step = int(message.width), int(message.height), int(message.point_step)
    row = int(message.row_step)
    require_size(width * height * step, source)
    content = np.ascontiguousarray(message.data, np.uint8)
    if row != width * step and height > 1:
        if row < width * step or len(content) < height * row:
            raise ValueError(
                f"{source}: {len(content)} bytes are not {height} rows of {row}, with {width} "
                f"points of {step} each"
            )
        rows = content[: height * row].reshape(height, row)
        content = np.ascontiguousarray(rows[:, : width * step]).reshape(-1)
    order = ">" if message.is_bigendian else "<"
    fields = [
        Field(str(field.name), np.dtype(order + TYPES[field.datatype]), int(field.offset))
        for field in message.fields
        if field.datatype in TYPES
    ]
    columns = columns_of(content.data, fields, width * height, step, source)
    return cloud_of(columns, source)
