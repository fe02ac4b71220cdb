"""What a converted directory stores, and where that pays."""

import dataclasses
import math
import os
import pathlib

from kvconvert.checkpoints import StoredTokens
from kvconvert.factors import ConversionError, open_tensors
from kvconvert.kinds import kind_of
from kvconvert.plans import exact_tokens, family_of, read_config, reading


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
    unlike_report: str | None = None  # how engines read it in another way than the report measured

    @property
    def kept_ratio(self) -> float | None:
        """Bytes of a token's codes or latents, divided by those of its keys and values."""
        return None if self.bytes_per_token is None else self.bytes_per_token / self.plain_bytes_per_token

    @property
    def pays_from(self) -> int | None:
        """Tokens in flight from which the cache saves more than the factors take; the exact ones of each sequence come on top."""
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
            exact = " beside exact ones" if self.sink_tokens + self.window_tokens > 0 else ""
            lines.append(f"factors {self.factor_bytes / 1024:.1f} KiB; pays from {self.pays_from} tokens in flight{exact}")
        lines.append(f"exact: the first {self.sink_tokens} and the last {self.window_tokens} tokens")
        lines.append(f"runs in {', '.join(self.served_by)}")
        if self.unlike_report is not None and len(self.served_by) > 1:
            lines.append(self.unlike_report)
        return "\n".join(lines)


_WIDTH = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2, "I8": 1, "U8": 1}
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8}


def _factor_bytes(directory: str | os.PathLike) -> int:
    """Bytes of the tensors that the conversion added."""
    size = 0
    for _, file in open_tensors(pathlib.Path(directory)):
        for name in file.keys():
            if name.startswith("kvconvert."):
                part = file.get_slice(name)
                size += math.prod(part.get_shape()) * _WIDTH[part.get_dtype()]
    return size


def show(directory: str | os.PathLike) -> Conversion:
    """Reads config.json and the shapes of tensors of a converted directory; raises ConversionError for another one."""
    config = read_config(directory)
    with reading(f"{os.fspath(directory)}/config.json", "kvconvert"):
        return _shown(directory, config)


def _shown(directory: str | os.PathLike, config: dict) -> Conversion:
    conversion, text = config["kvconvert"], config.get("text_config", config)
    plan = conversion["plan"]
    dtype = text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or "float32"
    if dtype not in _BYTES:
        raise ConversionError(f"{directory}/config.json: dtype {dtype}, expected one of {', '.join(_BYTES)}")
    layers, kind = len(plan["layers"]), kind_of(plan)
    layer_bytes = 2 * plan["num_kv_heads"] * plan["head_dim"] * _BYTES[dtype]
    engines, stored = [], StoredTokens()
    if kind.why_refused(conversion) is None:
        engines = [engine for engine in ("transformers", "vLLM") if kind.why_not_exact(plan, engine) is None]
        stored = kind.stored_tokens(plan, _BYTES[dtype])
    sink, window = exact_tokens(plan) if stored.keeps_exact else (0, 0)
    projections = stored.layers_without_projections * layer_bytes * text["hidden_size"]
    return Conversion(
        directory=os.fspath(directory), method=plan["method"], model_type=family_of(conversion) or "unknown",
        num_layers=layers, bytes_per_token=stored.bytes_per_token,
        plain_bytes_per_token=layers * layer_bytes, sink_tokens=sink, window_tokens=window,
        scopes=stored.scopes, forms=stored.forms, latents=stored.latents,
        factor_bytes=_factor_bytes(directory) - projections, served_by=("kvrun", *engines),
        unlike_report=kind.why_unlike_report(plan))
