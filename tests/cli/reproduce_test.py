#!/usr/bin/env python3
"""scripts/reproduce: the rows of a paper's table, measured on a checkpoint and printed beside the published ones."""

import fcntl
import json
import os
import subprocess
import unittest

from programs import BIN, DATA, STORIES, ProgramTest

SCRIPTS = DATA.parent.parent / "scripts/reproduce"


class Reproduce(ProgramTest):
    def run_script(self, paper, *arguments, programs=BIN):
        return subprocess.run([SCRIPTS / f"{paper}.sh", *map(str, arguments), "--bin", programs, "--out", self.directory / "out"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)

    def test_policies_are_measured_once_and_stand_beside_the_published_rows(self):
        process = self.run_script("zeromerge", STORIES, "--tasks", "passkey", "--length", 400, "--samples", 2)
        self.assertEqual(process.returncode, 0, process.stderr)
        measured, published = process.stdout.split("\nPublished", 1)
        rows = [line.split("  ")[0] for line in measured.splitlines()[2:]]
        self.assertEqual(rows[:3], ["full cache", "h2o, 20% of the tokens", "zeromerge, 20% of the tokens"])
        self.assertEqual(len(rows), 7)
        self.assertIn("passkey", measured.splitlines()[1])
        self.assertIn("Llama-2-7B", published)
        for file in (self.directory / "out").glob("*.json"):
            kept = json.loads(file.read_text(encoding="utf-8"))
            options, settings = kept["report"]["options"], kept["key"]["settings"]
            self.assertEqual(options["policy"].split(",")[0], f"{settings['policy']}:budget={round(settings['share'] * 400)}")
            self.assertEqual(options["seq_len"], 400)
        again = self.run_script("zeromerge", STORIES, "--tasks", "passkey", "--length", 400, "--samples", 2)
        self.assertEqual((again.stdout, again.stderr), (process.stdout, ""))

    def test_what_a_model_cannot_have_is_a_line(self):
        process = self.run_script("fusedkv", STORIES, "--tasks", "none")
        self.assertEqual(process.returncode, 0, process.stderr)
        for name in ("CLA", "YOCO"):
            self.assertRegex(process.stdout, rf"(?m)^{name}: --method {name.lower()}: requires a model that was trained with it")
        for name in ("FusedKV-Lite", "FusedKV"):
            self.assertRegex(process.stdout, rf"(?m)^{name} +0\.\d")
        self.assertEqual([path.suffix for path in (self.directory / "out").iterdir()], [".json"] * 2)

    def test_a_full_disk_ends_it(self):
        """It is no row of the model's."""
        for program in ("kvconvert", "kvvalidate"):
            path = self.directory / program
            path.write_text("#!/bin/sh\necho 'error: out: No space left on device' >&2\nexit 1\n", encoding="ascii")
            path.chmod(0o755)
        process = self.run_script("fusedkv", STORIES, "--tasks", "none", programs=self.directory)
        self.assertEqual((process.returncode, process.stdout), (1, ""))
        self.assertIn("No space left on device", process.stderr)

    def test_two_runs_do_not_share_their_rows(self):
        out = self.directory / "out"
        out.mkdir()
        lock = os.open(out, os.O_RDONLY)
        self.addCleanup(os.close, lock)
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = self.run_script("fusedkv", STORIES, "--tasks", "none")
        self.assertEqual((process.returncode, process.stdout), (1, ""))
        self.assertIn(f"{out}: another run", process.stderr)

    def test_tasks_that_nothing_knows_end_it(self):
        process = self.run_script("zeromerge", STORIES, "--tasks", "nosuch", "--length", 400)
        self.assertEqual(process.returncode, 1)
        self.assertIn("unknown task 'nosuch'", process.stdout)
        self.assertIn("no row could be measured", process.stderr)

    def test_wrong_arguments_end_with_a_message(self):
        for arguments in ((self.directory / "nonesuch",), (STORIES, "nonesuch.jsonl")):
            process = self.run_script("xkv", *arguments)
            self.assertEqual(process.returncode, 2)
            self.assertIn("nonesuch", process.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
