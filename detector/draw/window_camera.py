"""From where Open3D's window looks at the scene: from behind, from above, after an object."""

from collections.abc import Mapping

import numpy as np

from detector.draw.scene import EYE, FIELD_OF_VIEW, TARGET
from detector.draw.scene_content import REACH
from detector.draw.style import EMPTY, BoxSet
from detector.draw.view import View
from detector.draw.viewpoint import Viewpoint

BEHIND = np.array([-12.0, 0.0, 7.0])  # metres from the object that is followed to the eye
UP, FORWARD = (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)


class WindowCamera:
    """The camera of a SceneWidget."""

    def __init__(self, widget):
        self._widget = widget
        self._followed = 0  # number of a track

    def viewpoint(self) -> Viewpoint:
        """From where the scene is seen now."""
        camera, frame = self._widget.scene.camera, self._widget.frame
        focal = camera.get_projection_matrix()[1, 1] * frame.height / 2
        matrix = np.asarray(camera.get_view_matrix(), np.float64)
        return Viewpoint(matrix, float(focal), (frame.width, frame.height))

    def look_from_behind(self) -> None:
        """From behind and above the sensor, as at first."""
        self._followed = 0
        self._look(TARGET, EYE, UP)

    def look_down(self, points: np.ndarray, sets: Mapping[str, BoxSet]) -> None:
        """From above onto all there is, forward being up."""
        self._followed = 0
        view = View.of_data(points, [shown.boxes for shown in sets.values()])
        target = np.array([sum(view.x) / 2, sum(view.y) / 2, 0.0])
        reach = max((view.x[1] - view.x[0]), (view.y[1] - view.y[0]) * 9 / 16) / 2
        height = 1.2 * reach / np.tan(np.radians(FIELD_OF_VIEW) / 2)
        self._look(target, target + np.array([-0.01, 0.0, height]), FORWARD)

    def follow_next(self, sets: Mapping[str, BoxSet]) -> None:
        """Follow the nearest track or, after one, the next farther one; after the last, none."""
        found = sets.get("detections", EMPTY)
        ids = np.zeros(0, np.int64) if found.ids is None else found.ids
        order = [i for i in np.argsort(np.hypot(*found.boxes[:, :2].T)) if i < len(ids) and ids[i]]
        numbers = [int(ids[i]) for i in order]
        place = numbers.index(self._followed) + 1 if self._followed in numbers else 0
        if place < len(numbers):
            self._followed = numbers[place]
            self.follow(sets)
        else:
            self.look_from_behind()

    def follow(self, sets: Mapping[str, BoxSet]) -> None:
        """Move with the followed track; where it is lost, the camera stays."""
        found = sets.get("detections", EMPTY)
        if not self._followed or found.ids is None:
            return
        for i in np.flatnonzero(found.ids == self._followed):
            target = np.asarray(found.boxes[i, :3], np.float64)
            self._look(target, target + BEHIND, UP)

    def _look(self, target: np.ndarray, eye: np.ndarray, up: tuple[float, float, float]) -> None:
        import open3d as o3d

        bounds = o3d.geometry.AxisAlignedBoundingBox(np.full(3, -REACH), np.full(3, REACH))
        self._widget.setup_camera(FIELD_OF_VIEW, bounds, np.zeros(3, np.float32))
        self._widget.look_at(target, eye, np.array(up))
