#!/usr/bin/env python3
"""The script that trains reference models: stages of growing rows, spread facts, and going on after a kill."""

import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(os.environ.get("KVC_SOURCE_DIR", pathlib.Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(ROOT / "training"))

import train_reference_model as training  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

TEXTS = ROOT / "tests" / "data" / "texts"
LIST = re.compile(r"(Remember|Recall): ([^.\n]*)\.")


class Rows(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.tokenizer = PreTrainedTokenizerFast.from_pretrained(ROOT / "tests" / "data" / "reference-llama")
        text = (TEXTS / "tinystories_calibration.txt").read_text(encoding="utf-8")[:60000]
        cls.stream = cls.tokenizer(text, add_special_tokens=False).input_ids

    def test_stages(self):
        lengths = training.stages("256:0.6,1024:0.3,4096:0.1")
        self.assertEqual([training.length_at(lengths, step / 10) for step in range(10)], [256] * 6 + [1024] * 3 + [4096])
        for wrong in ("256:0.6,1024:0.3", "1024:0.5,256:0.5"):
            with self.assertRaisesRegex(argparse.ArgumentTypeError, f"{wrong}: the lengths must grow and their shares must add up to 1"):
                training.stages(wrong)

    def test_every_fact_is_told_before_it_is_asked_for(self):
        farthest = 0
        for seed in range(20):
            row = training.spread_recall_row(random.Random(seed), self.stream, self.tokenizer, 1025)
            self.assertEqual(len(row), 1025)
            told = {}
            text = self.tokenizer.decode(row)
            for found in LIST.finditer(text):
                for fact in found[2].split(", "):
                    if found[1] == "Remember":
                        told[fact] = found.start()
                    else:
                        farthest = max(farthest, found.start() - told[fact])
        self.assertGreater(farthest, 2000)  # characters

    def test_a_batch_keeps_its_tokens(self):
        """However rows are made: of the stream, of facts together or between stories, and of repeated words."""
        stream = f" {' '.join(map(str, self.stream))} "
        bos = self.tokenizer.bos_token_id
        for rows, length in ((8, 64), (2, 256)):
            def batch(*shares, rows=rows, length=length):
                ids = training.batch(random.Random(0), self.stream, self.tokenizer, ["a", "b"] * 30, rows, length, *shares)
                self.assertEqual(ids.shape, (rows, length + 1))
                return ids.tolist()

            for row in batch(0, 0, 0):
                self.assertTrue(f" {' '.join(map(str, row))} " in stream, row)
            for row in batch(1, 0, 0):
                self.assertEqual(row[0], bos)
                self.assertTrue(self.tokenizer.decode(row[1:]).startswith("Remember: "))
            for row in batch(0, 1, 0):
                self.assertEqual(row[0], bos)
                self.assertEqual(set(self.tokenizer.decode(row, skip_special_tokens=True).split()) - {"ab", "ba", "aa", "bb"}, {"a", "b"})
            for row in batch(1, 0, 1):
                self.assertIn("\nRemember: ", self.tokenizer.decode(row))
            batch(0.4, 0.3, 0.5)


class Resume(unittest.TestCase):
    OPTIONS = ("--num-layers 1 --hidden-size 32 --num-heads 2 --num-kv-heads 1 --head-dim 16 --intermediate-size 32 "
               "--vocab-size 400 --lengths 64:0.5,128:0.5 --seq-len 64 --batch-size 4 --steps 60 --minutes 0 --threads 1 "
               "--spread-share 0.5 --shares-fall-to 0.5 --eval-every 1000 --checkpoint-minutes 1e-6 --resume").split()

    def command(self, out):
        text = out.parent / "text.txt"
        text.write_text((TEXTS / "tinystories_calibration.txt").read_text(encoding="utf-8")[:60000], encoding="utf-8")
        return [sys.executable, str(ROOT / "training" / "train_reference_model.py"), "--texts", str(text), "--heldout", str(text),
                "--out", str(out), *self.OPTIONS]

    def test_a_killed_run_goes_on_with_the_same_numbers(self):
        with tempfile.TemporaryDirectory(prefix="kvc-training-") as directory:
            whole, killed = (pathlib.Path(directory) / name for name in ("whole", "killed"))
            subprocess.run(self.command(whole), check=True, capture_output=True)
            with subprocess.Popen(self.command(killed), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                while process.poll() is None and not (killed / "state.pt").exists():
                    time.sleep(0.01)
                process.send_signal(signal.SIGKILL)
            self.assertFalse((killed / "model.safetensors").exists())
            resumed = subprocess.run(self.command(killed), check=True, capture_output=True, text=True)
            self.assertIn("resumed at step", resumed.stdout)
            self.assertEqual((whole / "model.safetensors").read_bytes(), (killed / "model.safetensors").read_bytes())


if __name__ == "__main__":
    unittest.main()
