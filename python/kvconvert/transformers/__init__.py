"""Converted checkpoints in transformers: Auto classes load them, and their cache holds codes."""

from kvconvert.transformers.cache import CodedCache
from kvconvert.transformers.families import FAMILIES, register

__all__ = ["CodedCache", "FAMILIES", "register"]
