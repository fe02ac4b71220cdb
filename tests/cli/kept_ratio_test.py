#!/usr/bin/env python3
"""One kept_ratio: what a plan states for a length is what validation and runs of texts of that length measure."""

import json
import unittest

from programs import STORIES, ProgramTest, copy_checkpoint, edit_config, edit_tensors

TOKENS = 512  # the model's context, which plans and validation take unless told otherwise
# Whole pages of tokens; tokens that a later block will merge; how many minicache leaves unmerged. The other methods are exact.
TOLERANCES = {"commonkv": 0.015, "pca": 0.03, "xkv-static": 0.03, "xkv": 0.03, "minicache": 0.01}
SETTINGS = {
    "coded layer": ("--method", "coded", "--scope", "layer"),
    "coded head": ("--method", "coded", "--scope", "head"),
    "coded group": ("--method", "coded", "--scope", "group", "--group", "5"),
    "commonkv": ("--method", "commonkv", "--group", "5"),
    "palu": ("--method", "palu"),
    "pca": ("--method", "pca"),
    "xkv-static": ("--method", "xkv-static", "--group", "5"),
    "xkv": ("--method", "xkv", "--group", "5"),
    "minicache": ("--method", "minicache"),
    "fusedkv": ("--method", "fusedkv"),
    "fusedkv-lite": ("--method", "fusedkv-lite"),
}
RATIOS = {"coded layer": 0.45, "coded head": 0.45, "coded group": 0.45, "palu": 0.625}  # within 8 bits a number; a multiple of its ranks
FIXED = ("minicache", "fusedkv", "fusedkv-lite")  # no --kept-ratio chooses their size
WITHOUT_WINDOW = ("palu", *FIXED)
PROMPTS_ONLY = ("minicache", "xkv")  # what follows the prompt stays exact


def to_bfloat16(tensors):
    for entry in tensors.values():
        if entry[0] == "F32":
            entry[0], values = "BF16", entry[2]
            entry[2] = b"".join(values[i + 2:i + 4] for i in range(0, len(values), 4))


class Targets(ProgramTest):
    def test_a_method_that_follows_no_target_says_so(self):
        note = "this plan keeps 0.600; its size follows from other settings of --method fusedkv"
        plan = ("kvconvert", STORIES, "--plan", "--method", "fusedkv")
        self.assertIn(f"--kept-ratio 0.3: {note}", self.run_ok(*plan, "--kept-ratio", "0.3").stderr)
        for arguments in ((*plan, "--kept-ratio", "0.6"), plan, ("kvconvert", STORIES, "--plan", "--method", "pca", "--kept-ratio", "0.5")):
            self.assertNotIn("this plan keeps", self.run_ok(*arguments).stderr)


class OneRatio(ProgramTest):
    def setUp(self):
        super().setUp()
        self.checkpoint = copy_checkpoint(STORIES, self.directory / "checkpoint")
        edit_config(self.checkpoint, dtype="bfloat16")
        edit_tensors(self.checkpoint, to_bfloat16)

    def result(self, *command):
        return json.loads(self.run_ok(*command, "--json", "--quiet").stdout)

    def kvrun(self, model, tokens, *more):
        ids = self.directory / "ids.json"
        ids.write_text(json.dumps([3 + 7 * i % 500 for i in range(tokens)]), encoding="utf-8")
        return self.result("kvrun", model, "--ids", ids, "--max-new-tokens", "1", *more)

    def check(self, method):
        ratio, tolerance = RATIOS.get(method, 0.6), TOLERANCES.get(method, 1e-3)
        settings = (*SETTINGS[method], *(() if method in WITHOUT_WINDOW else ("--window", "16")),
                    *(() if method in FIXED else ("--kept-ratio", ratio)))
        out = self.directory / method
        plan = self.result("kvconvert", self.checkpoint, *settings, "--plan")
        self.assertEqual((plan["context"], plan["kv_dtype"]), (TOKENS, "bfloat16"))
        converted = self.result("kvconvert", self.checkpoint, *settings, "--num-sequences", "8", "--out", out,
                                "--force")["validation"]
        report = self.result("kvvalidate", self.checkpoint, out, "--num-sequences", "2")
        run = self.kvrun(out, TOKENS)["kv"]
        wide = self.kvrun(out, TOKENS, "--dtype", "float32")["kv"]
        forecast = self.kvrun(out, TOKENS, "--plan")
        self.assertEqual(run["original_bytes"], wide["original_bytes"])
        self.assertEqual(run["original_bytes"], forecast["original_bytes"])
        self.assertEqual(run["original_bytes"] * report["num_sequences"], report["original_kv_bytes"])
        self.assertEqual(converted["tokens_per_sequence"], TOKENS)
        planned = plan["kept_ratio_at_target"]
        if method not in FIXED:  # ranks are rounded down
            self.assertLessEqual(planned, ratio)
            self.assertAlmostEqual(planned, ratio, delta=0.01)
        self.assertAlmostEqual(run["kept_ratio"], planned, delta=tolerance)
        self.assertAlmostEqual(forecast["kept_ratio"], planned, delta=tolerance)
        expected = planned
        if method in PROMPTS_ONLY:
            expected = (1 + self.kvrun(out, TOKENS // 2)["kv"]["kept_ratio"]) / 2
        self.assertAlmostEqual(converted["kept_ratio"], expected, delta=tolerance)
        self.assertAlmostEqual(report["kept_ratio"], expected, delta=tolerance)

    def test_of_every_method(self):
        for method in SETTINGS:
            with self.subTest(method):
                self.check(method)


if __name__ == "__main__":
    unittest.main()
