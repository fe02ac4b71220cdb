#!/usr/bin/env python3
"""Codes on devices against those on the CPU: the same pages, rows and attention.

KVCONVERT_EMULATED_OPS names a library whose operators for devices take tensors of the CPU. Without it only refusals are tested.
"""

import os
import pathlib
import sys
import tempfile
import types
import unittest
from unittest import mock

EMULATED = os.environ.get("KVCONVERT_EMULATED_OPS")
if EMULATED:
    os.environ["KVCONVERT_OPS"] = EMULATED
import torch  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from coded_pages_test import FORMS, HEADS, Case  # noqa: E402

from kvconvert import codes  # noqa: E402
from kvconvert.codes import TILE  # noqa: E402
from kvconvert.device_codes import DeviceCodes  # noqa: E402
from kvconvert.factors import ConversionError  # noqa: E402

DTYPE = torch.bfloat16
CLOSE = 0.02  # of numbers up to 4 in bfloat16


class Temporary(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.directory = pathlib.Path(temporary.name)


class DeviceCase(Case):
    """A case with codes for the CPU, and for a device."""

    def __init__(self, directory, form, scope, tokens=140, **options):
        super().__init__(directory, form, scope, tokens=tokens, **options)
        options = {name: value for name, value in options.items() if name != "num_query_heads"}
        self.device_codes = self.open_on_device(**options)
        self.keys, self.values = ([rows.to(DTYPE) for rows in part] for part in (self.keys, self.values))
        self.query = torch.randn(4, self.num_heads, 32, generator=torch.Generator().manual_seed(4)).to(DTYPE)
        self.tables = self.table.expand(4, -1).contiguous()
        self.lengths = torch.tensor([1, 33, 64, tokens], dtype=torch.int32)

    def open_on_device(self, **options):
        with mock.patch.object(codes, "codes_class", lambda device: DeviceCodes):
            return self.checkpoint.open(self.layers, self.rope, num_query_heads=self.num_heads, **options)


@unittest.skipUnless(EMULATED, "KVCONVERT_EMULATED_OPS names no library with emulated operators for devices")
class OnDevices(Temporary):
    def close(self, actual, expected, most=CLOSE):
        torch.testing.assert_close(actual.float(), expected.float(), atol=most, rtol=0.01)

    def attended(self, case, of, pages, layer, *open_rows, **options):
        out = torch.full_like(case.query, torch.nan)
        of.attend(out, case.query, pages, case.tables, case.lengths, layer, *open_rows, **options)
        return out

    def test_a_tile_takes_the_same_bytes(self):
        for form, scope in FORMS:
            case = DeviceCase(self.directory, form, scope)
            self.assertEqual(case.device_codes.tile_bytes, case.codes._ops.tile_bytes(case.codes._handle))

    def test_stored_tokens_are_those_of_the_cpu(self):
        for form, scope in FORMS:
            with self.subTest(form=form, scope=scope):
                case = DeviceCase(self.directory, form, scope)
                expected = case.stored()
                case.codes, of_cpu = case.device_codes, case.codes
                pages = case.stored([range(0, 7), range(7, 41), range(41, 140)])
                for layer in range(len(case.layers)):
                    for found, rows in zip(*(of_cpu.read(of, case.table[0], 0, case.tokens, torch.float32, layer)
                                             for of in (pages, expected))):
                        # Tokens with a coefficient on the border of two codes are a step apart.
                        error = (found - rows).abs().amax(-1)
                        self.assertLess((error > 1e-4).float().mean().item(), 0.05)
                        self.assertLess(error.max().item(), 0.3)

    def test_skipped_slots_are_not_written(self):
        case = DeviceCase(self.directory, "rotated", "head", tokens=64)
        pages = case.pages()
        case.slots = torch.full_like(case.slots, -1)
        case.device_codes.store(pages, case.slots, case.positions, case.keys, case.values)
        self.assertTrue(torch.equal(pages, case.pages()))

    def test_tokens_are_read_alike(self):
        for form, scope in FORMS:
            with self.subTest(form=form, scope=scope):
                case = DeviceCase(self.directory, form, scope)
                pages = case.stored()
                for layer in range(len(case.layers)):
                    for first, count in ((0, 140), (96, 20), (64, 0)):
                        found, expected = (of.read(pages, case.table[0], first, count, DTYPE, layer)
                                           for of in (case.device_codes, case.codes))
                        self.close(found[0], expected[0])
                        self.close(found[1], expected[1])

    def test_attention_is_alike(self):
        for form, scope in FORMS:
            for options in ({}, {"window": 40, "softcap": 3.0}):
                with self.subTest(form=form, scope=scope, **options):
                    case = DeviceCase(self.directory, form, scope, scale=0.25, **options)
                    pages = case.stored()
                    for layer in range(len(case.layers)):
                        expected = self.attended(case, case.codes, pages, layer)
                        found = self.attended(case, case.device_codes, pages, layer, max_tokens=200)
                        self.close(found, expected)
                        self.assertTrue(torch.equal(self.attended(case, case.device_codes, pages, layer), found))

    def test_open_tiles_are_read_exactly(self):
        for form, scope in FORMS:
            for window in (0, 5):
                with self.subTest(form=form, scope=scope, window=window):
                    case = DeviceCase(self.directory, form, scope, scale=0.25, window=window)
                    pages, tiles = case.stored(), torch.tensor([2, 0, 1, 3], dtype=torch.int32)
                    for layer, (key, value) in enumerate(zip(case.keys, case.values)):
                        outs = []
                        for of in (case.codes, case.device_codes):
                            rows = of.new_open_rows(4, DTYPE)
                            for tile, first, last in ((2, 0, 1), (0, 32, 33), (1, 32, 64), (3, 128, 140)):
                                of.keep(rows, tile * TILE + torch.arange(last - first), key[first:last], value[first:last])
                            found = of.kept(rows, 3, 12, key[:2], value[:2])
                            self.assertTrue(torch.equal(found[0], torch.cat((key[128:], key[:2]))))
                            outs.append(self.attended(case, of, pages, layer, rows, tiles, max_tokens=140))
                        self.close(outs[1], outs[0])

    def test_lost_rows_are_read_from_codes(self):
        case = DeviceCase(self.directory, "rotated", "head")
        pages, kept = case.stored(), []
        for of in (case.codes, case.device_codes):
            rows = of.new_open_rows(2, DTYPE)
            of.keep_coded(rows, 1, pages, case.table[0], 64, 10)
            kept.append(rows)
        self.close(kept[1].keys, kept[0].keys)
        self.close(kept[1].values, kept[0].values)

    def test_neighbouring_channels_may_be_a_rotary_pair(self):
        case = DeviceCase(self.directory, "pairs", "head")
        order = torch.arange(32).view(2, 16).t().flatten()
        neighbours = case.open_on_device(interleaved=True)
        pages = case.pages()
        neighbours.store(pages, case.slots, case.positions, [key[..., order] for key in case.keys], case.values)
        expected = case.pages()
        case.device_codes.store(expected, case.slots, case.positions, case.keys, case.values)
        self.assertTrue(torch.equal(pages, expected))
        read = neighbours.read(pages, case.table[0], 0, 140, DTYPE)
        self.assertTrue(torch.equal(read[0], case.device_codes.read(pages, case.table[0], 0, 140, DTYPE)[0][..., order]))

    def test_layers_share_tables(self):
        case = DeviceCase(self.directory, "rotated", "head")
        other = case.open_on_device()
        self.assertIs(other._angles[0], case.device_codes._angles[0])
        self.assertIs(other._angles[1], case.device_codes._angles[1])

    def test_float32_is_refused(self):
        case = DeviceCase(self.directory, "rotated", "head")
        of, pages = case.device_codes, case.stored()
        wide = [torch.zeros(140, HEADS, 32)]
        for call in (lambda: of.new_open_rows(1, torch.float32), lambda: of.read(pages, case.table[0], 0, 10, torch.float32),
                     lambda: of.store(pages, case.slots, case.positions, wide, wide),
                     lambda: of.attend(case.query.float(), case.query.float(), pages, case.tables, case.lengths)):
            with self.assertRaisesRegex(ConversionError, "are float32, expected bfloat16 or float16"):
                call()


class Refusals(Temporary):
    def test_a_library_without_cuda(self):
        case = Case(self.directory, "rotated", "head")
        with mock.patch.object(codes, "ops", lambda: types.SimpleNamespace()):
            with self.assertRaisesRegex(ConversionError, "codes on cuda: .*built without CUDA.*KVC_CUDA=ON"):
                case.checkpoint.open(case.layers, case.rope, num_query_heads=6, device="cuda")


if __name__ == "__main__":
    unittest.main()
