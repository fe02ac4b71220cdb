"""Latents in place of keys and values (docs/methods.md: pca, xkv-static, palu, commonkv): which layers share them, how they are
made, and what they stand for."""

import dataclasses
import pathlib
from collections.abc import Callable

import torch
from torch.nn.functional import linear

from kvconvert.checkpoints import ConvertedCheckpoint, StoredTokens
from kvconvert.factors import MOST_NUMBERS, one_of, whole_number
from kvconvert.plans import exact_tokens, family_of, has_one_projection

TOKENS_TOGETHER = 1024  # whose latents are made in one go, in float32
_DEVICE_STEP, _DEVICE_CHANNELS = 8, 128  # of kernels of GPUs: ranks are multiples, a head has at most as many channels


@dataclasses.dataclass(frozen=True)
class LatentGroup:
    """Layers that are factorised together. Numbers of a latent: with split_kv the first key_rank give keys and the others
    values, else all give both."""

    index: int
    first_layer: int
    num_layers: int
    split_kv: bool
    rank: int
    key_rank: int
    value_rank: int
    calibrated: bool  # principal directions of keys and values; else factors of the projections' weights

    @property
    def layers(self) -> list[int]:
        return list(range(self.first_layer, self.first_layer + self.num_layers))

    @property
    def replaces_projections(self) -> bool:
        """Are the key and value projections the factors (palu)?"""
        return self.split_kv and not self.calibrated

    @property
    def stores(self) -> list[list[int]]:
        """Layers that share one latent per token: all, or each has its own."""
        return [self.layers] if self.calibrated else [[layer] for layer in self.layers]


def group_of(index: int, spec: dict) -> LatentGroup:
    """Raises AttributeError, KeyError and TypeError for a spec that describes no group."""
    split = one_of("split_kv", spec["split_kv"], (False, True))
    rank = whole_number("rank", spec["rank"], 1, MOST_NUMBERS)
    key_rank, value_rank = (whole_number(name, spec[name], 1, MOST_NUMBERS) if split else rank for name in ("key_rank", "value_rank"))
    if split and rank != key_rank + value_rank:
        raise TypeError(f"rank of group {index} is {rank}, expected key_rank {key_rank} + value_rank {value_rank}")
    return LatentGroup(index, whole_number("first_layer", spec["first_layer"]), whole_number("num_layers", spec["num_layers"], 1),
                       split, rank, key_rank, value_rank, spec.get("basis") == "calibrated")


def device_refusal(groups: list[LatentGroup], head_dim: int) -> str | None:
    """What kernels of GPUs do not take, with the way out; None: nothing."""
    if head_dim > _DEVICE_CHANNELS or head_dim % 2:
        return (f"latents of heads of {head_dim} channels run on the CPU, and GPUs take even numbers up to {_DEVICE_CHANNELS}; convert with "
                "--method coded, or run on the CPU")
    ranks = [rank for group in groups for rank in (group.key_rank, group.value_rank) if rank % _DEVICE_STEP]
    if ranks:
        return (f"latents of rank {ranks[0]} run on the CPU, and GPUs take multiples of {_DEVICE_STEP}; convert with "
                f"--rank-multiple {_DEVICE_STEP}, or run on the CPU")
    return None


