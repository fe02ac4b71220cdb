#!/usr/bin/env python3
"""vLLM with the ops of a GPU, which run in the emulator (vllm_device_run.py), beside those of the CPU: bfloat16."""

import json
import os
import types
import unittest
from pathlib import Path
from unittest import mock

import torch
import vllm_serving_test as serving
from vllm_cases import converted

from kvconvert.fused import Fusion
from kvconvert.row_pages import LayerRows
from kvconvert.tiled_attention import attend_prompt
from kvconvert.vllm.attention import cache_dtype
from kvconvert.vllm.backend import CodedImpl
from kvconvert.vllm.fused_backend import FusedImpl
from kvconvert.vllm.latent_backend import LatentImpl
from kvconvert.vllm.open_tiles import OpenTiles

EMULATED = Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops_emulated.so"
TEXTS = [[1, *range(20, 420, 10)], [1, 5, 6, 7, 8], [1, *range(99, 68, -1)], [1, *range(20, 420, 10), *range(400, 500, 2)]]
NEW_TOKENS = 8


def generated(checkpoint, emulated, *tasks, **settings):
    path = serving.ROOT / "texts.json"
    path.write_text(json.dumps({"prompts": TEXTS, "new_tokens": NEW_TOKENS}))
    settings = {"dtype": "bfloat16", "max_model_len": 256, "max_num_seqs": 4, "kv_cache_memory_bytes": 1 << 23, **settings}
    options = {"script": "vllm_device_run.py", "env": {"KVCONVERT_OPS": str(EMULATED)}} if emulated else {}
    result = serving.run(checkpoint, f"file:{path}", *tasks, **options, **settings)
    return result[f"file:{path}"], result


class Devices(unittest.TestCase):
    def check(self, own, expected):
        """Sums of another order, and keys' weights as another kind of number, turn near ties of bfloat16 alone."""
        equal = sum(a == b for pair in zip(own, expected) for a, b in zip(*pair))
        self.assertGreaterEqual(equal, 0.75 * NEW_TOKENS * len(TEXTS), (own, expected))

    def test_tokens_are_those_of_the_cpu(self):
        expected, host = generated(serving.head(), False)
        own, device = generated(serving.head(), True)
        self.check(own, expected)
        self.assertEqual(device["capacity"], host["capacity"])
        # In pieces of a prompt; pages that the third text shares with the first are found.
        pieces, device = generated(serving.head(), True, max_num_batched_tokens=48, block_size=32, max_num_seqs=2)
        self.check(pieces, expected)
        self.assertGreater(device["hits"], 0)

    def test_windows(self):
        expected, _ = generated(serving.window(), False)
        self.check(generated(serving.window(), True, max_num_batched_tokens=48, block_size=32, max_num_seqs=2)[0], expected)

    def test_groups_of_layers(self):
        self.check(generated(serving.group(), True)[0], generated(serving.group(), False)[0])

    def test_latents(self):
        """Calibrated ones of groups, with pieces of prompts; and those that take the projections' place."""
        for method, ratio in (("pca", "--kept-ratio=0.4"), ("palu", "--rank=0.5"), ("commonkv", "--rank=0.3")):
            with self.subTest(method=method):
                merged = ("--merge", "none", "--group", "2") if method == "commonkv" else ()
                checkpoint = converted("--method", method, ratio, *merged, "--rank-multiple", "8")
                settings = {"max_num_batched_tokens": 48, "block_size": 32, "max_num_seqs": 2} if method == "pca" else {}
                expected, host = generated(checkpoint, False, **settings)
                own, device = generated(checkpoint, True, **settings)
                self.check(own, expected)
                # A layer in the pages of another takes 16 bytes a tile instead of 4.
                self.assertLessEqual(0.99 * host["capacity"], device["capacity"])
                self.assertLessEqual(device["capacity"], host["capacity"])

    def test_fused_layers(self):
        """Factors of channels, read in place, with pieces of prompts; factors of pairs; and keys and values of single layers."""
        pieces = {"max_num_batched_tokens": 48, "block_size": 32, "max_num_seqs": 2}
        for method, settings in ((("fusedkv",), pieces), (("fusedkv", "--pair", "complex"), {}), (("cla",), {})):
            with self.subTest(method=method):
                checkpoint = converted("--method", *method, "--force")
                expected, host = generated(checkpoint, False, **settings)
                own, device = generated(checkpoint, True, **settings)
                self.check(own, expected)
                # A layer without pages of its own takes 16 bytes a tile instead of 4.
                self.assertLessEqual(0.99 * host["capacity"], device["capacity"])
                self.assertLessEqual(device["capacity"], host["capacity"])


