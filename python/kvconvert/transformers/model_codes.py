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
        self._codes: dict[tuple[int, torch.device], LayerCodes] = {}
        for number in range(len(self.stores)):
            self.codes_on(number, next(decoder.parameters()).device)

    def new_store(self, number: int) -> CodeStore:
        return CodeStore(self, number)

    def codes_on(self, number: int, device: torch.device) -> LayerCodes:
        """The codes of stores[number], for tensors of a device; a model may move to another one."""
        codes = self._codes.get((number, device))
        if codes is None:
            codes = self._codes[number, device] = self._open(self.stores[number], device)
        return codes

    def _open(self, layers: list[int], device: torch.device) -> LayerCodes:
        attention = self.attention(layers[0])
        return self.checkpoint.open(
            layers, self.rope(layers[0]), num_query_heads=self.config.num_attention_heads, scale=attention.scaling,
            softcap=getattr(attention, "attn_logit_softcapping", None) or 0.0, window=self.window(layers[0]) or 0,
            device=device)
