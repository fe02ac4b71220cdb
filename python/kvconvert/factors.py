"""The factors of a converted directory's coded blocks, as float32 tensors (docs/methods.md, method coded)."""

import dataclasses
import hashlib
import pathlib

import torch
from safetensors import safe_open

PARTS = {"both": 0, "keys": 1, "values": 2}
_MOST_PLACES = 1 << 16  # layers, heads, channels of a head: more than any model has, and few enough to count to
MOST_NUMBERS = 1 << 31  # of a latent, or of a block's coefficients
_NUMBERS = (torch.float32, torch.bfloat16, torch.float16)


class ConversionError(ValueError):
    """A directory that is no conversion, or one that cannot be served. Names the file and the way out."""


@dataclasses.dataclass(frozen=True)
class Block:
    """What is coded together: of some layers, the keys and values of one KV head or of all (head is None)."""

    index: int
    first_layer: int
    num_layers: int
    head: int | None
    part: str  # both, keys or values
    bases: int
    rotated: bool
    coefficients: list[int]  # of 0 to 8 bits
    gain: bool

    @property
    def num_coefficients(self) -> int:
        return sum(self.coefficients[1:])

    @property
    def tile_bytes(self) -> int:
        """Bytes of 32 tokens."""
        bits = sum(width * count for width, count in enumerate(self.coefficients))
        return 4 * bits + (32 if self.gain else 0)

    def channels(self, num_kv_heads: int, head_dim: int) -> int:
        heads = num_kv_heads if self.head is None else 1
        return self.num_layers * (2 if self.part == "both" else 1) * heads * head_dim


@dataclasses.dataclass(frozen=True)
class Factors:
    """n channels, k coefficients; float32."""

    encoder: torch.Tensor  # [k, n], rounded as kvrun rounds it
    decoder: torch.Tensor  # [n, k]
    mean: torch.Tensor  # [n]
    steps: torch.Tensor  # [k]
    channels: torch.Tensor  # int32 [n], the channels of the bases one after the other; empty for one basis
    first: torch.Tensor  # [n] of a text's first token; empty where it is coded about the mean, or not at all


def whole_number(name: str, number, least: int = 0, most: int = _MOST_PLACES) -> int:
    """A member of a plan. Raises TypeError where it is no number from `least` on, or a huge one."""
    if type(number) is not int or not least <= number <= most:
        raise TypeError(f"{name} is {number!r}, expected a whole number from {least} to {most}")
    return number


def one_of(name: str, value, known) -> object:
    """A member of a plan that has few values. Raises TypeError for another one."""
    if not any(type(value) is type(each) and value == each for each in known):
        raise TypeError(f"{name} is {value!r}, expected {' or '.join(map(repr, known))}")
    return value


def block_of(index: int, spec: dict) -> Block:
    """Raises AttributeError, KeyError and TypeError for a spec that describes no block."""
    counts = spec["coefficients"]
    if len(counts) != 9 or any(type(count) is not int or not 0 <= count <= MOST_NUMBERS for count in counts) or counts[0] != 0:
        raise TypeError(f"coefficients of block {index}: {counts}, expected nine numbers of at least 0, of which the first is 0")
    return Block(
        index=index,
        first_layer=whole_number("first_layer", spec["first_layer"]),
        num_layers=whole_number("num_layers", spec["num_layers"], 1),
        head=None if spec.get("head") is None else whole_number("head", spec["head"]),
        part=one_of("part", spec.get("part", "both"), tuple(PARTS)),
        bases=whole_number("bases", spec.get("bases", 1), 1),
        rotated=one_of("rotated", spec.get("rotated", False), (False, True)),
        coefficients=list(counts),
        gain=one_of("gain", spec["gain"], (False, True)))


def check_sizes(block: Block, num_kv_heads: int, head_dim: int) -> None:
    """Raises TypeError for a block that no model of these heads has."""
    pairs, apart = head_dim // 2, block.part == "keys" and block.head is not None
    if block.bases != 1 and not (apart and pairs % block.bases == 0):
        raise TypeError(f"block {block.index} has {block.bases} bases, expected 1, or for the keys of one KV head a divisor of {pairs}")
    if block.rotated and not (apart and block.bases == pairs):
        raise TypeError(f"block {block.index} is rotated, expected the keys of one KV head in {pairs} bases")
    channels = block.channels(num_kv_heads, head_dim)
    if block.num_coefficients > channels:
        raise TypeError(f"block {block.index} has {block.num_coefficients} coefficients of {channels} channels")


