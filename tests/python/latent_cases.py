"""What the tests of attention over latents share: random factors, and angles."""

import torch

from kvconvert.latents import LatentGroup


class Checkpoint:
    """Random factors of a group of two layers, with the interface of LatentCheckpoint."""

    def __init__(self, kv_heads, head_dim, key_rank, value_rank, split):
        self.num_kv_heads, self.head_dim = kv_heads, head_dim
        rank = key_rank + value_rank if split else key_rank
        self.group = LatentGroup(0, 0, 2, split, rank, key_rank, value_rank, calibrated=True)
        width = kv_heads * head_dim
        self.pairs = [[(torch.randn(width, key_rank) / key_rank**0.5, torch.randn(width, value_rank) / value_rank**0.5)
                       for _ in range(2)], [(torch.randn(width), torch.randn(width)) for _ in range(2)]]

    def group_of(self, layer):
        return self.group

    def decoders(self, group):
        return self.pairs[0]

    def means(self, group):
        return self.pairs[1]

    def encoders(self, group):
        return [(key.t() / 8, value.t() / 8) for key, value in self.pairs[0]]


def angles(positions, pairs, factor=1.0):
    grid = torch.arange(positions)[:, None] * 500.0 ** (-torch.arange(pairs, dtype=torch.float64) / max(pairs, 1))
    return (grid.cos() * factor).float(), (grid.sin() * factor).float()
