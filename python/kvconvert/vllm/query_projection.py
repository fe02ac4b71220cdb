"""Projections of layers whose checkpoint has weights of the queries alone, in models that make queries, keys and values at once."""

from typing import Any

import torch
from torch import nn
from torch.nn.functional import pad


def keep_queries(projection: nn.Module, queries: int) -> None:
    """Removes the rows behind the first `queries` of the weight and of the bias."""
    for name in ("weight", "bias"):
        whole = getattr(projection, name)
        if whole is not None:
            setattr(projection, name, nn.Parameter(whole.detach()[:queries].clone(), requires_grad=False))


def pad_outputs(projection: nn.Module, width: int) -> None:
    """From now on outputs have `width` numbers; those that no weight makes are zero."""

    def after(module: nn.Module, args: tuple, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        return pad(output[0], (0, width - output[0].shape[-1])), output[1]

    projection.register_forward_hook(after, prepend=True)
