#!/usr/bin/env python3
"""scripts/gpu_check.sh on a machine whose tools and programs are stand-ins: what fails or hangs costs only its own step."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parent.parent.parent / "scripts/gpu_check.sh"
TEST = """#!/bin/sh
[ "$1" != --families ] || { echo good crashing hanging; exit 0; }
case "$1" in
  good_) echo fine ;;
  crashing_) echo "an illegal access"; kill -SEGV $$ ;;
  hanging_) sleep 100 ;;
esac
"""
BENCH = """#!/bin/sh
[ "$1" = --json ] && echo '{"rows": [1.5]}' >"$2"
"""
SMI = """#!/bin/sh
case "$1" in
  *name*) echo "Test GPU" ;;
  *compute_cap*) echo "9.0" ;;
  *) echo "1 MHz, 2 MHz, 3 MHz, 4 MHz, 5 W, 6" ;;
esac
"""
SANITIZER = """#!/bin/sh
while [ "${1#--}" != "$1" ]; do shift; case "$1" in [a-z0-9]*) [ -x "$1" ] || shift ;; esac; done
exec "$@"
"""


class GpuCheck(unittest.TestCase):
    def setUp(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="kvc-gpu-"))
        self.addCleanup(shutil.rmtree, self.directory)
        self.build = self.directory / "build"
        self.build.mkdir()
        self.write("bin/cmake", "#!/bin/sh\n")
        self.write("bin/nvcc", "#!/bin/sh\necho toolkit 13\n")
        self.write("bin/compute-sanitizer", SANITIZER)

    def write(self, name, text):
        path = self.directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def check(self, *options):
        environment = {**os.environ, "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}", "CUDACXX": str(self.directory / "bin/nvcc")}
        process = subprocess.run([SCRIPT, "--build", self.build, *map(str, options)], env=environment, stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, timeout=120, check=False)
        report = self.build / "gpu_check.json"
        return process, json.loads(report.read_text(encoding="utf-8")) if report.exists() else None

    def test_one_failure_leaves_the_other_steps(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("build/cuda_first_test", TEST.replace(" hanging;", ";"))
        self.write("build/cuda_speed_bench", BENCH)
        process, report = self.check()
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertEqual((report["device"], report["architectures"]), ("Test GPU", "90a"))
        self.assertEqual(report["cuda_speed_bench"], {"rows": [1.5]})
        outcomes = {step["step"]: step["outcome"] for step in report["steps"]}
        self.assertEqual(list(outcomes)[:3], ["cuda_first_test good", "cuda_first_test crashing", "cuda_speed_bench"])
        self.assertEqual([outcomes["cuda_first_test good"], outcomes["cuda_speed_bench"]], ["passed", "passed"])
        self.assertRegex(outcomes["cuda_first_test crashing"], r"^failed with 139$")
        self.assertEqual(outcomes["cuda_first_test good under racecheck"], "passed")
        self.assertIn("an illegal access", process.stdout)
        self.assertEqual((self.build / "steps/cuda_first_test-good.log").read_text(), "fine\n")

    def test_a_hanging_step_ends_and_the_report_is_whole(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("build/cuda_first_test", TEST.replace("good crashing hanging", "hanging good"))
        self.write("build/cuda_speed_bench", BENCH)
        process, report = self.check("--seconds", 6)
        self.assertEqual(process.returncode, 1)
        outcomes = [step["outcome"] for step in report["steps"]]
        self.assertRegex(outcomes[0], "^out of time after [56] s$")
        self.assertEqual(set(outcomes[1:]), {"skipped"})

    def test_everything_passed(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("build/cuda_first_test", TEST.replace("good crashing hanging", "good"))
        process, report = self.check("--quick")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual([step["outcome"] for step in report["steps"]], ["passed"])

    def test_without_a_gpu_nothing_is_claimed(self):
        self.write("bin/nvidia-smi", "#!/bin/sh\nexit 9\n")
        self.write("build/cuda_first_test", TEST)
        process, report = self.check()
        self.assertEqual(process.returncode, 77)
        self.assertIn("nothing was tested", process.stdout)
        self.assertIsNone(report)

    def test_other_gpus_are_refused(self):
        self.write("bin/nvidia-smi", SMI.replace('"9.0"', '"7.5"'))
        process, _ = self.check()
        self.assertEqual(process.returncode, 1)
        self.assertIn("compute capability 75 has no kernels", process.stderr)


if __name__ == "__main__":
    unittest.main()
