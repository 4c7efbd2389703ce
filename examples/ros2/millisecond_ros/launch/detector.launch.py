"""Starts the detector and makes it active: ros2 launch millisecond_ros detector.launch.py
points:=/lidar/points. It is installed in both packages, and starts the node of its own."""

from pathlib import Path

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from lifecycle_msgs.msg import Transition

ARGUMENTS = {
    "points": ("points", "the topic of the clouds"),
    "weights": ("", "weights; for the node in C++ a network file"),
    "target_frame": ("", "the frame of the messages; empty: the cloud's own"),
}
PARAMETERS = ("weights", "target_frame")  # also where a name looks like a number


def generate_launch_description() -> LaunchDescription:
    declared = [
        DeclareLaunchArgument(name, default_value=default, description=text)
        for name, (default, text) in ARGUMENTS.items()
    ]
    values = {name: LaunchConfiguration(name) for name in ARGUMENTS}
    texts = {name: ParameterValue(values[name], value_type=str) for name in PARAMETERS}
    node = LifecycleNode(
        package=Path(__file__).parents[1].name,
        executable="detector",
        name="millisecond",
        namespace="",
        parameters=[texts],
        remappings=[("points", values["points"])],
        output="screen",
    )

    def change(transition: int) -> EmitEvent:
        event = ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
        return EmitEvent(event=event)

    activate = OnStateTransition(
        target_lifecycle_node=node,
        start_state="configuring",
        goal_state="inactive",
        entities=[change(Transition.TRANSITION_ACTIVATE)],
    )
    handler = RegisterEventHandler(activate)
    return LaunchDescription([*declared, node, handler, change(Transition.TRANSITION_CONFIGURE)])
