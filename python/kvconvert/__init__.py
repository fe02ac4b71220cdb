"""Converts checkpoints so that their KV cache is smaller, and runs them in transformers and vLLM."""

import importlib.util

if importlib.util.find_spec("transformers") is not None:
    from kvconvert.transformers import register as _register

    _register()
