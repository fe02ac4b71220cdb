"""What the integration reads of a loaded model's attention, for codes and latents alike."""

import inspect
import weakref

import torch
from transformers.cache_utils import CacheLayerMixin, DynamicLayer, DynamicSlidingWindowLayer

from kvconvert.checkpoints import ConvertedCheckpoint
from kvconvert.codes import TILE
from kvconvert.factors import ConversionError

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of keys and values that operators read
_BY_LENGTH = ("dynamic", "longrope")  # RoPE whose angles depend on the length of the text


class ModelParts:
    """stores: layers whose tokens are stored together. Raises ConversionError where the checkpoint does not fit the model.

    exact_step: a token attends exactly to the tokens of its own forward pass; codes alone need to be told.
    """

    def __init__(self, decoder: torch.nn.Module, checkpoint: ConvertedCheckpoint, exact_step: bool = False):
        self._decoder = weakref.ref(decoder)  # whose hooks lead here
        self.config, self.checkpoint = decoder.config, checkpoint
        self.num_layers = checkpoint.num_layers
        self.exact_step, self.stores = exact_step, [list(layers) for layers in checkpoint.stores]
        self._tables: dict[str | None, tuple[torch.Tensor, torch.Tensor]] = {}
        for name, found, planned in (
                ("layers", len(decoder.layers), checkpoint.num_layers),
                ("KV heads", self.config.num_key_value_heads, checkpoint.num_kv_heads),
                ("channels per head", self.attention(0).head_dim, checkpoint.head_dim)):
            if found != planned:
                raise ConversionError(f"{checkpoint.path}: the plan is for {planned} {name}, expected {found}; convert the "
                                      "checkpoint again")
        if any(parameter.device.type == "meta" for parameter in decoder.parameters()):
            raise ConversionError(f"{checkpoint.path}: weights that are offloaded lie on no device, and codes are read where a layer's "
                                  "weights are; use a device_map that holds all layers")
        self.max_positions = self._max_positions()
        self._frequencies = {name: value.detach().clone() for name, value in decoder.rotary_emb.named_buffers(recurse=False)
                             if value.is_floating_point()}

    def keep_frequencies(self) -> None:
        """Restores RoPE's frequencies where the model's type was changed, which rounds them: tables of rebuilt keys have the exact ones."""
        rotary = self.decoder.rotary_emb
        for name, exact in self._frequencies.items():
            now = getattr(rotary, name)
            if now.dtype != exact.dtype:
                setattr(rotary, name, exact.to(now.device))

    @property
    def decoder(self) -> torch.nn.Module:
        return self._decoder()

    @property
    def open_tiles(self) -> int:
        """Last tiles of a row whose exact rows are kept: one more, for tokens that are taken back."""
        return self.exact_tiles + 1

    def attention(self, layer: int) -> torch.nn.Module:
        return self.decoder.layers[layer].self_attn

    def check_dtype(self) -> None:
        """Raises ConversionError for numbers that operators do not take."""
        dtype = next(self.decoder.parameters()).dtype
        if dtype not in _DTYPES:
            raise ConversionError(f"{self.checkpoint.path}: {self.checkpoint.stored} of {str(dtype).removeprefix('torch.')} keys and values, expected "
                                  "float32, bfloat16 or float16; pass dtype=torch.float32")

    @staticmethod
    def prepare(decoder: torch.nn.Module, plan: dict) -> None:
        """Replaces modules of a new model of which a directory has no weights."""

    exact_tiles = 1  # last tiles of a row that a query reads exactly
    needs_cache = False  # also in training, and where the caller wants none

    def begin_pass(self, cached: bool) -> None:
        """A forward pass comes, with or without a cache."""

    def new_store(self, number: int):
        """An empty store of the layers stores[number]."""
        raise NotImplementedError

    def cache_layer(self, layer: int, below: list[CacheLayerMixin]) -> CacheLayerMixin:
        """A layer of a cache that no store has. below: the layers before it."""
        window = self.window(layer)
        return DynamicLayer() if window is None else DynamicSlidingWindowLayer(window)

    def _max_positions(self) -> int:
        """Tokens of the longest text."""
        length = self.config.max_position_embeddings
        parameters = getattr(self.config, "rope_parameters", None) or {}
        if parameters.get("rope_type", "default") in _BY_LENGTH:
            original = parameters.get("original_max_position_embeddings")
            length = min(length, original or length)
        return length

    def window(self, layer: int) -> int | None:
        """Tokens that a layer sees, itself included; None: all."""
        types = getattr(self.config, "layer_types", None)
        if types is None or types[layer] == "sliding_attention":
            return getattr(self.config, "sliding_window", None) or None
        return None

    @torch.no_grad()
    def rope(self, layer: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(cos, sin) float32 [max_positions, pairs] of a layer's keys; None without RoPE."""
        if not _rotates(self.attention(layer)):
            return None
        rotary = self.decoder.rotary_emb
        by_type = "layer_type" in inspect.signature(rotary.forward).parameters
        kind = self.config.layer_types[layer] if by_type else None
        if kind not in self._tables:
            device = next(self.decoder.parameters()).device
            positions = torch.arange(max(self.max_positions, TILE), device=device)[None]  # the operators read a tile's
            probe = torch.empty(1, device=device, dtype=torch.float32)
            tables = rotary(probe, positions, **({"layer_type": kind} if by_type else {}))
            pairs = tables[0].shape[-1] // 2
            self._tables[kind] = tuple(table[0, :, :pairs].float().contiguous() for table in tables)
        return self._tables[kind]


def _rotates(attention: torch.nn.Module) -> bool:
    """Whether a layer turns its keys."""
    if hasattr(attention, "sliding_window_pattern"):  # EXAONE 4: beside layers with a window, those without one do not
        return attention.sliding_window is None or attention.is_sliding
    return getattr(attention, "use_rope", True)
