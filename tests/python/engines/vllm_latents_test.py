#!/usr/bin/env python3
"""vLLM serves latents: kvrun's tokens, the plan's bytes, and what depends on how the engine cuts its work.

Runs in an environment with vllm and the plugin. Each test starts engines in processes of their own.
"""

import functools
import json
import subprocess
import unittest
from pathlib import Path

from conversions import copy_of, tensor_place
from transformers import AutoTokenizer
from vllm_checkpoints import BIN, REFERENCE, TEXTS, prompts
from vllm_random import make
from vllm_run import CACHE_BYTES
from vllm_serving_test import FOLDER, ROOT, run

import kvconvert
from kvconvert.latents import LatentCheckpoint

SETTINGS = {"max_num_batched_tokens": 4096}  # all prompts in one step


@functools.cache
def converted(*options: str, checkpoint: Path = REFERENCE) -> Path:
    out = ROOT / f"{checkpoint.name}{'-'.join(options)}"
    command = [BIN / "kvconvert", "--for", "vllm", *options, "--num-sequences", "8", "--seq-len", "256", "--no-validate", "--quiet"]
    command += ["--calibration", TEXTS / "tinystories_calibration.txt", "--out", out, checkpoint]
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
    return out


@functools.cache
def served(*options: str) -> dict:
    return run(converted(*options), "tokens", "again", "nll", **SETTINGS)


@functools.cache
def texts() -> list[list[int]]:
    return [prompt["prompt_token_ids"] for prompt in prompts(AutoTokenizer.from_pretrained(REFERENCE))]


def kvrun(directory: Path, ids: list[int], count: int) -> list[int]:
    path = ROOT / "ids.json"
    path.write_text(json.dumps(ids))
    command = [BIN / "kvrun", directory, "--ids", path, "--dtype", "float32", "--max-new-tokens", count]
    command += ["--ignore-eos", "--json", "--quiet"]
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout)["tokens"]


