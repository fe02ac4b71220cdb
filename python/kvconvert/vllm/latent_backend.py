"""vLLM's attention backend over pages of latents. A step's tokens are read exactly, and become latents."""

from typing import Any

import torch

from kvconvert.device_codes import MOST_SCRATCH
from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.metadata import PagedMetadata
from kvconvert.vllm.paged_backend import PagedBackend, PagedImpl


class LatentImpl(PagedImpl):
    def _attend(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata, output: torch.Tensor
    ) -> None:
        store, pages, short = layer.store, layer.store.pages(), batch.num_short
        here = store.layer_pages[layer.index]
        if store.truncated:
            key, value = self._rebuilt(layer, key, value, batch)
        if short:
            here.attend(
                output[:short], query[:short], pages, batch.block_table, batch.short_past, batch.short_starts, key[:short],
                value[:short],
            )
        for s in batch.prompts:
            first = min(s.past, self._first_seen(s.past))
            old = here.read(pages, batch.block_table[s.row], first, s.past - first, query.dtype)
            self._attend_rows(output, query, old, (key[s.first : s.last], value[s.first : s.last]), s, True)
        if store.held is not None:
            here.store(pages, batch.slots, store.take_held(len(query)))
            return
        step = store.keep_step(layer.index, key, value)
        if step is not None:
            here.store(pages, batch.slots, store.latents.encode(batch.positions, *step))

    def _measured(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        super()._measured(layer, query, key)
        layer.store.held = None  # as a step leaves it: one store's latents are there at a time

    def _reserve(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """Scratch memory of attention, and what the longest prompt needs."""
        key.new_empty(MOST_SCRATCH, dtype=torch.uint8)
        store, (count, seen) = layer.store, self._longest_prompt(query)
        past = self.max_tokens - count
        first = min(past, seen)
        latents = key.new_empty(past - first, store.group.rank)
        old = store.layer_pages[layer.index].rebuilt(latents, first, query.dtype)
        exact = key.new_empty(count, *key.shape[1:])
        kept = []
        if store.group.calibrated:
            kept = [*store.reserve_step(key), key.new_empty(len(key), store.group.rank, dtype=torch.float32)]
        attend_prompt(query[:count], self.max_tokens, old, (exact, exact), self.scale, self.logits_soft_cap, self.window, True)
        del kept  # not before

    def _rebuilt(
        self, layer: Any, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of the step's tokens; of sequences with several new ones those that their latents give."""
        store, key, value = layer.store, key.clone(), value.clone()
        for s in batch.sequences:
            if s.length - s.past > 1:
                span = slice(s.first, s.last)
                key[span] = store.latents.keys(layer.index, store.held[span], s.past)
                value[span] = store.latents.values(layer.index, store.held[span])
        return key, value


class LatentBackend(PagedBackend):
    @staticmethod
    def get_impl_cls() -> type[LatentImpl]:
        return LatentImpl
