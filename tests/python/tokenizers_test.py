#!/usr/bin/env python3
"""The native tokenizer against the tokenizers library, for every family and every setting of a tokenizer.json."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

SOURCE = Path(os.environ["KVC_SOURCE_DIR"])
PROGRAM = Path(os.environ["KVC_BIN_DIR"]).parent / "tests" / "tokenize_lines"


class AgainstTokenizers(unittest.TestCase):
    def test_ids_and_texts_are_equal(self):
        result = subprocess.run([sys.executable, SOURCE / "tests" / "checks" / "check_tokenizer.py", PROGRAM, "--quick"],
                                capture_output=True, encoding="utf-8", check=False)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertIn("41 kinds, 0 differences", result.stdout)


if __name__ == "__main__":
    unittest.main()
