#!/usr/bin/env python3
"""The project's main job on real input: the reference checkpoint is converted, judged and run."""

import json
import re
import struct
import unittest

from programs import DATA, FAST, REFERENCE, STORIES, ProgramTest, copy_checkpoint, edit_config, edit_tensors, listing, run

NUMBER = r"[-+0-9.e]+"
SUMMARY = re.compile(rf"kept_ratio ({NUMBER}) .*KLD ({NUMBER}) .*perplexity ratio ({NUMBER}) .*same top ({NUMBER})")


class Reference(ProgramTest):
    """Shares one conversion between the tests: it takes most of a minute."""

    @classmethod
    def setUpClass(cls):
        cls.shared = cls()
        cls.shared.setUp()
        cls.source = listing(REFERENCE)
        cls.out = cls.shared.directory / "converted"
        cls.process = cls.shared.run_ok("kvconvert", "--group", "4", "--rank", "0.7", REFERENCE, "--out", cls.out,
                                        timeout=550)

    @classmethod
    def tearDownClass(cls):
        cls.shared.doCleanups()

    def runTest(self):  # lets setUpClass make an instance
        pass

    def kvrun(self, model, *arguments):
        return json.loads(self.run_ok("kvrun", model, "--json", "--quiet", *arguments).stdout)

    def test_ends_with_one_line_that_states_saving_and_price(self):
        lines = self.process.stdout.strip().splitlines()
        self.assertEqual(len(lines), 1, self.process.stdout)
        match = SUMMARY.match(lines[0])
        self.assertIsNotNone(match, lines[0])
        kept, kld, ratio, same_top = map(float, match.groups())
        self.assertLess(kept, 0.75)
        self.assertLess(kld, 0.05)
        self.assertAlmostEqual(ratio, 1.0, delta=0.05)
        self.assertGreater(same_top, 90)

    def test_the_output_is_a_checkpoint_with_its_report(self):
        files = listing(self.out)
        for name in ("config.json", "model.safetensors", "tokenizer.json", "report.json", "report.html"):
            self.assertIn(name, files)
        config = json.loads((self.out / "config.json").read_text(encoding="utf-8"))
        plan = config["kvconvert"]["plan"]
        self.assertEqual(len(plan["layers"]), 12)
        report = json.loads((self.out / "report.json").read_text(encoding="utf-8"))
        self.assertIn("continuation", report)
        self.assertIn("teacher_forced", report)
        self.assertNotIn("T", re.findall(r"\d{4}-\d{2}-\d{2}(T)\d{2}:", json.dumps(report)), "reports carry no times")

    def test_the_source_is_untouched(self):
        self.assertEqual(listing(REFERENCE), self.source)

    def test_kvrun_keeps_fewer_bytes_and_still_speaks(self):
        prompt = "Once upon a time, there was a little girl named Lily. " * 16
        original = self.kvrun(REFERENCE, "--prompt", prompt, "--max-new-tokens", "200")
        converted = self.kvrun(self.out, "--prompt", prompt, "--max-new-tokens", "200")
        self.assertEqual(original["kv"]["bytes"], original["kv"]["original_bytes"])
        self.assertEqual(converted["kv"]["original_bytes"], original["kv"]["original_bytes"])
        self.assertLess(converted["kv"]["bytes"], 0.8 * original["kv"]["bytes"])
        self.assertEqual(converted["tokens"][:10], original["tokens"][:10])

    def test_thresholds_decide_the_exit_code(self):
        report = self.directory / "report.json"
        arguments = (REFERENCE, self.out, "--num-sequences", "2", "--seq-len", "256", "--quiet")
        self.run_ok("kvvalidate", *arguments, "--max-kld", "0.5", "--max-ppl-ratio", "1.5", "--min-same-top", "0.5",
                    "--report", report)
        self.assertIn("continuation", json.loads(report.read_text(encoding="utf-8")))
        missed = run("kvvalidate", *arguments, "--max-kld", "1e-9")
        self.assertEqual(missed.returncode, 3, missed.stderr)
        self.assertIn("--max-kld", missed.stderr)

    def test_parts_cost_less_alone(self):
        html, report = self.directory / "report.html", self.directory / "report.json"
        text = self.run_ok("kvvalidate", REFERENCE, self.out, "--num-sequences", "2", "--seq-len", "256", "--by-part", "--quiet",
                           "--html", html, "--report", report).stdout
        self.assertIn("layers 4-7", text)
        self.assertIn("What each part costs alone", html.read_text(encoding="utf-8"))
        report = json.loads(report.read_text(encoding="utf-8"))
        self.assertEqual([(part["first_layer"], part["num_layers"]) for part in report["parts"]], [(0, 4), (4, 4), (8, 4)])
        together = report["continuation"]["kl_divergence"]["mean"]
        for part in report["parts"]:
            self.assertGreater(part["kl_divergence"]["mean"], 0)
            self.assertLess(part["kl_divergence"]["mean"], together)


