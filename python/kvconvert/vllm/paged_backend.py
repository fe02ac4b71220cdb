"""What vLLM's attention backends over pages of codes and of latents share.

Codes of one layer are stored before the layer reads any. Codes of several layers, and latents, are stored after the layer (the
last of several) has read, and rows of a window that are not kept any more are read from codes before all that. So a step must not
read pages that it writes for another sequence: spec.LaterHits keeps such sequences apart."""

from typing import Any

import torch
from vllm.v1.attention.backend import AttentionBackend, AttentionImpl, AttentionType, MultipleOf
from vllm.v1.kv_cache_interface import KVCacheLayout

from kvconvert.codes import TILE, tile_start
from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.metadata import PagedMetadata, PagedMetadataBuilder, Sequence


class PagedImpl(AttentionImpl):
    """Attention of one layer. The layer's store has its tokens."""

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
        # PagedAttention sets these.
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
        attn_metadata: PagedMetadata | None,
        output: torch.Tensor,
        output_scale: torch.Tensor | None = None,
        output_block_scale: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if attn_metadata is None:  # a run that measures memory
            self._measured(layer, query, key)
            return output.fill_(0)
        n = attn_metadata.num_tokens
        self._attend(layer, query[:n], key[:n], value[:n], attn_metadata, output)
        return output

    def _measured(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """Takes the memory that serving takes beside the cache, once."""
        if not query.is_cpu and not self._has_reserved:
            self._has_reserved = True
            self._reserve(layer, query, key)

    def _reserve(self, layer: Any, query: torch.Tensor, key: torch.Tensor) -> None:
        """On a GPU: takes the most that serving takes beside the cache, so that vLLM measures it."""

    def _attend(
        self, layer: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, batch: PagedMetadata, output: torch.Tensor
    ) -> None:
        """Attends for a step's tokens, and stores them."""
        raise NotImplementedError

    def _longest_prompt(self, query: torch.Tensor) -> tuple[int, int]:
        """A step whose tokens end the longest sequence: how many of them it has, and the first token of the first tile that they
        see."""
        count = min(len(query), self.max_tokens)
        return count, self._first_seen(self.max_tokens - count)

    def _first_seen(self, past: int) -> int:
        """The first tile's first token that queries behind `past` tokens see."""
        return tile_start(max(past - self.window + 1, 0)) if self.window else 0

    def _attend_rows(
        self,
        output: torch.Tensor,
        query: torch.Tensor,
        stored: tuple[torch.Tensor, torch.Tensor],
        exact: tuple[torch.Tensor, torch.Tensor],
        s: Sequence,
        exact_step: bool,
        exact_tiles: int = 1,
    ) -> None:
        """A sequence's queries, to keys and values of earlier tokens as they are stored, and to exact ones behind."""
        rows = slice(s.first, s.last)
        output[rows] = attend_prompt(
            query[rows], s.length, stored, exact, self.scale, self.logits_soft_cap, self.window, exact_step, exact_tiles
        )


class PagedBackend(AttentionBackend):
    """Given to each layer whose cache is pages of codes or latents; `--attention-backend` does not choose it."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto", "bfloat16", "float16"]

    @staticmethod
    def get_name() -> str:
        return "CUSTOM"

    @staticmethod
    def get_builder_cls() -> type[PagedMetadataBuilder]:
        return PagedMetadataBuilder

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
        return False  # host numbers steer a step