def open_tensors(directory: pathlib.Path) -> list[tuple[pathlib.Path, safe_open]]:
    """The files of a directory's tensors. Raises ConversionError for one that is none, and where there is no file."""
    files = []
    for path in sorted(directory.glob("*.safetensors")):
        try:
            files.append((path, safe_open(str(path), framework="pt")))
        except Exception as error:
            raise ConversionError(f"{path}: no safetensors file: {error}; export again") from error
    if not files:
        raise ConversionError(f"{directory}: no weights: no *.safetensors there; copy the whole directory, or convert again")
    return files


class TensorFiles:
    """The tensors of a directory, by name."""

    def __init__(self, directory: pathlib.Path):
        self._files = {name: (path, opened) for path, opened in open_tensors(directory) for name in opened.keys()}

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def check(self, stated: str) -> None:
        """Compares SHA-256 over the tensors kvconvert.*: of each its name, a zero byte and its data (core/factor_checksum.h)."""
        found = hashlib.sha256()
        for name in sorted(name for name in self._files if name.startswith("kvconvert.")):
            found.update(name.encode() + b"\0")
            found.update(self._files[name][1].get_tensor(name).contiguous().view(-1).view(torch.uint8).numpy())
        if found.hexdigest() != stated:
            paths = sorted({str(path) for name, (path, _) in self._files.items() if name.startswith("kvconvert.")})
            raise ConversionError(f"{', '.join(paths) or 'no file'}: the tensors kvconvert.* are damaged: SHA-256 {stated} expected, "
                                  f"{found.hexdigest()} found; copy the directory again, or export the conversion again")

    def get(self, name: str, shape: tuple[int | None, ...], dtype: torch.dtype | None = torch.float32) -> torch.Tensor:
        """A tensor of this shape (None: any size) that has finite numbers; dtype None: as stored."""
        if name not in self._files:
            raise ConversionError(f"{name}: no file of the directory has this tensor; export again")
        path, opened = self._files[name]
        tensor = opened.get_tensor(name)
        fits = len(tensor.shape) == len(shape) and all(b is None or a == b for a, b in zip(tensor.shape, shape))
        if not fits:
            raise ConversionError(f"{path}: {name} has shape {tuple(tensor.shape)}, expected {shape}; export again")
        if tensor.dtype not in (_NUMBERS if dtype is not None else (*_NUMBERS, torch.int8)):
            raise ConversionError(f"{path}: {name} is of {tensor.dtype}, expected torch.float32, bfloat16 or float16, and for codes int8; "
                                  "export again")
        if tensor.is_floating_point() and not tensor.isfinite().all():
            raise ConversionError(f"{path}: {name} has a number that is not finite; export again")
        return tensor.clone() if dtype is None else tensor.to(dtype, copy=True)

    def get_matrix(self, name: str, shape: tuple[int, int], axis: int) -> torch.Tensor:
        """A matrix of float32 numbers, or of 8-bit codes with one scale per index of `axis` (model/coefficient_codes.h)."""
        stored = self.get(name, shape, None)
        if stored.dtype != torch.int8:
            return stored.float()
        scale = self.get(name + ".scale", (shape[axis],))
        if (scale <= 0).any():
            raise ConversionError(f"{name}.scale: a scale that is not positive; export again")
        numbers, low = stored.double(), name + ".low"
        if low in self:
            fine = self.get(low, tuple(None if i == axis else size for i, size in enumerate(shape)), None)
            if fine.dtype != torch.int8 or fine.shape[axis] > shape[axis]:
                raise ConversionError(f"{low}: {fine.shape[axis]} coefficients as {fine.dtype}, expected at most {shape[axis]} "
                                      "as torch.int8; export again")
            numbers.narrow(axis, 0, fine.shape[axis]).add_(fine.double() / 256)
        return (numbers * scale.double().unsqueeze(1 - axis)).float()


def basis_channels(bases: int, head_dim: int, num_pairs: int) -> torch.Tensor:
    """Channels of each basis: neighbouring rotary pairs, then channels without RoPE. [bases, head_dim / bases]"""
    pair, rest = torch.arange(num_pairs, device="cpu"), torch.arange(2 * num_pairs, head_dim, device="cpu")
    half = len(rest) // 2
    first, second = torch.cat((pair, rest[:half])), torch.cat((pair + num_pairs, rest[half:]))
    return torch.cat((first.view(bases, -1), second.view(bases, -1)), 1)


