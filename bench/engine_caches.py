"""Caches that other engines ship, as torch functions that store keys and values and read them back, with their bytes.

measure_engine_caches.py scores checkpoints with them.
"""

import dataclasses
import functools
import math

import torch

GROUP = 32  # numbers that share a scale in KIVI and in kvrun's integer caches


@dataclasses.dataclass(frozen=True)
class Shape:
    num_layers: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_dim(self):
        return self.num_kv_heads * self.head_dim


@functools.cache
def hadamard(dim):
    """Sylvester's matrix, symmetric and orthonormal. [dim, dim]"""
    if dim & (dim - 1):
        raise ValueError(f"head_dim {dim}: a Hadamard matrix needs a power of two")
    matrix = torch.ones(1, 1)
    while matrix.shape[0] < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    return matrix / dim**0.5


@functools.cache
def lloyd_max_levels(bits):
    """The levels of least squared error for a standard normal number, ascending. [2 ** bits]"""
    def density(x):
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def mass(low, high):
        return (math.erf(high / math.sqrt(2)) - math.erf(low / math.sqrt(2))) / 2

    count = 2**bits
    levels = [-3.5 + 7 * (i + 0.5) / count for i in range(count)]
    for _ in range(2000):
        edges = [-12.0, *((a + b) / 2 for a, b in zip(levels, levels[1:])), 12.0]
        levels = [(density(low) - density(high)) / mass(low, high) for low, high in zip(edges, edges[1:])]
    return torch.tensor(levels)


def float16(x):
    return x.to(torch.float16).to(x.dtype)


def float8(x):
    """Rounded to e4m3, saturating."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def float4(x):
    """Rounded to e2m1, ties to even, saturating at 6."""
    levels = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=x.dtype)
    middles = (levels[1:] + levels[:-1]) / 2
    size = x.abs()
    code = torch.bucketize(size.contiguous(), middles)
    tie = size == middles[code.clamp(max=len(middles) - 1)]
    code = code + (tie & (code % 2 == 1))
    return levels[code].copysign(x)


def uniform(x, bits, dim):
    """Integers between the least and the largest number along `dim`, with float16 scale and minimum."""
    low = float16(x.amin(dim, keepdim=True))
    scale = float16((x.amax(dim, keepdim=True) - low) / (2**bits - 1)).clamp(min=6e-8)
    return ((x - low) / scale).round().clamp(0, 2**bits - 1) * scale + low


def by_token(x, size, code):
    """`code` of every `size` neighbouring channels of a token, which may be those of several heads."""
    heads, tokens, head_dim = x.shape
    if (heads * head_dim) % size:
        raise ValueError(f"{heads * head_dim} channels: not a multiple of blocks of {size}")
    blocks = x.transpose(0, 1).reshape(tokens, heads * head_dim // size, size)
    return code(blocks).reshape(tokens, heads, head_dim).transpose(0, 1)


class Cache:
    """Keys after RoPE and values, [num_kv_heads, num_tokens, head_dim] each, stored in fewer bytes."""

    before_rope = False  # store() takes keys as they were before RoPE

    def store(self, keys, values, layer):
        """What attention reads back from a layer's cache."""
        raise NotImplementedError

    def num_bytes(self, shape, num_tokens):
        """Of all layers."""
        raise NotImplementedError

    def pieces(self, begin, end):
        """Tokens that are read in one piece; between two pieces the cache compresses what has left its window."""
        return [(begin, end)]


@dataclasses.dataclass
class Exact(Cache):
    def store(self, keys, values, layer):
        return keys, values

    def num_bytes(self, shape, num_tokens):
        return 4 * shape.num_layers * num_tokens * shape.kv_dim


