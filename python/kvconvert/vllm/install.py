"""Replaces the attention of a model that vLLM has just built."""

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
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import AttentionType

from kvconvert.codes import CodedCheckpoint
from kvconvert.vllm.attention import CodedAttention, CodedStore, softcap_of
from kvconvert.vllm.open_tiles import OpenTiles
from kvconvert.vllm.rope import key_rope


def install_codes(model: nn.Module, vllm_config: Any) -> None:
    """Gives every layer of this rank its codes."""
    checkpoint = CodedCheckpoint(_directory(vllm_config.model_config))
    plain = _attention_by_layer(model)
    # A step's sequences, and as many tiles that they have just left.
    open_tiles = OpenTiles(2 * vllm_config.scheduler_config.max_num_seqs + 16)
    rotaries = {layer: getattr(parent, "rotary_emb", None) for layer, (parent, _, _) in plain.items()}
    with torch.device("cpu"), set_default_torch_dtype(torch.float32):
        # Layers share modules, and then tables.
        ropes = {rotary: key_rope(rotary, vllm_config.model_config.max_model_len) for rotary in set(rotaries.values())}
    ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    for layers in checkpoint.stores:
        here = [layer for layer in layers if layer in plain]
        if not here:  # another pipeline stage has them
            continue
        if len(here) < len(layers):
            raise ValueError(
                f"kvconvert: layers {layers[0]}-{layers[-1]} are coded together and must be in one pipeline stage, "
                f"and this stage has layers {here[0]}-{here[-1]} of them; set VLLM_PP_LAYER_PARTITION, or convert "
                "with `kvconvert --scope head`"
            )
        _install_store(checkpoint, layers, plain, vllm_config, rank, ranks, open_tiles, *ropes[rotaries[layers[0]]])


def _install_store(
    checkpoint: CodedCheckpoint,
    layers: list[int],
    plain: dict[int, tuple[nn.Module, str, Attention]],
    vllm_config: Any,
    rank: int,
    ranks: int,
    open_tiles: OpenTiles,
    rope: tuple[torch.Tensor, torch.Tensor] | None,
    interleaved: bool,
) -> None:
    first = plain[layers[0]][2]
    _refuse_attention(first, layers[0])
    max_model_len = vllm_config.model_config.max_model_len
    window = first.sliding_window or 0
    window = window if window < max_model_len else 0
    heads, total = first.num_kv_heads, checkpoint.num_kv_heads

    with torch.device("cpu"), set_default_torch_dtype(torch.float32):
        codes = checkpoint.open(
            layers,
            rope,
            num_query_heads=first.num_heads,
            scale=first.impl.scale,
            softcap=softcap_of(first),
            window=window,
            interleaved=interleaved,
            first_head=rank * total // ranks,
            num_heads=heads,
            device=_device(vllm_config),
        )
    # vLLM wants the same spec on every rank: a page holds the largest rank's codes.
    most = max(checkpoint.tile_bytes(layers, other * total // ranks, heads) for other in range(ranks))
    store = CodedStore(codes, most, open_tiles)
    for layer in layers:
        parent, name, attention = plain[layer]
        setattr(parent, name, CodedAttention(attention, vllm_config, store, layer, window))


def _device(vllm_config: Any) -> torch.device:
    """Where the model computes, with the number that its tensors have."""
    return torch.empty(0, device=vllm_config.device_config.device).device


def _attention_by_layer(model: nn.Module) -> dict[int, tuple[nn.Module, str, Attention]]:
    """Layer index to (the module that holds the attention, its name there, the attention)."""
    found = {}
    for parent in model.modules():
        for name, child in parent.named_children():
            if isinstance(child, Attention):
                found[extract_layer_index(child.layer_name)] = (parent, name, child)
    return found


def _refuse_attention(attention: Attention, layer: int) -> None:
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
