"""Loads libkvconvert_ops.so: torch.ops.kvconvert."""

import functools
import os
import pathlib

import torch

ENVIRONMENT = "KVCONVERT_OPS"  # a path of the library, for development


def _candidates() -> list[pathlib.Path]:
    named = os.environ.get(ENVIRONMENT)
    if named:
        return [pathlib.Path(named)]
    package = pathlib.Path(__file__).resolve().parent
    return [package / "libkvconvert_ops.so", package.parents[1] / "build/cpu/lib/libkvconvert_ops.so"]


@functools.cache
def ops():
    """torch.ops.kvconvert, with the library loaded. Raises ImportError naming where it was looked for."""
    for path in _candidates():
        if path.is_file():
            torch.ops.load_library(str(path))
            return torch.ops.kvconvert
    if os.environ.get(ENVIRONMENT):
        raise ImportError(f"kvconvert: {ENVIRONMENT} names no file: {os.environ[ENVIRONMENT]}; correct or unset it")
    places = " nor ".join(str(path) for path in _candidates())
    raise ImportError(f"kvconvert: no library at {places}; install the package with pip, or set {ENVIRONMENT}")
