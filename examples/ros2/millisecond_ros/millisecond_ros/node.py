"""A lifecycle node: PointCloud2 in; detections, tracks, markers and diagnostics out."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import wraps
from threading import Thread
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rcl_interfaces.msg import FloatingPointRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.exceptions import ParameterException
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos import qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import PointCloud2
from tf2_ros import Buffer, TransformException, TransformListener
from vision_msgs.msg import Detection3DArray
from visualization_msgs.msg import MarkerArray

from millisecond import Detector
from millisecond.data.live.scan import Trouble
from millisecond.detector.draw.style import Palette
from millisecond.detector.following import LiveDetection, LiveFrame, Statistics
from millisecond_ros.scans import CloudQueue, hidden_classes, matrix_of, messages_of

PARAMETERS: dict[str, tuple[Any, str]] = {
    "weights": ("", "a weights file, or the name of shipped ones; empty: as Detector() chooses"),
    "device": ("", "cpu or cuda; empty: the GPU where there is one"),
    "precision": ("fp32", "fp32, bf16 or fp16, of the network"),
    "score": (0.3, "the least score that is published"),
    "classes": ([""], "the classes that are published; empty: all"),
    "target_frame": ("", "the frame of the messages, by TF; empty: the cloud's own"),
    "tracks": (True, "follow the objects from scan to scan"),
}
TOPICS = {"detections": Detection3DArray, "tracks": Detection3DArray, "markers": MarkerArray}
PATIENCE = Duration(seconds=0.1)  # for a transform that comes after its cloud
BACK = Duration(nanoseconds=-1)  # of the clock; a bag is played again, with other transforms
TURN = 0.1  # seconds after which the thread that publishes looks whether it is to end
SILENCE = 3.0  # seconds without a result, after which diagnostics warn


def told(transition: Callable[..., TransitionCallbackReturn]) -> Callable[..., Any]:
    """The transition, which fails with a line where it raises: rclpy itself says nothing."""

    @wraps(transition)
    def tried(node: DetectorNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception as error:
            node.get_logger().error(str(error))
            return TransitionCallbackReturn.FAILURE

    return tried


class DetectorNode(LifecycleNode):
    """Detects while it is active."""

    def __init__(self) -> None:
        super().__init__("millisecond")
        for name, (default, text) in PARAMETERS.items():
            told = ParameterDescriptor(description=text, read_only=True)
            if name == "score":
                told.floating_point_range = [FloatingPointRange(from_value=0.0, to_value=1.0)]
            self.declare_parameter(name, default, told)
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # ROS's own stands while a bag is paused
        self._timer = self.create_timer(1.0, self._diagnose, clock=steady)
        self._fault = ""
        self._clear()

    def _clear(self) -> None:
        self._detector: Detector | None = None
        self._running = ExitStack()  # all that runs while the node is active
        self._frames: LiveDetection | None = None

    def _value(self, name: str) -> Any:
        return self.get_parameter(name).value

    @told
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Loads the network, and detects once, which is slow the first time."""
        weights, device = self._value("weights") or None, self._value("device") or None
        detector = Detector.from_weights(weights, device, self._value("precision"))
        if others := detector.config.points.others:
            raise ValueError(f"weights: they take {', '.join(others)} of a point too")
        classes = detector.config.class_names
        self._hidden = hidden_classes([*filter(None, self._value("classes"))], classes)
        detector.warm_up()
        self._palette, self._detector = Palette(classes), detector
        self._outputs = {
            name: self.create_lifecycle_publisher(kind, f"~/{name}", 10)
            for name, kind in TOPICS.items()
        }
        self._target = self._value("target_frame")
        if self._target:
            self._buffer = Buffer()
            self._listener = TransformListener(self._buffer, self)
            back = JumpThreshold(min_forward=None, min_backward=BACK, on_clock_change=True)
            self._jumps = self.get_clock().create_jump_callback(
                back, post_callback=lambda _: self._buffer.clear()
            )
        return super().on_configure(state)

    @told
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribes; tracks begin anew."""
        assert self._detector is not None
        self._detector.forget()
        self._fault, self._whole = "", Statistics()
        self._last, self._told = time.monotonic(), (0, 0)  # result; drops and losses that were told
        self._clouds = CloudQueue(
            self.resolve_topic_name("points"), self._pose_of if self._target else None
        )
        frames = LiveDetection(self._clouds, self._detector, self._value("tracks"))
        subscription = self.create_subscription(
            PointCloud2, "points", self._clouds.put, qos_profile_sensor_data, raw=True
        )
        publishing = Thread(target=self._publish, args=(frames,), name="publishing")
        result = super().on_activate(state)
        self._frames = self._running.enter_context(frames)
        self._running.callback(publishing.join)  # what is pushed last is done first
        self._running.callback(self._clouds.close)
        self._running.callback(self.destroy_subscription, subscription)
        publishing.start()
        self.get_logger().info(f"detecting in {self.resolve_topic_name('points')}")
        return result

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Ends the subscription and the threads."""
        self._running.close()
        self._frames = None
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Lets the network go."""
        self._running.close()
        if self._detector is not None:
            for publisher in self._outputs.values():
                self.destroy_lifecycle_publisher(publisher)
            if self._target:
                self._listener.unregister()
                self._jumps.unregister()
        self._clear()
        return TransitionCallbackReturn.SUCCESS

    on_shutdown = on_cleanup

    def destroy_node(self) -> None:
        """Also when Ctrl-C has already ended ROS itself, so that no transition can be made."""
        self._running.close()
        super().destroy_node()

    def _pose_of(self, frame: str, stamp: int) -> np.ndarray:
        try:
            time = Time(nanoseconds=stamp)
            found = self._buffer.lookup_transform(self._target, frame, time, PATIENCE).transform
        except TransformException as error:
            raise ValueError(f"no transform from {frame} to {self._target}: {error}") from None
        shift, turn = found.translation, found.rotation
        return matrix_of((shift.x, shift.y, shift.z), (turn.x, turn.y, turn.z, turn.w))

    def _publish(self, frames: LiveDetection) -> None:
        """All that is found, until the queue of the clouds is closed."""
        try:
            while True:
                try:
                    result = frames.get(TURN)
                except queue.Empty:
                    continue
                if result is None:
                    return
                if isinstance(result, Trouble):
                    self.get_logger().warning(result.text)
                else:
                    self._send(result)
        except Exception as error:  # of a GPU, of memory: diagnostics tell of it from now on
            self._fault = f"{type(error).__name__}: {error}"
            self.get_logger().fatal(self._fault)

    def _send(self, frame: LiveFrame) -> None:
        score = self._value("score")
        try:
            messages = messages_of(frame, score, self._hidden, self._palette, self._target)
        except ValueError as error:
            self.get_logger().warning(str(error))
            return
        for name, message in messages.items():
            self._outputs[name].publish(message)
        self._last = time.monotonic()
        self._whole.add((time.time_ns() - (frame.scan.recorded or 0)) / 1e9, self._last)

    def _diagnose(self) -> None:
        status = DiagnosticStatus(name=f"{self.get_name()}: detector", hardware_id="millisecond")
        if self._frames is None:
            status.level, status.message = DiagnosticStatus.STALE, "not active"
        else:
            self._describe(status, self._frames.statistics)
        message = DiagnosticArray(status=[status])
        message.header.stamp = self.get_clock().now().to_msg()
        self._diagnostics.publish(message)

    def _describe(self, status: DiagnosticStatus, detection: Statistics) -> None:
        whole, losses = self._whole, (self._clouds.dropped, self._clouds.left_out)
        dropped, left_out = (now - then for now, then in zip(losses, self._told, strict=True))
        silent = time.monotonic() - self._last
        self._told = losses
        status.level, status.message = DiagnosticStatus.OK, "detecting"
        if self._fault:
            status.level, status.message = DiagnosticStatus.ERROR, self._fault
        elif silent > SILENCE:
            text = f"no result for {silent:.0f} s"
            status.level, status.message = DiagnosticStatus.WARN, text
        elif dropped or left_out:
            text = f"{dropped} clouds dropped, {left_out} left out in the last second"
            status.level, status.message = DiagnosticStatus.WARN, text
        values = {"scans": whole.frames, "dropped": losses[0], "left out": losses[1]}
        values["rate, 1/s"] = f"{whole.rate:.1f}"
        for name, times in (("detection", detection), ("cloud to messages", whole)):
            for percent, seconds in zip(
                (50, 99), times.percentiles(50, 99, recent=True), strict=True
            ):
                values[f"{name}, p{percent}, ms"] = f"{1000 * seconds:.2f}"
        status.values = [KeyValue(key=key, value=str(value)) for key, value in values.items()]


def main() -> None:
    rclpy.init()
    try:
        node = DetectorNode()
    except ParameterException as error:  # e.g. of another type
        sys.exit(str(error))
    try:
        rclpy.spin(node)
    except KeyboardInterrupt:
        pass
    except Exception:
        if rclpy.ok():  # else a signal has ended ROS, maybe within a call, which fails then
            raise
    finally:
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == "__main__":
    main()
