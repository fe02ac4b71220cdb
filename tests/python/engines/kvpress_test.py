"""NVIDIA's kvpress scores as it says: without a press like the original, with one at the bytes that it keeps."""

import json
import os
import pathlib
import subprocess
import sys
import unittest

ROOT = pathlib.Path(os.environ["KVC_SOURCE_DIR"])
STORIES = pathlib.Path(os.environ["KVC_TEST_DATA"]) / "stories260K-hf"
sys.path.insert(0, str(ROOT / "bench" / "engines"))

from environments import InstallError, engine_python  # noqa: E402


class KvpressTest(unittest.TestCase):
    def scores(self, *presses):
        command = [ROOT / "bench" / "measure_kvpress.py", STORIES, "--presses", *presses, "--kept-ratio", "0.5", "--num-sequences", "2",
                   "--seq-len", "192", "--recall", "0", "--json"]
        process = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(process.returncode, 0, process.stderr)
        return {name: results["0.5"] for name, results in json.loads(process.stdout).items()}

    def test_without_a_press_nothing_changes(self):
        found = self.scores("none")["none"]
        self.assertEqual((found["kept_ratio"], found["same_top"]), (1, 1))
        self.assertLess(found["kld"], 1e-9)

    def test_presses_keep_half(self):
        """One that removes tokens of all heads, and two that choose per head."""
        for name, found in self.scores("snapkv", "adakv, expected attention", "kvzip").items():
            self.assertAlmostEqual(found["kept_ratio"], 0.5, delta=0.01, msg=name)
            self.assertGreater(found["kld"], 1e-4, name)
            self.assertGreater(found["same_top"], 0.6, name)


if __name__ == "__main__":
    try:
        engine_python("kvpress", ("kvpress",), compiled=("fire",))
    except InstallError as error:
        print(f"kvpress cannot be installed: {error}", file=sys.stderr)
        sys.exit(1 if os.environ.get("KVC_REQUIRE_PEERS") == "1" else 77)
    unittest.main()
