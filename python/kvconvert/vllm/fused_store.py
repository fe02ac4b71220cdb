"""Fused layers and the plain layers that they read, in vLLM's pages."""

import dataclasses
from typing import Any

import torch
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size

from kvconvert.codes import TILE
from kvconvert.factors import ConversionError
from kvconvert.fused import FusedCheckpoint, Fusion
from kvconvert.row_pages import LayerRows, rows_class
from kvconvert.vllm.attention import LayerParts, PagedStore, cache_dtype, device_of, softcap_of
from kvconvert.vllm.fused_backend import FusedBackend
from kvconvert.vllm.query_projection import keep_queries, pad_outputs


class FusedStore(PagedStore):
    """The plain layers have rows of the cache's dtype, and the fused ones none."""

    backend = FusedBackend

    def __init__(self, checkpoint: FusedCheckpoint, parts: list[LayerParts], device: torch.device) -> None:
        first, self._device = parts[0].attention, device
        self._of_layer = rows_class(device)
        self.stub_bytes = self._of_layer.alignment  # stores lie one behind the other
        self._parts = {part.layer: part for part in parts if part.layer in checkpoint.layers}  # fused
        sources = [part.layer for part in parts if part.layer not in self._parts]
        self.dtype, self._row = cache_dtype(first, checkpoint.stored, device), (first.num_kv_heads, first.head_size)
        row_bytes = first.num_kv_heads * first.head_size * self.dtype.itemsize
        super().__init__([part.layer for part in parts], TILE * 2 * len(sources) * row_bytes)
        self.places = {layer: place for place, layer in enumerate(sources)}
        self.reads = [self._reads(checkpoint, part) for part in parts]

    def _view(self, pages: torch.Tensor, tiles: int) -> torch.Tensor:
        rows = pages[:, : tiles * self.tile_bytes].view(self.dtype)
        return rows.unflatten(1, (len(self.places), 2, tiles * TILE, *self._row))

    def _reads(self, checkpoint: FusedCheckpoint, part: LayerParts) -> LayerRows:
        rule = {"scale": float(part.attention.impl.scale), "softcap": softcap_of(part.attention), "window": part.window}
        if part.layer in self.places:
            return self._of_layer([self.places[part.layer]], [self.places[part.layer]], None, **rule)
        num_turned = 0 if part.rope is None else part.rope[0].shape[-1]
        key, value = (checkpoint.fusion(part.layer, name, num_turned) for name in ("key", "value"))
        if part.interleaved and key.channels is not None:
            raise ConversionError(
                f"{checkpoint.path}: factors of pairs of channels, of keys whose pairs are neighbours; convert without --pair complex"
            )
        places = [[self.places[source] for source in fusion.sources] for fusion in (key, value)]
        return self._of_layer(*places, (self._of_rank(key), self._of_rank(value)), **rule)

    def _of_rank(self, fusion: Fusion) -> Fusion:
        fusion, ranks = fusion.on(self._device), get_tensor_model_parallel_world_size()
        if ranks == 1:
            return fusion
        count, total = self._row[0], fusion.weight.shape[-2]
        first = get_tensor_model_parallel_rank() * total // ranks
        return dataclasses.replace(fusion, weight=fusion.weight.narrow(-2, first, count).contiguous())

    def weights_loaded(self) -> None:
        for part in self._parts.values():  # the checkpoint has weights of the queries alone
            projection, attention = part.parent.qkv_proj, part.attention
            queries = attention.num_heads * attention.head_size
            keep_queries(projection, queries)
            pad_outputs(projection, queries + 2 * attention.num_kv_heads * attention.head_size)


def fused_store(checkpoint: FusedCheckpoint, parts: list[LayerParts], vllm_config: Any, *_: Any) -> FusedStore:
    """The store of the fused layers and of those that they read."""
    return FusedStore(checkpoint, parts, device_of(vllm_config))
