#!/usr/bin/env python3
"""scripts/gpu_bundle.sh with this build's programs: what it packs, and how run.sh judges them without a GPU."""

import json
import math
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from programs import BIN, DATA

SCRIPT = pathlib.Path(os.environ["KVC_SOURCE_DIR"]) / "scripts/gpu_bundle.sh"
sys.path.insert(0, str(SCRIPT.with_suffix("")))
import compare
import gpu

# What every machine with torch has.
SYSTEM = re.compile(r"^(linux-vdso|/lib.*/ld-linux|lib(c|m|dl|pthread|rt|util|stdc\+\+|gcc_s)\.so)")
# Computes in float16 with the weights of another checkpoint.
TAMPERED = """#!/bin/sh
model=$1
shift
case "$*" in *--dtype\\ float16*) model=$model-128 ;; esac
exec "$0.true" "$model" "$@"
"""
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return FAILURE; }
int cuDeviceGet(int* device, int number) { *device = number + 40; return number > 1 ? 101 : 0; }
int cuDeviceGetName(char* name, int size, int device) { strncpy(name, device == 41 ? "Second" : "First", size); return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) { *value = attribute == 75 ? 9 : attribute == 76 ? 0 : -1; return 0; }
"""


def linked(program, path=""):
    """{name: file} of the libraries that a program loads."""
    environment = {**os.environ, "LD_LIBRARY_PATH": path}
    lines = subprocess.run(["ldd", program], env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    return {words[0]: words[2] if len(words) > 2 else words[0] for words in map(str.split, lines)}


class GpuBundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvc-bundle-"))
        cls.addClassCleanup(shutil.rmtree, cls.directory)
        archive = cls.directory / "bundle.tar"
        subprocess.run([SCRIPT, "--programs", BIN, "--out", archive], check=True, timeout=240)
        subprocess.run(["tar", "-xf", archive, "-C", cls.directory], check=True)
        cls.bundle = cls.directory / "gpu-bundle"
        # A Python whose torch is the build's.
        cls.torch = pathlib.Path(linked(BIN / "kvrun")["libtorch_cpu.so"]).resolve().parent.parent
        if not (cls.torch / "version.py").exists():
            raise unittest.SkipTest(f"{cls.torch} is no Python package")
        cls.site = cls.directory / "site"
        cls.site.mkdir()
        for name in ("torch", "nvidia"):
            (cls.site / name).symlink_to(cls.torch.parent / name)

    def peers_site(self):
        """Packages of an environment with transformers and the build's torch, whose libraries are all there."""
        version = (self.torch / "version.py").read_bytes()
        for venv in (".venv-peers", ".venv"):
            for site in (pathlib.Path(os.environ["KVC_SOURCE_DIR"]) / venv).glob("lib/python3*/site-packages"):
                if (site / "transformers").exists() and (site / "torch/version.py").read_bytes() == version:
                    return site
        self.assertNotEqual(os.environ.get("KVC_REQUIRE_PEERS"), "1", "no environment with transformers")
        return self.skipTest("no environment with transformers; run scripts/setup.sh --peers")

    def run_bundle(self, *arguments, bundle=None, site=None):
        self.report = self.directory / f"{self.id()}.json"
        environment = {**os.environ, "PYTHONPATH": str(site or self.site), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run([(bundle or self.bundle) / "run.sh", "--python", sys.executable, "--data", DATA, "--json", self.report,
                               *arguments], env=environment, capture_output=True, text=True, timeout=240, check=False)

    def parts(self):
        return {(entry["case"], entry["part"]): entry for entry in json.loads(self.report.read_text(encoding="utf-8"))["cases"]}

    def copy(self):
        return shutil.copytree(self.bundle, pathlib.Path(tempfile.mkdtemp(dir=self.directory)) / "bundle")

    def test_has_what_the_programs_load_and_nothing_else(self):
        needed = set()
        for program in ("kvrun", "kvconvert", "kvvalidate"):
            for name, file in linked(self.bundle / "bin" / program, f"{self.bundle / 'lib'}:{self.torch / 'lib'}").items():
                place = pathlib.Path(file)
                if place.parent == self.bundle / "lib":
                    needed.add(name)
                elif not SYSTEM.match(name):
                    self.assertTrue(place.resolve().is_relative_to(self.torch.parent), f"{program}: {name} from {file}")
        packed = {path.name for path in (self.bundle / "lib").iterdir()}
        self.assertEqual(packed, needed | {"libkvconvert_ops.so"})
        for name in ("libhdf5", "libonig", "libsentencepiece", "libutf8proc"):
            self.assertTrue(any(library.startswith(name) for library in packed), name)
        self.assertFalse([library for library in packed if SYSTEM.match(library) or re.match("lib(torch|c10|gomp)", library)])

    def test_what_is_never_called_ends_with_a_message(self):
        stand_ins = {path.name: path for path in (self.bundle / "lib").iterdir() if re.match("lib(curl|crypto)", path.name)}
        for name, library in stand_ins.items():
            function = "curl_easy_init" if "curl" in name else "EVP_sha256"
            call = subprocess.run([sys.executable, "-c", f"import ctypes; ctypes.CDLL('{library}').{function}()"], capture_output=True,
                                  text=True, check=False)
            self.assertIn(f"{function}: left out of this bundle, whose {name} is a stand-in", call.stderr)
            self.assertLess(call.returncode, 0)

    def test_passes_on_the_cpu_and_skips_the_gpu(self):
        process = self.run_bundle("xkv-static")
        self.assertEqual(process.returncode, 77, process.stdout + process.stderr)
        report = json.loads(self.report.read_text(encoding="utf-8"))
        self.assertEqual((report["status"], report["device"], report["gpu"]), ("skipped", "cuda", None))
        self.assertEqual(report["torch"].partition("+")[0], report["bundle"]["torch"])
        parts = self.parts()
        self.assertEqual(list(parts), [("xkv-static", "cpu"), ("xkv-static", "device")])
        for (_, name), part in parts.items():
            self.assertEqual(part["status"], "passed" if name == "cpu" else "skipped", part)
        conversion = parts["xkv-static", "cpu"]
        self.assertEqual({run["exit_code"] for run in conversion["runs"]}, {0})
        self.assertTrue(any(run["command"].startswith("kvconvert ") and run["seconds"] > 0 for run in conversion["runs"]))
        self.assertLess(conversion["conversion_kept_ratio"], 0.7)
        self.assertGreater(conversion["kl_divergence"], 0)
        self.assertLessEqual(conversion["max_logit_difference"], conversion["tolerance"])
        self.assertEqual(parts["xkv-static", "device"]["reason"], "these programs have no GPU code")
        self.assertEqual(process.stdout.splitlines()[-1], "skipped: these programs have no GPU code")

    def test_compares_a_device_with_the_cpu(self):
        process = self.run_bundle("--device", "cpu", "top-p")
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        part = self.parts()["top-p", "device"]
        self.assertEqual((part["status"], part["tokens_equal"], part["kept_ratio"]["equal"]), ("passed", True, True))
        self.assertGreater(part["max_logit_difference"], 0)  # float16 beside float32

    def test_compares_the_ops_of_engines(self):
        process = self.run_bundle("--device", "cpu", "ops", site=self.peers_site())
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        parts = self.parts()
        self.assertEqual({case["form"] for case in parts["ops", "device"]["cases"]}, {"rotated", "pairs", "blocks", "keys", "full"})
        self.assertFalse(parts["ops", "device"]["has_device_ops"])

    def test_compares_transformers(self):
        process = self.run_bundle("--device", "cpu", "transformers", site=self.peers_site())
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        part = self.parts()["transformers", "device"]
        self.assertEqual((part["status"], part["cache_bytes_equal"], part["max_logit_difference"]), ("passed", True, 0.0))
        self.assertGreater(part["coded"]["step_ms"], 0)

    def test_measures_programs(self):
        report = self.directory / "programs.json"
        script = pathlib.Path(os.environ["KVC_SOURCE_DIR"]) / "bench/gpu_programs.py"
        process = subprocess.run([sys.executable, script, "--run", f"env PATH={BIN}:/usr/bin:/bin", "--device", "cpu", "--hidden", "256",
                                  "--layers", "3", "--no-peer", "--json", report], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        results = json.loads(report.read_text(encoding="utf-8"))["results"]
        self.assertEqual({name for name in results if name.startswith("kvrun")},
                         {f"kvrun {cache} {shape}" for cache in ("dense", "rotated") for shape in ("(1, 64)", "(2, 32)")})
        for name, result in results.items():
            self.assertTrue(not name.startswith("kvrun") or 0 < result["step_ms"] < 1000, result)

    def test_finds_wrong_logits(self):
        bundle = self.copy()
        program = bundle / "bin/kvrun"
        program.rename(bundle / "bin/kvrun.true")
        program.write_text(TAMPERED, encoding="ascii")
        program.chmod(0o755)
        process = self.run_bundle("greedy", bundle=bundle)
        self.assertEqual(process.returncode, 1, process.stdout + process.stderr)
        parts = self.parts()
        self.assertEqual([part["status"] for part in parts.values()], ["failed", "skipped"])
        self.assertRegex(parts["greedy", "cpu"]["reason"], "^float16 on the CPU lies .* from float32, at most ")
        self.assertEqual(process.stdout.splitlines()[-1], "failed")

    def test_says_what_is_missing(self):
        empty = self.directory / "empty"
        empty.mkdir()
        process = self.run_bundle(site=empty)
        if "has no torch" not in process.stderr:
            self.assertIn("expected, ", process.stderr)  # of the system's own Python
        self.assertEqual(process.returncode, 1)
        other = self.directory / "other/torch"
        other.mkdir(parents=True)
        (other / "__init__.py").touch()
        (other / "version.py").write_text("__version__ = '2.99.0+cpu'\n", encoding="ascii")
        process = self.run_bundle(site=other.parent)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr, r"^run.sh: error: .*/other/torch/lib: torch \d\S+ expected, 2\.99\.0\+cpu found; pass --python")
        bundle = self.copy()
        (bundle / "bin/kvrun").write_text("#!/bin/sh\necho GLIBC_2.99 not found; exit 1\n", encoding="ascii")
        process = self.run_bundle(bundle=bundle)
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr, r"GLIBC_2.99 not found\nrun.sh: error: .*/bin/kvrun does not start. It needs glibc 2\.\d+ and a libstdc")
        process = self.run_bundle("no-such-case")
        self.assertEqual(process.returncode, 2)
        self.assertIn("one of greedy, coded, ", process.stderr)
        process = self.run_bundle("--exec", "kvrun", "--version")
        self.assertRegex(process.stdout, r"\d+\.\d+\.\d+")


