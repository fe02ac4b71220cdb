"""vLLM's attention backend over pages of codes. Tokens are coded in the step that brings them; a query reads its own tile
exactly, and the tiles before through their codes."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from kvconvert.codes import TILE, LayerCodes, OpenRows
from kvconvert.device_codes import MOST_SCRATCH
from kvconvert.tiled_attention import attend_prompt, tile_start
from kvconvert.vllm.metadata import CodedMetadata, CodedMetadataBuilder, Sequence


class CodedImpl(AttentionImpl):
    """Attention of one layer. The layer's store has the codes."""

    def __init__(
        self,
        num_heads: int,
        head_size: int,
        scale: float,
        num_kv_heads: int | None = None,
        alibi_slopes: list[float] | None = None,
        sliding_window: int | None = None,
        kv_cache_dtype: str = "auto",
        logits_soft_cap: float | None = None,
        attn_type: str = AttentionType.DECODER,
        kv_sharing_target_layer_name: str | None = None,
        **extra: Any,
    ) -> None:
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads, kv_cache_dtype
        self.logits_soft_cap = float(logits_soft_cap or 0.0)
        # CodedAttention sets these.
        self.window = 0  # last tokens that a query sees, 0 for all
        self.max_tokens = 0  # of the longest sequence
        self._has_reserved = False

    def forward(
        self,
        layer: Any,
        query: torch.Tensor,  # [tokens, num_heads, head_size]
        key: torch.Tensor,  # [tokens, num_kv_heads, head_size], after RoPE
        value: torch.Tensor,
        kv_cache: torch.Tensor,
        attn_metadata: CodedMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run that measures memory
            if not query.is_cpu and not self._has_reserved:
                self._reserve(layer, query, key)
            return output.fill_(0)
        batch, n = attn_metadata, attn_metadata.num_tokens
        query, key, value = query[:n], key[:n], value[:n]
        store, pages = layer.store, layer.store.pages()
        codes, rows = store.codes, store.open_rows(layer.index, batch.capacity, key.dtype)
        for refill in batch.refills:
            table = batch.block_table[refill.row]
            codes.keep_coded(rows, refill.number, pages, table, refill.first, refill.count, layer.index)
        if len(codes.layers) > 1:
            return self._attend_group(layer, query, key, value, batch, rows, output)
        codes.store(pages, batch.slots, batch.positions, [key], [value])
        self._keep(codes, rows, key, value, batch)
        if batch.num_short:
            short = batch.num_short
            codes.attend(
                output[:short], query[:short], pages, batch.short_table, batch.short_lens, 0, rows, batch.short_tiles,
                batch.max_tokens,
            )
        for s in batch.prompts:
            coded = self._coded_rows(codes, pages, batch, s, tile_start(s.length - 1), query.dtype)
            self._attend_rows(output, query, coded, self._exact_rows(codes, rows, key, value, batch, s), s, False)
        return output

    def _reserve(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """Takes the most that serving takes beside the cache, so that vLLM measures it: rows of open tiles, which stay, and
        for a moment scratch memory of attention and what the longest prompt needs."""
        self._has_reserved = True
        key.new_empty(MOST_SCRATCH, dtype=torch.uint8)
        store = layer.store
        store.open_rows(layer.index, store.open_tiles.most, key.dtype)
        count, exact_step = min(query.shape[0], self.max_tokens), len(store.codes.layers) > 1
        past = self.max_tokens - count
        last = tile_start(past if exact_step else self.max_tokens - 1)
        coded, exact = (tuple(key.new_empty(tokens, *key.shape[1:]) for _ in range(2))
                        for tokens in (last - min(last, self._first_seen(past)), self.max_tokens - tile_start(past)))
        attend_prompt(query[:count], self.max_tokens, coded, exact, self.scale, self.logits_soft_cap, self.window, exact_step)

    def _first_seen(self, past: int) -> int:
        """The first tile's first token that queries behind `past` tokens see."""
        return tile_start(max(past - self.window + 1, 0)) if self.window else 0

    def _coded_rows(
        self, codes: LayerCodes, pages: torch.Tensor, batch: CodedMetadata, s: Sequence, end: int, dtype: torch.dtype,
        index: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values, from codes, of the tokens before `end` that a sequence's queries see."""
        first = min(end, self._first_seen(s.past))
        return codes.read(pages, batch.block_table[s.row], first, end - first, dtype, index)

    def _keep(
        self, codes: LayerCodes, rows: OpenRows, key: torch.Tensor, value: torch.Tensor, batch: CodedMetadata
    ) -> None:
        if batch.kept is not None:
            key, value = key[batch.kept], value[batch.kept]
        codes.keep(rows, batch.places, key, value)

    def _exact_rows(
        self, codes: LayerCodes, rows: OpenRows, key: torch.Tensor, value: torch.Tensor, batch: CodedMetadata, s: Sequence
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values from the first token of the first query's tile on."""
        span = slice(s.first, s.last)
        return codes.kept(rows, batch.first_tiles.get(s.row, 0), s.past % TILE, key[span], value[span])

    def _attend_group(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: CodedMetadata,
        rows: OpenRows, output: torch.Tensor,
    ) -> torch.Tensor:
        """A group's codes exist after its last layer, so the step's own tokens are exact."""
        store, pages = layer.store, layer.store.pages()
        for s in batch.sequences:
            coded = self._coded_rows(store.codes, pages, batch, s, tile_start(s.past), query.dtype, layer.index)
            self._attend_rows(output, query, coded, self._exact_rows(store.codes, rows, key, value, batch, s), s, True)
        self._keep(store.codes, rows, key, value, batch)
        if layer.index == 0:
            store.step = []
        store.step.append((key, value))
        if layer.index == len(store.codes.layers) - 1:
            keys, values = map(list, zip(*store.step))
            store.codes.store(pages, batch.slots, batch.positions, keys, values)
            store.step = []
        return output

    def _attend_rows(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        coded: tuple[torch.Tensor, torch.Tensor],
        exact: tuple[torch.Tensor, torch.Tensor],
        s: Sequence,
        exact_step: bool,
    ) -> None:
        rows = slice(s.first, s.last)
        output[rows] = attend_prompt(
            query[rows], s.length, coded, exact, self.scale, self.logits_soft_cap, self.window, exact_step
        )


class CodedBackend(AttentionBackend):
    """Given to each coded layer; `--attention-backend` does not choose it."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto", "bfloat16", "float16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_impl_cls() -> type[CodedImpl]:
        return CodedImpl

    @staticmethod
    def get_builder_cls() -> type[CodedMetadataBuilder]:
        return CodedMetadataBuilder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int | MultipleOf]:
        return [MultipleOf(TILE)]

    @classmethod
    def supported_kv_cache_layouts(cls) -> tuple[KVCacheLayout, ...]:
        return (KVCacheLayout.LBHNC, KVCacheLayout.BLHNC)

    @classmethod
    def supports_kv_connector(cls) -> bool:
        return False

    @classmethod
    def supports_device_cpu_query_lens_mismatch(cls) -> bool:
        return False  # which tiles are open is found on the host
