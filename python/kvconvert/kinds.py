"""The kinds of conversion that engines run."""

import pathlib

from kvconvert.checkpoints import ConvertedCheckpoint
from kvconvert.codes import CodedCheckpoint
from kvconvert.fused import FusedCheckpoint
from kvconvert.latents import LatentCheckpoint
from kvconvert.plans import read_config, reading

KINDS: tuple[type[ConvertedCheckpoint], ...] = (CodedCheckpoint, LatentCheckpoint, FusedCheckpoint)


def kind_of(plan: dict, path: str | pathlib.Path = "config.json") -> type[ConvertedCheckpoint]:
    """The kind of a plan, of the file `path`, and ConvertedCheckpoint for one that kvrun alone runs."""
    with reading(path):
        return next((kind for kind in KINDS if kind.takes(plan)), ConvertedCheckpoint)


def open_checkpoint(directory: str | pathlib.Path) -> ConvertedCheckpoint:
    """A directory that engines run. Raises ConversionError for any other."""
    return kind_of(read_config(directory)["kvconvert"]["plan"], pathlib.Path(directory) / "config.json")(directory)
