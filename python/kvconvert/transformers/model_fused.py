"""Fused layers of a loaded model."""

import torch
from transformers.cache_utils import CacheLayerMixin

from kvconvert.factors import ConversionError
from kvconvert.fused import FusedCheckpoint
from kvconvert.transformers.fused_cache import FusedLayer, SlidingSourceLayer, SourceLayer
from kvconvert.transformers.model_parts import ModelParts


class NoProjection(torch.nn.Module):
    """In place of a key or value projection whose result no layer reads; its bias is loaded all the same."""

    def __init__(self, width: int, bias: torch.nn.Parameter | None):
        super().__init__()
        self.width, self.bias = width, bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.new_zeros(*hidden.shape[:-1], self.width)


class ModelFused(ModelParts):
    """Opens the factors of every fused layer. Raises ConversionError where they do not fit the model."""

    needs_cache = True  # layers read what others stored, in passes of one text alone too

    @staticmethod
    def prepare(decoder: torch.nn.Module, plan: dict) -> None:
        for layer, source in enumerate(plan["layers"]):
            attention = decoder.layers[layer].self_attn
            for name in ("k_proj", "v_proj") if source == "fused" else ():
                width = plan["num_kv_heads"] * plan["head_dim"]
                setattr(attention, name, NoProjection(width, getattr(attention, name).bias))

    def __init__(self, decoder: torch.nn.Module, checkpoint: FusedCheckpoint, exact_step: bool = False):
        super().__init__(decoder, checkpoint, exact_step)
        self.stores = []  # layers of transformers' own cache
        self.fusions = {}
        for layer in checkpoint.layers:
            rope = self.rope(layer)
            num_turned = 0 if rope is None else rope[0].shape[-1]
            self.fusions[layer] = tuple(checkpoint.fusion(layer, part, num_turned) for part in ("key", "value"))
            for source in self._read_by(layer):
                window, seen = self.window(source), self.window(layer)
                if window is not None and (seen is None or window < seen):
                    raise ConversionError(f"{checkpoint.path}: layer {layer} reads layer {source}, whose window is shorter; "
                                          "convert again")

    def _read_by(self, layer: int) -> list[int]:
        return sorted({source for fusion in self.fusions[layer] for source in fusion.sources})

    def cache_layer(self, layer: int, below: list[CacheLayerMixin]) -> CacheLayerMixin:
        if layer not in self.fusions:
            window = self.window(layer)
            return SourceLayer() if window is None else SlidingSourceLayer(window)
        last_read = [below[source] for source in self._read_by(layer)
                     if not any(source in self._read_by(later) for later in self.fusions if later > layer)]
        return FusedLayer(*self.fusions[layer], self.window(layer), {source: below[source] for source in self._read_by(layer)}, last_read)
