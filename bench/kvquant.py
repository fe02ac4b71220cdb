"""KVQuant (arXiv 2401.18079) as a cache of engine_caches.py: levels that calibration chose, and outliers apart.

Keys are coded before RoPE. A channel's range is that of calibration text without its outliers, the largest and the smallest
half percent. Values are coded token by token: the range of a token is that of its numbers without outliers. Numbers inside a
range become one of 2^bits levels; a layer's keys and its values have a table each, found by k-means of normalised calibration
numbers, weighted with squared gradients. Outliers and the first token stay in 16 bits. The paper's dense-and-sparse storage
counts: 32 bits for each outlier (number and index), a pointer of 32 bits for each token's keys and values, and the scale and
minimum of a token's values in 16 bits each. Tables and ranges of keys count as weights.
"""

import dataclasses

import torch

from engine_caches import Cache, float16

OUTLIERS = 0.01
STEPS = 60  # of k-means


@dataclasses.dataclass
class LayerCalibration:
    """Of one layer: keys before RoPE and values, and the squares of the loss's gradient. [tokens, kv_dim] each"""

    keys: torch.Tensor
    values: torch.Tensor
    key_weights: torch.Tensor
    value_weights: torch.Tensor


def outliers_a_side(kv_dim):
    """Of a token's values; narrow models have at least one."""
    return max(1, round(OUTLIERS / 2 * kv_dim))


def token_range(values):
    """The least and the largest number of each token without its outliers. [tokens, 1] each"""
    ordered = values.sort(dim=1).values
    count = outliers_a_side(values.shape[1])
    return float16(ordered[:, count:count + 1]), float16(ordered[:, -1 - count:ordered.shape[1] - count])


def normalised(x, low, high):
    return (x - low) / (high - low).clamp(min=1e-6)


def weighted_levels(x, weights, bits):
    """k-means of numbers in [0, 1]. Ascending [2^bits]"""
    order = x.argsort()
    x, weights = x[order].double(), weights[order].double() + 1e-12
    mass, moment = weights.cumsum(0), (weights * x).cumsum(0)
    count = 2**bits
    levels = x[torch.searchsorted(mass, (torch.arange(count) + 0.5) / count * mass[-1])]
    for _ in range(STEPS):
        ends = torch.searchsorted(x, (levels[1:] + levels[:-1]) / 2)
        ends = torch.cat([ends, torch.tensor([len(x)])])
        sums = [torch.cat([torch.zeros(1, dtype=x.dtype), part])[ends].diff(prepend=torch.zeros(1, dtype=x.dtype))
                for part in (mass, moment)]
        levels = torch.where(sums[0] > 0, sums[1] / sums[0].clamp(min=1e-30), levels)
    return levels.float().sort().values


class KvQuant(Cache):
    before_rope = True

    def __init__(self, bits, calibration):
        """`calibration`: a LayerCalibration for each layer."""
        self.bits = bits
        self.key_ranges, self.key_levels, self.value_levels = [], [], []
        for layer in calibration:
            low = layer.keys.quantile(OUTLIERS / 2, dim=0)
            high = layer.keys.quantile(1 - OUTLIERS / 2, dim=0)
            self.key_ranges.append((low, high))
            self.key_levels.append(self.levels(layer.keys, layer.key_weights, low, high))
            self.value_levels.append(self.levels(layer.values, layer.value_weights, *token_range(layer.values)))

    def levels(self, x, weights, low, high):
        scaled = normalised(x, low, high)
        inside = (scaled >= 0) & (scaled <= 1)
        return weighted_levels(scaled[inside], weights[inside], self.bits)

    @staticmethod
    def read(x, low, high, levels):
        """[tokens, kv_dim]; the first token stays."""
        scaled = normalised(x, low, high)
        coded = levels[torch.bucketize(scaled, (levels[1:] + levels[:-1]) / 2)] * (high - low).clamp(min=1e-6) + low
        exact = (scaled < 0) | (scaled > 1)
        exact[0] = True
        return torch.where(exact, float16(x), coded)

    def store(self, keys, values, layer):
        heads, tokens, head_dim = keys.shape
        flat = [x.transpose(0, 1).reshape(tokens, heads * head_dim) for x in (keys, values)]
        read = (self.read(flat[0], *self.key_ranges[layer], self.key_levels[layer]),
                self.read(flat[1], *token_range(flat[1]), self.value_levels[layer]))
        return tuple(x.reshape(tokens, heads, head_dim).transpose(0, 1) for x in read)

    def num_bytes(self, shape, num_tokens):
        outliers = OUTLIERS * shape.kv_dim + 2 * outliers_a_side(shape.kv_dim)
        token = 2 * shape.kv_dim * self.bits / 8 + 4 * outliers + 2 * 4 + 2 * 2
        return shape.num_layers * ((num_tokens - 1) * token + 4 * shape.kv_dim)
