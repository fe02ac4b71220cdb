"""What vLLM's block manager needs to know of codes and latents: the bytes of a page, and when it can be read."""

from dataclasses import dataclass, fields
from typing import Self

import torch
from vllm.v1.core.kv_cache_utils import BlockHashWithGroupId
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec

from kvconvert.codes import TILE


class LaterHits(FullAttentionManager):
    """A prompt that begins like one of the same step waits for the next step.

    vLLM's own attention writes a step's keys and values before it reads any, so that a prompt may find pages in the prefix cache
    which the same step fills. Attention over latents, over codes of several layers, and the exact rows of a window read pages
    first.
    """

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self._of_this_step: set[BlockHashWithGroupId] = set()

    def get_num_blocks_to_allocate(self, request_id: str, num_tokens: int, new_computed_blocks, *args, **kwargs) -> int:
        if self._of_this_step and any(block.block_hash in self._of_this_step for block in new_computed_blocks):
            return self.block_pool.num_gpu_blocks + 1  # more than there are: not in this step
        return super().get_num_blocks_to_allocate(request_id, num_tokens, new_computed_blocks, *args, **kwargs)

    def cache_blocks(self, request, *args, **kwargs) -> None:
        before = self.num_cached_block.get(request.request_id, 0)
        super().cache_blocks(request, *args, **kwargs)
        after = self.num_cached_block.get(request.request_id, 0)
        blocks = self.req_to_blocks[request.request_id][before:after]
        self._of_this_step.update(block.block_hash for block in blocks if block.block_hash is not None)

    def new_step_starts(self) -> None:
        super().new_step_starts()
        self._of_this_step.clear()


@dataclass(frozen=True, kw_only=True)
class _OneTableSpec(FullAttentionSpec):
    """Of layers that differ in size and share the pages' numbers, all in one group: vLLM takes its manager from any of them."""

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        if any(spec != specs[0] for spec in specs[1:]):
            # vLLM expects this type, and then asks for a spec per layer.
            raise AssertionError("layers whose tokens differ in size cannot share a spec")
        return specs[0]


@register_kv_cache_spec(manager_class=LaterHits, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class PagedSpec(_OneTableSpec):
    """A page is whole tiles of 32 tokens, `state_content_bytes` each."""


@register_kv_cache_spec(manager_class=LaterHits, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class PlainSpec(_OneTableSpec):
    """Of a layer that vLLM's own attention computes, beside others that it does not. With a sliding window all tokens stay, too."""


def plain_spec(plain: FullAttentionSpec, window: int | None) -> PlainSpec:
    """The spec of a layer that is left as it is, whose queries see the last `window` tokens (None: all)."""
    return PlainSpec(**{f.name: getattr(plain, f.name) for f in fields(plain) if f.init} | {"sliding_window": window})


def paged_spec(plain: FullAttentionSpec, tile_bytes: int) -> PagedSpec:
    """The spec of a layer whose tile of 32 tokens takes `tile_bytes`."""
    kept = {f.name: getattr(plain, f.name) for f in fields(plain) if f.init}
    kept |= {
        "dtype": torch.uint8,
        "num_head_slots": 1,
        "tokens_per_state": TILE,
        "state_content_bytes": tile_bytes,
    }
    return PagedSpec(**kept)