FEW = ("--num-sequences", "8", "--seq-len", "128")


class Parts(ProgramTest):
    """--by-part of conversions whose parts are known."""

    def report(self, *arguments):
        return json.loads(self.run_ok("kvvalidate", STORIES, *arguments, "--num-sequences", "2", "--seq-len", "128", "--by-part",
                                      "--json", "--quiet").stdout)

    def test_one_part_is_the_whole(self):
        out = self.directory / "out"
        self.run_ok("kvconvert", STORIES, "--method", "pca", "--group", "5", "--out", out, *FEW, "--by-part", "--quiet")
        written = json.loads((out / "report.json").read_text(encoding="utf-8"))
        for report in (written, self.report(out)):
            self.assertEqual(len(report["parts"]), 1)
            self.assertEqual(report["parts"][0]["kl_divergence"]["mean"], report["continuation"]["kl_divergence"]["mean"])
        self.assertNotIn("--by-part", (out / "README.md").read_text(encoding="utf-8"))

    def test_a_damaged_layer_is_named(self):
        out = self.directory / "out"
        self.run_ok("kvconvert", STORIES, "--kept-ratio", "0.4", "--scope", "layer", "--factor-dtype", "float32", "--out", out,
                    *FEW, "--no-validate", "--quiet")
        before = self.report(out)["parts"]

        def widen(tensors):  # the steps of layer 3
            steps = tensors["kvconvert.coded.3.steps"]
            steps[2] = struct.pack(f"<{len(steps[2]) // 4}f", *(8 * x for (x,) in struct.iter_unpack("<f", steps[2])))

        edit_tensors(out, widen)
        conversion = json.loads((out / "config.json").read_text(encoding="utf-8"))["kvconvert"]
        edit_config(out, kvconvert={key: value for key, value in conversion.items() if key != "factors_sha256"})
        after = self.report(out)["parts"]
        self.assertEqual(len(after), 5)
        for layer, (sound, damaged) in enumerate(zip(before, after)):
            if layer == 3:
                self.assertGreater(damaged["kl_divergence"]["mean"], 5 * sound["kl_divergence"]["mean"])
            else:
                self.assertEqual(damaged, sound)

    def test_refusals_say_what_to_leave_out(self):
        folded = self.directory / "folded"
        self.run_ok("kvconvert", STORIES, "--export", "folded", "--out", folded, *FAST, "--quiet")
        for code, program, arguments, part in (
                (1, "kvvalidate", (STORIES, folded), "every layer keeps plain KV"),
                (2, "kvvalidate", (STORIES, STORIES, "--policy", "h2o:budget=64"), "--policy"),
                (2, "kvconvert", (STORIES, "--no-validate"), "--no-validate"),
                (2, "kvconvert", (STORIES, "--export", "folded"), "--export folded"),
                (2, "kvconvert", (STORIES, "--sweep", "default"), "--sweep")):
            process = run(program, *arguments, "--by-part")
            self.assertEqual(process.returncode, code, process.stderr)
            self.assertIn(part, process.stderr)