@dataclasses.dataclass
class TurboQuant(Cache):
    """vLLM's: keys of 8 bits as e4m3, fewer as Lloyd-Max levels of the Hadamard transform of the normed key, which is
    normed again when it is read; uniform values with a scale per token and head. `protected`: the first and last two
    layers stay as they are, which is vLLM's default for models whose layers are all attention."""

    key_bits: int
    value_bits: int
    shape: Shape = None
    protected: bool = False

    def is_plain(self, layer, num_layers):
        edge = min(2, num_layers // 2) if self.protected else 0
        return layer < edge or layer >= num_layers - edge

    def store(self, keys, values, layer):
        if self.protected and self.is_plain(layer, self.shape.num_layers):
            return float16(keys), float16(values)
        return self.store_keys(keys), self.store_values(values)

    def store_keys(self, keys):
        if self.key_bits == 8:
            return float8(keys)
        norm = keys.norm(dim=-1, keepdim=True)
        transform = hadamard(keys.shape[-1])
        levels = lloyd_max_levels(self.key_bits) / keys.shape[-1] ** 0.5
        codes = torch.bucketize((keys / (norm + 1e-8)) @ transform, (levels[1:] + levels[:-1]) / 2, right=True)
        read = levels[codes]
        read = read / (read.square().sum(-1, keepdim=True) + 1e-16).sqrt()
        return float16(norm) * read @ transform

    def store_values(self, values):
        low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
        scale = ((high - low) / (2**self.value_bits - 1)).clamp(min=1e-8)
        codes = ((values - low) / scale + 0.5).floor().clamp(0, 2**self.value_bits - 1)
        return codes * float16(scale) + float16(low)

    def num_bytes(self, shape, num_tokens):
        key = shape.head_dim if self.key_bits == 8 else math.ceil(shape.head_dim * self.key_bits / 8) + 2
        slot = key + math.ceil(shape.head_dim * self.value_bits / 8) + 4
        slot += slot % 2
        plain = sum(self.is_plain(layer, shape.num_layers) for layer in range(shape.num_layers))
        return num_tokens * shape.num_kv_heads * ((shape.num_layers - plain) * slot + plain * 4 * shape.head_dim)


@dataclasses.dataclass
class Kivi(Cache):
    """arXiv 2402.02750: a key's scale is that of 32 tokens of one channel, a value's that of 32 channels of one token.
    The last `window` values stay exact, and the keys behind the last whole window (0: the last 32)."""

    bits: int
    window: int = GROUP

    def coded(self, num_tokens):
        """How many keys and how many values."""
        return num_tokens - num_tokens % (self.window or GROUP), max(0, num_tokens - self.window)

    def store(self, keys, values, layer):
        num_keys, num_values = self.coded(keys.shape[1])
        groups = keys[:, :num_keys].unflatten(1, (num_keys // GROUP, GROUP))
        coded_keys = uniform(groups, self.bits, 2).flatten(1, 2)
        coded_values = by_token(values[:, :num_values], GROUP, lambda x: uniform(x, self.bits, -1))
        return (torch.cat([coded_keys, float16(keys[:, num_keys:])], 1),
                torch.cat([coded_values, float16(values[:, num_values:])], 1))

    def num_bytes(self, shape, num_tokens):
        coded = sum(self.coded(num_tokens)) * shape.kv_dim
        return shape.num_layers * (coded * self.bits // 8 + coded // GROUP * 4 + (2 * num_tokens * shape.kv_dim - coded) * 2)


@dataclasses.dataclass
class Float4(Cache):
    """e2m1 numbers in blocks of neighbouring channels of a token; keys after a Hadamard transform. nvfp4: blocks of 16
    with an e4m3 scale, times one float32 scale of the layer's keys or values; mxfp4: blocks of 32, powers of two."""

    kind: str

    def store(self, keys, values, layer):
        transform = hadamard(keys.shape[-1])
        code = self.nvfp4 if self.kind == "nvfp4" else self.mxfp4
        return code(keys @ transform) @ transform, code(values)

    @staticmethod
    def nvfp4(x):
        whole = (x.abs().amax() / (6 * 448)).clamp(min=1e-30)

        def code(blocks):
            scale = whole * float8(blocks.abs().amax(-1, keepdim=True) / (6 * whole))
            return torch.where(scale > 0, float4(blocks / scale.clamp(min=1e-30)) * scale, 0)

        return by_token(x, 16, code)

    @staticmethod
    def mxfp4(x):
        def code(blocks):
            scale = torch.exp2(blocks.abs().amax(-1, keepdim=True).clamp(min=2.0**-120).log2().floor() - 2)
            return float4(blocks / scale) * scale

        return by_token(x, 32, code)

    def num_bytes(self, shape, num_tokens):
        blocks = 2 * shape.kv_dim // (16 if self.kind == "nvfp4" else 32)
        return shape.num_layers * num_tokens * (shape.kv_dim + blocks)


@dataclasses.dataclass
class KvrunInteger(Cache):
    """kvrun --kv-dtype int8 or int4 with its window of 128 tokens behind the first 4: only for comparing this program
    with kvvalidate."""

    bits: int
    before_rope = True

    @staticmethod
    def coded(num_tokens):
        return max(0, (num_tokens - 4 - 128) // GROUP * GROUP)

    def store(self, keys, values, layer):
        first, last = 4, 4 + self.coded(keys.shape[1])
        keys, values = float16(keys), float16(values)
        if last > first:
            keys[:, first:last] = uniform(keys[:, first:last].unflatten(1, (-1, GROUP)), self.bits, 2).flatten(1, 2)
            size = math.gcd(GROUP, keys.shape[2])
            values[:, first:last] = uniform(values[:, first:last].unflatten(2, (-1, size)), self.bits, -1).flatten(2, 3)
        return keys, values

    def num_bytes(self, shape, num_tokens):
        coded = self.coded(num_tokens) * shape.kv_dim * 2
        return shape.num_layers * (coded * self.bits // 8 + coded // GROUP * 4 + (2 * num_tokens * shape.kv_dim - coded) * 2)

    def pieces(self, begin, end):
        cuts = [at for at in range(begin + 1, end) if self.coded(at) != self.coded(at - 1)]
        return list(zip([begin, *cuts], [*cuts, end]))


TURBOQUANT = {"k8v4": (8, 4), "4bit": (4, 4), "k3v4": (3, 4), "3bit": (3, 3)}
CACHES = {
    "exact": lambda shape: Exact(),
    **{f"turboquant {name}": lambda shape, bits=bits: TurboQuant(*bits, shape) for name, bits in TURBOQUANT.items()},
    **{f"turboquant {name}, protected layers": lambda shape, bits=bits: TurboQuant(*bits, shape, True)
       for name, bits in TURBOQUANT.items()},
    "kivi int4": lambda shape: Kivi(4),
    "kivi int2": lambda shape: Kivi(2),
    "kivi int4, no window": lambda shape: Kivi(4, 0),
    "kivi int2, no window": lambda shape: Kivi(2, 0),
    "nvfp4": lambda shape: Float4("nvfp4"),
    "mxfp4": lambda shape: Float4("mxfp4"),
    "kvrun int8": lambda shape: KvrunInteger(8),
    "kvrun int4": lambda shape: KvrunInteger(4),
}
