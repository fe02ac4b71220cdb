#!/usr/bin/env python3
"""Scores other scalar quantisers of coded coefficients, at the bits and the basis of a conversion.

measure_quantisers.py CHECKPOINT CONVERTED [--text HELDOUT] [--calibration TEXT] [--quantisers uniform "lloyd-max" ...] [--json]

CONVERTED is a `coded` conversion of CHECKPOINT before RoPE (`--form full`, `keys`, `blocks` or `pairs`) without sinks and
window, and without gains. Its bases, means and bits stay; keys and values are coded by torch with

  uniform           what kvconvert writes: evenly spaced levels, a step per coefficient
  lloyd-max         one table of levels per width for all coefficients, scaled by each coefficient's deviation
  lloyd-max, own    a table of levels per coefficient
  dead zone         an odd number of even levels with 0 among them, and the best step and zone
  polar             two coefficients of a rotary pair as angle and length, with their bits together (form `pairs`)
  exact             no rounding: what the dropped coefficients alone leave

Tables and steps are fitted to the calibration text. `entropy` prints what an ideal entropy coder would take of the codes of
`uniform`, by width. Scores are those of measure_engine_caches.py, block by block.
"""

import argparse
import json
import math
import pathlib
import sys

import torch

from engine_caches import Cache
from measure_engine_caches import TEXTS, Scorer, compare, rows_of, turned

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

SHARE_OF_FIRST = 16  # of a row; its first token counts as much among the samples, as in kvconvert
QUANTISERS = ["uniform", "lloyd-max", "lloyd-max, own", "dead zone", "polar", "exact"]


def nearest(x, levels):
    """Of ascending levels [..., L] the nearest ones to x [..., n]."""
    middles = (levels[..., 1:] + levels[..., :-1]) / 2
    return levels.gather(-1, torch.searchsorted(middles.contiguous(), x.contiguous()))


def lloyd_max(x, bits, rounds=60):
    """Levels of least squared error for samples x [rows, n]. [rows, 2 ** bits], ascending"""
    count = 2**bits
    levels = x.quantile((torch.arange(count) + 0.5) / count, dim=1).t().contiguous()
    for _ in range(rounds):
        middles = ((levels[:, 1:] + levels[:, :-1]) / 2).contiguous()
        codes = torch.searchsorted(middles, x.contiguous())
        sums = torch.zeros_like(levels).scatter_add(1, codes, x)
        counts = torch.zeros_like(levels).scatter_add(1, codes, torch.ones_like(x))
        levels = torch.where(counts > 0, sums / counts.clamp(min=1), levels).sort(1).values
    return levels


class Uniform:
    """Levels (i + 1/2) step, as kvrun has them."""

    def __init__(self, z, bits, steps):
        self.bits, self.steps = bits, steps[:, None]

    def codes(self, z):
        half = 2 ** (self.bits - 1)
        return (z / self.steps).floor().clamp(-half, half - 1)

    def __call__(self, z):
        return (self.codes(z) + 0.5) * self.steps


class LloydMax:
    def __init__(self, z, bits, steps, own):
        self.scale = z.std(1, keepdim=True)
        normed = z / self.scale
        if not own:  # the first 100,000 samples of all coefficients of this width
            normed = normed.t().reshape(1, -1)[:, :100_000]
        self.levels = lloyd_max(normed, bits)

    def __call__(self, z):
        return nearest(z / self.scale, self.levels.expand(z.shape[0], -1)) * self.scale


class DeadZone:
    """Level 0 takes |z| < zone step; the others are step apart."""

    def __init__(self, z, bits, steps):
        self.most = 2 ** (bits - 1) - 1  # levels on each side
        self.steps, self.zone = steps[:, None], 0.5
        if self.most == 0:  # of one bit there are two levels, none of them 0
            self.plain = Uniform(z, bits, steps)
            return
        best = torch.full((z.shape[0], 1), math.inf)
        chosen, zones = self.steps.clone(), torch.full_like(self.steps, 0.5)
        for zone in (0.5, 0.6, 0.7, 0.8):
            for factor in [0.7 * 1.1**i for i in range(16)]:
                self.steps, self.zone = steps[:, None] * factor, zone
                error = (self(z) - z).square().mean(1, keepdim=True)
                better = error < best
                best = torch.where(better, error, best)
                chosen, zones = torch.where(better, self.steps, chosen), torch.where(better, zone, zones)
        self.steps, self.zone = chosen, zones

    def __call__(self, z):
        if self.most == 0:
            return self.plain(z)
        size = z.abs() / self.steps
        code = (size + 0.5).floor().clamp(1, self.most)
        return torch.where(size < self.zone, 0, code * self.steps).copysign(z)