class CacheDtype(unittest.TestCase):
    def test_is_the_models_on_a_gpu(self):
        attention = types.SimpleNamespace(dtype=torch.bfloat16, kv_cache_torch_dtype=torch.float16)
        self.assertEqual(cache_dtype(attention, "latents", torch.device("cpu")), torch.float16)
        with self.assertRaisesRegex(ValueError, "latents have the model's dtype; --kv-cache-dtype is float16 and --dtype bfloat16; remove"):
            cache_dtype(attention, "latents", torch.device("cuda", 0))
        attention.dtype = torch.float16
        self.assertEqual(cache_dtype(attention, "latents", torch.device("cuda", 0)), torch.float16)


class Reserved(unittest.TestCase):
    """What a run that measures memory takes beside the cache."""

    def reserved(self, window, layers, exact_tiles=1):
        """Tokens of codes and exact ones that attend_prompt gets, which checks them."""
        impl = CodedImpl(6, 32, 0.25, 2)
        impl.max_tokens, impl.window = 1000, window
        codes = types.SimpleNamespace(layers=[0] * layers, exact_tiles=exact_tiles)
        store = types.SimpleNamespace(codes=codes, open_tiles=OpenTiles(24), open_rows=mock.Mock())
        rows = torch.zeros(300, 6, 32, dtype=torch.bfloat16)
        with mock.patch("kvconvert.vllm.backend.attend_prompt", wraps=attend_prompt) as attended:
            impl._reserve(types.SimpleNamespace(index=3, store=store), rows, rows[:, :2])
        store.open_rows.assert_called_once_with(3, 24, torch.bfloat16)
        query, length, coded, exact, *_ = attended.call_args.args
        self.assertEqual((query.shape[0], length), (300, 1000))
        return [coded[0].shape[0], exact[1].shape[0]]

    def test_the_longest_prompt(self):
        self.assertEqual(self.reserved(0, 1), [992, 1000 - 672])  # to the last tile; from the tile of token 700 on
        self.assertEqual(self.reserved(128, 1), [992 - 544, 328])  # token 573 is in the tile from 544 on
        self.assertEqual(self.reserved(0, 4), [672, 328])  # a group's own step is exact
        self.assertEqual(self.reserved(0, 1, 3), [928, 1000 - 608])  # two tiles more are exact
        self.assertEqual(self.reserved(0, 4, 3), [608, 392])

    def test_latents_of_the_longest_prompt(self):
        for window, begin in ((0, 0), (128, 544)):
            impl = LatentImpl(6, 32, 0.25, 2)
            impl.max_tokens, impl.window = 1000, window
            pages = mock.Mock()
            pages.rebuilt.side_effect = lambda latents, first, dtype: (torch.zeros(len(latents), 2, 32, dtype=dtype),) * 2
            store = types.SimpleNamespace(group=types.SimpleNamespace(rank=40), layer_pages=[None, pages])
            rows = torch.zeros(300, 6, 32, dtype=torch.bfloat16)
            with mock.patch("kvconvert.vllm.latent_backend.attend_prompt", wraps=attend_prompt) as attended:
                impl._reserve(types.SimpleNamespace(index=1, store=store), rows, rows[:, :2])
            latents, first, dtype = pages.rebuilt.call_args.args
            self.assertEqual((latents.shape, first, dtype), ((700 - begin, 40), begin, torch.bfloat16))
            query, length, coded, exact, *_ = attended.call_args.args
            self.assertEqual((len(query), length, len(coded[0]), len(exact[1])), (300, 1000, 700 - begin, 300))

    def test_rows_of_the_longest_prompt(self):
        for window, begin in ((0, 0), (128, 544)):
            impl = FusedImpl(6, 32, 0.25, 2)
            impl.max_tokens, impl.window = 1000, window
            factors = Fusion([1, 3], torch.ones(2, 2, 32), None, None)
            reads = LayerRows([1, 3], [1, 3], (factors, factors), 0.25)
            rows = torch.zeros(300, 6, 32, dtype=torch.bfloat16)
            with mock.patch("kvconvert.vllm.fused_backend.attend_prompt", wraps=attend_prompt) as attended:
                impl._reserve(types.SimpleNamespace(index=1, store=types.SimpleNamespace(reads=[None, reads])), rows, rows[:, :2])
            query, length, stored, exact, *_ = attended.call_args.args
            self.assertEqual((len(query), length, len(stored[0]), len(exact[0]), len(exact[1])), (300, 1000, 0, *[1000 - begin] * 2))
            self.assertEqual(exact[0].dtype, torch.bfloat16)


if __name__ == "__main__":
    unittest.main()
