"""What attention over pages needs to know of a step: vLLM's metadata of a batch, and where its open tiles are kept."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from vllm.v1.attention.backend import AttentionCGSupport, AttentionMetadataBuilder, CommonAttentionMetadata
from vllm.v1.attention.backends.utils import split_decodes_and_prefills

from kvconvert.codes import TILE, exact_start, tile_start
from kvconvert.vllm.open_tiles import OpenTiles

SHORT = 8  # query tokens; up to here a query is cheaper over codes than rebuilding what it reads


class Sequence(NamedTuple):
    """One row of the block table and its query tokens. Host numbers."""

    row: int
    first: int  # its queries' first token in the batch
    last: int  # one past their last
    length: int  # tokens of the sequence, queries included

    @property
    def past(self) -> int:
        return self.length - (self.last - self.first)


class Refill(NamedTuple):
    """An open tile whose rows are not kept any more: they are read from codes."""

    row: int  # of the block table
    number: int  # of the open tile
    first: int  # its first token
    count: int  # tokens


@dataclass
class PagedMetadata:
    """A step's batch, the same for every layer. Sequences with short queries come first."""

    num_tokens: int
    slots: torch.Tensor  # int64 [num_tokens]
    slots_cpu: torch.Tensor
    positions: torch.Tensor  # int64 [num_tokens]
    block_table: torch.Tensor  # int32 [num_sequences, max_pages]
    num_short_sequences: int
    num_short: int  # query tokens of these
    short_table: torch.Tensor  # int32 [num_short, max_pages], a row per query token
    short_lens: torch.Tensor  # int32 [num_short], tokens that a query token sees
    starts_cpu: torch.Tensor  # int32 [num_sequences + 1]
    lens_cpu: torch.Tensor  # int [num_sequences]
    max_tokens: int  # no sequence is longer
    earlier_tiles: torch.Tensor  # int64 [num_sequences, tiles of each - 1]: in the pages, before that of the first query
    # Exact rows of open tiles; numbers are those of OpenTiles.
    capacity: int = 0  # tiles
    kept: torch.Tensor | None = None  # int64: the step's tokens whose rows are kept; None: all
    places: torch.Tensor | None = None  # int64 [kept]: tile * TILE + place in the tile
    short_tiles: torch.Tensor | None = None  # int32 [num_short, tiles of each]
    first_tiles: dict[int, list[int]] = field(default_factory=dict)  # row -> tiles of older tokens that its first query reads exactly
    refills: list[Refill] = field(default_factory=list)

    @cached_property
    def sequences(self) -> list[Sequence]:
        starts, lens = self.starts_cpu.tolist(), self.lens_cpu.tolist()
        spans = zip(range(len(lens)), starts, starts[1:], lens)
        return [Sequence(*span) for span in spans if span[1] < span[2]]

    @cached_property
    def short_starts(self) -> torch.Tensor:
        """int32 [num_short_sequences + 1]: first query tokens of sequences with short queries, on the host."""
        return self.starts_cpu[: self.num_short_sequences + 1].int().contiguous()

    @cached_property
    def short_past(self) -> torch.Tensor:
        """int32 [num_short_sequences]: tokens before the queries, on the host."""
        starts = self.short_starts
        return (self.lens_cpu[: self.num_short_sequences] - (starts[1:] - starts[:-1])).int().contiguous()

    @property
    def prompts(self) -> list[Sequence]:
        """Sequences with more than SHORT query tokens."""
        if self.num_short == self.num_tokens:
            return []
        return [s for s in self.sequences if s.row >= self.num_short_sequences]


class PagedMetadataBuilder(AttentionMetadataBuilder[PagedMetadata]):
    """Layers of different sizes have builders of their own; the first one's work serves all in a step."""

    # Host numbers steer a step: vLLM captures the model's pieces between attention, and no whole step.
    _cudagraph_support = AttentionCGSupport.NEVER

    def __init__(self, kv_cache_spec: Any, layer_names: list[str], vllm_config: Any, device: torch.device) -> None:
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)
        self.reorder_batch_threshold = SHORT
        layers = vllm_config.compilation_config.static_forward_context
        self._page_tokens: int = kv_cache_spec.block_size
        self._most_drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", None) or 0
        self._open_tiles: OpenTiles | None = layers[layer_names[0]].store.open_tiles

    def build(
        self, common_prefix_len: int, common_attn_metadata: CommonAttentionMetadata, fast_build: bool = False
    ) -> PagedMetadata:
        batch = common_attn_metadata
        if not hasattr(batch, "kvconvert"):
            earlier = 0 if self._open_tiles is None else self._open_tiles.each - 1
            batch.kvconvert = build_metadata(batch, earlier, self._page_tokens)
            if batch.kvconvert.num_tokens and self._open_tiles is not None:
                _find_open_tiles(batch.kvconvert, self._open_tiles, self._most_drafts)
        return batch.kvconvert


