#!/usr/bin/env python3
"""bench/gpu_peers.py on small shapes of the CPU, and where it cannot measure."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "bench/gpu_peers.py"


class Peers(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="kvc-peers-")
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)

    def run_peers(self, *options, **environment):
        file = self.directory / "peers.json"
        process = subprocess.run([sys.executable, SCRIPT, "--json", file, *map(str, options)], env={**os.environ, **environment},
                                 capture_output=True, text=True, timeout=300, check=False)
        return process, json.loads(file.read_text(encoding="utf-8")) if file.exists() else None

    def test_small_shapes_on_the_cpu(self):
        process, report = self.run_peers("--device", "cpu", OMP_NUM_THREADS="1")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual((report["device"], report["left_out"]), ("cpu", []))
        results = {line["name"]: line for line in report["results"]}
        self.assertTrue(all(line["ms"] > 0 and line["ratio"] > 0 for line in results.values()), results)
        for name in ("copy of 1 MiB", "torch bfloat16 256 x 256 x 128", "attention, math, grouped queries (16, 64)",
                     "attention, math, queries as rows (1, 1k)", "prompt of 32 behind 128, mask",
                     "prompt of 32 behind 128, mask, deterministic"):
            self.assertIn(name, results)
        # What is no backend of the CPU is said to be, and is no failure.
        self.assertIn("attention, cuDNN, grouped queries (16, 64)", report["refused"])
        self.assertEqual(set(results) & set(report["refused"]), set())
        for line in results.values():
            self.assertIn(line["name"], process.stdout)

    def test_no_time(self):
        process, report = self.run_peers("--device", "cpu", "--seconds", 0)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual(report["results"], [])
        self.assertEqual(report["left_out"][0], "copying and products")
        self.assertEqual(report["left_out"][-1], "32 queries behind 128")

    def test_without_a_gpu(self):
        process, report = self.run_peers(CUDA_VISIBLE_DEVICES="")
        self.assertEqual((process.returncode, report), (77, None), process.stderr)
        self.assertRegex(process.stdout, "^skipped: torch .* finds no GPU")

    def test_without_torch(self):
        (self.directory / "torch.py").write_text("raise ImportError('not here')\n", encoding="utf-8")
        process, report = self.run_peers(PYTHONPATH=str(self.directory))
        self.assertEqual((process.returncode, report), (77, None), process.stderr)
        self.assertIn("skipped: no torch (not here)", process.stdout)


if __name__ == "__main__":
    unittest.main()
