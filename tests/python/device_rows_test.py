#!/usr/bin/env python3
"""Rows in pages of a GPU's memory against plain torch: the op of a GPU runs in the emulator, on tensors of the CPU.

On a GPU: KVC_TEST_DEVICE=cuda KVCONVERT_OPS=libkvconvert_ops.so device_rows_test.py
"""

import concurrent.futures
import itertools
import os
import pathlib
import sys
import unittest
from unittest import mock

DEVICE = os.environ.get("KVC_TEST_DEVICE", "cpu")
if DEVICE == "cpu":
    os.environ["KVCONVERT_OPS"] = str(pathlib.Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops_emulated.so")

import torch  # noqa: E402
from row_pages_test import Case, channels  # noqa: E402

import kvconvert.row_pages  # noqa: E402
from kvconvert._ops import ops  # noqa: E402
from kvconvert.device_rows import DeviceLayerRows  # noqa: E402
from kvconvert.factors import ConversionError, basis_channels  # noqa: E402
from kvconvert.fused import Fusion  # noqa: E402

TOLERANCE = {torch.bfloat16: 4e-2, torch.float16: 8e-3}


class DeviceCase(Case):
    """A case whose pages a device writes and reads."""

    device = torch.device(DEVICE)
    layer_rows = DeviceLayerRows

    def __init__(self, lens, head_dim=32, dtype=torch.bfloat16, **options):
        super().__init__(lens, head_dim=head_dim, dtype=dtype, **options)


class DeviceRows(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(7)

    def check(self, case, sources, **rule):
        reads, most = case.reads(sources, **rule), TOLERANCE[case.dtype]
        self.assertTrue(reads.reads_in_place(case.query, case.pages))
        torch.testing.assert_close(case.attend(reads).double(), case.expected(reads), atol=most, rtol=most)

    def test_equals_torch(self):
        shapes = ((1, 1, 32), (2, 3, 64), (1, 16, 64), (2, 4, 128), (1, 7, 32))
        for (heads, repeats, head_dim), sources, dtype in itertools.product(shapes, range(3), TOLERANCE):
            if repeats == 16 and sources == 2:
                dtype = torch.float16  # as many heads as registers hold
            with self.subTest(head_dim=head_dim, sources=sources, dtype=dtype):
                self.check(DeviceCase([37, 1, 64], heads=heads, repeats=repeats, head_dim=head_dim, dtype=dtype), sources)

    def test_wide_heads_of_one_layer(self):
        self.check(DeviceCase([70, 3], head_dim=256), 0)
        self.check(DeviceCase([70, 3], head_dim=256), 1)

    def test_pages(self):
        for page_tokens, padding in ((32, 8), (64, 0), (128, 16)):
            with self.subTest(page_tokens=page_tokens):
                case = DeviceCase([300, 31, 129], page_tokens=page_tokens, padding=padding)
                for sources in range(3):
                    self.check(case, sources)

    def test_windows_and_softcap(self):
        case = DeviceCase([150, 8, 40])
        for rule in ({"window": 1}, {"window": 20}, {"window": 500}, {"softcap": 2.0}, {"window": 33, "softcap": 1.0}):
            with self.subTest(**rule):
                self.check(case, 2, **rule)

    def test_a_sequence_does_not_depend_on_the_others(self):
        case = DeviceCase([300, 213, 40, 1])
        for sources in range(3):
            reads = case.reads(sources)
            together = case.attend(reads)
            for sequence in range(4):  # whose tokens are in other parts than together
                torch.testing.assert_close(case.attend(reads, [sequence])[0], together[sequence], atol=8e-3, rtol=2e-2)

    def test_layers_of_one_step(self):
        """They share addresses; another step has its own."""
        case = DeviceCase([100, 31])
        table, out = case.table, torch.empty_like(case.query)
        lens = torch.tensor(case.lens, dtype=torch.int32, device=DEVICE)
        for _ in range(2):
            for sources, window in itertools.product(range(3), (0, 20, 40)):
                reads = case.reads(sources, window=window)
                reads.attend(out, case.query, case.pages, table, lens, 100)
                torch.testing.assert_close(out.double(), case.expected(reads), atol=4e-2, rtol=4e-2)
            case.lens = [64, 2]
            lens = torch.tensor(case.lens, dtype=torch.int32, device=DEVICE)

    def test_threads_have_steps_of_their_own(self):
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)
        cases = [DeviceCase(lens, heads=1, repeats=1) for lens in ([5, 9], [3, 20])]

        def attend(case):
            reads = case.reads(0, window=8)
            return torch.stack([case.attend(reads) for _ in range(400)]), case.expected(reads)

        with concurrent.futures.ThreadPoolExecutor(len(cases)) as threads:
            for found, expected in threads.map(attend, cases):
                torch.testing.assert_close(found.double(), expected.expand_as(found), atol=4e-2, rtol=4e-2)

    def test_lengths_that_are_too_large_lead_nowhere(self):
        case = DeviceCase([64, 64])
        reads, out = case.reads(0), torch.empty_like(case.query)
        lens = torch.tensor([100, 1_000_000], dtype=torch.int32, device=DEVICE)
        reads.attend(out, case.query, case.pages, case.table, lens, 64)
        torch.testing.assert_close(out.double(), case.expected(reads), atol=4e-2, rtol=4e-2)

    def test_strided_queries_and_outputs(self):
        case = DeviceCase([40, 20])
        reads = case.reads(2)
        expected, lens = case.attend(reads), torch.tensor(case.lens, dtype=torch.int32, device=DEVICE)
        beside = torch.cat((case.query, case.query), 1)
        out = torch.zeros_like(beside)
        reads.attend(out[:, :6], beside[:, 6:], case.pages, case.table, lens, 40)
        self.assertTrue(torch.equal(out[:, :6], expected))
        self.assertFalse(out[:, 6:].any())

    def test_rows_are_read_back(self):
        case = DeviceCase([100, 31])
        for sources in range(3):
            reads = case.reads(sources)
            for sequence, first, last in ((0, 0, 100), (0, 40, 97), (1, 0, 31)):
                for own, expected in zip(reads.read(case.pages, case.table[sequence], first, last), case.fused(reads, sequence)):
                    torch.testing.assert_close(own.double(), expected[first:last], atol=4e-2, rtol=2e-2)

    def test_what_is_not_read_in_place(self):
        case = DeviceCase([5])
        pairs = Fusion([0], torch.randn(1, 2, 2, 16), None, basis_channels(1, 32, 16)[0]).on(case.device)
        self.assertFalse(DeviceLayerRows([0], [0], (pairs, channels([0], 2, 32).on(case.device)), 1.0).reads_in_place(case.query, case.pages))
        for options, sources in (({"head_dim": 16}, 0), ({"head_dim": 96}, 1), ({"head_dim": 256}, 2), ({"repeats": 17}, 0),
                                 ({"repeats": 9, "head_dim": 128}, 2), ({"repeats": 9, "head_dim": 256}, 0)):
            with self.subTest(sources=sources, **options):
                case = DeviceCase([5], **options)
                reads = case.reads(sources)
                self.assertFalse(reads.reads_in_place(case.query, case.pages))
                with self.assertRaisesRegex(RuntimeError, "dense attention: (head_dim|.* query heads on 2 KV heads)"):
                    case.attend(reads)

    def test_refusals(self):
        case = DeviceCase([40])
        reads, good = case.reads(2), case.pages
        case.pages = good.half()
        with self.assertRaisesRegex(ValueError, "pages: torch.float16, expected torch.bfloat16"):
            case.attend(reads)
        case = DeviceCase([40], padding=4)
        with self.assertRaisesRegex(ValueError, "multiples of 16 bytes"):
            case.attend(case.reads(2))
        with mock.patch.object(kvconvert.row_pages, "ops", lambda: object()), self.assertRaisesRegex(ConversionError, "without CUDA"):
            kvconvert.row_pages.rows_class(torch.device("cuda"))

    def test_tensors_that_do_not_fit_are_refused(self):
        case = DeviceCase([40])
        lens = torch.tensor([40], dtype=torch.int32, device=DEVICE)
        places = torch.zeros(4, 1, 2, dtype=torch.int64, device=DEVICE)
        factors = [torch.ones(2, 32, device=DEVICE) for _ in range(4)]
        good = [torch.empty_like(case.query), case.query, places, lens, lens[:0], 40, [2, 32], 1.0, 0.0, factors]
        for place, wrong, reason in (
                (0, torch.empty(1, 5, 32, dtype=torch.bfloat16), "queries and outputs alike"),
                (1, case.query.float(), "queries and outputs alike"),
                (2, places[:3].contiguous(), r"places \[2 or 4"),
                (2, torch.zeros(6, 1, 2, dtype=torch.int64), r"places \[2 or 4"),
                (2, places.int(), "places"),
                (3, lens.long(), "lengths"),
                (3, lens.repeat(2), "2 lengths"),
                (4, lens.repeat(2), "queries"),
                (5, 65, "at most 65 tokens in 2 pages"),
                (5, 0, "at most 0 tokens"),
                (6, [2, 33], "multiple of 32"),
                (6, [4, 32], "factors: expected"),
                (9, factors[:2], "2 factors, expected 4 or none"),
                (9, [factor.double() for factor in factors], "factors")):
            with self.subTest(reason), self.assertRaisesRegex(RuntimeError, reason):
                ops().attend_rows_device(*good[:place], wrong, *good[place + 1:])


if __name__ == "__main__":
    unittest.main()