def build_metadata(batch: CommonAttentionMetadata, earlier: int, page_tokens: int) -> PagedMetadata:
    """What attention over pages needs to know of a step; waits for a device once. earlier: tiles before a sequence's open one
    that are read exactly, too."""
    short_sequences, _, short, _ = split_decodes_and_prefills(batch, decode_threshold=SHORT)
    tokens, lens, table = batch.num_actual_tokens, batch.seq_lens, batch.block_table_tensor
    if batch.max_query_len == 1:  # one query token per sequence
        positions, short_table, short_lens = lens.long() - 1, table, lens
    else:
        starts = batch.query_start_loc
        counts = starts[1:] - starts[:-1]
        row = torch.repeat_interleave(counts, output_size=tokens)
        offset = (lens - starts[1:])[row]
        positions = torch.arange(tokens, device=lens.device) + offset
        short_table, short_lens = table[row[:short]], (positions[:short] + 1).int()
    slots = batch.slot_mapping[:tokens].long()
    slots_cpu, lens_cpu, earlier_tiles = _on_host(slots, lens, _earlier_tiles(batch, earlier, page_tokens))
    return PagedMetadata(
        num_tokens=tokens,
        slots=slots,
        slots_cpu=slots_cpu,
        positions=positions[:tokens],
        block_table=table,
        num_short_sequences=short_sequences,
        num_short=short,
        short_table=short_table[:short],
        short_lens=short_lens[:short],
        starts_cpu=batch.query_start_loc_cpu,
        lens_cpu=lens_cpu,
        max_tokens=batch.max_seq_len,
        earlier_tiles=earlier_tiles,
    )


def _earlier_tiles(batch: CommonAttentionMetadata, count: int, page_tokens: int) -> torch.Tensor:
    """int64 [num_sequences, count]: in the pages, the tiles before that of each sequence's first query; any number where
    there is none."""
    table, starts = batch.block_table_tensor, batch.query_start_loc
    if count == 0:
        return starts.new_empty(len(starts) - 1, 0, dtype=torch.int64)
    past = batch.seq_lens - (starts[1:] - starts[:-1])
    tiles = past[:, None] // TILE - torch.arange(count, 0, -1, device=past.device)
    of_page = page_tokens // TILE
    pages = table.gather(1, (tiles.clamp(min=0) // of_page).long())
    return pages.long() * of_page + tiles % of_page


def _on_host(*numbers: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """All in one copy. vLLM's own lengths on the host may be too large: it schedules ahead of what drafts bring."""
    if numbers[0].is_cpu:
        return numbers
    all_numbers = torch.cat([part.long().flatten() for part in numbers]).cpu()
    parts = all_numbers.split([part.numel() for part in numbers])
    return tuple(host.view(part.shape) for host, part in zip(parts, numbers))


def _to_device(numbers: list[int], device: torch.device) -> torch.Tensor:
    """int64, by a copy that the host does not wait for."""
    return torch.tensor(numbers, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda").to(device, non_blocking=True)


def _find_older_tiles(batch: PagedMetadata, s: Sequence, earlier: list[int], tile: int, open_tiles: OpenTiles) -> list[int]:
    """Numbers of the open tiles that hold a sequence's tokens before the step: `earlier` ones in the pages, and `tile`, that of its
    first query. Notes those that are read from codes."""
    each = open_tiles.each
    old = [open_tiles.place(page_tile, False) for page_tile in earlier[max(0, each - 1 - s.past // TILE) :]]
    if s.past % TILE:
        old.append(open_tiles.place(tile, False))
    for place, first in zip(old, range(exact_start(s.past, each), s.past, TILE)):
        if place.is_new:
            batch.refills.append(Refill(s.row, place.number, first, min(TILE, s.past - first)))
    return [place.number for place in old]


def _find_open_tiles(batch: PagedMetadata, open_tiles: OpenTiles, most_drafts: int) -> None:
    """Where the step's open tiles are kept, and which of its tokens are. most_drafts: of the last tokens, how many may be taken back."""
    open_tiles.begin_step()
    each, earlier = open_tiles.each, batch.earlier_tiles.tolist()
    slots, kept, places, short_tiles = batch.slots_cpu.tolist(), [], [], []
    for s in batch.sequences:
        is_short = s.row < batch.num_short_sequences
        # What a prompt's next token reads, also one behind fewer drafts; of short queries every tile, as they are read from there.
        begin = s.past if is_short else max(s.past, exact_start(max(0, s.length - 1 - most_drafts), each))
        numbers = _find_older_tiles(batch, s, earlier[s.row], slots[s.first] // TILE, open_tiles)
        batch.first_tiles[s.row] = numbers.copy()
        if begin > s.past:  # a later sequence may begin with the tiles whose rows are not kept
            for position in range(tile_start(s.past), begin, TILE):
                open_tiles.forget(slots[s.first + max(0, position - s.past)] // TILE)
        for position in range(begin, s.length):
            token = s.first + position - s.past
            if position % TILE == 0:
                numbers.append(open_tiles.place(slots[token] // TILE, True).number)
            kept.append(token)
            places.append(numbers[-1] * TILE + position % TILE)
            if is_short:
                short_tiles += [0] * (each - len(numbers)) + numbers[-each:]
    batch.capacity = open_tiles.capacity
    all_kept = len(kept) == batch.num_tokens
    lists = [places, short_tiles, [] if all_kept else kept]
    batch.places, short, some = _to_device(sum(lists, []), batch.slots.device).split([len(numbers) for numbers in lists])
    batch.short_tiles, batch.kept = short.int().view(-1, each), None if all_kept else some
