#!/usr/bin/env python3
"""Codes in an engine's pages: what is stored, read and attended to against plain torch, for every form of the keys."""

import hashlib
import json
import os
import pathlib
import tempfile
import unittest
import warnings

from coded_cases import FORMS, HEADS, POSITIONS, Case, angles, plan_of, widths_for, write

import torch
from kvconvert._ops import ops
from kvconvert.codes import TILE, CodedCheckpoint, exact_start
from kvconvert.factors import ConversionError, basis_channels, block_of, load_factors
from kvconvert.tiled_attention import attend_prompt
from safetensors.torch import load_file, save_file


class Pages(unittest.TestCase):
    def setUp(self):
        self.temporary = tempfile.TemporaryDirectory()
        self.directory = pathlib.Path(self.temporary.name)
        self.addCleanup(self.temporary.cleanup)

    def close(self, actual, expected, most, borders=0.025):
        """Alike but for some tokens with a coefficient on the border of two codes: those are a step apart."""
        error = (actual - expected).abs().amax(-1)
        self.assertLess((error > most).float().mean().item(), borders)
        self.assertLess(error.max().item(), most + 0.3)

    def test_tokens_are_read_as_the_formulas_say(self):
        for form, scope in FORMS:
            for head_dim, pairs in ((32, None), (32, 8), (64, 0)):
                with self.subTest(form=form, scope=scope, head_dim=head_dim, pairs=pairs):
                    case = Case(self.directory, form, scope, head_dim, pairs)
                    pages = case.stored()
                    keys, values = case.expected()
                    # Kernels have integers for the weights of bases: they add a hundredth of the codes' squared error.
                    most = 1e-4 if form in ("pairs", "rotated") else 0.06
                    for layer in range(len(case.layers)):
                        read = case.codes.read(pages, case.table[0], 0, case.tokens, torch.float32, layer)
                        self.close(read[0], keys[layer], most)
                        self.close(read[1], values[layer], 1e-4)
                        some = case.codes.read(pages, case.table[0], 64, 20, torch.float32, layer)
                        self.assertTrue(torch.equal(some[0], read[0][64:84]) and torch.equal(some[1], read[1][64:84]))

    def test_attention_is_that_over_what_is_read(self):
        for form, scope in FORMS:
            for window in (0, 40):
                with self.subTest(form=form, scope=scope, window=window):
                    case = Case(self.directory, form, scope, tokens=1100, scale=0.25, window=window)
                    pages = case.stored()
                    lengths = torch.tensor([1, 33, 64, 1100], dtype=torch.int32)
                    query = torch.randn(4, case.num_heads, 32, generator=torch.Generator().manual_seed(4))
                    table = case.table.expand(4, -1).contiguous()
                    for layer in range(len(case.layers)):
                        out = torch.empty_like(query)
                        case.codes.attend(out, query, pages, table, lengths, layer)
                        read = case.codes.read(pages, case.table[0], 0, case.tokens, torch.float32, layer)
                        for i, length in enumerate(lengths.tolist()):
                            expected = case.attention(*read, query[i], length, 0.25, window)
                            torch.testing.assert_close(out[i], expected, atol=2e-3, rtol=0)
                            alone = torch.empty_like(query[:1])
                            case.codes.attend(alone, query[i:i + 1], pages, table[:1], lengths[i:i + 1], layer)
                            self.assertTrue(torch.equal(alone[0], out[i]))

    def test_open_tiles_are_read_exactly(self):
        for form, scope in FORMS:
            for window, exact_tiles in ((0, 1), (5, 1), (40, 1), (0, 2), (70, 3), (5, 6)):
                with self.subTest(form=form, scope=scope, window=window, exact_tiles=exact_tiles):
                    case = Case(self.directory, form, scope, tokens=100, scale=0.25, window=window)
                    pages = case.stored()
                    lengths = torch.tensor([1, 32, 33, 100], dtype=torch.int32)
                    query = torch.randn(4, case.num_heads, 32, generator=torch.Generator().manual_seed(4))
                    table = case.table.expand(4, -1).contiguous()
                    places = [1, 4, 0, 3]  # of a text's tiles
                    tiles = torch.tensor([[places[tile] if tile >= 0 else -7 for tile in range(last - exact_tiles + 1, last + 1)]
                                          for last in ((length - 1) // TILE for length in lengths.tolist())], dtype=torch.int32)
                    for layer, (key, value) in enumerate(zip(case.keys, case.values)):
                        rows = case.codes.new_open_rows(2, torch.float32).grown(5)
                        for tile, first in zip(places, range(0, 100, TILE)):
                            case.codes.keep(rows, tile * TILE + torch.arange(len(key[first:][:TILE])), key[first:][:TILE],
                                            value[first:][:TILE])
                        found = case.codes.kept(rows, places[1:3], 40, key[72:80], value[72:80])
                        self.assertTrue(torch.equal(found[0], key[32:80]) and torch.equal(found[1], value[32:80]))
                        out = torch.empty_like(query)
                        case.codes.attend(out, query, pages, table, lengths, layer, rows, tiles)
                        read = case.codes.read(pages, case.table[0], 0, case.tokens, torch.float32, layer)
                        for i, length in enumerate(lengths.tolist()):
                            start = exact_start(length - 1, exact_tiles)
                            mixed = [torch.cat((codes[:start], exact[start:])) for codes, exact in zip(read, (key, value))]
                            expected = case.attention(*mixed, query[i], length, 0.25, window)
                            torch.testing.assert_close(out[i], expected, atol=2e-3, rtol=0)
                            prompt = attend_prompt(query[i:i + 1], length, tuple(part[:start] for part in read),
                                                   (key[start:length], value[start:length]), 0.25, window=window,
                                                   exact_tiles=exact_tiles)
                            torch.testing.assert_close(prompt[0], expected, atol=1e-4, rtol=0)

    def test_prompts_are_attended_to_as_single_tokens_are(self):
        random = torch.Generator().manual_seed(5)
        query, keys, values, coded_keys, coded_values = torch.randn(5, 300, 2, 32, generator=random).unbind(0)
        for window, exact_tiles in ((0, 1), (7, 1), (50, 1), (0, 2), (50, 3)):
            for softcap in (0.0, 5.0):
                def attend(first, last):
                    start, end = (exact_start(token, exact_tiles) for token in (first, last - 1))
                    return attend_prompt(query[first:last], last, (coded_keys[:end], coded_values[:end]),
                                         (keys[start:last], values[start:last]), 0.2, softcap, window, exact_tiles=exact_tiles)
                alone = torch.cat([attend(i, i + 1) for i in range(300)])
                for cuts in ((0, 300), (0, 37, 40, 290, 300)):
                    parts = torch.cat([attend(*cut) for cut in zip(cuts, cuts[1:])])
                    torch.testing.assert_close(parts, alone, atol=1e-5, rtol=0)

    def test_the_first_token_is_exact_where_its_rows_are_the_stored_ones(self):
        """Whatever few bits its codes have, and at no other position."""
        for form, scope in FORMS:
            with self.subTest(form=form, scope=scope):
                case = Case(self.directory, form, scope, tokens=40)
                for spec in case.checkpoint.store_blocks(case.layers):
                    rows = case.checkpoint.files.get(f"kvconvert.coded.{spec.index}.first", (None,)).view(spec.num_layers, -1, 32)
                    heads = range(HEADS) if spec.head is None else [spec.head]
                    for i, layer in enumerate(rows.unbind(0)):
                        parts = [part for name, part in (("keys", case.keys), ("values", case.values)) if spec.part in ("both", name)]
                        for j, row in enumerate(layer):
                            parts[j // len(heads)][i][:2, heads[j % len(heads)]] = row
                pages = case.stored()
                for i in range(len(case.layers)):
                    for rows, exact in zip(case.codes.read(pages, case.table[0], 0, 40, torch.float32, i), (case.keys[i], case.values[i])):
                        torch.testing.assert_close(rows[0], exact[0], atol=1e-4, rtol=0)
                        self.assertGreater((rows[1] - exact[1]).abs().max().item(), 0.1)

    def test_pages_do_not_depend_on_how_tokens_arrive(self):
        for form, scope in FORMS:
            with self.subTest(form=form, scope=scope):
                case = Case(self.directory, form, scope)
                whole = case.stored()
                cut = case.stored([range(0, 7), range(7, 41), range(41, 42), range(42, 100)])
                single = case.stored([[i] for i in range(100)])
                self.assertTrue(torch.equal(whole, cut) and torch.equal(whole, single))

    def test_the_threads_change_nothing(self):
        case = Case(self.directory, "rotated", "head", tokens=1500)
        query, lengths = torch.randn(1, 6, 32), torch.tensor([1500], dtype=torch.int32)
        found = []
        before = torch.get_num_threads()
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            out = torch.empty_like(query)
            pages = case.stored()
            case.codes.attend(out, query, pages, case.table, lengths)
            found.append((pages, out))
        torch.set_num_threads(before)
        for pages, out in found[1:]:
            self.assertTrue(torch.equal(pages, found[0][0]) and torch.equal(out, found[0][1]))

    def test_narrow_numbers_and_strided_rows(self):
        case = Case(self.directory, "rotated", "head", tokens=70)
        for dtype in (torch.bfloat16, torch.float16):
            case.keys = [key.to(dtype) for key in case.keys]
            case.values = [value.to(dtype) for value in case.values]
            expected = case.stored()
            both = [torch.cat((key, value), 1) for key, value in zip(case.keys, case.values)]
            case.keys, case.values = [rows[:, :HEADS] for rows in both], [rows[:, HEADS:] for rows in both]
            pages = case.pages()
            wide = torch.cat((pages, pages), 1)[:, :pages.shape[1]]  # rows farther apart than they are long
            case.codes.store(wide, case.slots, case.positions, case.keys, case.values)
            self.assertTrue(torch.equal(wide, expected))
            read = case.codes.read(wide, case.table[0], 0, 70, dtype)
            exact = case.codes.read(wide, case.table[0], 0, 70, torch.float32)
            torch.testing.assert_close(read[0], exact[0].to(dtype), atol=0, rtol=0)
            query, lengths = torch.randn(1, 6, 32).to(dtype), torch.tensor([70], dtype=torch.int32)
            narrow, full = torch.empty_like(query), torch.empty(1, 6, 32)
            case.codes.attend(narrow, query, wide, case.table, lengths)
            case.codes.attend(full, query.float(), wide, case.table, lengths)
            torch.testing.assert_close(narrow, full.to(dtype), atol=0, rtol=0)

    def test_neighbouring_channels_may_be_a_rotary_pair(self):
        halves = Case(self.directory, "pairs", "head")
        neighbours = halves.checkpoint.open(halves.layers, halves.rope, num_query_heads=6, interleaved=True)
        order = torch.arange(32).view(2, 16).t().flatten()  # where the channels of halves are among neighbours
        pages = halves.pages()
        neighbours.store(pages, halves.slots, halves.positions, [key[..., order] for key in halves.keys], halves.values)
        self.assertTrue(torch.equal(pages, halves.stored()))
        read = neighbours.read(pages, halves.table[0], 0, 100, torch.float32)
        self.assertTrue(torch.equal(read[0], halves.codes.read(pages, halves.table[0], 0, 100, torch.float32)[0][..., order]))
        query, lengths, outs = torch.randn(1, 6, 32), torch.tensor([100], dtype=torch.int32), []
        for codes, of_query in ((neighbours, query[..., order]), (halves.codes, query)):
            outs.append(torch.empty_like(query))
            codes.attend(outs[-1], of_query, pages, halves.table, lengths)
        self.assertTrue(torch.equal(*outs))

    def test_a_rank_has_its_own_heads(self):
        whole = Case(self.directory, "rotated", "head")
        pages = whole.stored()
        for head in range(HEADS):
            one = whole.checkpoint.open(whole.layers, whole.rope, num_query_heads=3, first_head=head, num_heads=1)
            own = torch.zeros(40, 2 * one.tile_bytes, dtype=torch.uint8)
            one.store(own, whole.slots, whole.positions, [k[:, head:head + 1] for k in whole.keys],
                      [v[:, head:head + 1] for v in whole.values])
            read = one.read(own, whole.table[0], 0, 100, torch.float32)
            of_all = whole.codes.read(pages, whole.table[0], 0, 100, torch.float32)
            self.assertTrue(torch.equal(read[0][:, 0], of_all[0][:, head]) and torch.equal(read[1][:, 0], of_all[1][:, head]))
        self.assertEqual(whole.checkpoint.tile_bytes(whole.layers), sum(
            whole.checkpoint.tile_bytes(whole.layers, head, 1) for head in range(HEADS)))
        write(self.directory, plan_of("full", "layer", 32), 16)
        with self.assertRaisesRegex(ConversionError, "--scope head"):
            CodedCheckpoint(self.directory).open([0], whole.rope, num_query_heads=3, first_head=1, num_heads=1)

    def test_bad_arguments_are_refused(self):
        case = Case(self.directory, "rotated", "head")
        pages, query = case.stored(), torch.randn(1, 6, 32)
        length = torch.tensor([100], dtype=torch.int32)
        with self.assertRaisesRegex(RuntimeError, "beyond the pages"):
            case.codes.store(pages, case.slots + 40 * 64, case.positions, case.keys, case.values)
        with self.assertRaisesRegex(RuntimeError, "position"):
            case.codes.store(pages, case.slots, case.positions + POSITIONS, case.keys, case.values)
        with self.assertRaisesRegex(RuntimeError, "keys"):
            case.codes.store(pages, case.slots, case.positions, [case.keys[0][:, :1]], case.values)
        with self.assertRaisesRegex(RuntimeError, "page 40"):
            case.codes.attend(query.clone(), query, pages, torch.full_like(case.table, 40), length)
        with self.assertRaisesRegex(RuntimeError, "a sequence of 0 tokens"):
            case.codes.attend(query.clone(), query, pages, case.table, length * 0)
        rows = case.codes.new_open_rows(2, torch.float32)
        with self.assertRaisesRegex(RuntimeError, "open tile 2, expected 0 to 1"):
            case.codes.attend(query.clone(), query, pages, case.table, length, 0, rows, torch.tensor([[2]], dtype=torch.int32))
        with self.assertRaisesRegex(RuntimeError, "begin with a tile"):
            case.codes.read(pages, case.table[0], 1, 10, torch.float32)
        with self.assertRaisesRegex(RuntimeError, "not 2047 times|not 682 times"):
            bent = tuple(part.clone() for part in case.rope)
            bent[0][600:] = angles(16)[0][:POSITIONS - 600]
            case.checkpoint.open(case.layers, bent, num_query_heads=6)


    def test_nothing_depends_on_torchs_defaults(self):
        expected = Case(self.directory, "pairs", "head").stored()
        self.addCleanup(torch.set_default_dtype, torch.float32)
        self.addCleanup(torch.set_default_device, None)
        for dtype, device in ((torch.bfloat16, None), (torch.float64, None), (torch.float32, "meta")):
            case = Case(self.directory, "pairs", "head")
            torch.set_default_dtype(dtype)
            torch.set_default_device(device)
            case.codes = case.checkpoint.open(case.layers, case.rope, num_query_heads=6, interleaved=False)
            case.checkpoint.open(case.layers, None, num_query_heads=6, interleaved=True)
            torch.set_default_dtype(torch.float32)
            torch.set_default_device(None)
            self.assertTrue(torch.equal(case.stored(), expected))

    def test_what_is_no_number_stays_so(self):
        case = Case(self.directory, "rotated", "head")
        pages, length = case.stored(), torch.tensor([100], dtype=torch.int32)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            query = torch.full((1, 6, 32), torch.nan, dtype=dtype)
            out = torch.zeros_like(query)
            case.codes.attend(out, query, pages, case.table, length)
            self.assertTrue(out.isnan().all(), dtype)


class Descriptions(unittest.TestCase):
    """What the operator `open` is told about the keys and the values of one KV head, 32 channels each."""

    def open(self, heads=4, kv_heads=1, window=0, scale=(0.2, 0.0), bases=1, rotated=0, parts=(1, 2), coefficients=(0,) * 8 + (32,),
             channels=range(32), has_first=(0, 0), decoder=None):
        blocks, factors, count = [], [], sum(coefficients)
        for part, first in zip(parts, has_first):
            is_key = part == 1
            blocks += [0, part, bases if is_key else 1, rotated if is_key else 0, 0, *coefficients]
            dense = torch.randn(32, count)
            factors += [torch.randn(count, 32), dense if decoder is None or not is_key else decoder, torch.randn(32), torch.ones(count),
                        torch.tensor(channels if is_key and bases != 1 else (), dtype=torch.int32), torch.randn(32 * first)]
        handle = ops().open([1, heads, kv_heads, 32, 0, window], torch.tensor(scale), *angles(16), blocks, factors)
        ops().close(handle)

    def test_one_that_fits(self):
        self.open()
        pairs = torch.zeros(32, 32)
        for channel in range(32):
            pairs[channel, channel] = 1
        self.open(bases=16, decoder=pairs)
        self.open(bases=16, rotated=1, decoder=pairs)

    def test_those_that_do_not_are_refused(self):
        several, shared = torch.zeros(32, 32), torch.zeros(32, 32)
        several[:2, :3] = 1  # three coefficients of a pair
        shared[1:3, 0] = 1  # one of two pairs
        pair = torch.zeros(32, 32)
        pair[:2, 0] = 1
        for message, options in {
                "5 heads on 2 KV heads": {"heads": 5, "kv_heads": 2}, "4 heads on 0 KV heads": {"kv_heads": 0},
                "a window of -5": {"window": -5}, "the scale and the softcap, found 1": {"scale": (0.2,)},
                "the scale and the softcap, found 0": {"scale": ()}, "0 bases, expected": {"bases": 0}, "5 bases, expected": {"bases": 5},
                "part 7": {"parts": (7, 2)}, "rotated keys in 4 bases": {"bases": 4, "rotated": 1},
                "fewer than 0 coefficients": {"coefficients": (0, -40, 0, 0, 0, 0, 0, 0, 72)},
                "not 0 to 31, each once": {"bases": 16, "channels": [1] * 32},
                "are not 0 to 31": {"bases": 16, "channels": [10**6] * 32},
                "a basis of 2 channels has more": {"bases": 16, "decoder": several},
                "coefficient 0 has channels of several bases": {"bases": 16, "decoder": shared},
                "rotated coefficient 0 has 2 channels": {"bases": 16, "rotated": 1, "decoder": pair},
                "expected in all or none": {"has_first": (1, 0)}}.items():
            with self.subTest(**options), self.assertRaisesRegex(RuntimeError, message):
                self.open(**options)


class Directories(unittest.TestCase):
    def refused(self, message, change=None, form="rotated", config=None):
        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            write(directory, plan_of(form, "head", 32), 16, change)
            if config is not None:
                (directory / "config.json").write_text(config)
            with self.assertRaisesRegex(ConversionError, message):
                CodedCheckpoint(directory).open([0], angles(16), num_query_heads=6)

    def test_what_is_no_conversion(self):
        self.refused("config.json: cannot be read", config="{")
        self.refused("it has no kvconvert.plan", config="{}")
        self.refused("format is 2, expected 1", config=json.dumps({"kvconvert": {"format": 2, "plan": {}}}))
        plan = plan_of("full", "head", 32) | {"method": "fusedkv", "layers": ["plain", "fused"]}
        self.refused("--method coded", config=json.dumps({"kvconvert": {"format": 1, "plan": plan}}))

    def test_factors_that_do_not_fit(self):
        name = "kvconvert.coded.0."

        def change(suffix, new):
            return lambda tensors, plan: tensors.update({name + suffix: new(tensors[name + suffix])})

        self.refused("model.safetensors: kvconvert.coded.0.mean has shape", change("mean", lambda old: old[1:].clone()))
        self.refused("is not finite", change("decoder", lambda old: old.clone().fill_(torch.nan)))
        self.refused("not positive", change("steps", lambda old: -old))
        self.refused("a number that is no basis", change("basis", lambda old: old + 0.5))

        def store_codes(tensors, plan):
            """In place of the factors of bases, those of one basis."""
            for suffix in ("encoder", "decoder", "basis"):
                tensors.pop(name + suffix)
            tensors |= {name + "decoder_codes": torch.eye(32, dtype=torch.int8), name + "decoder_scale": torch.ones(32),
                        name + "channel_scale": torch.ones(32)}

        self.refused("kvconvert.coded.0.encoder: no file of the directory has this tensor", store_codes, form="pairs")
        self.refused("more coefficients", change("basis", lambda old: old * 0))
        self.refused("of two channels", change("decoder", torch.ones_like))
        self.refused("no file of the directory", lambda tensors, plan: tensors.pop(name + "steps"))
        self.refused("does not cover", lambda tensors, plan: plan.update(coded=plan["coded"][:1]))

    def test_counts_that_are_none(self):
        for counts in ([0, -400, 0, 0, 0, 0, 0, 0, 432], [0] * 8, [0] * 8 + [32.0], [0] * 8 + ["32"]):
            plan = plan_of("pairs", "head", 32)
            plan["coded"][0]["coefficients"] = counts
            self.refused("config.json: kvconvert.plan.coded: .*expected nine numbers of at least 0",
                         config=json.dumps({"kvconvert": {"format": 1, "plan": plan}}))

    def test_plans_with_members_of_another_kind(self):
        """Whatever one member becomes, the plan is refused by name, or it is as good as before."""
        others = (None, True, -1, 0, 1.5, "32", "plain", [], {}, 1 << 31, 1 << 63)
        refused = 0

        def mutations(value, path=()):
            members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
            for key, member in list(members):
                for other in (*others, "missing"):
                    if other == "missing" and isinstance(value, dict):
                        yield (*path, key, "missing"), lambda: value.pop(key), lambda member=member: value.update({key: member})
                    elif other != "missing" and (type(other), other) != (type(member), member):
                        yield (*path, key, other), lambda other=other: value.__setitem__(key, other), \
                            lambda member=member: value.__setitem__(key, member)
                yield from mutations(member, (*path, key))

        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            write(directory, plan_of("rotated", "head", 32), 16)
            file = directory / "config.json"
            config = json.loads(file.read_text())
            for place, change, undo in mutations(config["kvconvert"]["plan"]):
                change()
                file.write_text(json.dumps(config))
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        CodedCheckpoint(directory).open([0], angles(16), num_query_heads=6)
                except ConversionError as error:
                    refused += 1
                    self.assertIn(name, str(error).replace("config.json: kvconvert.plan.policy", name), place)
                except Exception as error:  # the point of this test
                    if place[0] != "num_kv_heads" or "heads on each KV head" not in str(error):  # the caller's 6 heads
                        self.fail(f"{place}: {error!r}")
                undo()
        self.assertGreater(refused, 200)

    def test_factors_of_8_bits(self):
        """Codes with a scale per coefficient, and a low byte of the first three."""
        def to_codes(tensors, plan):
            for name in [name for name in tensors if name.endswith(("encoder", "decoder"))]:
                axis = 0 if name.endswith("encoder") else 1
                matrix = tensors[name].double()
                scale = (matrix.abs().amax(1 - axis, keepdim=True) / 127).float()
                fine = (matrix / scale * 256).round()
                high = ((fine + 128) / 256).floor().clamp(max=127)
                tensors[name] = high.to(torch.int8)
                tensors[name + ".low"] = (fine - 256 * high).clamp(-127, 127).narrow(axis, 0, 3).to(torch.int8).contiguous()
                tensors[name + ".scale"] = scale.flatten()

        def break_scale(value):
            def change(tensors, plan):
                to_codes(tensors, plan)
                tensors["kvconvert.coded.0.decoder.scale"][1] = value
            return change

        def widen(tensors, plan):
            to_codes(tensors, plan)
            low = tensors["kvconvert.coded.0.encoder.low"]
            tensors["kvconvert.coded.0.encoder.low"] = low.repeat(60, 1)

        def drop_scale(tensors, plan):
            to_codes(tensors, plan)
            tensors.pop("kvconvert.coded.0.encoder.scale")

        with tempfile.TemporaryDirectory() as name:
            directory, plan = pathlib.Path(name), plan_of("full", "layer", 32)

            def factors():
                checkpoint = CodedCheckpoint(directory)
                spec = block_of(0, plan["coded"][0])
                return load_factors(checkpoint.files, spec, HEADS, 32, 16, True)

            write(directory, plan, 16)
            exact = factors()
            write(directory, plan, 16, to_codes)
            read = factors()
            for got, given, axis in ((read.encoder, exact.encoder, 1), (read.decoder, exact.decoder, 0)):
                error = (got - given).abs().amax(axis) / given.abs().amax(axis)
                # Half a code; encoders are then rounded to float16.
                self.assertLess(error.max(), 0.502 / 127 + (2.0**-11 if axis == 1 else 0))
                self.assertLess(error[:3].max(), 1e-3)
                self.assertGreater(error[3:].min(), 1e-3)
            for words, change in (("not positive", break_scale(0)), ("not finite", break_scale(float("nan"))),
                                  ("expected at most", widen), ("no file of the directory", drop_scale)):
                write(directory, plan, 16, change)
                with self.assertRaisesRegex(ConversionError, words):
                    factors()

    def test_damaged_factors(self):
        def damage(tensors, plan):
            tensors["kvconvert.coded.1.mean"][0] += 1e-6

        with tempfile.TemporaryDirectory() as name:
            directory = pathlib.Path(name)
            write(directory, plan_of("rotated", "head", 32), 16)
            config = json.loads((directory / "config.json").read_text())
            sums = hashlib.sha256()
            for name, tensor in sorted(load_file(directory / "model.safetensors").items()):
                sums.update(name.encode() + b"\0" + tensor.numpy().tobytes())
            config["kvconvert"]["factors_sha256"] = sums.hexdigest()
            (directory / "config.json").write_text(json.dumps(config))
            CodedCheckpoint(directory)
            write(directory, plan_of("rotated", "head", 32), 16, damage)
            (directory / "config.json").write_text(json.dumps(config))
            with self.assertRaisesRegex(ConversionError, "model.safetensors: the tensors kvconvert.. are damaged"):
                CodedCheckpoint(directory)

    def test_bases_have_neighbouring_pairs(self):
        self.assertEqual(basis_channels(2, 8, 3).tolist(), [[0, 1, 3, 4], [2, 6, 5, 7]])


if __name__ == "__main__":
    unittest.main()
