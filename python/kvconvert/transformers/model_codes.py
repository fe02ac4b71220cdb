"""Codes of a loaded model's layers: one LayerCodes for each set of layers that are coded together."""

import torch

from kvconvert.codes import CodedCheckpoint, LayerCodes
from kvconvert.factors import ConversionError
from kvconvert.transformers.coded_store import CodeStore
from kvconvert.transformers.model_parts import ModelParts

class ModelCodes(ModelParts):
    """Opens the codes of every store. Raises ConversionError where they do not fit the model, or its device."""

    def __init__(self, decoder: torch.nn.Module, checkpoint: CodedCheckpoint, exact_step: bool = False):
        super().__init__(decoder, checkpoint, exact_step)
        self.check_dtype()
        self.exact_tiles = checkpoint.exact_tiles
        self._opened: dict[tuple[int, torch.device], LayerCodes] = {}
        for number, layers in enumerate(self.stores):
            self.codes(number, next(self.attention(layers[0]).parameters()).device)

    def begin_pass(self, cached: bool) -> None:
        if cached:
            self.check_dtype()  # a model may be moved after it was loaded

    def new_store(self, number: int) -> CodeStore:
        return CodeStore(self, number)

    def codes(self, number: int, device: torch.device) -> LayerCodes:
        """Codes of stores[number] on the device of its keys, which moves with the model."""
        key = (number, device)
        if key not in self._opened:
            self._opened = {other: codes for other, codes in self._opened.items() if other[0] != number}
            self._opened[key] = self._open(self.checkpoint, self.stores[number], device)
        return self._opened[key]

    def _open(self, checkpoint: CodedCheckpoint, layers: list[int], device: torch.device) -> LayerCodes:
        attention = self.attention(layers[0])
        return checkpoint.open(
            layers, self.rope(layers[0]), num_query_heads=self.config.num_attention_heads, scale=attention.scaling,
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0.0, window=self.window(layers[0]) or 0, device=device)
