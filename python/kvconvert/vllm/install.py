"""Replaces the attention of a model that vLLM has just built."""

from typing import Any

import torch
from torch import nn
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.models.utils import extract_layer_index
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.attention.backend import AttentionType

from kvconvert.codes import TILE, CodedCheckpoint
from kvconvert.fused import FusedCheckpoint
from kvconvert.hub import local_directory
from kvconvert.kinds import open_checkpoint
from kvconvert.latents import LatentCheckpoint
from kvconvert.vllm.attention import LayerParts, PagedAttention, PagedStore, stand_beside
from kvconvert.vllm.coded_store import coded_store
from kvconvert.vllm.fused_store import fused_store
from kvconvert.vllm.latent_store import latent_store
from kvconvert.vllm.open_tiles import OpenTiles
from kvconvert.vllm.rope import key_rope

logger = init_logger(__name__)

# What makes the stores of a conversion.
_STORES = {CodedCheckpoint: coded_store, LatentCheckpoint: latent_store, FusedCheckpoint: fused_store}


def install_stores(model: nn.Module, vllm_config: Any) -> list[PagedStore]:
    """Gives every layer of this rank that is not plain its store. Returns the stores."""
    config = vllm_config.model_config
    checkpoint = open_checkpoint(
        local_directory(
            config.model, revision=config.revision, cache_dir=vllm_config.load_config.download_dir, token=config.hf_token
        )
    )
    new_store = _STORES[type(checkpoint)]
    plain = _attention_by_layer(model)
    rotaries = {layer: _rotary(parent) for layer, (parent, _, _) in plain.items()}
    with torch.device("cpu"), set_default_torch_dtype(torch.float32):
        # Layers share modules, and then tables.
        ropes = {rotary: key_rope(rotary, vllm_config.model_config.max_model_len) for rotary in set(rotaries.values())}
    open_tiles = _open_tiles(vllm_config.scheduler_config, checkpoint.exact_tiles)
    stores = []
    for layers in checkpoint.stores:
        if not _are_here(layers, plain):
            continue
        parts = [
            LayerParts(layer, *plain[layer], *ropes[rotaries[layer]], _window(plain[layer][2], vllm_config))
            for layer in layers
        ]
        for part in parts:
            _refuse_attention(part.attention, part.layer)
        with torch.device("cpu"), set_default_torch_dtype(torch.float32):
            store = new_store(checkpoint, parts, vllm_config, open_tiles)
        for part in parts:
            setattr(part.parent, part.name, PagedAttention(part.attention, vllm_config, store, part.layer, part.window))
        stores.append(store)
    stored = {layer for store in stores for layer in store.layers}
    for layer, (_, _, attention) in plain.items():
        if layer not in stored and type(attention) is Attention and attention.attn_type == AttentionType.DECODER:
            stand_beside(attention, vllm_config)
    if isinstance(checkpoint, CodedCheckpoint):
        _log_exact_rows([plain[layer][2] for store in stores for layer in store.layers], open_tiles, vllm_config)
    return stores


def _rotary(parent: nn.Module) -> nn.Module | None:
    """The RoPE module that turns a layer's keys. Where EXAONE 4 has windows, its full layers hold one that they do not call."""
    if getattr(parent, "apply_rope_all_layers", True) or parent.sliding_window:
        return getattr(parent, "rotary_emb", None)
    return None


def _log_exact_rows(attentions: list[Attention], open_tiles: OpenTiles, vllm_config: Any) -> None:
    """What vLLM's size of the cache does not count."""
    numbers = sum(2 * attention.num_kv_heads * attention.head_size for attention in attentions)
    mebibytes = open_tiles.most * TILE * numbers * vllm_config.model_config.dtype.itemsize / 2**20
    logger.info("kvconvert: exact rows of running sequences take up to %.0f MiB beside the KV cache; a smaller --max-num-seqs lowers that",
                mebibytes)


def _open_tiles(scheduler: Any, each: int) -> OpenTiles:
    """Tiles of a step's sequences, `each` and one that they have just left; where a prompt goes on, as many as it fills."""
    more = min((each - 1) * scheduler.max_num_seqs, scheduler.max_num_batched_tokens // TILE)
    return OpenTiles((each + 1) * scheduler.max_num_seqs + more + 16, each)


def _are_here(layers: list[int], plain: dict[int, tuple[nn.Module, str, Attention]]) -> bool:
    """Does this pipeline stage have the layers? Raises ValueError where it has some of them."""
    here = [layer for layer in layers if layer in plain]
    if here and len(here) < len(layers):
        raise ValueError(
            f"kvconvert: layers {layers[0]}-{layers[-1]} are stored together and must be in one pipeline stage, "
            f"and this stage has layers {here[0]}-{here[-1]} of them; set VLLM_PP_LAYER_PARTITION, or convert "
            "to codes with `kvconvert --scope head`, or to latents with `--group 1`"
        )
    return bool(here)


def _window(attention: Attention, vllm_config: Any) -> int:
    """Last tokens that a query sees, 0 for all."""
    window = attention.sliding_window or 0
    return window if window < vllm_config.model_config.max_model_len else 0


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
        raise ValueError(f"kvconvert: layer {layer} has {type(attention).__name__}, which converted checkpoints do not support")
    if attention.has_sink or getattr(attention.impl, "alibi_slopes", None) is not None:
        raise ValueError(f"kvconvert: layer {layer} has attention sinks or ALiBi, which converted checkpoints do not support")
