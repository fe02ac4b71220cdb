"""Converts checkpoints so that their KV cache is smaller, and runs them in transformers and vLLM.

Importing this package makes transformers' Auto classes load converted directories.
"""

import importlib.util
import os

from kvconvert.convert import convert, plan
from kvconvert.factors import ConversionError
from kvconvert.plans import read_config
from kvconvert.show import Conversion, show
from kvconvert_programs import ProgramError

__all__ = ["Conversion", "ConversionError", "ProgramError", "convert", "load", "plan", "show"]

if importlib.util.find_spec("transformers") is not None:
    from kvconvert.transformers import register as _register

    _register()


def load(directory: str | os.PathLike, **options):
    """The model of a converted directory, with a cache of codes; options are those of transformers' from_pretrained,
    and exact_step=True, with which tokens attend exactly to the tokens of their own forward pass. Raises ConversionError for a
    directory that is not converted."""
    from transformers import AutoModelForCausalLM

    if os.path.isdir(directory):
        read_config(os.path.join(directory, options.get("subfolder") or ""))
    elif os.path.isabs(directory) or os.fspath(directory).startswith("."):
        raise ConversionError(f"{directory}: no such directory; expected one that kvconvert wrote, or a name on a hub")

    return AutoModelForCausalLM.from_pretrained(os.fspath(directory), **options)
