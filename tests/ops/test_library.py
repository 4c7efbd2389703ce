"""Building and loading the CUDA operators: every fault says what to do."""

import ctypes
import os
import re
import shutil
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.utils import cpp_extension

from millisecond.ops import check, library
from millisecond.ops.toolchain import Toolchain, gencode, no_gpu

COMPLETE = Toolchain(Path("/cuda"), "13.0", ("75", "80", "90"), "c++ 12", sys.executable)


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A torch for CUDA 13, an H200, an empty cache; toolchain and compiler are stand-ins."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: "H200")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    monkeypatch.delenv("TORCH_CUDA_ARCH_LIST", raising=False)
    monkeypatch.setattr(Toolchain, "find", lambda: COMPLETE)
    monkeypatch.setattr(library, "register_fakes", lambda name: None)
    library._outcome.cache_clear()
    yield tmp_path
    library._outcome.cache_clear()


@pytest.fixture
def compiler(monkeypatch):
    """Stands in for torch's build and load; holds the arguments of each library."""
    calls = []

    def load(name, sources, *, build_directory, **options):
        calls.append({"sources": sources, **options})
        Path(build_directory, f"{name}.so").touch()

    monkeypatch.setattr(cpp_extension, "load", load)
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    return calls


@pytest.mark.parametrize(
    ("change", "remedy"),
    [
        ({"nvcc": None, "cuda_home": None}, "no nvcc: install a CUDA 13 toolkit"),
        ({"nvcc": None}, "CUDA_HOME=/cuda holds no bin/nvcc"),
        ({"nvcc": "12.4"}, "nvcc is of CUDA 12.4 but torch .* of CUDA 13.0: export CUDA_HOME"),
        ({"known": ("75",)}, "does not know architecture 9.0"),
        ({"compiler": None}, "no C\\+\\+ compiler .*: apt install g\\+\\+"),
        ({"ninja": None}, "no ninja: pip install ninja"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(machine, monkeypatch, change, remedy):
    monkeypatch.setattr(Toolchain, "find", lambda: COMPLETE._replace(**change))
    with pytest.raises(library.BuildError, match=remedy) as error:
        library.extension()
    assert "\n" not in str(error.value)


def test_torch_without_cuda(machine, monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(library.BuildError, match="built without CUDA: pip install torch"):
        library.extension()


@pytest.mark.parametrize(
    ("visible", "torch_says", "line"),
    [
        (
            None,
            "Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from\nhttp://",
            "no GPU is visible (Found no NVIDIA driver on your system): check nvidia-smi; a",
        ),
        (
            "0",
            "The NVIDIA driver on your system is too old (found version 12040). Please update",
            "the driver is of CUDA 12, torch of 13.0: update the driver",
        ),
        (
            "",
            "No CUDA GPUs are available",
            "DEVICES='' names no GPU of nvidia-smi -L: unset it",
        ),
        (
            "7",
            "No CUDA GPUs are available",
            "DEVICES='7' names no GPU of nvidia-smi -L: unset it",
        ),
        (
            "MIG-1",
            "No CUDA GPUs are available",
            "VISIBLE_DEVICES='MIG-1' names no GPU of nvidia-smi",
        ),
        (None, "No CUDA GPUs are available", "no GPU is visible (No CUDA GPUs are available)"),
    ],
)
def test_no_gpu(machine, monkeypatch, visible, torch_says, line):
    def init():
        raise RuntimeError(torch_says)

    def available():
        warnings.warn(f"CUDA initialization: {torch_says}", stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    words = re.escape(line)
    (said,) = no_gpu()
    assert re.search(words, said)
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "")
    with (
        pytest.warns(UserWarning, match="CUDA init"),
        pytest.raises(library.BuildError, match=words) as error,
    ):
        library.extension()
    assert "\n" not in str(error.value)


def test_two_kinds_of_gpus_are_compiled_for_and_shown(machine, compiler, monkeypatch, capsys):
    gpus = [(9, 0), (8, 6), (9, 0)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: gpus[i])
    monkeypatch.setattr(Toolchain, "find", lambda: COMPLETE._replace(known=("75", "86", "90")))
    assert gencode() == ["-gencode=arch=compute_86,code=sm_86", CODE_90A]
    assert check.main() == 0
    (build,) = compiler
    assert [flag for flag in build["extra_cuda_cflags"] if "arch" in flag] == gencode()
    shown = re.findall(r"H200, (\d\.\d): (\S+) kernels", capsys.readouterr().out)
    assert shown == [("9.0", "wgmma"), ("8.6", "mma.sync"), ("9.0", "wgmma")]


def test_a_gpu_that_is_too_old_for_the_toolkit(machine, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: (7, 0))
    with pytest.raises(library.BuildError, match=r"architecture 7\.0: .* hide a GPU that is too"):
        library.extension()


def test_a_built_library_is_loaded_without_a_compiler(machine, compiler, monkeypatch):
    library.extension()
    assert len(compiler) == 1
    assert "-gencode=arch=compute_90a,code=sm_90a" in compiler[0]["extra_cuda_cflags"]
    library._outcome.cache_clear()
    monkeypatch.setattr(Toolchain, "find", lambda: pytest.fail("the compiler was looked for"))
    library.extension()
    assert len(compiler) == 1


def test_the_folder_follows_flags_and_machine_and_the_library_its_sources(machine, monkeypatch):
    folders = {library.cache_folder()}
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "8.0;8.6+PTX")
    folders.add(library.cache_folder())
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    folders.add(library.cache_folder())
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    folders.add(library.cache_folder())
    assert len(folders) == 4
    sources = {"a.cu": b"1", "b.h": b"2"}
    libraries = {
        library.library_path(changed)
        for changed in (
            sources,
            {"a.cu": b"1", "b.h": b"3"},
            {"a.cu": b"1", "c.h": b"2"},
            {"a.cu": b"1"},
        )
    }
    assert len(libraries) == 4
    assert {path.parent for path in libraries} == {library.cache_folder()}
    monkeypatch.setattr(library, "SOURCES", machine / "csrc")
    (machine / "csrc" / "room").mkdir(parents=True)
    (machine / "csrc" / "a.cu").write_text("1")
    (machine / "csrc" / "room" / "b.h").write_text("2")
    (machine / "csrc" / "NOTES.md").write_text("3")
    assert library.read_sources() == {"a.cu": b"1", "room/b.h": b"2"}


CODE_90A = "-gencode=arch=compute_90a,code=sm_90a"
CODE_80 = "-gencode=arch=compute_80,code=sm_80"
PTX_90 = "-gencode=arch=compute_90,code=compute_90"


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        (None, [CODE_90A]),
        ("", [CODE_90A]),
        ("native", [CODE_90A]),
        ("9.0", [CODE_90A]),
        ("9.0a", [CODE_90A]),
        ("9.0;9.0a 9.0", [CODE_90A]),
        ("9.0+PTX", [CODE_90A, PTX_90]),
        ("9.0a+PTX", [CODE_90A, PTX_90]),
        ("Hopper", [CODE_90A, PTX_90]),
        ("8.0 9.0", [CODE_80, CODE_90A]),
        ("9.0; 8.0 ", [CODE_80, CODE_90A]),
        ("8.0;native", [CODE_80, CODE_90A]),
    ],
)
def test_the_code_for_hopper_has_products_of_warpgroups(
    machine, compiler, monkeypatch, wanted, flags
):
    plain = library.cache_folder()
    if wanted is not None:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wanted)
    assert gencode() == flags
    library.extension()
    (build,) = compiler
    assert [flag for flag in build["extra_cuda_cflags"] if "arch" in flag] == flags
    assert os.environ.get("TORCH_CUDA_ARCH_LIST") == wanted
    # the same flags have one folder, however they were asked for
    assert (library.cache_folder() == plain) == (flags == [CODE_90A])


