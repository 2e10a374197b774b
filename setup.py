"""Drives CMake for the extension module. What is built, from what and how, is in CMakeLists.txt alone."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).parent.resolve()
# Persistent and per Python version, because pip's own build folder is a new temporary one each time.
BUILD_FOLDER = ROOT / "build" / str(sys.implementation.cache_tag)


def tool(name: str) -> str:
    """This environment's program first: pip leaves its scripts out of PATH, and a system's cmake may be too old."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
    found = shutil.which(name, path=path)
    if found is None:
        raise SystemExit(f"{name} was not found; `pip install {name}` provides it")
    return found


def cmake(*arguments: object) -> None:
    command = [tool("cmake"), *map(str, arguments)]
    if subprocess.run(command).returncode != 0:
        raise SystemExit(f"`{shlex.join(command)}` failed; the reason is above")


class CMakeBuild(build_ext):
    def build_extension(self, ext: Extension) -> None:
        options = [f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}", f"-DPython_EXECUTABLE={sys.executable}"]
        options += shlex.split(os.environ.get("CMAKE_ARGS", ""))
        cmake("-S", ROOT, "-B", BUILD_FOLDER, "-G", "Ninja", *options)
        cmake("--build", BUILD_FOLDER)
        self.install_to(Path(self.get_ext_fullpath(ext.name)).parent)

    def copy_extensions_to_source(self) -> None:
        # Editable and in-place builds: setuptools would copy the module and leave its build facts behind.
        for ext in self.extensions:
            package, _, _ = ext.name.rpartition(".")
            self.install_to(Path(self.get_finalized_command("build_py").get_package_dir(package)))

    def install_to(self, folder: Path) -> None:
        cmake("--install", BUILD_FOLDER, "--prefix", folder.resolve())


setup(ext_modules=[Extension("eagle3_ext._C", sources=[])], cmdclass={"build_ext": CMakeBuild})
