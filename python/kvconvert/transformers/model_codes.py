"""Codes of a loaded model's layers: one LayerCodes for each set of layers that are coded together."""

import inspect

import torch

from kvconvert.codes import CodedCheckpoint, LayerCodes
from kvconvert.factors import ConversionError

_BY_LENGTH = ("dynamic", "longrope")  # RoPE whose angles depend on the length of the text


class ModelCodes:
    """Opens codes when a layer first needs them: its attention then says scale and softcap."""

    def __init__(self, decoder: torch.nn.Module, checkpoint: CodedCheckpoint, exact_step: bool = False):
        self.decoder, self.checkpoint, self.exact_step = decoder, checkpoint, exact_step
        self.config = decoder.config
        self.num_layers = checkpoint.num_layers
        self.stores = [list(layers) for layers in checkpoint.stores]
        self._opened: dict[int, LayerCodes] = {}
        self._tables: dict[str | None, tuple[torch.Tensor, torch.Tensor]] = {}
        if self.config.num_hidden_layers != self.num_layers:
            raise ConversionError(f"config.json: {self.config.num_hidden_layers} layers, the plan has "
                                  f"{self.num_layers}; convert the checkpoint again")
        self.max_positions = self._max_positions()

    def _max_positions(self) -> int:
        """Tokens of the longest text."""
        length = self.config.max_position_embeddings
        parameters = getattr(self.config, "rope_parameters", None) or {}
        if parameters.get("rope_type", "default") in _BY_LENGTH:
            original = parameters.get("original_max_position_embeddings")
            length = min(length, original or length)
        return length

    def window(self, layer: int) -> int | None:
        """Tokens that a layer sees, itself included; None: all."""
        types = getattr(self.config, "layer_types", None)
        if types is None or types[layer] == "sliding_attention":
            return getattr(self.config, "sliding_window", None) or None
        return None

    def codes(self, store: int, scale: float, softcap: float | None) -> LayerCodes:
        if store not in self._opened:
            layers = self.stores[store]
            self._opened[store] = self.checkpoint.open(
                layers, self._rope(layers[0]), num_query_heads=self.config.num_attention_heads, scale=scale,
                softcap=softcap or 0.0, window=self.window(layers[0]) or 0)
        return self._opened[store]

    @torch.no_grad()
    def _rope(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(cos, sin) float32 [max_positions, pairs] of a layer's keys; None without RoPE."""
        if not getattr(self.decoder.layers[layer].self_attn, "use_rope", True):
            return None
        rotary = self.decoder.rotary_emb
        by_type = "layer_type" in inspect.signature(rotary.forward).parameters
        kind = self.config.layer_types[layer] if by_type else None
        if kind not in self._tables:
            device = next(self.decoder.parameters()).device
            positions = torch.arange(self.max_positions, device=device)[None]
            probe = torch.empty(1, device=device, dtype=torch.float32)
            tables = rotary(probe, positions, **({"layer_type": kind} if by_type else {}))
            pairs = tables[0].shape[-1] // 2
            self._tables[kind] = tuple(table[0, :, :pairs].float().contiguous() for table in tables)
        return self._tables[kind]
