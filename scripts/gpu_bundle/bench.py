"""Runs the parts of a case, with their commands under time limits, and writes the report."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import gpu

HERE = pathlib.Path(__file__).resolve().parent
LIMIT = 180  # seconds of one command


class Failed(Exception):
    """A command or a comparison of a part."""


class Skipped(Exception):
    """What a part needs is not here."""


class Part:
    """One part of a case while it runs: its entry of the report, and the commands that it starts."""

    def __init__(self, bench, case, name):
        self.bench = bench
        self.entry = {"case": case, "part": name, "status": "passed", "seconds": 0.0, "runs": []}

    def run(self, program, *arguments):
        """Standard output of a program that must end with 0."""
        return self.call([HERE / "bin" / program], program, [*arguments, "--quiet"], self.bench.environment)

    def run_python(self, script, *arguments):
        """The same of a script that imports torch, which has its own libraries."""
        return self.call([sys.executable, HERE / script], script, arguments, None)

    def call(self, program, name, arguments, environment):
        arguments = list(map(str, arguments))
        record = {"command": shlex.join([name, *arguments]), "exit_code": None, "seconds": 0.0}
        self.entry["runs"].append(record)
        left = self.bench.end - time.monotonic()
        if left < 1:
            raise Skipped("no time left (--seconds)")
        started = time.monotonic()
        try:
            done = subprocess.run([*map(str, program), *arguments], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                  timeout=min(LIMIT, left), check=False)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{record['command']}: not done after {error.timeout:.0f} s") from error
        finally:
            record["seconds"] = round(time.monotonic() - started, 3)
        record["exit_code"] = done.returncode
        if done.returncode != 0:
            raise Failed(f"{record['command']}: exit code {done.returncode}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def check(self, holds, message):
        if not holds:
            raise Failed(message)

    @staticmethod
    def skip(reason):
        if reason:
            raise Skipped(reason)

    def note(self, **values):
        self.entry.update(values)


class Bench:
    """What all cases share: options, paths, time, and the report."""

    def __init__(self, options, work):
        self.options, self.work = options, work
        self.end = time.monotonic() + options.seconds
        self.environment = {**os.environ, "LD_LIBRARY_PATH": os.environ["KVC_LIBRARY_PATH"], "OMP_WAIT_POLICY": "passive"}
        self.bundle = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
        self.device_reason = None  # why nothing runs on it
        self.report = {"bundle": self.bundle, "torch": os.environ["KVC_TORCH_VERSION"], "device": options.device, "gpu": None, "cases": []}
        if options.device.startswith("cuda"):
            self.look_for_gpu()

    def look_for_gpu(self):
        try:
            if not self.bundle["architectures"]:
                raise gpu.NoGpu("these programs have no GPU code")
            found = gpu.find_gpu(int(self.options.device.partition(":")[2] or 0))
            self.report["gpu"] = found[0]
            gpu.check_code(found, self.bundle["architectures"])
        except gpu.NoGpu as reason:
            self.device_reason = str(reason)

    def data(self, *names):
        """The first of these that is there."""
        for name in names:
            if (self.options.data / name).exists():
                return self.options.data / name
        raise Skipped(f"no {' or '.join(names)} in {self.options.data}; pass --data DIR, the project's tests/data")

    def write_report(self, status):
        self.report["status"] = status
        partial = self.options.json.with_name(self.options.json.name + ".partial")
        partial.write_text(json.dumps(self.report, indent=2) + "\n", encoding="utf-8")
        partial.replace(self.options.json)

    def run_part(self, case, name, work):
        part = Part(self, case, name)
        started = time.monotonic()
        try:
            work(part)
        except Skipped as reason:
            part.note(status="skipped", reason=str(reason))
        except Failed as reason:
            part.note(status="failed", reason=str(reason))
        except Exception as error:  # an answer that is none: the other cases still run
            part.note(status="failed", reason=f"{type(error).__name__}: {error}")
        part.note(seconds=round(time.monotonic() - started, 3))
        self.report["cases"].append(part.entry)
        self.write_report("running")
        reason = f": {part.entry['reason']}" if "reason" in part.entry else ""
        print(f"{case}, {name}: {part.entry['status']} in {part.entry['seconds']:.1f} s{reason}", flush=True)
        return part.entry["status"] == "passed"

    def run_case(self, name, case):
        directory = self.work / name
        directory.mkdir()

        case = case(self, directory)
        has_results = self.run_part(name, "cpu", case.on_cpu)

        def on_device(part):
            if self.device_reason or not has_results:
                raise Skipped(self.device_reason or "nothing to compare with: the CPU's part did not pass")
            case.on_device(part)

        self.run_part(name, "device", on_device)
        shutil.rmtree(directory)
