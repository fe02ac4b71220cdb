"""Attention over keys and values as tensors: of prompts, whose codes are read back, and where nothing is cached."""

import torch


def attend_exactly(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float,
                   allowed: torch.Tensor | None, softcap: float | None = None, causal: bool = False,
                   dropout: float = 0.0) -> torch.Tensor:
    """query [B, heads, q, head_dim], keys and values [B, kv_heads, k, head_dim], allowed: bool, or numbers that are added to the
    scores, broadcast to [B, heads, q, k], None: all. Returns [B, heads, q, head_dim]."""
    if not softcap:
        return torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, attn_mask=allowed, dropout_p=dropout, is_causal=causal, scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1])
    if causal:
        allowed = causal_mask(query.shape[2], keys.shape[2], None, query.device)
    groups = query.shape[1] // keys.shape[1]
    keys, values = keys.repeat_interleave(groups, 1), values.repeat_interleave(groups, 1)
    scores = torch.tanh(query @ keys.transpose(2, 3) * (scale / softcap)) * softcap
    if allowed is not None and allowed.is_floating_point():
        scores = scores + allowed
    elif allowed is not None:
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
    weights = torch.softmax(scores, -1, dtype=torch.float32).to(query.dtype)
    return torch.nn.functional.dropout(weights, dropout) @ values


def causal_mask(num_queries: int, num_keys: int, window: int | None, device: torch.device) -> torch.Tensor:
    """bool [num_queries, num_keys]: the queries are the last of the tokens."""
    query = torch.arange(num_keys - num_queries, num_keys, device=device)[:, None]
    key = torch.arange(num_keys, device=device)[None]
    allowed = key <= query
    return allowed if window is None else allowed & (key > query - window)
