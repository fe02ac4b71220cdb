"""Stores of random factors in pages, for every form of the keys, and what plain torch makes of them."""

import json

import source_tree  # noqa: F401 (first: torch and kvconvert read what it sets)
import torch
from safetensors.torch import save_file

from kvconvert.codes import TILE, CodedCheckpoint
from kvconvert.factors import load_factors

GAINS = torch.tensor([0.5, 0.70710678, 1, 1.41421356, 2, 4, 8, 16])
HEADS, POSITIONS = 2, 2048


def widths_for(count, bits):
    coefficients = [0] * 9
    for i in range(count):
        coefficients[bits[i % len(bits)]] += 1
    return coefficients


def block(first_layer, num_layers, head, part, channels, bases=1, rotated=False, gain=False):
    spec = {"first_layer": first_layer, "num_layers": num_layers, "coefficients": widths_for(channels, (8, 5, 6, 7)), "gain": gain}
    if head is not None:
        spec["head"] = head
    if part != "both":
        spec |= {"part": part, "bases": bases, "rotated": rotated}
    return spec


def plan_of(form, scope, head_dim):
    """Blocks of two layers: (head_dim, form of keys, scope)."""
    blocks = []
    for first in (0,) if scope == "group" else (0, 1):
        count = 2 if scope == "group" else 1
        if form == "full":
            heads = range(HEADS) if scope == "head" else (None,)
            width = head_dim * (1 if scope == "head" else HEADS) * 2 * count
            blocks += [block(first, count, head, "both", width - 3, gain=head == 1) for head in heads]
            continue
        bases = {"keys": 1, "blocks": 4, "pairs": head_dim // 2, "rotated": head_dim // 2}[form]
        blocks += [block(first, 1, head, "keys", head_dim, bases, form == "rotated", gain=head == 0) for head in range(HEADS)]
        if scope == "head":
            blocks += [block(first, 1, head, "values", head_dim - 5) for head in range(HEADS)]
        else:
            blocks.append(block(first, 1, None, "values", head_dim * HEADS - 5, gain=True))
    layers = ["coded"] * 2
    return {"method": "coded", "num_kv_heads": HEADS, "head_dim": head_dim, "key_norm": False, "layers": layers, "groups": [],
            "coded": blocks, "policy": {"sink_tokens": 0, "window_tokens": 0, "prefill": "coded"}}


def write(directory, plan, num_pairs, change=None):
    """A directory with random factors: orthogonal within every basis, times a scale for each channel."""
    random = torch.Generator().manual_seed(1)
    tensors = {}
    for index, spec in enumerate(plan["coded"]):
        prefix, k, bases = f"kvconvert.coded.{index}.", sum(spec["coefficients"]), spec.get("bases", 1)
        heads = 1 if "head" in spec else HEADS
        n = spec["num_layers"] * (2 if spec.get("part", "both") == "both" else 1) * heads * plan["head_dim"]
        width = n // bases
        square = torch.linalg.qr(torch.randn(bases, width, width, generator=random)).Q
        basis = torch.arange(k) % bases
        row = torch.arange(k) // bases
        if spec.get("rotated"):
            square = torch.eye(width).expand(bases, width, width)
        columns = square[basis, row] if bases > 1 else square[0, :k]  # [k, width]
        scale = 0.5 + torch.rand(width, generator=random)
        tensors[prefix + "encoder"], tensors[prefix + "decoder"] = (columns / scale).contiguous(), (columns * scale).t().contiguous()
        tensors[prefix + "mean"], tensors[prefix + "first"] = torch.randn(n, generator=random), 3 * torch.randn(n, generator=random)
        bits = torch.tensor([b for b in range(8, 0, -1) for _ in range(spec["coefficients"][b])])
        tensors[prefix + "steps"] = 6.0 / 2.0**bits
        if bases > 1:
            tensors[prefix + "basis"] = basis.float()
    if change is not None:
        change(tensors, plan)
    save_file(tensors, str(directory / "model.safetensors"))
    (directory / "config.json").write_text(json.dumps({"model_type": "kvconvert_llama", "kvconvert": {"format": 1, "plan": plan}}))


def angles(num_pairs, factor=1.0):
    angle = torch.arange(POSITIONS)[:, None].double() * 10000.0 ** (-torch.arange(num_pairs).double() / max(num_pairs, 1))
    return (angle.cos() * factor).float(), (angle.sin() * factor).float()


def turn(rows, rope, positions):
    """RoPE of [T, heads, head_dim]."""
    cos, sin = (part[positions][:, None] for part in rope)
    pairs = cos.shape[-1]
    a, b, rest = rows[..., :pairs], rows[..., pairs:2 * pairs], rows[..., 2 * pairs:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


def quantised(spec, z, steps):
    """Values of the codes of coefficients [T, k]."""
    bits = torch.tensor([b for b in range(8, 0, -1) for _ in range(spec.coefficients[b])])
    low = -(2.0 ** (bits - 1))
    best, least = None, torch.full(z.shape[:1], torch.inf)
    for gain in GAINS if spec.gain else GAINS[2:3]:
        step = steps * gain
        read = (torch.minimum(torch.maximum((z / step).floor(), low), -low - 1) + 0.5) * step
        error = (read - z).square().sum(1)
        best = read if best is None else torch.where((error < least)[:, None], read, best)
        least = torch.minimum(error, least)
    return best


class Case:
    """A store of a written directory, with its pages and random keys and values."""

    def __init__(self, directory, form, scope, head_dim=32, num_pairs=None, tokens=100, factor=1.0, **options):
        self.pairs = head_dim // 2 if num_pairs is None else num_pairs
        self.tokens, self.page_tiles = tokens, 2
        write(directory, plan_of(form, scope, head_dim), self.pairs)
        self.checkpoint = CodedCheckpoint(directory)
        self.layers = self.checkpoint.stores[-1]
        self.rope = angles(self.pairs, factor)
        self.num_heads = options.pop("num_query_heads", 6)
        self.codes = self.checkpoint.open(self.layers, self.rope if self.pairs else None, num_query_heads=self.num_heads, **options)
        random = torch.Generator().manual_seed(2)
        size = (tokens, HEADS, head_dim)
        self.keys = [torch.randn(size, generator=random) for _ in self.layers]
        self.values = [torch.randn(size, generator=random) for _ in self.layers]
        self.positions = torch.arange(tokens)
        self.table = torch.tensor([[5, 1, 4, 0, 2, 3] + list(range(6, 40))], dtype=torch.int32)
        page_tokens = self.page_tiles * TILE
        self.slots = self.table[0].long()[self.positions // page_tokens] * page_tokens + self.positions % page_tokens

    def pages(self):
        size = (40, self.page_tiles * self.codes.tile_bytes)
        return torch.randint(0, 256, size, dtype=torch.uint8, generator=torch.Generator().manual_seed(3))

    def stored(self, parts=None):
        pages = self.pages()
        for part in parts or [range(self.tokens)]:
            part = torch.tensor(list(part))
            self.codes.store(pages, self.slots[part], self.positions[part], [key[part] for key in self.keys],
                             [value[part] for value in self.values])
        return pages

    def expected(self):
        """Keys and values of every layer through codes, by the formulas of docs/methods.md."""
        keys, values = ([torch.zeros_like(rows) for rows in part] for part in (self.keys, self.values))
        for spec in self.checkpoint.store_blocks(self.layers):
            factors = load_factors(self.checkpoint.files, spec, HEADS, self.checkpoint.head_dim, self.pairs, True)
            heads = range(HEADS) if spec.head is None else [spec.head]
            places = [(source, target, layer, head, is_key)
                      for layer in range(spec.num_layers)
                      for source, target, is_key, part in ((self.keys, keys, True, "keys"), (self.values, values, False, "values"))
                      if spec.part in ("both", part) for head in heads]
            columns, turned = [], []
            inverse = (self.rope[0], -self.rope[1])
            size = (self.rope[0][1] ** 2 + self.rope[1][1] ** 2)[:1] if self.pairs else torch.ones(1)
            back = tuple(part / size for part in inverse)
            for source, _, layer, head, is_key in places:
                rows = source[layer][:, head:head + 1]
                columns.append((turn(rows, back, self.positions) if is_key and not spec.rotated else rows)[:, 0])
            mean = factors.mean.repeat(self.tokens, 1)
            mean[0] = factors.first - factors.decoder @ factors.steps / 2
            if spec.rotated:
                mean = turn(mean[:, None], self.rope, self.positions)[:, 0]
            z = (torch.cat(columns, 1) - mean) @ factors.encoder.t()
            y = quantised(spec, z, factors.steps) @ factors.decoder.t() + mean
            for i, (_, target, layer, head, is_key) in enumerate(places):
                rows = y[:, i * self.checkpoint.head_dim:][:, None, :self.checkpoint.head_dim]
                turned = turn(rows, self.rope, self.positions) if is_key and not spec.rotated else rows
                target[layer][:, head] = turned[:, 0]
        return keys, values

    def attention(self, keys, values, query, length, scale, window=0):
        first = max(0, length - window) if window else 0
        group = self.num_heads // HEADS
        keys, values = (rows[first:length].repeat_interleave(group, 1) for rows in (keys, values))
        scores = torch.einsum("hd,nhd->hn", query, keys) * scale
        return torch.einsum("hn,nhd->hd", scores.softmax(-1), values)


FORMS = [("full", "head"), ("full", "layer"), ("full", "group"), ("keys", "head"), ("blocks", "head"), ("pairs", "layer"),
         ("rotated", "head"), ("rotated", "layer")]