class Cases:
    """Of one conversion."""

    OPTIONS: tuple[str, ...]
    DAMAGED: str  # a factor
    CUT_CHANGES_NOTHING = False  # are keys and values of a step's own tokens those that their latents give?

    def test_tokens_are_kvruns(self) -> None:
        for ids, found in zip(texts(), served(*self.OPTIONS)["tokens"], strict=True):
            self.assertEqual(found, kvrun(converted(*self.OPTIONS), ids, len(found)), len(ids))

    def test_bytes_are_the_plans(self) -> None:
        shown, found = kvconvert.show(converted(*self.OPTIONS)), served(*self.OPTIONS)
        # float32 takes twice the bytes of the checkpoint's bfloat16; a layer whose latents are another's takes 4 bytes a tile.
        stubs = sum(len(store) - 1 for store in LatentCheckpoint(converted(*self.OPTIONS)).stores) * 4 / 32
        block = found["block"]
        self.assertEqual(found["capacity"], CACHE_BYTES // round(block * (2 * shown.bytes_per_token + stubs)) * block)
        self.assertIn("vLLM", shown.served_by)

    def test_chunks_and_prefix_hits(self) -> None:
        whole = served(*self.OPTIONS)
        cut = run(converted(*self.OPTIONS), "tokens", "nll", max_num_seqs=3, max_num_batched_tokens=64)
        self.assertGreater(whole["hits"], 0)
        if self.CUT_CHANGES_NOTHING:
            self.assertEqual(cut["tokens"], whole["tokens"])
            self.assertEqual(whole["again"], whole["tokens"])
            self.assertAlmostEqual(cut["nll"], whole["nll"], delta=1e-4)
        else:  # a chunk reads earlier ones through latents
            self.assertNotEqual(cut["tokens"], whole["tokens"])
            self.assertGreater(abs(cut["nll"] - whole["nll"]), 1e-3)
            self.assertAlmostEqual(cut["nll"], whole["nll"], delta=0.2)

    def test_bfloat16(self) -> None:
        found = run(converted(*self.OPTIONS), "nll", dtype="bfloat16", **SETTINGS)
        self.assertAlmostEqual(found["nll"], served(*self.OPTIONS)["nll"], delta=0.05)
        self.assertGreater(found["capacity"], 1.99 * served(*self.OPTIONS)["capacity"])

    def test_damaged_factors(self) -> None:
        directory = copy_of(converted(*self.OPTIONS))
        path = directory / "model.safetensors"
        with open(path, "r+b") as file:
            file.seek(tensor_place(path, f"kvconvert.groups.1.{self.DAMAGED}")[0])
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        started = run(directory, check=False)
        self.assertNotEqual(started.returncode, 0)
        self.assertIn("model.safetensors: the tensors kvconvert.* are damaged: SHA-256", started.stdout + started.stderr)


class Pca(Cases, unittest.TestCase):
    OPTIONS = ("--method", "pca", "--kept-ratio", "0.3")
    DAMAGED = "encoder"

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
        found = run(converted(*self.OPTIONS), "tokens", enforce_eager=False, **SETTINGS)
        equal = sum(a == b for a, b in zip(found["tokens"], served(*self.OPTIONS)["tokens"], strict=True))
        self.assertGreaterEqual(equal, 10)


class XkvStatic(Cases, unittest.TestCase):
    OPTIONS = ("--method", "xkv-static", "--kept-ratio", "0.3", "--metric", "none")
    DAMAGED = "value.encoder"
    test_chunks_and_prefix_hits = test_bfloat16 = None


class CommonKv(Cases, unittest.TestCase):
    OPTIONS = ("--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3")
    DAMAGED = "latent_proj"


class TruncatedCommonKv(CommonKv):
    """Prompts read what latents give; generated tokens read themselves exactly."""

    OPTIONS = (*CommonKv.OPTIONS, "--prefill", "truncated")
    CUT_CHANGES_NOTHING = True
    test_bfloat16 = test_damaged_factors = None


class Palu(Cases, unittest.TestCase):
    OPTIONS = ("--method", "palu", "--rank", "0.5")
    DAMAGED = "key.latent_proj"
    CUT_CHANGES_NOTHING = True

    def test_compiled(self) -> None:
        found = run(converted(*self.OPTIONS), "tokens", enforce_eager=False, **SETTINGS)
        equal = sum(a == b for a, b in zip(found["tokens"], served(*self.OPTIONS)["tokens"], strict=True))
        self.assertGreaterEqual(equal, 11)

    def test_drafts_change_nothing(self) -> None:
        draft = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
        found = run(converted(*self.OPTIONS), "tokens", speculative_config=draft, **SETTINGS)
        self.assertEqual(found["tokens"], served(*self.OPTIONS)["tokens"])


class SomeLayersArePlain(Cases, unittest.TestCase):
    """Layers whose latents would not be smaller keep vLLM's own attention."""

    OPTIONS = ("--method", "palu", "--rank", "0.93", "--rank-alloc", "fisher")
    test_chunks_and_prefix_hits = test_bfloat16 = test_damaged_factors = None

    def test_there_are_both(self) -> None:
        plan = json.loads((converted(*self.OPTIONS) / "config.json").read_text())["kvconvert"]["plan"]
        self.assertEqual(set(plan["layers"]), {"plain", "latent"})


class Families(unittest.TestCase):
    """Biases and norms of keys, windows, and scores with a cap: random models give kvrun's tokens."""

    CASES = (
        ("qwen2", "--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3"),
        ("qwen3", "--method", "palu", "--rank", "0.5"),
        ("gemma2", "--method", "palu", "--rank", "0.5"),
        ("gemma3_text", "--method", "commonkv", "--merge", "none", "--group", "2", "--rank", "0.3"),
        ("gemma3_text", "--method", "pca", "--kept-ratio", "0.5"),
        ("phi3", "--method", "xkv-static", "--kept-ratio", "0.5", "--metric", "none"),
    )

    def test_tokens_are_kvruns(self) -> None:
        asked = ROOT / "asked.json"
        asked.write_text(json.dumps({"prompts": [ids[:200] for ids in texts()[3:9:2]], "new_tokens": 24}))
        for family, *options in self.CASES:
            with self.subTest(family=family, method=options[1]):
                checkpoint = ROOT / f"{family}-original"
                make(family, checkpoint)
                directory = converted(*options, checkpoint=checkpoint)
                found = run(directory, f"file:{asked}", max_model_len=512)[f"file:{asked}"]
                for ids, tokens in zip(json.loads(asked.read_text())["prompts"], found, strict=True):
                    self.assertEqual(tokens, kvrun(directory, ids, 24), len(ids))


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