def test_torch_adds_no_code_of_its_own(small, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0+PTX")
    (library.SOURCES / "c.cu").write_text('extern "C" int c() { return 3; }\n')
    monkeypatch.setattr(cpp_extension, "_run_ninja_build", lambda *_, **__: None)
    monkeypatch.setattr(cpp_extension, "CUDA_HOME", "/cuda")
    with pytest.raises(OSError):
        small()  # nothing was compiled
    (ninja,) = library.cache_folder().glob("build*/build.ninja")
    targets = [word for word in ninja.read_text().split() if "gencode" in word]
    assert targets == [CODE_90A, PTX_90]


@pytest.mark.parametrize(
    ("gpu", "wanted", "runs"),
    [
        ((9, 0), None, "9.0: wgmma kernels"),
        ((9, 0), "9.0", "9.0: wgmma kernels"),
        ((9, 0), "8.0+PTX", "9.0: mma.sync kernels; wgmma, .* is left out: .* or add 9.0"),
        ((8, 6), None, "8.6: mma.sync kernels"),
        ((8, 6), "8.0", "8.6: mma.sync kernels"),
        ((8, 0), "8.6", "8.0: no kernels"),
        ((12, 0), "9.0", "12.0: no kernels"),
        ((12, 0), "9.0+PTX", "12.0: mma.sync kernels"),
        ((7, 5), None, "7.5: general kernels"),
        ((7, 5), "9.0;8.0", "7.5: no kernels"),
        ((9, 0), "7.5+PTX", "9.0: no kernels"),  # those for tensor cores are empty there
    ],
)
def test_check_says_which_kernels_a_gpu_runs(
    machine, compiler, monkeypatch, capsys, gpu, wanted, runs
):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: gpu)
    complete = COMPLETE._replace(known=("75", "80", "86", "90", "120"))
    monkeypatch.setattr(Toolchain, "find", lambda: complete)
    if wanted:
        monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", wanted)
    covered = "no kernels" not in runs
    assert check.main() == (0 if covered else 1)
    text = capsys.readouterr().out
    assert re.search(f"H200, {runs}", text)
    if covered:
        assert len(compiler) == 1
        return
    number = f"{gpu[0]}.{gpu[1]}"
    remedy = f"{wanted} has no code for a GPU of {number}: unset it, add {number}, or hide"
    assert remedy in text
    library._outcome.cache_clear()
    with pytest.raises(library.BuildError, match=f"has no code for a GPU of {number}"):
        library.extension()
    assert not compiler


