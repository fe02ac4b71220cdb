"""Starts the programs of kvconvert. They are linked with the libraries of the torch that is installed.

This package imports nothing heavy: a console script is as quick to start as the program itself.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
import re
import sys

PROGRAMS = ("kvconvert", "kvcalibrate", "kvfisher", "kvexport", "kvvalidate", "kvrun")
TORCH = "2.11."  # what the programs are linked with; the operators for Python load in every torch from 2.11 on
BIN = "KVCONVERT_BIN"  # a directory of programs, for development
TORCH_LIB = "KVCONVERT_TORCH_LIB"  # the lib directory of another torch


class ProgramError(RuntimeError):
    """A program that cannot be started, or that failed."""


def path_of(name: str) -> pathlib.Path:
    """The file of a program. Raises ProgramError where there is none."""
    package = pathlib.Path(__file__).resolve().parent
    named = os.environ.get(BIN)
    folders = [pathlib.Path(named)] if named else [package / "bin", package.parents[1] / "build/cpu/bin"]
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise ProgramError(f"{name}: not in {' nor '.join(map(str, folders))}; install the package with pip, or set {BIN}")


def _version_beside(lib: pathlib.Path) -> str:
    """The version of a torch, as its package or LibTorch's archive states it beside the lib directory; empty where there is none."""
    for name, stated in (("version.py", r"__version__ = ['\"]([^'\"]+)"), ("build-version", r"(\S+)")):
        file = lib.parent / name
        found = re.search(stated, file.read_text(encoding="utf-8")) if (lib / "libtorch_cpu.so").is_file() and file.is_file() else None
        if found:
            return found[1]
    return ""


def torch_lib() -> str:
    """The directory of torch's libraries: the named one, that of the installed torch, or else the one that the programs were
    built with. Raises ProgramError where none fits."""
    named = os.environ.get(TORCH_LIB)
    if named is not None:
        found = _version_beside(pathlib.Path(named))
        if not found.startswith(TORCH):
            raise ProgramError(f"{TORCH_LIB}={named}: torch {found or 'none'}, expected the lib directory of a torch {TORCH}x; name that, or "
                               "unset it")
        return named
    spec = importlib.util.find_spec("torch")
    found = importlib.metadata.version("torch") if spec else "none"
    if spec and found.startswith(TORCH):
        return str(pathlib.Path(spec.submodule_search_locations[0]) / "lib")
    record = pathlib.Path(__file__).resolve().parent / "torch_lib.txt"
    built_with = record.read_text(encoding="utf-8").strip() if record.is_file() else ""
    if built_with and (pathlib.Path(built_with) / "libtorch_cpu.so").is_file():
        return built_with
    raise ProgramError(f"torch {found}: the programs run with torch {TORCH}x, and the one that they were built with is gone"
                       f"{f' ({built_with})' if built_with else ''}; install it in an environment of its own, or set "
                       f"{TORCH_LIB} to its lib directory")


def environment() -> dict[str, str]:
    """The environment of a program: it finds torch's libraries. Raises ProgramError where there are none that fit."""
    others = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": torch_lib() + (f":{others}" if others else "")}


def main() -> None:
    """The console scripts: runs the program that has the script's name."""
    name = pathlib.Path(sys.argv[0]).stem
    try:
        program, variables = path_of(name), environment()
    except ProgramError as error:
        sys.exit(f"{name}: error: {error}")
    os.execve(program, [name, *sys.argv[1:]], variables)
