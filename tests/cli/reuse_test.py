#!/usr/bin/env python3
"""kvrun --donors: prompts that start from a similar one's cache, and stores that processes share, damage and fill."""

import json
import random
import resource
import signal
import subprocess
import time
import unittest

from programs import STORIES, ProgramTest, command, run


class Reuse(ProgramTest):
    def setUp(self):
        super().setUp()
        self.donors = self.directory / "donors"
        self.prompts = 0

    def ids(self, seed, num_tokens=200, changed=0.0):
        """A file of token ids; `changed` of them are not those of the seed's prompt."""
        chance = random.Random(seed)
        ids = [chance.randrange(3, 500) for _ in range(num_tokens)]
        other = random.Random(seed + 1000)
        ids = [other.randrange(3, 500) if other.random() < changed else token for token in ids]
        self.prompts += 1
        path = self.directory / f"ids-{self.prompts}.json"
        path.write_text(json.dumps(ids))
        return path

    def arguments(self, ids, settings="min-tokens=100"):
        return (STORIES, "--ids", ids, "--max-new-tokens", "12", "--json", "--ignore-eos", "--donors", self.donors, "--reuse",
                settings)

    def reused(self, ids, settings="min-tokens=100"):
        process = self.run_ok("kvrun", *self.arguments(ids, settings))
        return json.loads(process.stdout), process.stderr

    def whole(self, ids):
        process = self.run_ok("kvrun", STORIES, "--ids", ids, "--max-new-tokens", "12", "--json", "--ignore-eos")
        return json.loads(process.stdout)["tokens"]

    def entries(self):
        return sorted(self.donors.glob("*.safetensors"))

    def test_the_same_prompt_gives_the_same_tokens(self):
        ids = self.ids(1)
        first, _ = self.reused(ids)
        self.assertEqual(first["kv"]["reuse"]["whole"], "no donor")
        again, _ = self.reused(ids, "min-tokens=100,retention=all")
        report = again["kv"]["reuse"]
        self.assertEqual(report["donor"], self.entries()[0].stem)
        self.assertEqual((report["recomputed"][0], report["retained"]), (200, [200] * 5))
        self.assertLess(report["recomputed"][-1], 100)
        self.assertEqual(again["tokens"], self.whole(ids))
        self.assertEqual(first["tokens"], self.whole(ids))

    def test_the_plan_counts_what_reuse_adds(self):
        """Rows have positions."""
        self.reused(self.ids(1))
        similar = self.arguments(self.ids(1, changed=0.1), "min-tokens=100,retain-first=1,retain-last=1")
        self.assert_refused({2}, ["--kv-dtype int8 with --donors"], "kvrun", *similar, "--kv-dtype", "int8", "--plan")
        for kv_dtype in ("float16", "bfloat16"):
            arguments = (*similar, "--kv-dtype", kv_dtype)
            planned = json.loads(self.run_ok("kvrun", *arguments, "--plan").stdout)
            most = max(planned["reading_bytes"], planned["end_bytes"])
            found = json.loads(self.run_ok("kvrun", *arguments, "--memory", most).stdout)
            self.assertIn("donor", found["kv"]["reuse"])
            self.assertLessEqual(found["memory"]["kv_peak_bytes"], most)
            self.assert_refused({1}, ["--memory"], "kvrun", *arguments, "--plan", "--memory", most - 1)

    def test_a_similar_prompt_keeps_fewer_tokens(self):
        self.reused(self.ids(1))
        result, _ = self.reused(self.ids(1, changed=0.05))
        report = result["kv"]["reuse"]
        self.assertGreater(report["similarity"], 0.8)
        self.assertEqual(report["retained"], sorted(report["retained"], reverse=True))
        self.assertLess(result["kv"]["kept_ratio"], 0.8)
        self.assertEqual(len(self.entries()), 1)  # only prompts that were read as a whole are donors

    def test_other_and_short_prompts_are_read_as_ever(self):
        self.reused(self.ids(1))
        for ids, settings, reason in ((self.ids(2), "min-tokens=100", "no donor is similar enough"),
                                      (self.ids(1), "min-tokens=201", "too short")):
            result, _ = self.reused(ids, settings)
            self.assertEqual(result["kv"]["reuse"]["whole"], reason)
            self.assertEqual(result["tokens"], self.whole(ids))

    def test_damage_is_named_once_and_never_used(self):
        ids = self.ids(1)
        self.reused(ids)
        entry = self.entries()[0]
        raw = bytearray(entry.read_bytes())
        raw[len(raw) // 2] ^= 1
        entry.write_bytes(raw)
        result, warnings = self.reused(ids, "min-tokens=100,store=off")
        self.assertEqual(result["kv"]["reuse"]["donor"], None)
        self.assertEqual(result["tokens"], self.whole(ids))
        self.assertEqual(warnings.count("donor skipped"), 1, warnings)
        self.reused(ids)  # writes it anew
        self.assertIsNotNone(self.reused(ids)[0]["kv"]["reuse"]["donor"])

    def test_a_full_disk_costs_the_donor_alone(self):
        ids = self.ids(1)
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))
        process = run("kvrun", *self.arguments(ids), preexec_fn=limit)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual(json.loads(process.stdout)["tokens"], self.whole(ids))
        self.assertEqual(process.stderr.count("not stored as a donor"), 1, process.stderr)
        self.assertEqual(self.entries(), [])
        self.reused(ids)
        self.assertEqual(len(self.entries()), 1)

    def test_processes_share_a_store_and_may_be_killed(self):
        prompts = [self.ids(seed, 150 + seed) for seed in range(4)]
        expected = {path: self.whole(path) for path in prompts}
        chance = random.Random(0)
        for _ in range(4):
            processes = [(path, subprocess.Popen(command("kvrun", *self.arguments(path, "min-tokens=100,retention=all")),
                                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)) for path in prompts[:3]]
            time.sleep(chance.random() * 0.5)
            processes[0][1].send_signal(signal.SIGKILL)
            for index, (path, process) in enumerate(processes):
                output, errors = process.communicate(timeout=240)
                if index > 0:
                    self.assertEqual(process.returncode, 0, errors)
                    self.assertEqual(json.loads(output)["tokens"], expected[path])
        self.assertEqual(self.reused(prompts[3], "min-tokens=100,retention=all")[0]["tokens"], expected[prompts[3]])
        self.assertEqual(self.reused(prompts[3], "min-tokens=100,retention=all")[0]["tokens"], expected[prompts[3]])
        self.assertEqual(list(self.donors.glob("*.partial")), [])

    def test_refusals(self):
        ids = self.ids(1)
        model = (STORIES, "--ids", ids)
        for words, more in ((("--reuse", "needs --donors"), ("--reuse", "hot=1")),
                            (("unknown setting", "expected key=value of"), ("--donors", self.donors, "--reuse", "warm=1")),
                            (("--logits",), ("--donors", self.donors, "--logits", self.directory / "x")),
                            (("--warm-up", "store=off"), ("--donors", self.donors, "--warm-up")),
                            (("--policy",), ("--donors", self.donors, "--policy", "snapkv:budget=0.5")),
                            (("--plan and --memory do not count",), ("--donors", self.donors, "--reuse", "retention=all", "--kv-dtype", "int8",
                                                                     "--memory", "1GiB")),
                            (("retention=all",), ("--donors", self.donors, "--kv-dtype", "int8"))):
            self.assert_refused((2,), words, "kvrun", *model, *more)
        self.assert_refused((1,), ("not a directory",), "kvrun", *model, "--donors", ids)


if __name__ == "__main__":
    unittest.main()
