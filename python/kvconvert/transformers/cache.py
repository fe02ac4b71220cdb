"""A transformers cache whose layers hold pages of codes, or latents, or nothing.

Rows of a batch are sequences of their own: padding is not stored, so a token's position is its index among the
tokens of its row. A page is a tile of 32 tokens. Each row has the same number of pages, as many as the longest needs.
"""

import contextlib
import copy
import dataclasses

import torch
from transformers.cache_utils import Cache, CacheLayerMixin

from kvconvert.codes import TILE, exact_start
from kvconvert.factors import ConversionError
from kvconvert.transformers.coded_store import CodeStore, open_tile
from kvconvert.transformers.latent_store import LatentStore
from kvconvert.transformers.model_parts import ModelParts


@dataclasses.dataclass(frozen=True)
class Step:
    """The tokens of a forward pass, and where they go."""

    index: torch.Tensor  # int64 [batch, q]: index in the row, -1 for padding
    past: list[int]  # tokens of each row before the step
    lengths: list[int]  # and after it
    seq_lens: torch.Tensor  # lengths, int32 [batch]
    tokens: torch.Tensor | None  # int64 [stored]: which of the batch * q are no padding; None: all
    slots: torch.Tensor  # int64 [stored]: where these are stored
    open_tiles: torch.Tensor  # int32 [batch, exact_tiles]: those that the last token of each row reads exactly
    kept: torch.Tensor  # bool [batch, q]: tokens whose rows are kept exactly
    open_places: torch.Tensor  # int64 [kept tokens]: where
    refills: list[tuple[int, int, int]]  # row, first token, tokens: of open tiles whose rows are not kept any more

    @property
    def num_tiles(self) -> int:
        """Tiles of the longest row."""
        return -(-max(self.lengths) // TILE)

    def without_padding(self, rows: torch.Tensor) -> torch.Tensor:
        """[stored, ...] of [batch, q, ...]: those of a sequence are neighbours."""
        rows = rows.flatten(0, 1)
        return rows if self.tokens is None else rows[self.tokens]

    def on(self, device: torch.device) -> "Step":
        """The same for layers on another device than the tokens'."""
        if self.index.device == device:
            return self
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return dataclasses.replace(self, **moved)


class CurrentPass:
    """What a cache tells its layers. They do not know the cache: a cycle would keep it in memory until Python looks for cycles."""

    step: Step | None = None
    is_stored = False  # a layer has stored tokens of the step, or begun to


class CodedLayer(CacheLayerMixin):
    """One layer's part of a store; its tokens are stored when attention reads them."""

    is_croppable = True
    is_sliding = False
    supports_early_init = False

    def __init__(self, current: CurrentPass, store: CodeStore | LatentStore, place: int):
        super().__init__()
        self.current, self.store, self.place = current, store, place
        self.num_columns = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.is_initialized = True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args, **kwargs):
        """Passes the step's own keys and values on, marked for the attention function."""
        self.lazy_initialization(key_states, value_states)
        self.num_columns += key_states.shape[-2]
        key_states.coded_layer = self
        return key_states, value_states

    def attend(self, query, key, value, scale: float, softcap: float | None) -> torch.Tensor:
        # What is stored lasts longer than a caller's inference mode, and keeps the types that it is given in.
        device = query.device.type
        casts = torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else contextlib.nullcontext()
        self.current.is_stored = True
        with torch.inference_mode(False), torch.no_grad(), casts:
            return self.store.attend(self.place, self.current.step, query, key, value, scale, softcap)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.num_columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.num_columns

    def get_max_length(self) -> int:
        return -1


