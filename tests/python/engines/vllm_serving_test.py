#!/usr/bin/env python3
"""vLLM serves conversions: the saving, the quality, and tokens that do not depend on how the engine cuts its work.

Runs in an environment with vllm and the plugin. Each test starts engines in processes of their own.
"""

import functools
import json
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer
from vllm_checkpoints import BIN, REFERENCE, convert, prompts
from vllm_run import CACHE_BYTES

from kvconvert.codes import TILE, CodedCheckpoint

FOLDER = tempfile.TemporaryDirectory()
ROOT = Path(FOLDER.name)


def run(checkpoint: Path, *tasks: str, check: bool = True, env: dict[str, str] | None = None, script: str = "vllm_run.py", **settings):
    """What a script, vllm_run.py or one like it, reports; with check=False what the process printed."""
    out = ROOT / "out.json"
    command = [sys.executable, str(Path(__file__).with_name(script)), str(out), str(checkpoint), json.dumps(settings), *tasks]
    environment = {k: v for k, v in os.environ.items() if k != "VLLM_CPU_KVCACHE_SPACE"} | (env or {})
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if not check:
        return done
    if done.returncode:
        raise AssertionError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return json.loads(out.read_text())


@functools.cache
def head() -> Path:
    return convert(ROOT / "head", "--form", "rotated")


@functools.cache
def group() -> Path:
    return convert(ROOT / "group", "--scope", "group")


@functools.cache
def window() -> Path:
    return convert(ROOT / "window", "--form", "rotated", "--window", "32")


@functools.cache
def served() -> dict:
    return run(head(), "tokens", "again", "nll")


@functools.cache
def served_group() -> dict:
    return run(group(), "tokens", "nll")


@functools.cache
def original() -> dict:
    return run(REFERENCE, "tokens", "nll")


