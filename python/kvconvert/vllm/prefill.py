"""Attention of a prompt's chunk over keys and values that codes gave back."""

import torch
from torch.nn.functional import scaled_dot_product_attention

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
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, keys, values))  # [1, heads, tokens, head_dim]
    queries, tokens = q.shape[2], k.shape[2]
    cut = 0 < window < tokens
    causal = queries == tokens and softcap == 0.0 and not cut
    mask = None
    if not causal and (queries > 1 or cut):
        mask = torch.ones(queries, tokens, dtype=torch.bool, device=q.device).tril(tokens - queries)
        if cut:
            mask = mask.triu(tokens - queries - window + 1)
    if softcap == 0.0:
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=True)
        return out.squeeze(0).transpose(0, 1)
    groups = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(groups, dim=1) for x in (k, v))
    scores = torch.tanh(q.float() @ k.float().transpose(-1, -2) * (scale / softcap)) * softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ v.float()).to(query.dtype).squeeze(0).transpose(0, 1)
