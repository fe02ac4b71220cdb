#!/usr/bin/env python3
"""What run.sh starts. Its beginning has the options and the exit codes.

Every case has two parts. `cpu`: the CPU's own run, which must agree with itself. `device`: the same on the GPU, compared with the
CPU's results. The report has for each part its status, time, commands with exit codes, and what was compared.
"""

import argparse
import pathlib
import re
import sys
import tempfile

from bench import HERE, Bench
from cases import CASES

SKIPPED = 77


def parse_options():
    parser = argparse.ArgumentParser(prog="run.sh", usage="see the beginning of run.sh", add_help=False)
    parser.add_argument("--data", type=pathlib.Path, default=HERE / "data")
    parser.add_argument("--json", type=pathlib.Path, default=pathlib.Path("report.json"))
    parser.add_argument("--work", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    if not options.json.absolute().parent.is_dir():
        parser.exit(2, f"run.sh: error: --json {options.json}: no such directory\n")
    if not options.data.is_dir() and not options.list:
        parser.exit(2, f"run.sh: error: --data {options.data}: no such directory; the project's tests/data expected\n")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", options.device):
        parser.exit(2, f"run.sh: error: --device {options.device}: cpu, cuda or cuda:N expected\n")
    unknown = [name for name in options.cases if name not in CASES]
    if unknown:
        parser.exit(2, f"run.sh: error: no case {unknown[0]}; one of {', '.join(CASES)} expected\n")
    return options


def main():
    options = parse_options()
    if options.list:
        print("\n".join(CASES))
        return 0
    if options.work:
        options.work.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="kvc-bundle-", dir=options.work) as work:
        bench = Bench(options, pathlib.Path(work))
        for name in options.cases or CASES:
            bench.run_case(name, CASES[name])
    statuses = {entry["status"] for entry in bench.report["cases"]}
    status = next(status for status in ("failed", "skipped", "passed") if status in statuses)
    bench.write_report(status)
    reasons = {entry["reason"] for entry in bench.report["cases"] if entry["status"] == "skipped"}
    print(f"wrote {options.json}")
    print(f"{status}: {'; '.join(sorted(reasons))}" if status == "skipped" else status)
    return {"passed": 0, "failed": 1, "skipped": SKIPPED}[status]


if __name__ == "__main__":
    sys.exit(main())
