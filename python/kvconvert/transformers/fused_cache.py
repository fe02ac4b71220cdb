"""Layers of a transformers cache that others read, and layers that store nothing and read them."""

from typing import TYPE_CHECKING

import torch
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from kvconvert._ops import ops
from kvconvert.fused import can_fold

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
        """Combinations of what the sources' attention read, the tokens of this pass included. A pass of a single token gets its own
        back, marked for the attention function, which then calls attend() or rows()."""
        self.lazy_initialization(key_states, value_states)
        if self._reads_in_place(key_states):
            key_states.fused_layer = self
            return key_states, value_states
        return self.rows(key_states.shape[-2], key_states.device)

    def _reads_in_place(self, key_states: torch.Tensor) -> bool:
        rows = [key_states, *(source.seen[0] for source in self.sources.values())]
        return (key_states.shape[-2] == 1 and not torch.is_grad_enabled() and can_fold(self.key, self.value)
                and all(own.is_cpu and own.dtype in (torch.float32, torch.bfloat16, torch.float16) for own in rows))

    def rows(self, num_queries: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of all tokens that the queries see, [batch, num_kv_heads, tokens, head_dim]."""
        self.key, self.value = (fusion.on(device) for fusion in (self.key, self.value))
        keys, values = self._read(num_queries)
        combined = self.key([rows.to(device) for rows in keys]), self.value([rows.to(device) for rows in values])
        self._release()
        return combined

    def attend(self, query: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
        """Attention of one query token of each text, without padding, to the sources' rows in place. query, and the result:
        [batch, num_heads, 1, head_dim]."""
        keys, values = self._read(1)
        batch, kv_heads, tokens, _ = keys[0].shape
        out, groups = torch.empty_like(query), query.shape[1] // kv_heads
        table = torch.arange(batch, dtype=torch.int32, device=query.device)[:, None]  # a text is a page
        lens = torch.full((batch,), tokens, dtype=torch.int32, device=query.device)
        for head in range(kv_heads):
            own = slice(head * groups, (head + 1) * groups)
            ops().attend_paged_rows(
                out[:, own, 0], query[:, own, 0], *([rows[:, head, :, None] for rows in part] for part in (keys, values)),
                *([factor[head:head + 1] for factor in fusion.weight] for fusion in (self.key, self.value)), table, lens, scale,
                softcap or 0.0, 0)
        self._release()
        return out

    def _read(self, num_queries: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Of each source of the keys, and of the values: rows of the tokens that the queries see."""
        first = 0 if self.window is None else 1 - self.window - num_queries
        return tuple([self.sources[source].seen[part][:, :, first:] for source in fusion.sources]
                     for part, fusion in enumerate((self.key, self.value)))

    def _release(self) -> None:
        for source in self.last_read:
            source.seen = None

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
