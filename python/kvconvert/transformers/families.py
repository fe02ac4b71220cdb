"""Makes transformers' Auto classes know the model types of converted directories.

kvconvert_<family> gets model classes derived from transformers' own: their forward passes stay untouched.
"""

from transformers import AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_MAPPING,
)

from kvconvert.configs import PREFIX, register_configs, when_made
from kvconvert.transformers.attention import register_attention
from kvconvert.transformers.model import CodedModel

_AUTO_CLASSES = (
    (AutoModel, MODEL_MAPPING),
    (AutoModelForCausalLM, MODEL_FOR_CAUSAL_LM_MAPPING),
    (AutoModelForImageTextToText, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING),
)


def _register_models(config_class: type, family: str) -> None:
    """Model classes of a family, made when the first configuration is: importing them takes long."""
    base_config = CONFIG_MAPPING[family]
    for auto, mapping in _AUTO_CLASSES:
        if config_class in mapping or base_config not in mapping:
            continue
        base = mapping[base_config]
        base = base[0] if isinstance(base, (list, tuple)) else base
        auto.register(config_class, _model_class(base, config_class))
    conversion = get_checkpoint_conversion_mapping(family)  # how weights on disk become the family's parameters
    if conversion is not None:
        register_checkpoint_conversion_mapping(PREFIX + family, conversion, overwrite=True)


def _model_class(base: type, config_class: type) -> type:
    """transformers' class under its own name, which pipelines look at; in this module for pickle."""
    name = base.__name__
    if name not in globals() or globals()[name].config_class is not config_class:
        globals()[name] = type(name, (CodedModel, base), {"config_class": config_class, "__module__": __name__})
    return globals()[name]


def register() -> None:
    """Registers every family and the attention over codes. May be called again."""
    register_attention()
    when_made(_register_models)
    register_configs()
