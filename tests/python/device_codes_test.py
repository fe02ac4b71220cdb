#!/usr/bin/env python3
"""Codes in pages of a GPU's memory against those of the CPU, for every form of the keys: the ops of a GPU run in the emulator, on
tensors of the CPU."""

import contextlib
import importlib.util
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

LIBRARY = pathlib.Path(os.environ["KVC_BIN_DIR"]).parent / "lib/libkvconvert_ops_emulated.so"
os.environ["KVCONVERT_OPS"] = str(LIBRARY)

from coded_cases import FORMS, HEADS, POSITIONS, Case  # noqa: E402
from source_tree import ROOT  # noqa: E402

import kvconvert.codes  # noqa: E402
import kvconvert.device_codes  # noqa: E402
import torch  # noqa: E402
from kvconvert.codes import TILE, OpenRows  # noqa: E402
from kvconvert.device_codes import DeviceCodes  # noqa: E402
from kvconvert.factors import ConversionError  # noqa: E402

HALVES = (torch.bfloat16, torch.float16)
# Kernels have keys' weights in float16 or exactly, the CPU as integers; both round to the same 16-bit numbers.
ATTENTION, READ = 0.06, 0.08


class DeviceCodesCase(Case):
    """A case whose store is opened for the CPU and for a device."""

    def __init__(self, directory, form, scope, head_dim=32, num_pairs=None, dtype=torch.bfloat16, **options):
        super().__init__(directory, form, scope, head_dim, num_pairs, **options)
        self.keys, self.values = ([rows.to(dtype) for rows in part] for part in (self.keys, self.values))
        options.pop("tokens", None), options.pop("factor", None)
        options = {"num_query_heads": self.num_heads, **options}
        with mock.patch.object(kvconvert.codes, "codes_class", lambda _: DeviceCodes):
            self.on_device = self.checkpoint.open(self.layers, self.rope if self.pairs else None, **options)

    def store_on_device(self, parts):
        pages = self.pages()
        for part in parts:
            self.on_device.store(pages, self.slots[part], self.positions[part], [key[part] for key in self.keys],
                                 [value[part] for value in self.values])
        return pages