class Equalities(ProgramTest):
    def test_a_model_compared_with_itself(self):
        process = self.run_ok("kvvalidate", STORIES, STORIES, "--num-sequences", "2", "--json", "--quiet")
        report = json.loads(process.stdout)
        self.assertEqual(report["kept_ratio"], 1)
        self.assertLess(abs(report["continuation"]["kl_divergence"]["mean"]), 1e-9)

    def test_rows_too_short_to_be_compressed_say_so(self):
        converted, words = self.directory / "converted", "too short to be compressed"
        original = {converted: STORIES, STORIES: STORIES, REFERENCE: REFERENCE}
        self.run_ok("kvconvert", STORIES, "--kept-ratio", "0.25", "--out", converted, "--num-sequences", "12", "--seq-len", "128",
                    "--no-validate", "--quiet")
        for candidate, tokens, options, is_named in (
                (converted, 32, (), True), (converted, 33, (), True), (converted, 34, (), False), (converted, 64, ("--block", "30"), False),
                (REFERENCE, 128, ("--kv-dtype", "int4"), True), (REFERENCE, 256, ("--kv-dtype", "int4"), False), (STORIES, 32, (), False),
                (REFERENCE, 128, ("--kv-dtype", "float32", "--policy", "h2o:budget=100"), False),
                (STORIES, 64, ("--policy", "h2o:budget=200"), True), (STORIES, 64, ("--policy", "h2o:budget=20"), False)):
            with self.subTest(candidate=candidate.name, tokens=tokens, options=options):
                report = json.loads(self.run_ok("kvvalidate", original[candidate], candidate, "--num-sequences", "2", "--seq-len", tokens,
                                                *options, "--json", "--quiet").stdout)
                self.assertEqual(any(words in warning for warning in report["warnings"]), is_named, report["warnings"])

    def test_a_text_counts_once(self):
        text = self.directory / "text.txt"
        text.write_text((DATA / "texts/tinystories_heldout.txt").read_text(encoding="utf-8")[:4000], encoding="utf-8")
        arguments = ("kvvalidate", STORIES, STORIES, "--kv-dtype", "int4", "--seq-len", "200", "--json", "--text", text)
        once, twice = self.run_ok(*arguments), self.run_ok(*arguments, text)
        reports = [json.loads(process.stdout) for process in (once, twice)]
        self.assertEqual(*({**report, "options": None} for report in reports))
        self.assertRegex(twice.stderr, "text.txt: has the bytes of another")

    def test_stages_by_hand_give_the_pipelines_bytes(self):
        work = self.directory / "work"
        self.run_ok("kvconvert", STORIES, "--out", self.directory / "out", "--work", work, *FAST, "--quiet")
        tokens = work / "tokens.h5"
        for program, name in (("kvcalibrate", "calibration.h5"), ("kvfisher", "fisher.h5")):
            self.run_ok(program, STORIES, "--tokens", tokens, "--out", self.directory / name, "--quiet")
            self.assertEqual((self.directory / name).read_bytes(), (work / name).read_bytes(), name)
        self.run_ok("kvexport", STORIES, "--conversion", work / "conversion", "--export", "factored",
                    "--out", self.directory / "exported", "--quiet")
        self.assertEqual(listing(self.directory / "exported"), listing(self.directory / "out"))

    def test_a_conversion_that_was_forced_is_refused_without(self):
        """The later run finds it in --work, with fits that --min-r2 refuses."""
        fused = ("kvconvert", STORIES, "--method", "fusedkv", "--work", self.directory / "work", "--num-sequences", "4", "--seq-len", "64",
                 "--no-validate", "--out")
        self.run_ok(*fused, self.directory / "forced", "--force")
        self.assert_refused((1,), ("--min-r2", "--force to convert anyway"), *fused, self.directory / "out")

    def test_greedy_text_of_a_public_model(self):
        expected = (STORIES / "expected_greedy.txt").read_text(encoding="utf-8")
        process = self.run_ok("kvrun", STORIES, "--prompt", "Once upon a time", "--max-new-tokens", "256",
                              "--dtype", "float32", "--quiet")
        self.assertEqual(process.stdout.rstrip("\n"), expected.rstrip("\n"))

    def test_minicache_takes_no_more_than_its_plans_say(self):
        out = self.directory / "out"
        table = json.loads(self.run_ok("kvconvert", STORIES, "--method", "minicache", "--context", "256", "--plan",
                                       "--json").stdout)
        self.run_ok("kvconvert", STORIES, "--method", "minicache", "--out", out, *FAST[4:], "--quiet")
        prompt = ("--prompt", "Once upon a time " * 60, "--max-new-tokens", "1", "--page-tokens", "1", "--json", "--quiet")
        kv = json.loads(self.run_ok("kvrun", out, *prompt).stdout)["kv"]
        plan = json.loads(self.run_ok("kvrun", out, *prompt, "--plan").stdout)
        self.assertLessEqual(kv["bytes"], plan["end_bytes"])
        self.assertGreater(kv["bytes"], plan["end_bytes"] * 0.95)
        self.assertLess(kv["kept_ratio"], table["kept_ratio_at_target"] + 0.01)
        self.assertGreater(kv["kept_ratio"], table["kept_ratio_merged"] - 0.01)

    def test_reports_measure_the_cache_type_that_is_planned(self):
        out = self.directory / "int8"
        self.run_ok("kvconvert", REFERENCE, "--out", out, "--method", "pca", "--kv-dtype", "int8", "--kept-ratio", "0.5",
                    "--num-sequences", "8", "--seq-len", "128", "--quiet")
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        self.assertEqual(report["options"]["kv_dtype"], "int8")
        self.assertAlmostEqual(report["kept_ratio"], 0.5, delta=0.05)
        self.assertIn("kvrun . --kv-dtype int8 --prompt", (out / "README.md").read_text(encoding="utf-8"))

    def test_both_exports_in_one_directory(self):
        out = self.directory / "out"
        self.run_ok("kvconvert", STORIES, "--out", out, *FAST, "--export", "both", "--quiet")
        for form in ("folded", "factored"):
            self.run_ok("kvrun", out / form, "--prompt", "Once", "--max-new-tokens", "3", "--quiet")


