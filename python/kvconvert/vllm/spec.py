"""What vLLM's block manager needs to know of codes and latents: the bytes of a page."""

from dataclasses import dataclass, fields
from typing import Self

import torch
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.kv_cache_spec_registry import register_kv_cache_spec

from kvconvert.codes import TILE


@register_kv_cache_spec(manager_class=FullAttentionManager, uniform_type_base_spec=FullAttentionSpec)
@dataclass(frozen=True, kw_only=True)
class PagedSpec(FullAttentionSpec):
    """A page is whole tiles of 32 tokens, `state_content_bytes` each. Layers may differ in size."""

    @classmethod
    def merge(cls, specs: list[Self]) -> Self:
        if any(spec != specs[0] for spec in specs[1:]):
            # vLLM expects this type, and then asks for a spec per layer.
            raise AssertionError("layers whose tokens differ in size cannot share a spec")
        return specs[0]


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
