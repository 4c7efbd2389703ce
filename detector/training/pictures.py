"""Pictures of a validation: what the network finds in the first frames beside the ground truth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detector.draw.birds_eye import draw_birds_eye
from detector.draw.style import Palette
from detector.draw.view import View
from detector.models.second import Second
from detector.training.validation import Forward, Validation

FRAMES = 4  # that are drawn


def draw_first_frames(
    validation: Validation, model: Second, forward: Forward, point_range: Sequence[float]
) -> dict[str, np.ndarray]:
    """RGB images [H, W, 3] uint8 by name, from above; point_range: what they show, metres."""
    view, palette = View.of_grid(point_range), Palette(validation.classes)
    pictures = {}
    for index in range(min(FRAMES, len(validation.dataset))):
        frame = validation.dataset[index]
        found = validation.detect(model, forward, frame).named(validation.classes)
        pictures[f"frame {frame.frame_id}"] = draw_birds_eye(
            frame.points,
            palette.paint(frame.boxes, frame.names),
            palette.paint(found.boxes, found.names, found.scores),
            title=frame.frame_id,
            view=view,
        )
    return pictures
