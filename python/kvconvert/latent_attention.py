"""Attention of tokens that are generated one by one over latents and exact rows. Values are summed as latents, so none is rebuilt."""

import dataclasses

import torch

from kvconvert._ops import ops
from kvconvert.codes import TILE
from kvconvert.latents import Latents

_TOKENS_TOGETHER = 2048  # of all sequences, whose keys are rebuilt in one go
_NO_ANGLES = torch.empty(0, 0)


@dataclasses.dataclass(frozen=True)
class StoredRows:
    """What one layer has of some sequences: `sinks` exact rows, latents, and exact rows behind. The first rows of a sequence
    are its own; those behind are undefined."""

    latents: torch.Tensor  # [S, most, rank]
    counts: list[int]  # latents of each sequence
    keys: torch.Tensor  # post-RoPE [S, most, num_kv_heads, head_dim]
    values: torch.Tensor
    exact_counts: list[int]  # of each sequence
    sinks: int


def _seen(rows: StoredRows, window: int) -> tuple[list, list]:
    """Rows first .. last - 1 that each sequence's query sees: of its latents [S, 1, 2], and of its exact rows [S, 2, 2], which
    are before and behind the latents."""
    of_latents, of_exact = [], []
    for count, exact in zip(rows.counts, rows.exact_counts):
        hidden = max(0, count + exact - window) if window else 0  # positions below are hidden
        sinks = min(rows.sinks, exact)
        first = min(max(hidden - sinks, 0), count)
        of_latents.append([[first, count]])
        of_exact.append([[min(hidden, sinks), sinks], [max(sinks, min(hidden - count, exact)), exact]])
    return of_latents, of_exact


def attend_rows(latents: Latents, place: int, query: torch.Tensor, rows: StoredRows, scale: float,
                softcap: float = 0.0) -> torch.Tensor:
    """Attention of the last token of each sequence, which is stored: query and result [S, num_heads, head_dim]. Sums are of
    float32."""
    size, heads, head_dim = query.shape
    form, decoder = latents.forms[place], latents.decoders[place][1]
    cos, sin = form.rope if form.rope is not None else (_NO_ANGLES, _NO_ANGLES)
    of_latents, of_exact = _seen(rows, form.window)
    spans = torch.tensor(of_latents)
    sums = torch.zeros(size, heads, latents.group.value_rank)
    scales = torch.stack((torch.full((size, heads), float("-inf")), torch.zeros(size, heads)), 1)
    query, step, most = query.contiguous(), max(TILE, _TOKENS_TOGETHER // size), max(rows.counts)
    for first in range(min(span[0] for span, in of_latents), most, step):
        keys = latents.plain_keys(place, rows.latents[:, first:min(first + step, most)])
        ops().attend_latents(sums, scales, query, keys, rows.latents, spans, first, rows.sinks + first, latents.num_kv_heads, cos,
                             sin, scale, softcap)
    sums = (sums / scales[:, 1, :, None]).to(decoder.dtype).unflatten(1, (latents.num_kv_heads, -1))
    values = (sums @ decoder.unflatten(0, (latents.num_kv_heads, -1)).transpose(1, 2)).float()
    if latents.offsets[place][1] is not None:
        values += latents.offsets[place][1].view(1, latents.num_kv_heads, 1, head_dim)
    values = values.flatten(1, 2)
    if max(rows.exact_counts) == 0:
        return values.to(query.dtype)
    out = torch.empty_like(query)
    ops().join_exact(out, query, values, scales, rows.keys, rows.values, torch.tensor(of_exact), scale, softcap)
    return out