class Comparisons(unittest.TestCase):
    def test_differences_of_logits(self):
        nan, infinity = float("nan"), float("inf")
        self.assertEqual(compare.differences([[[1.0, 2.0], [0.0, 5.0]]], [[[1.5, 2.0], [0.0, 3.0]]]), [0.5, 2.0])
        for wrong in (nan, infinity):
            self.assertEqual(compare.differences([[[1.0, 2.0, 3.0]]], [[[1.0, wrong, 3.0]]]), [infinity])
        self.assertEqual(compare.same_top([[[1, 2], [3, 1]], [[0, 1]]], [[[1, 3], [1, 3]], [[0, 2]]]), 2 / 3)
        self.assertEqual(compare.equal_share([[1, 2], [3, 4]], [[1, 2], [3, 5]]), 0.75)

    def test_choices_of_tokens(self):
        row = [math.log(weight) for weight in (0.5, 0.3, 0.15, 0.05)]
        self.assertAlmostEqual(compare.greedy_gap(row, 1), math.log(5 / 3))
        self.assertAlmostEqual(compare.mass_above(row, 2, 1.0, 0.0), 0.8)
        self.assertAlmostEqual(compare.mass_above(row, 3, 1.0, 1.5), 0.8)  # the third is no more than 1.5 above
        self.assertEqual(compare.mass_above(row, 0, 1.0, 0.0), 0.0)

    def test_code_for_a_gpu(self):
        for capability, architectures in (("9.0", "90a"), ("8.6", "80;90a"), ("12.0", "90a;120")):
            gpu.check_code(("GPU", capability), architectures)
        for capability, architectures in (("8.0", "90a"), ("9.1", "90a"), ("8.0", "86"), ("10.0", "90a")):
            with self.assertRaisesRegex(gpu.NoGpu, f"capability {capability}; these programs have code for {architectures} alone"):
                gpu.check_code(("GPU", capability), architectures)

    def test_asks_the_driver(self):
        with tempfile.TemporaryDirectory() as directory:
            source = pathlib.Path(directory) / "driver.c"
            source.write_text(DRIVER, encoding="ascii")

            def found(failure, number):
                subprocess.run(["cc", "-shared", "-fPIC", f"-DFAILURE={failure}", "-o", source.with_name("libcuda.so.1"), source], check=True)
                ask = f"import gpu\ntry: print(*gpu.find_gpu({number}))\nexcept gpu.NoGpu as reason: print(reason)"
                environment = {**os.environ, "LD_LIBRARY_PATH": directory, "PYTHONPATH": str(SCRIPT.with_suffix(""))}
                return subprocess.run([sys.executable, "-c", ask], env=environment, capture_output=True, text=True, check=True).stdout

            self.assertEqual(found(0, 0), "First 9.0\n")
            self.assertEqual(found(0, 1), "Second 9.0\n")
            self.assertEqual(found(0, 2), "no usable GPU: cuDeviceGet fails with 101\n")
            self.assertEqual(found(100, 0), "no GPU on this machine\n")
            self.assertEqual(found(999, 0), "no usable GPU: cuInit fails with 999\n")


if __name__ == "__main__":
    unittest.main()
