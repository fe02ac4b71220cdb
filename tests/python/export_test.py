#!/usr/bin/env python3
"""Exported directories as transformers and safetensors see them."""

import json
import shutil
import sys
import unittest

import torch
import transformers
from safetensors.torch import load_file

from conversions import DATA, FAMILIES, converted, directory, kvrun_logits, load, random_ids, run, source

CASES = [(name, "commonkv") for name in ("reference-llama", "stories260K-hf", *FAMILIES)]
CASES += [("stories260K-hf", "palu"), ("qwen2", "palu")]


class Folded(unittest.TestCase):
    def test_loads_unchanged_and_gives_kvruns_logits(self):
        for name, method in CASES:
            with self.subTest(name, method=method):
                folded = converted(name, method) / "out" / "folded"
                model, loading = load(folded)
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(loading[kind], kind)
                ids = random_ids(model, 2, 48)
                with torch.no_grad():
                    expected = model(ids).logits
                error = (kvrun_logits(folded, ids) - expected).abs().max().item()
                self.assertLess(error, 2e-5 * (expected.max() - expected.min()).item())

    def test_only_key_and_value_projections_differ(self):
        for name, method in CASES:
            with self.subTest(name, method=method):
                before = load_file(source(name) / "model.safetensors")
                after = load_file(converted(name, method) / "out" / "folded" / "model.safetensors")
                self.assertEqual(before.keys(), after.keys())
                changed = {key for key in before if not torch.equal(before[key], after[key])}
                self.assertTrue(changed)
                for key in changed:
                    self.assertRegex(key, r"\.[kv]_proj\.weight$")
                self.assertEqual({key: value.dtype for key, value in before.items()},
                                 {key: value.dtype for key, value in after.items()})

    def test_config_is_the_source_file(self):
        for name, method in CASES:
            config = (converted(name, method) / "out" / "folded" / "config.json").read_bytes()
            self.assertEqual(config, (source(name) / "config.json").read_bytes(), name)


class Factored(unittest.TestCase):
    def test_transformers_refuses_instead_of_loading_silently(self):
        for name, method in (("reference-llama", "commonkv"), ("qwen2", "palu")):
            factored = converted(name, method) / "out" / "factored"
            for loader in (transformers.AutoConfig, transformers.AutoModelForCausalLM):
                with self.subTest(name, loader=loader.__name__), self.assertRaises(ValueError):
                    loader.from_pretrained(factored)

    def test_original_tensors_are_byte_identical(self):
        for name, method in CASES:
            with self.subTest(name, method=method):
                before = load_file(source(name) / "model.safetensors")
                after = load_file(converted(name, method) / "out" / "factored" / "model.safetensors")
                for key, value in before.items():
                    if key not in after:
                        self.assertEqual(method, "palu", key)
                        self.assertRegex(key, r"\.[kv]_proj\.weight$")
                        continue
                    self.assertEqual(value.dtype, after[key].dtype, key)
                    self.assertTrue(torch.equal(value.view(torch.uint8), after[key].view(torch.uint8)), key)
                for key in after.keys() - before.keys():
                    self.assertRegex(key, r"^kvconvert\.groups\.\d+\.")

    def test_config_is_the_sources_and_one_object(self):
        before = json.loads((source("stories260K-hf") / "config.json").read_text(encoding="utf-8"))
        path = converted("stories260K-hf", "commonkv") / "out" / "factored" / "config.json"
        after = json.loads(path.read_text(encoding="utf-8"))
        self.assertEqual(list(after), [*before, "kvconvert"])
        self.assertEqual(after.pop("model_type"), "kvconvert_llama")
        after.pop("kvconvert")
        self.assertEqual(after.items(), {key: value for key, value in before.items() if key != "model_type"}.items())

    def test_tokenizer_files_are_copied(self):
        tokenizer = transformers.AutoTokenizer.from_pretrained(converted("stories260K-hf", "commonkv") / "out" / "folded")
        original = transformers.AutoTokenizer.from_pretrained(DATA / "stories260K-hf")
        self.assertEqual(tokenizer("Once upon a time").input_ids, original("Once upon a time").input_ids)


