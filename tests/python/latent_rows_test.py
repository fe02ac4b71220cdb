#!/usr/bin/env python3
"""Attention of single tokens over latents and exact rows (kvconvert/latent_attention.py) against plain torch in float64."""

import itertools
import unittest
from unittest import mock

import source_tree  # noqa: F401 (first: torch and kvconvert read what it sets)
import torch

import kvconvert.tiled_attention
from kvconvert._ops import ops
from kvconvert.latent_attention import StoredRows, attend_rows
from kvconvert.latents import Latents, LayerForm, turned
from latent_cases import Checkpoint, angles


def expected(latents, place, query, rows, scale, softcap):
    """One sequence after the other, keys and values written out."""
    out, window = [], latents.forms[place].window
    group = latents.group
    (key_decoder, value_decoder), (key_mean, value_mean) = latents.decoders[place], latents.offsets[place]
    for sequence, (count, exact) in enumerate(zip(rows.counts, rows.exact_counts)):
        own = rows.latents[sequence, :count].double()
        sinks = min(rows.sinks, exact)
        # As in the engine, keys are rounded to the cache's type before they are turned.
        keys = (own[:, :group.key_rank] @ key_decoder.double().t() + key_mean.double()).to(query.dtype).double()
        keys = turned(keys.view(count, latents.num_kv_heads, latents.head_dim), latents.forms[place].rope, sinks)
        values = (own[:, group.rank - group.value_rank:] @ value_decoder.double().t() + value_mean.double()).view_as(keys)
        exact_keys, exact_values = (part[sequence, :exact].double() for part in (rows.keys, rows.values))
        keys = torch.cat((exact_keys[:sinks], keys, exact_keys[sinks:]))
        values = torch.cat((exact_values[:sinks], values, exact_values[sinks:]))
        keys, values = (part[-window:] if window else part for part in (keys, values))
        repeats = query.shape[1] // latents.num_kv_heads
        keys, values = keys.repeat_interleave(repeats, 1), values.repeat_interleave(repeats, 1)
        scores = torch.einsum("hd,nhd->hn", query[sequence].double(), keys) * scale
        scores = torch.tanh(scores / softcap) * softcap if softcap else scores
        out.append(torch.einsum("hn,nhd->hd", scores.softmax(-1), values))
    return torch.stack(out)


