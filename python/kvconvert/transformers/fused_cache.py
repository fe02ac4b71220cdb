"""Layers of a transformers cache that others read, and layers that store nothing and read them."""

from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

if TYPE_CHECKING:
    from kvconvert.fused import Fusion


class _Source:
    """Mixin before a plain layer: shows what attention reads in this pass, until the last reader has seen it."""

    seen: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        self.seen = super().update(key_states, value_states, *args, **kwargs)
        return self.seen


class SourceLayer(_Source, DynamicLayer):
    pass


class SlidingSourceLayer(_Source, DynamicSlidingWindowLayer):
    pass


class FusedLayer(CacheLayerMixin):
    """A layer without a cache, which sees `window` tokens, itself included (None: all), and reads layers that see no fewer."""

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, key: "Fusion", value: "Fusion", window: int | None, sources: dict[int, _Source], last_read: list[_Source]):
        """last_read: sources that no later layer reads."""
        super().__init__()
        self.key, self.value, self.sources, self.last_read = key, value, sources, last_read
        self.window, self.is_sliding = window, window is not None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Combinations of what the sources' attention read, the tokens of this pass included."""
        self.lazy_initialization(key_states, value_states)
        self.key, self.value = (fusion.on(key_states.device) for fusion in (self.key, self.value))
        first = 0 if self.window is None else 1 - self.window - key_states.shape[-2]

        def rows(fusion: "Fusion", part: int) -> list[torch.Tensor]:
            return [self.sources[source].seen[part][:, :, first:].to(key_states.device) for source in fusion.sources]
        keys, values = self.key(rows(self.key, 0)), self.value(rows(self.value, 1))
        for source in self.last_read:
            source.seen = None
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        held = self.get_seq_length()
        kept = held if self.window is None else min(held, self.window - 1)
        return kept + query_length, held - kept

    def get_seq_length(self) -> int:
        return next(iter(self.sources.values())).get_seq_length()

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Nothing is stored, so nothing is to be removed, or reordered below."""

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        pass

    def batch_repeat_interleave(self, repeats: int) -> None:
        pass

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        pass