class DevicePages(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.directory = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def cases(self, *more, **options):
        for form, scope in FORMS:
            for head_dim, pairs in ((32, None), *more):
                with self.subTest(form=form, scope=scope, head_dim=head_dim, pairs=pairs):
                    yield DeviceCodesCase(self.directory, form, scope, head_dim, pairs, **options)

    def test_pages_have_the_bytes_of_the_cpu(self):
        """However tokens arrive; but for numbers on the border of two codes."""
        for dtype in HALVES:
            for case in self.cases((64, 8), (32, 0), dtype=dtype):
                whole = [slice(0, case.tokens)]
                expected, written = case.stored(), torch.zeros(case.pages().numel() // case.codes.tile_bytes, dtype=torch.bool)
                written[case.slots // TILE] = True
                for parts in (whole, [slice(0, 1), slice(1, 33), slice(33, 37), slice(37, case.tokens)]):
                    differs = (case.store_on_device(parts) != expected).view(-1, case.codes.tile_bytes)
                    self.assertLess(differs[written].float().mean().item(), 1e-3)
                    self.assertFalse(differs[~written].any())

    def test_slots_below_zero_are_skipped(self):
        case = DeviceCodesCase(self.directory, "rotated", "head")
        expected = case.store_on_device([slice(0, 40)])
        case.slots[40:] = -1
        self.assertTrue(torch.equal(case.store_on_device([slice(0, case.tokens)]), expected))

    def test_tokens_are_read_as_on_the_cpu(self):
        for case in self.cases((64, 8), (32, 0)):
            pages = case.stored()
            for layer in range(len(case.layers)):
                for first, count in ((0, 1), (0, case.tokens), (64, 20)):
                    arguments = (pages, case.table[0], first, count, torch.bfloat16, layer)
                    for own, expected in zip(case.on_device.read(*arguments), case.codes.read(*arguments)):
                        torch.testing.assert_close(own, expected, atol=READ, rtol=0)

    def test_attention_is_that_of_the_cpu(self):
        """Over codes alone, and with the query's own tile exact; keys without RoPE too."""
        for window, more in ((0, ((64, 8),)), (5, ()), (40, ((32, 0),))):
            for case in self.cases(*more, scale=0.25, window=window, softcap=0.0 if window else 20.0):
                self.check_attention(case)

    def check_attention(self, case):
        pages, head_dim = case.stored(), case.keys[0].shape[-1]
        random = torch.Generator().manual_seed(4)
        lengths = torch.tensor([1, 32, 33, 100], dtype=torch.int32)
        query = torch.randn(4, case.num_heads, head_dim, generator=random).to(torch.bfloat16)
        rows = OpenRows(*torch.randn(2, 5, TILE, HEADS, head_dim, generator=random).to(torch.bfloat16).unbind(0))
        table, tiles = case.table.expand(4, -1).contiguous(), torch.tensor([[2], [2], [0], [4]], dtype=torch.int32)
        of_three = torch.tensor([[-7, -7, 2], [-7, 99, 2], [-7, 3, 0], [1, 0, 4]], dtype=torch.int32)
        for layer in range(len(case.layers)):
            for of_open in ((), (rows, tiles), (rows, of_three)):
                own, expected, alone = (torch.empty_like(query) for _ in range(3))
                case.codes.attend(expected, query, pages, table, lengths, layer, *of_open)
                case.on_device.attend(own, query, pages, table, lengths, layer, *of_open, max_tokens=100)
                torch.testing.assert_close(own, expected, atol=ATTENTION, rtol=0)
                for i in (0, 3):
                    one = slice(i, i + 1)
                    of_one = (rows, of_open[1][one]) if of_open else ()
                    case.on_device.attend(alone[one], query[one], pages, table[one], lengths[one], layer, *of_one, max_tokens=100)
                    torch.testing.assert_close(alone[one], own[one], atol=0.01, rtol=0)

    def test_little_scratch_memory_changes_nothing(self):
        """Sequences then go one part after the other."""
        for form, scope in (("rotated", "head"), ("full", "layer")):
            case = DeviceCodesCase(self.directory, form, scope, scale=0.25)
            with mock.patch.object(kvconvert.device_codes, "MOST_SCRATCH", 200_000 if form == "full" else 1):
                self.check_attention(case)

    def test_neighbouring_channels_may_be_a_rotary_pair(self):
        case = DeviceCodesCase(self.directory, "blocks", "head", interleaved=True)
        pages = case.stored()
        self.assertLess((case.store_on_device([slice(0, case.tokens)]) != pages).float().mean().item(), 1e-3)
        arguments = (pages, case.table[0], 0, case.tokens, torch.bfloat16)
        torch.testing.assert_close(case.on_device.read(*arguments)[0], case.codes.read(*arguments)[0], atol=READ, rtol=0)
        self.check_attention(case)

    def test_lost_rows_are_read_from_codes(self):
        case = DeviceCodesCase(self.directory, "rotated", "head")
        pages, kept = case.stored(), []
        for of in (case.codes, case.on_device):
            rows = of.new_open_rows(2, torch.bfloat16)
            of.keep_coded(rows, 1, pages, case.table[0], 64, 10)
            kept.append(rows)
        torch.testing.assert_close(kept[1].keys, kept[0].keys, atol=READ, rtol=0)
        torch.testing.assert_close(kept[1].values, kept[0].values, atol=READ, rtol=0)

    def test_layers_share_tables(self):
        case = DeviceCodesCase(self.directory, "rotated", "head")
        with mock.patch.object(kvconvert.codes, "codes_class", lambda _: DeviceCodes):
            other = case.checkpoint.open(case.layers, case.rope, num_query_heads=case.num_heads)
        self.assertIs(other._angles[0], case.on_device._angles[0])
        self.assertIs(other._angles[1], case.on_device._angles[1])

    def test_what_devices_do_not_take(self):
        case = DeviceCodesCase(self.directory, "rotated", "head")
        pages = case.pages()
        with self.assertRaisesRegex(ConversionError, "float32, expected bfloat16 or float16"):
            case.on_device.store(pages, case.slots, case.positions, [key.float() for key in case.keys], [value.float() for value in case.values])
        with self.assertRaisesRegex(RuntimeError, "expected uint8 .pages, "):
            case.on_device.store(pages[:, : case.codes.tile_bytes - 4], case.slots, case.positions, case.keys, case.values)
        with self.assertRaisesRegex(RuntimeError, "as many positions as slots"):
            case.on_device.store(pages, case.slots, case.positions[1:], case.keys, case.values)
        with self.assertRaisesRegex(RuntimeError, "are not all in the pages"):
            case.on_device.read(pages, case.table[0], 16, 20, torch.bfloat16)
        out = torch.empty(1, case.num_heads, 32, dtype=torch.bfloat16)
        with self.assertRaisesRegex(RuntimeError, "expected an int32 block table"):
            case.on_device.attend(out, out, pages, case.table.long(), torch.ones(1, dtype=torch.int32), max_tokens=1)
        for form, options, message in (
                ("rotated", {"head_dim": 48}, "heads of 48 channels; convert with .*--form keys"),
                ("keys", {"head_dim": 33, "num_pairs": 8}, "heads of 33 channels; convert with .* or run on the CPU"),
                ("rotated", {"num_query_heads": 17 * HEADS}, "17 query heads on each KV head .*--form keys")):
            with self.assertRaisesRegex(RuntimeError, f"GPUs do not serve {message}"):
                DeviceCodesCase(self.directory, form, "head", **options)
        elsewhere = torch.empty(1, case.num_heads, 32, dtype=torch.bfloat16, device="meta")
        with self.assertRaisesRegex(RuntimeError, "tensors on several devices"):
            case.on_device.attend(out, elsewhere, pages, case.table, torch.ones(1, dtype=torch.int32), max_tokens=1)

    def test_numbers_that_are_too_large_lead_nowhere(self):
        """A GPU's numbers are not checked: what is behind the tables is not read, and the scratch memory is long enough."""
        for form, scope in (("rotated", "head"), ("full", "layer")):
            case = DeviceCodesCase(self.directory, form, scope, scale=0.25)
            pages = case.store_on_device([slice(0, case.tokens)])
            query = torch.randn(1, case.num_heads, 32).to(torch.bfloat16)
            expected, found = torch.empty_like(query), torch.empty_like(query)
            case.on_device.attend(expected, query, pages, case.table, torch.tensor([64], dtype=torch.int32), max_tokens=64)
            for length in (100, 200_000):
                case.on_device.attend(found, query, pages, case.table, torch.tensor([length], dtype=torch.int32), max_tokens=64)
                self.assertTrue(torch.equal(found, expected))
            for position in (-1, POSITIONS, 10**9):
                case.on_device.store(pages, case.slots[:1], torch.tensor([position]), [key[:1] for key in case.keys],
                                     [value[:1] for value in case.values])

    def test_the_library_of_the_cpu_says_what_it_lacks(self):
        """In a process of its own: a library is loaded once."""
        code = ("import kvconvert.codes, pathlib, coded_cases as c; from kvconvert.device_codes import DeviceCodes\n"
                "kvconvert.codes.codes_class = lambda _: DeviceCodes\n"
                f"c.Case(pathlib.Path({str(self.directory)!r}), 'rotated', 'head')")
        environment = {**os.environ, "KVCONVERT_OPS": str(LIBRARY.with_name("libkvconvert_ops.so")),
                       "PYTHONPATH": f"{ROOT / 'python'}:{pathlib.Path(__file__).parent}"}
        process = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
        self.assertIn("ConversionError: codes on cpu: kvconvert's library was built without CUDA", process.stderr)


def without_numbers_after_one(method, result):
    """A method whose first call with an object is as it was, and whose later ones leave NaN in an argument, the result."""
    called = set()

    def run(*arguments):
        method(*arguments)
        if arguments[0] in called:
            arguments[result].fill_(torch.nan)
        called.add(arguments[0])

    return run


class Bundle(unittest.TestCase):
    def test_its_script_compares_the_ops(self):
        process = subprocess.run([sys.executable, ROOT / "scripts/gpu_bundle/ops.py", LIBRARY, "cpu", "--emulated"], capture_output=True, text=True,
                                 check=False)
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertIn('"has_device_ops": true', process.stdout)

    def test_its_script_fails_where_a_later_sequence_has_no_numbers(self):
        specification = importlib.util.spec_from_file_location("bundle_ops", ROOT / "scripts/gpu_bundle/ops.py")
        script = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(script)
        arguments = ["ops.py", str(LIBRARY), "cpu", "--emulated"]
        for name, result in (("read", 3), ("attend", 1)):
            spoiled = without_numbers_after_one(getattr(script.DeviceStore, name), result)
            with self.subTest(name), mock.patch.object(script, "FORMS", {"rotated": 0}), mock.patch.object(sys, "argv", arguments), \
                    mock.patch.object(script.DeviceStore, name, spoiled), contextlib.redirect_stdout(io.StringIO()), \
                    contextlib.redirect_stderr(io.StringIO()) as errors:
                self.assertEqual(script.main(), 1)
                self.assertIn("nan", errors.getvalue())


if __name__ == "__main__":
    unittest.main()