class LatentCheckpoint(ConvertedCheckpoint):
    """Layers are latent, or some of them plain."""

    stored = "latents"

    @staticmethod
    def takes(plan: dict) -> bool:
        return "latent" in plan["layers"] and set(plan["layers"]) <= {"latent", "plain"}

    @staticmethod
    def why_refused(conversion: dict) -> str | None:
        plan = conversion["plan"]
        bases = {group.get("basis", "weights") for group in plan["groups"]}
        if plan.get("own_widths") is not None:
            return "latents of the model's own latents (latent attention)"
        if "request" in bases:
            return "a basis for each prompt; convert with --method xkv-static"
        if "weights" in bases and plan["policy"]["rule"] != "none":
            return f"merged tokens (rule {plan['policy']['rule']}); convert with --merge none"
        if "weights" in bases and has_one_projection(conversion):
            return f"factors of weights of {family_of(conversion)}, which engines keep in one matrix; convert with --method pca"
        planned = conversion.get("settings", {}).get("kv_dtype") or ""
        if planned.startswith("int"):
            return f"latents of {planned}; convert without --kv-dtype"
        return None

    @staticmethod
    def why_not_exact(plan: dict, engine: str) -> str | None:
        (sink, window), block = exact_tokens(plan), plan["policy"]["block_tokens"]
        if engine != "vLLM":
            return None
        if sink > 0 or window > 0:
            return f"the first {sink} and last {window} tokens stay exact, and {engine} keeps none; convert with `kvconvert --for vllm`"
        if block != 1:
            return (f"{engine} stores each token as a latent at once, and this conversion keeps {block} generated tokens exact until "
                    "they are a block; convert with `kvconvert --for vllm`")
        return None

    @staticmethod
    def why_not_split(plan: dict, ranks: int) -> str | None:
        return (f"a latent is of all {plan['num_kv_heads']} KV heads and cannot be split over {ranks} tensor parallel ranks; convert "
                "with `kvconvert --for vllm --scope head`, or use --pipeline-parallel-size")

    @staticmethod
    def why_not_adapted(plan: dict) -> str | None:
        if all(group.get("basis") == "calibrated" for group in plan["groups"]):
            return None
        return ("latents are factors of the projections' weights, which LoRA changes; remove --enable-lora, or convert with "
                "`kvconvert --for vllm --method pca`")

    @staticmethod
    def why_not_on_gpus(plan: dict) -> str | None:
        return device_refusal([group_of(number, spec) for number, spec in enumerate(plan["groups"])], plan["head_dim"])

    @staticmethod
    def stored_tokens(plan: dict, number_bytes: int) -> StoredTokens:
        groups = [group_of(number, spec) for number, spec in enumerate(plan["groups"])]
        latents = tuple((group.rank, len(store)) for group in groups for store in group.stores)
        plain_numbers = plan["layers"].count("plain") * 2 * plan["num_kv_heads"] * plan["head_dim"]
        return StoredTokens((sum(rank for rank, _ in latents) + plain_numbers) * number_bytes,
                            layers_without_projections=sum(group.replaces_projections for group in groups), latents=latents)

    def __init__(self, directory: str | pathlib.Path):
        super().__init__(directory)
        with self.reading_plan():
            self.groups = [group_of(i, spec) for i, spec in enumerate(self.plan["groups"])]
            policy = self.plan["policy"]
            self.block_tokens = whole_number("policy.block_tokens", policy["block_tokens"], 1, MOST_NUMBERS)
            self.truncated = policy["prefill"] == "truncated"
        self.stores = [store for group in self.groups for store in group.stores]
        self.check_covers("groups", "latent", [layer for store in self.stores for layer in store])
        self.files = self.open_files()

    @property
    def kv_dim(self) -> int:
        return self.num_kv_heads * self.head_dim

    def group_of(self, layer: int) -> LatentGroup:
        return next(group for group in self.groups if layer in group.layers)

    def matrix(self, group: LatentGroup, name: str, shape: tuple[int, int], axis: int) -> torch.Tensor:
        """A factor, float32. axis: of the latent's numbers."""
        return self.files.get_matrix(f"kvconvert.groups.{group.index}.{name}", shape, axis)

    def decoders(self, group: LatentGroup) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What rebuilds keys [kv_dim, key_rank] and values [kv_dim, value_rank] of each layer of the group."""
        size, name = group.num_layers * self.kv_dim, "reconstruct_proj"
        if group.split_kv:
            parts = (self.matrix(group, f"key.{name}", (size, group.key_rank), 1),
                     self.matrix(group, f"value.{name}", (size, group.value_rank), 1))
            return list(zip(*(part.split(self.kv_dim) for part in parts)))
        joint = self.matrix(group, name, (2 * size, group.rank), 1).split(self.kv_dim)
        return list(zip(joint[::2], joint[1::2]))

    def encoders(self, group: LatentGroup) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What makes a calibrated group's latents of keys [key_rank, kv_dim] and values [value_rank, kv_dim] of each layer."""
        size = group.num_layers * self.kv_dim
        if group.split_kv:
            parts = (self.matrix(group, "key.encoder", (group.key_rank, size), 0),
                     self.matrix(group, "value.encoder", (group.value_rank, size), 0))
            return list(zip(*(part.split(self.kv_dim, 1) for part in parts)))
        joint = self.matrix(group, "encoder", (group.rank, 2 * size), 0).split(self.kv_dim, 1)
        return list(zip(joint[::2], joint[1::2]))

    def means(self, group: LatentGroup) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Means of a calibrated group's keys and values [kv_dim], of each layer."""
        mean = self.files.get(f"kvconvert.groups.{group.index}.mean", (2 * group.num_layers * self.kv_dim,)).split(self.kv_dim)
        return list(zip(mean[::2], mean[1::2]))

    def projections(self, group: LatentGroup, hidden_size: int) -> list[torch.Tensor]:
        """What makes latents of a layer's inputs: [rank, hidden_size], or of keys and of values apart."""
        if group.split_kv:
            return [self.matrix(group, "key.latent_proj", (group.key_rank, hidden_size), 0),
                    self.matrix(group, "value.latent_proj", (group.value_rank, hidden_size), 0)]
        return [self.matrix(group, "latent_proj", (group.rank, hidden_size), 0)]


