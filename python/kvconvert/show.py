"""What a converted directory stores, and where that pays."""

import dataclasses
import math
import os
import pathlib

from safetensors import safe_open

from kvconvert import fused, latents
from kvconvert.codes import can_keep_exact
from kvconvert.factors import ConversionError, block_of
from kvconvert.plans import exact_tokens, read_config


@dataclasses.dataclass(frozen=True)
class Conversion:
    """A converted directory. str() is a summary for people."""

    directory: str
    method: str
    model_type: str  # of the original
    num_layers: int
    bytes_per_token: float | None  # of all layers, codes or latents alone; None where kvrun alone runs the directory
    plain_bytes_per_token: int  # of the original, at its dtype
    sink_tokens: int
    window_tokens: int
    scopes: tuple[str, ...]  # of coded layers
    forms: tuple[str, ...]
    factor_bytes: int  # what the weights grow by; below 0 where factors replace larger projections
    served_by: tuple[str, ...]  # engines that run the directory with its saving
    latents: tuple[tuple[int, int], ...] = ()  # numbers of a latent and layers that share it, from the first layer on

    @property
    def kept_ratio(self) -> float | None:
        """Bytes of a token's codes or latents, divided by those of its keys and values."""
        return None if self.bytes_per_token is None else self.bytes_per_token / self.plain_bytes_per_token

    @property
    def pays_from(self) -> int | None:
        """Tokens in flight from which the cache saves more than the factors take."""
        saved = self.plain_bytes_per_token - (self.bytes_per_token or self.plain_bytes_per_token)
        return max(1, math.ceil(self.factor_bytes / saved)) if saved > 0 else None

    def __str__(self) -> str:
        lines = [f"{self.directory}: {self.method} of {self.model_type}, {self.num_layers} layers"]
        if self.scopes:
            lines.append(f"scope {', '.join(self.scopes)}; form {', '.join(self.forms)}")
        if self.latents:
            parts = {f"{rank} numbers for {layers} layer{'s' if layers > 1 else ''}": None for rank, layers in self.latents}
            lines.append(f"latents: {', '.join(parts)}")
        if self.bytes_per_token is not None:
            lines.append(f"{self.bytes_per_token:.1f} of {self.plain_bytes_per_token} bytes per token "
                         f"(kept_ratio {self.kept_ratio:.3f})")
        if self.pays_from is not None and self.factor_bytes <= 0:
            lines.append(f"pays from the first token (weights shrink by {-self.factor_bytes / 1024:.1f} KiB)")
        elif self.pays_from is not None:
            lines.append(f"factors {self.factor_bytes / 1024:.1f} KiB; pays from {self.pays_from} tokens in flight")
        lines.append(f"exact: the first {self.sink_tokens} and the last {self.window_tokens} tokens")
        lines.append(f"runs in {', '.join(self.served_by)}")
        return "\n".join(lines)


_WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


def _form(block) -> str:
    if block.part == "both":
        return "full"
    if block.rotated:
        return "rotated"
    return "keys" if block.bases == 1 else f"blocks:{block.bases}"


def _factor_bytes(directory: str | os.PathLike) -> int:
    """Bytes of the tensors that the conversion added."""
    size = 0
    for path in sorted(pathlib.Path(directory).glob("*.safetensors")):
        with safe_open(str(path), framework="pt") as file:
            for name in file.keys():
                if name.startswith("kvconvert."):
                    part = file.get_slice(name)
                    size += math.prod(part.get_shape()) * _WIDTH[part.get_dtype()]
    return size


def show(directory: str | os.PathLike) -> Conversion:
    """Reads config.json of a converted directory; raises ConversionError for another one."""
    config = read_config(directory)
    conversion, text = config["kvconvert"], config.get("text_config", config)
    plan = conversion["plan"]
    sink, window = exact_tokens(plan)
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "float32"
    if dtype not in _BYTES:
        raise ConversionError(f"{directory}/config.json: dtype {dtype}, expected one of {', '.join(_BYTES)}")
    layers = len(plan["layers"])
    layer_bytes = 2 * plan["num_kv_heads"] * plan["head_dim"] * _BYTES[dtype]
    plain, grown = layers * layer_bytes, _factor_bytes(directory)
    blocks = [block_of(number, spec) for number, spec in enumerate(plan.get("coded", []))]
    size = sum(block.tile_bytes for block in blocks) / 32 if blocks else None
    scopes = {"group" if block.num_layers > 1 else "layer" if block.head is None else "head" for block in blocks}
    forms = {_form(block) for block in blocks if block.part != "values"}
    served_by, numbers = ["kvrun"], []
    if plan["method"] == "coded" and can_keep_exact(sink, window):
        served_by += ["transformers", "vLLM"]
    elif latents.is_latent(plan) and latents.why_refused(conversion) is None:
        stores_at_once = (sink, window, plan["policy"]["block_tokens"]) == (0, 0, 1)
        served_by += ["transformers", "vLLM"] if stores_at_once else ["transformers"]
        groups = [latents.group_of(number, spec) for number, spec in enumerate(plan["groups"])]
        numbers = [(group.rank, len(store)) for group in groups for store in group.stores]
        size = sum(rank for rank, _ in numbers) * _BYTES[dtype] + plan["layers"].count("plain") * layer_bytes
        replaced = sum(group.replaces_projections for group in groups)
        grown -= replaced * layer_bytes * text["hidden_size"]
    elif fused.is_fused(plan):
        served_by += ["transformers", "vLLM"] if fused.why_refused(conversion) is None else []
        sink = window = 0  # all tokens of plain layers are exact; the plan's numbers are not used
        size = plan["layers"].count("plain") * layer_bytes
        grown -= plan["layers"].count("fused") * layer_bytes * text["hidden_size"]
    return Conversion(
        directory=os.fspath(directory), method=plan["method"], model_type=conversion.get("model_type", "unknown"),
        num_layers=layers, bytes_per_token=size, plain_bytes_per_token=plain, sink_tokens=sink, window_tokens=window,
        scopes=tuple(sorted(scopes)), forms=tuple(sorted(forms)), factor_bytes=grown, served_by=tuple(served_by),
        latents=tuple(numbers))
