#!/usr/bin/env python3
"""docs/format.md against the product: a reader that follows the page alone (format_reader.py) makes the same bytes and logits."""

import json
import unittest

import numpy as np
from conversions import DATA, directory, run
from format_reader import TILE, Directory, Llama, log_softmax, rope
from safetensors.numpy import load_file

import torch
from coded_cases import CodedCheckpoint
from tokenizers import Tokenizer

STORIES = DATA / "stories260K-hf"
TEXTS = DATA / "texts"
TOKENS = 192
# Decoders in 8 bits whose inverse is the encoder, both in 8 bits, and float16 matrices of several bases.
CODED = {"full": ("--scope", "layer", "--kept-ratio", 0.12), "narrow": ("--form", "full", "--scope", "layer", "--kept-ratio", 0.03),
         "heads": ("--form", "full", "--scope", "head", "--kept-ratio", 0.12), "blocks:2": ("--scope", "layer", "--kept-ratio", 0.12),
         "rotated": ("--scope", "head", "--kept-ratio", 0.12)}


def divergence(reference, other):
    return (np.exp(reference) * (reference - other)).sum(1).mean()


class Format(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        text = (TEXTS / "tinystories_heldout.txt").read_text(encoding="utf-8")[:2000]
        cls.ids = Tokenizer.from_file(str(STORIES / "tokenizer.json")).encode(text).ids[:TOKENS]

    def convert(self, name, *arguments):
        out = directory / f"format-{name}".replace(":", "")
        run("kvconvert", STORIES, "--out", out, *arguments, "--num-sequences", 16, "--seq-len", 256, "--no-validate", "--calibration",
            TEXTS / "tinystories_calibration.txt")
        return out

    def converted(self, name):
        form = () if "--form" in CODED[name] else ("--form", name)
        return self.convert(name, "--prefill", "coded", *form, *CODED[name])

    def kvrun_logits(self, out):
        ids, logits = out.with_suffix(".json"), out.with_suffix(".logits")
        ids.write_text(json.dumps(self.ids), encoding="utf-8")
        run("kvrun", out, "--ids", ids, "--logits", logits, "--dtype", "float32", "--max-new-tokens", 0)
        return log_softmax(load_file(logits)["logits"].astype(np.float64))

    def test_codes(self):
        for name in CODED:
            with self.subTest(name=name):
                out = self.converted(name)
                read = Directory(out)
                blocks, model = read.blocks(), Llama(read)
                logits, expected = model.logits(self.ids, blocks=blocks), self.kvrun_logits(out)
                # Decoders of keys are integers in kernels, which moves keys by a few hundredths of what codes lose.
                self.assertLess(divergence(expected, logits), 0.05 * divergence(expected, model.logits(self.ids)))
                self.check_tiles(out, blocks, model)

    def check_tiles(self, out, blocks, model):
        """Compares with the tiles that the operators write, of every store."""
        checkpoint = CodedCheckpoint(out)
        positions = np.arange(TOKENS)
        angle = positions[:, None] * model.theta ** (-np.arange(model.head_dim // 2) / (model.head_dim // 2))
        tables = tuple(torch.from_numpy(part(angle)).float() for part in (np.cos, np.sin))
        different = total = 0
        for layers in checkpoint.stores:
            codes = checkpoint.open(layers, tables, num_query_heads=model.num_heads)
            pages = torch.zeros(TOKENS // TILE, codes.tile_bytes, dtype=torch.uint8)  # a page has one tile of every block
            keys = [torch.from_numpy(np.stack([rope(heads, positions, model.theta) for heads in model.keys[layer].swapaxes(0, 1)],
                                              1)).float() for layer in layers]
            codes.store(pages, torch.arange(TOKENS), torch.arange(TOKENS), keys,
                        [torch.from_numpy(model.values[layer]).float() for layer in layers])
            own = [block for block in blocks if list(block.layers) == layers]
            self.assertEqual(sum(block.tile_bytes() for block in own), codes.tile_bytes)
            coded = [block.encode(model.keys, model.values, model.theta) for block in own]
            for tile in range(TOKENS // TILE):
                rows = slice(tile * TILE, (tile + 1) * TILE)
                packed = b"".join(block.pack(levels[rows], gains[rows]) for block, (levels, gains) in zip(own, coded))
                different += (np.frombuffer(packed, np.uint8) != pages[tile].numpy()).sum()
                total += len(packed)
        self.assertEqual(total, TOKENS // TILE * sum(block.tile_bytes() for block in blocks))
        # Sums in another order move a coefficient on the border of two codes into the other one.
        self.assertLess(different, 0.005 * total)

    def test_latents(self):
        out = self.convert("palu", "--method", "palu", "--rank", 0.5)
        model = Llama(Directory(out))
        np.testing.assert_allclose(model.logits(self.ids, model.latent_rows), self.kvrun_logits(out), atol=2e-3)


if __name__ == "__main__":
    unittest.main()
