#!/usr/bin/env python3
"""Coded caches from the command line: what selects them, their plan, their statistics, their conversion."""

import json
import re
import shlex
import shutil
import unittest

from programs import DATA, REFERENCE, STORIES, ProgramTest

CONFIGS = DATA / "configs"
TEXTS = DATA / "texts"
# A conversion of stories260K that takes seconds.
SHORT = ("--num-sequences", "12", "--seq-len", "128", "--window", "32", "--no-validate")


def tensor_header(path):
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little")))


def tensor_names(path):
    return tensor_header(path).keys()


class Selection(ProgramTest):
    def plan(self, *arguments):
        return self.run_ok("kvconvert", REFERENCE, "--plan", *arguments).stdout

    def test_a_ratio_alone_selects_it(self):
        self.assertIn("scope", self.plan("--kept-ratio", "0.25"))
        self.assertIn("scope", self.plan("--scope", "head"))
        self.assertIn("rank", self.plan("--kept-ratio", "0.5", "--group", "4"))
        self.assertIn("rank", self.plan("--kept-ratio", "0.5", "--rank", "0.7"))

    def test_flags_of_other_methods_are_refused(self):
        out = ("--out", self.directory / "out")
        self.assert_refused({2}, ["--merge", "coded"], "kvconvert", STORIES, "--method", "coded", "--merge", "ls", *out)
        self.assert_refused({2}, ["--scope", "commonkv"], "kvconvert", STORIES, "--rank", "0.7", "--scope", "head", *out)

    def test_unknown_words_list_the_known(self):
        for flag, known in (("--scope", "head, layer, group"), ("--widths", "0/4/8"), ("--metric", "attn_fs"),
                            ("--prefer", "capacity"), ("--gain", "auto")):
            self.assert_refused({2}, [flag, known], "kvconvert", STORIES, "--kept-ratio", "0.25", flag, "best", "--out",
                                self.directory / "out")


class Plans(ProgramTest):
    def plan(self, model, *arguments):
        return json.loads(self.run_ok("kvconvert", CONFIGS / model, "--plan", "--json", *arguments).stdout)

    def test_the_target_is_met_from_the_config_alone(self):
        for scope in ("head", "layer", "group"):
            plan = self.plan("Llama-3.1-8B", "--kept-ratio", "0.25", "--scope", scope)
            self.assertAlmostEqual(plan["kept_ratio_at_target"], 0.25, delta=0.001)
            exact = plan["exact_tokens"] / plan["context"]
            self.assertAlmostEqual(exact + (1 - exact) * plan["kept_ratio_coded"], plan["kept_ratio_at_target"])
        self.assertEqual(plan["least_calibration_tokens"], 4 * 8192)

    def test_the_automatic_scope_is_named_with_its_reason(self):
        for scope, arguments in (("head", ("0.25",)), ("layer", ("0.25", "--tokens-in-flight", "131072")),
                                 ("group", ("0.1", "--tokens-in-flight", "1048576")),
                                 ("head", ("0.25", "--tokens-in-flight", "131072", "--prefer", "speed"))):
            with self.subTest(arguments=arguments):
                notes = self.plan("Llama-3.1-8B", "--kept-ratio", *arguments)["notes"]
                self.assertTrue(any(f"--scope auto: {scope}" in note for note in notes), notes)

    def test_factors_that_cannot_pay_are_refused_with_the_numbers(self):
        arguments = (CONFIGS / "Llama-3.1-8B", "--plan", "--kept-ratio", "0.25", "--scope", "group", "--tokens-in-flight", "2048")
        self.assert_refused({1}, ["pays from", "4 times the 2048 tokens", "--scope head"], "kvconvert", *arguments)
        self.run_ok("kvconvert", *arguments, "--force")
        plan = self.plan("Llama-3.1-8B", "--kept-ratio", "0.25")
        self.assertLess(plan["weights_growth_bytes"], 128 << 20)
        self.assertEqual(plan["payback"]["factor_bytes"], plan["weights_growth_bytes"])

    def test_a_plan_that_saves_later_than_expected_says_so(self):
        arguments = ("--kept-ratio", "0.25", "--scope", "group", "--tokens-in-flight")
        tokens = self.plan("Llama-3.1-8B", *arguments, "8192")["payback"]["tokens"]
        for expected in (tokens, tokens - 1):
            late = [note for note in self.plan("Llama-3.1-8B", *arguments, str(expected))["notes"] if "saves memory only above" in note]
            self.assertEqual(late, [] if expected == tokens else [
                f"this plan saves memory only above {tokens - 1} cached tokens of all requests together; {tokens - 1} are expected "
                "(--tokens-in-flight)"])

    def test_what_cannot_be_reached_is_refused_with_what_can(self):
        self.assert_refused({1}, ["--kept-ratio 0.1 cannot be reached", "128 stay exact", "--window"], "kvconvert",
                            REFERENCE, "--plan", "--kept-ratio", "0.1", "--window", "128")
        self.run_ok("kvconvert", REFERENCE, "--plan", "--kept-ratio", "0.1")
        self.assert_refused({1}, ["--kept-ratio 1e-09 cannot be reached: too few bits", "Use --kept-ratio 0.00"], "kvconvert",
                            REFERENCE, "--plan", "--kept-ratio", "1e-9")

    def test_a_target_that_nobody_gave_gives_way(self):
        process = self.run_ok("kvconvert", REFERENCE, "--plan", "--group", "4", "--rank", "0.7", "--context", "256",
                              "--window", "128")
        self.assertIn("the lowest possible, instead of 0.5: in a cache of 256 tokens, 132 stay exact", process.stderr)
        self.assert_refused({1}, ["--kept-ratio 0.5 cannot be reached"], "kvconvert", REFERENCE, "--plan", "--group", "4",
                            "--rank", "0.7", "--context", "256", "--window", "128", "--kept-ratio", "0.5")