class Polar:
    """Angle and length of two neighbouring coefficients, each scaled by its deviation; 2 ** (sum of their bits) points."""

    def __init__(self, z, bits, steps):  # z [2 pairs, n], bits of each pair together
        self.scale = z.std(1, keepdim=True)
        x, y = (z / self.scale).unflatten(0, (-1, 2)).unbind(1)
        length = (x * x + y * y).sqrt()
        best = math.inf
        for angle_bits in range(1, bits + 1):
            levels = lloyd_max(length.reshape(1, -1)[:, :100_000], bits - angle_bits)
            self.angles, self.levels = 2**angle_bits, levels
            error = (self(z) - z).div(self.scale).square().mean().item()
            if error < best:
                best, chosen = error, (self.angles, levels)
        self.angles, self.levels = chosen

    def __call__(self, z):
        x, y = (z / self.scale).unflatten(0, (-1, 2)).unbind(1)
        step = 2 * math.pi / self.angles
        angle = ((torch.atan2(y, x) / step).floor() + 0.5) * step
        length = nearest((x * x + y * y).sqrt(), self.levels.expand(x.shape[0], -1))
        return torch.stack([length * angle.cos(), length * angle.sin()], 1).flatten(0, 1) * self.scale


class CodedBlock:
    """A block of a conversion: where its channels lie, its factors, and which coefficients have how many bits."""

    def __init__(self, checkpoint, block, num_pairs):
        from kvconvert.factors import load_factors

        self.block = block
        self.factors = load_factors(checkpoint.files, block, checkpoint.num_kv_heads, checkpoint.head_dim, num_pairs,
                                    checkpoint.codes_first)
        widths = [bits for bits in range(8, 0, -1) for _ in range(block.coefficients[bits])]
        self.widths = torch.tensor(widths, dtype=torch.long)
        self.heads = slice(None) if block.head is None else slice(block.head, block.head + 1)
        self.quantisers = []

    def parts(self, layers):
        """The keys or values, or both, of the block's layers and heads, as views. Each [heads, tokens, head_dim]"""
        own = layers[self.block.first_layer:self.block.first_layer + self.block.num_layers]
        which = {"both": (0, 1), "keys": (0,), "values": (1,)}[self.block.part]
        return [layer[i][self.heads] for layer in own for i in which]

    def coefficients(self, layers):
        """[k, tokens]"""
        y = torch.cat([part.transpose(0, 1).flatten(1) for part in self.parts(layers)], 1)
        mean = self.factors.mean.expand_as(y)
        if self.factors.first.numel():
            mean = torch.cat([self.factors.first[None], mean[1:]])
        return (self.factors.encoder @ (y - mean).t()), mean

    def groups(self, kind):
        """[(indices of coefficients, bits)] that one quantiser codes."""
        if kind != "polar":
            return [((self.widths == bits).nonzero()[:, 0], bits) for bits in self.widths.unique().tolist()]
        basis = self.factors.encoder.abs() > 0
        pairs = {}
        for i, row in enumerate(basis):
            pairs.setdefault(tuple(row.nonzero()[:, 0].tolist()), []).append(i)
        groups = {}
        for members in pairs.values():
            if len(members) == 2 and self.block.bases > 1:
                groups.setdefault(int(self.widths[members].sum()), []).extend(members)
        alone = [i for members in pairs.values() if len(members) != 2 or self.block.bases == 1 for i in members]
        groups = [(torch.tensor(members), bits) for bits, members in groups.items()]
        return groups + [(torch.tensor([i]), -int(self.widths[i])) for i in alone]

    def fit(self, kind, samples):
        """Fits quantisers to samples [k, n]."""
        make = {"uniform": Uniform, "dead zone": DeadZone, "polar": Polar,
                "lloyd-max": lambda *a: LloydMax(*a, False), "lloyd-max, own": lambda *a: LloydMax(*a, True)}
        self.quantisers = []
        for index, bits in self.groups(kind) if kind != "exact" else []:
            made = Uniform if bits < 0 else make[kind]
            self.quantisers.append((index, made(samples[index], abs(bits), self.factors.steps[index])))

    def write(self, layers):
        """Overwrites the block's keys and values with what codes give."""
        z, mean = self.coefficients(layers)
        for index, quantiser in self.quantisers:
            z[index] = quantiser(z[index])
        y = (self.factors.decoder @ z).t() + mean
        for part, columns in zip(self.parts(layers), y.split([p.shape[0] * p.shape[2] for p in self.parts(layers)], 1)):
            part.copy_(columns.unflatten(1, (part.shape[0], part.shape[2])).transpose(0, 1))