class CodeOfTheCheckpoint(ProgramTest):
    """A supported type whose directory also brings Python, as the official Phi-3 and DeepSeek-V2 do."""

    UNSAFE = {"auto_map": {"AutoModelForCausalLM": "modeling_x.XForCausalLM"}, "trust_remote_code": True,
              "_attn_implementation_internal": "eager"}

    def setUp(self):
        super().setUp()
        self.checkpoint = copy_checkpoint(STORIES, self.directory / "checkpoint")
        edit_config(self.checkpoint, **self.UNSAFE)
        for name in ("generation_config.json", "tokenizer_config.json"):
            path = self.checkpoint / name
            json_object = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
            path.write_text(json.dumps(json_object | self.UNSAFE), encoding="utf-8")
        for name in ("modeling_x.py", "configuration_x.py", "tokenization_x.py"):
            (self.checkpoint / name).write_text("open('ran', 'w')\n", encoding="utf-8")

    def run_noting(self, program, *arguments):
        process = self.run_ok(program, *arguments)
        self.assertEqual(process.stderr.count("auto_map"), 1, process.stderr)
        return process

    def test_is_passed_over_and_reaches_no_output(self):
        source, out = listing(self.checkpoint), self.directory / "out"
        self.run_noting("kvconvert", self.checkpoint, "--out", out, *FAST, "--export", "both")
        prompt = ("--prompt", "Once upon a time", "--max-new-tokens", "16", "--dtype", "float32")
        self.assertEqual(self.run_noting("kvrun", self.checkpoint, *prompt).stdout,
                         self.run_ok("kvrun", STORIES, *prompt).stdout)
        for form in ("folded", "factored"):
            self.assertNotIn("auto_map", self.run_ok("kvrun", out / form, *prompt).stderr)
            self.run_noting("kvvalidate", self.checkpoint, out / form, "--num-sequences", "2")
        for path in out.rglob("*"):
            self.assertNotEqual(path.suffix, ".py", path)
            if path.suffix == ".json":
                for key in self.UNSAFE:
                    self.assertNotIn(key, path.read_text(encoding="utf-8"), path)
        self.assertEqual(listing(self.checkpoint), source)


if __name__ == "__main__":
    unittest.main()
