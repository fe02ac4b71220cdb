#!/usr/bin/env python3
"""Rows in an engine's pages, and sums of several layers' rows (kvconvert/row_pages.py), against plain torch."""

import unittest

import source_tree  # noqa: F401 (first: torch and kvconvert read what it sets)
import torch

from kvconvert._ops import ops
from kvconvert.factors import basis_channels
from kvconvert.fused import Fusion
from kvconvert.row_pages import LayerRows, store_rows

SCALE, LAYERS = 0.3, 3
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 8e-3}


def channels(sources, heads, head_dim):
    return Fusion(sources, torch.randn(len(sources), heads, head_dim), None, None)


class Case:
    """Sequences of `lens` tokens in pages that are in no order; each has its last token for a query."""

    device = torch.device("cpu")
    layer_rows = LayerRows

    def __init__(self, lens, heads=2, repeats=3, head_dim=16, page_tokens=32, dtype=torch.float32, padding=0):
        self.lens, self.heads, self.head_dim, self.dtype, self.page_tokens = lens, heads, head_dim, dtype, page_tokens
        each = -(-max(lens) // page_tokens)
        order = torch.randperm(len(lens) * each + 3)
        self.table = order[:len(lens) * each].view(len(lens), each).int().to(self.device)
        numbers = LAYERS * 2 * page_tokens * heads * head_dim
        memory = torch.full((len(order), numbers + padding), float("nan"), dtype=dtype, device=self.device)
        self.pages = memory[:, :numbers].unflatten(1, (LAYERS, 2, page_tokens, heads, head_dim))
        self.rows = torch.randn(len(lens), LAYERS, 2, max(lens), heads, head_dim).to(self.device, dtype)
        self.query = torch.randn(len(lens), heads * repeats, head_dim).to(self.device, dtype)
        for sequence, length in enumerate(lens):
            tokens = torch.arange(length, device=self.device)
            slots = self.table[sequence].long()[tokens // page_tokens] * page_tokens + tokens % page_tokens
            for place in range(LAYERS):
                store_rows(self.pages, place, slots, *self.rows[sequence, place, :, :length])

    def reads(self, number_of_sources, **rule):
        """What a layer reads: rows as they are, or sums of one or two sources, other ones for keys than for values."""
        keys, values = ([0], [0]) if number_of_sources == 0 else (list(range(number_of_sources)), list(range(1, 1 + number_of_sources)))
        fusions = tuple(channels(places, self.heads, self.head_dim).on(self.device) for places in (keys, values)) if number_of_sources else None
        return self.layer_rows(keys, values, fusions, **{"scale": SCALE, **rule})

    def attend(self, reads, sequences=None):
        chosen = list(range(len(self.lens)) if sequences is None else sequences)
        out = torch.empty_like(self.query[chosen])
        lens = torch.tensor([self.lens[i] for i in chosen], dtype=torch.int32, device=self.device)
        reads.attend(out, self.query[chosen], self.pages, self.table[chosen], lens, int(lens.max()))
        return out

    def fused(self, reads, sequence):
        """Keys and values of all tokens [tokens, heads, head_dim], written out in float64."""
        parts = []
        for part, places in enumerate((reads.keys, reads.values)):
            rows = [self.rows[sequence, place, part, :self.lens[sequence]].double() for place in places]
            weights = [1.0] * len(rows) if reads.fusions is None else reads.fusions[part].weight.double()
            parts.append(sum(weight * own for weight, own in zip(weights, rows)))
        return parts

    def expected(self, reads):
        out = []
        for sequence, length in enumerate(self.lens):
            first = max(0, length - reads.window) if reads.window else 0
            keys, values = (part[first:].transpose(0, 1) for part in self.fused(reads, sequence))
            query = self.query[sequence].double().view(self.heads, -1, self.head_dim)
            scores = query @ keys.transpose(1, 2) * reads.scale
            if reads.softcap:
                scores = torch.tanh(scores / reads.softcap) * reads.softcap
            out.append((scores.softmax(-1) @ values).flatten(0, 1))
        return torch.stack(out)


class RowPagesTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def test_equals_torch(self):
        for dtype in TOLERANCE:
            for case in (Case([1, 33, 1500], dtype=dtype), Case([70, 5], repeats=1, head_dim=64, page_tokens=128, dtype=dtype),
                         Case([64, 32], heads=1, repeats=5, head_dim=8, dtype=dtype, padding=8)):
                for sources in range(3):
                    for rule in ({}, {"window": 20, "softcap": 2.0}):
                        reads = case.reads(sources, **rule)
                        self.assertTrue(reads.reads_in_place(case.query, case.pages))
                        torch.testing.assert_close(case.attend(reads).double(), case.expected(reads), atol=TOLERANCE[dtype],
                                                   rtol=TOLERANCE[dtype])

    def test_sequences_and_threads_change_nothing(self):
        case = Case([2100, 7, 300, 1100])
        for sources in range(3):
            reads, threads = case.reads(sources), torch.get_num_threads()
            whole = case.attend(reads)
            for sequence in range(4):
                self.assertTrue(torch.equal(case.attend(reads, [sequence])[0], whole[sequence]))
            torch.set_num_threads(1)
            self.assertTrue(torch.equal(case.attend(reads), whole))
            torch.set_num_threads(threads)

    def test_rows_are_read_back(self):
        case = Case([100, 31])
        for sources in range(3):
            reads = case.reads(sources)
            for sequence, first, last in ((0, 0, 100), (0, 40, 97), (1, 0, 31)):
                found = reads.read(case.pages, case.table[sequence], first, last)
                for own, expected in zip(found, case.fused(reads, sequence)):
                    torch.testing.assert_close(own.double(), expected[first:last], atol=1e-5, rtol=1e-5)

    def test_slots_below_zero_are_of_the_first_page(self):
        case = Case([40])
        before, rows = case.pages.clone(), torch.ones(2, 2, 16)
        store_rows(case.pages, 1, torch.tensor([-1, -5]), rows, rows)
        before[0, 1, :, 0] = 1
        self.assertTrue(torch.equal(case.pages.nan_to_num(9), before.nan_to_num(9)))

    def test_what_is_not_read_in_place(self):
        case = Case([5])
        one, heads = channels([0], 2, 16), torch.tensor([[1, 0]])
        pairs = Fusion([0], torch.randn(1, 2, 2, 8), None, basis_channels(1, 16, 8)[0])
        mapped = Fusion([0], torch.randn(1, 2, 16), heads, None)
        three = channels([0, 1, 2], 2, 16)
        for places, fusions in (([0], (pairs, one)), ([0], (one, mapped)), ([0, 1, 2], (three, three)), ([0, 1], (channels([0, 1], 2, 16), one))):
            reads = LayerRows(places, places[:len(fusions[1].sources)], fusions, SCALE)
            self.assertFalse(reads.reads_in_place(case.query, case.pages))
            self.assertEqual(reads.read(case.pages, case.table[0], 0, 5)[0].shape, (5, 2, 16))

    def test_tensors_that_do_not_fit_are_refused(self):
        case = Case([40])
        reads = case.reads(2)
        keys, values = ([case.pages[:, place, part] for place in (0, 1)] for part in (0, 1))
        factors = [list(fusion.weight) for fusion in reads.fusions]
        table, lens = case.table, torch.tensor([40], dtype=torch.int32)
        good = [torch.empty_like(case.query), case.query, keys, values, *factors, table, lens, SCALE, 0.0, 0]
        ops().attend_paged_rows(*good)
        for place, wrong, reason in (
                (2, keys[:1], "one or two layers"),
                (2, [keys[0], keys[1][..., :8]], "dense in a page"),
                (3, [values[0][:, :16], values[1]], "expected rows"),
                (4, [factors[0][0][:1], factors[0][1]], "expected factors"),
                (1, case.query[:, :5], "multiple of the keys' heads"),
                (6, table.long(), "int32 block table"),
                (6, table + 100, "page"),
                (7, torch.tensor([65], dtype=torch.int32), "65 tokens, expected 1 to 64"),
                (7, torch.tensor([0], dtype=torch.int32), "0 tokens"),
                (10, -1, "a window of at least 0")):
            with self.subTest(reason), self.assertRaisesRegex(RuntimeError, reason):
                ops().attend_paged_rows(*good[:place], wrong, *good[place + 1:])


if __name__ == "__main__":
    unittest.main()
