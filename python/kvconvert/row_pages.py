"""Keys and values of plain layers in an engine's pages, and attention of layers that read them, or combinations of them.

Pages are a tensor [num_pages, layers, 2, page_tokens, num_kv_heads, head_dim], dense in a page: rows of the keys (after RoPE)
and of the values of every layer that stores them.
"""

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import torch

from kvconvert._ops import ops
from kvconvert.fused import Fusion, can_fold

_ONES = torch.empty(0, dtype=torch.float32, device="cpu")  # in place of factors


def rows_class(device: torch.device) -> type["LayerRows"]:
    """What reads pages on a device. Raises ConversionError for a library that has no kernels for it."""
    if device.type == "cpu":
        return LayerRows
    from kvconvert.device_codes import require_op
    from kvconvert.device_rows import DeviceLayerRows

    require_op(ops(), "attend_rows_device", "fused layers", device)
    return DeviceLayerRows


def store_rows(pages: torch.Tensor, place: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
    """Writes rows [T, num_kv_heads, head_dim] of the layer `place` at slots int64 [T]: page * page_tokens + row in the page; those
    below 0 to the first page, which engines give to no sequence."""
    slots = slots.clamp(min=0)
    page, row = slots // pages.shape[3], slots % pages.shape[3]
    for part, rows in enumerate((key, value)):
        pages[page, place, part, row] = rows.to(pages.dtype)


@dataclasses.dataclass(frozen=True)
class LayerRows:
    """What one layer reads, on the CPU. scale, softcap: of scores (0: no cap). window: last tokens that a query sees, 0 for all.

    keys, values: places of layers in the pages. fusions: how they are combined; None: of the one layer, as they are.
    """

    alignment: ClassVar[int] = 4  # bytes, of pages

    keys: list[int]
    values: list[int]
    fusions: tuple[Fusion, Fusion] | None
    scale: float
    softcap: float = 0.0
    window: int = 0

    def reads_in_place(self, query: torch.Tensor, pages: torch.Tensor) -> bool:
        """Does attend() take such queries and pages?"""
        return self.fusions is None or can_fold(*self.fusions)

    def attend(self, out: torch.Tensor, query: torch.Tensor, pages: torch.Tensor, block_table: torch.Tensor, lens: torch.Tensor,
               max_tokens: int) -> None:
        """Attention of one token of each sequence, where rows are read in place. query, out [S, num_heads, head_dim];
        block_table int32 [S, pages]; lens int32 [S]: tokens of the sequence, the query's own included, at most max_tokens."""
        factors = [list(fusion.weight) for fusion in self.fusions] if self.fusions else ([_ONES], [_ONES])
        ops().attend_paged_rows(out, query, [pages[:, place, 0] for place in self.keys], [pages[:, place, 1] for place in self.values],
                          *factors, block_table, lens, self.scale, self.softcap, self.window)

    def read(self, pages: torch.Tensor, page_numbers: torch.Tensor, first: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values [last - first, num_kv_heads, head_dim] of a sequence's tokens, whose pages are page_numbers."""
        tokens = pages.shape[3]
        begin = first // tokens
        numbers = page_numbers[begin:-(-last // tokens)].long()
        span = slice(first - begin * tokens, last - begin * tokens)
        return self.combined(lambda place, part: pages[numbers, place, part].flatten(0, 1)[span])

    def combined(self, stored: Callable[[int, int], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of stored(place, part): rows [tokens, num_kv_heads, head_dim] of keys (part 0) or values (1)."""
        def rows(part: int, places: list[int]) -> torch.Tensor:
            sources = [stored(place, part) for place in places]
            if self.fusions is None:
                return sources[0]
            return self.fusions[part]([own.transpose(0, 1)[None] for own in sources])[0].transpose(0, 1)
        return rows(0, self.keys), rows(1, self.values)