def begin_alike(case: unittest.TestCase, checkpoint: Path) -> None:
    """Prompts of one step find each other's pages in the prefix cache, which must be written before they are read."""
    found = run(checkpoint, "alike", env={"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    case.assertGreater(found["hits"], 0)
    *together, later = found["alike"]
    for row in together:
        torch.testing.assert_close(torch.tensor(row), torch.tensor(later), atol=1e-3, rtol=0)


class Serving(unittest.TestCase):
    def test_bytes_are_the_plans(self) -> None:
        checkpoint = CodedCheckpoint(head())
        tile = sum(checkpoint.tile_bytes(layers) for layers in checkpoint.stores)
        block = served()["block"]
        self.assertEqual(served()["capacity"], CACHE_BYTES // (tile * block // TILE) * block)

    def same_tokens(self, found: list[list[int]], expected: list[list[int]]) -> None:
        for i, (a, b) in enumerate(zip(found, expected, strict=True)):
            self.assertEqual(a, b, f"prompt {i}")

    def nearly_same(self, found: dict, expected: dict) -> None:
        """Sums of another order move a coefficient across a step now and then, and a near tie with it."""
        self.assertAlmostEqual(found["nll"], expected["nll"], delta=0.01)
        equal = sum(a == b for a, b in zip(found["tokens"], expected["tokens"], strict=True))
        self.assertGreaterEqual(equal, 9)

    def test_saving(self) -> None:
        # float32 stores twice bfloat16's bytes and codes stay the same.
        for codes in (served(), served_group()):
            self.assertGreaterEqual(codes["capacity"] / original()["capacity"], 2 * 3.7)

    def test_quality(self) -> None:
        plain = original()["nll"]
        ratios = [math.exp(codes["nll"] - plain) for codes in (served(), served_group())]
        print(f"perplexity to the original's: rotated {ratios[0]:.4f}, groups {ratios[1]:.4f}")
        self.assertLess(ratios[0], 1.004)
        self.assertLess(ratios[1], 1.002)

    def kvrun(self, checkpoint: Path, ids: list[int], *options: object) -> str:
        path = ROOT / "ids.json"
        path.write_text(json.dumps(ids))
        command = [BIN / "kvrun", checkpoint, "--ids", path, "--dtype", "float32", "--quiet", *options]
        return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout

    def test_tokens_are_kvruns(self) -> None:
        self.compare_with_kvrun(head(), served()["tokens"])

    def compare_with_kvrun(self, checkpoint: Path, generated: list[list[int]]) -> None:
        """Sums of another order move a coefficient across a step now and then, and a near tie with it."""
        equal, gaps = 0, []
        for prompt, found in zip(prompts(AutoTokenizer.from_pretrained(REFERENCE)), generated, strict=True):
            ids, logits = prompt["prompt_token_ids"], ROOT / "logits.safetensors"
            printed = self.kvrun(checkpoint, ids, "--max-new-tokens", len(found), "--ignore-eos", "--json")
            equal += found == json.loads(printed)["tokens"]
            self.kvrun(checkpoint, ids + found[:-1], "--max-new-tokens", 1, "--logits", logits, "--force")
            rows = next(iter(load_file(logits).values())).flatten(0, -2)[-len(found):]
            gaps.append(rows.amax(-1) - rows.gather(1, torch.tensor(found)[:, None])[:, 0])
        gap = torch.cat(gaps).mean().item()
        print(f"{equal} of 12 generations are kvrun's; tokens are {gap:.5f} below the largest logit of kvrun's prompts")
        self.assertGreaterEqual(equal, 11)
        self.assertLess(gap, 0.001)

    def test_windows(self) -> None:
        """The last 32 to 63 tokens are exact, wherever prompts are cut and tiles lie; a prefix that is found may be codes alone."""
        whole = run(window(), "tokens", "again", "nll")
        self.compare_with_kvrun(window(), whole["tokens"])
        self.assertLess(abs(whole["nll"] - original()["nll"]), 0.004)
        self.assertGreater(whole["hits"], 0)
        self.assertGreaterEqual(sum(a == b for a, b in zip(whole["again"], whole["tokens"], strict=True)), 10)
        cut = run(window(), "tokens", max_num_seqs=3, max_num_batched_tokens=64)
        self.same_tokens(cut["tokens"], whole["tokens"])
        draft = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}
        self.same_tokens(run(window(), "tokens", speculative_config=draft)["tokens"], whole["tokens"])

    def test_prompts_of_one_step_may_begin_alike(self) -> None:
        for checkpoint in (head(), group(), window()):
            with self.subTest(checkpoint.name):
                begin_alike(self, checkpoint)

    def test_codes_are_read(self) -> None:
        self.assertNotEqual(served()["tokens"], original()["tokens"])

    def test_prefix_hits_change_nothing(self) -> None:
        self.assertGreater(served()["hits"], 0)
        self.same_tokens(served()["again"], served()["tokens"])

    def test_batch_and_chunk_change_nothing(self) -> None:
        cut = run(head(), "tokens", max_num_seqs=3, max_num_batched_tokens=64)
        self.same_tokens(cut["tokens"], served()["tokens"])

    def test_preemption_changes_near_ties_alone(self) -> None:
        """A sequence's own tokens are read again as a prompt, whose sums have another order."""
        whole = run(head(), "long")
        short = run(head(), "long", kv_cache_memory_bytes=1 << 20)
        self.assertEqual(whole["preemptions"], 0)
        self.assertGreater(short["preemptions"], 0)
        self.assertGreaterEqual(sum(a == b for a, b in zip(short["long"], whole["long"], strict=True)), 10)

    def test_drafts_change_nothing(self) -> None:
        """Twelve are more than a short query has, and are read as prompts are."""
        for count in (4, 12):
            draft = {"method": "ngram", "num_speculative_tokens": count, "prompt_lookup_max": 3}
            self.same_tokens(run(head(), "tokens", speculative_config=draft)["tokens"], served()["tokens"])

    def test_an_engine_refuses_new_weights_and_goes_on(self) -> None:
        done = run(head(), "reload", "tokens")
        for refusal in done["reload"]:
            self.assertIn("restart the engine", refusal)
        self.same_tokens(done["tokens"], served()["tokens"])

    def test_transformers_in_the_same_process(self) -> None:
        both = run(head(), "tokens", "transformers")
        self.same_tokens(both["tokens"], served()["tokens"])
        equal = sum(a == b for a, b in zip(both["transformers"], both["tokens"], strict=True))
        print(f"{equal} of 12 generations of transformers are vLLM's")
        self.assertGreaterEqual(equal, 11)

    def test_tensor_parallel(self) -> None:
        two = run(head(), "tokens", "nll", tensor_parallel_size=2)
        self.assertGreater(two["capacity"] / served()["capacity"], 1.95)
        self.nearly_same(two, served())

    # On a CPU, vLLM 0.32 runs pipeline stages only where it has compiled them.

    def test_pipeline_parallel(self) -> None:
        self.nearly_same(run(head(), "tokens", "nll", pipeline_parallel_size=2, enforce_eager=False), served())

    def test_groups_lie_in_one_pipeline_stage(self) -> None:
        split = run(group(), check=False, pipeline_parallel_size=2, enforce_eager=False)
        self.assertNotEqual(split.returncode, 0)
        self.assertIn("layers 4-7 are stored together and must be in one pipeline stage", split.stdout + split.stderr)
        partition = {"VLLM_PP_LAYER_PARTITION": "4,8"}
        whole = run(group(), "tokens", "nll", pipeline_parallel_size=2, enforce_eager=False, env=partition)
        self.nearly_same(whole, served_group())

    def test_compiled(self) -> None:
        self.nearly_same(run(head(), "tokens", "nll", enforce_eager=False), served())


if __name__ == "__main__":
    try:
        unittest.main()
    finally:
        FOLDER.cleanup()
