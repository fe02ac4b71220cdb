"""Layers that are coded together, in vLLM's pages."""

from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from kvconvert.codes import CodedCheckpoint, LayerCodes, OpenRows
from kvconvert.vllm.attention import LayerParts, PagedStore, device_of, softcap_of
from kvconvert.vllm.backend import CodedBackend
from kvconvert.vllm.open_tiles import OpenTiles


class CodedStore(PagedStore):
    """Their codes, and exact rows of open tiles."""

    backend = CodedBackend

    def __init__(self, codes: LayerCodes, tile_bytes: int, open_tiles: OpenTiles) -> None:
        super().__init__(codes.layers, tile_bytes)
        self.codes = codes
        self.open_tiles = open_tiles  # the same for all stores of a model
        self._open_rows: list[OpenRows | None] = [None] * len(codes.layers)

    def _view(self, pages: torch.Tensor, tiles: int) -> torch.Tensor:
        return pages[:, : tiles * self.codes.tile_bytes]

    def open_rows(self, index: int, tiles: int, dtype: torch.dtype) -> OpenRows:
        """Exact rows of layer `index` of the store, of `tiles` tiles or more."""
        rows = self._open_rows[index]
        if rows is None:
            rows = self.codes.new_open_rows(tiles, dtype)
        elif rows.keys.shape[0] < tiles:
            rows = rows.grown(tiles)
        self._open_rows[index] = rows
        return rows


def coded_store(
    checkpoint: CodedCheckpoint, parts: list[LayerParts], vllm_config: Any, open_tiles: OpenTiles
) -> CodedStore:
    """The store of layers that are coded together."""
    first, layers = parts[0], [part.layer for part in parts]
    ranks, rank = get_tensor_model_parallel_world_size(), get_tensor_model_parallel_rank()
    heads, total = first.attention.num_kv_heads, checkpoint.num_kv_heads
    codes = checkpoint.open(
        layers,
        first.rope,
        num_query_heads=first.attention.num_heads,
        scale=first.attention.impl.scale,
        softcap=softcap_of(first.attention),
        window=first.window,
        interleaved=first.interleaved,
        first_head=rank * total // ranks,
        num_heads=heads,
        device=device_of(vllm_config),
    )
    # vLLM wants the same spec on every rank: a page holds the largest rank's codes.
    most = max(checkpoint.tile_bytes(layers, other * total // ranks, heads) for other in range(ranks))
    return CodedStore(codes, most, open_tiles)
