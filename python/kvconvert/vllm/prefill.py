"""Attention of a prompt's chunk over keys and values that codes gave back."""

import torch

from kvconvert.exact_attention import attend_exactly, causal_mask

_CHUNK = 512  # queries whose mask is made at once


def attend_prompt(
    query: torch.Tensor,  # [num_queries, num_heads, head_dim]
    keys: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim], the queries' own tokens last
    values: torch.Tensor,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
) -> torch.Tensor:
    """[num_queries, num_heads, head_dim]; query i sees tokens up to its own, the last `window` of them (0: all)."""
    past = keys.shape[0] - query.shape[0]
    parts = []
    for first in range(0, query.shape[0], _CHUNK):
        part = query[first : first + _CHUNK]
        seen = past + first + part.shape[0]
        parts.append(_attend(part, keys[:seen], values[:seen], scale, softcap, window))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float, window: int
) -> torch.Tensor:
    # [1, heads, tokens, head_dim]; capped scores are float32.
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, keys, values))
    if softcap:
        q, k, v = q.float(), k.float(), v.float()
    queries, tokens = q.shape[2], k.shape[2]
    cut = 0 < window < tokens
    causal = queries == tokens and not cut
    mask = None
    if not causal and (queries > 1 or cut):
        mask = causal_mask(queries, tokens, window if cut else None, q.device)
    out = attend_exactly(q, k, v, scale, mask, softcap, causal)
    return out.to(query.dtype).squeeze(0).transpose(0, 1)
