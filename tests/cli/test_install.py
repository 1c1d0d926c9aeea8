"""What is installed: found by pkg-config and by find_package from any prefix, needing the C library alone, exporting only
its own names, and safe to close."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from command_line import QKVC

BUILD = pathlib.Path(QKVC).resolve().parent

PROGRAM = """#include <qkv.h>
#include <stdio.h>
int main(void) {
  qkv_options options = QKV_OPTIONS_INIT;
  qkv_engine *engine;
  options.device = "none";
  options.cache_dir = "";
  if (qkv_open(&options, &engine))
    return 1;
  puts(qkv_version());
  qkv_close(engine);
  return 0;
}
"""

CMAKE = """cmake_minimum_required(VERSION 3.22)
project(user C)
find_package(qkv 0.1 REQUIRED)
add_executable(user user.c)
target_link_libraries(user qkv::qkv)
"""


def run(*words, **more):
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=120, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not (BUILD / "cmake_install.cmake").exists() or not shutil.which("cmake") or not shutil.which("gcc"):
        pytest.skip("qkvc does not come from a CMake build folder, or cmake or gcc is missing")
    folder = tmp_path_factory.mktemp("prefix")
    run("cmake", "--install", BUILD, "--prefix", folder)
    (folder / "user.c").write_text(PROGRAM)
    return folder


@pytest.fixture(scope="module")
def library(prefix):
    return next(prefix.glob("lib*/**/libqkv.so"))


@pytest.mark.parametrize("header", ["qkv.h", "qkv_build.h", "qkv_tune.h", "qkv_pack.h"])
@pytest.mark.parametrize("compiler, standard", [("gcc", "c11"), ("g++", "c++17")])
def test_each_header_stands_alone(prefix, tmp_path, header, compiler, standard):
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    source = tmp_path / ("user.c" if compiler == "gcc" else "user.cc")
    source.write_text(f"#include <{header}>\n#include <{header}>\nint main(void) {{ return 0; }}\n")
    run(compiler, f"-std={standard}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", prefix / "include", "-c", source,
        "-o", tmp_path / "user.o")
    assert ("qkv_build_options" in run(compiler, "-E", "-I", prefix / "include", source)) == (header in ("qkv_build.h", "qkv_tune.h"))


def test_pkg_config(prefix, library):
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config")
    env = {**os.environ, "PKG_CONFIG_PATH": str(library.parent / "pkgconfig"), "LD_LIBRARY_PATH": str(library.parent)}
    flags = run("pkg-config", "--cflags", "--libs", "qkv", env=env).split()
    run("gcc", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror", prefix / "user.c", *flags, "-o", prefix / "user")
    assert run(prefix / "user", env=env) == run("pkg-config", "--modversion", "qkv", env=env)


def test_find_package(prefix):
    project = prefix / "project"
    project.mkdir()
    shutil.copy(prefix / "user.c", project)
    (project / "CMakeLists.txt").write_text(CMAKE)
    run("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={prefix}")
    run("cmake", "--build", project / "build")
    assert run(project / "build" / "user")


def test_needs_only_the_c_library(prefix, library):
    for binary in (library, prefix / "bin" / "qkvc"):
        needed = [line.split("[")[1].split("]")[0] for line in run("readelf", "-d", binary).splitlines() if "(NEEDED)" in line]
        assert not [name for name in needed if name.split(".")[0] not in ("libc", "libm", "libdl", "libpthread", "ld-linux-x86-64",
                                                                          "ld-linux-aarch64")], needed


def test_exports_only_its_own_names(library):
    names = [line.split()[-1] for line in run("nm", "-D", "--defined-only", library).splitlines()]
    assert names and not [name for name in names if not name.startswith("qkv_")]


def test_a_thread_may_outlive_dlclose(library):
    """A thread's message is freed when the thread ends, with code of the library."""
    run(sys.executable, "-c", """
import _ctypes, ctypes, sys, threading
library = ctypes.CDLL(sys.argv[1])
failed, closed = threading.Event(), threading.Event()
def work():
    spec = ctypes.c_void_p()
    assert library.qkv_spec_check(b"/nowhere/no.yaml", 0, ctypes.byref(spec)) != 0
    failed.set()
    closed.wait()
thread = threading.Thread(target=work)
thread.start()
failed.wait()
_ctypes.dlclose(library._handle)
closed.set()
thread.join()
""", library)
