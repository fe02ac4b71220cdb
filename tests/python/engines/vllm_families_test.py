#!/usr/bin/env python3
"""Every family that the plugin lists gives vLLM's own log-probabilities when codes lose next to nothing.

Checkpoints are tiny and random, converted at a kept ratio of 0.8. With keys that are turned back by wrong angles the
difference is far beyond the tolerance, which a test shows.
"""

import os

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"  # engines one after the other in this process

import gc
import json
import subprocess
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import torch
from transformers import AutoTokenizer
from vllm import LLM, SamplingParams
from vllm_checkpoints import BIN, REFERENCE, TEXTS, heldout
from vllm_random import EXTRA, make

from kvconvert.vllm.families import ARCHITECTURES
from kvconvert.vllm.rope import key_rope

TOLERANCE = 0.1  # mean difference of log-probabilities, of their standard deviation


def convert(checkpoint: Path, out: Path) -> Path:
    command = [BIN / "kvconvert", "--method", "coded", "--kept-ratio", "0.8", "--scope", "head", "--prefill", "coded"]
    command += ["--metric", "none", "--no-validate", "--force", "--quiet"]
    command += ["--calibration", TEXTS / "tinystories_calibration.txt", "--out", out, checkpoint]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise AssertionError(f"{' '.join(map(str, command))}: {done.stderr}")
    return out


def logprobs(checkpoint: Path) -> torch.Tensor:
    """Of 16 greedy continuations' tokens and of their prompts, [tokens]."""
    engine = LLM(
        str(checkpoint), dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=4, kv_cache_memory_bytes=1 << 26,
        max_num_batched_tokens=128, distributed_executor_backend="uni", disable_log_stats=True,
    )
    tokens = heldout(AutoTokenizer.from_pretrained(REFERENCE))
    texts = [tokens[300 * i : 300 * i + 180 + i] for i in range(4)]
    sampling = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    outputs = engine.generate([{"prompt_token_ids": t} for t in texts], sampling, use_tqdm=False)
    found = [o.prompt_logprobs[i][t[i]].logprob for o, t in zip(outputs, texts) for i in range(1, len(t))]
    del engine
    gc.collect()
    return torch.tensor(found)


def difference(plain: Path, coded: Path) -> float:
    """Mean difference of log-probabilities, in standard deviations of the plain ones."""
    original, served = logprobs(plain), logprobs(coded)
    assert not torch.equal(original, served), "codes were not read"
    return ((original - served).abs().mean() / original.std()).item()


class Families(unittest.TestCase):
    def test_every_family(self) -> None:
        wanted = os.environ.get("KVC_FAMILIES", "").split() or list(ARCHITECTURES)
        # A process has a group of expert parallel ranks only if its first engine has experts.
        for family in sorted(wanted, key=lambda family: "num_experts_per_tok" not in EXTRA.get(family, {})):
            with self.subTest(family), tempfile.TemporaryDirectory() as folder:
                plain = make(family, Path(folder) / "plain")
                try:
                    found = difference(plain, convert(plain, Path(folder) / "coded"))
                except Exception as error:
                    print(json.dumps({"family": family, "error": str(error)[:500]}), flush=True)
                    raise
                print(json.dumps({"family": family, "difference": round(found, 4)}), flush=True)
                self.assertLess(found, TOLERANCE)

    def test_keys_that_no_layer_turns_are_not_turned_back(self) -> None:
        def always(parent):
            return parent.rotary_emb

        with tempfile.TemporaryDirectory() as folder:
            plain = make("exaone4", Path(folder) / "plain")
            coded = convert(plain, Path(folder) / "coded")
            found = difference(plain, coded)
            with mock.patch("kvconvert.vllm.install._rotary", always):
                turned = difference(plain, coded)
            print(json.dumps({"layers without RoPE": round(found, 4), "turned": round(turned, 4)}), flush=True)
            self.assertLess(2 * found, turned)

    def test_wrong_angles_are_seen(self) -> None:
        def turned(*args):
            (cos, sin), interleaved = key_rope(*args)
            return (cos, -sin), interleaved

        with tempfile.TemporaryDirectory() as folder, mock.patch("kvconvert.vllm.install.key_rope", turned):
            plain = make("qwen2", Path(folder) / "plain")
            found = difference(plain, convert(plain, Path(folder) / "coded"))
            print(json.dumps({"wrong angles": round(found, 4)}), flush=True)
            self.assertGreater(found, 2 * TOLERANCE)


if __name__ == "__main__":
    unittest.main()
