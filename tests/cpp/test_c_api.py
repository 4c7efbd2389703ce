"""The C API where there is no GPU: header, version, structs that grow, log, package."""

import re
import shutil
import subprocess

import pytest

from tests.cpp import network_arrays
from tests.cpp.conftest import CPP, ROOT

HEADER = CPP / "include" / "millisecond.h"


def run(*command, **options):
    """What a command prints; it must succeed."""
    words = list(map(str, command))
    result = subprocess.run(words, stdout=-1, stderr=-2, text=True, check=False, **options)
    assert result.returncode == 0, result.stdout
    return result.stdout


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("language", [("gcc", "c", "c99"), ("g++", "c++", "c++17")])
def test_the_header_is_plain_c(language):
    compiler, name, standard = language
    flags = ["-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
    run(compiler, "-x", name, f"-std={standard}", *flags, HEADER)


def test_the_version_is_the_project_s():
    numbers = re.findall(r"^#define MS_VERSION_[A-Z]+ (\d+)$", HEADER.read_text(), re.M)
    assert f'\nversion = "{".".join(numbers)}"\n' in (ROOT / "pyproject.toml").read_text()


@pytest.fixture(scope="session")
def host_part(tmp_path_factory):
    """The library without its kernels, which are looked for when they are called."""
    if shutil.which("nvcc") is None:
        pytest.skip("no nvcc")
    folder = tmp_path_factory.mktemp("host_part")
    together = folder / "all.cpp"  # headers are read once
    sources = [*sorted((CPP / "src").glob("*.cpp")), ROOT / "examples" / "detect.cpp"]
    lines = [f'#include "{source}"\n' for source in sources]
    together.write_text("".join(["#define main example\n", *lines]))
    includes = [f"-I{path}" for path in (CPP / "src", CPP / "include", ROOT / "ops" / "csrc")]
    flags = "-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers,-Werror"
    link = f"--unresolved-symbols=ignore-all,--version-script={CPP / 'exports.map'}"
    options = ["-std=c++17", "-shared", "-Xcompiler", flags, "-Xlinker", link]
    run("nvcc", *options, *includes, together, "-o", folder / "libmillisecond.so")
    return folder / "libmillisecond.so"


def test_what_the_header_declares_is_exported_and_nothing_else(host_part):
    listed = run("nm", "-D", "--defined-only", host_part).splitlines()
    declared = re.findall(r"^MS_API [^;]*?\b(ms_\w+)\(", HEADER.read_text(), re.M)
    assert len(declared) > 30
    assert sorted(line.split()[2] for line in listed) == sorted(declared)


def test_a_program_in_c(host_part, network, tmp_path):
    program, damaged = tmp_path / "without_gpu", tmp_path / "damaged.network"
    content = bytearray(network.read_bytes())
    content[1000] ^= 1
    damaged.write_bytes(content)
    flags = ["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Wno-missing-field-initializers"]
    flags += ["-Werror", f"-I{HEADER.parent}"]
    link = "-Wl,--unresolved-symbols=ignore-all,-z,lazy"
    source = ROOT / "tests" / "cpp" / "without_gpu.c"
    run("gcc", *flags, source, host_part, link, "-o", program)
    fault = f"2 {damaged}: is damaged or cut off: its checksum differs"
    grown = "info: has fields that this older library does not know, of 28 bytes it knows 20"
    filling = 0x55555555
    arrays = network_arrays.read(network)
    depth, height, width = arrays["encoder.shapes"][-1]
    layers = sum(name.startswith("encoder.") and name.endswith(".weight") for name in arrays)
    channels = depth * arrays[f"encoder.{layers - 1}.weight"].shape[2]
    unchanged = " ".join([str(filling)] * 4)
    assert run(program, network, damaged).splitlines() == [
        "version 200 200",
        "describe 0 ",
        f"numbers 20 4 {channels} {height} {width} 0",
        "describe 0 ",
        f"numbers 12 4 {channels} {filling} {filling} {filling}",
        "describe 0 ",
        f"numbers 28 4 {channels} {height} {width} 0",
        f"describe 1 {grown}; leave them zero",
        f"numbers 28 {unchanged} {filling}",
        "describe 1 info.size: is 0; set it to the struct's sizeof, 20",
        f"numbers 0 {unchanged} 0",
        "describe 1 info.size: is 1073741824; set it to the struct's sizeof, 20",
        f"numbers 1073741824 {unchanged} 0",
        "null 1 info: is null",
        "shape 0 ",
        "numbers 5 10 16",
        "shape 1 window.dilation: 0 is not from 1 to 1073741823",
        "shape 1 shape: 0 is not from 1 to 1073741823",
        "shape 1 shape: the output would be too large",
        "gradient 1 gradient: is null",
        "interpolate 1 queries: -1 is not from 0 to 1073741822",
        "tracker 0 ",
        "update 0 ",
        "tracks 0",
        "update 0 ",
        "tracks 1",
        "update 1 time 0.05 is not after 0.1, the time of the scan before; begin another "
        "recording with another Tracker",
        "tracks 1",
        "track 1 1 3 0.75 at 10 2",
        f"log 0 {fault[2:]}",
        f"open {fault}",
        "log 0 detector: is null",
        "begin 1 detector: is null",
        "collect 1 job: is null",
    ]


PROJECT = """
cmake_minimum_required(VERSION 3.24)
project({name} VERSION 0.2.0 LANGUAGES C)
{rest}
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_find_package(tmp_path):
    """The part of CMakeLists.txt that makes the package, around a library of one function."""
    lists = (CPP / "CMakeLists.txt").read_text()
    part = re.search(r"^include\(GNUInstallDirs\).*?^$", lists, re.M | re.S)[0]
    (library := tmp_path / "library").mkdir()
    shutil.copytree(HEADER.parent, library / "include")
    include = "target_include_directories(millisecond PRIVATE include)\n"
    target = "add_library(millisecond SHARED one.c)\n" + include
    (library / "CMakeLists.txt").write_text(PROJECT.format(name="millisecond", rest=target + part))
    (library / "one.c").write_text(
        "#include <millisecond.h>\nint32_t ms_version(void) { return MS_VERSION; }\n"
    )
    (robot := tmp_path / "robot").mkdir()
    rest = (
        "find_package(millisecond ${WANTED} REQUIRED)\nadd_executable(robot robot.c)\n"
        "target_link_libraries(robot PRIVATE millisecond::millisecond)\n"
    )
    (robot / "CMakeLists.txt").write_text(PROJECT.format(name="robot", rest=rest))
    (robot / "robot.c").write_text(
        "#include <millisecond.h>\nint main(void) { return ms_version() != MS_VERSION; }\n"
    )
    build, installed = tmp_path / "build", tmp_path / "installed"
    run("cmake", "-S", library, "-B", build)
    run("cmake", "--build", build)
    run("cmake", "--install", build, "--prefix", installed)
    assert "libmillisecond.so.0]" in run("readelf", "-d", build / "libmillisecond.so")
    for place in (build, installed):
        inside = robot / place.name
        configure = ["cmake", "-S", robot, "-B", inside, f"-DCMAKE_PREFIX_PATH={place}"]
        if place == build:
            with pytest.raises(AssertionError, match="requested version"):
                run(*configure, "-DWANTED=1.0")
        run(*configure, "-DWANTED=0.2")
        run("cmake", "--build", inside)
        run(inside / "robot")
        shutil.rmtree(library, ignore_errors=True)  # the installation needs nothing of them
        shutil.rmtree(build, ignore_errors=True)
