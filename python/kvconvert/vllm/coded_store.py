"""Layers that are coded together, in vLLM's pages."""

import torch

from kvconvert.codes import LayerCodes, OpenRows
from kvconvert.vllm.attention import PagedStore
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
