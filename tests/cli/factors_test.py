#!/usr/bin/env python3
"""Factors in 8 bits: chosen where they cost nothing, read by kvrun, refused where they are damaged."""

import json
import struct
import unittest

from programs import STORIES, ProgramTest, copy_checkpoint, edit_tensors

SHORT = ("--num-sequences", "12", "--seq-len", "256", "--no-validate")
METHODS = {
    "commonkv": ("--method", "commonkv", "--group", "5", "--rank", "0.7"),
    "palu": ("--method", "palu", "--rank", "0.5"),
    "pca": ("--method", "pca", "--kept-ratio", "0.4", "--window", "16"),
    "xkv-static": ("--method", "xkv-static", "--group", "5", "--kept-ratio", "0.4", "--window", "16"),
}


def tensors_of(directory):
    """{name: (dtype, shape, bytes)} of the factors."""
    found = {}

    def look(tensors):
        found.update({name: tuple(entry) for name, entry in tensors.items() if name.startswith("kvconvert.")})

    edit_tensors(directory, look)
    return found


class Factors(ProgramTest):
    def convert(self, name, *arguments):
        out = self.directory / name
        self.run_ok("kvconvert", STORIES, *arguments, *SHORT, "--out", out, "--force")
        return out

    def report(self, out):
        return json.loads(self.run_ok("kvvalidate", STORIES, out, "--json", "--num-sequences", "8", "--seq-len", "256", "--block",
                                      "64").stdout)

    def test_8_bits_cost_next_to_nothing(self):
        for method, arguments in METHODS.items():
            with self.subTest(method):
                work = self.directory / f"{method}-work"
                divergence, stored = {}, {}
                for form in ("auto", "float32", "bfloat16"):
                    out = self.convert(f"{method}-{form}", *arguments, "--work", work, "--factor-dtype", form)
                    report = self.report(out)
                    divergence[form] = report["continuation"]["kl_divergence"]["mean"]
                    stored[form] = sum(len(data) for _, _, data in tensors_of(out).values())
                    types = {dtype for dtype, shape, _ in tensors_of(out).values() if len(shape) == 2}
                    self.assertEqual("I8" in types, form == "auto", types)
                # On so few rows the divergence moves by some percent with any change.
                self.assertLess(divergence["auto"], 1.08 * divergence["float32"])
                self.assertLess(stored["auto"], 0.95 * stored["bfloat16"])

    def test_8_bits_on_request(self):
        for method, arguments in {**METHODS, "coded": ("--kept-ratio", "0.25", "--scope", "layer")}.items():
            with self.subTest(method):
                out = self.convert(method, *arguments, "--factor-dtype", "int8")
                factors = tensors_of(out)
                for name, (dtype, shape, _) in factors.items():
                    self.assertEqual(dtype, "I8" if len(shape) == 2 else "F32", name)
                matrices = {name for name, (_, shape, _) in factors.items() if len(shape) == 2}
                self.assertTrue(matrices)
                self.assertEqual({name for name in factors if name.endswith(".scale")}, {f"{name}.scale" for name in matrices})
                self.run_ok("kvrun", out, "--prompt", "Once upon a time", "--max-new-tokens", "80")

    def test_folded_exports_do_not_depend_on_the_form(self):
        work = self.directory / "work"
        out = [self.convert(form, *METHODS["commonkv"], "--work", work, "--export", "folded", "--factor-dtype", form)
               for form in ("auto", "float32")]
        self.assertEqual(*((path / "model.safetensors").read_bytes() for path in out))

    def test_damage_is_refused_with_one_message(self):
        source = self.convert("source", *METHODS["pca"], "--factor-dtype", "int8")
        matrix = "kvconvert.groups.0.encoder"

        def scale(value):
            def edit(tensors):
                entry = tensors[matrix + ".scale"]
                entry[2] = struct.pack("<f", value) + entry[2][4:]
            return edit

        def low(dtype):
            def edit(tensors):
                shape = [tensors[matrix][1][0] + 1, tensors[matrix][1][1]]
                tensors[matrix + ".low"] = [dtype, shape, bytes(shape[0] * shape[1])]
            return edit

        def shorten(name):
            def edit(tensors):
                entry = tensors[name]
                row = len(entry[2]) // entry[1][0]
                entry[1], entry[2] = [entry[1][0] - 1, *entry[1][1:]], entry[2][:-row]
            return edit

        damages = {
            "no scale": (lambda tensors: tensors.pop(matrix + ".scale"), ".scale"),
            "NaN": (scale(float("nan")), "not positive and finite"),
            "infinite": (scale(float("inf")), "not positive and finite"),
            "negative": (scale(-1), "not positive and finite"),
            "short scale": (shorten(matrix + ".scale"), ".scale"),
            "short matrix": (shorten(matrix), matrix),
            "long low": (low("I8"), "expected at most"),
            "one bit": (lambda tensors: tensors[matrix].__setitem__(2, bytes([tensors[matrix][2][0] ^ 1]) + tensors[matrix][2][1:]),
                        "damaged"),
        }
        for name, (edit, words) in damages.items():
            with self.subTest(name):
                out = copy_checkpoint(source, self.directory / name.replace(" ", "-"))
                edit_tensors(out, edit)
                self.assert_refused({1}, [words], "kvrun", out, "--prompt", "Once")

    def test_unknown_types_are_refused(self):
        self.assert_refused({2}, ["--factor-dtype int4", "int8"], "kvconvert", STORIES, *METHODS["pca"], *SHORT, "--factor-dtype", "int4",
                            "--out", self.directory / "out")


if __name__ == "__main__":
    unittest.main()
