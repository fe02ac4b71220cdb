#!/usr/bin/env python3
"""One cache of every kind in kvrun's process; memory_long_test.py has all stores and long prompts."""

import unittest

from process_memory import MIB, OPTIONS, MemoryTest
from programs import REFERENCE


class Memory(MemoryTest):
    short, long = 2048, 5120

    def test_grows_as_the_formula_says_and_peaks_as_planned(self):
        self.check("plain", self.model)
        for name in ("int8", "zeromerge"):
            self.check(name, self.model, OPTIONS[name])
        for name in ("coded head", "commonkv", "fusedkv"):
            self.check(name, self.convert(name))

    def test_batches_grow_as_the_formula_says(self):
        self.check_batches("coded head", (256, 512, 256), (3072, 1024, 2048))

    def test_later_turns_grow_as_the_formula_says(self):
        self.check_later_turns("coded head")

    def test_a_small_model_reserves_little(self):
        """Limits of a process count addresses, used or not."""
        most, text = self.most_data(REFERENCE, "--prompt", "Once upon a time", "--max-new-tokens", 4, "--threads", 2)
        self.assertNotEqual(text, "")
        self.assertLess(most, 200 * MIB)

    def test_a_text_fits_compressed_that_does_not_fit_plain(self):
        self.check_fits_compressed(16384)


if __name__ == "__main__":
    unittest.main()
