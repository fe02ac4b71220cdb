"""Fused layers: they store nothing, and their keys and values are combinations of those of plain layers below."""

import dataclasses
import pathlib

import torch

from kvconvert.checkpoints import ConvertedCheckpoint
from kvconvert.factors import ConversionError

FORMS = ("channel", "complex")  # whose keys are combined after RoPE
_ONE_PROJECTION = ("phi3",)  # families whose queries, keys and values have one matrix


def is_fused(plan: dict) -> bool:
    """Are layers of the plan fused, and the others plain?"""
    return "fused" in plan["layers"] and set(plan["layers"]) <= {"fused", "plain"}


def why_refused(conversion: dict) -> str | None:
    """What of a fused conversion (the configuration's key kvconvert) only kvrun does, with the way out; None: nothing."""
    kv_dtype = conversion.get("settings", {}).get("kv_dtype") or ""
    if any(layer["form"] not in FORMS for layer in conversion["plan"]["fused"]):
        return "matrices, which combine keys before RoPE; convert with --fusion vectors"
    if conversion.get("model_type") in _ONE_PROJECTION:
        return f"fused layers of {conversion['model_type']}, whose queries, keys and values have one matrix; convert with --method pca"
    if kv_dtype.startswith("int"):
        return f"a cache of {kv_dtype}; convert without --kv-dtype"
    return None


@dataclasses.dataclass(frozen=True)
class Fusion:
    """The keys, or the values, of a fused layer: sums of its sources' rows times factors.

    weight: [sources, num_kv_heads, head_dim], or complex [sources, 2, num_kv_heads, head_dim / 2], real and imaginary part of
    the factor of each pair of channels. heads: the head of each source that a head reads, [sources, num_kv_heads], or None.
    """

    sources: list[int]
    weight: torch.Tensor
    heads: torch.Tensor | None
    pairs: tuple[torch.Tensor, torch.Tensor] | None  # channels of each pair, for complex factors

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """rows: of each source, [batch, num_kv_heads, tokens, head_dim], and so is the result. Keys are those after RoPE."""
        total = 0
        for source, own in enumerate(rows):
            if self.heads is not None:
                own = own.index_select(1, self.heads[source].to(own.device))
            factor = self.weight[source].to(own.device)
            total = total + (own.float() * factor[:, None] if self.pairs is None else self._turned(factor, own.float()))
        return total.to(rows[0].dtype)

    def _turned(self, factor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        first, second = (rows[..., channels.to(rows.device)] for channels in self.pairs)
        real, imaginary = factor[0][:, None], factor[1][:, None]
        turned = torch.empty_like(rows)
        turned[..., self.pairs[0].to(rows.device)] = real * first - imaginary * second
        turned[..., self.pairs[1].to(rows.device)] = imaginary * first + real * second
        return turned


class FusedCheckpoint(ConvertedCheckpoint):
    """A converted directory whose layers are fused or plain. Raises ConversionError for any other directory."""

    def __init__(self, directory: str | pathlib.Path):
        super().__init__(directory)
        if not is_fused(self.plan):
            raise self.refused("this engine")
        try:
            reason = why_refused(self.config["kvconvert"])
            self.layers = {int(layer["layer"]): layer for layer in self.plan["fused"]}
        except (KeyError, TypeError) as error:
            raise ConversionError(f"{self.path}: kvconvert.plan: {error!r}; convert again") from error
        if reason is not None:
            raise ConversionError(f"{self.path}: method {self.plan['method']}: kvrun alone runs {reason}, or run it with kvrun")
        fused = [layer for layer, source in enumerate(self.plan["layers"]) if source == "fused"]
        if sorted(self.layers) != fused:
            raise ConversionError(f"{self.path}: kvconvert.plan.fused does not cover each fused layer once; convert again")
        self.stores = []
        self.files = self.open_files()

    def fusion(self, layer: int, part: str, num_turned: int) -> Fusion:
        """part: key or value. num_turned: pairs of channels that RoPE turns."""
        spec = self.layers[layer]
        sources, heads = spec[f"{part}_sources"], spec.get(f"{part}_heads")
        if not all(0 <= source < layer and self.plan["layers"][source] == "plain" for source in sources):
            raise ConversionError(f"{self.path}: kvconvert.plan.fused: layer {layer} reads {sources}, expected plain layers below "
                                  "it; convert again")
        turned = part == "key" and spec["form"] == "complex"
        width = self.num_kv_heads * self.head_dim
        weight = self.files.get(f"kvconvert.fused.{layer}.{part}",
                                (len(sources), 2, width // 2) if turned else (len(sources), width))
        return Fusion(
            sources, weight.unflatten(-1, (self.num_kv_heads, -1)),
            torch.tensor(heads).view(len(sources), self.num_kv_heads) if heads else None,
            self._pairs(num_turned) if turned else None)

    def _pairs(self, num_turned: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Pairs that RoPE turns, halves of its channels; then those that it leaves alone, halves of these."""
        rest = self.head_dim // 2 - num_turned
        return tuple(torch.cat((torch.arange(num_turned) + half * num_turned, torch.arange(rest) + 2 * num_turned + half * rest))
                     for half in (0, 1))
