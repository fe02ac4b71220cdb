"""Attention whose cache holds codes or latents in place of keys and values."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from kvconvert.codes import TILE
from kvconvert.vllm.open_tiles import OpenTiles
from kvconvert.vllm.spec import paged_spec, plain_spec


def softcap_of(attention: Attention) -> float:
    """The cap of attention scores, 0 without one."""
    return float(getattr(attention.impl, "logits_soft_cap", None) or 0.0)


def device_of(vllm_config: Any) -> torch.device:
    """Where the model computes, with the number that its tensors have."""
    return torch.empty(0, device=vllm_config.device_config.device).device


def cache_dtype(attention: Attention, stored: str, device: torch.device) -> torch.dtype:
    """The cache's, of numbers. Raises ValueError where a device's kernels want the model's. stored: what the cache holds."""
    model, cache = attention.dtype, attention.kv_cache_torch_dtype
    if device.type != "cpu" and cache != model:
        names = [str(dtype).removeprefix("torch.") for dtype in (cache, model)]
        raise ValueError(
            f"kvconvert: on a GPU {stored} have the model's dtype; --kv-cache-dtype is {names[0]} and --dtype {names[1]}; "
            "remove --kv-cache-dtype"
        )
    return cache


@dataclass(frozen=True)
class LayerParts:
    """A layer's attention as vLLM has built it."""

    layer: int
    parent: nn.Module  # holds the projections, and the attention as `name`
    name: str
    attention: Attention
    rope: tuple[torch.Tensor, torch.Tensor] | None  # cos and sin, float32 [positions, pairs]
    interleaved: bool  # rotary pairs are neighbouring channels
    window: int  # last tokens that a query sees, 0 for all


class PagedStore:
    """Layers whose tokens are stored together, in the pages of the first of them.

    backend: attends over these pages. open_tiles: where exact rows beside them are kept, None without such.
    """

    backend: type[AttentionBackend]
    open_tiles: OpenTiles | None = None
    stub_bytes = 4  # of a tile of a layer whose tokens lie in another layer's pages

    def __init__(self, layers: list[int], tile_bytes: int) -> None:
        self.layers = layers
        self.tile_bytes = tile_bytes  # of 32 tokens, of the rank that needs most
        self.leader: PagedAttention | None = None
        self.step: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of the layers that have run
        self._cache: torch.Tensor | None = None
        self._pages: torch.Tensor | None = None

    def pages(self) -> torch.Tensor:
        """[num_pages, numbers]: what tokens take in a page lies together, padding follows."""
        cache = self.leader.kv_cache  # uint8 [num_pages, 1, page_tiles, tile_bytes]
        if cache is not self._cache:
            self._cache, self._pages = cache, self._view(cache.flatten(1), cache.shape[2])  # a view: a page is contiguous
        return self._pages

    def _view(self, pages: torch.Tensor, tiles: int) -> torch.Tensor:
        """Of pages uint8 [num_pages, bytes] with as many tiles each."""
        raise NotImplementedError

    def weights_loaded(self) -> None:
        """The model's weights are there."""

    def reserve_step(self, key: torch.Tensor) -> list[torch.Tensor]:
        """Memory of what keep_step() keeps until the last layer."""
        return [torch.empty_like(key) for _ in range(2 * len(self.layers))]

    def keep_step(self, index: int, key: torch.Tensor, value: torch.Tensor) -> tuple[list, list] | None:
        """Keeps the step's keys and values of layer `index`; those of all layers behind the last one, else None."""
        if index == 0:
            self.step = []
        self.step.append((key.clone(), value.clone()))  # a compiled model reuses their memory in the next layer
        if index < len(self.layers) - 1:
            return None
        (keys, values), self.step = map(list, zip(*self.step)), []
        return keys, values


class PagedAttention(Attention):
    """Takes the place of a plain `Attention`, with its heads, scale and name."""

    def __init__(self, plain: Attention, vllm_config: Any, store: PagedStore, layer: int, window: int) -> None:
        del vllm_config.compilation_config.static_forward_context[plain.layer_name]
        super().__init__(
            plain.num_heads,
            plain.head_size,
            plain.impl.scale,
            num_kv_heads=plain.num_kv_heads,
            cache_config=vllm_config.cache_config,
            quant_config=plain.quant_config,
            logits_soft_cap=softcap_of(plain) or None,
            prefix=plain.layer_name,
            attn_backend=store.backend,
        )
        self.sliding_window = None  # vLLM keeps all tokens; the implementation cuts
        self.impl.window = window
        self.impl.max_tokens = vllm_config.model_config.max_model_len
        self.store = store
        self.index = store.layers.index(layer)  # within the store
        if self.index == 0:
            store.leader = self

    def get_kv_cache_spec(self, vllm_config: Any) -> KVCacheSpec:
        size = vllm_config.cache_config.block_size
        if size % TILE:
            raise ValueError(f"kvconvert: --block-size is {size} and must be a multiple of {TILE}")
        plain = super().get_kv_cache_spec(vllm_config)
        assert isinstance(plain, FullAttentionSpec)
        return paged_spec(plain, self.store.tile_bytes if self.index == 0 else self.store.stub_bytes)


def stand_beside(attention: Attention, vllm_config: Any) -> None:
    """Lets a layer that stays vLLM's share the group of those that do not, behind them: some versions ask the first layer alone which
    sizes of blocks there are."""
    layers = vllm_config.compilation_config.static_forward_context
    layers[attention.layer_name] = layers.pop(attention.layer_name)

    def get_kv_cache_spec(vllm_config: Any) -> KVCacheSpec | None:
        window, attention.sliding_window = attention.sliding_window, None  # vLLM keeps all tokens; the implementation cuts
        try:
            plain = Attention.get_kv_cache_spec(attention, vllm_config)
        finally:
            attention.sliding_window = window
        return None if plain is None else plain_spec(plain, window)

    attention.get_kv_cache_spec = get_kv_cache_spec