class CodedPrompts(ProgramTest):
    def test_what_does_not_go_with_it_is_refused(self):
        arguments = ("kvconvert", REFERENCE, "--plan", "--kept-ratio", "0.25")
        self.assert_refused({2}, ["--prefill truncated: does not apply to the method coded"], *arguments, "--method", "coded",
                            "--prefill", "truncated")
        self.assert_refused({2}, ["--prefill coded", "--method"], *arguments, "--method", "xkv-static", "--prefill", "coded")
        self.assert_refused({2}, ["--block: does not apply to the method coded"], *arguments, "--method", "coded",
                            "--block", "16")

    def test_whole_tiles_are_codes(self):
        out = self.directory / "out"
        source, text = self.directory / "it's <b>`bold`", self.directory / "my text's.txt"
        shutil.copytree(STORIES, source)
        shutil.copy(TEXTS / "tinystories_calibration.txt", text)
        (source / "README.md").write_text("---\nlicense: mit\ntags: [x]\n---\nlicense: none\n", encoding="utf-8")
        self.run_ok("kvconvert", source, "--kept-ratio", "0.25", "--form", "rotated", "--prefill", "coded", "--num-sequences", "12",
                    "--seq-len", "128", "--widths", "0/2/4/8", "--calibration", text, "--out", out)
        plan = json.loads((out / "config.json").read_text(encoding="utf-8"))["kvconvert"]["plan"]
        policy = plan["policy"]
        self.assertEqual((policy["prefill"], policy["sink_tokens"], policy["window_tokens"]), ("coded", 0, 0))
        card = (out / "README.md").read_text(encoding="utf-8")
        for part in ("license: mit\n", "--kept-ratio 0.25", "--form rotated", "--widths 0/2/4/8", "vllm serve", "Quality: kept_ratio 0."):
            self.assertIn(part, card)
        self.assertNotIn(str(self.directory), card)
        self.assertIn(r"# it's \<b\>\`bold\`, converted", card)
        self.assertIn("- Source: `` it's <b>`bold` ``", card)
        words = shlex.split(re.search("- Command: `(.*)`\n", card)[1])
        self.assertEqual(words[:2], ["kvconvert", "CHECKPOINT"])
        self.assertEqual(words[words.index("--calibration") + 1], text.name)
        run = ("kvrun", out, "--prompt", "Once upon a time", "--max-new-tokens", "40", "--json")
        kv = json.loads(self.run_ok(*run).stdout)["kv"]
        self.assertGreater(kv["segments"]["coded"], 0)  # one tile
        self.assertLess(kv["segments"]["coded"], kv["bytes"])
        self.assert_refused({1}, ["reads prompts through codes", "leave --policy out"], *run, "--policy", "h2o:budget=16")
        report = json.loads(self.run_ok("kvvalidate", STORIES, out, "--num-sequences", "2", "--seq-len", "128", "--block", "16",
                                        "--json").stdout)
        self.assertAlmostEqual(report["kept_ratio"], 0.25, delta=0.005)
        self.assertGreater(report["continuation"]["kl_divergence"]["mean"], 0)


