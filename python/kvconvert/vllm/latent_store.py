"""Layers that share a latent per token, in vLLM's pages."""

from typing import Any

import torch
from torch.nn.functional import linear

from kvconvert.codes import TILE
from kvconvert.latent_pages import LayerPages, pages_class
from kvconvert.latents import HeadNorm, LatentCheckpoint, Latents, LayerForm
from kvconvert.vllm.attention import LayerParts, PagedStore, cache_dtype, device_of, softcap_of
from kvconvert.vllm.latent_backend import LatentBackend
from kvconvert.vllm.latent_inputs import hold_inputs
from kvconvert.vllm.query_projection import keep_queries, pad_outputs


class LatentStore(PagedStore):
    """What makes and rebuilds latents of weights is there once these are loaded. Latents have the cache's dtype."""

    backend = LatentBackend

    def __init__(self, checkpoint: LatentCheckpoint, parts: list[LayerParts], device: torch.device) -> None:
        layers, attention = [part.layer for part in parts], parts[0].attention
        self._checkpoint, self._parts, self._device = checkpoint, parts, device
        self.group, self.dtype = checkpoint.group_of(layers[0]), cache_dtype(attention, checkpoint.stored, device)
        super().__init__(layers, TILE * self.group.rank * self.dtype.itemsize)
        self._of_layer = pages_class(device)
        self.stub_bytes = self._of_layer.alignment  # stores lie one behind the other
        self.truncated = checkpoint.truncated and not (self.group.calibrated or self.group.replaces_projections)
        self.held: torch.Tensor | None = None  # latents of the step's inputs, [tokens, rank]
        self.latents: Latents | None = None
        self.layer_pages: list[LayerPages] = []
        self._projection: torch.Tensor | None = None  # [rank, hidden_size]
        if self.group.calibrated:  # factors are all that it needs
            self._open_latents()

    def _view(self, pages: torch.Tensor, tiles: int) -> torch.Tensor:
        return pages[:, : tiles * self.tile_bytes].view(self.dtype)

    def take_held(self, count: int) -> torch.Tensor:
        held, self.held = self.held, None
        return held[:count]

    def hold(self, qkv: torch.Tensor, hidden: torch.Tensor) -> None:
        """Makes latents of what the projections read, and keys and values of them where they are all that there is."""
        self.held = linear(hidden, self._projection)
        if self.group.replaces_projections:
            split = self.held.split([self.group.key_rank, self.group.value_rank], -1)
            parts = [linear(rows, *pair) for rows, pair in zip(split, zip(self.latents.decoders[0], self.latents.offsets[0]))]
            kept = torch.cat(parts, -1)
            qkv[:, -kept.shape[-1] :] = kept

    def _open_latents(self) -> None:
        dtype = self._parts[0].attention.dtype
        self.latents = Latents(self._checkpoint, self.layers, [self._form(part) for part in self._parts], dtype, self._device)
        self.layer_pages = [
            self._of_layer(self.latents, place, part.attention.num_heads, part.attention.impl.scale, softcap_of(part.attention))
            for place, part in enumerate(self._parts)
        ]

    def weights_loaded(self) -> None:
        if self.group.calibrated:
            return
        self._open_latents()
        first = self._parts[0]
        dtype, projection = first.attention.dtype, first.parent.qkv_proj
        self._projection = torch.cat(self._checkpoint.projections(self.group, projection.input_size)).to(self._device, dtype)
        if self.group.replaces_projections:  # the checkpoint has weights of the queries alone
            queries = first.attention.num_heads * first.attention.head_size
            keep_queries(projection, queries)
            pad_outputs(projection, queries + 2 * self._checkpoint.kv_dim)

    def _form(self, part: LayerParts) -> LayerForm:
        rope = part.rope and tuple(self._checkpoint.on_device(table, self._device) for table in part.rope)
        if self.group.calibrated:
            return LayerForm(rope, part.window)
        bias = part.parent.qkv_proj.bias
        kept = (None, None) if bias is None else bias.detach()[-2 * self._checkpoint.kv_dim :].clone().chunk(2)
        return LayerForm(rope, part.window, *kept, _head_norm(getattr(part.parent, "k_norm", None)))


def latent_store(checkpoint: LatentCheckpoint, parts: list[LayerParts], vllm_config: Any, *_: Any) -> LatentStore:
    """The store of these layers. Latents of weights get what the projections read."""
    if any(part.interleaved for part in parts):
        raise ValueError("kvconvert: RoPE of neighbouring channels, which latents do not support; serve the original checkpoint")
    store = LatentStore(checkpoint, parts, device_of(vllm_config))
    if not store.group.calibrated:
        for part in parts:
            hold_inputs(part.parent.qkv_proj, part.attention.layer_name, vllm_config.compilation_config)
    return store


def _head_norm(norm: Any) -> HeadNorm | None:
    if norm is None:
        return None
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm

    weight = norm.weight.detach().float()
    return HeadNorm(weight + 1 if isinstance(norm, GemmaRMSNorm) else weight.clone(), norm.variance_epsilon)
