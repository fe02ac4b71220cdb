"""Tiny random checkpoints of the families that vLLM serves."""

import shutil
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from vllm_checkpoints import REFERENCE

KEY_BIAS = 32.0  # standard deviation of the biases of keys
SIZES = {
    "vocab_size": 2048, "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 512, "initializer_range": 0.15,
    "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": None, "tie_word_embeddings": False,
}
EXTRA = {
    "gemma": {"tie_word_embeddings": True},
    "gemma2": {
        "tie_word_embeddings": True, "sliding_window": 64, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "gemma3_text": {
        "tie_word_embeddings": True, "sliding_window": 64, "query_pre_attn_scalar": 32,
        "layer_types": ["sliding_attention", "full_attention"],
    },
    "exaone4": {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]},
    "mistral": {"sliding_window": None},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    "phi3": {"sliding_window": None},
    "qwen2_moe": {
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64
    },
    "qwen3_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64},
}


def make(family: str, folder: Path, layers: int = SIZES["num_hidden_layers"], **changes: object) -> Path:
    """A random checkpoint of `family`, with an even number of layers. changes: of its config.json."""
    torch.manual_seed(0)
    settings = {**SIZES, **EXTRA.get(family, {}), "num_hidden_layers": layers, **changes}
    if "layer_types" in settings:
        settings["layer_types"] = settings["layer_types"] * (layers // 2)
    config = CONFIG_MAPPING[family](**settings)
    model = AutoModelForCausalLM.from_config(config).to(torch.float32)
    for name, parameter in model.named_parameters():
        if name.endswith("k_proj.bias"):  # keys with a mean, as trained models have them
            torch.nn.init.normal_(parameter, std=KEY_BIAS)
        if name.endswith("k_norm.weight"):  # and pairs of channels of which one has the energy
            parameter.data[len(parameter) // 2 :] -= 0.98
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(REFERENCE / name, folder)
    return folder
