#!/usr/bin/env python3
"""Conversions of every architecture of the zoo, by every method, as kvrun and transformers see them."""

import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import torch
from safetensors.torch import load_file, save_file

from conversions import BIN, DATA, directory, load, run

ZOO = DATA / "zoo"
CASES = sorted(path.name for path in ZOO.iterdir() if path.is_dir())
METHODS = {"commonkv": ("--group", 2, "--merge", "none"), "palu": ()}
# Compressed from the first tokens on, so that prompts of a few tokens read latents.
EFFORT = ("--num-sequences", 4, "--seq-len", 64, "--no-validate", "--force", "--factor-dtype", "float32", "--calibration", "builtin")
CODED_EARLY = ("--sink", 2, "--window", 3, *EFFORT)
EARLY = ("--block", 2, *CODED_EARLY)
EARLY_OF = {"coded": CODED_EARLY} | dict.fromkeys(("commonkv", "pca", "xkv-static", "xkv"), EARLY)
# transformers keeps keys as the angles of their time turned them; latents are turned by today's.
TURNED_AGAIN = ("llama_dynamic",)
loading_lock = threading.Lock()  # transformers shares state between loads
PREFILL = 10  # tokens; the rest of a prompt reads the compressed cache


def supported():
    """{model_type: {method: None, or why it is refused}}, from the program's own table."""
    families = json.loads(run("kvconvert", "--list-models", "--json").stdout)["families"]
    return {family["model_type"]: family["methods"] for family in families}


def model_type(name):
    return json.loads((ZOO / name / "config.json").read_text(encoding="utf-8"))["model_type"]


def source(name):
    """The case with a tokenizer beside it."""
    target = directory / "zoo" / name
    if not target.exists():
        shutil.copytree(ZOO / name, target)
        shutil.copy(ZOO / "tokenizer.json", target)
    return target


def convert(name, method, rank, form, expect=0):
    out = directory / f"{name}-{method}-{rank}-{form}"
    width = (*METHODS[method], "--rank", rank) if method in METHODS else ("--kept-ratio", rank)
    process = run("kvconvert", source(name), "--out", out, "--method", method, *width, "--export", form, "--threads", 1,
                  *EARLY_OF.get(method, EFFORT), expect=expect)
    return out, process


def kvrun(path, prompts, *arguments):
    """Per prompt of a batch, its logits and the tokens that follow."""
    scratch = pathlib.Path(tempfile.mkdtemp(dir=directory))
    (scratch / "ids.json").write_text(json.dumps([ids.tolist() for ids in prompts]), encoding="utf-8")
    result = run("kvrun", path, "--ids", scratch / "ids.json", "--logits", scratch / "logits.safetensors", "--json",
                 "--dtype", "float32", "--threads", 1, "--ignore-eos", *arguments)
    logits = load_file(scratch / "logits.safetensors")
    return [(logits[f"logits.{i}"], tokens) for i, tokens in enumerate(json.loads(result.stdout)["tokens"])]


def error(actual, expected):
    """Largest difference, relative to the spread."""
    return ((actual - expected).abs().max() / (expected.max() - expected.min())).item()


def in_parallel(action, names):
    """[(name, what went wrong)] for names whose action raised."""
    def attempt(name):
        try:
            action(name)
        except Exception as problem:  # noqa: BLE001: reported by the test
            return name, problem
        return None
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return [outcome for outcome in pool.map(attempt, names) if outcome]


def one_case_each():
    """The first case of every architecture."""
    first = {}
    for name in CASES:
        first.setdefault(model_type(name), name)
    return first


