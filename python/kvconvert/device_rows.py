"""Rows in pages of a GPU's memory: attention by the operator attend_rows_device, which a library that was built with CUDA has
(runtime/ops/device_row_ops.cpp)."""

import dataclasses
import functools
from typing import ClassVar

import torch

from kvconvert._ops import ops
from kvconvert.device_codes import ALIGNMENT, page_addresses
from kvconvert.row_pages import LayerRows

_CHANNELS = (32, 64, 128)  # of a head; of one source also 256


class _LatestStep:
    """Addresses of pages and the first tokens that are seen, which the layers of a step share."""

    def __init__(self) -> None:
        self._table = self._lens = None
        self._start = 0
        self._addresses: torch.Tensor | None = None
        self._first: dict[int, torch.Tensor] = {}

    def find(self, pages: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, count: int,
             window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """int64 [S, count] of a sequence's first `count` pages; int32 [S], empty without a window."""
        if self._table is not table or self._lens is not lens or self._start != pages.data_ptr():
            self._table, self._lens, self._start, self._first = table, lens, pages.data_ptr(), {}
            self._addresses = page_addresses(pages, table[:, :count])
        if window not in self._first:
            self._first[window] = (lens - window).clamp_(min=0) if window else lens[:0]
        return self._addresses, self._first[window]


_latest = _LatestStep()


@dataclasses.dataclass(frozen=True)
class DeviceLayerRows(LayerRows):
    """As LayerRows, on tensors of the device of the factors, in bfloat16 or float16: the dtype of rows and queries."""

    alignment: ClassVar[int] = ALIGNMENT

    def reads_in_place(self, query: torch.Tensor, pages: torch.Tensor) -> bool:
        heads, channels = query.shape[1:]
        sources = len(self.keys)
        if not super().reads_in_place(query, pages) or channels not in (_CHANNELS if sources > 1 else (*_CHANNELS, 256)):
            return False
        return heads // pages.shape[4] <= (16 if channels * sources <= 128 else 8)  # what a block's registers hold

    def attend(self, out: torch.Tensor, query: torch.Tensor, pages: torch.Tensor, block_table: torch.Tensor, lens: torch.Tensor,
               max_tokens: int) -> None:
        """block_table, lens: not changed before the next call with others."""
        if pages.dtype != query.dtype:
            raise ValueError(f"pages: {pages.dtype}, expected {query.dtype}, as the query")
        tokens, heads = pages.shape[3:5]
        max_tokens = min(max_tokens, block_table.shape[1] * tokens)
        addresses, first = _latest.find(pages, block_table, lens, -(-max_tokens // tokens), self.window)
        parts = self._parts(query.device)
        places = torch.add(addresses, parts[:, None, None], alpha=pages.stride(2) * pages.itemsize)
        query = query.contiguous()
        result = out if out.is_contiguous() else torch.empty_like(query)
        factors = [factor for fusion in self.fusions for factor in fusion.weight] if self.fusions else []
        ops().attend_rows_device(result, query, places, lens, first, max_tokens, [heads, tokens], self.scale, self.softcap, factors)
        if result is not out:
            out.copy_(result)

    def _parts(self, device: torch.device) -> torch.Tensor:
        """Where a page has the sources' keys, then their values, in rows of a layer's keys or values."""
        return _on_device(tuple([2 * place for place in self.keys] + [2 * place + 1 for place in self.values]), device)


@functools.cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
