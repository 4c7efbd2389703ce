"""How colcon installs the package; docs/ros2.md says how to build and run it."""

from setuptools import setup

NAME = "millisecond_ros"

setup(
    name=NAME,
    version="0.2.0",
    packages=[NAME],
    data_files=[
        ("share/ament_index/resource_index/packages", [f"resource/{NAME}"]),
        (f"share/{NAME}", ["package.xml"]),
        (f"share/{NAME}/launch", ["launch/detector.launch.py"]),
    ],
    entry_points={"console_scripts": [f"detector = {NAME}.node:main"]},
)
