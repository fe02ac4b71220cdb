"""The RoPE tables that vLLM's keys were turned by."""

import torch
from torch import nn


def key_rope(rotary: nn.Module | None, max_model_len: int) -> tuple[tuple[torch.Tensor, torch.Tensor] | None, bool]:
    """(cos, sin) float32 [positions, pairs] of a RoPE module, None without one, on the CPU; whether pairs interleave.

    vLLM keeps its tables in the model's dtype. Codes are fitted to keys of exact angles, so the tables are made again. Raises
    ValueError where they have fewer positions than max_model_len.
    """
    if rotary is None:
        return None, False
    long_short = getattr(rotary, "long_short_cos_sin_cache", None)
    if long_short is not None:  # longrope: short tables, then long ones
        first = rotary.original_max_position_embeddings if rotary.use_long_rope else 0
        table = long_short.float()[first : first + max_model_len]
    elif hasattr(rotary, "_compute_cos_sin_cache"):
        table = rotary._compute_cos_sin_cache().float()
    else:
        raise ValueError(f"kvconvert: {type(rotary).__name__} has no tables of cosines; codes cannot turn its keys back")
    if len(table) < max_model_len:
        raise ValueError(f"kvconvert: the model's RoPE has {len(table)} positions, and --max-model-len is {max_model_len}; lower it, or "
                         "raise max_position_embeddings with --hf-overrides")
    cos, sin = table.cpu().chunk(2, dim=-1)
    return (cos.contiguous(), sin.contiguous()), not getattr(rotary, "is_neox_style", True)