def test_an_unknown_architecture_is_named(machine, monkeypatch):
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0 sm_80")
    with pytest.raises(library.BuildError, match="names sm_80, which is not an architecture"):
        library.extension()


def test_an_annex_is_a_library_of_its_own_on_the_headers_of_csrc(machine, compiler, monkeypatch):
    for folder, name in (("csrc", "a.cu"), ("csrc", "b.h"), ("annex/room", "c.cu")):
        (machine / folder).mkdir(parents=True, exist_ok=True)
        (machine / folder / name).write_text(name)
    monkeypatch.setattr(library, "SOURCES", machine / "csrc")
    annex = library.Annex("other", machine / "annex")
    assert library.read_sources(annex) == {"b.h": b"b.h", "room/c.cu": b"c.cu"}
    named = []
    monkeypatch.setattr(library, "register_fakes", named.append)
    library.extension(annex)
    library.extension()
    assert named == ["other", "millisecond"]
    assert [[Path(path).name for path in call["sources"]] for call in compiler] == [
        ["c.cu"],
        ["a.cu"],
    ]
    folder = library.cache_folder(annex)
    assert folder.name.startswith("other_") and folder != library.cache_folder()
    assert library.library_path(library.read_sources(annex), annex).parent == folder
    assert library.library_path(library.read_sources(annex), annex).exists()


