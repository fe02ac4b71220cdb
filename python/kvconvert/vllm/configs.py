"""Configuration classes of converted checkpoints: each family's own, under the model type `kvconvert_<family>`.

Processes exchange configurations by pickle, which looks a class up by its name in this module. Classes are therefore made
on demand, in every process that asks.
"""

from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING, PretrainedConfig

from kvconvert.vllm.families import ARCHITECTURES, CLASS_PREFIX, PREFIX, REFUSED, served_architecture


@cache
def config_class(family: str) -> type[PretrainedConfig]:
    """The configuration class of `family`'s converted checkpoints."""
    base = CONFIG_MAPPING[family]

    class Converted(base):
        model_type = PREFIX + family
        kvconvert: dict | None = None  # what config.json says about the conversion

        def __post_init__(self, **kwargs: Any) -> None:
            super().__post_init__(**kwargs)
            # config.json names the family's class, which would run without the codes.
            self.architectures = [served_architecture(family)]

    Converted.__name__ = Converted.__qualname__ = f"{CLASS_PREFIX}_{family}_Config"
    Converted.__module__ = __name__
    return Converted


def __getattr__(name: str) -> Any:
    for family in (*ARCHITECTURES, *REFUSED):
        if name == f"{CLASS_PREFIX}_{family}_Config":
            return config_class(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