class CodedCache(Cache):
    """Codes or latents of every layer of a model. `generate()` and forward passes make one; new_cache() does so explicitly."""

    is_of_one_pass = False  # a forward pass without a cache made it for itself

    def __init__(self, codes: ModelParts):
        self.codes = codes
        self.stores = [codes.new_store(number) for number in range(len(codes.stores))]
        self.current = CurrentPass()
        self._columns: torch.Tensor | None = None  # bool [batch, columns]: False for padding; None: no padding
        self._lengths: list[int] | None = None  # tokens of each row
        self._kept_from: list[int] | None = None  # first token of each row whose exact rows are kept
        self._before: tuple | None = None  # while a pass runs, and where it failed: columns of each layer, and the three above
        layers = []
        for layer in range(codes.num_layers):
            layers.append(self._stored_layer(layer) or codes.cache_layer(layer, layers))
        super().__init__(layers=layers)

    def _stored_layer(self, layer: int) -> CodedLayer | None:
        for store in self.stores:
            if layer in store.layers:
                return CodedLayer(self.current, store, store.layers.index(layer))
        return None

    def nbytes(self) -> int:
        """Bytes of the tensors that hold keys and values."""
        exact = [tensor for layer in self.layers for tensor in (layer.keys, layer.values) if tensor is not None]
        return sum(store.nbytes() for store in self.stores) + sum(tensor.nbytes for tensor in exact)

    def begin_step(self, batch: int, num_tokens: int, device: torch.device, mask: torch.Tensor | None,
                   positions: torch.Tensor | None) -> torch.Tensor:
        """Notes the tokens of a forward pass, which end_step() ends. Returns their positions [batch, num_tokens], 0 for padding."""
        self._require_whole()
        columns = self.get_seq_length()
        past = [0] * batch if self._lengths is None else self._lengths
        if len(past) != batch:
            raise ConversionError(f"past_key_values: holds {len(past)} sequences, this call has {batch}; use "
                                  "batch_repeat_interleave or a new cache")
        new = self._new_columns(batch, columns, num_tokens, device, mask)
        start = torch.tensor(past, device=device)[:, None]
        if new is None:
            index = start + torch.arange(num_tokens, device=device)[None]
            lengths, expected = [length + num_tokens for length in past], index
        else:
            index = torch.where(new, start + new.long().cumsum(1) - 1, -1)
            lengths, expected = (start[:, 0] + new.sum(1)).tolist(), index.clamp(min=0)
        self._check_positions(positions, expected, new, [columns > 0 and count == 0 for count in past])
        if max(lengths) > self.codes.max_positions:
            raise ConversionError(f"{max(lengths)} tokens: the model was converted for {self.codes.max_positions}; "
                                  "shorten the text or crop the cache")
        self._before = self._columns_of_layers(), self._lengths, self._columns, self._kept_from
        self.current.is_stored = False
        self.current.step = self._step(index, past, lengths, None if new is None else new.flatten().nonzero().flatten())
        if new is not None or self._columns is not None:
            old = self._columns if self._columns is not None else torch.ones(batch, columns, dtype=torch.bool,
                                                                             device=device)
            new = torch.ones(batch, num_tokens, dtype=torch.bool, device=device) if new is None else new
            self._columns = torch.cat((old, new), 1)
        self._lengths = lengths
        return expected

    def _columns_of_layers(self) -> list[int]:
        return [layer.get_seq_length() for layer in self.layers]

    def end_step(self) -> None:
        """All layers have the tokens that begin_step() noted."""
        if not self.current.is_stored and self._coded_layers():
            raise ConversionError("past_key_values: attention ran without codes: keys were copied between the cache and the attention "
                                  "function, which lost their layer; remove what wraps either of them")
        self._before = None

    def _forget_failed_pass(self) -> None:
        """A pass that failed before its first layer, such as in the embedding, has brought no tokens."""
        if self._before is not None and self._before[0] == self._columns_of_layers() and not self.current.is_stored:
            _, self._lengths, self._columns, self._kept_from = self._before
            self._before = None

    def _require_whole(self) -> None:
        """Refuses a cache of which some layers have tokens of a failed pass, and others not."""
        self._forget_failed_pass()
        if self._before is not None:
            held = self._before[0][0]
            raise ConversionError("past_key_values: the last pass ended within the model, so that not all layers have its tokens; call "
                                  f"crop({held}), which goes back to the {held} before that pass, or reset()" if held else
                                  "past_key_values: the first pass ended within the model; call reset(), or make a new cache")

    @property
    def padding(self) -> torch.Tensor | None:
        """bool [batch, columns], False for padding; None without any. The tokens of the last pass are included."""
        return self._columns

    def _step(self, index: torch.Tensor, past: list[int], lengths: list[int], tokens: torch.Tensor | None) -> Step:
        lens = torch.tensor(lengths, device=index.device)
        rows = torch.arange(len(lengths), device=index.device)
        tiles = -(-max(lengths) // TILE)  # of each row
        slots = (rows[:, None] * (tiles * TILE) + index).flatten()
        each, exact = self.codes.open_tiles, self.codes.exact_tiles
        last = (lens - 1).clamp(min=0)[:, None]
        first_kept = (last // TILE - exact).clamp(min=0) * TILE
        kept = (index >= 0) & (index >= first_kept)
        places = open_tile(rows[:, None], index, each) * TILE + index % TILE
        read = last - TILE * torch.arange(exact - 1, -1, -1, device=index.device)
        return Step(index, past, lengths, lens.int(), tokens, slots if tokens is None else slots[tokens],
                    open_tile(rows[:, None], read.clamp(min=0), each).int(), kept, places[kept],
                    self._refill(past, first_kept[:, 0].tolist()))

    def _refill(self, past: list[int], first_kept: list[int]) -> list[tuple[int, int, int]]:
        """Step.refills of a step behind which each row's exact rows begin at first_kept. A step reads open tiles from codes where
        crop() took back more tokens than have exact rows."""
        exact = self.codes.exact_tiles
        old = self._kept_from or [0] * len(past)
        begin = [min(known, exact_start(count, exact)) for known, count in zip(old, past)]
        self._kept_from = [max(pair) for pair in zip(begin, first_kept)]
        return [(row, first, min(TILE, count - first)) for row, count in enumerate(past)
                for first in range(begin[row], min(old[row], count), TILE)]

    def _new_columns(self, batch, columns, num_tokens, device, mask) -> torch.Tensor | None:
        """bool [batch, num_tokens], False for padding; None without padding."""
        if mask is None:
            return None
        if not isinstance(mask, torch.Tensor) or mask.shape != (batch, columns + num_tokens):
            found = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
            raise ConversionError(f"attention_mask: {found}, expected {(batch, columns + num_tokens)}: the tokens "
                                  "before and those of this call")
        mask = mask.to(device=device, dtype=torch.bool)
        old, new = mask[:, :columns], mask[:, columns:]
        same = old.all() if self._columns is None else (old == self._columns).all()
        if not same:
            raise ConversionError("attention_mask: hides tokens that are in the cache, or shows padding that is not; "
                                  "expected the mask of earlier calls, continued")
        return None if new.all() else new

    def _check_positions(self, positions, expected, new, are_padding: list[bool]) -> None:
        """are_padding: rows whose earlier columns have no token."""
        if positions is None:
            return
        if positions.shape[-1] != expected.shape[-1]:
            raise ConversionError(f"position_ids: {tuple(positions.shape)}, expected {tuple(expected.shape)}; leave position_ids out")
        right = positions.to(expected.device) == expected
        wrong = ~(right if new is None else right | ~new).expand_as(expected).all(1)
        for row in wrong.nonzero().flatten().tolist():
            if are_padding[row]:
                raise ConversionError(f"attention_mask: row {row} is all padding, so that nothing can be generated behind it; leave the "
                                      "row out")
            raise ConversionError("position_ids: expected each token's index in its row, without padding; codes are "
                                  "read at these positions. Leave position_ids out, and pad on the left")

    def _coded_layers(self) -> list[CodedLayer]:
        return [layer for layer in self.layers if isinstance(layer, CodedLayer)]

    def __deepcopy__(self, memo: dict) -> "CodedCache":
        """A cache of the same model, which goes on by itself."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        memo[id(self.codes)] = self.codes
        vars(copied).update(copy.deepcopy(vars(self), memo))
        return copied

    def __reduce_ex__(self, protocol: int):
        raise ConversionError("a CodedCache is neither saved nor copied by copy.copy(): its codes mean nothing without the model's "
                              "factors, and two caches cannot share them; use copy.deepcopy() in this process, or read the text again")

    def reset(self) -> None:
        """Empties the cache. Layers that record what leaves their window go on to do so."""
        records = any(getattr(layer, "record_past", False) for layer in self.layers)
        self.__init__(self.codes)
        if records:
            self.activate_past_recording()

    def crop(self, tokens_to_remove: int) -> None:
        """Removes the last -tokens_to_remove columns of every row, and all of a pass that failed."""
        self._forget_failed_pass()
        number = int(tokens_to_remove)  # above 0 it is the final length, as in earlier versions
        held = self.get_seq_length()
        removed = -number if number <= 0 else max(held - number, 0)
        columns = max(held - removed, 0)
        if self._before is not None:
            columns = min(columns, self._before[0][0])
        plain = [layer for layer in self.layers if not isinstance(layer, CodedLayer)]
        for layer in plain:
            if columns < layer.get_seq_length() >= getattr(layer, "sliding_window", torch.inf) and not layer.record_past:
                raise ConversionError(f"crop: layers with a window of {layer.sliding_window} tokens have dropped those before it; call "
                                      "activate_past_recording() before the text is read, or read it again")
        for layer in plain:
            layer.crop(columns - layer.get_seq_length())
        if self._before is not None:  # only layers that ran have filled open tiles again, or written over them
            old = self._before[3] or [0] * len(self._kept_from)
            self._kept_from = [max(pair) for pair in zip(old, self._kept_from)]
            self._before = None
        elif removed == 0:
            return
        if not self._lengths:
            return
        if self._columns is None:
            self._lengths = [columns] * len(self._lengths)
        else:
            self._columns = self._columns[:, :columns]
            self._lengths = self._columns.sum(1).tolist()
        for layer in self._coded_layers():
            layer.num_columns = columns
        with torch.inference_mode(False):
            for store in self.stores:
                store.crop(self._lengths)

    @torch.inference_mode(False)
    def _take_rows(self, rows: torch.Tensor) -> None:
        self._require_whole()
        if self._lengths is not None:
            self._lengths = [self._lengths[row] for row in rows.tolist()]
            self._kept_from = [self._kept_from[row] for row in rows.tolist()]
            if self._columns is not None:
                self._columns = self._columns[rows.to(self._columns.device)]
        for store in self.stores:
            store.take_rows(rows)
            if self._lengths:
                store.crop(self._lengths)  # the longest may be gone

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        """Rows of another order, some repeated: the beams that beam search goes on with."""
        self._take_rows(beam_idx)
        for layer in self.layers:
            layer.reorder_cache(beam_idx) if not isinstance(layer, CodedLayer) else None

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row as many times, one after the other."""
        self._take_rows(torch.arange(len(self._lengths or ()), device="cpu").repeat_interleave(repeats))
        for layer in self.layers:
            layer.batch_repeat_interleave(repeats) if not isinstance(layer, CodedLayer) else None

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Only these rows."""
        rows = torch.arange(len(self._lengths or ()), device="cpu")[indices.cpu()]
        self._take_rows(rows)
        for layer in self.layers:
            layer.batch_select_indices(indices) if not isinstance(layer, CodedLayer) else None
