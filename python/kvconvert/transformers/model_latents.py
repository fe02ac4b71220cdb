"""Latents of a loaded model's layers, and where they come from: its keys and values, or the inputs of its projections."""

import functools
import threading

import torch
from torch.nn.functional import linear

from kvconvert.factors import ConversionError
from kvconvert.latents import LatentCheckpoint, Latents, LayerForm, group_of
from kvconvert.transformers.latent_store import LatentStore
from kvconvert.transformers.model_parts import ModelParts


class _Taken:
    """What a projection of a pass is kept for, in the thread that runs it: a model may serve several, each with a cache."""

    def __init__(self):
        self._wanting: set[int] = set()  # threads
        self._kept: dict[int, torch.Tensor] = {}

    def begin_pass(self, wanted: bool) -> None:
        thread = threading.get_ident()
        self._kept.pop(thread, None)
        (self._wanting.add if wanted else self._wanting.discard)(thread)

    def keep(self, tensor: torch.Tensor) -> None:
        thread = threading.get_ident()
        if thread in self._wanting:
            self._kept[thread] = tensor.detach()

    def take(self) -> torch.Tensor:
        return self._kept.pop(threading.get_ident())


class LatentProjection(torch.nn.Module):
    """In place of a key or value projection: makes a latent, and keys or values of it."""

    def __init__(self, bias: torch.nn.Parameter | None):
        super().__init__()
        self.bias = bias
        self.register_buffer("latent_proj", None, persistent=False)  # [rank, hidden_size]
        self.register_buffer("reconstruct_proj", None, persistent=False)  # [kv_dim, rank]
        self.taken = _Taken()  # latents

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.latent_proj is None:
            raise ConversionError("a model whose projections are factorised was made without them; load it with from_pretrained")
        latent = linear(hidden, self.latent_proj)
        self.taken.keep(latent)
        return linear(latent, self.reconstruct_proj, self.bias)

    def take(self) -> torch.Tensor:
        return self.taken.take()


class _Inputs:
    """Keeps what a projection reads, and makes latents of it."""

    def __init__(self, projection: torch.nn.Module, latent_proj: torch.Tensor):
        self.latent_proj = latent_proj  # [rank, hidden_size]
        self.taken = _Taken()
        projection.register_forward_pre_hook(self._keep)

    def _keep(self, module: torch.nn.Module, args: tuple) -> None:
        self.taken.keep(args[0])

    def take(self) -> torch.Tensor:
        hidden = self.taken.take()
        self.latent_proj = self.latent_proj.to(hidden)
        return linear(hidden, self.latent_proj)


class ModelLatents(ModelParts):
    """Opens the latents of every store. Raises ConversionError where they do not fit the model."""

    @staticmethod
    def prepare(decoder: torch.nn.Module, plan: dict) -> None:
        for index, spec in enumerate(plan["groups"]):
            group = group_of(index, spec)
            for layer in group.layers if group.replaces_projections else ():
                attention = decoder.layers[layer].self_attn
                for name in ("k_proj", "v_proj"):
                    setattr(attention, name, LatentProjection(getattr(attention, name).bias))

    def __init__(self, decoder: torch.nn.Module, checkpoint: LatentCheckpoint, exact_step: bool = False):
        super().__init__(decoder, checkpoint, exact_step)
        self.check_dtype()
        weight = self.attention(0).q_proj.weight if hasattr(self.attention(0), "q_proj") else next(decoder.parameters())
        self._options = (next(decoder.parameters()).dtype, weight.device)  # of a quantised weight: another dtype
        self._taps: dict[int, list] = {layer: self._open_taps(layer) for layers in self.stores for layer in layers}
        self._projections = {layer: self._projections_of(layer) for layer, taps in self._taps.items() if taps}
        self.latents = [Latents(checkpoint, layers, [self._form(layer) for layer in layers], *self._options)
                        for layers in self.stores]

    def new_store(self, number: int) -> LatentStore:
        return LatentStore(self, number)

    def begin_pass(self, cached: bool) -> None:
        if cached:
            self.check_dtype()
            self._check_projections()
        for taps in self._taps.values():
            for tap in taps:
                tap.taken.begin_pass(cached)

    def take_latents(self, layer: int) -> torch.Tensor:
        """Latents [batch, tokens, rank] of the inputs of a layer's projections, in this pass."""
        return torch.cat([tap.take() for tap in self._taps[layer]], -1)

    def _projections_of(self, layer: int) -> tuple[torch.nn.Module, torch.nn.Module]:
        attention = self.attention(layer)
        return attention.k_proj, attention.v_proj

    def _check_projections(self) -> None:
        """Error where an adapter stands in place of a projection: latents would lack what it adds."""
        for layer, opened in self._projections.items():
            for name, found, expected in zip(("k_proj", "v_proj"), self._projections_of(layer), opened):
                if found is not expected:
                    raise ConversionError(
                        f"layers.{layer}.self_attn.{name}: {type(found).__name__} stands in place of the projection that was "
                        f"loaded; latents of method {self.checkpoint.plan['method']} are made of its input, without what an "
                        "adapter adds. Adapt other modules, or merge the adapter into the original and convert that")

    def _open_taps(self, layer: int) -> list:
        group, (dtype, device) = self.checkpoint.group_of(layer), self._options
        if group.calibrated:
            return []
        attention = self.attention(layer)
        projections = [part.to(device, dtype) for part in self.checkpoint.projections(group, self.config.hidden_size)]
        if not group.replaces_projections:
            return [_Inputs(attention.k_proj, projections[0])]
        taps = [attention.k_proj, attention.v_proj]
        for tap, latent_proj, decoder in zip(taps, projections, self.checkpoint.decoders(group)[layer - group.first_layer]):
            tap.latent_proj, tap.reconstruct_proj = latent_proj, decoder.to(device, dtype)
        return taps

    def _form(self, layer: int) -> LayerForm:
        rope, window = self.rope(layer), self.window(layer) or 0
        if self.checkpoint.group_of(layer).calibrated:
            return LayerForm(rope, window)
        attention = self.attention(layer)
        norm = getattr(attention, "k_norm", None)
        return LayerForm(rope, window, attention.k_proj.bias, attention.v_proj.bias,
                         None if norm is None else functools.partial(_normed, norm, self.checkpoint.head_dim))


def _normed(norm: torch.nn.Module, head_dim: int, keys: torch.Tensor) -> torch.Tensor:
    """keys [..., kv_heads, head_dim] after a norm of each head, or of all."""
    if norm.weight.numel() == head_dim:
        return norm(keys)
    return norm(keys.flatten(-2)).view_as(keys)
