"""Latents in pages of a GPU's memory: keys are rebuilt and values summed by the operator attend_latents_device, which a library
that was built with CUDA has (runtime/ops/device_latents.h)."""

import dataclasses
import threading

import torch

from kvconvert.device_codes import ALIGNMENT, DTYPES, MOST_SCRATCH, page_addresses, require_op
from kvconvert.device_prompts import softmax
from kvconvert.factors import ConversionError
from kvconvert.latent_pages import LayerPages
from kvconvert.latents import Latents, device_refusal

_PAIRS = (16, 24, 32, 48, 64)  # rotary pairs of a key that kernels rebuild
_STRIDE = 32  # rows of the key projection are padded to a multiple


@dataclasses.dataclass(frozen=True)
class _Queries:
    """Query tokens of some sequences, on the device."""

    rows: torch.Tensor | None  # int64 [T] of the block table; None: one after the other
    past: torch.Tensor  # int32 [T] latents
    first: torch.Tensor  # int32 [T], the first of them that is seen
    own: torch.Tensor  # int64 [T, most]: rows of the sequence's own tokens
    hidden: torch.Tensor  # bool [T, most]: own tokens that are not seen
    most_past: int


class _LatestQueries(threading.local):
    """Those of a thread's last step, which layers with one window share."""

    def __init__(self) -> None:
        self._past = self._starts = None
        self._queries: dict[tuple[int, torch.device], _Queries] = {}

    def find(self, past: torch.Tensor, starts: torch.Tensor, window: int, device: torch.device) -> _Queries:
        if self._past is not past or self._starts is not starts:
            self._past, self._starts, self._queries = past, starts, {}
        if (window, device) not in self._queries:
            self._queries[window, device] = _queries(past, starts, window, device)
        return self._queries[window, device]


_latest = _LatestQueries()


def _queries(past: torch.Tensor, starts: torch.Tensor, window: int, device: torch.device) -> _Queries:
    """past int32 [S], starts int32 [S + 1]: as LayerPages.attend, on the host."""
    past, starts = past.long(), starts.long()
    counts = starts[1:] - starts[:-1]
    rows = torch.repeat_interleave(torch.arange(len(counts), device="cpu"), counts)
    behind = past[rows]
    place = torch.arange(len(rows), device="cpu") - starts[rows]
    seen = (behind + place - window + 1).clamp(min=0) if window else torch.zeros_like(behind)
    own = torch.arange(int(counts.max()), device="cpu")
    hidden = (own > place[:, None]) | (behind[:, None] + own < seen[:, None])
    numbers = torch.cat((rows[:, None], behind[:, None], torch.minimum(seen, behind)[:, None],
                         (starts[rows][:, None] + own).clamp(max=len(rows) - 1), hidden.long()), 1)
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    numbers = numbers.to(device, non_blocking=True)
    most, is_one_each = len(own), bool((counts == 1).all())
    return _Queries(None if is_one_each else numbers[:, 0], numbers[:, 1].int(), numbers[:, 2].int(), numbers[:, 3:3 + most],
                    numbers[:, 3 + most:].bool(), int(past.max()))


