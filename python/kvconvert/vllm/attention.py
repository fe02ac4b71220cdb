"""Attention whose cache holds codes."""

from typing import Any

import torch
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheSpec

from kvconvert.codes import TILE, LayerCodes, OpenRows
from kvconvert.vllm.backend import CodedBackend
from kvconvert.vllm.open_tiles import OpenTiles
from kvconvert.vllm.spec import coded_spec

_STUB_BYTES = 4  # of a tile of a layer whose codes lie in another layer's pages


def softcap_of(attention: Attention) -> float:
    """The cap of attention scores, 0 without one."""
    return float(getattr(attention.impl, "logits_soft_cap", None) or 0.0)


class CodedStore:
    """Layers that are coded together: their codes, the pages that the first of them holds, and rows of open tiles."""

    def __init__(self, codes: LayerCodes, tile_bytes: int, open_tiles: OpenTiles) -> None:
        self.codes = codes
        self.open_tiles = open_tiles  # the same for all stores of a model
        self._open_rows: list[OpenRows | None] = [None] * len(codes.layers)
        self.tile_bytes = tile_bytes  # of the rank that needs most
        self.leader: CodedAttention | None = None
        self.step: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of the layers that have run
        self._cache: torch.Tensor | None = None
        self._pages: torch.Tensor | None = None

    def pages(self) -> torch.Tensor:
        """uint8 [num_pages, page_tiles * codes.tile_bytes]: tiles of a page lie one after the other, padding follows."""
        cache = self.leader.kv_cache  # [num_pages, 1, page_tiles, tile_bytes]
        if cache is not self._cache:
            tiles = cache.shape[2]
            flat = cache.flatten(1)  # a view: a page is contiguous
            self._cache, self._pages = cache, flat[:, : tiles * self.codes.tile_bytes]
        return self._pages

    def open_rows(self, index: int, tiles: int, dtype: torch.dtype) -> OpenRows:
        """Exact rows of layer `index` of the store, of `tiles` tiles or more."""
        rows = self._open_rows[index]
        if rows is None:
            rows = self.codes.new_open_rows(tiles, dtype)
        elif rows.keys.shape[0] < tiles:
            rows = rows.grown(tiles)
        self._open_rows[index] = rows
        return rows


class CodedAttention(Attention):
    """Takes the place of a plain `Attention`, with its heads, scale and name."""

    def __init__(self, plain: Attention, vllm_config: Any, store: CodedStore, layer: int, window: int) -> None:
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
            attn_backend=CodedBackend,
        )
        self.sliding_window = None  # vLLM keeps all tokens; the implementation cuts
        self.impl.window = window
        self.impl.max_tokens = vllm_config.model_config.max_model_len
        self.store = store
        self.index = store.codes.layers.index(layer)  # within the store
        if self.index == 0:
            store.leader = self

    def get_kv_cache_spec(self, vllm_config: Any) -> KVCacheSpec:
        size = vllm_config.cache_config.block_size
        if size % TILE:
            raise ValueError(f"kvconvert: --block-size is {size} and must be a multiple of {TILE}")
        plain = super().get_kv_cache_spec(vllm_config)
        assert isinstance(plain, FullAttentionSpec)
        return coded_spec(plain, self.store.tile_bytes if self.index == 0 else _STUB_BYTES)
