#!/usr/bin/env python3
"""vLLM serves latents: kvrun's tokens, the plan's bytes, and what depends on how the engine cuts its work.

Runs in an environment with vllm and the plugin. Each test starts engines in processes of their own.
"""

import unittest

from vllm_cases import DRAFTS, Cases, FamilyCases, converted, plan_of
from vllm_serving_test import FOLDER, run


class Pca(Cases, unittest.TestCase):
    OPTIONS = ("--method", "pca", "--kept-ratio", "0.3")
    DAMAGED = "kvconvert.groups.1.encoder"

    def test_groups_lie_in_one_pipeline_stage(self) -> None:
        split = run(converted(*self.OPTIONS), check=False, pipeline_parallel_size=2, enforce_eager=False)
        self.assertNotEqual(split.returncode, 0)
        self.assertIn("layers 4-7 are stored together and must be in one pipeline stage", split.stdout + split.stderr)

    def test_preemption(self) -> None:
        """A sequence's own tokens are read again as a prompt, and no longer through latents."""
        short = run(converted(*self.OPTIONS), "long", kv_cache_memory_bytes=3 << 20)
        self.assertGreater(short["preemptions"], 0)
        self.assertEqual({len(text) for text in short["long"]}, {300})

    def test_compiled(self) -> None:
        """Keys and values of a group's layers wait for its last one."""
        self.assertGreaterEqual(self.equal_texts(enforce_eager=False), 10)


class XkvStatic(Cases, unittest.TestCase):
    OPTIONS = ("--method", "xkv-static", "--kept-ratio", "0.3", "--metric", "none")
    DAMAGED = "kvconvert.groups.1.value.encoder"
    test_chunks_and_prefix_hits = test_bfloat16 = None


class CommonKv(Cases, unittest.TestCase):
    OPTIONS = ("--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3")
    DAMAGED = "kvconvert.groups.1.latent_proj"


class TruncatedCommonKv(CommonKv):
    """Prompts read what latents give; generated tokens read themselves exactly."""

    OPTIONS = (*CommonKv.OPTIONS, "--prefill", "truncated")
    CUT_CHANGES_NOTHING = True
    test_bfloat16 = test_damaged_factors = None


class Palu(Cases, unittest.TestCase):
    OPTIONS = ("--method", "palu", "--rank", "0.5")
    DAMAGED = "kvconvert.groups.1.key.latent_proj"
    CUT_CHANGES_NOTHING = True

    def test_compiled(self) -> None:
        self.assertGreaterEqual(self.equal_texts(enforce_eager=False), 11)

    def test_drafts_change_nothing(self) -> None:
        self.assertEqual(self.equal_texts(speculative_config=DRAFTS), 12)


class SomeLayersArePlain(Cases, unittest.TestCase):
    """Layers whose latents would not be smaller keep vLLM's own attention."""

    OPTIONS = ("--method", "palu", "--rank", "0.93", "--rank-alloc", "fisher")
    test_chunks_and_prefix_hits = test_bfloat16 = test_damaged_factors = None

    def test_there_are_both(self) -> None:
        self.assertEqual(set(plan_of(converted(*self.OPTIONS))["layers"]), {"plain", "latent"})


class Families(FamilyCases, unittest.TestCase):
    """Biases and norms of keys, windows, and scores with a cap."""

    CASES = (
        ("qwen2", "--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3"),
        ("qwen3", "--method", "palu", "--rank", "0.5"),
        ("gemma2", "--method", "palu", "--rank", "0.5"),
        ("gemma3_text", "--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3"),
        ("gemma3_text", "--method", "pca", "--kept-ratio", "0.5"),
        ("phi3", "--method", "xkv-static", "--kept-ratio", "0.5", "--metric", "none"),
    )


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
