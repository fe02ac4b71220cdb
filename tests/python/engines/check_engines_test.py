"""scripts/check_engines.sh: its comparison sees what differs, and its drivers run, here with kvrun and transformers alone."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
import unittest

import numpy

ROOT = pathlib.Path(os.environ["KVC_SOURCE_DIR"])
sys.path.insert(0, str(ROOT / "bench" / "engines"))
os.environ["KVCONVERT_BIN"] = os.environ["KVC_BIN_DIR"]

import check_engines  # noqa: E402
from comparison import BOUNDS, EngineError, compare, table, verdict  # noqa: E402
from engine_table import ENGINES, REFERENCE, Engine  # noqa: E402
from environments import peers_python  # noqa: E402

END = 1


def answer(logits, tokens):
    return {"logits.0": numpy.asarray(logits, numpy.float32), "tokens.0": numpy.asarray(tokens)}


class ComparisonTest(unittest.TestCase):
    LOGITS = [[0.0, 1.0, 2.0], [3.0, 1.0, -1.0]]

    def test_equal_answers_agree(self):
        expected = answer(self.LOGITS, [5, 6, 7])
        self.assertEqual(compare(expected, expected, {END}), {"max_logit_difference": 0, "greedy_agreement": 1})

    def test_log_probabilities_compare_with_logits(self):
        shifted = numpy.asarray(self.LOGITS) - [[4.0], [-2.0]]
        found = compare(answer(shifted, [5]), answer(self.LOGITS, [5]), {END})
        self.assertLess(found["max_logit_difference"], 1e-6)

    def test_difference_is_in_standard_deviations(self):
        moved = numpy.asarray(self.LOGITS)
        moved[1, 2] = -60.0  # a token of probability 0.016: the others' log-probabilities grow by 0.016
        found = compare(answer(moved, [5]), answer(self.LOGITS, [5]), {END})
        self.assertAlmostEqual(found["max_logit_difference"], (59 - 0.016) / numpy.std(self.LOGITS), places=2)

    def test_tokens_count_from_the_start_until_the_end_of_the_text(self):
        for tokens, share in (([5, 6, 7, 8], 1), ([5, 6, 9, 8], 0.5), ([5, 6, 7, 8, END, 3], 1), ([5, 6, 7], 0.75),
                              ([5, 6, END, 7], 0.5)):
            found = compare(answer(self.LOGITS, tokens), answer(self.LOGITS, [5, 6, 7, 8, END, 9]), {END})
            self.assertEqual(found["greedy_agreement"], share, tokens)

    def test_wrong_shapes_and_numbers_are_errors(self):
        for logits in (self.LOGITS[:1], [[0, 1, numpy.nan], [3, 1, -1]]):
            with self.assertRaisesRegex(EngineError, "prompt 0"):
                compare(answer(logits, [5]), answer(self.LOGITS, [5]), {END})

    def test_a_reference_without_numbers_agrees_with_nothing(self):
        wrong = [[0, 1, 2], [3, numpy.nan, -1]]
        for first, second in ((wrong, self.LOGITS), (self.LOGITS, wrong)):
            found, expected = (answer(one, [5]) | {"logits.1": numpy.asarray(other, numpy.float32), "tokens.1": numpy.asarray([5])}
                               for one, other in ((self.LOGITS, self.LOGITS), (first, second)))
            self.assertIn("logits differ", verdict(compare(found, expected, {END}), BOUNDS["coded"]))

    def test_both_bounds_are_checked(self):
        good = {"max_logit_difference": 9e-5, "greedy_agreement": 1.0}
        self.assertEqual(verdict(good, BOUNDS["folded"]), "")
        self.assertIn("logits differ by 0.001", verdict(good | {"max_logit_difference": 1e-3}, BOUNDS["folded"]))
        self.assertIn("0.900 of the greedy tokens", verdict(good | {"greedy_agreement": 0.9}, BOUNDS["folded"]))


class EnginesTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="kvc-check-engines-")
        cls.addClassCleanup(folder.cleanup)
        cls.work = pathlib.Path(folder.name)
        command = [sys.executable, ROOT / "bench" / "engines" / "check_engines.py", "--engines", "transformers", "--work", cls.work]
        cls.process = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        cls.checks = check_engines.Checks(types.SimpleNamespace(
            checkpoint=check_engines.DATA / "reference-llama", work=cls.work, timeout=300,
            text=check_engines.DATA / "texts" / "tinystories_heldout.txt"))
        cls.checks.checkpoints |= {"folded": cls.work / "folded", "coded": cls.work / "coded"}
        cls.transformers = next(engine for engine in ENGINES if engine.name == "transformers")

    def test_transformers_passes(self):
        self.assertEqual(self.process.returncode, 0, self.process.stderr)
        report = json.loads((self.work / "engines.json").read_text())
        rows = {(row["engine"], row["checkpoint"]): row for row in report["rows"]}
        self.assertEqual(set(rows), {(engine, kind) for engine in ("kvrun", "transformers") for kind in ("original", "folded", "coded")})
        for row in rows.values():
            self.assertIsNone(row["error"])
            self.assertIsNone(row["not_run"])
            self.assertIn(row["version"], self.process.stdout)
        # Of 992 tokens transformers also holds the last 64 exactly.
        for engine, least in (("kvrun", 3.9), ("transformers", 3.0)):
            gain = rows[engine, "coded"]["tokens_per_gib"] / rows[engine, "original"]["tokens_per_gib"]
            self.assertGreater(gain, least)

    def test_answers_of_another_checkpoint_are_an_error(self):
        """The bounds tell conversions from their original, so an engine that ignored the codes would fail."""
        original = self.checks.run(REFERENCE, "original")
        for kind in ("folded", "coded"):
            self.assertIn("logits differ", self.checks.row(self.transformers, kind, original)["error"])

    def test_engines_that_fail_or_are_not_there_are_told_apart(self):
        expected = self.checks.run(REFERENCE, "folded")
        failing = self.checks.row(Engine("ghost", "ghost", ("torch",), there=peers_python), "folded", expected)
        self.assertIn("engine_ghost", failing["error"])
        absent = self.checks.row(Engine("ghost", "ghost", ("transformers", "no-such-engine")), "folded", expected)
        self.assertIn("NO_SUCH_ENGINE_VERSION", absent["not_run"])
        self.assertIsNone(absent["error"])
        self.assertIn("not installed", table([absent]))


if __name__ == "__main__":
    unittest.main()
