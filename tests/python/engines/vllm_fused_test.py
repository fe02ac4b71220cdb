#!/usr/bin/env python3
"""vLLM serves fused layers: kvrun's tokens, the plan's bytes, whatever the engine's cuts.

Runs in an environment with vllm and the plugin. Each test starts engines in processes of their own.
"""

import unittest

from vllm_cases import DRAFTS, SETTINGS, Cases, FamilyCases, converted, plan_of
from vllm_serving_test import FOLDER, run

FORCED = ("--force",)  # the reference model's layers are not alike


class Fused(Cases, unittest.TestCase):
    """The layers between the two that are read keep vLLM's own attention."""

    OPTIONS = ("--method", "fusedkv", *FORCED)
    DAMAGED = "kvconvert.fused.6.key"
    CUT_CHANGES_NOTHING = True

    def test_layers_lie_in_one_pipeline_stage(self) -> None:
        split = run(converted(*self.OPTIONS), check=False, pipeline_parallel_size=2, enforce_eager=False)
        self.assertNotEqual(split.returncode, 0)
        self.assertIn("layers 0-11 are stored together and must be in one pipeline stage", split.stdout + split.stderr)

    def test_preemption(self) -> None:
        whole = run(converted(*self.OPTIONS), "long", **SETTINGS)
        short = run(converted(*self.OPTIONS), "long", kv_cache_memory_bytes=6 << 20)
        self.assertGreater(short["preemptions"], 0)
        self.assertEqual(short["long"], whole["long"])

    def test_compiled(self) -> None:
        self.assertGreaterEqual(self.equal_texts(enforce_eager=False), 11)

    def test_drafts_change_nothing(self) -> None:
        self.assertEqual(self.equal_texts(speculative_config=DRAFTS), 12)

    def test_tensor_parallel(self) -> None:
        """Sums over ranks have another order."""
        self.assertGreaterEqual(self.equal_texts(tensor_parallel_size=2), 11)


class Searched(Cases, unittest.TestCase):
    """Rows that no kernel sums in place: factors of pairs of channels, and other heads of the sources."""

    OPTIONS = ("--method", "fusedkv", "--pair", "complex", "--sources", "search", "--head-map", "search", *FORCED)
    CUT_CHANGES_NOTHING = True
    test_bfloat16 = test_damaged_factors = None

    def test_a_rank_has_not_all_heads(self) -> None:
        split = run(converted(*self.OPTIONS), check=False, tensor_parallel_size=2)
        self.assertNotEqual(split.returncode, 0)
        self.assertIn("read other heads of its sources", split.stdout + split.stderr)


class Lite(Cases, unittest.TestCase):
    """Keys of one layer, values of another."""

    OPTIONS = ("--method", "fusedkv-lite", *FORCED)
    test_chunks_and_prefix_hits = test_bfloat16 = test_damaged_factors = None


class Shared(Cases, unittest.TestCase):
    """Keys and values as other layers have them."""

    OPTIONS = ("--method", "cla", *FORCED)
    test_bfloat16 = test_damaged_factors = test_chunks_and_prefix_hits = None

    def test_every_other_layer_stores(self) -> None:
        self.assertEqual(plan_of(converted(*self.OPTIONS))["layers"], ["plain", "fused"] * 6)


class Families(FamilyCases, unittest.TestCase):
    """Biases and norms of keys, windows, and scores with a cap."""

    CASES = tuple((family, "--method", "fusedkv", "--sources", "search", *FORCED)
                  for family in ("qwen2", "qwen3", "gemma2", "gemma3_text"))
    LAYERS = 4  # so that layers with a window read others that have one


class PlainWindows(FamilyCases, unittest.TestCase):
    """Layers with a window that stay vLLM's own, among others: one block table for all."""

    CASES = (("mistral", "--method", "fusedkv", *FORCED), ("mistral", "--method", "palu", "--rank", "0.93", "--rank-alloc", "fisher"))
    LAYERS = 12
    CHANGES = {"sliding_window": 64}

    def test_there_are_plain_layers(self) -> None:
        for case in self.CASES:
            self.assertIn("plain", set(plan_of(self.conversion(*case))["layers"]), case)


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
