"""Configuration classes of converted directories: each family's own, under the model type `kvconvert_<family>`.

transformers' Auto classes and vLLM share them, also in one process. Processes exchange configurations by pickle, which
looks a class up by its name in this module. Classes are therefore made on demand, in every process that asks.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

from kvconvert.vllm.families import ARCHITECTURES, PREFIX, REFUSED, served_architecture

FAMILIES = (*ARCHITECTURES, *REFUSED, "deepseek_v2")  # vLLM serves none of latent attention

_when_made: list[Callable[[type[PretrainedConfig], str], None]] = []


def when_made(call: Callable[[type[PretrainedConfig], str], None]) -> None:
    """`call` gets the class and the family of every configuration before it is made."""
    if call not in _when_made:
        _when_made.append(call)


@cache
def config_class(family: str) -> type[PretrainedConfig]:
    """The configuration class of `family`'s converted directories."""
    base = CONFIG_MAPPING[family]

    class Converted(base):
        model_type = PREFIX + family
        kvconvert: dict | None = None  # what config.json says about the conversion

        def __post_init__(self, **kwargs: Any) -> None:
            for call in _when_made:
                call(type(self), family)
            super().__post_init__(**kwargs)
            # config.json names the family's class, which vLLM would run without the codes.
            self.architectures = [served_architecture(family)]

    Converted.__name__ = Converted.__qualname__ = _name(family)
    Converted.__module__ = __name__
    return Converted


def register_configs() -> None:
    """Tells AutoConfig of the families that this transformers knows. May be called again."""
    for family in FAMILIES:
        if family in CONFIG_MAPPING and PREFIX + family not in CONFIG_MAPPING:
            AutoConfig.register(PREFIX + family, config_class(family))


def _name(family: str) -> str:
    return f"KVConvert_{family}_Config"


def __getattr__(name: str) -> Any:
    for family in FAMILIES:
        if name == _name(family):
            return config_class(family)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
