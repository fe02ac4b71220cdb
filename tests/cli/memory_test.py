#!/usr/bin/env python3
"""The KV cache as the system sees kvrun's process: resident memory behind a short and a long prompt."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import unittest

from programs import ProgramTest, command

MIB = 1 << 20
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
LAYERS, HEADS, HEAD_DIM = 8, 2, 128
SHORT, LONG, CHUNK = 2048, 8192, 512
CALIBRATION = ("--no-validate", "--quiet", "--seq-len", "64")
CONVERSIONS = {
    "coded head": ("--method", "coded", "--scope", "head", "--kept-ratio", "0.25", "--metric", "none", "--num-sequences", "18"),
    "coded layer": ("--method", "coded", "--scope", "layer", "--kept-ratio", "0.25", "--metric", "none", "--num-sequences", "36"),
    "coded group": ("--method", "coded", "--scope", "group", "--group", "2", "--kept-ratio", "0.25", "--metric", "none",
                    "--num-sequences", "70"),
    "fusedkv": ("--method", "fusedkv", "--num-sequences", "4", "--min-r2", "-1e9"),
}
OPTIONS = {"int8": ("--kv-dtype", "int8"), "int4": ("--kv-dtype", "int4"),
           "zeromerge": ("--policy", "zeromerge:budget=512"), "snapkv": ("--policy", "snapkv:budget=512")}
# Their prompts need more beside the cache than others': scores of queries or fused rows.
WIDE_PROMPTS = ("zeromerge", "snapkv", "fusedkv")


def resident(pid, field):
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(field + r":\s+(\d+) kB", text).group(1)) * 1024


class Memory(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.directory / "model"
        shape = {"layers": LAYERS, "hidden": HEADS * HEAD_DIM, "intermediate": 512, "heads": HEADS, "kv-heads": HEADS,
                 "max-position": 2 * LONG, "shards": 1}
        words = [str(word) for name, value in shape.items() for word in (f"--{name}", value)]
        subprocess.run([sys.executable, ROOT / "bench" / "make_random_checkpoint.py", self.model, *words], check=True)

    def prompt(self, tokens):
        path = self.directory / f"{tokens}.json"
        generator = random.Random(1)
        path.write_text(json.dumps([1] + [generator.randrange(3, 500) for _ in range(tokens - 1)]))
        return path

    def arguments(self, model, tokens, *options):
        return (model, "--ids", self.prompt(tokens), "--max-new-tokens", 64, "--ignore-eos", "--temperature", 1, "--threads", 2,
                "--prefill-chunk", CHUNK, *options)

    def measure(self, model, tokens, options):
        """(resident bytes while it generates, their peak, bytes of the cache, their peak, the plan)"""
        process = subprocess.Popen(command("kvrun", *self.arguments(model, tokens, *options), "--stats"),
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        self.assertTrue(process.stdout.read(8))  # of the first new tokens: the prompt was read
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        generating, peak = resident(process.pid, "VmRSS"), resident(process.pid, "VmHWM")
        process.send_signal(signal.SIGCONT)
        errors = process.communicate(timeout=240)[1].decode()
        self.assertEqual(process.returncode, 0, errors)
        found = re.search(r"kv +(\d+) bytes .* peak (\d+)", errors)
        plan = self.run_ok("kvrun", *self.arguments(model, tokens, *options), "--plan", "--json")
        return generating, peak, int(found.group(1)), int(found.group(2)), json.loads(plan.stdout)

    def check(self, name, model, options=()):
        short, long = (self.measure(model, tokens, options) for tokens in (SHORT, LONG))
        grown, grown_peak, cache, pool_peak = (after - before for before, after in zip(short[:4], long[:4]))
        planned = max(long[4]["reading_bytes"], long[4]["end_bytes"])
        with self.subTest(name, grown=grown / MIB, peak=grown_peak / MIB, cache=cache / MIB, pool=pool_peak / MIB):
            # Kernels that turn keys read angles of all positions: not the cache's, and an eighth of them is spare.
            angles = (LONG - SHORT) * HEAD_DIM * 4 * 9 // 8
            self.assertLess(grown, 1.03 * (cache + angles) + 4 * MIB)
            self.assertGreater(grown, 0.97 * cache - 4 * MIB)
            self.assertLessEqual(long[3], planned)
            self.assertGreater(long[3], 0.95 * planned)
            # Beside the cache, a prompt has the residual stream and one layer's exact rows.
            read = (LONG - SHORT) * HEADS * HEAD_DIM * 2 * 3
            if name not in WIDE_PROMPTS:
                self.assertLess(grown_peak, 1.05 * (pool_peak + angles + 1.25 * read) + 24 * MIB)

    def convert(self, name):
        out = self.directory / name.replace(" ", "-")
        self.run_ok("kvconvert", self.model, "--out", out, *CALIBRATION, *CONVERSIONS[name])
        return out

    def test_grows_as_the_formula_says_and_peaks_as_planned(self):
        self.check("plain", self.model)
        for name, options in OPTIONS.items():
            self.check(name, self.model, options)
        for name in CONVERSIONS:
            self.check(name, self.convert(name))


if __name__ == "__main__":
    unittest.main()
