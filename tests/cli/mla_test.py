#!/usr/bin/env python3
"""DeepSeek-V2's layout: what kvconvert --export mla writes, what it costs, and when it writes nothing."""

import json
import re
import unittest

from programs import DATA, STORIES, ProgramTest, copy_checkpoint, listing

NUMBER = r"[-+0-9.e]+"


class LatentAttention(ProgramTest):
    """--export mla, which is judged beside a coded cache."""

    MLA = ("--export", "mla", "--num-sequences", "8", "--seq-len", "128")

    def test_the_export_runs_with_the_cache_that_it_states(self):
        out, before = self.directory / "out", listing(STORIES)
        process = self.run_ok("kvconvert", STORIES, *self.MLA, "--kept-ratio", "0.5", "--mla-allowed", "9", "--out", out)
        summary, verdict = process.stdout.strip().splitlines()
        kept = float(re.match(rf"kept_ratio ({NUMBER}) ", summary).group(1))
        self.assertAlmostEqual(kept, 0.5, places=3)
        mla, coded = map(float, re.match(rf"mla: KLD ({NUMBER}) .*coded: KLD ({NUMBER}) ", verdict).groups())
        self.assertGreater(mla, coded)
        config = json.loads((out / "config.json").read_text(encoding="utf-8"))
        self.assertEqual(config["model_type"], "deepseek_v2")
        self.assertEqual(config["kv_lora_rank"] + config["qk_rope_head_dim"], 32)
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        self.assertAlmostEqual(report["coded"]["continuation"]["kl_divergence"]["mean"], coded, delta=0.01 * coded)
        self.assertIn("deepseek_v2", (out / "README.md").read_text(encoding="utf-8"))
        prompt = ("--prompt", "Once upon a time", "--max-new-tokens", "60", "--json", "--quiet")
        original = json.loads(self.run_ok("kvrun", STORIES, *prompt).stdout)
        exported = json.loads(self.run_ok("kvrun", out, *prompt).stdout)
        self.assertEqual(2 * exported["kv"]["bytes"], original["kv"]["bytes"])
        self.assertEqual(listing(STORIES), before)

    def test_text_of_another_kind_is_named(self):
        process = self.run_ok("kvconvert", STORIES, *self.MLA, "--kept-ratio", "0.5", "--mla-allowed", "9", "--calibration", "builtin",
                              "--validation-text", DATA / "texts" / "tinystories_heldout.txt", "--out", self.directory / "out")
        summary, warning, verdict = process.stdout.strip().splitlines()
        self.assertIn("of another kind than the calibration text", warning)

    def test_the_same_inputs_give_the_same_bytes(self):
        for name in ("a", "b"):
            self.run_ok("kvconvert", STORIES, *self.MLA, "--kept-ratio", "0.5", "--mla-allowed", "9", "--out",
                        self.directory / name, "--quiet")
        a, b = listing(self.directory / "a"), listing(self.directory / "b")
        self.assertEqual(a["model.safetensors"], b["model.safetensors"])
        self.assertEqual(a["config.json"], b["config.json"])

    def test_a_loss_beyond_what_is_allowed_leaves_nothing(self):
        message = self.assert_refused((3,), ("coded: KLD", "--mla-allowed 1e-06", "--kept-ratio"), "kvconvert", STORIES,
                                      *self.MLA, "--kept-ratio", "0.25", "--mla-allowed", "1e-6", "--out",
                                      self.directory / "out")
        allowed = re.search(r"Allow more with --mla-allowed (\S+),", message).group(1)
        self.run_ok("kvconvert", STORIES, *self.MLA, "--kept-ratio", "0.25", "--mla-allowed", allowed, "--out",
                    self.directory / "out", "--quiet")

    def test_refusals_before_any_work(self):
        biased = copy_checkpoint(DATA / "zoo" / "qwen2", self.directory / "qwen2")
        out = ("--out", self.directory / "out")
        for codes, words, source, arguments in (
                ((1,), ("qwen2", "biases", "leave --export out"), biased, ("--export", "mla")),
                ((1,), ("--kept-ratio 0.01", "or more"), STORIES, ("--export", "mla", "--kept-ratio", "0.01")),
                ((2,), ("--plan",), STORIES, ("--export", "mla", "--plan")),
                ((2,), ("--no-validate",), STORIES, ("--export", "mla", "--no-validate")),
                ((2,), ("--method",), STORIES, ("--export", "mla", "--method", "palu")),
                ((2,), ("--form",), STORIES, ("--export", "mla", "--form", "keys")),
                ((2,), ("--mla-allowed", "--export mla"), STORIES, ("--mla-allowed", "1")),
                ((2,), ("--for vllm", "--export"), STORIES, ("--export", "mla", "--for", "vllm"))):
            self.assert_refused(codes, words, "kvconvert", source, *arguments, *out)


if __name__ == "__main__":
    unittest.main()
