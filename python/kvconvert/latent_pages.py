"""Latents of a layer in an engine's pages, and attention over them in place.

A page holds a row of numbers per token (runtime/ops/paged_latents.h).
"""

import sys

import torch

from kvconvert._ops import ops
from kvconvert.latents import Latents

_FLOAT = {"dtype": torch.float32, "device": "cpu"}  # whatever the engine's defaults are
_NONE = torch.empty(0, **_FLOAT)


def pages_class(device: torch.device) -> type["LayerPages"]:
    """What computes on the tensors of a device."""
    if device.type == "cpu":
        return LayerPages
    from kvconvert.device_latents import DeviceLayerPages

    return DeviceLayerPages


class LayerPages:
    """One layer of a store: the layer `place` of `latents`, whose RMS norm of keys, if any, is a HeadNorm. Tensors are on the
    CPU, as those of `latents`.

    pages: float32, bfloat16 or float16 [num_pages, numbers]; rows of a page lie one after the other, padding may follow.
    scale, softcap: of scores (0: no cap).
    """

    alignment = 4  # bytes, of pages

    def __init__(self, latents: Latents, place: int, num_query_heads: int, scale: float, softcap: float = 0.0):
        self._latents, self._place, self._ops = latents, place, ops()
        self._open(num_query_heads, scale, softcap)

    def _open(self, num_query_heads: int, scale: float, softcap: float) -> None:
        self._handle, latents, place = None, self._latents, self._place
        form, group = latents.forms[place], latents.group
        no_angles = torch.empty(1 << 30, 0, **_FLOAT)  # any number of positions without pairs
        cos, sin = form.rope if form.rope is not None else (no_angles, no_angles)
        norm = form.key_norm
        numbers = torch.tensor([scale, softcap, norm.epsilon if norm else 0.0], **_FLOAT)
        factors = [*latents.decoders[place], *latents.offsets[place], norm.weight if norm else None]
        self._handle = self._ops.open_latents(
            [num_query_heads, latents.num_kv_heads, latents.head_dim, group.rank, group.key_rank, group.value_rank, form.window],
            numbers, cos.contiguous(), sin.contiguous(),
            [_NONE if part is None else part.float().contiguous() for part in factors])

    def __del__(self):
        # At the interpreter's end torch may be gone, and the process's memory goes with it.
        if getattr(self, "_handle", None) is not None and not sys.is_finalizing():
            self._ops.close_latents(self._handle)

    def store(self, pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        """Writes latents [T, rank] at slots int64 [T]: page * tokens of a page + row, below 0: skipped."""
        self._ops.store_latents(self._handle, pages, slots, rows)

    def attend(self, out: torch.Tensor, query: torch.Tensor, pages: torch.Tensor, block_table: torch.Tensor, past: torch.Tensor,
               starts: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Attention of the last tokens of each sequence: to the latents of the tokens before, and exactly to themselves.

        block_table int32 [S, pages]; past int32 [S]: tokens that have latents; starts int32 [S + 1]: rows of a sequence's queries,
        from one to the next. query, out [T, num_query_heads, head_dim]; keys (post-RoPE), values [T, num_kv_heads, head_dim]. What
        a sequence gets does not depend on the others.
        """
        self._ops.attend_paged_latents(self._handle, out, query, pages, block_table, past, starts, keys, values)

    def read(self, pages: torch.Tensor, page_numbers: torch.Tensor, first: int, count: int,
             dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (post-RoPE) and values [count, num_kv_heads, head_dim] of a sequence's tokens from `first` on, whose pages are
        page_numbers."""
        rank = self._latents.rank
        tokens = pages.shape[1] // rank  # of a page
        begin = first // tokens
        numbers = page_numbers[begin:-(-(first + count) // tokens)].long()
        rows = pages.index_select(0, numbers)[:, :tokens * rank].reshape(-1, rank).narrow(0, first - begin * tokens, count)
        return self.rebuilt(rows, first, dtype)

    def rebuilt(self, rows: torch.Tensor, first: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys (post-RoPE) and values of latents [count, rank] of the tokens from `first` on."""
        rows = rows.to(self._latents.decoders[self._place][0].dtype)
        return (self._latents.keys(self._place, rows, first).to(dtype), self._latents.values(self._place, rows).to(dtype))
