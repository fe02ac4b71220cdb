"""Starts the programs of kvconvert. They are linked with the libraries of the torch that is installed.

This package imports nothing heavy: a console script is as quick to start as the program itself.
"""

import importlib.metadata
import importlib.util
import os
import pathlib
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


def environment() -> dict[str, str]:
    """The environment of a program: it finds torch's libraries. Raises ProgramError for another torch."""
    folder = os.environ.get(TORCH_LIB)
    if folder is None:
        spec = importlib.util.find_spec("torch")
        found = importlib.metadata.version("torch") if spec else "none"
        if not found.startswith(TORCH):
            raise ProgramError(f"torch {found}: the programs run with torch {TORCH}x; install it in an environment of "
                               f"its own, or set {TORCH_LIB} to its lib directory")
        folder = str(pathlib.Path(spec.submodule_search_locations[0]) / "lib")
    others = os.environ.get("LD_LIBRARY_PATH")
    return {**os.environ, "LD_LIBRARY_PATH": folder + (f":{others}" if others else "")}


def main() -> None:
    """The console scripts: runs the program that has the script's name."""
    name = pathlib.Path(sys.argv[0]).stem
    try:
        program, variables = path_of(name), environment()
    except ProgramError as error:
        sys.exit(f"{name}: error: {error}")
    os.execve(program, [name, *sys.argv[1:]], variables)
