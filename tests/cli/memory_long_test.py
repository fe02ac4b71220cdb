#!/usr/bin/env python3
"""Every cache in kvrun's process, between 512 tokens and 16k. Prints what docs/benchmarks.md shows."""

import unittest

from process_memory import CONVERSIONS, OPTIONS, MemoryTest


class LongMemory(MemoryTest):
    def test_grows_as_the_formula_says_and_peaks_as_planned(self):
        self.check("plain", self.model)
        for name, options in OPTIONS.items():
            self.check(name, self.model, options)
        for name in CONVERSIONS:
            self.check(name, self.convert(name))

    def test_batches_grow_as_the_formula_says(self):
        self.check_batches("coded layer", (512, 1024, 512), (8192, 2048, 4096))

    def test_later_turns_grow_as_the_formula_says(self):
        self.check_later_turns("coded layer")

    def test_a_text_fits_compressed_that_does_not_fit_plain(self):
        self.check_fits_compressed(self.long)


if __name__ == "__main__":
    unittest.main()