class DeviceLayerPages(LayerPages):
    """As LayerPages, on tensors of the device of `latents`, in bfloat16 or float16: the dtype of factors, latents and queries."""

    alignment = ALIGNMENT

    def _open(self, num_query_heads: int, scale: float, softcap: float) -> None:
        latents, place = self._latents, self._place
        group, form, decoder = latents.group, latents.forms[place], latents.decoders[place][0]
        self._device, self._dtype = decoder.device, decoder.dtype
        require_op(self._ops, "attend_latents_device", "latents", self._device)
        if self._dtype not in DTYPES:
            raise ConversionError(f"latents on {self._device}: the model is {str(self._dtype).removeprefix('torch.')}, expected "
                                  "bfloat16 or float16; pass --dtype bfloat16, or run on the CPU")
        reason = device_refusal([group], latents.head_dim)
        if reason is not None:
            raise ConversionError(reason)
        norm = form.key_norm
        self._shape = [latents.num_kv_heads, group.rank, group.key_rank, group.value_rank]
        self._numbers = [scale, softcap, norm.epsilon if norm is not None else 0.0]
        empty = torch.empty(0, 0, dtype=torch.float32, device=self._device)
        self._angles = tuple(part.float().contiguous() for part in form.rope) if form.rope is not None else (empty, empty)
        self._factors = _factors(latents, place)

    def store(self, pages: torch.Tensor, slots: torch.Tensor, rows: torch.Tensor) -> None:
        if len(slots) == 0:
            return
        rank = self._latents.rank
        tokens = pages.shape[1] // rank
        of_tokens = pages[:, :tokens * rank].unflatten(1, (tokens, rank))
        # The host does not know which slots are there: a skipped token writes what the first stored one does, or what stands there.
        stored = slots >= 0
        one = stored.int().argmax(0, keepdim=True)  # [1]: an index without dimensions would wait for the device
        any_slot = slots[one].clamp(min=0)
        standing = of_tokens[any_slot // tokens, any_slot % tokens]
        rows = rows.to(pages.dtype)
        instead = torch.where(stored[one, None], rows[one], standing)
        slots, rows = torch.where(stored, slots, any_slot), torch.where(stored[:, None], rows, instead)
        of_tokens[slots // tokens, slots % tokens] = rows

    def attend(self, out: torch.Tensor, query: torch.Tensor, pages: torch.Tensor, block_table: torch.Tensor, past: torch.Tensor,
               starts: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """past, starts: on the host, and not changed before the next call with others."""
        if pages.dtype != query.dtype or query.dtype != self._dtype:
            raise ConversionError(f"latents on {self._device}: the cache is {str(pages.dtype).removeprefix('torch.')} and the model "
                                  f"{str(query.dtype).removeprefix('torch.')}, expected one dtype; remove --kv-cache-dtype")
        queries = _latest.find(past, starts, self._latents.forms[self._place].window, self._device)
        table = block_table[:len(query)] if queries.rows is None else block_table[queries.rows]
        places = page_addresses(pages, table)
        query = query.contiguous()
        exact, sums = self._exact(query, keys, values, queries)
        result = out if out.is_contiguous() else torch.empty_like(query)
        self._ops.attend_latents_device(result, query, places.contiguous(), queries.past, queries.first, queries.most_past, MOST_SCRATCH,
                                        [*self._shape, pages.shape[1] // self._latents.rank], self._numbers, *self._angles, self._factors,
                                        exact, sums)
        if result is not out:
            out.copy_(result)

    def _exact(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor,
               queries: _Queries) -> tuple[torch.Tensor, torch.Tensor]:
        """Attention to the step's own tokens, float32 [T, heads, head_dim], and the logarithms of its sums [T, heads]."""
        scale, softcap = self._numbers[:2]
        grouped = query.float().unflatten(1, (self._latents.num_kv_heads, -1))  # [T, kv_heads, repeats, head_dim]
        own = keys[queries.own].float().permute(0, 2, 3, 1)  # [T, kv_heads, head_dim, most]
        weights, sums = softmax(grouped @ own, scale, softcap, queries.hidden[:, None, None])
        output = weights @ values[queries.own].float().transpose(1, 2)
        return output.flatten(1, 2), sums.flatten(1, 2).contiguous()


def _factors(latents: Latents, place: int) -> list[torch.Tensor]:
    """Of a layer, as kernels read them: channels of a head in rotary pairs, first ones, then second ones."""
    (key, value), offsets, form = latents.decoders[place], latents.offsets[place], latents.forms[place]
    kv_heads, head_dim, device = latents.num_kv_heads, latents.head_dim, key.device
    turned = 0 if form.rope is None else form.rope[0].shape[1]
    pair = torch.arange(head_dim // 2, device="cpu")
    turns = pair < turned
    both = torch.stack((torch.where(turns, pair, 2 * pair), torch.where(turns, pair + turned, 2 * pair + 1)))
    most = next(count for count in _PAIRS if 2 * count >= head_dim)
    channels = torch.full((2, most), -1, device="cpu")
    channels[:, :len(pair)] = both
    angles = torch.full((most,), -1, device="cpu")
    angles[:len(pair)] = torch.where(turns, pair, -1)
    order, there = channels.clamp(min=0).to(device), (channels >= 0).to(device)

    def by_pairs(numbers: torch.Tensor) -> torch.Tensor:
        """Numbers [kv_heads, head_dim, ...], zeros where there is no pair: [kv_heads, 2, most, ...]"""
        found = numbers[:, order]
        return (found * there.view(1, *there.shape, *[1] * (found.dim() - 3))).contiguous()

    def of_heads(numbers: torch.Tensor | None) -> torch.Tensor | None:
        return None if numbers is None else numbers.float().view(kv_heads, head_dim)

    projection = torch.nn.functional.pad(key, (0, -key.shape[1] % _STRIDE)).unflatten(0, (kv_heads, head_dim))
    key_offset, value_offset = map(of_heads, offsets)
    norm = None if form.key_norm is None else form.key_norm.weight.float().to(device).expand(kv_heads, head_dim)
    none = torch.empty(0, dtype=torch.float32, device=device)
    return [by_pairs(projection), channels.int().expand(kv_heads, 2, most).contiguous().to(device),
            angles.int().expand(kv_heads, most).contiguous().to(device), none if key_offset is None else by_pairs(key_offset),
            none if norm is None else by_pairs(norm), value.unflatten(0, (kv_heads, head_dim)).contiguous(),
            none if value_offset is None else value_offset.contiguous()]
