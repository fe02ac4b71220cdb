"""Attention of a prompt's chunk, as tokens that are generated one by one get it: a token reads its own tile of 32 tokens
exactly, and earlier tiles through their codes."""

import torch

from kvconvert.codes import TILE
from kvconvert.exact_attention import attend_exactly

_CHUNK = 4 * TILE  # queries whose keys and mask are joined at once

Rows = tuple[torch.Tensor, torch.Tensor]  # keys and values [tokens, num_kv_heads, head_dim]


def tile_start(token: int) -> int:
    """The first token of the tile that a token is in."""
    return token // TILE * TILE


def attend_prompt(
    query: torch.Tensor,
    length: int,
    coded: Rows,
    exact: Rows,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    exact_step: bool = False,
) -> torch.Tensor:
    """[num_queries, num_heads, head_dim], as query: of the last tokens of a sequence of `length` tokens.

    exact: of the last tokens, from the first of the first query's tile on. coded: of the tokens before, up to the first of
    the last query's tile; those that no query sees may be missing. window: a query sees as many last tokens (0: all).
    exact_step: codes end where `exact` begins, and a query reads all of `exact` up to itself.
    """
    begin_exact = length - exact[0].shape[0]

    def own_start(token: int) -> int:
        """The first token that a query reads exactly."""
        return begin_exact if exact_step else tile_start(token)

    begin_coded = own_start(length - 1) - coded[0].shape[0]
    parts = []
    first_query = length - query.shape[0]
    for first in range(first_query, length, _CHUNK):
        last = min(first + _CHUNK, length)
        own, end = own_start(first), own_start(last - 1)
        rows = [
            torch.cat((old[: max(end - begin_coded, 0)], new[own - begin_exact : last - begin_exact]))
            for old, new in zip(coded, exact)
        ]
        mask = None
        if last - first > 1 or window:
            queries = torch.arange(first, last)[:, None]
            starts = torch.tensor([own_start(token) for token in range(first, last)])[:, None]
            mask = _mask(queries, starts, range(min(begin_coded, end), end), range(own, last), window)
        part = query[first - first_query : last - first_query]
        parts.append(_attend(part, *rows, scale, softcap, mask))
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _mask(query: torch.Tensor, start: torch.Tensor, coded: range, exact: range, window: int) -> torch.Tensor:
    """bool [queries, keys]: keys are tokens read through codes, then exact ones. start: of each query's exact rows."""
    old, new = (torch.arange(keys.start, keys.stop)[None] for keys in (coded, exact))
    seen_old, seen_new = old < start, (new >= start) & (new <= query)
    if window:
        seen_old, seen_new = seen_old & (old > query - window), seen_new & (new > query - window)
    return torch.cat((seen_old, seen_new), 1)


def _attend(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, scale: float, softcap: float, mask: torch.Tensor | None
) -> torch.Tensor:
    # [1, heads, tokens, head_dim]; capped scores are float32.
    q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (query, keys, values))
    if softcap:
        q, k, v = q.float(), k.float(), v.float()
    out = attend_exactly(q, k, v, scale, mask, softcap)
    return out.to(query.dtype).squeeze(0).transpose(0, 1)
