"""What an Open3DScene shows: a cloud that keeps its place in the graphics memory, and lines.

Open3D is imported inside the functions that need it, which run in a process of their own.
"""

from collections import deque
from typing import Any

import numpy as np

from detector.draw.style import HEIGHTS, INTENSITIES, BoxSet, ramp
from detector.draw.tubes import Mesh, box_tubes, ground_rings, trail_tubes

COLOUR_BY = ("height", "intensity")
REACH = 300.0  # metres: what lies farther away is not drawn
BEHIND = 0.01  # share of the points behind the sensor from which rings go all round
LEAST = 1 << 14  # points for which there is room
COLOURS = ramp(np.arange(256), 0, 255).astype(np.float32) / 255  # [256, 3]
KEPT = 8  # clouds; the renderer reads their memory while it is behind


class SceneContent:
    """Changes only what differs from before: nothing is built again for a view or a caption.

    The geometries are "points", "rings", "trails", "ground truth" and "detections"; what is empty
    is none.
    """

    def __init__(self, scene, eye: np.ndarray, point_size: float):
        """scene: an Open3DScene. eye [3]: from where lines are as thick as they should look."""
        self._scene, self._eye = scene, eye
        self._material = material(point_size)
        self._room = 0  # points
        self._clouds: deque = deque(maxlen=KEPT)
        self._made: dict[str, object] = {}  # of what each geometry was made

    def show(
        self,
        points: np.ndarray,
        ground_truth: BoxSet,
        detections: BoxSet,
        colour_by: str = "height",
    ) -> None:
        """Points [P, 4], coloured by "height" or "intensity", and boxes."""
        points = within_reach(points)
        if self._is_new("points", (colour_by, points.tobytes())):
            self._show_points(points, colour_by)
        all_round = bool(len(points)) and bool((points[:, 0] < -1).mean() > BEHIND)
        if self._is_new("rings", all_round):
            self._show_mesh("rings", ground_rings(all_round))
        if self._is_new("ground truth", _key(ground_truth)):
            self._show_mesh("ground truth", box_tubes(ground_truth, True, self._eye))
        if self._is_new("detections", _key(detections)):
            self._show_mesh("detections", box_tubes(detections, False, self._eye))
        if self._is_new("trails", (_key(detections), *(t.tobytes() for t in detections.trails))):
            self._show_mesh("trails", trail_tubes(detections, self._eye))

    def _is_new(self, name: str, made_of: object) -> bool:
        if name in self._made and self._made[name] == made_of:
            return False
        self._made[name] = made_of
        return True

    def _show_points(self, points: np.ndarray, colour_by: str) -> None:
        import open3d as o3d
        from open3d.visualization import rendering

        if not len(points):
            self._scene.remove_geometry("points")
            self._room = 0
            return
        grown = len(points) > self._room
        if grown:
            self._room = max(LEAST, 1 << (len(points) - 1).bit_length())
        # What is over is the first point again: the renderer cannot change their number.
        places, colours = np.empty((2, self._room, 3), np.float32)
        places[: len(points)], places[len(points) :] = points[:, :3], points[0, :3]
        colours[: len(points)] = point_colours(points, colour_by)
        colours[len(points) :] = colours[0]
        tensor: Any = o3d.core.Tensor  # its types leave out arrays
        cloud = o3d.t.geometry.PointCloud(tensor(places))
        cloud.point.colors = tensor(colours)
        self._clouds.append(cloud)
        if grown:
            self._scene.remove_geometry("points")
            self._scene.add_geometry("points", cloud, self._material, False)
            self._scene.scene.set_geometry_culling("points", False)  # by the first cloud's bounds
        else:
            flags = rendering.Scene.UPDATE_POINTS_FLAG | rendering.Scene.UPDATE_COLORS_FLAG
            self._scene.scene.update_geometry("points", cloud, flags)

    def _show_mesh(self, name: str, tube: Mesh) -> None:
        import open3d as o3d

        vector = o3d.utility.Vector3dVector
        self._scene.remove_geometry(name)
        if len(tube.triangles):
            mesh = o3d.geometry.TriangleMesh(
                vector(tube.vertices), o3d.utility.Vector3iVector(tube.triangles)
            )
            mesh.vertex_colors = vector(tube.colours)
            # Without these the shader samples its (blank) texture at random places, and a software
            # driver may filter for minutes.
            mesh.triangle_uvs = o3d.utility.Vector2dVector(np.zeros((3 * len(tube.triangles), 2)))
            self._scene.add_geometry(name, mesh, self._material)


def within_reach(points: np.ndarray) -> np.ndarray:
    """The points [P, 4] that are drawn; of those that are not finite none."""
    x, y, z = np.abs(points[:, :3].T)
    near = (x < REACH) & (y < REACH) & (z < REACH)
    return points if near.all() else points[near]


def point_colours(points: np.ndarray, colour_by: str) -> np.ndarray:
    """[P, 3] float32 from 0 to 1 for points [P, 4] by "height" or "intensity"."""
    low, high = HEIGHTS if colour_by == "height" else INTENSITIES
    value = np.nan_to_num(points[:, 2 if colour_by == "height" else 3])
    return COLOURS[((value - low) * (255 / (high - low)) + 0.5).clip(0, 255).astype(np.uint8)]


def _key(shown: BoxSet) -> tuple:
    return (shown.boxes.tobytes(), shown.colours, shown.verdicts)


def material(point_size: float):
    """Colours as they are, points of so many pixels."""
    from open3d.visualization import rendering

    plain = rendering.MaterialRecord()
    plain.shader, plain.point_size = "defaultUnlit", point_size
    return plain
