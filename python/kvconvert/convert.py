"""Conversions from Python: the programs' options as keyword arguments, their results as values."""

import json
import os
import pathlib
import subprocess
from typing import Any

from kvconvert_programs import ProgramError, environment, path_of

Path = str | os.PathLike


def flags(options: dict[str, Any]) -> list[str]:
    """A program's arguments: kept_ratio=0.25 is --kept-ratio 0.25, force=True is --force, validate=False is
    --no-validate, a list is a flag with several values, and None is left out."""
    arguments = []
    for name, value in options.items():
        flag = "--" + name.replace("_", "-")
        if value is None:
            continue
        if isinstance(value, bool):
            arguments.append(flag if value else "--no-" + name.replace("_", "-"))
        elif isinstance(value, (list, tuple)):
            arguments += [flag, *map(str, value)]
        else:
            arguments += [flag, str(value)]
    return arguments


def _result(checkpoint: Path, arguments: list[str]) -> dict[str, Any]:
    """What kvconvert prints. Raises ProgramError with its errors."""
    command = [path_of("kvconvert"), *arguments, "--json", "--", os.fspath(checkpoint)]
    process = subprocess.run(command, env=environment(), text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if process.returncode != 0:
        errors = [line for line in process.stderr.splitlines() if "error: " in line] or process.stderr.splitlines()[-5:]
        raise ProgramError("\n".join(errors))
    return json.loads(process.stdout)


def convert(checkpoint: Path, *, out: Path, **options: Any) -> dict[str, Any]:
    """Converts a HuggingFace directory, and returns what `kvconvert --json` prints.

    options: the program's, with underscores for dashes (docs/cli.md). Engines other than kvrun serve the method coded
    with sink=0 and window=0:
        kvconvert.convert("Llama-3.1-8B", out="small", kept_ratio=0.25, form="rotated", sink=0, window=0)
    Raises ProgramError with the program's message.
    """
    return _result(checkpoint, flags({"out": pathlib.Path(out), **options}))


def plan(checkpoint: Path, **options: Any) -> dict[str, Any]:
    """What each group of layers would cost and save, from config.json alone; options as those of convert()."""
    return _result(checkpoint, ["--plan", *flags(options)])
