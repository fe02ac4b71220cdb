#!/usr/bin/env python3
"""Latents in pages of a GPU's memory against plain torch: the op of a GPU runs in the emulator, on tensors of the CPU.

On a GPU: KVC_TEST_DEVICE=cuda KVCONVERT_OPS=libkvconvert_ops.so device_latents_test.py
"""

import itertools
import os
import pathlib
import unittest
from unittest import mock

DEVICE = os.environ.get("KVC_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    os.environ["KVCONVERT_OPS"] = str(pathlib.Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops_emulated.so")

import torch  # noqa: E402
from latent_pages_test import SCALE, TOLERANCE, Case  # noqa: E402

import kvconvert.device_latents  # noqa: E402
from kvconvert.device_latents import DeviceLayerPages  # noqa: E402
from kvconvert.factors import ConversionError  # noqa: E402

HALVES = (torch.bfloat16, torch.float16)


class DeviceCase(Case):
    """A case whose pages a device writes and reads."""

    device = torch.device(DEVICE)

    def __init__(self, past, new, repeats=3, softcap=0.0, ranks=(16, 24), dtype=torch.bfloat16, **options):
        super().__init__(past, new, repeats=repeats, softcap=softcap, ranks=ranks, dtype=dtype, **options)
        heads = self.query.shape[1]
        self.layers = [DeviceLayerPages(self.latents, place, heads, SCALE, softcap) for place in range(2)]


class DeviceLatents(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(0)

    def check(self, case):
        for place in range(2):
            found, most = case.attend(place), TOLERANCE[case.dtype]
            self.assertEqual(found.dtype, case.dtype)
            torch.testing.assert_close(found.double(), case.expected(place), atol=most, rtol=most)

    def test_equals_torch(self):
        shapes = ((1, 1, 8, (8, 8), False, 4), (2, 3, 16, (16, 24), True, 8), (1, 7, 72, (40, 64), True, 20),
                  (4, 1, 32, (96, 96), False, 0), (2, 4, 128, (136, 288), True, 64), (1, 20, 64, (32, 32), False, 32))
        for (kv_heads, repeats, head_dim, ranks, split, pairs), dtype in itertools.product(shapes, HALVES):
            with self.subTest(head_dim=head_dim, dtype=dtype):
                self.check(DeviceCase([37, 64, 3, 0], [1, 5, 2, 3], kv_heads=kv_heads, repeats=repeats, head_dim=head_dim, ranks=ranks,
                                      split=split, pairs=pairs, dtype=dtype))

    def test_one_query_a_sequence(self):
        for page_tokens, past in ((32, [300, 31, 64]), (64, [33, 0, 500]), (128, [0, 0, 0])):
            with self.subTest(page_tokens=page_tokens):
                case = DeviceCase([max(past)] * 3, [1, 1, 1], page_tokens=page_tokens) if max(past) else DeviceCase([1] * 3, [1, 1, 1])
                case.past = past
                self.check(case)

    def test_windows(self):
        for window in (1, 3, 8, 40, 500):
            with self.subTest(window=window):
                self.check(DeviceCase([37, 64, 3, 0], [1, 5, 4, 2], window=window))

    def test_softcap_and_norm(self):
        self.check(DeviceCase([100, 20], [2, 1], softcap=2.0))
        self.check(DeviceCase([100, 20], [2, 1], norm=True))

    def test_latents_are_at_their_slots(self):
        case = DeviceCase([70, 100], [1, 1], page_tokens=32, padding=8)
        written, expected, rank = case.pages.clone(), torch.full_like(case.pages, float("nan")), case.latents.rank
        for sequence, past in enumerate(case.past):
            for token in range(past):
                place = token % 32 * rank
                expected[case.table[sequence, token // 32].long(), place:place + rank] = case.rows[sequence, token]
        torch.testing.assert_close(written, expected, equal_nan=True, atol=0, rtol=0)
        case.pages.fill_(float("nan"))
        case.lay_again(7)
        torch.testing.assert_close(case.pages, written, equal_nan=True, atol=0, rtol=0)
        for place, (first, count) in itertools.product(range(2), ((0, 100), (31, 60), (99, 1), (5, 0))):
            found = case.layers[place].read(case.pages, case.table[1], first, count, case.dtype)
            whole = case.layers[place].rebuilt(case.rows[1, :100], 0, case.dtype)
            for part, of_whole in zip(found, whole):
                torch.testing.assert_close(part, of_whole[first:first + count], atol=0.02, rtol=0.02)

    def test_slots_below_zero_are_skipped(self):
        case = DeviceCase([10], [1])
        before, rows = case.pages.clone(), torch.ones(3, 40, dtype=torch.bfloat16, device=DEVICE)
        for slots in ([-1, -5, -1], [-1], []):
            case.layers[0].store(case.pages, torch.tensor(slots, dtype=torch.int64, device=DEVICE), rows[:len(slots)])
            torch.testing.assert_close(case.pages, before, equal_nan=True, atol=0, rtol=0)
        case.layers[0].store(case.pages, torch.tensor([-1, 2, -1], device=DEVICE), rows)
        before[0, 80:120] = 1
        torch.testing.assert_close(case.pages, before, equal_nan=True, atol=0, rtol=0)

    def test_a_sequence_does_not_depend_on_the_others(self):
        case = DeviceCase([300, 213, 40, 0], [3, 1, 2, 4])
        together = case.attend(0)
        for most in (1, 60_000):
            with mock.patch.object(kvconvert.device_latents, "MOST_SCRATCH", most):
                torch.testing.assert_close(case.attend(0), together, atol=4e-3, rtol=1e-2)  # parts of a sequence are others
        for i in range(4):
            span = slice(*case.starts[i:i + 2].tolist())
            torch.testing.assert_close(case.attend(0, [i]), together[span], atol=4e-3, rtol=1e-2)

    def test_strided_queries_and_outputs(self):
        case = DeviceCase([40, 20], [1, 2])
        expected, past = case.attend(0), torch.tensor(case.past, dtype=torch.int32)
        beside = torch.cat((case.query, case.query), 1)
        out = torch.zeros_like(beside)
        case.layers[0].attend(out[:, :6], beside[:, 6:], case.pages, case.table, past, case.starts, case.keys, case.values)
        self.assertTrue(torch.equal(out[:, :6], expected))
        self.assertFalse(out[:, 6:].any())

    def test_refusals(self):
        for message, options in {"rank 7 run on the CPU, and GPUs take multiples of 8": {"ranks": (7, 16)},
                                 "heads of 136 channels run on the CPU, and GPUs take even numbers up to 128": {"head_dim": 136},
                                 "heads of 33 channels run on the CPU": {"head_dim": 33},
                                 "the model is float32, expected bfloat16": {"dtype": torch.float32}}.items():
            with self.assertRaisesRegex(ConversionError, message):
                DeviceCase([3], [1], **options)
        case = DeviceCase([3], [1])
        case.pages = case.pages.half()
        with self.assertRaisesRegex(ConversionError, "the cache is float16 and the model bfloat16, expected one dtype"):
            case.attend(0)
        case = DeviceCase([3], [1], padding=4)
        with self.assertRaisesRegex(ValueError, "multiples of 16 bytes"):
            case.attend(0)
        with mock.patch.object(kvconvert.latent_pages, "ops", lambda: object()), self.assertRaisesRegex(ConversionError, "without CUDA"):
            DeviceLayerPages(case.latents, 0, 6, SCALE)


if __name__ == "__main__":
    unittest.main()
