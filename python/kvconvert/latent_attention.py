"""Attention of tokens that are generated one by one over latents and exact rows. Values are summed as latents, so none is rebuilt."""

import dataclasses

import torch

from kvconvert import tiled_attention
from kvconvert._ops import ops
from kvconvert.codes import TILE
from kvconvert.device_prompts import Joined, softmax
from kvconvert.latents import Latents, turned

_TOKENS_TOGETHER = 2048  # of all sequences, whose keys are rebuilt in one go
_FLOAT = {"dtype": torch.float32, "device": "cpu"}
_NO_ANGLES = torch.empty(0, 0, **_FLOAT)


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
    if not tiled_attention.has_kernel(query.device):
        return _attend_in_torch(latents, place, query, rows, of_latents, of_exact, scale, softcap)
    spans = torch.tensor(of_latents, device="cpu")
    sums = torch.zeros(size, heads, latents.group.value_rank, **_FLOAT)
    scales = torch.stack((torch.full((size, heads), float("-inf"), **_FLOAT), torch.zeros(size, heads, **_FLOAT)), 1)
    query, step, most = query.contiguous(), max(TILE, _TOKENS_TOGETHER // size), max(rows.counts)
    for first in range(min(span[0] for span, in of_latents), most, step):
        keys = latents.plain_keys(place, rows.latents[:, first:min(first + step, most)])
        ops().attend_latents(sums, scales, query, keys, rows.latents, spans, first, rows.sinks + first, latents.num_kv_heads, cos,
                             sin, scale, softcap)
    sums = (sums / scales[:, 1, :, None]).to(decoder.dtype).unflatten(1, (latents.num_kv_heads, -1))
    values = _values(latents, place, sums).flatten(1, 2)
    if max(rows.exact_counts) == 0:
        return values.to(query.dtype)
    out = torch.empty_like(query)
    ops().join_exact(out, query, values, scales, rows.keys, rows.values, torch.tensor(of_exact, device="cpu"), scale, softcap)
    return out


def _values(latents: Latents, place: int, sums: torch.Tensor) -> torch.Tensor:
    """Values float32 [S, kv_heads, repeats, head_dim] of sums of latents [S, kv_heads, repeats, value_rank] of the factors' dtype."""
    decoder, offset = latents.decoders[place][1], latents.offsets[place][1]
    values = (sums @ decoder.unflatten(0, (latents.num_kv_heads, -1)).transpose(1, 2)).float()
    return values if offset is None else values + offset.view(1, latents.num_kv_heads, 1, latents.head_dim)


def _attend_in_torch(latents: Latents, place: int, query: torch.Tensor, rows: StoredRows, of_latents: list, of_exact: list,
                     scale: float, softcap: float) -> torch.Tensor:
    """attend_rows() on a device that the library has no kernel on."""
    form, group, size = latents.forms[place], latents.group, len(query)
    grouped = query.float().unflatten(1, (latents.num_kv_heads, -1))  # [S, kv_heads, repeats, head_dim]

    def weights(keys: torch.Tensor, first: int, spans: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Softmaxes over keys [S, n, kv_heads, head_dim] of rows from `first` on, of which spans [S, any, 2] are seen."""
        begin, end = spans[..., None].unbind(2)  # [S, any, 1]
        row = torch.arange(first, first + keys.shape[1], device=query.device)
        seen = ((row >= begin) & (row < end)).any(1)
        return softmax(torch.einsum("skrd,snkd->skrn", grouped, keys.float()), scale, softcap, ~seen[:, None, None])

    ranks, joined = Joined(), Joined()
    step, most, spans = max(TILE, _TOKENS_TOGETHER // size), max(rows.counts), torch.tensor(of_latents, device=query.device)
    for first in range(min(span[0] for span, in of_latents), most, step):
        some = rows.latents[:, first:min(first + step, most)]
        keys = turned(latents.plain_keys(place, some).float(), form.rope, rows.sinks + first)
        shares, sums = weights(keys, first, spans)
        ranks.add(torch.einsum("skrn,snw->skrw", shares, some[..., group.rank - group.value_rank:].float()), sums)
    if ranks.output is not None:
        joined.add(_values(latents, place, ranks.output.to(latents.decoders[place][1].dtype)), ranks.sums)
    most = max(rows.exact_counts)
    if most > 0:
        shares, sums = weights(rows.keys[:, :most], 0, torch.tensor(of_exact, device=query.device))
        joined.add(torch.einsum("skrn,snkd->skrd", shares, rows.values[:, :most].float()), sums)
    return joined.output.flatten(1, 2).to(query.dtype)
