"""vLLM's attention backend over pages of codes. Tokens are coded in the step that brings them; a query reads its own tile
exactly, with an exact window the tiles before it too, and earlier ones through their codes."""

from typing import Any

import torch

from kvconvert.codes import LayerCodes, OpenRows, exact_start
from kvconvert.device_codes import MOST_SCRATCH
from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.metadata import PagedMetadata, Sequence
from kvconvert.vllm.paged_backend import PagedBackend, PagedImpl


class CodedImpl(PagedImpl):
    """Attention of one layer. The layer's store has the codes."""

    def _attend(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata, output: torch.Tensor
    ) -> None:
        store, pages = layer.store, layer.store.pages()
        codes, rows = store.codes, store.open_rows(layer.index, batch.capacity, key.dtype)
        for refill in batch.refills:
            table = batch.block_table[refill.row]
            codes.keep_coded(rows, refill.number, pages, table, refill.first, refill.count, layer.index)
        if len(codes.layers) > 1:
            self._attend_group(layer, query, key, value, batch, rows, output)
            return
        codes.store(pages, batch.slots, batch.positions, [key], [value])
        self._keep(codes, rows, key, value, batch)
        if batch.num_short:
            short = batch.num_short
            codes.attend(
                output[:short], query[:short], pages, batch.short_table, batch.short_lens, 0, rows, batch.short_tiles,
                batch.max_tokens,
            )
        for s in batch.prompts:
            coded = self._coded_rows(codes, pages, batch, s, exact_start(s.length - 1, codes.exact_tiles), query.dtype)
            exact = self._exact_rows(codes, rows, key, value, batch, s)
            self._attend_rows(output, query, coded, exact, s, False, codes.exact_tiles)

    def _reserve(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """Rows of open tiles, which stay, and for a moment scratch memory of attention and what the longest prompt needs."""
        key.new_empty(MOST_SCRATCH, dtype=torch.uint8)
        store = layer.store
        store.open_rows(layer.index, store.open_tiles.most, key.dtype)
        (count, seen), exact_step = self._longest_prompt(query), len(store.codes.layers) > 1
        past = self.max_tokens - count
        tiles = store.codes.exact_tiles
        kept = store.reserve_step(key) if exact_step else []
        last = exact_start(past if exact_step else self.max_tokens - 1, tiles)
        coded, exact = (tuple(key.new_empty(tokens, *key.shape[1:]) for _ in range(2))
                        for tokens in (last - min(last, seen), self.max_tokens - exact_start(past, tiles)))
        attend_prompt(query[:count], self.max_tokens, coded, exact, self.scale, self.logits_soft_cap, self.window, exact_step,
                      tiles)
        del kept  # not before

    def _coded_rows(
        self, codes: LayerCodes, pages: torch.Tensor, batch: PagedMetadata, s: Sequence, end: int, dtype: torch.dtype,
        index: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, from codes, of the tokens before `end` that a sequence's queries see."""
        first = min(end, self._first_seen(s.past))
        return codes.read(pages, batch.block_table[s.row], first, end - first, dtype, index)

    def _keep(
        self, codes: LayerCodes, rows: OpenRows, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata
    ) -> None:
        if batch.kept is not None:
            key, value = key[batch.kept], value[batch.kept]
        codes.keep(rows, batch.places, key, value)

    def _exact_rows(
        self, codes: LayerCodes, rows: OpenRows, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata, s: Sequence
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values from the first token on that the first query reads exactly."""
        span, old = slice(s.first, s.last), s.past - exact_start(s.past, codes.exact_tiles)
        return codes.kept(rows, batch.first_tiles.get(s.row, []), old, key[span], value[span])

    def _attend_group(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata,
        rows: OpenRows, output: torch.Tensor,
    ) -> None:
        """A group's codes exist after its last layer, so the step's own tokens are exact."""
        store, pages = layer.store, layer.store.pages()
        for s in batch.sequences:
            coded = self._coded_rows(store.codes, pages, batch, s, exact_start(s.past, store.codes.exact_tiles), query.dtype, layer.index)
            self._attend_rows(output, query, coded, self._exact_rows(store.codes, rows, key, value, batch, s), s, True)
        self._keep(store.codes, rows, key, value, batch)
        step = store.keep_step(layer.index, key, value)
        if step is not None:
            store.codes.store(pages, batch.slots, batch.positions, *step)


class CodedBackend(PagedBackend):
    @staticmethod
    def get_impl_cls() -> type[CodedImpl]:
        return CodedImpl
