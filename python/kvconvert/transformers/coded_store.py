"""Pages of the codes of layers that are coded together, and attention over them."""

from typing import TYPE_CHECKING

import torch

from kvconvert.codes import TILE, LayerCodes, OpenRows, exact_start, tile_start
from kvconvert.factors import ConversionError
from kvconvert.tiled_attention import attend_prompt

if TYPE_CHECKING:
    from kvconvert.transformers.cache import Step
    from kvconvert.transformers.model_codes import ModelCodes


class CodeStore:
    """pages: uint8 [batch, tiles, tile_bytes], as many tiles as the longest row needs.

    Exact rows of a row's last tiles lie beside them: of those that are read exactly, and one more for tokens that are taken
    back. Tile t of row r is open tile r * open_tiles + t % open_tiles.
    """

    def __init__(self, model_codes: "ModelCodes", number: int):
        self.model_codes, self.number = model_codes, number
        self.layers = model_codes.stores[number]
        self.pages: torch.Tensor | None = None
        self.open_rows: list[OpenRows | None] = [None] * len(self.layers)
        self._waiting: list[tuple[torch.Tensor, torch.Tensor]] = []  # keys and values of the step's first layers

    def nbytes(self) -> int:
        codes = 0 if self.pages is None else self.pages.nbytes
        return codes + sum(rows.nbytes for rows in self.open_rows if rows is not None)

    def attend(self, place: int, step: "Step", query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
               scale: float, softcap: float | None) -> torch.Tensor:
        """Stores the step's tokens and attends to all. query [batch, heads, q, head_dim], and so is the result."""
        codes, step = self.model_codes.codes(self.number, key.device), step.on(key.device)
        self._grow(step, codes.tile_bytes, key.device)
        if self.open_rows[place] is None:
            self.open_rows[place] = codes.new_open_rows(self.model_codes.open_tiles * len(step.lengths), key.dtype)
        self._refill(codes, place, step)
        # The codes of several layers exist only after the last of them: its tokens are then read exactly.
        exact_step = len(self.layers) > 1 or self.model_codes.exact_step
        batch, one = query.shape[0], query.shape[2] == 1 and min(step.lengths) > 0  # a row may have padding alone
        exact = [] if one else [self._exact_rows(codes, place, step, row, key, value) for row in range(batch)]
        self._store(codes, place, step, key, value)
        self._keep(codes, place, step, key, value)
        if one:
            return self._decode(codes, place, step, query)
        return torch.stack([self._row(codes, place, step, row, query, exact[row], scale, softcap, exact_step)
                            for row in range(batch)])

    def _grow(self, step: "Step", tile_bytes: int, device: torch.device) -> None:
        batch, tiles = len(step.lengths), step.num_tiles
        if self.pages is not None and self.pages.device != device:
            raise ConversionError(f"layers {self.layers[0]}-{self.layers[-1]}: their codes are on {self.pages.device} and new keys on "
                                  f"{device}; keep layers that are coded together on one device, or convert with --scope head")
        held = -1 if self.pages is None else self.pages.shape[1]
        if held < tiles:  # none where the first pass is all padding
            pages = torch.zeros(batch, tiles, tile_bytes, dtype=torch.uint8, device=device)
            if held > 0:
                pages[:, :held] = self.pages
            self.pages = pages

    def _store(self, codes: LayerCodes, place: int, step: "Step", key: torch.Tensor, value: torch.Tensor) -> None:
        if place == 0:
            self._waiting = []  # of a pass that was interrupted
        self._waiting.append(tuple(step.without_padding(tensor.transpose(1, 2)) for tensor in (key.detach(), value.detach())))
        if len(self._waiting) == len(self.layers):
            keys, values = (list(tensors) for tensors in zip(*self._waiting))
            self._waiting = []
            codes.store(self.pages.flatten(0, 1), step.slots, step.without_padding(step.index), keys, values)

    def _keep(self, codes: LayerCodes, place: int, step: "Step", key: torch.Tensor, value: torch.Tensor) -> None:
        """Keeps the step's tokens of the last tiles of every row."""
        rows = tuple(tensor.detach().transpose(1, 2)[step.kept] for tensor in (key, value))
        codes.keep(self.open_rows[place], step.open_places, *rows)

    def _refill(self, codes: LayerCodes, place: int, step: "Step") -> None:
        """Open tiles whose exact rows are gone, as more was taken back than is kept, are read from codes."""
        for row, first, count in step.refills:
            codes.keep_coded(self.open_rows[place], self._open_tile(row, first), self.pages.flatten(0, 1), self._tables()[row],
                             first, count, place)

    def _open_tile(self, row: int, token: int) -> int:
        return open_tile(row, token, self.model_codes.open_tiles)

    def _exact_rows(self, codes: LayerCodes, place: int, step: "Step", row: int, key: torch.Tensor,
                    value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of a row from the first token on that its first query reads exactly."""
        real, past = step.index[row] >= 0, step.past[row]
        new = [tensor[row][:, real].transpose(0, 1) for tensor in (key, value)]
        start = exact_start(past, codes.exact_tiles)
        tiles = [self._open_tile(row, first) for first in range(start, past, TILE)]
        return codes.kept(self.open_rows[place], tiles, past - start, *new)

    def _tables(self) -> torch.Tensor:
        """int32 [batch, tiles]: the pages of each row."""
        batch, tiles = self.pages.shape[:2]
        return torch.arange(batch * tiles, dtype=torch.int32, device=self.pages.device).view(batch, tiles)

    def _decode(self, codes: LayerCodes, place: int, step: "Step", query: torch.Tensor) -> torch.Tensor:
        out = torch.zeros_like(query[:, :, 0], memory_format=torch.contiguous_format)
        codes.attend(out, query[:, :, 0].contiguous(), self.pages.flatten(0, 1), self._tables(), step.seq_lens, place,
                     self.open_rows[place], step.open_tiles, max(step.lengths))
        return out[:, :, None]

    def _row(self, codes: LayerCodes, place: int, step: "Step", row: int, query: torch.Tensor,
             exact: tuple[torch.Tensor, torch.Tensor], scale: float, softcap: float | None,
             exact_step: bool) -> torch.Tensor:
        """Attention of one row, [heads, q, head_dim]."""
        real = step.index[row] >= 0
        past, length = step.past[row], step.lengths[row]
        out = torch.zeros_like(query[row])
        if length == past:
            return out
        window = self.model_codes.window(self.layers[place]) or 0
        first = tile_start(max(past - window + 1, 0)) if window else 0  # no query sees earlier tokens
        last = max(first, exact_start(past if exact_step else length - 1, codes.exact_tiles))
        coded = codes.read(self.pages.flatten(0, 1), self._tables()[row], first, last - first, query.dtype, place)
        out[:, real] = attend_prompt(query[row][:, real].transpose(0, 1), length, coded, exact, scale, softcap or 0.0,
                                     window, exact_step, codes.exact_tiles).transpose(0, 1)
        return out

    def crop(self, lengths: list[int]) -> None:
        """Keeps the first tokens of each row: drops the tiles behind."""
        if self.pages is not None:
            self.pages = self.pages[:, :-(-max(lengths) // TILE)].contiguous()

    def take_rows(self, rows: torch.Tensor) -> None:
        if self.pages is None:
            return
        self.pages = self.pages.index_select(0, rows.to(self.pages.device))
        each = self.model_codes.open_tiles
        tiles = (rows[:, None] * each + torch.arange(each, device=rows.device)).flatten()
        self.open_rows = [kept if kept is None else kept.take(tiles) for kept in self.open_rows]


def open_tile(row: int | torch.Tensor, token: int | torch.Tensor, each: int):
    """The open tile that keeps a token of a row, of which there are `each` for a row."""
    return row * each + token // TILE % each
