#!/usr/bin/env python3
"""scripts/gpu_check.sh on a machine whose tools and programs are stand-ins: what fails or hangs costs only its own step."""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
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


NCU = """#!/bin/sh
echo "==PROF== $*"
echo "    Section: GPU Speed Of Light Throughput"
exit 9
"""
NOT_PERMITTED = """#!/bin/sh
echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters"
exit 1
"""


# A bundle of three cases.
BUNDLE = """#!/bin/sh
case "$*" in
  *--list*) echo good; echo bad; echo left; exit 0 ;;
  *--exec*) exit 0 ;;
  *good*) code=0 ;;
  *bad*) code=1 ;;
  *) code=77 ;;
esac
echo "$*"
while [ "$1" != --json ]; do shift; done
echo "{\\"status\\": $code}" >"$2"
echo "skipped: no checkpoint"
exit $code
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
        return path

    def check(self, *options):
        environment = {**os.environ, "PATH": f"{self.directory / 'bin'}:{os.environ['PATH']}", "CUDACXX": str(self.directory / "bin/nvcc")}
        process = subprocess.run([SCRIPT, "--build", self.build, "--python", "python3", *map(str, options)], env=environment, stdin=subprocess.DEVNULL,
                                 capture_output=True, text=True, timeout=300, check=False)
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
        self.assertEqual(list(outcomes)[:6],
                         ["facts", "cuda_first_test good", "cuda_first_test crashing", "bundle", "cuda_speed_bench", "gpu_peers"])
        self.assertEqual(outcomes["bundle"], "skipped: no bundle (scripts/gpu_bundle.sh makes one)")
        self.assertEqual([outcomes["facts"], outcomes["cuda_first_test good"], outcomes["cuda_speed_bench"]], ["passed"] * 3)
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
        outcomes = [step["outcome"] for step in report["steps"] if step["step"] != "facts"]
        self.assertRegex(outcomes[0], "^out of time after [56] s$")
        self.assertEqual(set(outcomes[1:]), {"skipped"})

    def test_facts_come_first_and_outlive_a_build_that_fails(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("bin/cmake", "#!/bin/sh\n[ $1 != --build ] || { echo no such file; exit 2; }\n")
        process, report = self.check()
        self.assertEqual(process.returncode, 1)
        self.assertIn("no such file", process.stderr)
        self.assertEqual([(step["step"], step["outcome"]) for step in report["steps"]], [("facts", "passed")])
        facts = (self.build / "steps/facts.log").read_text(encoding="utf-8")
        for part in ("== clocks\n1 MHz", "== toolkit\ntoolkit 13", "== processor\n", "== torch\n", "== system\nLinux"):
            self.assertIn(part, facts)

    def test_without_programs_built_elsewhere_there_is_nothing_to_run(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("bin/cmake", "#!/bin/sh\necho compiled >&2\nexit 1\n")
        process, _ = self.check("--built")
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr, "gpu_check: --built: .*/build has no test programs; leave --built out")
        self.write("build/cuda_first_test", TEST.replace("good crashing hanging", "good"))
        process, report = self.check("--built")
        self.assertEqual(process.returncode, 0, process.stdout + process.stderr)
        self.assertIn(("cuda_first_test good", "passed"), [(step["step"], step["outcome"]) for step in report["steps"]])

    def test_peers_become_a_part_of_the_report_or_are_skipped(self):
        self.write("bin/nvidia-smi", SMI)
        _, report = self.check("--python", self.write("bin/no_torch", "#!/bin/sh\necho 'skipped: no torch (\"here\")'; exit 77\n"))
        self.assertEqual(report["steps"][-1]["outcome"], "skipped: no torch (here)")
        self.assertNotIn("gpu_peers", report)
        python = self.write("bin/torch", '#!/bin/sh\n[ "$2" = --json ] && echo \'{"results": [2]}\' >"$3"\n')
        process, report = self.check("--python", python)
        self.assertEqual(process.returncode, 0, process.stdout)
        self.assertEqual(report["gpu_peers"], {"results": [2]})

    def test_cases_of_a_bundle_are_steps(self):
        self.write("bin/nvidia-smi", SMI)
        bundle = self.write("gpu-bundle/run.sh", BUNDLE).parent
        process, report = self.check()
        self.assertEqual(process.returncode, 1)
        outcomes = {step["step"]: step["outcome"] for step in report["steps"] if "bundle" in step["step"]}
        self.assertEqual(outcomes, {"bundle": "passed", "bundle_good": "passed", "bundle_bad": "failed with 1",
                                    "bundle_left": "skipped: no checkpoint"})
        self.assertEqual([report[f"bundle_{case}"] for case in ("good", "bad", "left")], [{"status": 0}, {"status": 1}, {"status": 77}])
        log = (self.build / "steps/bundle_good.log").read_text(encoding="utf-8")
        self.assertRegex(log, "--python python3 --data .*/tests/data --seconds 60 good")
        with tarfile.open(self.directory / "gpu-bundle.tar.xz", "w:xz") as archive:
            archive.add(bundle, "gpu-bundle")
        shutil.rmtree(bundle)
        _, report = self.check()
        self.assertEqual([(step["step"], step["outcome"]) for step in report["steps"]][1:4],
                         [("bundle unpacked", "passed"), ("bundle", "passed"), ("bundle_good", "passed")])

    def test_a_bundle_that_does_not_start_or_unpack_has_no_cases(self):
        self.write("bin/nvidia-smi", SMI)
        broken = self.write("other/run.sh", "#!/bin/sh\necho 'run.sh: error: no torch' >&2; exit 1\n").parent
        process, report = self.check("--bundle", broken)
        self.assertEqual(process.returncode, 1)
        self.assertIn("run.sh: error: no torch", process.stdout)
        self.assertEqual([step["step"] for step in report["steps"] if "bundle" in step["step"]], ["bundle"])
        process, report = self.check("--bundle", self.write("torn.tar.xz", "no archive"))
        self.assertEqual(process.returncode, 1)
        self.assertEqual([step["step"] for step in report["steps"] if "bundle" in step["step"]], ["bundle unpacked"])
        process, _ = self.check("--bundle", self.directory / "nowhere")
        self.assertEqual(process.returncode, 1)
        self.assertRegex(process.stderr, "^gpu_check: --bundle .*/nowhere: no such file or directory; scripts/gpu_bundle.sh makes one")

    def test_profiles(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("bin/ncu", NCU)
        self.write("build/cuda_step_bench", BENCH)
        self.write("build/cuda_first_test", TEST.replace("good crashing hanging", "good"))
        process, report = self.check()
        self.assertEqual(process.returncode, 0, process.stdout)
        outcomes = {step["step"]: step["outcome"] for step in report["steps"]}
        self.assertEqual([name for name in outcomes if "profile" in name], ["profile of few_rows_product", "profile of sample_tokens"])
        self.assertEqual(outcomes["profile of few_rows_product"], "passed")
        self.assertEqual(list(outcomes)[-1], "cuda_first_test good under racecheck")
        log = (self.build / "steps/profile-of-few_rows_product.log").read_text(encoding="utf-8")
        self.assertRegex(log, r"--kernel-name regex:FewRowsProductKernel< --launch-count 1 .*/cuda_step_bench\n")
        self.write("bin/ncu", NOT_PERMITTED)
        process, report = self.check()
        self.assertEqual(process.returncode, 0, process.stdout)
        profiles = [step["outcome"] for step in report["steps"] if "profile" in step["step"]]
        self.assertEqual(profiles, ["skipped: the driver does not permit this user to read the counters of the GPU"])
        self.write("bin/ncu", "#!/bin/sh\necho no kernel of this name; exit 0\n")
        process, report = self.check()
        self.assertEqual(process.returncode, 1)
        self.assertIn("no launch of FewRowsProductKernel< was profiled", process.stdout)

    def test_everything_passed(self):
        self.write("bin/nvidia-smi", SMI)
        self.write("build/cuda_first_test", TEST.replace("good crashing hanging", "good"))
        process, report = self.check("--quick")
        self.assertEqual(process.returncode, 0, process.stderr)
        self.assertEqual([(step["step"], step["outcome"]) for step in report["steps"]],
                         [("facts", "passed"), ("cuda_first_test good", "passed")])

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
