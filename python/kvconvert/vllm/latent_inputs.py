"""Latents that are made of what a layer's projections read.

vLLM compiles a model without its attention modules. So an operator that the compiler does not look into hands the inputs over.
It runs between CUDA graphs, as attention does: a replayed graph runs no Python.
"""

from typing import Any

import torch
from torch import nn
from vllm.compilation.breakable_cudagraph import eager_break_during_capture
from vllm.config import CompilationConfig
from vllm.forward_context import get_forward_context
from vllm.utils.torch_utils import direct_register_custom_op

_NAME = "kvconvert_hold_inputs"


def _hold(qkv: torch.Tensor, hidden: torch.Tensor, layer_name: str) -> None:
    get_forward_context().no_compile_layers[layer_name].store.hold(qkv, hidden)


def _hold_nothing(qkv: torch.Tensor, hidden: torch.Tensor, layer_name: str) -> None:
    return


def hold_inputs(projection: nn.Module, layer_name: str, compilation: CompilationConfig) -> None:
    """From now on the store of the attention `layer_name` gets what `projection` reads, and its outputs."""
    if not hasattr(torch.ops.vllm, _NAME):
        # The step's queries, keys and values depend on it, so that it stays where it is.
        direct_register_custom_op(op_name=_NAME, op_func=eager_break_during_capture(_hold), mutates_args=["qkv"],
                                  fake_impl=_hold_nothing)
    splits = compilation.splitting_ops  # None or empty: the model is not compiled in pieces, and no graph is captured
    if splits and f"vllm::{_NAME}" not in splits:
        splits.append(f"vllm::{_NAME}")

    def after(module: nn.Module, args: tuple, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        qkv, rest = output
        torch.ops.vllm.kvconvert_hold_inputs(qkv, args[0], layer_name)
        return qkv, rest

    projection.register_forward_hook(after)
