"""Conversions from Python: the programs' options as keyword arguments, their results as values."""

import concurrent.futures
import json
import os
import pathlib
import signal
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from kvconvert_programs import ProgramError, environment, path_of

Path = str | os.PathLike


_ON_BY_DEFAULT = ("validate",)  # flags that --no- turns off
_FOR_PEOPLE = ("help", "version", "list_models", "plan", "json")  # what they print is no result of convert() or plan()


def flags(options: dict[str, Any]) -> list[str]:
    """A program's arguments: kept_ratio=0.25 is --kept-ratio 0.25, force=True is --force, validate=False is
    --no-validate, for_="vllm" is --for vllm, a list is a flag with several values, and None, empty lists and other flags that are
    False are left out."""
    arguments = []
    for name, value in options.items():
        if name in _FOR_PEOPLE:
            raise TypeError(f"{name} is an option of the command line alone; kvconvert.plan() and kvconvert.convert() return values")
        flag = "--" + name.rstrip("_").replace("_", "-")  # for_, as `for` is a word of Python
        if value is None or (isinstance(value, (list, tuple)) and not value):
            continue
        if isinstance(value, bool):
            if value or name in _ON_BY_DEFAULT:
                arguments.append(flag if value else "--no-" + name)
        elif isinstance(value, (list, tuple)):
            arguments += [flag, *map(str, value)]
        else:
            arguments += [flag, str(value)]
    return arguments


def _passed_on(lines: Iterable[str]) -> list[str]:
    """The lines of a program's standard error. All but its errors are passed on as they come: notes, and the progress of stages."""
    notes = []
    for line in lines:
        notes.append(line.rstrip("\n"))
        if "error: " not in line:
            sys.stderr.write(line)
            sys.stderr.flush()
    return notes


def _result(checkpoint: Path, arguments: list[str]) -> dict[str, Any]:
    """What kvconvert prints; its notes go to standard error. Raises ProgramError with its errors."""
    directory = os.fspath(checkpoint)
    if directory.startswith("-"):  # no option
        directory = os.path.join(os.curdir, directory)
    command = [path_of("kvconvert"), directory, *arguments, "--json"]
    # In a session of its own: an interrupt reaches it once, from here, and it ends what it has begun.
    with (subprocess.Popen(command, env=environment(), encoding="utf-8", errors="replace", start_new_session=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process,
          concurrent.futures.ThreadPoolExecutor(1) as reader):
        printed = reader.submit(process.stdout.read)
        try:
            notes = _passed_on(process.stderr)
        except BaseException:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            raise
    if process.returncode != 0:
        raise ProgramError("\n".join([line for line in notes if "error: " in line] or notes[-5:]))
    return json.loads(printed.result())


def convert(checkpoint: Path, *, out: Path, **options: Any) -> dict[str, Any]:
    """Converts a HuggingFace directory, and returns what `kvconvert --json` prints.

    options: the program's, with underscores for dashes (docs/cli.md), and for_ for --for:
        kvconvert.convert("Llama-3.1-8B", out="small", kept_ratio=0.25, form="rotated", for_="transformers")
    Raises ProgramError with the program's message, and TypeError for options that print something for people.
    """
    return _result(checkpoint, flags({"out": pathlib.Path(out), **options}))


def plan(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """What each group of layers would cost and save, from config.json alone; options as those of convert()."""
    return _result(checkpoint, ["--plan", *flags(options)])
