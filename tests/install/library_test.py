#!/usr/bin/env python3
"""runtime/example built with find_package(kvconvert) against an install prefix that was moved, and run."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(os.environ["KVC_SOURCE_DIR"])
DATA = pathlib.Path(os.environ["KVC_TEST_DATA"])
BIN = pathlib.Path(os.environ["KVC_BIN_DIR"])
PROMPT = "One day, Lily went to the"


def run(*command, expect=0):
    process = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=280)
    assert process.returncode == expect, f"{command}: {process.returncode}\n{process.stdout}\n{process.stderr}"
    return process


def cached(variable):
    """A variable of the build that the library comes from."""
    text = (BIN.parent / "CMakeCache.txt").read_text(encoding="utf-8")
    return re.search(rf"^{variable}:\w+=(.*)$", text, re.MULTILINE).group(1)


class InstalledLibrary(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvc-install-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        prefix = cls.directory / "prefix"
        run("cmake", "--install", BIN.parent, "--component", "library", "--prefix", cls.directory / "staged")
        (cls.directory / "staged").rename(prefix)
        cls.build = cls.directory / "build"
        run("cmake", "-G", "Ninja", "-S", SOURCE / "runtime" / "example", "-B", cls.build, f"-DCMAKE_PREFIX_PATH={prefix}",
            f"-DCMAKE_CXX_COMPILER={cached('CMAKE_CXX_COMPILER')}", "-DCMAKE_BUILD_TYPE=Release")
        run("cmake", "--build", cls.build)

    def example(self, *arguments, expect=0):
        return run(self.build / "continue_text", *arguments, expect=expect)

    def test_continues_as_kvrun_does(self):
        model = DATA / "reference-llama"
        process = self.example(model, PROMPT)
        kvrun = [BIN / "kvrun", model, "--prompt", PROMPT, "--max-new-tokens", "40", "--ignore-eos", "--json"]
        greedy = json.loads(run(*kvrun).stdout)["text"]
        sampled = json.loads(run(*kvrun, "--temperature", "0.8", "--seed", "1").stdout)["text"]
        self.assertEqual(process.stdout, f"{greedy}\n{sampled}\n")
        self.assertRegex(process.stderr, r"^\d+ KV bytes of \d+ tokens, 0 of them merged\n")

    def test_errors_are_exceptions(self):
        self.assertIn("absent", self.example(self.directory / "absent", "x", expect=1).stderr)
        self.assertIn("usage", self.example(expect=2).stderr)

    def test_installed_programs_run(self):
        prefix = self.directory / "programs"
        run("cmake", "--install", BIN.parent, "--component", "Unspecified", "--prefix", prefix)
        for program in sorted((prefix / "bin").iterdir()):
            self.assertIn(program.name, run(program, "--version").stdout)
        self.assertEqual(len(list((prefix / "bin").iterdir())), 6)

    def test_nothing_installed_names_the_sources(self):
        for path in (self.directory / "prefix").rglob("*"):
            if path.suffix in {".cmake", ".h"}:
                text = path.read_text(encoding="utf-8").replace(cached("KVC_TORCH_DIR"), "")
                self.assertNotIn(str(SOURCE), text, path)


if __name__ == "__main__":
    unittest.main()
