#!/usr/bin/env python3
"""What vLLM does on a GPU, as far as the CPU can tell.

KVCONVERT_EMULATED_OPS names a library whose operators for devices take tensors of the CPU; an engine runs with it. Runs in an
environment with vllm and the plugin.
"""

import json
import os
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
from transformers import AutoTokenizer
from vllm_checkpoints import REFERENCE, convert, prompts

from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.backend import CodedImpl
from kvconvert.vllm.open_tiles import OpenTiles

EMULATED = os.environ.get("KVCONVERT_EMULATED_OPS")
HERE = Path(__file__).resolve().parent


class Reserved(unittest.TestCase):
    """What a run that measures memory takes beside the cache."""

    def reserved(self, window: int, layers: int) -> list:
        """Tokens of codes and exact ones that attend_prompt gets, which checks them."""
        impl = CodedImpl(6, 32, 0.25, 2)
        impl.max_tokens, impl.window = 1000, window
        store = types.SimpleNamespace(
            codes=types.SimpleNamespace(layers=[0] * layers), open_tiles=OpenTiles(24), open_rows=mock.Mock()
        )
        rows = torch.zeros(300, 6, 32, dtype=torch.bfloat16)
        with mock.patch("kvconvert.vllm.backend.attend_prompt", wraps=attend_prompt) as attended:
            impl._reserve(types.SimpleNamespace(index=3, store=store), rows, rows[:, :2])
        store.open_rows.assert_called_once_with(3, 24, torch.bfloat16)
        query, length, coded, exact, *_ = attended.call_args.args
        self.assertEqual((query.shape[0], length), (300, 1000))
        return [coded[0].shape[0], exact[1].shape[0]]

    def test_the_longest_prompt(self) -> None:
        self.assertEqual(self.reserved(0, 1), [992, 1000 - 672])  # to the last tile; from the tile of token 700 on
        self.assertEqual(self.reserved(128, 1), [992 - 544, 328])  # token 573 is in the tile from 544 on
        self.assertEqual(self.reserved(0, 4), [672, 328])  # a group's own step is exact


@unittest.skipUnless(EMULATED, "KVCONVERT_EMULATED_OPS names no library with emulated operators for devices")
class Emulated(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        entry = self.root / "emulated_devices-0.dist-info"
        entry.mkdir()
        (entry / "METADATA").write_text("Metadata-Version: 2.1\nName: emulated_devices\nVersion: 0\n")
        (entry / "entry_points.txt").write_text("[vllm.general_plugins]\nemulated = emulated_devices:register\n")

    def run_engine(self, checkpoint: Path, texts: list[list[int]], on_device: bool) -> list[list[int]]:
        asked, out = self.root / "asked.json", self.root / "out.json"
        asked.write_text(json.dumps({"prompts": texts, "new_tokens": 8}))
        settings = json.dumps({"dtype": "bfloat16", "max_num_batched_tokens": 64})
        environment = dict(os.environ)
        if on_device:
            environment["PYTHONPATH"] = os.pathsep.join([str(self.root), str(HERE), environment.get("PYTHONPATH", "")])
            environment["KVCONVERT_OPS"] = EMULATED
        command = [sys.executable, str(HERE / "vllm_run.py"), str(out), str(checkpoint), settings, f"file:{asked}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}")
        return json.loads(out.read_text())[f"file:{asked}"]

    def test_an_engine_generates_what_it_does_on_the_cpu(self) -> None:
        texts = [prompt["prompt_token_ids"] for prompt in prompts(AutoTokenizer.from_pretrained(REFERENCE))[:7]]
        for options in (("--form", "rotated"), ("--scope", "group")):
            with self.subTest(options=options):
                checkpoint = convert(self.root / options[1], *options)
                found, expected = (self.run_engine(checkpoint, texts, on_device) for on_device in (True, False))
                equal = sum(a == b for a, b in zip(found, expected, strict=True))
                print(f"{equal} of {len(texts)} generations are the CPU's")
                self.assertGreaterEqual(equal, 5)  # near ties of bfloat16 may go the other way


if __name__ == "__main__":
    unittest.main()
