"""Attention of tokens that are generated one by one over latents and exact rows. Values are summed as latents, so none is rebuilt."""

import dataclasses

import torch

from kvconvert.latents import Latents

_TOKENS_TOGETHER = 2048  # of all sequences, whose keys are rebuilt in one go


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


def _mask(rows: StoredRows, first: int, window: int, device: torch.device) -> torch.Tensor | None:
    """bool [S, latents from `first` on + exact rows]: what a query sees; None: all."""
    most, most_exact = max(rows.counts), max(rows.exact_counts)
    counts, exact = (torch.tensor(part, device=device)[:, None] for part in (rows.counts, rows.exact_counts))
    column, place = (torch.arange(*span, device=device)[None] for span in ((first, most), (0, most_exact)))
    latent_mask, exact_mask = column < counts, place < exact
    if window:
        hidden = counts + exact - window  # positions below are hidden
        latent_mask = latent_mask & (column + rows.sinks >= hidden)
        exact_mask = exact_mask & (torch.where(place < rows.sinks, place, place + counts) >= hidden)
    mask = torch.cat((latent_mask, exact_mask), 1)
    return None if mask.all() else mask


def attend_rows(latents: Latents, place: int, query: torch.Tensor, rows: StoredRows, scale: float,
                softcap: float = 0.0) -> torch.Tensor:
    """Attention of the last token of each sequence, which is stored: query and result [S, num_heads, head_dim]."""
    group, heads, window = latents.group, latents.num_kv_heads, latents.forms[place].window
    most, most_exact = max(rows.counts), max(rows.exact_counts)
    lengths = [sum(pair) for pair in zip(rows.counts, rows.exact_counts)]
    first = min(max(0, min(lengths) - window - rows.sinks), most) if window else 0
    mask = _mask(rows, first, window, query.device)
    wide = query.unflatten(1, (heads, -1)).float() * scale  # [S, kv_heads, queries, head_dim]
    step = max(1, _TOKENS_TOGETHER // len(lengths))
    scores = []
    for begin in range(first, most, step):
        part = rows.latents[:, begin:min(begin + step, most)]
        scores.append(wide @ latents.keys(place, part, rows.sinks + begin).permute(0, 2, 3, 1))
    scores.append(wide @ rows.keys[:, :most_exact].float().permute(0, 2, 3, 1))
    joined = torch.cat(scores, -1)
    if softcap:
        joined = torch.tanh(joined / softcap) * softcap
    if mask is not None:
        joined = joined.masked_fill(~mask[:, None, None], float("-inf"))
    weights = joined.softmax(-1)
    of_latents, of_exact = weights.split((most - first, most_exact), -1)
    out = of_exact @ rows.values[:, :most_exact].float().transpose(1, 2)
    if most > first:
        sums = of_latents.flatten(1, 2).to(query.dtype) @ rows.latents[:, first:most, group.rank - group.value_rank:]
        decoder, offset = latents.decoders[place][1], latents.offsets[place][1]
        out = out + sums.unflatten(1, (heads, -1)).float() @ decoder.float().unflatten(0, (heads, -1)).transpose(1, 2)
        if offset is not None:
            out = out + of_latents.sum(-1, keepdim=True) * offset.float().view(1, heads, 1, -1)
    return out.flatten(1, 2).to(query.dtype)