class Coded(Cache):
    """Keys before RoPE and values of all layers, through the blocks of a conversion."""

    before_rope = True

    def __init__(self, blocks, tile_bytes):
        self.blocks, self.tile_bytes = blocks, tile_bytes

    def store_all(self, layers):
        layers = [(keys.clone(), values.clone()) for keys, values in layers]
        for block in self.blocks:
            block.write(layers)
        return layers

    def num_bytes(self, shape, num_tokens):
        return num_tokens * self.tile_bytes / 32


class CodedScorer(Scorer):
    def stored(self, cache, layers):
        cosine, sine = self.angles(layers)
        read = cache.store_all([(turned(keys, cosine, -sine), values) for keys, values in layers])
        return [(turned(keys, cosine, sine), values) for keys, values in read]

    def angles(self, layers):
        return self.model.model.rotary_emb(layers[0][0], torch.arange(layers[0][0].shape[1])[None])


def samples_of(scorer, blocks, rows):
    """Coefficients of all tokens of the rows, for every block. [k, tokens]"""
    parts = [[] for _ in blocks]
    for row in rows:
        layers = scorer.run(row)[1]
        cosine, sine = scorer.angles(layers)
        layers = [(turned(keys, cosine, -sine), values) for keys, values in layers]
        for i, block in enumerate(blocks):
            z = block.coefficients(layers)[0]
            parts[i] += [z, z[:, :1].expand(-1, z.shape[1] // SHARE_OF_FIRST)]
    return [torch.cat(part, 1) for part in parts]


def print_entropy(blocks, samples):
    """Mean entropy of the codes of every width, over coefficients."""
    by_width = {}
    for block, z in zip(blocks, samples):
        for index, quantiser in block.quantisers:
            codes = quantiser.codes(z[index]).long()
            for row in codes:
                share = torch.bincount(row - row.min()).double() / len(row)
                share = share[share > 0]
                by_width.setdefault(quantiser.bits, []).append(-(share * share.log2()).sum().item())
    total = sum(bits * len(values) for bits, values in by_width.items())
    ideal = sum(sum(values) for values in by_width.values())
    print("entropy: " + ", ".join(f"{bits} bits {sum(v) / len(v):.2f}" for bits, v in sorted(by_width.items()))
          + f"; all {ideal / total:.3f} of the bits")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=pathlib.Path)
    parser.add_argument("converted", type=pathlib.Path)
    parser.add_argument("--quantisers", nargs="+", choices=QUANTISERS, default=[q for q in QUANTISERS if q != "polar"])
    parser.add_argument("--text", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_heldout.txt"])
    parser.add_argument("--calibration", type=pathlib.Path, nargs="+", default=[TEXTS / "tinystories_calibration.txt"])
    parser.add_argument("--num-sequences", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--block", type=int, default=64, help="tokens that are scored together")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    from kvconvert.codes import CodedCheckpoint
    from tokenizers import Tokenizer

    converted = CodedCheckpoint(options.converted)
    if any(block.rotated or block.gain for block in converted.blocks):
        parser.error(f"{options.converted}: has rotated codes or gains; convert with --form full, keys, blocks or pairs and --gain off")
    tokenizer = Tokenizer.from_file(str(options.checkpoint / "tokenizer.json"))
    scorer = CodedScorer(options.checkpoint)
    blocks = [CodedBlock(converted, block, converted.head_dim // 2) for block in converted.blocks]
    rows = rows_of(tokenizer, options.text, options.seq_len, options.num_sequences)
    samples = samples_of(scorer, blocks, rows_of(tokenizer, options.calibration, options.seq_len, 20))
    cache = Coded(blocks, sum(block.tile_bytes for block in converted.blocks))
    results = {}
    for kind in options.quantisers:
        for block, z in zip(blocks, samples):
            block.fit(kind, z)
        result = results[kind] = compare(scorer, cache, rows, options.block)
        if kind == "uniform" and not options.json:
            print_entropy(blocks, samples)
        if not options.json:
            print(f"{kind:16} {result['kept_ratio']:.4f}  KLD x 1000 {1000 * result['kld']:9.4g} ± "
                  f"{1000 * (result['kld_error'] or 0):.2g}  same top {100 * result['same_top']:.1f} %", flush=True)
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
