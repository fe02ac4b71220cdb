"""What vLLM serves of one conversion to other things than codes: cases for all of them."""

import functools
import json
import subprocess
from pathlib import Path

from conversions import copy_of, tensor_place
from transformers import AutoTokenizer
from vllm_checkpoints import BIN, REFERENCE, TEXTS, prompts
from vllm_random import make
from vllm_run import CACHE_BYTES
from vllm_serving_test import ROOT, begin_alike, run

import kvconvert
from kvconvert.kinds import open_checkpoint

SETTINGS = {"max_num_batched_tokens": 4096}  # all prompts in one step
DRAFTS = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}


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


def plan_of(directory: Path) -> dict:
    return json.loads((directory / "config.json").read_text())["kvconvert"]["plan"]


class Cases:
    """Of one conversion."""

    OPTIONS: tuple[str, ...]
    DAMAGED: str  # a tensor
    CUT_CHANGES_NOTHING = False  # are keys and values of a step's own tokens those that their latents give?

    def equal_texts(self, **settings: object) -> int:
        """Of 12, those whose greedy tokens an engine with other settings gives, too."""
        found = run(converted(*self.OPTIONS), "tokens", **settings, **SETTINGS)
        return sum(a == b for a, b in zip(found["tokens"], served(*self.OPTIONS)["tokens"], strict=True))

    def test_tokens_are_kvruns(self) -> None:
        for ids, found in zip(texts(), served(*self.OPTIONS)["tokens"], strict=True):
            self.assertEqual(found, kvrun(converted(*self.OPTIONS), ids, len(found)), len(ids))

    def test_bytes_are_the_plans(self) -> None:
        directory, found = converted(*self.OPTIONS), served(*self.OPTIONS)
        shown = kvconvert.show(directory)
        # float32 takes twice the bytes of the checkpoint's bfloat16; a layer in the pages of another takes 4 bytes a tile.
        stubs = sum(len(store) - 1 for store in open_checkpoint(directory).stores) * 4 / 32
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

    def test_prompts_of_one_step_may_begin_alike(self) -> None:
        begin_alike(self, converted(*self.OPTIONS))

    def test_bfloat16(self) -> None:
        found = run(converted(*self.OPTIONS), "nll", dtype="bfloat16", **SETTINGS)
        self.assertAlmostEqual(found["nll"], served(*self.OPTIONS)["nll"], delta=0.05)
        self.assertGreater(found["capacity"], 1.99 * served(*self.OPTIONS)["capacity"])

    def test_damaged_factors(self) -> None:
        directory = copy_of(converted(*self.OPTIONS))
        path = directory / "model.safetensors"
        with open(path, "r+b") as file:
            file.seek(tensor_place(path, self.DAMAGED)[0])
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        started = run(directory, check=False)
        self.assertNotEqual(started.returncode, 0)
        self.assertIn("model.safetensors: the tensors kvconvert.* are damaged: SHA-256", started.stdout + started.stderr)


class FamilyCases:
    """Random models of families give kvrun's tokens."""

    CASES: tuple[tuple[str, ...], ...]  # a family and options of its conversion
    LAYERS = 2
    CHANGES: dict[str, object] = {}  # of config.json

    def conversion(self, family: str, *options: str) -> Path:
        checkpoint = ROOT / f"{family}-{self.LAYERS}"
        if not checkpoint.exists():
            make(family, checkpoint, self.LAYERS, **self.CHANGES)
        return converted(*options, checkpoint=checkpoint)

    def test_tokens_are_kvruns(self) -> None:
        asked = ROOT / "asked.json"
        asked.write_text(json.dumps({"prompts": [ids[:200] for ids in texts()[3:9:2]], "new_tokens": 24}))
        for family, *options in self.CASES:
            with self.subTest(family=family, method=options[1]):
                directory = self.conversion(family, *options)
                found = run(directory, f"file:{asked}", max_model_len=512)[f"file:{asked}"]
                for ids, tokens in zip(json.loads(asked.read_text())["prompts"], found, strict=True):
                    self.assertEqual(tokens, kvrun(directory, ids, 24), len(ids))
