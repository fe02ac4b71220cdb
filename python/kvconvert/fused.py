"""Fused layers: they store nothing, and their keys and values are combinations of those of plain layers below."""

import dataclasses
import pathlib

import torch

from kvconvert.checkpoints import ConvertedCheckpoint, StoredTokens
from kvconvert.factors import ConversionError, basis_channels, whole_number
from kvconvert.plans import family_of, has_one_projection

FORMS = ("channel", "complex")  # whose keys are combined after RoPE


@dataclasses.dataclass(frozen=True)
class Fusion:
    """The keys, or the values, of a fused layer: sums of its sources' rows times factors.

    weight: [sources, num_kv_heads, head_dim], or complex [sources, 2, num_kv_heads, head_dim / 2], real and imaginary part of
    the factor of each pair of channels. heads: the head of each source that a head reads, [sources, num_kv_heads], or None.
    """

    sources: list[int]
    weight: torch.Tensor
    heads: torch.Tensor | None
    channels: torch.Tensor | None  # for complex factors: of the pairs, the first of each, then the second

    def on(self, device: torch.device) -> "Fusion":
        """The same for rows on another device than the factors'."""
        if self.weight.device == device:
            return self
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)}
        return dataclasses.replace(self, **moved)

    def __call__(self, rows: list[torch.Tensor]) -> torch.Tensor:
        """rows: of each source, [batch, num_kv_heads, tokens, head_dim], and so is the result. Keys are those after RoPE."""
        total = 0
        for source, own in enumerate(rows):
            if self.heads is not None:
                own = own.index_select(1, self.heads[source])
            factor = self.weight[source]
            total = total + (own.float() * factor[:, None] if self.channels is None else self._turned(factor, own.float()))
        return total.to(rows[0].dtype)

    def _turned(self, factor: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        first, second = rows[..., self.channels].chunk(2, -1)
        real, imaginary = factor[0][:, None], factor[1][:, None]
        turned = torch.cat((real * first - imaginary * second, imaginary * first + real * second), -1)
        return turned[..., self.channels.argsort()]


def can_fold(key: Fusion, value: Fusion) -> bool:
    """Do factors of channels move to the query and to the sum of values, of at most two layers? Others make new rows."""
    return len(key.sources) == len(value.sources) <= 2 and all(
        fusion.heads is None and fusion.channels is None for fusion in (key, value))


class FusedCheckpoint(ConvertedCheckpoint):
    """Layers are fused or plain.

    stores: the fused layers and those that they read.
    """

    stored = "fused layers"

    @staticmethod
    def takes(plan: dict) -> bool:
        return "fused" in plan["layers"] and set(plan["layers"]) <= {"fused", "plain"}

    @staticmethod
    def why_refused(conversion: dict) -> str | None:
        if any(layer["form"] not in FORMS for layer in conversion["plan"]["fused"]):
            return "matrices, which combine keys before RoPE; convert with --fusion vectors"
        if has_one_projection(conversion):
            return (f"fused layers of {family_of(conversion)}, whose queries, keys and values have one matrix; convert with "
                    "--method pca")
        return None

    @staticmethod
    def why_not_split(plan: dict, ranks: int) -> str | None:
        mapped = [layer["layer"] for layer in plan["fused"] if layer.get("key_heads") or layer.get("value_heads")]
        return (f"KV heads of layer {mapped[0]} read other heads of its sources, which {ranks} tensor parallel ranks would not have; "
                "convert without --head-map search") if mapped else None

    @staticmethod
    def why_not_adapted(plan: dict) -> str | None:
        return ("fused layers have no projections of keys and values, which LoRA changes; remove --enable-lora, or convert with "
                "`kvconvert --for vllm --method coded`")

    @staticmethod
    def stored_tokens(plan: dict, number_bytes: int) -> StoredTokens:
        layer_bytes = 2 * plan["num_kv_heads"] * plan["head_dim"] * number_bytes
        fused = plan["layers"].count("fused")
        # All tokens of plain layers are exact: the plan's numbers are not used.
        return StoredTokens((len(plan["layers"]) - fused) * layer_bytes, layers_without_projections=fused, keeps_exact=False)

    def __init__(self, directory: str | pathlib.Path):
        super().__init__(directory)
        with self.reading_plan():
            self.layers = {whole_number("layer", layer["layer"]): layer for layer in self.plan["fused"]}
        self.check_covers("fused", "fused", sorted(self.layers))
        read = set()
        for layer in self.layers:
            for part in ("key", "value"):
                read.update(self._sources(layer, part))
                self._heads(layer, part)
        self.stores = [sorted({*self.layers, *read})]
        self.files = self.open_files()

    def _sources(self, layer: int, part: str) -> list[int]:
        with self.reading_plan():
            sources = [whole_number(f"{part}_sources", source) for source in self.layers[layer][f"{part}_sources"]]
        if not all(0 <= source < layer and self.plan["layers"][source] == "plain" for source in sources):
            raise ConversionError(f"{self.path}: kvconvert.plan.fused: layer {layer} reads {sources}, expected plain layers below "
                                  "it; convert again")
        return sources

    def _heads(self, layer: int, part: str) -> torch.Tensor | None:
        """The head of each source that a head reads, [sources, num_kv_heads]; None: its own."""
        heads, name = self.layers[layer].get(f"{part}_heads"), f"{part}_heads"
        if heads is None:
            return None
        with self.reading_plan():
            shape = (len(self._sources(layer, part)), self.num_kv_heads)
            if len(heads) != shape[0] * shape[1]:
                raise TypeError(f"{name} of layer {layer} has {len(heads)} heads, expected {shape[0] * shape[1]}")
            return torch.tensor([whole_number(name, head, 0, self.num_kv_heads - 1) for head in heads], device="cpu").view(shape)

    def fusion(self, layer: int, part: str, num_turned: int) -> Fusion:
        """part: key or value. num_turned: pairs of channels that RoPE turns."""
        spec, sources = self.layers[layer], self._sources(layer, part)
        turned = part == "key" and spec["form"] == "complex"
        width = self.num_kv_heads * self.head_dim
        weight = self.files.get(f"kvconvert.fused.{layer}.{part}",
                                (len(sources), 2, width // 2) if turned else (len(sources), width))
        return Fusion(
            sources, weight.unflatten(-1, (self.num_kv_heads, -1)),
            self._heads(layer, part),
            basis_channels(1, self.head_dim, num_turned)[0] if turned else None)
