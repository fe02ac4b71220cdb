"""Replaces the attention of coded layers in a model that vLLM has just built."""

import os
from typing import Any

import torch
from torch import nn
from vllm.distributed import (
    get_tensor_model_parallel_rank,
    get_tensor_model_parallel_world_size,
)
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.v1.attention.backend import AttentionType

from kvconvert.codes import CodedCheckpoint
from kvconvert.vllm.attention import CodedAttention, CodedStore
from kvconvert.vllm.rope import key_rope


def install_codes(model: nn.Module, vllm_config: Any) -> None:
    """Gives every coded layer of this rank its codes. Layers that the plan leaves plain keep vLLM's attention."""
    checkpoint = CodedCheckpoint(_directory(vllm_config.model_config))
    plain = _attention_by_layer(model)
    ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    with torch.device("cpu"):
        for layers in checkpoint.stores:
            here = [layer for layer in layers if layer in plain]
            if not here:
                continue
            if len(here) < len(layers):
                raise ValueError(
                    f"kvconvert: layers {layers[0]}-{layers[-1]} are coded together and must be in one pipeline stage, "
                    f"and this stage has layers {here[0]}-{here[-1]} of them; set VLLM_PP_LAYER_PARTITION, or convert "
                    "with `kvconvert --scope head`"
                )
            _install_store(checkpoint, layers, plain, vllm_config, rank, ranks)


def _install_store(
    checkpoint: CodedCheckpoint,
    layers: list[int],
    plain: dict[int, tuple[nn.Module, str, Attention]],
    vllm_config: Any,
    rank: int,
    ranks: int,
) -> None:
    parent, _, first = plain[layers[0]]
    _refuse_attention(first, layers[0], vllm_config.model_config.max_model_len)
    rope = key_rope(parent, vllm_config.model_config.max_model_len)
    heads, total = first.num_kv_heads, checkpoint.num_kv_heads

    def open_codes(rank: int) -> Any:
        return checkpoint.open(
            layers,
            rope,
            first_head=rank * total // ranks,
            num_heads=heads,
            num_query_heads=first.num_heads,
            scale=first.impl.scale,
            softcap=float(getattr(first.impl, "logits_soft_cap", None) or 0.0),
        )

    codes = open_codes(rank)
    # vLLM wants the same spec on every rank: a page holds the largest rank's codes.
    most = max([codes.tile_bytes] + [open_codes(other).tile_bytes for other in range(ranks) if other != rank])
    store = CodedStore(codes, most)
    for layer in layers:
        parent, name, attention = plain[layer]
        setattr(parent, name, CodedAttention(attention, vllm_config, store, layer))


def _attention_by_layer(model: nn.Module) -> dict[int, tuple[nn.Module, str, Attention]]:
    """Layer index to (the module that holds the attention, its name there, the attention)."""
    found = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, Attention):
                found[extract_layer_index(child.layer_name)] = (parent, name, child)
    return found


def _refuse_attention(attention: Attention, layer: int, max_model_len: int) -> None:
    window = attention.sliding_window
    if window is not None and window < max_model_len:
        raise ValueError(
            f"kvconvert: layer {layer} is coded and has a sliding window of {window} tokens, which attention over codes "
            f"does not cut; serve with --max-model-len {window} or less"
        )
    if type(attention) is not Attention or attention.attn_type != AttentionType.DECODER:
        raise ValueError(f"kvconvert: layer {layer} has {type(attention).__name__}, which codes do not support")
    if attention.has_sink or getattr(attention.impl, "alibi_slopes", None) is not None:
        raise ValueError(f"kvconvert: layer {layer} has attention sinks or ALiBi, which codes do not support")


def _directory(model_config: Any) -> str:
    """Where the checkpoint lies; a name on a hub stands for its local copy."""
    if os.path.isdir(model_config.model):
        return model_config.model
    from huggingface_hub import snapshot_download

    return snapshot_download(
        model_config.model, revision=model_config.revision, allow_patterns=["*.json", "*.safetensors"]
    )
