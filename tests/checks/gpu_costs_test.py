#!/usr/bin/env python3
"""bench/gpu_costs.py: its counts against ones by hand, and the table in docs/benchmarks.md against what it prints."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "bench/gpu_costs.py"
KERNEL_NAMES = re.compile(r"kName\s*=([^;]+);")


def run(*options):
    return subprocess.run([sys.executable, SCRIPT, *map(str, options)], capture_output=True, text=True, timeout=60, check=False)


class Costs(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.report = json.loads(run("--json").stdout)
        cls.rows = {row["name"]: row for row in cls.report["rows"]}

    def test_names_are_unique(self):
        self.assertEqual(len(self.rows), len(self.report["rows"]))

    def test_dense_attention_by_hand(self):
        row, tokens = self.rows["dense bfloat16 (16, 8k)"], 16 * 8192
        # Eight KV heads of 128 channels, keys and values, two bytes each.
        self.assertEqual(row["read"], tokens * 8 * 128 * 2 * 2)
        # For 32 tokens and a KV head, 2 x 8 fragments of keys and 8 x 2 of values, of 4096 operations.
        self.assertEqual(row["tensor"], tokens / 32 * 8 * (16 + 16) * 4096)
        # Both are copied to shared memory and read as fragments.
        self.assertEqual(row["shared"], 2 * row["read"])
        # Three blocks a multiprocessor: 396 / (16 x 8) are 3 parts. A part's 32 heads have 128 sums, a maximum and a sum of weights,
        # in float32; what they become has 16 x 32 x 128 numbers.
        self.assertEqual(row["written"], 16 * 3 * 32 * (128 + 2) * 4 + 16 * 32 * 128 * 4)
        self.assertEqual((row["launches"], row["bound"]), (2, "memory"))
        # 384 blocks on 132 multiprocessors do not wait for each other's memory; the combination waits four times for 0.15 µs: for
        # weights, for outputs, and twice for its warps.
        copied = (row["read"] + 16 * 3 * 32 * 130 * 4) / 4.3e12
        self.assertAlmostEqual(row["microseconds"], 1e6 * copied + 4 * 0.15 + 2 * 1.5, places=3)
        self.assertAlmostEqual(row["ratio"], row["read"] / 4.3e12 / (row["microseconds"] * 1e-6), places=6)

    def test_codes_by_hand(self):
        row, tokens = self.rows["codes rotated at kept 0.25 (16, 32k)"], 16 * 32768
        # 128 coefficients of a KV head's keys and as many of its values, 4 bits on average; then the projection's 2 x 1024 x 128.
        self.assertEqual(row["read"], tokens * 8 * 2 * 128 * 4 / 8 + 2 * 1024 * 128)
        # Groups of eight are 2 of 2, 4 of 3, 4 of 4, 4 of 5 and 2 of 6 bits: 26 planes, two of which are in a fragment of keys or of
        # values, for two halves of 32 tokens; a group of means, and a sum of weights.
        self.assertEqual(row["tensor"], tokens / 32 * 8 * (13 * 2 + 2 + 13 * 2 + 2) * 4096)
        self.assertEqual(row["launches"], 3)
        self.assertEqual(row["bound"], "issue")
        # For `pairs` a group of keys is a fragment's cosines and sines; for `blocks` four chunks of 32 coefficients make 128 channels.
        self.assertEqual(self.rows["codes pairs at kept 0.25 (16, 32k)"]["tensor"], tokens / 32 * 8 * (16 * 2 + 2 + 26 + 2) * 4096)
        self.assertEqual(self.rows["codes blocks at kept 0.25 (16, 32k)"]["tensor"], tokens / 32 * 8 * (4 * 64 + 16 + 16) * 4096)

    def test_steps_under_a_budget_by_hand(self):
        # One block a multiprocessor: 132 / (16 x 8) is one part, and 132 / (1 x 8) are 16.
        for sequences, slots, parts, waits in ((16, 1638, 1, 6), (1, 6554, 16, 10)):
            row, rows = self.rows[f"budget step, {sequences} sequences, {slots} slots, 8k tokens"], sequences * slots
            # Keys and values of the rows and of the new token; scores and positions; for a KV head 2 KB of what changes places.
            attended = (rows + sequences) * 8 * 128 * 2 * 2 + 2 * 4 * rows * 8
            self.assertEqual(row["read"], attended + sequences * 8 * 2048)
            # Partial softmaxes of 32 heads, their products and the rows' scores, and outputs of 16 bits.
            partial = sequences * parts * 32 * (128 + 2) * 4 + 4 * rows * 32
            self.assertEqual(row["written"], partial + 4 * rows * 8 + 2 * sequences * 32 * 128)
            # Tiles of 32 rows and the new token's, as dense attention multiplies them.
            self.assertEqual(row["tensor"], sequences * 8 * (-(-slots // 32) + 1) * (16 + 16) * 4096)
            self.assertEqual((row["launches"], row["bound"]), (1, "memory"))
            self.assertAlmostEqual(row["microseconds"], 1e6 * (attended + partial) / 4.3e12 + waits * 0.15 + 0.7 + 1.5, places=3)

    def test_a_step_reads_weights_once_for_32_rows(self):
        name = "step of 32 layers of an 8B, bf16, {} sequences at 512 tokens"
        steps = [self.rows[name.format(count)] for count in (1, 8, 16, 32)]
        weights = 2 * (32 * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336) + 128256 * 4096)
        self.assertEqual([row["launches"] for row in steps], 4 * [1 + 32 * 9 + 3])
        # Beside keys and values of 512 tokens, 67 MB a sequence, what the products of 32 rows read of x and logits is little.
        self.assertEqual([row["read"] // weights for row in steps], 4 * [1])
        # Two and four tiles of rows of x: as many fragments of products with the weights.
        of_products = [row["tensor"] - 32 * count * 512 * 8 * 4096 for row, count in zip(steps, (1, 8, 16, 32))]
        self.assertEqual([count / of_products[0] for count in of_products], [1, 1, 2, 4])

    def test_parts_are_combined_at_once(self):
        few, many = self.rows["combine 66 parts of one sequence"], self.rows["dense bfloat16 (1, 128k)"]
        self.assertAlmostEqual(few["microseconds"], (1 + 2 + 2) * 0.15 + 1.5, places=6)  # 64 of the 66 parts' outputs, then two
        self.assertTrue(many["met"])

    def test_sampling_by_hand(self):
        greedy, top_p, ids = self.rows["sample 16, greedy"], self.rows["sample 16, top-p"], 16 * 128256
        # Sixteen times sixteen loads of 512 threads from memory, and four waits for the largest of them.
        self.assertAlmostEqual(greedy["microseconds"], 16 * 0.7 + 4 * 0.15 + 1.5, places=6)
        # Three digits, ids that tie, and the draw.
        self.assertEqual((greedy["l2"], top_p["l2"]), (4 * ids, 6 * 4 * ids))
        self.assertEqual(top_p["shared"], 16 * ids)
        # A sequence's multiprocessor does 128 operations a clock.
        self.assertAlmostEqual(top_p["microseconds"], 128256 * (6 * 8 + 2 * 40) / 128 / 1755 + 1.5, places=3)

    def test_every_kernel_has_a_row(self):
        names = {name for path in (ROOT / "runtime/kernels/cuda").glob("*.h")
                 for value in KERNEL_NAMES.findall(path.read_text(encoding="utf-8")) for name in re.findall(r'"(\w+)"', value)}
        self.assertGreater(len(names), 15)
        self.assertEqual(names - {kernel for row in self.report["rows"] for kernel in row["kernels"]}, set())

    def test_every_goal_has_a_row(self):
        self.assertEqual({row["goal"] for row in self.report["rows"]} - {""}, {f"G{index}" for index in range(1, 13)})

    def test_the_document_has_the_table(self):
        document = (ROOT / "docs/benchmarks.md").read_text(encoding="utf-8")
        self.assertTrue("\n\n" + run("--markdown").stdout + "\n" in document,
                        "docs/benchmarks.md: its cost table is not what bench/gpu_costs.py --markdown prints; put that in its place")

    def measured(self, text, *options):
        with tempfile.TemporaryDirectory(prefix="kvc-costs-") as directory:
            path = pathlib.Path(directory) / "gpu_check.json"
            path.write_text(text, encoding="utf-8")
            return run("--measured", path, *options)

    def test_a_report_fills_the_last_column(self):
        line = {"name": "fused layer (16, 8k)", "ms": 0.3, "ratio": 2, "of": "a dense layer's time", "target": ""}
        report = {"device": "NVIDIA H200", "steps": [], "cuda_kernels_bench": {"results": [line, {**line, "name": "copy of 512 MiB"}]},
                  "bundle_ops": {"cases": [{"case": "ops", "results": [{"name": "serve rotated, attend (1, 16k)", "ms": 0.03}]}]}}
        table = self.measured(json.dumps(report)).stdout.splitlines()
        self.assertEqual([row.split(" | ")[-1] for row in table if "fused layer" in row], ["300 |"])
        self.assertEqual([row.split(" | ")[-1] for row in table if "attend (1, 16k)" in row], ["30 |"])
        self.assertEqual(sum("not measured" in row for row in table), len(self.rows) - 2)
        filled = json.loads(self.measured(json.dumps(report), "--json").stdout)
        self.assertEqual(filled["measured_without_a_row"], ["copy of 512 MiB"])

    def test_other_reports_are_refused(self):
        other = self.measured(json.dumps({"device": "NVIDIA H100 80GB HBM3"}))
        self.assertNotEqual(other.returncode, 0)
        self.assertIn("measured on 'NVIDIA H100 80GB HBM3', the model is of the H200; choose with --gpu", other.stderr)
        self.assertEqual(self.measured(json.dumps({"device": "NVIDIA H100 80GB HBM3"}), "--gpu", "h100").returncode, 0)
        for text in ("{", "[]", '{"device": "NVIDIA H200", "a": {"results": [{"name": "b"}]}}'):
            broken = self.measured(text)
            self.assertNotEqual(broken.returncode, 0)
            self.assertRegex(broken.stderr, "^gpu_costs: --measured .*: expected a report of scripts/gpu_check.sh")


if __name__ == "__main__":
    unittest.main()