class EveryCase(unittest.TestCase):
    def assert_all(self, action, names):
        self.assertTrue(names)
        problems = in_parallel(action, names)
        self.assertFalse(problems, "\n".join(f"{name}: {problem}" for name, problem in problems))

    def check_full_rank(self, name, method):
        golden = load_file(ZOO / f"{name}.safetensors")
        out, _ = convert(name, method, 1.0, "factored")
        prompts = [golden["ids.0"], golden["ids.1"]]
        if golden["by_length"].item():  # RoPE depends on how much of the text is there
            outcomes = [kvrun(out, [ids], "--max-new-tokens", 24)[0] for ids in prompts]
        else:
            outcomes = kvrun(out, prompts, "--max-new-tokens", 24, "--prefill-tokens", PREFILL)
        for i, (logits, tokens) in enumerate(outcomes):
            difference = error(logits, golden[f"logits.{i}"])
            assert difference < 1e-4, f"logits differ by {difference:.1e} of their spread"
            if name not in TURNED_AGAIN:
                assert tokens == golden[f"tokens.{i}"].tolist(), f"tokens {tokens}"

    def test_full_rank_without_merging_gives_the_originals_logits_and_tokens(self):
        table = supported()
        names = [name for name in CASES if table[model_type(name)]["commonkv"] is None]
        self.assert_all(lambda name: self.check_full_rank(name, "commonkv"), names)

    def test_full_rank_of_each_layer_alone_does_too(self):
        table = supported()
        names = [name for kind, name in one_case_each().items() if table[kind]["palu"] is None]
        self.assert_all(lambda name: self.check_full_rank(name, "palu"), names)

    def test_what_the_table_refuses_is_refused_with_its_sentence(self):
        refused = [(name, method, reason) for kind, name in one_case_each().items()
                   for method, reason in supported()[kind].items() if reason is not None]
        self.assertTrue(refused)
        for name, method, reason in refused:
            with self.subTest(name, method=method):
                out, process = convert(name, method, 0.7, "factored", expect=1)
                self.assertIn(reason, process.stderr)
                self.assertFalse(out.exists())

    def test_folded_exports_load_in_transformers_and_agree(self):
        table = supported()

        def check(name):
            folded, _ = convert(name, "commonkv", 0.7, "folded")
            golden = load_file(ZOO / f"{name}.safetensors")
            with loading_lock:
                model, loading = load(folded)
            for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                assert not loading[kind], f"{kind}: {loading[kind]}"
            with torch.no_grad():
                expected = model(golden["ids.0"][None]).logits[0].float()
            logits = kvrun(folded, [golden["ids.0"]], "--max-new-tokens", 0)[0][0]
            difference = error(logits, expected)
            assert difference < 2e-5, f"logits differ by {difference:.1e} of their spread"
            assert error(expected, golden["logits.0"]) > 1e-3, "nothing was compressed"

        names = [name for kind, name in one_case_each().items() if table[kind]["commonkv"] is None]
        self.assert_all(check, names)


class ExtraTensors(unittest.TestCase):
    """Tensors that the text model does not use travel along, byte for byte."""

    def with_extra(self, name, **tensors):
        target = directory / f"extra-{len(tensors)}-{'-'.join(tensors)[:40]}"
        shutil.copytree(source("qwen2"), target)
        path = target / "model.safetensors"
        save_file(load_file(path) | tensors, path, metadata={"format": "pt"})
        return target

    def test_they_are_carried_with_one_line(self):
        extra = {"vision_tower.patch.weight": torch.randn(3, 5).to(torch.float16),
                 "vision_tower.position_ids": torch.arange(7),
                 "model.layers.4.self_attn.k_proj.weight": torch.randn(16, 32)}
        checkpoint = self.with_extra("carried", **extra)
        for form in ("folded", "factored"):
            out = directory / f"extra-out-{form}"
            command = [BIN / "kvconvert", checkpoint, "--out", out, "--group", "2", "--rank", "0.7", "--export", form,
                       *map(str, EARLY)]
            process = subprocess.run(command, capture_output=True, text=True, timeout=240)
            self.assertEqual(process.returncode, 0, process.stderr)
            notices = [line for line in process.stderr.splitlines() if "vision_tower" in line]
            self.assertEqual(len(notices), 1, process.stderr)
            self.assertIn("3 tensors", notices[0])
            written = load_file(out / "model.safetensors")
            for name, value in extra.items():
                self.assertEqual(value.dtype, written[name].dtype)
                self.assertTrue(torch.equal(value, written[name]), name)

    def test_inside_a_decoder_layer_they_mean_another_computation(self):
        for name in ("model.layers.1.self_attn.q_norm.weight", "model.layers.0.mlp.gate.weight", "lm_head.bias",
                     "model.layers.2.self_attn.o_proj.bias", "model.norm.bias"):
            checkpoint = self.with_extra(name, **{name: torch.ones(8)})
            process = run("kvconvert", checkpoint, "--out", directory / "never", "--group", 2, "--rank", 0.7, *EARLY,
                          expect=1)
            self.assertIn(name, process.stderr)


class Pickles(unittest.TestCase):
    def test_the_refusal_names_a_command_that_works(self):
        checkpoint = pathlib.Path(shutil.copytree(source("llama_mha"), directory / "it's pickled"))
        torch.save(load_file(checkpoint / "model.safetensors"), checkpoint / "pytorch_model.bin")
        (checkpoint / "model.safetensors").unlink()
        message = run("kvrun", checkpoint, "--prompt", "x", expect=1).stderr
        command = message[message.index("python3 -c"):].strip()
        subprocess.run(command.replace("python3", sys.executable, 1),
                       shell=True, check=True, capture_output=True, timeout=240)
        converted = load_file(directory / "it's pickled-safetensors" / "model.safetensors")
        for name, value in load_file(ZOO / "llama_mha" / "model.safetensors").items():
            self.assertTrue(torch.equal(value, converted[name]), name)
        run("kvrun", directory / "it's pickled-safetensors", "--prompt", "abc", "--max-new-tokens", 1)


if __name__ == "__main__":
    unittest.main()
