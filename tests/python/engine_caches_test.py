#!/usr/bin/env python3
"""Caches of other engines: numbers that can be redone by hand, their bytes, and the setting in which they are scored."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import torch

ROOT = pathlib.Path(os.environ.get("KVC_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "bench"))

import engine_caches as engines  # noqa: E402
import kvquant  # noqa: E402
import recall_facts  # noqa: E402

HEADS_OF_128 = engines.Shape(num_layers=8, num_kv_heads=2, head_dim=128)


def random_rows(*size, seed=0):
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


def share_lost(read, original):
    return ((read - original).square().sum() / original.square().sum()).item()


class Facts(unittest.TestCase):
    def test_all_have_the_words_of_the_training(self):
        for path in ("training/train_reference_model.py", "validate/tasks/recall.cpp"):
            words = re.findall("[a-z]+", (ROOT / path).read_text(encoding="utf-8"))
            for facts in (recall_facts.COLOURS, recall_facts.THINGS):
                first = words.index(facts[1]) - 1  # the second word occurs nowhere before
                self.assertEqual(words[first:first + len(facts)], facts, path)


class Numbers(unittest.TestCase):
    def test_a_hadamard_transform_is_its_own_inverse(self):
        self.assertTrue(torch.equal(engines.hadamard(2), torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5))
        torch.testing.assert_close(engines.hadamard(32) @ engines.hadamard(32), torch.eye(32))
        with self.assertRaisesRegex(ValueError, "head_dim 96"):
            engines.hadamard(96)

    def test_levels_are_those_of_the_literature(self):
        # Max, 1960: a normal number in 8 levels.
        expected = torch.tensor([0.2451, 0.7560, 1.3439, 2.1520])
        torch.testing.assert_close(engines.lloyd_max_levels(3)[4:], expected, atol=2e-4, rtol=0)
        self.assertAlmostEqual(engines.lloyd_max_levels(4)[-1].item(), 2.7326, delta=2e-3)

    def test_four_bit_floats_round_to_the_nearest_with_ties_to_even(self):
        numbers = torch.tensor([0.0, 0.25, 0.3, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 5.1, 100.0, -2.4])
        expected = torch.tensor([0.0, 0.0, 0.5, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, -2.0])
        self.assertTrue(torch.equal(engines.float4(numbers), expected))

    def test_uniform_codes_keep_the_ends(self):
        read = engines.uniform(torch.tensor([[-1.0, -0.4, 0.3, 2.0]]), 2, -1)
        self.assertTrue(torch.equal(read, torch.tensor([[-1.0, 0.0, 0.0, 2.0]])))


class Stored(unittest.TestCase):
    def test_turboquant_keeps_norms(self):
        keys = random_rows(2, 5, 128) * torch.linspace(0.1, 50, 5)[:, None]
        for name in ("turboquant 4bit", "turboquant k3v4"):
            read, _ = engines.CACHES[name](HEADS_OF_128).store(keys, keys, 4)
            torch.testing.assert_close(read.norm(dim=-1), keys.norm(dim=-1), rtol=1e-3, atol=0)

    def test_turboquant_loses_what_the_levels_of_a_normal_number_lose(self):
        keys = random_rows(2, 200, 128)
        # Max, 1960: 0.009497 and 0.03454 of the variance; norms that are kept change it little.
        for name, lost in (("turboquant 4bit", 0.0095), ("turboquant 3bit", 0.0345)):
            read, _ = engines.CACHES[name](HEADS_OF_128).store(keys, keys, 4)
            self.assertAlmostEqual(share_lost(read, keys) / lost, 1, delta=0.1)

    def test_protected_layers_stay(self):
        keys = random_rows(2, 3, 128)
        cache = engines.CACHES["turboquant 3bit, protected layers"](HEADS_OF_128)
        for layer in range(8):
            read, values = cache.store(keys, keys, layer)
            self.assertEqual(share_lost(read, keys) < 1e-6 and share_lost(values, keys) < 1e-6, layer in (0, 1, 6, 7))

    def test_kivi_shares_key_scales_over_tokens(self):
        keys = torch.ones(1, 70, 32) * torch.arange(32.0)  # every channel has one number
        values = random_rows(1, 70, 32)
        read, stored = engines.Kivi(2).store(keys, values, 0)
        self.assertTrue(torch.equal(read, keys))
        self.assertGreater(share_lost(stored[:, :38], values[:, :38]), 1e-3)
        self.assertTrue(torch.equal(stored[:, 38:], values[:, 38:].half().float()))

    def test_kivi_with_nothing_to_code(self):
        keys = random_rows(2, 20, 32)
        read, stored = engines.Kivi(4).store(keys, keys, 0)
        self.assertTrue(torch.equal(read, keys.half().float()))
        self.assertTrue(torch.equal(stored, keys.half().float()))

    def test_block_floats_are_exact_on_their_own_numbers(self):
        block = torch.tensor([0.0, 0.5, -1.0, 1.5, 2.0, -3.0, 4.0, 6.0])
        values = block.repeat(2, 3, 4) * torch.tensor([1.0, 0.25, 64.0])[:, None]  # [2, 3, 32]
        for name in ("nvfp4", "mxfp4"):
            _, read = engines.CACHES[name](engines.Shape(1, 2, 32)).store(values, values, 0)
            torch.testing.assert_close(read, values)

    def test_block_floats_survive_zeros(self):
        for name in ("nvfp4", "mxfp4"):
            read, _ = engines.CACHES[name](engines.Shape(1, 2, 32)).store(torch.zeros(2, 3, 32), torch.zeros(2, 3, 32), 0)
            self.assertTrue(torch.equal(read, torch.zeros(2, 3, 32)))

    def test_blocks_span_narrow_heads(self):
        values = random_rows(4, 3, 8)
        _, read = engines.CACHES["mxfp4"](engines.Shape(1, 4, 8)).store(values, values, 0)
        self.assertLess(share_lost(read, values), 0.03)


class CalibratedLevels(unittest.TestCase):
    """kvquant.py"""

    @staticmethod
    def cache(bits, weights=None, tokens=400):
        numbers = random_rows(tokens, 256)
        weights = torch.ones_like(numbers) if weights is None else weights
        return kvquant.KvQuant(bits, [kvquant.LayerCalibration(numbers, numbers, weights, weights)])

    def test_k_means_finds_clusters(self):
        numbers = torch.cat([torch.full((50,), at) + 1e-3 * random_rows(50, seed=i) for i, at in enumerate((0.1, 0.2, 0.7, 0.9))])
        torch.testing.assert_close(kvquant.weighted_levels(numbers, torch.ones(200), 2), torch.tensor([0.1, 0.2, 0.7, 0.9]),
                                   atol=1e-3, rtol=0)

    def test_weights_draw_levels(self):
        numbers = torch.linspace(0, 1, 1001)
        levels = kvquant.weighted_levels(numbers, torch.where(numbers > 0.9, 1e4, 1.0), 2)
        self.assertGreaterEqual((levels > 0.9).sum(), 3)
        # A mean of its numbers: the last level's.
        self.assertAlmostEqual(levels[-1].item(), numbers[numbers > (levels[-1] + levels[-2]) / 2].mean().item(), delta=1e-3)

    def test_outliers_and_the_first_token_stay(self):
        cache = self.cache(4)
        keys, values = random_rows(2, 50, 128, seed=1), random_rows(2, 50, 128, seed=2)
        keys[1, 7, 3], values[0, 9, 5] = 40, -40
        read, stored = cache.store(keys, values, 0)
        self.assertEqual((read[1, 7, 3], stored[0, 9, 5]), (40, -40))
        for before, after in ((keys, read), (values, stored)):
            self.assertTrue(torch.equal(after[:, 0], before[:, 0].half().float()))
            self.assertGreater((after[:, 1:] != before[:, 1:].half().float()).float().mean(), 0.95)
            self.assertLess(share_lost(after, before), 0.01)

    def test_levels_lose_no_more_than_even_ones(self):
        keys = random_rows(2, 200, 128, seed=3)
        low, high = keys.amin(), keys.amax()
        even = ((keys - low) / (high - low) * 7).round() / 7 * (high - low) + low
        read, _ = self.cache(3).store(keys, keys, 0)
        self.assertLess(share_lost(read[:, 1:], keys[:, 1:]), share_lost(even[:, 1:], keys[:, 1:]) / 2)

    def test_bytes_count_outliers_scales_and_the_first_token(self):
        token = 256 * 4 / 8 * 2 + 4 * (2.56 + 2) + 8 + 4
        self.assertAlmostEqual(self.cache(4).num_bytes(HEADS_OF_128, 256), 8 * (255 * token + 4 * 256))


class Bytes(unittest.TestCase):
    def check(self, name, expected, shape=HEADS_OF_128, num_tokens=256):
        full = 4 * shape.num_layers * num_tokens * shape.kv_dim
        self.assertEqual(engines.CACHES[name](shape).num_bytes(shape, num_tokens) / full, expected)

    def test_of_a_token_and_head(self):
        self.check("exact", 1)
        self.check("turboquant k8v4", (128 + 64 + 4) / 512)
        self.check("turboquant 4bit", (64 + 2 + 64 + 4) / 512)
        self.check("turboquant k3v4", (48 + 2 + 64 + 4) / 512)
        self.check("turboquant 3bit", (48 + 2 + 48 + 4) / 512)
        self.check("turboquant 3bit, protected layers", ((48 + 2 + 48 + 4) / 512 + 1) / 2)
        self.check("nvfp4", (4 + 8 / 16) / 16)
        self.check("mxfp4", (4 + 8 / 32) / 16)
        self.check("kivi int4, no window", (4 + 32 / 32) / 16)
        self.check("kivi int2, no window", (2 + 32 / 32) / 16)

    def test_windows_count_in_full(self):
        self.check("kivi int2", ((256 + 224) * 3 / 16 + 32) / 512)
        self.check("kivi int2", ((256 + 238) * 3 / 16 + 14 + 32) / 540, num_tokens=270)


@unittest.skipUnless(importlib.util.find_spec("transformers"), "needs transformers")
class Setting(unittest.TestCase):
    """The reference is kvvalidate, with the cache that both can run."""

    OPTIONS = ("--num-sequences", "4", "--seq-len", "512", "--block", "64")

    @classmethod
    def setUpClass(cls):
        data = ROOT / "tests" / "data"
        cls.checkpoint, cls.text = data / "reference-llama", ("--text", data / "texts" / "tinystories_heldout.txt")
        cls.scores = json.loads(cls.run_program(
            sys.executable, ROOT / "bench" / "measure_engine_caches.py", cls.checkpoint, *cls.OPTIONS, *cls.text, "--json",
            "--recall", "1", "--caches", "exact", "kvrun int4", "turboquant 3bit"))

    @staticmethod
    def run_program(*command):
        return subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True).stdout

    def test_an_exact_cache_changes_nothing(self):
        exact = self.scores["exact"]
        self.assertLess(abs(exact["kld"]), 1e-9)
        self.assertEqual((exact["kept_ratio"], exact["same_top"], exact["recall"]), (1, 1, 1))

    def test_a_coarse_cache_does_not(self):
        self.assertGreater(self.scores["turboquant 3bit"]["kld"], 1e-2)

    def test_an_integer_cache_scores_as_in_kvvalidate(self):
        report = json.loads(self.run_program(
            pathlib.Path(os.environ["KVC_BIN_DIR"]) / "kvvalidate", self.checkpoint, self.checkpoint, *self.OPTIONS, *self.text,
            "--kv-dtype", "int4", "--json", "--quiet"))["continuation"]
        ours = self.scores["kvrun int4"]
        self.assertAlmostEqual(ours["kld"], report["kl_divergence"]["mean"], delta=report["kl_divergence"]["standard_error"])
        self.assertAlmostEqual(ours["kld_error"] / report["kl_divergence"]["standard_error"], 1, delta=0.3)
        self.assertAlmostEqual(ours["same_top"], report["same_top"]["mean"], delta=2e-3)
        self.assertAlmostEqual(ours["perplexity_ratio"], report["perplexity_ratio"], delta=2e-4)


if __name__ == "__main__":
    unittest.main()
