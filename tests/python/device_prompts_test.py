#!/usr/bin/env python3
"""Prompts' attention on devices, in torch, against plain formulas and the library's kernel for the CPU."""

import random
import unittest
from unittest import mock

import source_tree  # noqa: F401 (first: torch and kvconvert read what it sets)
import torch

from kvconvert import device_prompts
from kvconvert.codes import TILE, exact_start, tile_start
from kvconvert.device_prompts import BLOCK, PromptBlocks
from kvconvert.tiled_attention import attend_prompt

HEAD_DIM = 16


class Prompt:
    """Random rows of a prompt of which `past` tokens came before."""

    def __init__(self, past, length, kv_heads=2, groups=3, window=0, softcap=0.0, exact_step=False, dtype=torch.float32,
                 spare=False, exact_tiles=1):
        generator = torch.Generator().manual_seed(past * 10007 + length)
        self.length, self.options = length, (0.25, softcap, window, exact_step, exact_tiles)
        self.query = 2 * torch.randn(length - past, kv_heads * groups, HEAD_DIM, generator=generator).to(dtype)
        exact_first = exact_start(past, exact_tiles)
        end = exact_first if exact_step else exact_start(length - 1, exact_tiles)
        # Codes that no query sees may be missing.
        begin = min(end, tile_start(max(past - window + 1, 0))) if window and not spare else 0
        rows = torch.randn(4, length, kv_heads, HEAD_DIM, generator=generator).to(dtype)
        self.coded, self.exact = tuple(rows[:2, begin:end]), tuple(rows[2:, exact_first:])

    def in_torch(self):
        out = torch.full_like(self.query, torch.nan)
        PromptBlocks(self.query, self.length, self.coded, self.exact, *self.options).attend(out)
        return out

    def by_the_library(self):
        return attend_prompt(self.query, self.length, self.coded, self.exact, *self.options)

    def by_formulas(self):
        """Every query with every token, in float64."""
        scale, softcap, window, exact_step, exact_tiles = self.options
        queries = torch.arange(self.length - self.query.shape[0], self.length)
        exact_first = self.length - self.exact[0].shape[0]
        own = torch.full_like(queries, exact_first) if exact_step else (queries // TILE - exact_tiles + 1).clamp(min=0) * TILE
        seen = (queries - window + 1).clamp(min=0) if window else torch.zeros_like(queries)
        end = exact_first if exact_step else exact_start(self.length - 1, exact_tiles)
        groups = self.query.shape[1] // self.exact[0].shape[1]

        query = self.query.double().transpose(0, 1)
        scores, values = [], []
        for rows, last, low, high in ((self.coded, end, seen, own),
                                      (self.exact, self.length, torch.maximum(seen, own), queries + 1)):
            key, value = (part.double().repeat_interleave(groups, 1).transpose(0, 1) for part in rows)  # [heads, tokens, head_dim]
            part = query @ key.transpose(1, 2) * scale
            part = softcap * torch.tanh(part / softcap) if softcap else part
            tokens = torch.arange(last - key.shape[1], last)
            visible = (tokens >= low[:, None]) & (tokens < high[:, None])
            scores.append(part.masked_fill_(~visible, -torch.inf))
            values.append(value)
        return (torch.cat(scores, 2).softmax(2) @ torch.cat(values, 1)).transpose(0, 1)


class Prompts(unittest.TestCase):
    def same(self, prompt, most=2e-5):
        found = prompt.in_torch()
        self.assertEqual((found.dtype, found.shape), (prompt.query.dtype, prompt.query.shape))
        torch.testing.assert_close(found.double(), prompt.by_formulas(), atol=most, rtol=0)
        return found

    def test_lengths_on_borders(self):
        lengths = (1, 2, TILE - 1, TILE, TILE + 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 40)
        for past in (0, 1, TILE, BLOCK - 1, BLOCK, BLOCK + 45):
            for tokens in lengths:
                for exact_step in (False, True):
                    for window in (0, 1, 40, BLOCK + 50):
                        for exact_tiles in (1, 2):
                            with self.subTest(past=past, tokens=tokens, exact_step=exact_step, window=window, exact_tiles=exact_tiles):
                                self.same(Prompt(past, past + tokens, window=window, exact_step=exact_step, exact_tiles=exact_tiles))

    def test_random_shapes(self):
        choose = random.Random(1)
        for _ in range(100):
            past = choose.choice((0, choose.randrange(1500)))
            options = {"length": past + choose.randrange(1, 900), "kv_heads": choose.choice((1, 2, 4)), "groups": choose.choice((1, 2, 5)),
                       "window": choose.choice((0, 0, choose.randrange(1, 1200))), "softcap": choose.choice((0.0, 0.0, 3.0)),
                       "exact_step": choose.random() < 0.4, "spare": choose.random() < 0.5,
                       "exact_tiles": choose.choice((1, 1, 2, 5, 20))}
            with self.subTest(past=past, **options):
                prompt = Prompt(past, **options)
                found = self.same(prompt)
                torch.testing.assert_close(found, prompt.by_the_library(), atol=2e-5, rtol=0)

    def test_few_scores_at_a_time(self):
        with mock.patch.object(device_prompts, "MOST_SCORES", 1):
            for window in (0, 400):
                self.same(Prompt(900, 1300, window=window))
                self.same(Prompt(900, 1300, window=window, softcap=2.0, exact_step=True))

    def test_narrow_numbers(self):
        for dtype, most in ((torch.bfloat16, 0.01), (torch.float16, 0.0015)):  # half a step of numbers up to 4
            self.same(Prompt(700, 1300, dtype=dtype), most)

    def test_the_cut_changes_nothing(self):
        whole = Prompt(0, 1000)
        found = whole.in_torch()
        for cut in (1, 33, 256, 700):
            part = PromptBlocks(whole.query[cut:], 1000, whole.coded, tuple(rows[tile_start(cut):] for rows in whole.exact), *whole.options)
            out = torch.empty_like(whole.query[cut:])
            part.attend(out)
            torch.testing.assert_close(out, found[cut:], atol=1e-5, rtol=0)

    def test_shared_tokens_go_to_flash_attention(self):
        """The CPU's flash attention stands in for CUDA's: it has the same layouts, and takes as many KV heads as queries."""
        calls = []

        def of_cpu(query, key, value, scale):
            groups = query.shape[1] // key.shape[1]
            calls.append((query.shape[2], key.shape[2]))
            return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                query, key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1), scale=scale)

        with mock.patch.object(device_prompts, "_flash_runs", lambda query: True), \
                mock.patch.object(torch.ops.aten, "_scaled_dot_product_flash_attention", of_cpu):
            for exact_step in (False, True):
                for window in (0, 700):
                    self.same(Prompt(600, 1500, window=window, exact_step=exact_step))
            calls.clear()
            self.same(Prompt(600, 1500))
            self.assertEqual(calls, [(168, 512), (256, 768), (256, 1024), (220, 1280)])
            calls.clear()
            self.same(Prompt(600, 1500, softcap=2.0))
            self.assertEqual(calls, [])

    def test_missing_tokens_are_refused(self):
        prompt = Prompt(100, 200)
        with self.assertRaisesRegex(ValueError, "tokens that queries see are missing: exact ones from 128"):
            PromptBlocks(prompt.query, 200, prompt.coded, tuple(rows[32:] for rows in prompt.exact), *prompt.options)
        with self.assertRaisesRegex(ValueError, "coded ones from 32 to 192"):
            PromptBlocks(prompt.query, 200, tuple(rows[32:] for rows in prompt.coded), prompt.exact, *prompt.options)


if __name__ == "__main__":
    unittest.main()