@pytest.fixture
def small(machine, monkeypatch):
    """A library of two functions on a header, built by the ninja and the compiler that are here;
    returns what builds it and says which objects were written and what the functions answer."""
    monkeypatch.setenv("TORCH_CUDA_ARCH_LIST", "9.0")
    monkeypatch.setattr(torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(library, "register_fakes", lambda name: None)
    monkeypatch.setattr(library, "SOURCES", machine / "csrc")
    library.SOURCES.mkdir()
    (library.SOURCES / "one.h").write_text("inline int one() { return 1; }\n")
    include = '#include "one.h"\n'
    (library.SOURCES / "a.cpp").write_text(include + 'extern "C" int a() { return one(); }\n')
    (library.SOURCES / "b.cpp").write_text('extern "C" int b() { return 2; }\n')

    def build():
        objects = library.cache_folder() / "build"
        before = {path.name: path.stat().st_mtime_ns for path in objects.glob("*.o")}
        cpp_extension.JIT_EXTENSION_VERSIONER.entries.clear()  # as in a new process
        library._outcome.cache_clear()
        library.extension()
        path = library.library_path(library.read_sources())
        functions = ctypes.CDLL(str(path))
        after = {path.name: path.stat().st_mtime_ns for path in objects.glob("*.o")}
        written = {name for name in after if after[name] != before.get(name)}
        return written, functions.a(), functions.b()

    return build


@pytest.mark.skipif(shutil.which("c++") is None, reason="no c++")
def test_an_edit_compiles_what_it_concerns(small):
    assert small() == ({"a.o", "b.o"}, 1, 2)
    source = library.SOURCES / "b.cpp"
    times = source.stat()
    source.write_text('extern "C" int b() { return 3; }\n')
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns - 10**12))  # an older file, unpacked
    assert small() == ({"b.o"}, 1, 3)
    (library.SOURCES / "one.h").write_text("inline int one() { return 4; }\n")
    assert small() == ({"a.o"}, 4, 3)
    source.touch()
    assert small() == (set(), 4, 3)
    source.write_text('extern "C" int b() { return 2; }\n')
    (library.SOURCES / "one.h").rename(library.SOURCES / "two.h")
    with pytest.raises(library.BuildError, match=f"{library.SOURCES}/a.cpp:1.*one.h"):
        small()
    (library.SOURCES / "two.h").rename(library.SOURCES / "one.h")
    assert small()[1:] == (4, 2)


@pytest.mark.skipif(shutil.which("c++") is None, reason="no c++")
def test_objects_of_a_killed_build_are_not_used(small):
    assert small() == ({"a.o", "b.o"}, 1, 2)
    build = library.cache_folder() / "build"
    (build / "a.o").write_bytes((build / "a.o").read_bytes()[:100])
    (build / "lock").touch()
    (library.SOURCES / "b.cpp").write_text('extern "C" int b() { return 3; }\n')
    with pytest.warns(UserWarning, match="left by a build that was killed"):
        assert small() == ({"a.o", "b.o"}, 1, 3)


def test_torchs_stale_lock_is_removed(machine, compiler):
    lock = library.cache_folder() / "build" / "lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    with pytest.warns(UserWarning, match="left by a build that was killed"):
        library.extension()
    assert not lock.exists()


def test_a_failed_build_is_told_once_in_one_line(machine, monkeypatch):
    calls = []

    def load(*_, **__):
        calls.append(1)
        raise RuntimeError("Error building extension\nFAILED: a.o\na.cu(3): error: what\nninja: x")

    monkeypatch.setattr(cpp_extension, "load", load)
    for _ in range(2):
        with pytest.raises(
            library.BuildError, match=r"failed: a\.cu\(3\): error: what; see"
        ) as error:
            library.extension()
        assert "\n" not in str(error.value)
    assert len(calls) == 1
    assert "FAILED: a.o" in (library.cache_folder() / "build" / "error.log").read_text()


def test_an_interrupted_build_leaves_no_library(machine, monkeypatch):
    def load(name, sources, *, build_directory, **options):
        Path(build_directory, f"{name}.so").write_text("half of it")
        raise KeyboardInterrupt

    monkeypatch.setattr(cpp_extension, "load", load)
    with pytest.raises(KeyboardInterrupt):
        library.extension()
    assert not library.library_path(library.read_sources()).exists()


def test_a_damaged_library_says_what_to_remove(machine):
    path = library.library_path(library.read_sources())
    path.parent.mkdir(parents=True)
    path.write_text("not a library")
    with pytest.raises(library.BuildError, match=f"remove {path.parent}"):
        library.extension()


def test_check_prints_everything_and_the_remedy(machine, monkeypatch, capsys):
    monkeypatch.setattr(Toolchain, "find", lambda: COMPLETE._replace(ninja=None))
    assert check.main() == 1
    text = capsys.readouterr().out
    for part in (
        torch.__version__,
        "H200",
        "9.0",
        "nvcc 13.0",
        "c++ 12",
        str(library.cache_folder()),
    ):
        assert part in text
    assert "no ninja: pip install ninja" in text


def test_check_of_a_machine_that_is_ready(machine, compiler, capsys):
    assert check.main() == 0
    assert "ready in" in capsys.readouterr().out
