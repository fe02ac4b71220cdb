"""Families that vLLM serves from codes: HuggingFace's `model_type` and vLLM's architecture.

A family is here if vLLM's own model class can be served by replacing its `Attention` modules. Those modules get keys
after RoPE, and the layer that holds them has the RoPE module as `rotary_emb`, whether or not it rotates keys.
"""

ARCHITECTURES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "granite": "GraniteForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
}

_FALLBACK = "vLLM runs it through transformers' classes, which do not know the converted configuration"

# Families that kvconvert converts and vLLM cannot serve from codes, and why.
REFUSED: dict[str, str] = {
    "ministral": "vLLM has no model class for this family that the plugin could build on",
    "olmo2": _FALLBACK,
    "olmo3": _FALLBACK,
    "smollm3": _FALLBACK,
    "starcoder2": _FALLBACK,
    "seed_oss": _FALLBACK,
    "gemma3": "images attend to each other in both directions, which codes do not support; "
    "convert the text model (gemma3_text)",
}

PREFIX = "kvconvert_"  # of a converted checkpoint's model_type
CLASS_PREFIX = "KVConvert"  # of the classes of models and configurations


def served_architecture(family: str) -> str:
    """The architecture under which a converted checkpoint of `family` is registered."""
    return CLASS_PREFIX + ARCHITECTURES.get(family, f"{family}Refused")
