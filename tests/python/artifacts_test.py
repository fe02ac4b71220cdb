#!/usr/bin/env python3
"""The artifacts of a conversion, read by h5py."""

import json
import unittest

import h5py
import numpy as np

from conversions import converted

WORK = converted("stories260K-hf", "commonkv") / "work"
NUM_LAYERS, HIDDEN_SIZE, KV_DIM = 5, 64, 32


class Artifacts(unittest.TestCase):
    def check_provenance(self, file, kind):
        self.assertEqual(file.attrs["format"], "kvconvert")
        self.assertEqual(file.attrs["kind"], kind)
        self.assertRegex(file.attrs["checkpoint_hash"], r"^[0-9a-f]{64}$")
        self.assertIsInstance(json.loads(file["options"][()]), dict)

    def check_labels(self, file):
        """Every dataset with more than one element names its axes."""
        def visit(name, item):
            if isinstance(item, h5py.Dataset) and item.size is not None and item.size > 1:
                for dimension in item.dims:
                    self.assertTrue(dimension.label, f"{file.filename}: {name}")
        file.visititems(visit)

    def test_tokens(self):
        with h5py.File(WORK / "tokens.h5") as file:
            self.check_provenance(file, "tokens")
            self.check_labels(file)
            self.assertEqual(file["lengths"][:].sum(), len(file["ids"]))
            self.assertEqual(file["ids"].dtype, np.int64)

    def test_calibration(self):
        with h5py.File(WORK / "calibration.h5") as file:
            self.check_provenance(file, "calibration")
            self.check_labels(file)
            self.assertEqual(len(file["layers"]), NUM_LAYERS)
            gram = file["layers/0/gram"][:]
            self.assertEqual(gram.shape, (HIDDEN_SIZE, HIDDEN_SIZE))
            self.assertEqual(gram.dtype, np.float64)
            np.testing.assert_allclose(gram, gram.T, rtol=1e-12)
            self.assertGreater(np.linalg.eigvalsh(gram).min(), -1e-9 * np.trace(gram))
            self.assertEqual(file["num_tokens"][0], 4 * 64)

    def test_fisher(self):
        with h5py.File(WORK / "fisher.h5") as file:
            self.check_provenance(file, "fisher")
            self.check_labels(file)
            self.assertEqual(file["channel_sum"].shape, (NUM_LAYERS, 2, KV_DIM))
            self.assertTrue((file["channel_sum"][:] > 0).all())

    def test_conversion(self):
        with h5py.File(WORK / "conversion" / "conversion.h5") as file:
            self.check_provenance(file, "conversion")
            self.check_labels(file)


if __name__ == "__main__":
    unittest.main()
