"""Names the packages: each folder of the top level is installed as a part of `millisecond`.

With MILLISECOND_PREBUILT=FOLDER, as `make wheel` sets it, the wheel holds the compiled kernels in
FOLDER and is for one platform.
"""

import json
import os
import re
import shutil
from pathlib import Path

from setuptools import Distribution, find_namespace_packages, setup

FOLDERS = ("ops", "data", "detector", "tools", "configs", "examples")
PARTS = find_namespace_packages(include=[*FOLDERS, *(f"{folder}.*" for folder in FOLDERS)])
PREBUILT = os.environ.get("MILLISECOND_PREBUILT")


def with_kernels(folder: Path) -> dict[str, dict]:
    """The arguments of setup() for a wheel of one platform."""
    from setuptools.command.bdist_wheel import bdist_wheel  # setuptools 70.1 has it
    from setuptools.command.build_py import build_py

    machine = json.loads((folder / "kernels.json").read_text())["machine"]
    linked = b"".join(path.read_bytes() for path in folder.glob("*.so"))
    glibc = max(int(version) for version in re.findall(rb"GLIBC_2\.(\d+)", linked))

    class BuildWithKernels(build_py):
        def run(self) -> None:
            super().run()
            shutil.copytree(folder, Path(self.build_lib, "millisecond", "ops", "prebuilt"))

    class WithLibraries(Distribution):
        def has_ext_modules(self) -> bool:
            return True

    class PlatformWheel(bdist_wheel):
        def get_tag(self) -> tuple[str, str, str]:  # bindings know torch, but not Python
            return "py3", "none", f"manylinux_2_{glibc}_{machine}"

    beside = folder.parent / "setuptools"  # build/lib would bring the kernels into later wheels
    shutil.rmtree(beside, ignore_errors=True)
    return {
        "distclass": WithLibraries,
        "cmdclass": {"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel},
        "options": {"build": {"build_base": str(beside)}},
    }


setup(
    packages=["millisecond", *(f"millisecond.{part}" for part in PARTS)],
    **(with_kernels(Path(PREBUILT)) if PREBUILT else {}),
)
