"""The kinds of conversion that engines run."""

import pathlib

from kvconvert.checkpoints import ConvertedCheckpoint
from kvconvert.codes import CodedCheckpoint
from kvconvert.factors import ConversionError
from kvconvert.fused import FusedCheckpoint
from kvconvert.latents import LatentCheckpoint
from kvconvert.plans import read_config

KINDS: tuple[type[ConvertedCheckpoint], ...] = (CodedCheckpoint, LatentCheckpoint, FusedCheckpoint)


def kind_of(plan: dict) -> type[ConvertedCheckpoint]:
    """The kind of a plan, and ConvertedCheckpoint for one that kvrun alone runs."""
    try:
        return next((kind for kind in KINDS if kind.takes(plan)), ConvertedCheckpoint)
    except (KeyError, TypeError) as error:
        raise ConversionError(f"config.json: kvconvert.plan: {error!r}; convert again") from error


def open_checkpoint(directory: str | pathlib.Path) -> ConvertedCheckpoint:
    """A directory that engines run. Raises ConversionError for any other."""
    return kind_of(read_config(directory)["kvconvert"]["plan"])(directory)
