"""Codes of a loaded model's layers: one LayerCodes for each set of layers that are coded together."""

import inspect

import torch

from kvconvert.codes import TILE, CodedCheckpoint, LayerCodes
from kvconvert.factors import ConversionError

_BY_LENGTH = ("dynamic", "longrope")  # RoPE whose angles depend on the length of the text


class ModelCodes:
    """Opens the codes of every store. Raises ConversionError where they do not fit the model."""

    def __init__(self, decoder: torch.nn.Module, checkpoint: CodedCheckpoint, exact_step: bool = False):
        self.decoder, self.exact_step = decoder, exact_step
        self.config = decoder.config
        self.num_layers = checkpoint.num_layers
        self.stores = [list(layers) for layers in checkpoint.stores]
        self._tables: dict[str | None, tuple[torch.Tensor, torch.Tensor]] = {}
        attention = decoder.layers[0].self_attn
        for name, found, planned in (
                ("layers", len(decoder.layers), checkpoint.num_layers),
                ("KV heads", self.config.num_key_value_heads, checkpoint.num_kv_heads),
                ("channels per head", attention.head_dim, checkpoint.head_dim)):
            if found != planned:
                raise ConversionError(f"{checkpoint.directory / 'config.json'}: the plan is for {planned} {name}, "
                                      f"expected {found}; convert the checkpoint again")
        self.max_positions = self._max_positions()
        self.codes = [self._open(checkpoint, layers) for layers in self.stores]

    def _open(self, checkpoint: CodedCheckpoint, layers: list[int]) -> LayerCodes:
        attention = self.decoder.layers[layers[0]].self_attn
        return checkpoint.open(
            layers, self._rope(layers[0]), num_query_heads=self.config.num_attention_heads, scale=attention.scaling,
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0.0, window=self.window(layers[0]) or 0)

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
            positions = torch.arange(max(self.max_positions, TILE), device=device)[None]  # the operators read a tile's
            probe = torch.empty(1, device=device, dtype=torch.float32)
            tables = rotary(probe, positions, **({"layer_type": kind} if by_type else {}))
            pairs = tables[0].shape[-1] // 2
            self._tables[kind] = tuple(table[0, :, :pairs].float().contiguous() for table in tables)
        return self._tables[kind]
