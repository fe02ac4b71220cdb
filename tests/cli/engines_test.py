#!/usr/bin/env python3
"""Conversions for engines: what --for selects, and what it refuses."""

import ast
import json
import re
import unittest

from programs import DATA, REFERENCE, ProgramTest

CONFIGS = DATA / "configs"


class Engines(ProgramTest):
    def test_an_engine_selects_it(self):
        arguments = ("kvconvert", CONFIGS / "Llama-3.1-8B", "--plan", "--json")
        coded = ("--kept-ratio", "0.5", "--prefill", "coded")
        plans = [json.loads(self.run_ok(*arguments, *more).stdout)
                 for more in ((*coded, "--window", "0"), ("--for", "vllm"), coded, ("--for", "transformers"))]
        self.assertEqual(plans[0], plans[1])
        self.assertEqual(plans[2], plans[3])
        self.assertEqual([plan["exact_tokens"] for plan in plans[1:3]], [0, 32])

    def test_windows_of_whole_tiles_are_served(self):
        for engine in ("vllm", "transformers"):
            plan = self.run_ok("kvconvert", REFERENCE, "--plan", "--json", "--for", engine, "--window", "64", "--kept-ratio", "0.25")
            self.assertEqual(json.loads(plan.stdout)["exact_tokens"], 64)

    def test_what_an_engine_rules_out_is_said(self):
        plan = ("kvconvert", REFERENCE, "--plan", "--kept-ratio", "0.25", "--for", "vllm")
        self.assertIn("refuse --tensor-parallel-size", self.run_ok(*plan, "--scope", "layer").stderr)
        self.assertIn("refuse --pipeline-parallel-size", self.run_ok(*plan, "--scope", "group").stderr)
        self.assertNotIn("refuse", self.run_ok(*plan, "--scope", "head").stderr)

    def test_what_an_engine_cannot_serve_is_refused(self):
        arguments = ("kvconvert", REFERENCE, "--plan", "--for", "vllm")
        self.assert_refused({2}, ["--for", "sglang", "transformers"], "kvconvert", REFERENCE, "--plan", "--for", "sglang")
        self.assert_refused({2}, ["--for vllm", "found xkv"], *arguments, "--method", "xkv")
        self.assert_refused({2}, ["--for vllm", "found minicache"], *arguments, "--method", "minicache")
        self.assert_refused({2}, ["--for vllm", "whole tiles", "--window 40", "pass --window 32"], *arguments, "--window", "40")
        self.assert_refused({2}, ["--for vllm", "--sink 4"], *arguments, "--sink", "4")
        self.assert_refused({2}, ["--for vllm", "--prefill exact"], *arguments, "--prefill", "exact")
        self.assert_refused({2}, ["--block: does not apply"], *arguments, "--block", "64")
        self.assert_refused({2}, ["--for vllm", "--export"], *arguments, "--export", "folded")
        config = json.loads((REFERENCE / "config.json").read_text(encoding="utf-8"))
        olmo = self.directory / "olmo"
        olmo.mkdir()
        (olmo / "config.json").write_text(json.dumps(config | {"model_type": "olmo2",
                                                               "architectures": ["Olmo2ForCausalLM"]}))
        self.assert_refused({2}, ["vLLM does not serve conversions of olmo2", "--for transformers"], "kvconvert", olmo, "--plan",
                            "--for", "vllm")

    def test_transformers_takes_latents(self):
        arguments = ("kvconvert", REFERENCE, "--plan", "--json")
        for method in (("pca", "--kept-ratio", "0.3"), ("xkv-static", "--kept-ratio", "0.3"), ("palu", "--rank", "0.5"),
                       ("commonkv", "--merge", "none", "--rank", "0.3", "--group", "2")):
            plain, suited = (self.run_ok(*arguments, "--method", *method, *more).stdout for more in ((), ("--for", "transformers")))
            self.assertEqual(plain, suited)

    def test_fused_layers(self):
        arguments = ("kvconvert", REFERENCE, "--plan", "--force")
        for name in ("transformers", "vllm"):
            engine = ("--for", name)
            for method in ("fusedkv", "fusedkv-lite", "yoco", "cla"):
                plain, suited = (self.run_ok(*arguments, "--json", "--method", method, *more).stdout for more in ((), engine))
                self.assertEqual(plain, suited)
            self.assert_refused({2}, [f"--for {name}", "found --fusion matrices"], *arguments, *engine, "--method", "fusedkv",
                                "--fusion", "matrices")
            self.assert_refused({2}, ["--kv-dtype: does not apply to the method fusedkv", "pca"], *arguments, *engine, "--method",
                                "fusedkv", "--kv-dtype", "int8")
            self.assert_refused({2}, [f"--for {name}", "of phi3", "does not run fusedkv"], "kvconvert",
                                DATA / "zoo/phi3_partial_window", "--plan", *engine, "--method", "fusedkv", "--force")
        limits = self.run_ok(*arguments, "--for", "vllm", "--method", "fusedkv").stderr
        self.assertIn("refuse --pipeline-parallel-size that parts fused layers from those that they read; --method coded", limits)
        self.assertNotIn("--tensor-parallel-size", limits)

    def test_vllm_takes_latents_without_exact_tokens(self):
        arguments = ("kvconvert", REFERENCE, "--plan", "--json")
        none = ("--sink", "0", "--window", "0", "--block", "1")
        commonkv = ("commonkv", "--merge", "none", "--rank", "0.3", "--group", "2")
        for method in (("pca", "--kept-ratio", "0.3"), ("xkv-static", "--kept-ratio", "0.3"), ("palu", "--rank", "0.5"), commonkv,
                       (*commonkv, "--preset", "paper")):
            given = () if method[0] == "palu" else none
            plain, suited = (json.loads(self.run_ok(*arguments, "--method", *method, *more).stdout)
                             for more in (given, ("--for", "vllm")))
            self.assertEqual(plain, suited)
        for flag, tokens in (("--sink", "4"), ("--window", "32"), ("--block", "8")):
            self.assert_refused({2}, [f"--for vllm: requires {flag} ", f"found {flag} {tokens}; leave {flag} out"], *arguments,
                                "--for", "vllm", "--method", "pca", flag, tokens)
        plan = ("kvconvert", REFERENCE, "--plan", "--kept-ratio", "0.3", "--for", "vllm", "--method", "pca")
        limits = self.run_ok(*plan).stderr
        self.assertIn("refuse --tensor-parallel-size above 1: a latent is of all KV heads", limits)
        self.assertIn("refuse --pipeline-parallel-size that splits a group of layers; --group 1", limits)
        self.assertNotIn("--pipeline-parallel-size", self.run_ok(*plan, "--group", "1").stderr)

    def test_latents_that_an_engine_does_not_run_are_refused(self):
        for engine in ("transformers", "vllm"):
            arguments, phi3 = (("kvconvert", checkpoint, "--plan", "--for", engine)
                               for checkpoint in (REFERENCE, DATA / "zoo/phi3_partial_window"))
            methods = "commonkv, palu, coded, pca, xkv-static, fusedkv, fusedkv-lite, yoco or cla"
            self.assert_refused({2}, [f"--method {methods}, found xkv"], *arguments, "--method", "xkv")
            self.assert_refused({2}, [f"--for {engine}: runs commonkv without merged tokens, found --merge ls; pass --merge none"],
                                *arguments, "--method", "commonkv", "--group", "2", "--rank", "0.5")
            self.assert_refused({2}, ["in the model's dtype, found --kv-dtype int8"], *arguments, "--method", "pca", "--kv-dtype",
                                "int8")
            self.assert_refused({2}, ["--export"], *arguments, "--method", "palu", "--export", "folded")
            self.assert_refused({2}, ["one matrix for the queries, keys and values of phi3", "--method pca"], *phi3, "--method",
                                "palu", "--rank", "0.5")
            self.run_ok(*phi3, "--method", "pca", "--kept-ratio", "0.5")
            self.assert_refused({2}, ["latents of deepseek_v2's own latents"], "kvconvert", DATA / "zoo/deepseek_v2_lite", "--plan",
                                "--for", engine, "--method", "xkv-static", "--metric", "none")

    def test_the_plugin_refuses_the_same_families(self):
        root = DATA.parents[1]
        tree = ast.parse((root / "python/kvconvert/vllm/families.py").read_text(encoding="utf-8"))
        refused = next(node.value for node in tree.body
                       if isinstance(node, ast.AnnAssign) and node.target.id == "REFUSED")
        source = (root / "convert/serving_engine.cpp").read_text(encoding="utf-8")
        table = re.search(r"kNotInVllm = \{(.*?)\};", source, re.DOTALL).group(1)
        self.assertEqual(re.findall(r'"(\w+)"', table), [key.value for key in refused.keys])


if __name__ == "__main__":
    unittest.main()
