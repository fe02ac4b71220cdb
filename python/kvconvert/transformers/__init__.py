"""Converted checkpoints in transformers: Auto classes load them, and their cache holds codes."""

from kvconvert.configs import FAMILIES
from kvconvert.transformers.cache import CodedCache
from kvconvert.transformers.families import register

__all__ = ["CodedCache", "FAMILIES", "register"]
