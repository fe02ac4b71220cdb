"""Attention for a prompt's chunk, with the results of generating its tokens one by one: a token reads its own tile of 32
tokens exactly, and the tiles of an exact window; it reads earlier tiles through their codes."""

import torch

from kvconvert._ops import ops
from kvconvert.device_prompts import PromptBlocks

Rows = tuple[torch.Tensor, torch.Tensor]  # keys and values [tokens, num_kv_heads, head_dim]


def has_kernel(device: torch.device) -> bool:
    """Does the library attend to prompts there? Other devices take device_prompts.py."""
    return device.type == "cpu"


def attend_prompt(
    query: torch.Tensor,
    length: int,
    coded: Rows,
    exact: Rows,
    scale: float,
    softcap: float = 0.0,
    window: int = 0,
    exact_step: bool = False,
    exact_tiles: int = 1,
) -> torch.Tensor:
    """[num_queries, num_heads, head_dim], as query: of the last tokens of a sequence of `length` tokens.

    exact: of the last tokens, from exact_start() of the first query on. coded: of the tokens before that of the last query;
    those that no query sees may be missing. window: a query sees as many last tokens (0: all). exact_step: codes end where
    `exact` begins, and a query reads all of `exact` up to itself. exact_tiles: that a query reads exactly, its own included.
    Sums are of float32, and a query's do not depend on where the prompt was cut, on a device but for the order in which its
    kernels add.
    """
    out = torch.empty_like(query)
    if not has_kernel(query.device):
        PromptBlocks(query, length, coded, exact, scale, softcap, window, exact_step, exact_tiles).attend(out)
        return out
    ops().attend_prompt(out, query, length, *coded, *exact, scale, softcap, window, exact_step, exact_tiles)
    return out
