"""A wheel that holds compiled kernels: they are chosen; what keeps them from running is named."""

import ctypes
import json
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from millisecond.ops import check, library, toolchain
from millisecond.ops.toolchain import Toolchain
from tests.ops.test_library import COMPLETE, machine  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
KERNELS = {"machine": platform.machine(), "cuda": "13.0", "targets": ["8.0", "9.0a", "12.0+PTX"]}


@pytest.fixture
def wheel(machine, monkeypatch):  # noqa: F811
    """The folder of a wheel for torch 2.11 on this machine, whose kernels are an empty library; an
    H200, torch 2.11 for CUDA 13, no nvcc."""
    folder = machine / "prebuilt"
    folder.mkdir()
    (folder / "kernels.json").write_text(json.dumps(KERNELS))
    (folder / "libmillisecond_kernels.so").touch()
    (folder / "bindings-torch2.11.so").touch()
    monkeypatch.setattr(toolchain, "PREBUILT", folder)
    monkeypatch.setattr(torch, "__version__", "2.11.0+cu130")
    monkeypatch.setattr(toolchain, "driver_version", lambda: 13000)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(machine / "cache"))
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "7.5")  # is for what is compiled here
    no_nvcc = COMPLETE._replace(cuda_home=None, nvcc=None, known=())
    monkeypatch.setattr(Toolchain, "find", lambda: no_nvcc)
    return folder


@pytest.fixture
def loaded(monkeypatch):
    """The libraries that are loaded, in order."""
    names = []
    monkeypatch.setattr(ctypes, "CDLL", lambda path: names.append(Path(path)))
    monkeypatch.setattr(torch.ops, "load_library", lambda path: names.append(Path(path)))
    return names


def test_its_kernels_and_bindings_are_loaded_and_nothing_is_compiled(
    wheel, loaded, monkeypatch, capsys
):
    library.extension()
    assert loaded == [wheel / "libmillisecond_kernels.so", wheel / "bindings-torch2.11.so"]
    assert check.main() == 0
    text = capsys.readouterr().out
    assert "of this wheel, CUDA 13.0" in text and "8.0 9.0a 12.0+PTX" in text
    assert "H200, 9.0: wgmma kernels" in text
    assert not (wheel.parent / "cache").exists()


@pytest.mark.parametrize(
    ("gpu", "kernels"), [((8, 9), "mma.sync"), ((12, 1), "mma.sync"), ((9, 0), "wgmma")]
)
def test_gpus_between_the_targets_run_code_of_the_next_lower_one(wheel, monkeypatch, gpu, kernels):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: gpu)
    assert toolchain.kernels_of(gpu) == kernels and not toolchain.without_code()


def test_a_checkout_compiles():
    assert toolchain.Prebuilt.find() is None
    assert any(name.endswith(".cu") for name in library.read_sources())


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"driver": 12080}, "driver is for CUDA 12.8, .* for CUDA 13.0: install a newer NVIDIA d"),
        ({"gpu": (7, 5)}, r"wheel \(8.0 9.0a 12.0\+PTX\) has no code for a GPU of 7.5: install"),
        ({"machine": "riscv"}, f"for riscv, this machine is {platform.machine()}: install the"),
        ({"cuda": None}, "built without CUDA: pip install torch"),
        ({"gone": True}, r"no GPU is visible \(.*\): check nvidia-smi"),
        (
            {"torch": "2.12.1"},
            r"2.12.1, .* bindings-torch2.11: no C\+\+ compiler .*: apt",
        ),
        ({"torch": "2.12.1", "headers": False}, "no CUDA headers: pip install nvidia-cuda-runtime"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(wheel, loaded, monkeypatch, capsys, change, line):
    monkeypatch.setattr(toolchain, "driver_version", lambda: change.get("driver", 13000))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: change.get("gpu", (9, 0)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "gone" not in change)
    monkeypatch.setattr(torch.version, "cuda", change.get("cuda", "13.0"))
    monkeypatch.setattr(torch, "__version__", change.get("torch", "2.11.0"))
    cuda = wheel.parent / "cuda"
    (cuda / "include" / "crt").mkdir(parents=True)
    if change.get("headers", True):
        (cuda / "include" / "crt" / "host_config.h").touch()
    bare = COMPLETE._replace(cuda_home=cuda, nvcc=None, compiler=None)
    monkeypatch.setattr(Toolchain, "find", lambda: bare)
    (wheel / "kernels.json").write_text(
        json.dumps(KERNELS | {"machine": change.get("machine", platform.machine())})
    )
    with pytest.raises(library.BuildError, match=line) as error:
        library.extension()
    assert "\n" not in str(error.value)
    assert check.main() == 1 and str(error.value) in capsys.readouterr().out


def test_bindings_of_another_torch_are_compiled_as_one_source_without_nvcc(
    wheel, loaded, monkeypatch
):
    monkeypatch.setattr(torch, "__version__", "2.12.1")
    headers = wheel.parent / "cuda" / "include" / "crt" / "host_config.h"
    headers.parent.mkdir(parents=True)
    headers.touch()
    tools = COMPLETE._replace(cuda_home=wheel.parent / "cuda", nvcc=None)
    monkeypatch.setattr(Toolchain, "find", lambda: tools)
    calls = []

    def load(name, sources, *, build_directory, **options):
        calls.append((Path(sources[0]).read_text(), options))
        Path(build_directory, f"{name}.so").touch()

    monkeypatch.setattr(cpp_extension, "load", load)
    library.extension()
    ((text, options),) = calls
    included = {Path(line.split('"')[1]).name for line in text.splitlines()}
    assert included == {path.name for path in library.SOURCES.rglob("*_torch.cpp")}
    assert str(headers.parents[1]) in options["extra_include_paths"]
    assert {"-lc10_cuda", str(wheel / "libmillisecond_kernels.so")} <= set(options["extra_ldflags"])
    assert loaded[0] == wheel / "libmillisecond_kernels.so"
    assert loaded[1].is_relative_to(wheel.parent / "cache") and loaded[1].exists()


def test_a_wheel_with_kernels_is_for_one_platform(tmp_path):
    for part in ("ops", "millisecond"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    prebuilt = tmp_path / "made" / "prebuilt"
    prebuilt.mkdir(parents=True)
    (prebuilt / "kernels.json").write_text(json.dumps(KERNELS | {"machine": "aarch64"}))
    (prebuilt / "libmillisecond_kernels.so").write_bytes(b"GLIBC_2.9\0GLIBC_2.34\0GLIBC_2.2.5\0")
    build = "import sys; from setuptools import build_meta; build_meta.build_wheel(sys.argv[1])"
    for environment in ({"MILLISECOND_PREBUILT": str(prebuilt)}, {}):
        subprocess.run(
            [sys.executable, "-c", build, str(tmp_path)],
            cwd=tmp_path,
            env={"PATH": "/usr/bin:/bin", **environment},
            check=True,
            capture_output=True,
        )
    plain, special = sorted(tmp_path.glob("*.whl"))
    assert special.name.endswith("-py3-none-manylinux_2_34_aarch64.whl")
    assert plain.name.endswith("-py3-none-any.whl")
    home = "millisecond/ops/prebuilt/"
    names = zipfile.ZipFile(special).namelist()
    assert {home + "kernels.json", home + "libmillisecond_kernels.so"} <= set(names)
    assert not any(home in name for name in zipfile.ZipFile(plain).namelist())
