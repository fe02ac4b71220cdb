"""Rows in pages of a GPU's memory: attention by the operator attend_rows_device, which a library that was built with CUDA has
(runtime/ops/device_row_ops.cpp)."""

import dataclasses
import functools
import threading
from typing import ClassVar

import torch

from kvconvert._ops import ops
from kvconvert.device_codes import ALIGNMENT, page_addresses
from kvconvert.row_pages import LayerRows

_CHANNELS = (32, 64, 128)  # of a head; of one source also 256


class _Step:
    """What the layers of a step share."""

    def __init__(self, pages: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, max_tokens: int):
        self._made_of = (table, lens, pages.data_ptr(), max_tokens)
        self._first: dict[int, torch.Tensor] = {}
        self.addresses = page_addresses(pages, table[:, :-(-max_tokens // pages.shape[3])])  # int64 [S, pages]
        self.lens = lens.clamp(max=max_tokens)  # kernels have room for as many

    def is_of(self, pages: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, max_tokens: int) -> bool:
        own_table, own_lens, *numbers = self._made_of
        return own_table is table and own_lens is lens and numbers == [pages.data_ptr(), max_tokens]

    def first_seen(self, window: int) -> torch.Tensor:
        """int32 [S], empty without a window."""
        if window not in self._first:
            self._first[window] = (self.lens - window).clamp_(min=0) if window else self.lens[:0]
        return self._first[window]


class _LatestStep(threading.local):
    """A thread's last one: engines may run in several."""

    def __init__(self) -> None:
        self._step: _Step | None = None

    def find(self, pages: torch.Tensor, table: torch.Tensor, lens: torch.Tensor, max_tokens: int) -> _Step:
        if self._step is None or not self._step.is_of(pages, table, lens, max_tokens):
            self._step = _Step(pages, table, lens, max_tokens)
        return self._step


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
        step, parts = _latest.find(pages, block_table, lens, max_tokens), self._parts(query.device)
        places = torch.add(step.addresses, parts[:, None, None], alpha=pages.stride(2) * pages.itemsize)
        query = query.contiguous()
        result = out if out.is_contiguous() else torch.empty_like(query)
        factors = [factor for fusion in self.fusions for factor in fusion.weight] if self.fusions else []
        ops().attend_rows_device(result, query, places, step.lens, step.first_seen(self.window), max_tokens, [heads, tokens],
                                 self.scale, self.softcap, factors)
        if result is not out:
            out.copy_(result)

    def _parts(self, device: torch.device) -> torch.Tensor:
        """Where a page has the sources' keys, then their values, in rows of a layer's keys or values."""
        return _on_device(tuple([2 * place for place in self.keys] + [2 * place + 1 for place in self.values]), device)


@functools.cache
def _on_device(numbers: tuple[int, ...], device: torch.device) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int64, device=device)
