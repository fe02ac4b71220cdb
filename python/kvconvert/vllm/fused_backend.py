"""vLLM's attention backend over pages of exact rows, which several layers read."""

from typing import Any

import torch

from kvconvert.row_pages import store_rows
from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.metadata import PagedMetadata
from kvconvert.vllm.paged_backend import PagedBackend, PagedImpl


class FusedImpl(PagedImpl):
    def _attend(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata, output: torch.Tensor
    ) -> None:
        store, pages, short = layer.store, layer.store.pages(), batch.num_short
        reads, place = store.reads[layer.index], store.places.get(store.layers[layer.index])
        if place is not None:
            store_rows(pages, place, batch.slots, key, value)
        read_in_place = short and reads.reads_in_place(query, pages)
        if read_in_place:
            reads.attend(output[:short], query[:short], pages, batch.short_table, batch.short_lens, batch.max_tokens)
        for s in batch.prompts if read_in_place else batch.sequences:
            first = self._first_seen(s.past)
            keys, values = reads.read(pages, batch.block_table[s.row], first, s.length)
            self._attend_rows(output, query, (keys[:0], values[:0]), (keys, values), s, True)

    def _reserve(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """Parts of the output in float32, and what the longest prompt needs."""
        query.float()
        count, first = self._longest_prompt(query)
        rows = layer.store.reads[layer.index].combined(lambda *_: key.new_empty(self.max_tokens - first, *key.shape[1:]))
        none = tuple(part[:0] for part in rows)
        attend_prompt(query[:count], self.max_tokens, none, rows, self.scale, self.logits_soft_cap, self.window, True)


class FusedBackend(PagedBackend):
    @staticmethod
    def get_impl_cls() -> type[FusedImpl]:
        return FusedImpl