class Program(unittest.TestCase):
    def test_exports_a_conversion_as_the_pipeline_does(self):
        conversion = converted("stories260K-hf", "commonkv")
        out = directory / "exported"
        for form in ("factored", "folded"):
            run("kvexport", source("stories260K-hf"), "--conversion", conversion / "work" / "conversion" / "conversion.h5",
                "--export", form, "--factor-dtype", "float32", "--out", out)
            for file in ("config.json", "model.safetensors"):
                self.assertEqual((out / file).read_bytes(), (conversion / "out" / form / file).read_bytes(), form)
            shutil.rmtree(out)

    def test_refuses_another_checkpoint_and_formats_that_are_not_there(self):
        conversion = converted("stories260K-hf", "commonkv") / "work" / "conversion" / "conversion.h5"
        out = directory / "refused"
        other = run("kvexport", source("llama"), "--conversion", conversion, "--out", out, expect=1)
        self.assertIn("another checkpoint", other.stderr)
        mla = run("kvexport", source("llama"), "--conversion", conversion, "--export", "mla", "--out", out, expect=2)
        self.assertIn("use kvconvert --export mla", mla.stderr)
        self.assertFalse(out.exists())


class LatentAttention(unittest.TestCase):
    """--export mla: what transformers itself makes of it."""

    def exported(self, kept_ratio):
        out = directory / f"mla-{kept_ratio}"
        if not out.exists():
            run("kvconvert", DATA / "stories260K-hf", "--export", "mla", "--kept-ratio", kept_ratio, "--mla-allowed", 9,
                "--out", out, "--num-sequences", 8, "--seq-len", 128,
                "--calibration", DATA / "texts" / "tinystories_calibration.txt")
        return out

    def test_loads_in_transformers_own_class_and_gives_kvruns_logits(self):
        for kept_ratio in (1, 0.5):
            with self.subTest(kept_ratio=kept_ratio):
                out = self.exported(kept_ratio)
                model, loading = load(out)
                self.assertIs(type(model), transformers.DeepseekV2ForCausalLM)
                self.assertFalse(any(name.split(".")[0] == "kvconvert" for name in sys.modules))
                for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                    self.assertFalse(loading[kind], kind)
                ids = random_ids(model, 2, 48)
                with torch.no_grad():
                    expected = model(ids).logits
                error = (kvrun_logits(out, ids) - expected).abs().max().item()
                self.assertLess(error, 2e-5 * (expected.max() - expected.min()).item())

    def test_the_cache_is_as_small_as_asked_for(self):
        source_config = json.loads((DATA / "stories260K-hf" / "config.json").read_text(encoding="utf-8"))
        plain = 2 * source_config["num_key_value_heads"] * source_config["head_dim"]
        model, _ = load(self.exported(0.5))
        config = model.config
        self.assertEqual(config.kv_lora_rank + config.qk_rope_head_dim, plain // 2)
        ids = random_ids(model, 1, 16)
        with torch.no_grad():
            cache = model(ids, use_cache=True).past_key_values
        for layer in cache.layers:
            self.assertEqual(layer.keys.numel() + layer.values.numel(), 16 * plain // 2)

    def test_the_norm_is_the_same_for_all_tokens(self):
        model, _ = load(self.exported(0.5))
        seen = []
        norm = model.model.layers[2].self_attn.kv_a_layernorm
        hook = norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].pow(2).mean(-1).sqrt()))
        with torch.no_grad():
            model(random_ids(model, 2, 64))
        hook.remove()
        self.assertLess((seen[0].max() / seen[0].min() - 1).item(), 1e-3)


if __name__ == "__main__":
    unittest.main()
