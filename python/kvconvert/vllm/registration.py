"""Registers configurations, model classes, the cache's spec and the attention backend with vLLM."""

from functools import cache

from kvconvert.vllm.families import ARCHITECTURES, PREFIX, REFUSED, served_architecture


@cache
def register_families() -> None:
    """Registers every family once per process."""
    from transformers import CONFIG_MAPPING
    from vllm import ModelRegistry
    from vllm.model_executor.models.config import MODELS_CONFIG_MAP
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    from kvconvert.configs import register_configs

    register_backend(AttentionBackendEnum.CUSTOM, "kvconvert.vllm.backend.CodedBackend")
    register_configs()
    _copy_dtype_rules()
    for family in (*ARCHITECTURES, *REFUSED):
        if family not in CONFIG_MAPPING:
            continue
        served = served_architecture(family)
        ModelRegistry.register_model(served, f"kvconvert.vllm.models:{served}")
        MODELS_CONFIG_MAP[served] = _checked(family, MODELS_CONFIG_MAP)
    _register_spec()


def _checked(family: str, config_map: dict) -> type:
    """A class that vLLM asks to verify the configuration before it starts other processes."""
    from vllm.model_executor.models.config import VerifyAndUpdateConfig

    base = config_map.get(ARCHITECTURES.get(family), VerifyAndUpdateConfig)

    class Checked(base):
        @staticmethod
        def verify_and_update_config(vllm_config) -> None:
            from kvconvert.vllm.refusals import refuse_unsupported

            refuse_unsupported(vllm_config)
            base.verify_and_update_config(vllm_config)

    return Checked


def _copy_dtype_rules() -> None:
    """vLLM refuses float16 for some families, by their model type."""
    from vllm.config import model

    rules = model._FLOAT16_NOT_SUPPORTED_MODELS
    rules.update({PREFIX + family: reason for family, reason in rules.items() if family in ARCHITECTURES})


def _register_spec() -> None:
    # vLLM fills its registry with the built-in specs only while it is empty.
    from vllm.v1.kv_cache_spec_registry import KVCacheSpecRegistry

    KVCacheSpecRegistry._ensure_registered()
    import kvconvert.vllm.spec  # noqa: F401
