"""Codes of a loaded model's layers: one LayerCodes for each set of layers that are coded together."""

import torch

from kvconvert.codes import CodedCheckpoint, LayerCodes
from kvconvert.transformers.coded_store import CodeStore
from kvconvert.transformers.model_parts import ModelParts


class ModelCodes(ModelParts):
    """Opens the codes of every store. Raises ConversionError where they do not fit the model."""

    def __init__(self, decoder: torch.nn.Module, checkpoint: CodedCheckpoint, exact_step: bool = False):
        super().__init__(decoder, checkpoint)
        self.exact_step = exact_step
        self.codes = [self._open(checkpoint, layers) for layers in self.stores]

    def new_store(self, number: int) -> CodeStore:
        return CodeStore(self, number)

    def _open(self, checkpoint: CodedCheckpoint, layers: list[int]) -> LayerCodes:
        attention = self.attention(layers[0])
        return checkpoint.open(
            layers, self.rope(layers[0]), num_query_heads=self.config.num_attention_heads, scale=attention.scaling,
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0.0, window=self.window(layers[0]) or 0)
