#!/usr/bin/env python3
"""kvvalidate's numbers against the same ones computed from transformers' logits."""

import json
import unittest

import h5py
import numpy as np
import torch

from conversions import converted, directory, load, run, source

NAME, METHOD = "stories260K-hf", "commonkv"


def rows_of(path):
    with h5py.File(path) as file:
        return np.split(file["ids"][:], np.cumsum(file["lengths"][:])[:-1])


def compare(reference, candidate, targets):
    """Mean KL divergence, perplexity ratio and same-top share, and the KL divergences themselves."""
    p, q = reference.double().log_softmax(-1), candidate.double().log_softmax(-1)
    divergence = (p.exp() * (p - q)).sum(-1)
    nll = [-x.gather(-1, targets[..., None])[..., 0] for x in (p, q)]
    return {"kl": divergence.mean().item(), "nll": nll[0].mean().item(),
            "ratio": (nll[1] - nll[0]).mean().exp().item(),
            "same_top": (reference.argmax(-1) == candidate.argmax(-1)).double().mean().item()}, divergence


class AgainstTransformers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.conversion = converted(NAME, METHOD)
        cls.tokens = cls.conversion / "work" / "tokens.h5"
        cls.folded = cls.conversion / "out" / "folded"
        report = directory / "report.json"
        run("kvvalidate", source(NAME), cls.folded, "--text", cls.tokens, "--report", report)
        cls.report = json.loads(report.read_text(encoding="utf-8"))
        ids = torch.from_numpy(np.stack(rows_of(cls.tokens)))
        with torch.no_grad():
            reference, candidate = (load(path)[0](ids).logits[:, :-1] for path in (source(NAME), cls.folded))
        cls.data = reference, candidate, ids[:, 1:]

    def check(self, setting, first):
        expected, divergence = compare(*(tensor[:, first:] for tensor in self.data))
        measured = self.report[setting]
        self.assertEqual(measured["num_positions"], divergence.numel())
        self.assertAlmostEqual(measured["kl_divergence"]["mean"] / expected["kl"], 1, delta=1e-3)
        self.assertAlmostEqual(measured["reference_nll"]["mean"], expected["nll"], delta=1e-4)
        self.assertAlmostEqual(measured["perplexity_ratio"], expected["ratio"], delta=1e-4)
        self.assertAlmostEqual(measured["same_top"]["mean"], expected["same_top"], delta=0.02)
        values = divergence.flatten().numpy()
        for name, percent in (("median", 50), ("p90", 90), ("p99", 99), ("p99.9", 99.9), ("max", 100)):
            self.assertAlmostEqual(measured["kl_divergence"][name] / np.percentile(values, percent), 1, delta=1e-2)
        means = divergence.mean(1).numpy()  # rows are equally long
        self.assertAlmostEqual(measured["kl_divergence"]["standard_error"] / (means.std(ddof=1) / len(means) ** 0.5), 1,
                               delta=1e-2)

    def test_teacher_forced(self):
        self.check("teacher_forced", 0)

    def test_continuation_of_a_plain_cache_is_the_second_half(self):
        self.check("continuation", self.data[2].shape[1] // 2)
        self.assertEqual(self.report["kept_ratio"], 1.0)

    def test_refuses_the_calibration_text(self):
        factored = self.conversion / "out" / "factored"
        process = run("kvvalidate", source(NAME), factored, "--text", self.tokens, expect=1)
        self.assertIn("was calibrated on this evaluation text", process.stderr)

    def test_a_factored_model_keeps_less_and_says_so(self):
        factored = self.conversion / "out" / "factored"
        report = json.loads(run("kvvalidate", source(NAME), factored, "--num-sequences", 2, "--seq-len", 256, "--json").stdout)
        self.assertLess(report["kept_ratio"], 1.0)
        self.assertAlmostEqual(report["kept_ratio"], report["kv_bytes"] / report["original_kv_bytes"])
        self.assertEqual(report["inputs"]["calibration_overlap"], "no evaluation text has the bytes of a calibration text")


if __name__ == "__main__":
    unittest.main()