def _decode_basis(files: TensorFiles, prefix: str, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """E and F of a basis that is stored as 8-bit codes: F's columns, completed to a square matrix unless 2 k < n."""
    pair = 2 * k < n
    columns = files.get(prefix + "decoder_codes", (n, k if pair else n), None).double()
    low = prefix + "decoder_low"
    if low in files:
        fine = files.get(low, (n, None), None).double()
        if fine.shape[1] > k:
            raise ConversionError(f"{low}: {fine.shape[1]} columns, expected at most {k}; export again")
        columns[:, : fine.shape[1]] += fine / 256
    columns *= files.get(prefix + "decoder_scale", (columns.shape[1],))
    scale = files.get(prefix + "channel_scale", (n,)).double()
    if pair:
        encoder = files.get(prefix + "encoder_codes", (k, n), None).double()
        inverse, info = torch.linalg.solve_ex(encoder @ columns, encoder)
    else:
        inverse, info = torch.linalg.inv_ex(columns)
    encoder = (inverse[:k] / scale).float()
    if info.item() != 0 or not encoder.isfinite().all():
        raise ConversionError(f"{prefix}*: the stored basis has no inverse; export again")
    return encoder, (columns[:, :k] * scale[:, None]).float()


def _join_bases(files: TensorFiles, prefix: str, block: Block, encoder: torch.Tensor, decoder: torch.Tensor,
                channels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Dense E and F of coefficients that have the channels of one basis each."""
    name, n, k = prefix + "basis", channels.numel(), block.num_coefficients
    numbers = files.get(name, (k,))
    basis = numbers.long()
    if (basis != numbers).any() or (basis < 0).any() or (basis >= block.bases).any():
        raise ConversionError(f"{name}: a number that is no basis, expected 0 to {block.bases - 1}; export again")
    if torch.bincount(basis, minlength=block.bases).max() > channels.shape[1]:
        raise ConversionError(f"{name}: a basis of {channels.shape[1]} channels with more coefficients; export again")
    if block.rotated and (decoder != 0).sum(0).max() > 1:
        raise ConversionError(f"{prefix}decoder: a rotated coefficient of two channels, expected of one; export again")
    places = channels[basis]  # [k, width]
    return encoder.new_zeros(k, n).scatter(1, places, encoder), decoder.new_zeros(n, k).scatter(0, places.t().contiguous(), decoder)


def _rounded(encoder: torch.Tensor) -> torch.Tensor:
    """Rounds to float16 where that leaves at most a millionth of squared error in every row and column, as kvrun does: other
    numbers would move coefficients that lie beside a step into the next code."""
    rounded = encoder.half().double()
    error, energy = (rounded - encoder).square(), encoder.double().square()
    holds = rounded.isfinite().all() and all((error.sum(axis) <= 1e-6 * energy.sum(axis)).all() for axis in (0, 1))
    return rounded.float() if holds else encoder


def load_factors(files: TensorFiles, block: Block, num_kv_heads: int, head_dim: int, num_pairs: int,
                 codes_first: bool) -> Factors:
    """A block's factors. num_pairs: rotary pairs of a key, 0 without RoPE. codes_first: the plan codes a text's first
    token about a mean of its own. Raises ConversionError."""
    prefix, k = f"kvconvert.coded.{block.index}.", block.num_coefficients
    n = block.channels(num_kv_heads, head_dim)
    channels = torch.empty(0, 0, dtype=torch.long, device="cpu")
    if block.bases > 1:
        channels = basis_channels(block.bases, head_dim, num_pairs)
    if block.bases == 1 and prefix + "decoder_codes" in files:
        encoder, decoder = _decode_basis(files, prefix, n, k)
    else:
        width = n // block.bases
        encoder, decoder = files.get_matrix(prefix + "encoder", (k, width), 0), files.get_matrix(prefix + "decoder", (width, k), 1)
        if block.bases > 1:
            encoder, decoder = _join_bases(files, prefix, block, encoder, decoder, channels)
    steps = files.get(prefix + "steps", (k,))
    if (steps <= 0).any():
        raise ConversionError(f"{prefix}steps: a step that is not positive; export again")
    first = files.get(prefix + "first", (n,)) if codes_first else steps[:0]
    return Factors(_rounded(encoder).contiguous(), decoder.contiguous(), files.get(prefix + "mean", (n,)), steps,
                   channels.flatten().to(torch.int32), first)