class LatentRowsTest(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def case(self, counts, exact_counts, kv_heads=2, repeats=3, head_dim=16, ranks=(7, 13), split=True, pairs=8, window=0, sinks=4,
             dtype=torch.float32, factor=1.0):
        checkpoint = Checkpoint(kv_heads, head_dim, *ranks, split)
        rope = angles(4096, pairs, factor) if pairs else None
        latents = Latents(checkpoint, [0, 1], [LayerForm(rope, window)] * 2, dtype, torch.device("cpu"))
        size, most, most_exact = len(counts), max(counts) + 5, max(exact_counts) + 3
        rows = StoredRows(torch.randn(size, most, latents.rank).to(dtype), counts,
                          *torch.randn(2, size, most_exact, kv_heads, head_dim).to(dtype), exact_counts, sinks)
        return latents, torch.randn(size, kv_heads * repeats, head_dim).to(dtype), rows

    def check(self, latents, query, rows, scale=0.3, softcap=0.0):
        for place in range(2):
            found = attend_rows(latents, place, query, rows, scale, softcap)
            self.assertEqual(found.dtype, query.dtype)
            tolerance = {torch.float32: 2e-5, torch.bfloat16: 4e-2, torch.float16: 8e-3}[query.dtype]
            torch.testing.assert_close(found.double(), expected(latents, place, query, rows, scale, softcap), atol=tolerance,
                                       rtol=tolerance)

    def test_equals_torch(self):
        shapes = ((1, 1, 8, (5, 5), False, 4), (2, 3, 16, (7, 13), True, 8), (1, 7, 72, (37, 64), True, 20), (4, 1, 32, (96, 96), False, 0))
        for (kv_heads, repeats, head_dim, ranks, split, pairs), dtype in itertools.product(
                shapes, (torch.float32, torch.bfloat16, torch.float16)):
            with self.subTest(head_dim=head_dim, dtype=dtype):
                self.check(*self.case([37, 64, 3, 0], [20, 4, 9, 2], kv_heads, repeats, head_dim, ranks, split, pairs, dtype=dtype))

    def test_windows(self):
        for window in (1, 3, 8, 30, 44, 500):
            with self.subTest(window=window):
                self.check(*self.case([37, 64, 3, 0], [20, 8, 9, 2], window=window))

    def test_softcap_and_scaled_angles(self):
        self.check(*self.case([100, 20], [5, 30], factor=1.3), softcap=2.0)

    def test_no_exact_rows(self):
        self.check(*self.case([100, 20], [0, 0], sinks=0))

    def test_long_sequences_are_read_in_parts(self):
        for window in (0, 1500):
            self.check(*self.case([3000, 2048, 513], [20, 20, 7], window=window), scale=1.0)

    def test_threads_change_nothing(self):
        case = self.case([2000, 300], [20, 9])
        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        found = []
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            found.append(attend_rows(case[0], 0, case[1], case[2], 0.3))
        self.assertTrue(torch.equal(found[0], found[1]) and torch.equal(found[0], found[2]))

    def test_strided_queries(self):
        latents, query, rows = self.case([40, 30], [9, 8])
        wide = torch.cat((query, query), 2)[..., :query.shape[2]]
        self.assertTrue(torch.equal(attend_rows(latents, 0, wide, rows, 0.3), attend_rows(latents, 0, query, rows, 0.3)))

    def test_encoding_inverts_rebuilding(self):
        """Latents of keys and values that full-rank latents stand for are those latents."""
        latents, _, rows = self.case([40], [1], head_dim=8, ranks=(16, 16), pairs=4, factor=1.3)
        keys, values = ([latents.keys(place, rows.latents[0, :40], 4) for place in range(2)],
                        [latents.values(place, rows.latents[0, :40]) for place in range(2)])
        stacked = [torch.cat([pair[part] for pair in latents.decoders]) for part in range(2)]  # [2 kv_dim, rank] of keys, of values
        inverse = [torch.linalg.pinv(part).split(16, 1) for part in stacked]
        latents.encoders = list(zip(*inverse))
        latents.mean_latent = latents._encoded([(key[None], value[None]) for key, value in latents.offsets])
        torch.testing.assert_close(latents.encode(4, keys, values), rows.latents[0, :40], atol=1e-3, rtol=1e-3)

    def test_arguments_are_checked(self):
        sums, scales, query = torch.zeros(2, 6, 13), torch.zeros(2, 2, 6), torch.randn(2, 6, 16)
        keys, latents, cos, sin = torch.randn(2, 8, 2, 16), torch.randn(2, 20, 20), *angles(64, 8)
        spans = torch.tensor([[[0, 20]], [[0, 20]]])

        def attend(words, **changes):
            named = {"sums": sums, "scales": scales, "query": query, "keys": keys, "latents": latents, "spans": spans, "first": 4,
                     "first_position": 8, "num_kv_heads": 2, "cos": cos, "sin": sin, "scale": 1.0, "softcap": 0.0} | changes
            if words is None:
                ops().attend_latents(*named.values())
            else:
                with self.assertRaisesRegex(RuntimeError, words):
                    ops().attend_latents(*named.values())

        attend(None)
        attend("8 keys from latent 13 of 20", first=13)
        attend("at position 57, and angles", first_position=57)
        attend("at position 9223372036854775807, and angles", first_position=2**63 - 1)
        attend("from latent 9223372036854775807", first=2**63 - 1)
        attend("spans: rows 0 to 21 of 20", spans=spans + torch.tensor([0, 1]))
        attend("spans: rows -1 to", spans=spans - 1)
        attend("expected dense rows of 32 numbers", keys=keys[..., :8])
        attend("expected dense rows of 20 numbers", latents=latents[:, ::2])
        attend("expected float32, bfloat16 or float16", latents=latents.double())
        attend("a multiple of 4 heads", num_kv_heads=4)
        attend("sums: expected", sums=sums[:, :4].contiguous())
        attend("expected latents .* and sums of at most as many numbers", sums=torch.zeros(2, 6, 21))
        attend("scales: expected", scales=torch.zeros(2, 6, 2))

        exact, empty = torch.randn(2, 5, 2, 16), torch.full((2, 2, 6), float("-inf"))
        spans = torch.tensor([[[0, 0], [2, 5]], [[0, 1], [5, 5]]])
        out, values = torch.empty(2, 6, 16), torch.zeros(2, 6, 16)
        ops().join_exact(out, query, values, empty, exact, exact, spans, 1.0, 0.0)
        for words, (given, limits) in {"query 1 sees no token": (exact, torch.tensor([[[0, 0], [2, 5]], [[0, 0], [5, 5]]])),
                                       "spans: rows 2 to 6 of 5": (exact, torch.tensor([[[0, 0], [2, 6]], [[0, 1], [5, 5]]])),
                                       "as many keys and values": (exact[:, :4], spans)}.items():
            with self.assertRaisesRegex(RuntimeError, words):
                ops().join_exact(out, query, values, empty, exact, given, limits, 1.0, 0.0)


class WithoutKernelsTest(LatentRowsTest):
    """What devices take that the library has no kernels on, on tensors of the CPU."""

    test_threads_change_nothing = test_encoding_inverts_rebuilding = test_arguments_are_checked = None

    def setUp(self):
        super().setUp()
        for patch in (mock.patch.object(kvconvert.tiled_attention, "has_kernel", lambda _: False),
                      mock.patch("kvconvert.latent_attention.ops", side_effect=AssertionError("a kernel was called"))):
            patch.start()
            self.addCleanup(patch.stop)


if __name__ == "__main__":
    unittest.main()
