#!/usr/bin/env python3
"""Latents in an engine's pages (kvconvert/latent_pages.py) against those of dense tensors, and against plain torch."""

import itertools
import unittest

import source_tree  # noqa: F401 (first: torch and kvconvert read what it sets)
import torch

from kvconvert._ops import ops
from kvconvert.latent_attention import StoredRows, attend_rows
from kvconvert.latent_pages import pages_class
from kvconvert.latents import HeadNorm, Latents, LayerForm
from latent_cases import Checkpoint, angles

SCALE = 0.3
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 8e-3}


class Case:
    """Sequences behind `past` tokens with latents, with `new` tokens of their own, in pages that are in no order."""

    device = torch.device("cpu")

    def __init__(self, past, new, kv_heads=2, repeats=3, head_dim=16, ranks=(7, 13), split=True, pairs=8, window=0, softcap=0.0,
                 dtype=torch.float32, norm=False, page_tokens=32, padding=0):
        self.past, self.new, self.window, self.softcap, self.dtype = past, new, window, softcap, dtype
        self.rope = tuple(part.to(self.device) for part in angles(4096, pairs)) if pairs else None
        key_norm = HeadNorm(torch.rand(head_dim, device=self.device) + 0.5, 1e-6) if norm else None
        self.latents = Latents(Checkpoint(kv_heads, head_dim, *ranks, split), [0, 1],
                               [LayerForm(self.rope, window, key_norm=key_norm)] * 2, dtype, self.device)
        heads, rank = kv_heads * repeats, self.latents.rank
        self.layers = [pages_class(self.device)(self.latents, place, heads, SCALE, softcap) for place in range(2)]
        self.rows = torch.randn(len(past), max(past), rank).to(self.device, dtype)
        self.query, total = torch.randn(sum(new), heads, head_dim).to(self.device, dtype), sum(new)
        self.keys, self.values = torch.randn(2, total, kv_heads, head_dim).to(self.device, dtype)
        self.starts = torch.tensor([0, *itertools.accumulate(new)], dtype=torch.int32)
        self.lay(page_tokens, padding)

    def lay(self, page_tokens, padding=0, pieces=1000):
        """Stores all latents, as many tokens at a time, in pages of a size."""
        each = -(-max(self.past) // page_tokens)
        order = torch.randperm(len(self.past) * each + 3)
        self.table = order[:len(self.past) * each].view(len(self.past), each).int().to(self.device)
        width = page_tokens * self.latents.rank + padding
        self.pages, self.page_tokens = torch.full((len(order), width), float("nan"), dtype=self.dtype, device=self.device), page_tokens
        self.lay_again(pieces)

    def lay_again(self, pieces):
        page_tokens = self.page_tokens
        for sequence, past in enumerate(self.past):
            for first in range(0, past, pieces):
                tokens = torch.arange(first, min(past, first + pieces), device=self.device)
                slots = self.table[sequence].long()[tokens // page_tokens] * page_tokens + tokens % page_tokens
                self.layers[0].store(self.pages, slots, self.rows[sequence, tokens])

    def attend(self, place, sequences=None):
        """Of all sequences, or of some alone."""
        chosen = range(len(self.past)) if sequences is None else sequences
        spans = [slice(*self.starts[i:i + 2].tolist()) for i in chosen]
        query, keys, values = (torch.cat([part[span] for span in spans]) for part in (self.query, self.keys, self.values))
        starts = torch.tensor([0, *itertools.accumulate(self.new[i] for i in chosen)], dtype=torch.int32)
        out = torch.empty_like(query)
        past = torch.tensor([self.past[i] for i in chosen], dtype=torch.int32)
        self.layers[place].attend(out, query, self.pages, self.table[list(chosen)], past, starts, keys, values)
        return out

    def expected(self, place):
        """Keys and values of all tokens written out, in float64."""
        out = []
        for sequence, (past, new) in enumerate(zip(self.past, self.new)):
            span = slice(*self.starts[sequence:sequence + 2].tolist())
            old = self.layers[place].read(self.pages, self.table[sequence], 0, past, torch.float64)
            keys, values = (torch.cat((part, own[span].double())) for part, own in zip(old, (self.keys, self.values)))
            repeats = self.query.shape[1] // keys.shape[1]
            keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
            scores = torch.einsum("qhd,nhd->hqn", self.query[span].double(), keys) * SCALE
            scores = torch.tanh(scores / self.softcap) * self.softcap if self.softcap else scores
            position, token = past + torch.arange(new, device=self.device)[:, None], torch.arange(past + new, device=self.device)
            hidden = (token > position) | (token <= position - self.window if self.window else token < 0)
            out.append(torch.einsum("hqn,nhd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values))
        return torch.cat(out)


class LatentPagesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def check(self, case):
        for place in range(2):
            found = case.attend(place)
            self.assertEqual(found.dtype, case.dtype)
            most = TOLERANCE[case.dtype]
            torch.testing.assert_close(found.double(), case.expected(place), atol=most, rtol=most)

    def test_equals_torch(self):
        shapes = ((1, 1, 8, (5, 5), False, 4), (2, 3, 16, (7, 13), True, 8), (1, 7, 72, (37, 64), True, 20),
                  (4, 1, 32, (96, 96), False, 0))
        for (kv_heads, repeats, head_dim, ranks, split, pairs), dtype in itertools.product(shapes, TOLERANCE):
            with self.subTest(head_dim=head_dim, dtype=dtype):
                self.check(Case([37, 64, 3, 0], [1, 5, 2, 3], kv_heads, repeats, head_dim, ranks, split, pairs, dtype=dtype))

    def test_windows(self):
        for window in (1, 3, 8, 40, 500):
            with self.subTest(window=window):
                self.check(Case([37, 64, 3, 0], [1, 5, 4, 2], window=window))

    def test_softcap_and_norm(self):
        self.check(Case([100, 20], [2, 1], softcap=2.0))
        self.check(Case([100, 20], [2, 1], norm=True))

    def test_equals_dense_latents(self):
        """The attention that transformers takes, of a token that is exact behind latents."""
        for dtype, window in itertools.product(TOLERANCE, (0, 50)):
            case = Case([700, 33, 64], [1, 1, 1], dtype=dtype, window=window)
            dense = StoredRows(case.rows, case.past, case.keys[:, None], case.values[:, None], [1, 1, 1], 0)
            for place in range(2):
                torch.testing.assert_close(case.attend(place), attend_rows(case.latents, place, case.query, dense, SCALE),
                                           atol=TOLERANCE[dtype], rtol=TOLERANCE[dtype])

    def test_pages_change_nothing(self):
        """Of whatever size, with padding, and however their tokens arrived."""
        case = Case([1100, 513, 40], [3, 1, 2])
        expected = [case.attend(place) for place in range(2)]
        for page_tokens, padding, pieces in ((1, 0, 1000), (16, 4, 7), (32, 0, 1), (100, 8, 33), (4096, 0, 500)):
            case.lay(page_tokens, padding, pieces)
            found = [case.attend(place) for place in range(2)]
            for place in range(2):  # sums go by pages
                torch.testing.assert_close(found[place], expected[place], atol=2e-6, rtol=2e-6)
            case.pages = torch.cat((case.pages, case.pages), 1)[:, :case.pages.shape[1]]  # a page is not behind the one before
            case.lay_again(pieces + 3)
            self.assertTrue(torch.equal(case.attend(0), found[0]))

    def test_a_sequence_does_not_depend_on_the_others_nor_on_threads(self):
        case = Case([1100, 513, 40, 0], [3, 1, 2, 4])
        together, before = case.attend(0), torch.get_num_threads()
        self.addCleanup(torch.set_num_threads, before)
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            self.assertTrue(torch.equal(torch.cat([case.attend(0, [i]) for i in range(4)]), together))
            self.assertTrue(torch.equal(case.attend(0), together))

    def test_queries_do_not_depend_on_the_cut(self):
        """A token whose own rows are what its latent gives, once as a query of several, and once behind a latent."""
        case = Case([90], [5])
        case.rows = torch.randn(1, 95, case.latents.rank)
        case.past = [95]
        case.lay(32)
        case.keys, case.values = case.layers[0].read(case.pages, case.table[0], 90, 5, torch.float32)
        outputs = []
        for past in (90, 92, 94):
            out, span = torch.empty(95 - past, 6, 16), slice(past - 90, 5)
            case.layers[0].attend(out, case.query[span], case.pages, case.table, torch.tensor([past], dtype=torch.int32),
                                  torch.tensor([0, 95 - past], dtype=torch.int32), case.keys[span], case.values[span])
            outputs.append(out[-1])
        torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(outputs[0], outputs[2], atol=1e-5, rtol=1e-5)

    def test_an_engines_default_type_changes_nothing(self):
        torch.set_default_dtype(torch.bfloat16)
        self.addCleanup(torch.set_default_dtype, torch.float32)
        case = Case([40], [1], pairs=0, dtype=torch.bfloat16)
        self.check(case)

    def test_parts_of_a_sequence_are_read(self):
        case = Case([100, 20], [1, 1], page_tokens=16)
        keys, values = case.layers[1].read(case.pages, case.table[0], 0, 100, torch.float32)
        rows = case.rows[0, :100]
        self.assertTrue(torch.equal(keys, case.latents.keys(1, rows, 0)) and torch.equal(values, case.latents.values(1, rows)))
        for first, count in ((0, 0), (5, 1), (16, 16), (31, 60), (99, 1)):
            some = case.layers[1].read(case.pages, case.table[0], first, count, torch.float32)
            torch.testing.assert_close(some[0], keys[first:first + count], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(some[1], values[first:first + count], atol=1e-5, rtol=1e-5)

    def test_slots_below_zero_are_skipped(self):
        case = Case([10], [1])
        before = case.pages.clone()
        case.layers[0].store(case.pages, torch.tensor([-1, -5]), torch.zeros(2, 20))
        torch.testing.assert_close(case.pages, before, equal_nan=True, atol=0, rtol=0)

    def test_arguments_are_checked(self):
        case = Case([40, 20], [1, 2])
        past, handle = torch.tensor([40, 20], dtype=torch.int32), case.layers[0]._handle
        named = {"handle": handle, "out": torch.empty_like(case.query), "query": case.query, "pages": case.pages,
                 "table": case.table, "past": past, "starts": case.starts, "keys": case.keys, "values": case.values}
        ops().attend_paged_latents(*named.values())
        for words, changes in {
                "latents 999999 are closed": {"handle": 999999},
                "page -1, expected 0 to 6": {"table": torch.full_like(case.table, -1)},
                "page 7, expected": {"table": torch.full_like(case.table, 7)}, "int32 block table": {"table": case.table.long()},
                "of at least 2 sequences": {"table": case.table[:1]},
                "1 queries behind 65 tokens, expected at most 64": {"past": past + 25},
                "1 queries behind -1 tokens": {"past": -past // 40}, "starts do not go from 0 to 3": {"starts": case.starts - 1},
                "-1 queries behind": {"starts": torch.tensor([0, 4, 3], dtype=torch.int32)},
                r"keys: expected \[3, 2, 16\]": {"keys": case.keys[:2]},
                r"values: expected \[3, 2, 16\]": {"values": case.values[:, :1]},
                r"query: expected \[3, 6, 16\]": {"query": case.query[..., :8]}, "pages: expected": {"pages": case.pages[:, :19]},
                "pages: expected float32": {"pages": case.pages.double()}, "past tokens": {"past": past.long()}}.items():
            with self.subTest(words), self.assertRaisesRegex(RuntimeError, words):
                ops().attend_paged_latents(*(named | changes).values())
        slots, rows = torch.arange(2), torch.zeros(2, 20)
        for words, changes in {"slot 224 is beyond": (slots + 223, rows), r"expected latents \[2, 20\]": (slots, rows[:, :10]),
                               "slots: expected": (slots.int(), rows)}.items():
            with self.subTest(words), self.assertRaisesRegex(RuntimeError, words):
                ops().store_latents(handle, case.pages, *changes)

    def test_factors_are_checked(self):
        cos, sin = angles(64, 8)
        none, shape = torch.empty(0), [6, 2, 16, 20, 7, 13, 0]
        factors = [torch.zeros(32, 7), torch.zeros(32, 13), torch.zeros(32), none, none]
        scale = torch.tensor([1.0, 0.0, 1e-6])
        ops().close_latents(ops().open_latents(shape, scale, cos, sin, factors))

        def changed(whole, index, part):
            return [*whole[:index], part, *whole[index + 1:]]

        for words, of, given, table in (
                ("another length", shape[:6], factors, cos), ("a multiple of 4 heads, found 6", changed(shape, 1, 4), factors, cos),
                ("7 numbers of keys and 21 of values, expected 1 to 20", changed(shape, 5, 21), factors, cos),
                (r"key factor: expected \[32, 7\], found \[32, 8\]", shape, changed(factors, 0, torch.zeros(32, 8)), cos),
                (r"value factor: expected \[32, 13\]", shape, changed(factors, 1, torch.zeros(31, 13)), cos),
                ("key offset: expected 32 numbers, found 31", shape, changed(factors, 2, torch.zeros(31)), cos),
                ("key norm: expected 16 numbers", shape, changed(factors, 4, torch.zeros(32)), cos),
                ("angles of at least 32 positions", shape, factors, cos[:20].contiguous()),
                ("are not .* times those of position 1", shape, factors, cos.flip(0).contiguous())):
            with self.subTest(words), self.assertRaisesRegex(RuntimeError, words):
                ops().open_latents(of, scale, table, sin[:len(table)].contiguous(), given)


if __name__ == "__main__":
    unittest.main()
