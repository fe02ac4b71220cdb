#!/usr/bin/env python3
"""Calibration text from the command line: what the model writes itself, the built-in text, files and their mixture."""

import json
import re
import signal
import subprocess
import time
import unittest

from programs import DATA, STORIES, ProgramTest, command

SHORT = ("--kept-ratio", "0.25", "--scope", "head", "--sink", "0", "--window", "0", "--num-sequences", "8", "--seq-len", "64")
STORY_TEXTS = DATA / "texts"


class CalibrationText(ProgramTest):
    def tokens(self, name, *arguments):
        """The bytes of the tokens.h5 of a conversion."""
        work = self.directory / f"work-{name}"
        self.run_ok("kvconvert", STORIES, *SHORT, "--no-validate", "--work", work, "--out", self.directory / name, *arguments)
        return (work / "tokens.h5").read_bytes()

    def test_own_text_follows_from_the_seed(self):
        first = self.tokens("first", "--calibration", "self", "--threads", "1")
        self.assertEqual(self.tokens("second", "--calibration", "self", "--threads", "2"), first)
        self.assertNotEqual(self.tokens("other", "--calibration", "self", "--seed", "7"), first)

    def test_a_run_that_was_killed_gives_equal_bytes(self):
        expected = self.tokens("whole", "--calibration", "self")
        work = self.directory / "work-killed"
        arguments = (STORIES, *SHORT, "--no-validate", "--work", work, "--out", self.directory / "killed", "--calibration", "self")
        for after in (0.1, 0.3, 0.6):
            process = subprocess.Popen(command("kvconvert", *arguments), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
            time.sleep(after)
            process.send_signal(signal.SIGKILL)
            process.wait(timeout=60)
        extra = ("--force",) if (self.directory / "killed").exists() else ()
        self.assertEqual(self.tokens("killed", "--calibration", "self", *extra), expected)

    def test_coded_mixes_where_nothing_is_given(self):
        self.assertEqual(self.tokens("default"), self.tokens("both", "--calibration", "builtin", "--calibration", "self"))

    def test_texts_are_mixed(self):
        alone = self.tokens("alone", "--calibration", "self")
        mixed = self.tokens("mixed", "--calibration", "self", "--calibration", "builtin")
        self.assertNotEqual(mixed, alone)
        config = json.loads((self.directory / "mixed" / "config.json").read_text(encoding="utf-8"))
        self.assertEqual(len(config["kvconvert"]["calibration_hashes"]), 2)

    def test_texts_are_no_longer_than_the_context(self):
        plan = ("kvconvert", STORIES, "--kept-ratio", "0.25", "--plan", "--seq-len")
        self.assertIn("--seq-len 513: calibration texts have 512 tokens, the model's context", self.run_ok(*plan, "513").stderr)
        self.assertNotIn("calibration texts", self.run_ok(*plan, "512").stderr)

    def test_a_text_of_few_tokens_is_warned_of(self):
        text, work, out = (self.directory / name for name in ("short.txt", "work", "out"))
        text.write_text("Once upon a time.", encoding="ascii")
        convert = ("kvconvert", STORIES, "--group", "5", "--rank", "0.7", "--no-validate", "--calibration")
        self.assertIn("fewer than the 64 channels", self.run_ok(*convert, text, "--work", work, "--out", out).stderr)
        enough = self.run_ok(*convert, "builtin", "--num-sequences", "8", "--seq-len", "64", "--out", self.directory / "more")
        self.assertNotIn("channels", enough.stderr)
        for option in (("--num-sequences", "1"), ("--seq-len", "64")):
            self.assert_refused({2}, [option[0], "rows of tokens"], "kvvalidate", STORIES, out, "--text", work / "tokens.h5", *option)

    def test_a_word_that_is_no_source_is_refused_with_those_that_are(self):
        for program, arguments in (("kvconvert", SHORT), ("kvcalibrate", ()), ("kvfisher", ())):
            self.assert_refused({2}, ["--calibration itself", "self, builtin"], program, STORIES, *arguments, "--calibration",
                                "itself", "--out", self.directory / "out")

    def test_the_stages_by_hand_name_who_writes_own_text(self):
        self.assert_refused({2}, ["kvconvert", "--tokens"], "kvcalibrate", STORIES, "--calibration", "self", "--out",
                            self.directory / "out")


class Warning(ProgramTest):
    def judged(self, name, calibration):
        out = self.directory / name
        process = self.run_ok("kvconvert", STORIES, *SHORT, "--calibration", calibration, "--validation-text",
                              STORY_TEXTS / "tinystories_heldout.txt", "--out", out)
        report = json.loads((out / "report.json").read_text(encoding="utf-8"))
        page = (out / "report.html").read_text(encoding="utf-8")
        self.assertEqual(process.stdout.splitlines()[1:], report["warnings"])
        return process.stdout, report["calibration"], page

    def test_text_of_another_kind_is_named(self):
        text, report, page = self.judged("far", "builtin")
        self.assertIn("--calibration FILE", text.splitlines()[-1])
        self.assertGreater(report["distance"], 1.5)
        self.assertIn("of another kind", report["warning"])
        self.assertIn("of another kind", page)

    def test_text_of_its_kind_is_not(self):
        text, report, page = self.judged("near", STORY_TEXTS / "tinystories_calibration.txt")
        for line in text.splitlines()[1:]:
            self.assertRegex(line, "^KL divergence .* is uncertain")
        self.assertIsNone(report["warning"])
        self.assertLess(report["distance"], 1.5)
        self.assertNotIn("of another kind", page)

    def test_text_that_cannot_be_judged_is_refused_before_the_work(self):
        text, short = STORY_TEXTS / "tinystories_calibration.txt", self.directory / "short.txt"
        short.write_text("a", encoding="utf-8")
        for validation, words in ((text, ("--validation-text", "calibration text")), (short, ("no row",))):
            parent, work = self.directory / validation.stem, self.directory / f"work-{validation.stem}"
            parent.mkdir()
            self.assert_refused({1}, words, "kvconvert", STORIES, *SHORT, "--calibration", text, "--validation-text", validation,
                                "--out", parent / "out", "--work", work, where=parent)
            self.assertEqual([path.name for path in work.iterdir()], ["tokens.h5"])


class Effort(ProgramTest):
    def plan(self, *arguments):
        return json.loads(self.run_ok("kvconvert", DATA / "configs" / "Llama-3.1-8B", "--plan", "--json", "--kept-ratio", "0.25",
                                      *arguments).stdout)

    def test_the_plan_has_the_time_of_both_settings(self):
        plan = self.plan()
        self.assertEqual(plan["thorough_calibration_tokens"], 40 * 1024)
        self.assertLess(3 * plan["seconds"], plan["thorough_seconds"])
        self.assertGreaterEqual(plan["num_calibration_tokens"], plan["least_calibration_tokens"])

    def test_the_plan_has_the_time_of_the_tokens_that_are_asked_for(self):
        few, many = (self.plan("--num-sequences", str(rows), "--seq-len", "512") for rows in (8, 80))
        self.assertEqual([few["num_calibration_tokens"], many["num_calibration_tokens"]], [8 * 512, 80 * 512])
        self.assertLess(3 * few["seconds"], many["seconds"])
        self.assertEqual(few["thorough_seconds"], many["thorough_seconds"])

    def test_a_time_is_printed_once(self):
        for options, times in (((), 2), (("--num-sequences", "8"), 2), (("--thorough",), 1)):
            text = self.run_ok("kvconvert", DATA / "configs" / "Llama-3.1-8B", "--plan", "--kept-ratio", "0.25", *options).stdout
            self.assertEqual(len(re.findall(r"\d+ s with", text)), times, text)
            self.assertEqual("of --thorough" in text, times == 2)

    def test_wide_statistics_get_the_tokens_they_need(self):
        plan = self.plan("--scope", "group")
        self.assertGreaterEqual(plan["num_calibration_tokens"], plan["least_calibration_tokens"] + 4 * 32)


if __name__ == "__main__":
    unittest.main()