@dataclasses.dataclass(frozen=True)
class HeadNorm:
    """RMS norm of each head's key, [..., kv_heads, head_dim]."""

    weight: torch.Tensor  # [head_dim] float32, complete: with what the family adds to the stored one
    epsilon: float

    def __call__(self, keys: torch.Tensor) -> torch.Tensor:
        numbers = keys.float()
        scale = torch.rsqrt(numbers.square().mean(-1, keepdim=True) + self.epsilon)
        return (numbers * scale * self.weight).to(keys.dtype)


@dataclasses.dataclass(frozen=True)
class LayerForm:
    """How a layer's attention reads keys and values."""

    rope: tuple[torch.Tensor, torch.Tensor] | None  # cos and sin, float32 [positions, pairs] with the engine's scaling
    window: int = 0  # last tokens that a query sees, itself included; 0: all
    key_bias: torch.Tensor | None = None  # [kv_dim], of projections that are factorised
    value_bias: torch.Tensor | None = None
    key_norm: Callable[[torch.Tensor], torch.Tensor] | None = None  # of projected keys [..., kv_heads, head_dim]


class Latents:
    """Latents of the layers of one store. Tensors are on `device`; factors that rebuild are of `dtype`."""

    def __init__(self, checkpoint: LatentCheckpoint, layers: list[int], forms: list[LayerForm], dtype: torch.dtype,
                 device: torch.device):
        self.group, self.layers, self.forms = checkpoint.group_of(layers[0]), layers, forms
        self.num_kv_heads, self.head_dim = checkpoint.num_kv_heads, checkpoint.head_dim
        places = [layer - self.group.first_layer for layer in layers]
        decoders = checkpoint.decoders(self.group)
        self.decoders = [tuple(part.to(device, dtype) for part in decoders[place]) for place in places]
        self.encoders: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.offsets = [(form.key_bias, form.value_bias) for form in forms]  # what is added to rebuilt keys and values
        if self.group.calibrated:
            means = checkpoint.means(self.group)
            self.offsets = [tuple(part.to(device, dtype) for part in means[place]) for place in places]
            self.encoders = [tuple(part.to(device) for part in pair) for pair in checkpoint.encoders(self.group)]
            self.mean_latent = self._encoded([(key.to(device)[None], value.to(device)[None]) for key, value in means])

    @property
    def rank(self) -> int:
        return self.group.rank

    def use(self, dtype: torch.dtype, device: torch.device) -> None:
        """Rebuilds from latents of this type on this device from now on: a model may be moved after it was loaded."""
        own = self.decoders[0][0]
        if (own.dtype, own.device) == (dtype, device):
            return
        self.decoders = [tuple(part.to(device, dtype) for part in pair) for pair in self.decoders]
        self.offsets = [tuple(None if part is None else part.to(device, dtype) for part in pair) for pair in self.offsets]
        self.encoders = [tuple(part.to(device) for part in pair) for pair in self.encoders]
        self.forms = [dataclasses.replace(form, rope=form.rope and tuple(part.to(device) for part in form.rope)) for form in self.forms]
        if self.group.calibrated:
            self.mean_latent = self.mean_latent.to(device)

    def _encoded(self, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        keys = sum(linear(key, encoder) for (key, _), (encoder, _) in zip(rows, self.encoders))
        values = sum(linear(value, encoder) for (_, value), (_, encoder) in zip(rows, self.encoders))
        return torch.cat((keys, values), 1) if self.group.split_kv else keys + values

    def encode(self, first: int | torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        """Latents [n, rank] float32 of the tokens at positions from `first` on, or at these int64 [n], under calibrated directions.
        keys (post-RoPE), values: of every layer, [n, num_kv_heads, head_dim]."""
        latents = []
        for begin in range(0, len(keys[0]), TOKENS_TOGETHER):
            some, rows = slice(begin, begin + TOKENS_TOGETHER), []
            places = first + begin if isinstance(first, int) else first[some]
            for form, key, value in zip(self.forms, keys, values):
                key, value = key[some].float(), value[some].float()
                rows.append((turned(key, form.rope, places, back=True).flatten(1), value.flatten(1)))
            latents.append(self._encoded(rows) - self.mean_latent)
        return torch.cat(latents)

    def plain_keys(self, place: int, latents: torch.Tensor) -> torch.Tensor:
        """Keys before RoPE, [..., n, num_kv_heads, head_dim], of latents [..., n, rank]."""
        form, (decoder, _), (offset, _) = self.forms[place], self.decoders[place], self.offsets[place]
        keys = linear(latents[..., :self.group.key_rank], decoder, offset).unflatten(-1, (self.num_kv_heads, self.head_dim))
        return keys if form.key_norm is None else form.key_norm(keys)

    def keys(self, place: int, latents: torch.Tensor, first: int) -> torch.Tensor:
        """Keys post-RoPE, float32 [..., n, num_kv_heads, head_dim], of latents [..., n, rank] at positions from `first` on."""
        return turned(self.plain_keys(place, latents).float(), self.forms[place].rope, first)

    def values(self, place: int, latents: torch.Tensor) -> torch.Tensor:
        """Values [..., n, num_kv_heads, head_dim] of latents [..., n, rank]."""
        values = linear(latents[..., self.rank - self.group.value_rank:], self.decoders[place][1], self.offsets[place][1])
        return values.unflatten(-1, (self.num_kv_heads, self.head_dim))


def turned(keys: torch.Tensor, rope: tuple[torch.Tensor, torch.Tensor] | None, first: int | torch.Tensor,
           back: bool = False) -> torch.Tensor:
    """Keys float32 [..., n, heads, head_dim] at positions from `first` on, or at these [n], after RoPE; with `back` before it."""
    if rope is None or keys.shape[-3] == 0:
        return keys
    places = slice(first, first + keys.shape[-3]) if isinstance(first, int) else first
    cos, sin = (part[places, None] for part in rope)
    if back:  # RoPE may scale
        squared = cos * cos + sin * sin
        cos, sin = cos / squared, -sin / squared
    pairs = cos.shape[-1]
    one, two = keys[..., :pairs], keys[..., pairs:2 * pairs]
    return torch.cat((one * cos - two * sin, one * sin + two * cos, keys[..., 2 * pairs:]), -1)
