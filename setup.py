"""Names the packages: each folder of the top level is installed as a part of `millisecond`."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("ops", "data", "detector", "tools", "configs", "examples")
PARTS = find_namespace_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])

setup(packages=["millisecond", *(f"millisecond.{part}" for part in PARTS)])