class Conversions(ProgramTest):
    def convert(self, name, *arguments):
        out = self.directory / name
        process = self.run_ok("kvconvert", STORIES, "--kept-ratio", "0.25", *SHORT, *arguments, "--out", out)
        return out, process

    def test_the_stages_by_hand_give_the_same_bytes(self):
        work = self.directory / "work"
        self.convert("out", "--scope", "layer", "--sink", "4", "--work", work)
        tokens = ("--tokens", work / "tokens.h5")
        for program, flag, name in (("kvcalibrate", "--covariance", "covariance.h5"), ("kvfisher", "--metric", "metric.h5")):
            mine = self.directory / name
            self.run_ok(program, STORIES, flag, *tokens, "--out", mine)
            self.assertEqual(mine.read_bytes(), (work / name).read_bytes())
            total = self.directory / f"sum-{name}"
            self.run_ok(program, flag, "--add", mine, mine, "--out", total)
            summary = json.loads(self.run_ok(program, flag, "--add", mine, total, "--out", self.directory / f"3-{name}",
                                             "--json").stdout)
            self.assertEqual(summary["num_tokens"] % 3, 0)
            twice = self.run_ok(program, flag, "--add", mine, total, "--out", self.directory / f"twice-{name}").stderr
            self.assertIn("count twice", twice)  # the sum's parts are known
            other = self.directory / f"other-{name}"
            self.run_ok(program, STORIES, flag, *tokens, "--sink", "2", "--out", other)
            self.assert_refused({1}, ["another sink_tokens"], program, flag, "--add", mine, other, "--out", self.directory / "never.h5")

    def test_vectors_are_exact_whatever_the_matrices_are(self):
        """A step of float16 would be subnormal, or zero."""
        work = self.directory / "work"
        self.convert("out", "--scope", "head", "--work", work)
        for dtype, stored in (("float16", "F16"), ("bfloat16", "BF16"), ("int8", "I8"), ("float32", "F32")):
            out = self.directory / dtype
            summary = json.loads(self.run_ok("kvexport", STORIES, "--conversion", work / "conversion", "--factor-dtype", dtype, "--out", out,
                                             "--json").stdout)
            tensors = tensor_header(out / "model.safetensors")
            dtypes = {name.rpartition(".")[2]: tensors[name]["dtype"] for name in tensors if name.startswith("kvconvert.coded.2.")}
            self.assertEqual((dtypes["mean"], dtypes["steps"], dtypes["encoder"]), ("F32", "F32", stored))
            factors = (end - begin for name, entry in tensors.items() if name.startswith("kvconvert.") for begin, end in [entry["data_offsets"]])
            config = json.loads((out / "config.json").read_text(encoding="utf-8"))
            self.assertEqual(summary, {"out": str(out), "format": "factored", "factor_dtype": dtype, "factor_bytes": sum(factors),
                                       "factors_sha256": config["kvconvert"]["factors_sha256"]})
            self.run_ok("kvrun", out, "--prompt", "Once", "--max-new-tokens", "3")

    def test_finished_stages_are_reused(self):
        work = self.directory / "work"
        self.convert("first", "--work", work)
        _, second = self.convert("second", "--work", work, "--widths", "0/4/8")
        self.assertIn("covariance: reused", second.stderr)
        self.assertIn("metric: reused", second.stderr)
        self.assertNotIn("conversion: reused", second.stderr)

    def test_one_flipped_bit_of_a_factor_is_found(self):
        out, _ = self.convert("out", "--scope", "head")
        weights = out / "model.safetensors"
        content = bytearray(weights.read_bytes())
        header = int.from_bytes(content[:8], "little")
        first, _ = json.loads(content[8:8 + header])["kvconvert.coded.2.steps"]["data_offsets"]
        content[8 + header + first] ^= 1
        weights.write_bytes(content)
        self.assert_refused({1}, ["kvconvert.*", "damaged", "export the conversion again"], "kvrun", out, "--prompt", "Once")

    def test_the_export_has_the_blocks_and_their_report(self):
        out, process = self.convert("out", "--scope", "head")
        kvconvert = json.loads((out / "config.json").read_text(encoding="utf-8"))["kvconvert"]
        self.assertEqual(kvconvert["plan"]["method"], "coded")
        self.assertEqual(len(kvconvert["plan"]["coded"]), 5 * 4)
        self.assertEqual(len(kvconvert["report"]), 5 * 4)
        for block in kvconvert["report"]:
            self.assertLess(block["predicted_error"], block["energy"])
        self.assertRegex(process.stderr, r"coefficients, \d+ bits")

    def test_factors_of_8_bits_cost_next_to_nothing(self):
        work = self.directory / "work"
        divergence, stored = {}, {}
        for form in ("auto", "float32"):
            out, _ = self.convert(form, "--scope", "layer", "--work", work, "--factor-dtype", form)
            report = json.loads(self.run_ok("kvvalidate", STORIES, out, "--json", "--num-sequences", "4", "--seq-len", "256",
                                            "--block", "64").stdout)
            divergence[form] = report["continuation"]["kl_divergence"]["mean"]
            stored[form] = report["payback"]["factor_bytes"]
            names = tensor_names(out / "model.safetensors")
            self.assertEqual("kvconvert.coded.0.decoder_codes" in names, form == "auto")
            self.assertEqual("kvconvert.coded.0.encoder" in names, form == "float32")
        # Other factors make other codes, whose divergence on so few rows differs by some percent either way.
        self.assertLess(divergence["auto"], 1.25 * divergence["float32"])
        self.assertLess(stored["auto"], 0.25 * stored["float32"])

    def test_every_form_runs_with_the_bytes_of_its_plan(self):
        work = self.directory / "work"
        for form in ("keys", "blocks:2", "pairs", "rotated", "auto"):
            with self.subTest(form=form):
                arguments = ("--scope", "head", "--form", form)
                plan = json.loads(self.run_ok("kvconvert", STORIES, "--kept-ratio", "0.25", "--plan", "--json",
                                              *arguments).stdout)
                self.assertEqual(plan["rows"][0]["form"], form)
                out, _ = self.convert(form.replace(":", "-"), *arguments, "--work", work)
                report = json.loads(self.run_ok("kvvalidate", STORIES, out, "--json", "--num-sequences", "2", "--seq-len", "512",
                                                "--block", "64").stdout)
                self.assertAlmostEqual(report["kept_ratio"], 0.25, delta=0.005)
                text = self.run_ok("kvrun", out, "--prompt", "Once upon a time there was a little girl who",
                                   "--max-new-tokens", "60", "--json").stdout
                self.assertLess(json.loads(text)["kv"]["kept_ratio"], 0.8)

    def test_codes_reach_the_first_token_of_a_text(self):
        # It lies far from all others and is read by all of them: clipped, it leaves a divergence of 0.058.
        out = self.directory / "first"
        self.run_ok("kvconvert", REFERENCE, "--kept-ratio", "0.25", "--scope", "head", "--form", "pairs", "--num-sequences", "3",
                    "--calibration", TEXTS / "tinystories_calibration.txt", "--no-validate", "--out", out)
        report = json.loads(self.run_ok("kvvalidate", REFERENCE, out, "--json", "--num-sequences", "2", "--seq-len", "512",
                                        "--block", "64", "--text", TEXTS / "tinystories_heldout.txt").stdout)
        self.assertLess(report["continuation"]["kl_divergence"]["mean"], 0.02)

    def test_a_preference_for_speed_chooses_the_form(self):
        for arguments, form in (((), "full"), (("--prefer", "speed"), "auto"), (("--products", "50"), "auto"),
                                (("--prefer", "speed", "--scope", "group"), "full"),
                                (("--prefer", "speed", "--form", "keys"), "keys")):
            with self.subTest(arguments=arguments):
                plan = json.loads(self.run_ok("kvconvert", REFERENCE, "--kept-ratio", "0.25", "--plan", "--json",
                                              *arguments).stdout)
                self.assertEqual(plan["rows"][0]["form"], form)

    def test_forms_that_do_not_apply_are_refused_with_one_that_does(self):
        for arguments, words in ((("--form", "blocks:3"), ["4 rotary pairs", "divides 4"]),
                                 (("--form", "rotated", "--scope", "group"), ["--form full", "--scope head"]),
                                 (("--form", "keys:2"), ["only blocks has a number"]),
                                 (("--form", "blocks:0"), ["blocks:0: expected a number of bases", "at least 1"]),
                                 (("--form", "turned"), ["full, keys, blocks"]),
                                 (("--form", "pairs", "--products", "10"), ["only --form auto"])):
            with self.subTest(arguments=arguments):
                self.assert_refused({2}, words, "kvconvert", STORIES, "--kept-ratio", "0.25", "--plan", *arguments)

    def test_it_cannot_be_folded(self):
        for form in ("folded", "both"):
            for plan in ((), ("--plan",)):
                self.assert_refused({1}, [f"--export {form}", "factored"], "kvconvert", STORIES, "--kept-ratio", "0.25", *SHORT,
                                    "--export", form, "--out", self.directory / "out", *plan)

    def test_methods_without_weights_of_their_own_cannot_be_folded(self):
        for method, words in (("minicache", "nothing to fold"), ("xkv", "nothing to fold"), ("pca", "nothing to fold"),
                              ("fusedkv", "fused layers")):
            for form in ("folded", "both"):
                self.assert_refused({1}, [f"--export {form}", words, "factored"], "kvconvert", STORIES, "--method", method, "--export", form,
                                    "--num-sequences", "8", "--seq-len", "64", "--no-validate", "--out", self.directory / "out",
                                    "--work", self.directory / "work")

    def test_too_little_text_is_refused_before_it_is_read(self):
        self.assert_refused({1}, ["--num-sequences"], "kvconvert", STORIES, "--kept-ratio", "0.25", "--scope", "group",
                            "--num-sequences", "2", "--seq-len", "64", "--window", "32", "--out", self.directory / "out")


if __name__ == "__main__":
    unittest.main()
