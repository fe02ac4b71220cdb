"""Pages of the codes of layers that are coded together, and attention over them."""

from typing import TYPE_CHECKING

import torch

from kvconvert.codes import TILE
from kvconvert.exact_attention import attend_exactly, causal_mask
from kvconvert.transformers.model_codes import ModelCodes

if TYPE_CHECKING:
    from kvconvert.transformers.cache import Step


class CodeStore:
    """pages: uint8 [batch, tiles, tile_bytes], as many tiles as the longest row needs."""

    def __init__(self, model_codes: ModelCodes, number: int):
        self.model_codes, self.number = model_codes, number
        self.layers = model_codes.stores[number]
        self.pages: torch.Tensor | None = None
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of the step's first layers

    def nbytes(self) -> int:
        return 0 if self.pages is None else self.pages.nbytes

    def attend(self, place: int, step: "Step", query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               scale: float, softcap: float | None) -> torch.Tensor:
        """Stores the step's tokens and attends to all. query [batch, heads, q, head_dim], and so is the result."""
        codes = self.model_codes.codes[self.number]
        window = self.model_codes.window(self.layers[place])
        self._grow(step, codes.tile_bytes, key.device)
        # The codes of several layers exist only after the last of them: its tokens are then read exactly.
        exact = len(self.layers) > 1 or self.model_codes.exact_step
        if exact:
            rows = [self._row(codes, place, step, row, query, (key[row], value[row]), scale, softcap, window)
                    for row in range(query.shape[0])]
        self._store(codes, step, key, value)
        if exact:
            return torch.stack(rows)
        if query.shape[2] == 1:
            return self._decode(codes, place, step, query)
        return torch.stack([self._row(codes, place, step, row, query, None, scale, softcap, window)
                            for row in range(query.shape[0])])

    def _grow(self, step: "Step", tile_bytes: int, device: torch.device) -> None:
        batch, tiles = len(step.lengths), step.num_tiles
        held = 0 if self.pages is None else self.pages.shape[1]
        if held < tiles:
            pages = torch.zeros(batch, tiles, tile_bytes, dtype=torch.uint8, device=device)
            if held:
                pages[:, :held] = self.pages
            self.pages = pages

    def _store(self, codes, step: "Step", key: torch.Tensor, value: torch.Tensor) -> None:
        self._waiting.append(tuple(tensor.transpose(1, 2).flatten(0, 1) for tensor in (key.detach(), value.detach())))
        if len(self._waiting) == len(self.layers):
            keys, values = (list(tensors) for tensors in zip(*self._waiting))
            self._waiting = []
            codes.store(self.pages.flatten(0, 1), step.slots, step.index.clamp(min=0).flatten(), keys, values)

    def _tables(self) -> torch.Tensor:
        """int32 [batch, tiles]: the pages of each row."""
        batch, tiles = self.pages.shape[:2]
        return torch.arange(batch * tiles, dtype=torch.int32, device=self.pages.device).view(batch, tiles)

    def _decode(self, codes, place: int, step: "Step", query: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(query[:, :, 0], memory_format=torch.contiguous_format)
        codes.attend(out, query[:, :, 0].contiguous(), self.pages.flatten(0, 1), self._tables(), step.seq_lens, place)
        return out[:, :, None]

    def _row(self, codes, place: int, step: "Step", row: int, query: torch.Tensor,
             own: tuple[torch.Tensor, torch.Tensor] | None, scale: float, softcap: float | None,
             window: int | None) -> torch.Tensor:
        """Attention of one row, [heads, q, head_dim]; own: keys and values of the step that are read exactly."""
        real = step.index[row] >= 0
        num_queries, past, length = int(real.sum()), step.past[row], step.lengths[row]
        out = torch.zeros_like(query[row])
        if num_queries == 0:
            return out
        first = 0 if window is None else max(past - window + 1, 0) // TILE * TILE  # no query sees earlier tokens
        last = length if own is None else past
        parts = []
        if last > first:
            keys, values = codes.read(self.pages.flatten(0, 1), self._tables()[row], first, last - first,
                                      query.dtype, place)
            parts.append((keys.transpose(0, 1), values.transpose(0, 1)))
        if own is not None:
            parts.append(tuple(tensor[:, real] for tensor in own))
        keys, values = (torch.cat(tensors, 1)[None] for tensors in zip(*parts))
        whole = num_queries == keys.shape[2] and (window is None or num_queries <= window)
        allowed = None
        if not whole and (num_queries > 1 or window is not None):
            allowed = causal_mask(num_queries, keys.shape[2], window, query.device)
        out[:, real] = attend_exactly(query[row][:, real][None], keys, values, scale, allowed, softcap,
                                      whole and num_queries > 1)[0]
        return out

    def keep_tiles(self, tiles: int) -> None:
        """Drops the tiles behind."""
        if self.pages is not None:
            self.pages = self.pages[:, :tiles].contiguous()

    def take_rows(self, rows: torch.Tensor) -> None:
        if self.pages is not None:
            self.pages = self.pages.index_select(0, rows.to(self.pages.device))
